"""LPs whose first answer did not certify itself: solved again, more carefully at every step.

Without the terms that others dominate, by our own method; by highspy, with long columns shortened;
in rational arithmetic. What none of them settles keeps the best pair of proofs and is called
uncertified: γ lies between its margin and its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gnn_repair.oracle.problems import (
    FAILED,
    FALLBACK,
    OPTIMAL,
    UNCERTIFIED,
    Floats,
    Instance,
    Integers,
    Problems,
    Tables,
    instance,
    on_terms,
)
from gnn_repair.oracle.reference import (
    Answer,
    Highs,
    Proof,
    failed,
    finish,
    highs_solver,
    weigh,
)
from gnn_repair.published import REACHABLE

if TYPE_CHECKING:
    from gnn_repair.oracle.lps import Piece

ACCEPT = 1e-10
"""Largest accepted gap, relative to the answer's own numbers: a tenth of what the check accepts."""
UNITS = 3
"""Lengths of columns tried with highspy; each is the size of the answer before. What three do not
settle is left to exact arithmetic."""
SMALLEST = 1e-290
"""Of a length, so that nothing divided by it overflows needlessly."""
PAIRWISE = 160
"""Groups up to this size compare every pair of terms (K²·R bits); larger ones a few rivals."""
CHAMPIONS = 64
"""Terms of a larger group that the others are compared with: those with the best worst margin. All
pairs of thousands would take longer than the LP; few terms dominate most."""
LIMIT = 300_000
"""Numbers (terms × rivals) beyond which nobody would wait for an answer."""
STALLS = 30
"""Steps without progress before Bland's rule, which cannot cycle, takes over."""
SURE = 1e-12
"""A rate in floats is sure beyond this, relative to the numbers it is the sum of: K·R roundings."""
ZERO, ONE = Fraction(0), Fraction(1)


def second_attempts(
    tables: Tables,
    asked: Problems,
    weights: Floats,
    solve_reduced: Callable[[Tables, Problems], Piece],
) -> list[Answer]:
    """An answer for each LP of ``asked``.

    Args:
        tables: the exposure's.
        asked: the LPs.
        weights: [L, C] the w of the first attempts, where they have one.
        solve_reduced: our own method, for LPs on fewer terms.
    """
    lps = [
        instance(tables, int(s), int(p), int(c))
        for s, p, c in zip(asked.member, asked.position, asked.target, strict=True)
    ]
    kept = [undominated(problem) for problem in lps]
    found = _without_dominated(tables, asked, lps, kept, solve_reduced)
    highs = highs_solver()
    for i, problem in enumerate(lps):
        if found[i].status == FAILED:
            reduced, first = problem.part(kept[i]), weights[i][problem.rivals]
            if all(np.isfinite(x).all() for x in (reduced.columns, reduced.fixed)):
                found[i] = _carefully(reduced, first, found[i], highs)
            else:
                found[i] = failed(problem, "its differences are beyond double precision")
    return found


def _without_dominated(
    tables: Tables,
    asked: Problems,
    lps: Sequence[Instance],
    kept: Sequence[NDArray[np.bool_]],
    solve_reduced: Callable[[Tables, Problems], Piece],
) -> list[Answer]:
    """Our own method on the terms that are kept; a failed answer where that does not settle it."""
    found = [failed(problem, "our simplex method did not converge") for problem in lps]
    fewer = np.array([i for i, keep in enumerate(kept) if not keep.all()], np.int64)
    if not len(fewer):
        return found
    reduced, terms = _reduced(tables, asked, fewer, [lps[i].terms[kept[i]] for i in fewer])
    lone = Problems(asked.member[fewer], np.arange(len(fewer)), asked.target[fewer])
    piece = solve_reduced(reduced, lone)
    ends = np.append(0, np.cumsum(piece.counts))
    for k, i in enumerate(fewer):
        if piece.status[k] == OPTIMAL:
            part = slice(ends[k], ends[k + 1])
            numbers = float(piece.margin[k]), float(piece.bound[k]), piece.weights[k]
            answer = Answer(*numbers, terms[piece.terms[part]], piece.coefficients[part])
            reason = f"solved again without {int((~kept[i]).sum())} dominated terms"
            found[i] = replace(answer, status=FALLBACK, reason=reason)
    return found


def _reduced(
    tables: Tables, asked: Problems, chosen: Integers, terms: Sequence[Integers]
) -> tuple[Tables, Integers]:
    """Tables with a recipient for each chosen LP, on the given terms only, and these terms."""
    joined = np.concatenate(terms)
    owner = np.repeat(np.arange(len(chosen)), [len(part) for part in terms])
    return on_terms(tables, asked.position[chosen], owner, joined), joined


def _carefully(reduced: Instance, weights: Floats, best: Answer, solver: object) -> Answer:
    """highspy in several units, then rational arithmetic; the best of them if none certifies."""
    if isinstance(solver, Highs):
        unit = _first_unit(reduced, weights)
        for _ in range(UNITS):
            answer = solver.solve_in_units(reduced, unit, ACCEPT)
            if answer.status == OPTIMAL:
                return replace(answer, status=FALLBACK, reason="highspy, with shortened columns")
            best = _better(best, answer)
            if answer.status == FAILED:
                break
            unit = max(_proof_of(reduced, answer).margin_size, SMALLEST)
    return _better(best, _exactly(reduced, best))


def _better(one: Answer, other: Answer) -> Answer:
    """The answer that says more: settled, then with the smaller gap, then the later."""
    if other.status == FAILED or one.status == FAILED:
        return one if other.status == FAILED and one.status != FAILED else other
    if UNCERTIFIED not in (one.status, other.status):
        return other
    settled = one.status != UNCERTIFIED
    closer = one.status == other.status and one.bound - one.margin < other.bound - other.margin
    return one if settled or closer else other


def _first_unit(problem: Instance, weights: Floats) -> float:
    """A typical length: of each group's best term under the first attempt's w, or the median."""
    lengths = np.abs(problem.columns).max(1)
    if np.isfinite(weights).all() and weights.sum() > 0:
        scores = problem.gaps @ weights
        return max(float(lengths[_best_terms(problem, scores)].max()), SMALLEST)
    return max(float(np.median(lengths)), SMALLEST)


def _best_terms(problem: Instance, values: Floats) -> Integers:
    """[B]: the place of the term with the largest value in each group."""
    places = [np.flatnonzero(problem.group == g) for g in range(len(problem.mass))]
    return np.array([own[values[own].argmax()] for own in places])


def _proof_of(problem: Instance, answer: Answer) -> Proof:
    coefficients = np.zeros(len(problem.terms))
    coefficients[np.searchsorted(problem.terms, answer.terms)] = answer.coefficients
    return weigh(problem, coefficients, answer.weights[problem.rivals])


def _exactly(problem: Instance, best: Answer) -> Answer:
    """γ in rational arithmetic, with λ and w rounded; uncertified where they do not show it."""
    exact = solve_exactly(problem, _start(problem, best))
    if exact is None:
        return failed(problem, f"{best.reason}; too large or not finite for rational arithmetic")
    answer = finish(problem, exact.coefficients, exact.weights, ACCEPT)
    if answer.status == FAILED:
        return answer
    try:
        margin = float(exact.margin)
    except OverflowError:
        return failed(problem, "the margin is beyond double precision")
    proof = _proof_of(problem, answer)
    if not proof.meets(ACCEPT) or not proof.near(margin, ACCEPT):
        reason = "λ and w, rounded to floats, do not show the margin that rational arithmetic found"
        return replace(answer, status=UNCERTIFIED, reason=reason)
    # Rounding λ and w must not move γ across the threshold, so the exact one is stated.
    stated = margin if exact.margin > REACHABLE else min(margin, REACHABLE)
    return replace(
        answer, margin=stated, bound=stated, status=FALLBACK, reason="rational arithmetic"
    )


def _start(problem: Instance, best: Answer) -> Integers:
    """A term of every group: the one with the largest λ, or the best worst margin."""
    start = _best_terms(problem, problem.gaps.min(1))
    places = np.searchsorted(problem.terms, best.terms)
    for place in places[np.argsort(best.coefficients, kind="stable")]:
        start[problem.group[place]] = place
    return start


# Terms that others dominate -----------------------------------------------------------------------


def undominated(problem: Instance) -> NDArray[np.bool_]:
    """[K]: the terms to keep, because no other of their group is nowhere worse; of equal ones the
    first.

    With w ≥ 0 a dominated column never scores above the one that dominates it, so a certificate of
    the LP without it is a certificate of the LP.
    """
    keep = np.ones(len(problem.terms), bool)
    for g in range(len(problem.mass)):
        places = np.flatnonzero(problem.group == g)
        gaps = problem.gaps[places]
        compare = _every_pair if len(places) <= PAIRWISE else _with_champions
        keep[places] = compare(gaps)
    return keep


def _every_pair(gaps: Floats) -> NDArray[np.bool_]:
    below = (gaps[:, None] <= gaps[None]).all(2)
    earlier = np.tri(len(gaps), k=-1, dtype=bool)
    return np.asarray(~(below & (~below.T | earlier)).any(1))


def _with_champions(gaps: Floats) -> NDArray[np.bool_]:
    keep, champions = np.ones(len(gaps), bool), 0
    for best in np.argsort(-gaps.min(1), kind="stable"):
        if keep[best]:
            keep &= ~(gaps <= gaps[best]).all(1)
            keep[best] = True
            champions += 1
        if champions == CHAMPIONS:
            break
    return keep


# Rational arithmetic: slow, small and never wrong -------------------------------------------------

# Every float is a fraction, so the LP has an exact optimum. The method is that of ``simplex.py``,
#
#     max γ   s.t.   γ + s_r − Σ_a λ_a (ℓ_c − ℓ_r) = d_r,   Σ_{a∈g} λ_a = m_g,   λ, s ≥ 0,
#
# with γ always basic and, of the basis inverse, only the columns of tight rivals and masses kept.


@dataclass(frozen=True)
class ExactAnswer:
    """A basic optimum."""

    margin: Fraction
    """γ."""
    coefficients: Floats
    """[K]: λ, rounded."""
    weights: Floats
    """[R]: w, rounded."""


def solve_exactly(problem: Instance, start: Integers) -> ExactAnswer | None:
    """The optimum, or None where the LP is too large or its numbers are not finite.

    Args:
        problem: the LP.
        start: [B] a term of every group to begin with, as places 0..K−1.
    """
    numbers = (problem.gaps, problem.fixed, problem.mass)
    if problem.gaps.size > LIMIT or not all(np.isfinite(array).all() for array in numbers):
        return None
    basis = _Basis(problem, [int(place) for place in start])
    stalled = 0
    # Exact arithmetic cannot cycle under Bland's rule, so it ends by itself; this many steps of
    # fractions, though, nobody would wait for.
    for _ in range(40 * basis.size + 400):
        enter = basis.entering(careful=stalled > STALLS)
        if enter is None:
            return basis.answer()
        before = basis.values[basis.lead]
        basis.exchange(enter, careful=stalled > STALLS)
        stalled = stalled + 1 if basis.values[basis.lead] == before else 0
    return None


class _Basis:
    """Where the method stands. Variables: term a is a, the slack of rival r is K + r, γ is −1."""

    def __init__(self, problem: Instance, start: list[int]) -> None:
        self.problem, self.terms = problem, len(problem.terms)
        self.rivals, groups = len(problem.rivals), len(problem.mass)
        self.size = self.rivals + groups
        self.columns: dict[int, list[Fraction]] = {}
        masses = [Fraction(x) for x in problem.mass.tolist()]
        reached = [Fraction(x) for x in problem.fixed.tolist()]
        for g, a in enumerate(start):
            reached = [d + masses[g] * gap for d, gap in zip(reached, self.column(a), strict=True)]
        self.lead = reached.index(min(reached))
        least = reached[self.lead]
        self.head = [self.terms + r for r in range(self.rivals)] + start
        self.head[self.lead] = -1
        self.values = [d - least for d in reached] + masses
        self.values[self.lead] = least
        self.inverse = self._first_inverse(start)
        self.loose = {r: r for r in range(self.rivals) if r != self.lead}

    def column(self, a: int) -> list[Fraction]:
        """[R]: the gaps of term a."""
        if a not in self.columns:
            self.columns[a] = [Fraction(x) for x in self.problem.gaps[a].tolist()]
        return self.columns[a]

    def _first_inverse(self, start: list[int]) -> dict[int, list[Fraction]]:
        """Stored columns of the inverse, by row: those of ``lead`` and of the masses."""
        lead, rivals = self.lead, self.rivals
        own = [-ONE] * rivals + [ZERO] * (self.size - rivals)
        own[lead] = ONE
        inverse = {lead: own}
        for g, a in enumerate(start):
            gaps = self.column(a)
            column = [gap - gaps[lead] for gap in gaps] + [ZERO] * (self.size - rivals)
            column[lead], column[rivals + g] = gaps[lead], ONE
            inverse[rivals + g] = column
        return inverse

    def weights(self) -> dict[int, Fraction]:
        """w of the tight rivals."""
        rows = (r for r in self.inverse if r < self.rivals)
        return {r: self.inverse[r][self.lead] for r in rows}

    def rate(self, a: int, weights: dict[int, Fraction]) -> Fraction:
        """How fast γ rises with λ_a: w·gap − u_g."""
        gaps, group = self.column(a), self.rivals + int(self.problem.group[a])
        total = sum((w * gaps[r] for r, w in weights.items() if w), ZERO)
        return total - self.inverse[group][self.lead]

    def entering(self, careful: bool) -> int | None:
        """A variable that raises γ: about the best, or the first (Bland); None at the optimum."""
        weights = self.weights()
        negative = [(w, r) for r, w in weights.items() if w < 0]
        for a in self._promising(weights, careful):
            if self.rate(a, weights) > 0:
                return a
        if not negative:
            return None
        return self.terms + (min(r for _, r in negative) if careful else min(negative)[1])

    def _promising(self, weights: dict[int, Fraction], careful: bool) -> Iterator[int]:
        """Terms whose rate is positive or too small to tell in floats, best first."""
        gaps, group = self.problem.gaps, self.problem.group
        dense = np.zeros(self.rivals)
        for r, w in weights.items():
            dense[r] = _rounded(w)
        bases = range(self.rivals, self.size)
        threshold = np.array([_rounded(self.inverse[i][self.lead]) for i in bases])
        with np.errstate(all="ignore"):
            rates = gaps @ dense - threshold[group]
            sizes = np.abs(gaps) @ np.abs(dense) + np.abs(threshold[group])
            # Sums of numbers below 1e-300 may have lost digits to underflow; exact numbers decide.
            hopeless = rates < -SURE * sizes - 1e-300
        order = range(self.terms) if careful else np.argsort(-np.nan_to_num(rates), kind="stable")
        basic = set(self.head)
        yield from (int(a) for a in order if not hopeless[a] and int(a) not in basic)

    def step(self, enter: int) -> list[Fraction]:
        """How the basic variables fall as ``enter`` rises."""
        if enter >= self.terms:
            return list(self.inverse[enter - self.terms])
        gaps = self.column(enter)
        fall = list(self.inverse[self.rivals + int(self.problem.group[enter])])
        for r, column in self.inverse.items():
            if r < self.rivals and gaps[r]:
                fall = [a - gaps[r] * b if b else a for a, b in zip(fall, column, strict=True)]
        for r, place in self.loose.items():
            fall[place] -= gaps[r]
        return fall

    def exchange(self, enter: int, careful: bool) -> None:
        """Bring ``enter`` into the basis for the variable that blocks it first."""
        fall = self.step(enter)
        blocking = [i for i in range(self.size) if fall[i] > 0 and i != self.lead]
        length = min(self.values[i] / fall[i] for i in blocking)
        first = [i for i in blocking if self.values[i] == length * fall[i]]
        leave = min(first, key=lambda i: self.head[i] if careful else -fall[i])
        out, pivot = self.head[leave], fall[leave]
        if out >= self.terms:
            row = out - self.terms
            del self.loose[row]
            self.inverse[row] = [ONE if i == leave else ZERO for i in range(self.size)]
        for column in self.inverse.values():
            share = column[leave] / pivot
            if share:
                column[:] = [a - share * b if b else a for a, b in zip(column, fall, strict=True)]
            column[leave] = share
        self.values = [a - length * b if b else a for a, b in zip(self.values, fall, strict=True)]
        self.values[leave], self.head[leave] = length, enter
        if enter >= self.terms:
            del self.inverse[enter - self.terms]
            self.loose[enter - self.terms] = leave

    def answer(self) -> ExactAnswer:
        """The basic solution and its dual."""
        coefficients, weights = np.zeros(self.terms), np.zeros(self.rivals)
        for place, variable in enumerate(self.head):
            if 0 <= variable < self.terms:
                coefficients[variable] = _rounded(self.values[place])
        for r, w in self.weights().items():
            weights[r] = _rounded(w)
        return ExactAnswer(self.values[self.lead], coefficients, weights)


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
