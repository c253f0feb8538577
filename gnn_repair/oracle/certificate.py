"""Verify a solution from the exposure alone: no solver, plain NumPy.

Each LP is judged at the scale of its own answer, the size of the numbers that its margin and its
bound are sums of. A message that neither uses, however large, excuses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.oracle.heads.proof import HeadVerification
from gnn_repair.oracle.heads.proof import verify as verify_head
from gnn_repair.oracle.problems import (
    FAILED,
    UNCERTIFIED,
    Floats,
    Integers,
    Tables,
    binarise,
    list_entries,
    require_exposure,
)
from gnn_repair.published import ACTIVE, REACHABLE

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure
    from gnn_repair.oracle.solution import Solution

TOLERANCE = 1e-9
"""Accepted error, relative to the LP's own answer: far above rounding (1e-16 a sum), far below
what anybody would call a different margin."""
GENERAL = ("highs", "gurobi")
GENERAL_TOLERANCE = 1e-6
"""The same for solutions of general solvers, whose own tolerances are coarser."""
UNDERFLOW = 1e-316
"""Absolute errors below this are forgiven: floats this small are multiples of 5e-324."""
ROUNDING = 2e-14
"""How far a sum of up to a hundred floats may be off, relative to what it is the sum of."""
PORTION = 1 << 18
"""Terms looked at together: some megabytes, whatever the size of the solution."""


@dataclass(frozen=True)
class Verification:
    """The largest violations found, each relative to its LP's own answer (0 is perfect).

    It is true (``if solution.check(exposure):``) when every certificate holds.
    """

    lps: int
    """LPs that were verified; failed ones are not."""
    failed: int
    """LPs without an answer."""
    uncertified: int
    """LPs whose solver does not claim an optimum: margin and bound hold but need not meet."""
    mass: float
    """|Σ_{a∈g} λ_a − m_g| / m_g."""
    negative: float
    """−min(λ / m_g, w, 0)."""
    mixture: float
    """|Σ w − 1|, and |w| at the target."""
    margin: float
    """|margin − min_r M(c, r)|."""
    bound: float
    """|bound − (w·Δβ + Σ_g m_g max_a w·D_a)|."""
    gap: float
    """|bound − margin|, both recomputed, of LPs that are claimed to be optimal; the margin's
    numbers are what it is relative to, and rounding of the bound's is forgiven."""
    undecided: int
    """Claimed optima whose margin and bound lie on both sides of the threshold of reach."""
    misplaced: int
    """LPs with λ on a term that is not the recipient's and group's, twice on a term, or under
    another source's name."""
    oversized: int
    """LPs with more than C + B − 2 active terms, or more than C − 1 in a group."""
    tolerance: float
    """What the violations are compared with."""
    unproven: int = 0
    """Outputs behind a head whose own certificates do not all hold."""

    @property
    def ok(self) -> bool:
        """Whether every LP is proven optimal."""
        errors = (self.mass, self.negative, self.mixture, self.margin, self.bound, self.gap)
        counts = (self.failed, self.uncertified, self.undecided, self.misplaced, self.oversized)
        return all(e <= self.tolerance for e in errors) and not any((*counts, self.unproven))

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "all hold" if self.ok else "NOT all hold"
        counted = {
            "undecided": self.undecided,
            "with misplaced terms": self.misplaced,
            "beyond the support bounds": self.oversized,
            "uncertified": self.uncertified,
            "failed": self.failed,
        }
        if self.unproven:
            counted["outputs whose proofs fail"] = self.unproven
        return (
            f"{self.lps:,} certificates, {verdict}: mass {self.mass:.1e}, sign {self.negative:.1e}"
            f", mixture {self.mixture:.1e}, margin {self.margin:.1e}, bound {self.bound:.1e}, "
            f"gap {self.gap:.1e}; " + ", ".join(f"{n:,} {what}" for what, n in counted.items())
        )


def verify(solution: Solution, exposure: Any) -> Verification | HeadVerification:
    """Check every λ and every bound, whatever the exposure's head and outputs are."""
    offset = 0
    if solution.links is not None and hasattr(exposure, "mixture"):
        offset, exposure = exposure.offset, exposure.mixture
    require_exposure(exposure)
    if exposure.head is None:
        return _verify_all(solution, Tables.from_exposure(exposure), offset)
    if solution.proofs is None:
        return _verify_parts(solution, exposure)
    return verify_head(solution, exposure)


def _verify_all(solution: Solution, tables: Tables, offset: int) -> Verification:
    """Check mass, signs, mixture, margin, bound, gap, places and support of every question."""
    _check_match(solution, tables, offset)
    solved = np.flatnonzero(solution.status != FAILED)
    worst, counts = np.zeros(6), np.zeros(3, np.int64)
    portions = np.cumsum(tables.counts(solution.recipient[solved])) // PORTION
    for chosen in np.split(solved, np.flatnonzero(np.diff(portions)) + 1):
        errors, flags = _verify(solution, tables, chosen)
        worst, counts = np.maximum(worst, errors), counts + flags
    uncertified = int((solution.status == UNCERTIFIED).sum())
    tolerance = GENERAL_TOLERANCE if solution.method in GENERAL else TOLERANCE
    figures: list[Any] = [uncertified, *worst.tolist(), *counts.tolist(), tolerance]
    return Verification(len(solved), len(solution) - len(solved), *figures)


def _check_match(solution: Solution, tables: Tables, offset: int) -> None:
    members, _, classes = tables.contributions.shape
    limits = {
        "recipient": len(tables.nodes),
        "member": members,
        "target": classes,
        "terms": len(tables.rows),
        "groups": tables.num_groups,
    }
    places = ((getattr(solution, name), size) for name, size in limits.items())
    inside = all(((array >= 0) & (array < size)).all() for array, size in places)
    weights = solution.rival_weights
    same = inside and (solution.wanted is not None) == (weights is None)
    same = same and (weights is None or weights.shape[1] == classes)
    if not same or (tables.nodes[solution.recipient] != solution.node + offset).any():
        raise InputError("the solution does not belong to this exposure; check it with its own")


@dataclass(frozen=True)
class _Claims:
    """Some questions of a solution beside what their exposure says about them.

    A label or a value is the question about two classes, (0, z_k − θ): it has one rival.
    """

    part: Solution
    """The L questions, with the k entries of their supports."""
    sign: Floats | None
    """[L]: ±1 by the wanted side, of labels and values."""
    weights: Floats
    """[L, C], or [L, 1] ones: w."""
    mass: Floats
    """[L, G]."""
    fixed: Floats
    """[L, C], or [L, 1]: Δβ."""

    @property
    def classes(self) -> int:
        """C; 2 for labels and values."""
        return 2 if self.sign is not None else self.weights.shape[1]

    def leads(self, values: Floats, owner: Integers) -> Floats:
        """By how much rows of outputs [k, C] are ahead of each rival, for questions [k]."""
        own = values[np.arange(len(values)), self.part.target[owner], None]
        return own - values if self.sign is None else self.sign[owner, None] * own

    def by_group(self, values: Any) -> Floats:
        """[L, G]: the sums of numbers [k] of support entries."""
        lps, groups = self.mass.shape
        slot = self.part.owner * groups + self.part.groups
        sums: Floats = np.bincount(slot, values, lps * groups).astype(float)
        return sums.reshape(lps, groups)


def _claims(solution: Solution, tables: Tables, chosen: Integers) -> _Claims:
    part = solution.taken(chosen)
    beta = tables.fixed_logits[part.member, tables.nodes[part.recipient]]
    own = beta[np.arange(len(part)), part.target, None]
    mass = tables.mass[np.minimum(part.member, len(tables.mass) - 1), part.recipient]
    if part.rival_weights is not None:
        return _Claims(part, None, part.rival_weights, mass, own - beta)
    sign = np.where(part.wanted, 1.0, -1.0)
    fixed = sign[:, None] * (own - part.threshold)
    return _Claims(part, sign, np.ones((len(part), 1)), mass, fixed)


def _verify(
    solution: Solution, tables: Tables, chosen: Integers
) -> tuple[Floats, NDArray[np.int64]]:
    """The six worst errors of the chosen LPs, and how many are undecided, misplaced, oversized."""
    claims = _claims(solution, tables, chosen)
    margin, bound = claims.part.margin, claims.part.bound
    claimed = claims.part.status != UNCERTIFIED
    with np.errstate(all="ignore"):
        reached, reached_size = _reached(tables, claims)
        limit, limit_size, tied_size = _limits(tables, claims)
        # What the bound is the sum of excuses rounding; only the margin's numbers say what matters.
        rounding = GENERAL_TOLERANCE if solution.method in GENERAL else ROUNDING
        gap = np.abs(limit - reached) - rounding * limit_size
        errors = np.array(
            [
                *_admissible(claims),
                _relative(reached - margin, reached_size),
                _relative(limit - bound, tied_size + reached_size),
                _relative(np.where(claimed, gap.clip(min=0.0), 0.0), reached_size),
            ]
        )
    undecided = claimed & ((margin > REACHABLE) != (bound > REACHABLE))
    flags = [undecided, _misplaced(tables, claims), _oversized(claims)]
    counts = np.array([int(flag.sum()) for flag in flags], np.int64)
    return np.nan_to_num(errors, nan=np.inf), counts


def _relative(error: Floats, size: Floats) -> float:
    """The largest |error| / size; what only underflow can explain is no error."""
    excess = (np.abs(error) - UNDERFLOW).clip(min=0.0)
    ratio = np.where(excess == 0, 0.0, excess / size)
    return float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0))


def _admissible(claims: _Claims) -> tuple[float, float, float]:
    """How far λ is from its masses, λ and w from nonnegative, and w from a mixture of rivals."""
    part, mass = claims.part, np.where(claims.mass > 0, claims.mass, 1.0)
    totals = claims.by_group(part.coefficients)
    lowest = float((part.coefficients / mass[part.owner, part.groups]).min(initial=0.0))
    rows = np.arange(len(part))
    own = claims.weights[rows, part.target] if claims.sign is None else np.zeros(1)
    return (
        float((np.abs(totals - claims.mass) / mass).max(initial=0.0)),
        max(0.0, -lowest, -float(claims.weights.min(initial=0.0))),
        max(float(np.abs(x).max(initial=0.0)) for x in (claims.weights.sum(1) - 1, own)),
    )


def _reached(tables: Tables, claims: _Claims) -> tuple[Floats, Floats]:
    """[L]: the worst rival's margin under λ, and the size of the numbers it is the sum of (the
    largest, where rounding cannot tell which rival is the worst)."""
    part, owner = claims.part, claims.part.owner
    table = tables.contributions[part.member[owner], tables.rows[part.terms]]
    parts = part.coefficients[:, None] * claims.leads(table, owner)
    margins, sizes = claims.fixed.copy(), np.abs(claims.fixed)
    np.add.at(margins, owner, parts)
    np.add.at(sizes, owner, np.abs(parts))
    if claims.sign is None:
        margins[np.arange(len(margins)), part.target] = np.inf
    worst = margins.min(1)
    tied = margins - ROUNDING * sizes <= worst[:, None]
    return worst, np.where(tied, sizes, 0.0).max(1)


def _limits(tables: Tables, claims: _Claims) -> tuple[Floats, Floats, Floats]:
    """[L]: what no reweighting exceeds, by w, the size of the numbers it is the sum of, and the
    largest such size where rounding cannot tell which term is the best."""
    groups = tables.num_groups
    segment = (claims.part.recipient[:, None] * groups + np.arange(groups)).ravel()
    term, counts = list_entries(tables.segments, segment), np.diff(tables.segments)[segment]
    starts = np.cumsum(counts) - counts
    owner = np.repeat(np.arange(len(segment)) // groups, counts)
    table = tables.contributions[claims.part.member[owner], tables.rows[term]]
    parts = claims.leads(table, owner)
    # Zero weights are left out by name: 0 · ∞ would be no number.
    parts = np.where(claims.weights[owner] != 0, parts * claims.weights[owner], 0.0)
    scores, sizes = parts.sum(1), np.abs(parts).sum(1)
    tops, widths, tied = np.zeros((3, len(segment)))
    filled = counts > 0
    if filled.any():
        tops[filled] = np.maximum.reduceat(scores, starts[filled])
        behind = np.repeat(tops, counts) - scores
        for widest, slack in ((widths, 0.0 * sizes), (tied, ROUNDING * sizes)):
            chosen = np.where(behind <= slack, sizes, 0.0)
            widest[filled] = np.maximum.reduceat(chosen, starts[filled])
    fixed = np.where(claims.weights != 0, claims.weights * claims.fixed, 0.0)
    tops, widths, tied = (
        (claims.mass * part.reshape(-1, groups)).sum(1) for part in (tops, widths, tied)
    )
    base, size = fixed.sum(1), np.abs(fixed).sum(1)
    return base + tops, size + widths, size + tied


def _misplaced(tables: Tables, claims: _Claims) -> NDArray[np.bool_]:
    """[L]: whether some λ sits where it must not, or under a wrong name."""
    part, owner = claims.part, claims.part.owner
    segment = part.recipient[owner] * tables.num_groups + part.groups
    wrong = (part.terms < tables.segments[segment]) | (part.terms >= tables.segments[segment + 1])
    wrong |= tables.sources[tables.rows[part.terms]] != part.sources
    wrong[1:] |= (np.diff(owner) == 0) & (np.diff(part.terms) <= 0)
    return np.bincount(owner, wrong, len(part)) > 0


def _oversized(claims: _Claims) -> NDArray[np.bool_]:
    """[L]: whether a support is larger than that of a basic solution."""
    active = claims.by_group(claims.part.coefficients > ACTIVE)
    present, classes = (claims.mass > 0).sum(1), claims.classes
    large = (active.sum(1) > classes + present - 2) | (active > classes - 1).any(1)
    flags: NDArray[np.bool_] = large & (present > 0)
    return flags


# Labels and values behind a head ------------------------------------------------------------------


def _verify_parts(solution: Solution, exposure: Exposure) -> Verification:
    """Check that the answers are those of the parts, and every part by its own proofs."""
    proved: dict[tuple[int, int, bool], list[tuple[float, float]]] = {}
    unproven = strange = 0
    for part in solution.parts:
        whole, own = binarise(exposure, part.output, part.threshold), part.solution
        unproven += not verify_head(own, whole).ok
        # What the part's margins lack of those against the solution's threshold.
        limit = np.asarray(part.threshold, np.float64) - solution.threshold
        shift = np.where(own.target == 1, 1, -1) * (limit[own.node] if limit.ndim else limit)
        answers = (own.recipient, own.target == 1, own.margin + shift, own.bound + shift)
        for place, wanted, *pair in zip(*(x.tolist() for x in answers), strict=True):
            proved.setdefault((place, part.output, wanted), []).append(tuple(pair))
    keys = (solution.recipient, solution.target, solution.wanted)
    for i, key in enumerate(zip(*(x.tolist() for x in keys), strict=True)):
        pairs, bound = proved.get(key, []), solution.bound[i]
        attained = any(np.isclose(m, solution.margin[i], rtol=1e-12) for m, _ in pairs)
        strange += not (attained and any(b == bound or np.isclose(b, bound) for _, b in pairs))
    none = (0.0,) * 6
    return Verification(len(solution), 0, 0, *none, 0, strange, 0, TOLERANCE, unproven)
