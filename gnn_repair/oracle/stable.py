"""Which terms every good reweighting needs, and which can stand in for one another.

The optimum of an LP may not be unique, so one λ says little about a single term. Over all
admissible λ whose worst margin is within ε of γ, each term's share λ_a ranges over an interval:
a term whose lower end is notable is indispensable, one whose upper end alone is notable is
interchangeable, the others do not matter. Notable is more than a hundredth of the group's mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.exposure.value import Exposure
from gnn_repair.highs import new_highs, pass_lp, status_of
from gnn_repair.oracle.reference_solvers import oracle_matrix
from gnn_repair.oracle.second_attempt import SMALLEST
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.status import FAILED
from gnn_repair.oracle.tables import (
    Floats,
    Instance,
    Integers,
    Tables,
    check_number,
    given_exposure,
    instance,
)
from gnn_repair.oracle.threads import over_lps
from gnn_repair.thresholds import ACTIVE

NOTABLE = 0.01
"""Share of a group's mass below which a term does not matter: nobody would name it as a reason."""


@dataclass(frozen=True, eq=False)
class StableEvidence:
    """The range of every term's λ over the near-optimal reweightings of one node."""

    member: int
    node: int
    target: int
    margin: float
    """γ."""
    epsilon: float
    """How far below γ a reweighting may stay."""
    terms: Integers
    """[K]: all terms of the node."""
    sources: Integers
    """[K]."""
    mass: Floats
    """[K]: the mass of the term's group."""
    low: Floats
    """[K]: the smallest λ_a; NaN where no answer was found."""
    high: Floats
    """[K]: the largest λ_a, likewise."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    @property
    def indispensable(self) -> NDArray[np.bool_]:
        """[K]: every near-optimal reweighting uses the term."""
        return self.low > NOTABLE * self.mass

    @property
    def interchangeable(self) -> NDArray[np.bool_]:
        """[K]: some use it, others do without."""
        return (self.low <= NOTABLE * self.mass) & (self.high > NOTABLE * self.mass)

    def __str__(self) -> str:
        needed = np.flatnonzero(self.indispensable)
        parts = ", ".join(
            f"{self.names.sender(self.sources[i])} (λ {self.low[i]:.4g} to {self.high[i]:.4g})"
            for i in needed[np.argsort(-self.low[needed])][:6]
        )
        open_ = int(np.isnan(self.low + self.high).sum())
        return (
            f"{self.names.node(self.node)}, class {self.target}, within {self.epsilon:.3g} of γ "
            f"{self.margin:.4g}: {len(needed)} indispensable terms{': ' * bool(parts)}{parts}; "
            f"{int(self.interchangeable.sum())} interchangeable of {len(self.terms)}"
            + (f", {open_} undecided" if open_ else "")
        )

    __repr__ = __str__


def stable_evidence(
    exposure: Exposure,
    target: Tensor,
    nodes: Tensor,
    *,
    epsilon: float = 1e-3,
    threads: int | None = None,
) -> Any:
    """The smallest and largest λ_a of every term over reweightings within ``epsilon`` of γ.

    Args:
        exposure: as for :func:`solve_oracle`, like ``target``, ``nodes`` and ``threads``.
        target: [N] a class per node.
        nodes: which nodes; this solves up to two LPs per term, so choose a few.
        epsilon: how far below γ, in logits; γ of a model with a tail is known up to its verdict
            only, so there the question is whether the class still wins without the term.
        threads: worker threads, each with its own highspy.

    Returns:
        One answer a node. With a tail, a verdict about every term.
    """
    epsilon = check_number(epsilon, "epsilon")
    if not epsilon > 0:
        raise InputError(f"epsilon must be positive, not {epsilon}")
    given_exposure(exposure)
    if exposure.head is not None:
        from gnn_repair.oracle.tails.variants import needed_terms

        return needed_terms(exposure, target, nodes)
    solution = solve_oracle(exposure, target, nodes, threads=threads)
    tables = Tables.of(exposure)
    sources = exposure.sources.cpu().numpy()

    def solve(index: int, highs: Any) -> StableEvidence:
        return _evidence(highs, solution, tables, sources, index, epsilon)

    return tuple(over_lps(len(solution), solve, new_highs, threads))


def _evidence(
    highs: Any,
    solution: OracleSolution,
    tables: Tables,
    sources: NDArray[np.int32],
    index: int,
    epsilon: float,
) -> StableEvidence:
    s, v, c = (int(a[index]) for a in (solution.member, solution.recipient, solution.target))
    problem = instance(tables, s, v, c)
    part = slice(solution.indptr[index], solution.indptr[index + 1])
    optimum = np.zeros(len(problem.terms))
    optimum[solution.terms[part] - problem.terms[:1]] = solution.coefficients[part]
    weights = solution.rival_weights[index][problem.rivals]
    margin = float(solution.margin[index])
    low, high = np.full((2, len(problem.terms)), np.nan)
    if solution.status[index] != FAILED and len(problem.terms):
        low, high = _ranges(highs, problem, optimum, weights, margin, epsilon)
    return StableEvidence(
        member=s,
        node=int(solution.named(solution.node[index])),
        target=c,
        margin=margin,
        epsilon=epsilon,
        terms=problem.terms,
        sources=solution.named(sources[tables.rows[problem.terms]].astype(np.int64)),
        mass=problem.mass[problem.group],
        low=low,
        high=high,
        names=solution.names,
    )


def _ranges(
    highs: Any, problem: Instance, optimum: Floats, weights: Floats, margin: float, epsilon: float
) -> tuple[Floats, Floats]:
    """λ's extremes, as one LP whose cost changes: the solver starts from its last answer."""
    shorter = _pass(highs, problem, margin, epsilon, optimum)
    mass = problem.mass[problem.group]
    scores = problem.gaps @ weights
    best = np.full(len(problem.mass), -np.inf)
    np.maximum.at(best, problem.group, scores)
    # By weak duality λ_a (best − s_a) ≤ ε: a term far from tight needs no LP to be ruled out.
    deficit = best[problem.group] - scores
    capped = np.minimum(mass, 2 * epsilon / np.maximum(deficit, 1e-300))
    low, high = np.zeros(len(mass)), capped.copy()
    for a in range(len(mass)):
        if optimum[a] > ACTIVE * mass[a]:
            low[a] = min(_extreme(highs, a, 1.0) * shorter[a], 1.0) * mass[a]
        if capped[a] > ACTIVE * mass[a]:
            high[a] = min(-_extreme(highs, a, -1.0) * shorter[a], 1.0) * mass[a]
    return low.clip(min=0.0), np.maximum(high, optimum)


def _extreme(highs: Any, column: int, sign: float) -> float:
    """min sign · x_column over the near-optimal set; NaN where highspy finds no optimum."""
    highs.changeColCost(column, sign)
    highs.run()
    value = float(highs.getInfo().objective_function_value)
    if status_of(highs) != "Optimal":
        value = np.nan
    highs.changeColCost(column, 0.0)
    return value


def _pass(highs: Any, problem: Instance, margin: float, epsilon: float, optimum: Floats) -> Floats:
    """The near-optimal set: x on the product of simplices, γ pinned ``epsilon`` below ``margin``.

    Columns longer than those of the optimum and than ``epsilon`` are shortened, so that a message
    that nobody uses sets no scale; returns what each x_a is a multiple of, [K].
    """
    count, rivals, groups = len(problem.terms), len(problem.rivals), len(problem.mass)
    sizes = np.abs(problem.columns).max(1)
    unit = max(float(sizes[optimum > 0].max(initial=0.0)), epsilon, SMALLEST)
    lengths = np.maximum(sizes, unit)
    shorter: Floats = unit / lengths
    pinned = (margin - epsilon - problem.fixed.min()) / unit
    with np.errstate(over="ignore"):  # a rival infinitely far away is never tight
        fixed = (problem.fixed - problem.fixed.min()) / unit
    highs.clearSolver()
    pass_lp(
        highs,
        np.zeros(count + 1),
        np.append(np.zeros(count), pinned),
        np.append(1 / shorter, pinned),
        np.concatenate([np.full(rivals, -np.inf), np.ones(groups)]),
        np.concatenate([fixed, np.ones(groups)]),
        oracle_matrix(problem.columns / lengths[:, None], problem.group, shorter),
    )
    return shorter
