"""γ of an LP by scipy, with exact masses or masses that may give way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from gnn_repair.oracle.problems import Instance


def group_rows(problem: Instance) -> NDArray[np.float64]:
    """[B, K]: 1 where a term is of a group."""
    return np.equal.outer(np.arange(len(problem.mass)), problem.group).astype(float)


def margin_by_scipy(problem: Instance, slack: float = 0.0, between_groups: bool = False) -> float:
    """The largest γ where each group's mass m, or their sum, lies in m(1−ρ) … m(1+ρ)."""
    count = len(problem.terms)
    masses, mass = group_rows(problem), problem.mass
    if between_groups:
        masses, mass = masses.sum(0, keepdims=True), mass.sum(keepdims=True)
    limits = np.concatenate([-problem.gaps.T, masses, -masses])
    gamma = np.append(np.ones(len(problem.rivals)), np.zeros(2 * len(mass)))
    answer = linprog(
        np.append(np.zeros(count), -1.0),
        np.column_stack([limits, gamma]),
        np.concatenate([problem.fixed, mass * (1 + slack), -mass * (1 - slack)]),
        bounds=[(0, None)] * count + [(None, None)],
        method="highs",
    )
    return -answer.fun
