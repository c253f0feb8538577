"""Verify a solution from the exposure alone: no solver, plain NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnn_repair.errors import InputError
from gnn_repair.oracle.status import FAILED
from gnn_repair.oracle.tables import Floats, Integers, Tables

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure
    from gnn_repair.oracle.solution import OracleSolution

TOLERANCE = 1e-9
"""Accepted error, relative to the LP's own scale: max(|Δβ|, m·|ℓ_c − ℓ_r|) or 1e-300."""
GENERAL_TOLERANCE = 1e-6
"""The same for solutions of general solvers, whose own tolerances are coarser."""
PORTION = 1 << 18
"""Terms looked at together."""


@dataclass(frozen=True)
class Verification:
    """The largest violations found, each relative to its LP's scale (0 is perfect)."""

    lps: int
    """LPs that were verified; failed ones are not."""
    failed: int
    """LPs without an answer."""
    mass: float
    """|Σ_{a∈g} λ_a − m_g| / m_g."""
    negative: float
    """−min(λ, w, 0), and |Σ w − 1|."""
    margin: float
    """|margin − min_r M(c, r)|."""
    bound: float
    """|bound − (w·Δβ + Σ_g m_g max_a w·D_a)|."""
    gap: float
    """|bound − margin|."""
    oversized: int
    """LPs with more than C + B − 2 active terms, or more than C − 1 in a group."""
    tolerance: float
    """What the violations are compared with."""

    @property
    def ok(self) -> bool:
        """Whether every verified LP is proven optimal."""
        worst = max(self.mass, self.negative, self.margin, self.bound, self.gap)
        return bool(worst <= self.tolerance) and not self.oversized and not self.failed

    def __str__(self) -> str:
        verdict = "all hold" if self.ok else "NOT all hold"
        return (
            f"{self.lps:,} certificates, {verdict}: mass {self.mass:.1e}, sign {self.negative:.1e}"
            f", margin {self.margin:.1e}, bound {self.bound:.1e}, gap {self.gap:.1e}; "
            f"{self.oversized:,} beyond the support bounds, {self.failed:,} failed"
        )


def verify(solution: OracleSolution, exposure: Exposure) -> Verification:
    """Check mass, signs, margin, bound, gap and support of every LP."""
    tables = Tables.of(exposure)
    _check_match(solution, tables)
    solved = np.flatnonzero(solution.status != FAILED)
    worst, oversized = np.zeros(5), 0
    for portion in _portions(tables.counts(solution.recipient[solved])):
        errors, large = _verify(solution, tables, solved[portion])
        worst, oversized = np.maximum(worst, errors), oversized + large
    mass, negative, margin, bound, gap = (float(value) for value in worst)
    tolerance = TOLERANCE if solution.method == "simplex" else GENERAL_TOLERANCE
    failed = len(solution) - len(solved)
    return Verification(
        len(solved), failed, mass, negative, margin, bound, gap, oversized, tolerance
    )


def _check_match(solution: OracleSolution, tables: Tables) -> None:
    members, _, classes = tables.contributions.shape
    limits = {
        "recipient": len(tables.nodes),
        "member": members,
        "target": classes,
        "terms": len(tables.rows),
        "groups": tables.num_groups,
    }
    inside = all(
        0 <= getattr(solution, name).min(initial=0) <= getattr(solution, name).max(initial=0) < size
        for name, size in limits.items()
        if len(getattr(solution, name))
    )
    same = inside and solution.rival_weights.shape[1] == classes
    if not same or (tables.nodes[solution.recipient] != solution.node).any():
        raise InputError("the solution does not belong to this exposure; check it with its own")


def _portions(counts: Integers) -> Iterator[slice]:
    """Slices of LPs with about PORTION terms each."""
    ends = np.cumsum(counts)
    low = 0
    while low < len(counts):
        base = ends[low - 1] if low else 0
        high = max(low + 1, int(np.searchsorted(ends, base + PORTION, side="right")))
        yield slice(low, high)
        low = high


def _verify(solution: OracleSolution, tables: Tables, chosen: Integers) -> tuple[Floats, int]:
    """The five worst relative errors of the chosen LPs, and how many are oversized."""
    member, position = solution.member[chosen], solution.recipient[chosen]
    target, weights = solution.target[chosen], solution.rival_weights[chosen]
    groups, index = tables.num_groups, np.arange(len(chosen))
    mass = tables.mass[member if len(tables.mass) > 1 else 0 * member, position]
    beta = tables.fixed_logits[member, tables.nodes[position]]
    fixed = beta[index, target, None] - beta
    tops, sizes = _maxima(tables, member, position, target, weights)
    bound = (weights * fixed).sum(1) + (mass * tops).sum(1)
    entry, owner = _entries(solution, chosen)
    share, term = solution.coefficients[entry], solution.terms[entry]
    gaps = tables.contributions[member[owner], tables.rows[term]]
    gaps = gaps[np.arange(len(term)), target[owner], None] - gaps
    reached = fixed.copy()
    np.add.at(reached, owner, share[:, None] * gaps)
    reached[index, target] = np.inf
    scale = np.maximum(np.abs(fixed).max(1), (mass * sizes).sum(1)).clip(min=1e-300)
    slot = owner * groups + solution.groups[entry]
    totals = np.bincount(slot, share, len(chosen) * groups).reshape(-1, groups)
    misplaced = _misplaced(tables, position[owner], solution.groups[entry], term)
    errors = np.array(
        [
            (np.abs(totals - mass) / np.where(mass > 0, mass, 1.0)).max(),
            max(_wrong_signs(share, weights, target), float(misplaced)),
            (np.abs(reached.min(1) - solution.margin[chosen]) / scale).max(),
            (np.abs(bound - solution.bound[chosen]) / scale).max(),
            (np.abs(solution.gap[chosen]) / scale).max(),
        ]
    )
    active = np.bincount(slot, share > 1e-7, len(chosen) * groups).reshape(-1, groups)
    present = (mass > 0).sum(1)
    classes = tables.num_classes
    large = (active.sum(1) > classes + present - 2) | (active > classes - 1).any(1)
    return np.nan_to_num(errors, nan=np.inf), int((large & (present > 0)).sum())


def _wrong_signs(share: Floats, weights: Floats, target: Integers) -> float:
    """How far λ and w are from nonnegative, and w from a mixture of rivals."""
    own = weights[np.arange(len(target)), target]
    negative = -min(float(share.min(initial=0.0)), float(weights.min(initial=0.0)))
    return max(negative, float(np.abs(weights.sum(1) - 1).max()), float(np.abs(own).max()))


def _misplaced(tables: Tables, position: Integers, group: Integers, term: Integers) -> bool:
    """Whether some λ sits on a term that is not its recipient's and group's."""
    segment = position * tables.num_groups + group
    inside = (tables.segments[segment] <= term) & (term < tables.segments[segment + 1])
    return not bool(inside.all())


def _entries(solution: OracleSolution, chosen: Integers) -> tuple[Integers, Integers]:
    """The support entries of the chosen LPs, and whose they are."""
    counts = np.diff(solution.indptr)[chosen]
    owner = np.repeat(np.arange(len(chosen)), counts)
    shift = solution.indptr[chosen] - np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.repeat(shift, counts) + np.arange(len(owner)), owner


def _maxima(
    tables: Tables, member: Integers, position: Integers, target: Integers, weights: Floats
) -> tuple[Floats, Floats]:
    """max_a Σ_r w_r (ℓ_c − ℓ_r) and max |ℓ_c − ℓ_r| over each group, [L, G]; 0 where absent."""
    groups = tables.num_groups
    segment = position[:, None] * groups + np.arange(groups)
    low, counts = tables.segments[segment].ravel(), np.diff(tables.segments)[segment].ravel()
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    owner = np.repeat(np.arange(len(member)), counts.reshape(-1, groups).sum(1))
    term = np.repeat(low - starts, counts) + np.arange(len(owner))
    table = tables.contributions[member[owner], tables.rows[term]]
    gaps = table[np.arange(len(term)), target[owner], None] - table
    scores = (gaps * weights[owner]).sum(1)
    tops, sizes = np.zeros(len(low)), np.zeros(len(low))
    filled = counts > 0
    if filled.any():
        tops[filled] = np.maximum.reduceat(scores, starts[filled])
        sizes[filled] = np.maximum.reduceat(np.abs(gaps).max(1), starts[filled])
    return tops.reshape(-1, groups), sizes.reshape(-1, groups)
