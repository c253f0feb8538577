"""Verify a label solution from the exposure alone: plain NumPy, none of the solver's code.

Two facts prove an answer. λ is admissible and gives the margin; and no λ gives more, because what
a group adds is at most its mass times its largest contribution. Both are computed anew, masses
included, from the exposure's own arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gnn_repair.errors import InputError
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.tables import Floats, Integers, given_exposure

TOLERANCE = 1e-9
"""Accepted error, relative to the numbers that an answer is the sum of: far above rounding (1e-16
a sum), far below what anybody would call another margin."""
PORTION = 1 << 20
"""Terms looked at together: some tens of megabytes, whatever the size of the solution."""


@dataclass(frozen=True)
class LabelVerification:
    """The largest violations found, relative to each answer's own numbers (0 is perfect).

    It is true (``if solution.check(exposure):``) when every certificate holds.
    """

    questions: int
    mass: float
    """|Σ_{a∈g} λ_a − m_g| / m_g."""
    margin: float
    """|margin − ± (z_k(λ) − θ)|."""
    bound: float
    """|bound − (± (β_k − θ) + Σ_g m_g max_a ± ℓ_{a,k})|; after a tail how far proofs fail."""
    misplaced: int
    """Questions with λ on a term that is not the recipient's and group's, with a negative λ, twice
    on a term, or under another source's name."""
    unproven: int
    """After a tail: parts whose own certificates do not all hold."""

    @property
    def ok(self) -> bool:
        """Whether every answer is proven."""
        errors = (self.mass, self.margin, self.bound)
        return all(e <= TOLERANCE for e in errors) and not (self.misplaced or self.unproven)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "all hold" if self.ok else "NOT all hold"
        return (
            f"{self.questions:,} certificates, {verdict}: mass {self.mass:.1e}, margin "
            f"{self.margin:.1e}, bound {self.bound:.1e}; {self.misplaced:,} with misplaced terms"
            + (f", {self.unproven:,} outputs whose proofs fail" if self.unproven else "")
        )


def verify(solution: LabelSolution, exposure: Any) -> LabelVerification:
    """Check masses, places, margins and bounds of every question."""
    offset = 0
    if isinstance(exposure, LinkExposure):
        offset, exposure = exposure.offset, exposure.mixture
    given_exposure(exposure)
    if exposure.head is not None:
        return _verify_parts(solution, exposure)
    numbers = _Numbers(exposure)
    _check_match(solution, numbers, offset)
    worst, misplaced = np.zeros(3), 0
    counts = numbers.ends[solution.recipient, -1] - numbers.ends[solution.recipient, 0]
    for part in _portions(counts):
        errors, wrong = _verify(solution, numbers, part)
        worst, misplaced = np.maximum(worst, errors), misplaced + wrong
    mass, margin, bound = (float(error) for error in worst)
    return LabelVerification(len(solution), mass, margin, bound, misplaced, 0)


class _Numbers:
    """The exposure's arrays as this file reads them."""

    def __init__(self, exposure: Exposure) -> None:
        self.groups = exposure.num_groups
        self.nodes = exposure.recipients.cpu().numpy()
        segments = exposure.segments.cpu().numpy()
        index = np.arange(len(self.nodes))[:, None] * self.groups + np.arange(self.groups + 1)
        self.ends = segments[index]
        self.rows = exposure.rows.cpu().numpy().astype(np.int64)
        self.sources = exposure.sources.cpu().numpy().astype(np.int64)
        self.alpha = exposure.coefficients.detach().cpu().numpy().astype(np.float64)
        self.table = exposure.contributions.cpu().numpy()
        self.fixed = exposure.fixed_logits.cpu().numpy()


def _check_match(solution: LabelSolution, numbers: _Numbers, offset: int) -> None:
    members, _, outputs = numbers.table.shape
    limits = {"recipient": len(numbers.nodes), "member": members, "target": outputs}
    limits |= {"terms": len(numbers.rows), "groups": numbers.groups}
    for name, size in limits.items():
        held = getattr(solution, name)
        if len(held) and not 0 <= held.min() <= held.max() < size:
            raise InputError("the solution does not belong to this exposure; check it with its own")
    if (numbers.nodes[solution.recipient] != solution.node + offset).any():
        raise InputError("the solution does not belong to this exposure; check it with its own")


def _portions(counts: Integers) -> list[slice]:
    """Slices of questions with about PORTION terms each."""
    total = np.cumsum(counts)
    edges = np.searchsorted(total, np.arange(0, total[-1] if len(total) else 0, PORTION))
    edges = np.unique(np.append(edges, len(counts)))
    if not len(counts):
        return []
    edges = np.unique(np.append(0, edges))
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


def _verify(solution: LabelSolution, numbers: _Numbers, part: slice) -> tuple[Floats, int]:
    member, position = solution.member[part], solution.recipient[part]
    target, count = solution.target[part], len(solution.member[part])
    sign = np.where(solution.wanted[part], 1.0, -1.0)
    fixed = numbers.fixed[member, numbers.nodes[position], target]
    base = sign * (fixed - solution.threshold)
    size = np.abs(fixed) + abs(solution.threshold)
    slots, owner, term = _all_terms(numbers, position)
    alpha = numbers.alpha[np.minimum(member[owner], len(numbers.alpha) - 1), term]
    mass = np.bincount(slots, alpha, count * numbers.groups).reshape(count, -1)
    spoken = sign[owner] * numbers.table[member[owner], numbers.rows[term], target[owner]]
    loudest = np.full(count * numbers.groups, -np.inf)
    np.maximum.at(loudest, slots, spoken)
    tops = np.where(np.isfinite(loudest), loudest, 0.0).reshape(count, -1)
    limit, limit_size = base + (mass * tops).sum(1), size + (mass * np.abs(tops)).sum(1)
    reached, reached_size, totals, wrong = _reached(solution, numbers, part, base, size, sign)
    safe = np.where(mass > 0, mass, 1.0)
    errors = [
        np.abs(totals - mass) / safe,
        np.abs(reached - solution.margin[part]) / np.maximum(reached_size, 1e-300),
        np.abs(limit - solution.bound[part]) / np.maximum(limit_size, 1e-300),
    ]
    return np.array([np.nan_to_num(e, nan=np.inf).max(initial=0.0) for e in errors]), wrong


def _all_terms(numbers: _Numbers, position: Integers) -> tuple[Integers, Integers, Integers]:
    """Every term of the recipients: its slot (question × group), its question, its number."""
    low, high = numbers.ends[position, :-1].ravel(), numbers.ends[position, 1:].ravel()
    lengths = high - low
    slots = np.repeat(np.arange(len(low)), lengths)
    start = np.append(0, np.cumsum(lengths)[:-1])
    return slots, slots // numbers.groups, np.arange(len(slots)) + (low - start)[slots]


def _reached(
    solution: LabelSolution,
    numbers: _Numbers,
    part: slice,
    base: Floats,
    size: Floats,
    sign: Floats,
) -> tuple[Floats, Floats, Floats, int]:
    """What λ gives, the size of its numbers, its masses [q, G], and how many are misplaced."""
    count = len(base)
    first = solution.indptr[part.start]
    ends = solution.indptr[part.start : part.stop + 1]
    owner = np.repeat(np.arange(count), np.diff(ends))
    entries = slice(first, ends[-1])
    term, share, group = (
        getattr(solution, name)[entries] for name in ("terms", "coefficients", "groups")
    )
    member, position = solution.member[part][owner], solution.recipient[part][owner]
    parts = share * sign[owner]
    parts = parts * numbers.table[member, numbers.rows[term], solution.target[part][owner]]
    slots = owner * numbers.groups + group
    totals: Floats = np.bincount(slots, share, count * numbers.groups).astype(np.float64)
    wrong = (term < numbers.ends[position, group]) | (term >= numbers.ends[position, group + 1])
    wrong |= (share < 0) | (numbers.sources[numbers.rows[term]] != solution.sources[entries])
    wrong[1:] |= (np.diff(owner) == 0) & (np.diff(term) <= 0)
    return (
        base + np.bincount(owner, parts, count),
        size + np.bincount(owner, np.abs(parts), count),
        totals.reshape(count, -1),
        int(np.count_nonzero(np.bincount(owner, wrong, count))),
    )


def _verify_parts(solution: LabelSolution, exposure: Exposure) -> LabelVerification:
    from gnn_repair.oracle.labels.tails import verify_parts

    misplaced, unproven = verify_parts(solution, exposure)
    return LabelVerification(len(solution), 0.0, 0.0, 0.0, misplaced, unproven)
