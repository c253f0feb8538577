"""Which shifts of the logits a reweighting could have made: q ∈ D_v, by our own solver.

D_v = {P(z_v(λ) − z⁰_v) : λ ∈ Δ_v}. With centred contributions P ℓ and goal = P(z⁰ − β + q), the
distance of q to D_v is

    min_λ max_j |Σ_a λ_a (P ℓ_a)_j − goal_j| = −max_λ min_{j,±} ±(goal_j − Σ_a λ_a (P ℓ_a)_j),

which is the oracle's own linear program for a class of zeros among 2C rivals, ±P ℓ. So the same
solver answers, and the same bound proves: a shift is inside when its λ comes near enough, outside
when the bound says that none does, and otherwise undecided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.fallback import solve_with_second_attempts
from gnn_repair.oracle.lps import Piece
from gnn_repair.oracle.problems import (
    FAILED,
    Floats,
    Integers,
    Problems,
    Tables,
    require_no_head,
    selection,
)
from gnn_repair.published import REALIZABLE

Truths = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Displacements:
    """One shift a member and node, and where it lies."""

    member: Integers
    """[L]."""
    node: Integers
    """[L]."""
    distance: Floats
    """[L]: to the nearest point of D_v that was found, in the largest class; NaN: none was."""
    bound: Floats
    """[L]: what the distance is at least."""
    inside: Truths
    """[L]: a reweighting makes this shift."""
    outside: Truths
    """[L]: proved that none does."""

    @property
    def undecided(self) -> Truths:
        """[L]: neither."""
        undecided: Truths = ~(self.inside | self.outside)
        return undecided


def solve_displacements(
    exposure: Exposure,
    shift: Tensor,
    nodes: Tensor | None = None,
    *,
    tolerance: float = REALIZABLE,
    threads: int | None = None,
) -> Displacements:
    """Decide of each shift q_v whether it lies in D_v.

    Args:
        exposure: the frozen model.
        shift: q, [S, n, C]; a common offset of a node's classes does not matter.
        nodes: a mask [N] or [N, S] (member s takes column s), node numbers, or None for all.
        tolerance: distance accepted, relative to max(1, |q|, |m ℓ|).
        threads: worker threads; all cores unless given.
    """
    require_no_head(exposure, "which shifts it can make is not known")
    expected = (exposure.num_members, exposure.num_recipients, exposure.num_classes)
    if not isinstance(shift, Tensor) or tuple(shift.shape) != expected:
        shape = list(shift.shape) if isinstance(shift, Tensor) else type(shift).__name__
        raise InputError(f"shift has shape {shape} instead of {list(expected)}")
    goal = shift.detach().double().cpu().numpy()
    if not np.isfinite(goal).all():
        raise InputError("shift holds NaN or infinite values; a repair that diverged has no shifts")
    member, position = selection(exposure, nodes)
    tables = Tables.of(exposure)
    asked = Problems(member, position, np.zeros(len(member), np.int64))
    frozen = exposure.frozen_logits.detach().cpu().numpy()
    solved = solve_with_second_attempts(_two_sided(tables, frozen, goal), asked, threads)
    allowed = tolerance * _sizes(tables, goal, member, position)
    return _verdicts(tables, asked, solved, allowed)


def _verdicts(tables: Tables, asked: Problems, solved: Piece, allowed: Floats) -> Displacements:
    """What margin and bound say of each; an answer that nobody could certify says nothing."""
    known = solved.status != FAILED
    distance = np.where(known, np.maximum(-solved.margin, 0.0), np.nan)
    bound = np.where(known, np.maximum(-solved.bound, 0.0), 0.0)
    return Displacements(
        asked.member,
        tables.nodes[asked.position],
        distance,
        bound,
        inside=distance <= allowed,
        outside=bound > allowed,
    )


def _two_sided(tables: Tables, frozen: Floats, shift: Floats) -> Tables:
    """The oracle's tables with classes 0, +P ℓ and −P ℓ; the fixed logits hold the goals.

    Args:
        tables: the exposure's own.
        frozen: z⁰, [S, N, C].
        shift: q, [S, n, C].
    """
    columns = _centred(tables.contributions)
    goal = np.zeros_like(tables.fixed_logits)
    goal[:, tables.nodes] = _centred((frozen - tables.fixed_logits)[:, tables.nodes] + shift)
    return replace(
        tables,
        contributions=_mirrored(columns),
        fixed_logits=_mirrored(-goal),
    )


def _mirrored(values: Floats) -> Floats:
    """[…, C] as [0, v, −v], […, 2C + 1]."""
    return np.concatenate([np.zeros_like(values[..., :1]), values, -values], axis=-1)


def _centred(values: Floats) -> Floats:
    centred: Floats = values - values.mean(axis=-1, keepdims=True)
    return centred


def _sizes(tables: Tables, shift: Floats, member: Integers, position: Integers) -> Floats:
    """[L]: max(1, |q|, |m ℓ|) of each shift, ℓ centred."""
    largest = np.abs(_centred(tables.contributions)).max(axis=2, initial=0.0)
    ends = tables.segments[:: tables.num_groups]
    out: Floats = np.maximum(1.0, np.abs(shift[member, position]).max(axis=1, initial=0.0))
    for s in np.unique(member):
        own = member == s
        mass = tables.mass[min(int(s), len(tables.mass) - 1)].max(axis=1, initial=0.0)
        by_node = mass * _largest_term(largest[s], tables.rows, ends)
        out[own] = np.maximum(out[own], by_node[position[own]])
    return out


def _largest_term(largest: Floats, rows: NDArray[Any], ends: Integers) -> Floats:
    """[n]: the largest of a recipient's terms; 0 where it has none."""
    out = np.zeros(len(ends) - 1)
    some = np.flatnonzero(np.diff(ends) > 0)
    if len(some):
        # Recipients without terms begin where the next one does, so leaving them out is enough.
        out[some] = np.maximum.reduceat(largest[rows], ends[some])
    return out
