"""Which translations a reweighting could have made, by one plain linear program per node.

An independent judge of :mod:`gnn_repair.study.measures`: it shares no code with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csc_array
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.highs import new_highs, pass_lp, status_of
from gnn_repair.published import REALIZABLE as TOLERANCE

FEASIBLE = 1e-9
"""The linear programs' own tolerance: a thousandth of the distance that is judged."""


def realizable(exposure: Exposure, shift: Tensor, *, tolerance: float = TOLERANCE) -> Tensor:
    """Whether each centred translation q_v lies in D_v = {P(z_v(λ) − z⁰_v) : λ ∈ Δ_v}.

    Args:
        exposure: the frozen model.
        shift: q, [S, n, C]; a common offset of a node's classes does not matter.
        tolerance: distance accepted, relative to max(1, |q|, |m ℓ|).

    Returns:
        [S, n] bool.
    """
    distance, scale = _distances(exposure, shift)
    return distance <= tolerance * scale


def displacement_distance(exposure: Exposure, shift: Tensor) -> Tensor:
    """min over λ ∈ Δ_v of the largest |P(z_v(λ) − z⁰_v) − P q_v| over classes, [S, n] float64."""
    return _distances(exposure, shift)[0]


def _distances(exposure: Exposure, shift: Tensor) -> tuple[Tensor, Tensor]:
    expected = (exposure.num_members, exposure.num_recipients, exposure.num_classes)
    if tuple(shift.shape) != expected:
        raise InputError(f"shift has shape {list(shift.shape)} instead of {list(expected)}")
    cpu = exposure.to("cpu")
    goal = shift.detach().double().cpu()
    goal = goal - goal.mean(2, keepdim=True)
    base = cpu.frozen_logits - cpu.fixed_logits
    goal = goal + (base - base.mean(2, keepdim=True))[:, cpu.recipients]
    table = cpu.contributions - cpu.contributions.mean(2, keepdim=True)
    mass = cpu.mass.expand(exposure.num_members, -1, -1)
    highs = new_highs(FEASIBLE)
    out = torch.zeros(2, *expected[:2], dtype=torch.float64)
    for member in range(expected[0]):
        for i in range(expected[1]):
            ends = cpu.segments[i * cpu.num_groups : (i + 1) * cpu.num_groups + 1]
            rows = cpu.rows[int(ends[0]) : int(ends[-1])].long()
            columns = table[member, rows].numpy()
            lengths = ends.diff().numpy()
            masses = mass[member, i].numpy()
            target = goal[member, i].numpy()
            out[0, member, i] = _nearest(highs, columns, lengths, masses, target)
            out[1, member, i] = _size(columns, masses, shift[member, i])
    return out[0].to(shift.device), out[1].to(shift.device)


def _size(columns: np.ndarray, masses: np.ndarray, shift: Tensor) -> float:
    largest = float(np.abs(columns).max(initial=0.0) * masses.max(initial=0.0))
    return max(1.0, float(shift.abs().max()), largest)


def _nearest(
    highs: Any, columns: np.ndarray, lengths: np.ndarray, masses: np.ndarray, goal: np.ndarray
) -> float:
    """min t such that |Σ λ ℓ − goal| ≤ t in every class, λ ≥ 0 and Σ λ = m in every group.

    Args:
        highs: a solver that is used again and again.
        columns: centred contributions of the node's terms, [K, C].
        lengths: terms of each group, [G].
        masses: m, [G].
        goal: [C].
    """
    if len(columns) == 0:
        return float(np.abs(goal).max())
    terms, classes = columns.shape
    present = np.flatnonzero(lengths)
    group = np.repeat(np.arange(len(present)), lengths[present])
    dense = np.zeros((2 * classes + len(present), terms + 1))
    dense[:classes, :terms] = columns.T
    dense[classes : 2 * classes, :terms] = columns.T
    dense[:classes, terms], dense[classes : 2 * classes, terms] = -1.0, 1.0
    dense[2 * classes + group, np.arange(terms)] = 1.0
    infinite, sparse = np.full(classes, np.inf), csc_array(dense)
    pass_lp(
        highs,
        np.append(np.zeros(terms), 1.0),
        np.zeros(terms + 1),
        np.full(terms + 1, np.inf),
        np.concatenate([-infinite, goal, masses[present]]),
        np.concatenate([goal, infinite, masses[present]]),
        (sparse.indptr, sparse.indices, sparse.data),
    )
    highs.run()
    if status_of(highs) != "Optimal":
        return float("nan")
    return float(highs.getInfo().objective_function_value)
