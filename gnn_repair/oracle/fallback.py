"""LPs whose first answer did not certify itself: solved again, more carefully at every step.

Without the terms that others dominate, by our own method; by highspy, with long columns shortened;
in rational arithmetic. Whatever a solver returns is made exactly feasible and proves itself: λ
shows a margin, w a bound. What none of them settles keeps the best pair of proofs and is called
uncertified: γ lies between its margin and its bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.highs import TIGHT, new_highs, pass_lp, status_of
from gnn_repair.oracle.lps import BLUR, map_lps, solve_tables
from gnn_repair.oracle.problems import (
    FAILED,
    FALLBACK,
    FIXED,
    OPTIMAL,
    UNCERTIFIED,
    Floats,
    Instance,
    Integers,
    Problems,
    Tables,
    build_lp,
    select_terms,
)
from gnn_repair.oracle.solution import Solution, build_solution, replace_answers
from gnn_repair.published import REACHABLE

ACCEPT = 1e-10
"""Largest accepted gap, relative to the answer's own numbers: a tenth of what the check accepts."""
GENERAL_ACCEPT = 1e-7
"""The same of an answer that highspy gives by itself: it stops at tolerances of 1e-10 on numbers
scaled to one, and columns may be shorter."""
LOOSE = 1e-7
"""highspy's own feasibility tolerance, where the tightest is out of reach."""
GRAIN = 1e-315
"""Some thousands of the smallest floats, which products of small numbers are rounded to."""
UNITS = 3
"""Lengths of columns tried with highspy; each is the size of the answer before. What three do not
settle is left to exact arithmetic."""
SMALLEST = 1e-290
"""Of a length, so that nothing divided by it overflows needlessly."""
CHAMPIONS = 160
"""Terms of a group that the others are compared with: those with the best worst margin. All pairs
of thousands would take longer than the LP; few terms dominate most."""
LIMIT = 300_000
"""Numbers (terms × rivals) beyond which nobody would wait for an answer."""
STALLS = 30
"""Steps without progress before Bland's rule, which cannot cycle, takes over."""
SURE = 1e-12
"""A rate in floats is sure beyond this, relative to the numbers it is the sum of: K·R roundings."""
ONE = Fraction(1)


def solve_with_second_attempts(
    tables: Tables, asked: Problems, threads: int | None = None
) -> Solution:
    """Our own solver on any tables, and what helps where it gives up."""
    whole = solve_tables(tables, asked, threads)
    stuck = np.flatnonzero(whole.status == FAILED)
    if not len(stuck):
        return whole
    left, highs = asked.taken(stuck), Highs()
    answers = [
        _solve_again(tables, left.taken([i]), weights, highs)
        for i, weights in enumerate(whole.rival_weights[stuck])
    ]
    return replace_answers(whole, stuck, _packed(tables, left, answers))


def solve_with_highs(tables: Tables, asked: Problems, threads: int | None) -> Solution:
    """Every LP by highspy alone."""

    def answer(index: int, highs: Highs) -> Answer:
        return highs.solve(_instance(tables, asked, index))

    return _packed(tables, asked, map_lps(len(asked), answer, Highs, threads))


def _instance(tables: Tables, asked: Problems, index: int) -> Instance:
    return build_lp(tables, *(int(a[index]) for a in (asked.member, asked.position, asked.target)))


def _packed(tables: Tables, asked: Problems, answers: Sequence[Answer]) -> Solution:
    """One solution of an answer per LP."""
    return build_solution(
        tables,
        asked,
        [len(answer.terms) for answer in answers],
        np.concatenate([answer.terms for answer in answers]),
        coefficients=np.concatenate([answer.coefficients for answer in answers]),
        margin=np.array([answer.margin for answer in answers]),
        bound=np.array([answer.bound for answer in answers]),
        status=np.array([answer.status for answer in answers], np.int8),
        rival_weights=np.stack([answer.weights for answer in answers]),
        reasons={k: answer.reason for k, answer in enumerate(answers) if answer.reason},
    )


def _solve_again(tables: Tables, asked: Problems, weights: Floats, highs: Highs) -> Answer:
    """One LP without the terms that others dominate: by our own method, else more carefully, with
    the first attempt's w [C]."""
    problem = _instance(tables, asked, 0)
    kept = undominated_terms(problem)
    reduced = problem.part(kept)
    if not kept.all():
        terms, zero = reduced.terms, np.zeros(1, np.int64)
        fewer = select_terms(tables, asked.position, np.repeat(zero, len(terms)), terms)
        again = solve_tables(fewer, Problems(asked.member, zero, asked.target), 1)
        if again.status[0] == OPTIMAL:
            reason = f"solved again without {int((~kept).sum())} dominated terms"
            numbers = again.margin[0], again.bound[0], again.rival_weights[0]
            return Answer(*numbers, terms[again.terms], again.coefficients, FALLBACK, reason)
    if not all(np.isfinite(x).all() for x in (reduced.columns, reduced.fixed)):
        return no_answer(problem, "its differences are beyond double precision")
    first = no_answer(problem, "our simplex method did not converge")
    return _carefully(reduced, weights[problem.rivals], first, highs)


def _carefully(reduced: Instance, weights: Floats, best: Answer, highs: Highs) -> Answer:
    """highspy in several units, then rational arithmetic; the best of them if none certifies."""
    unit = _first_unit(reduced, weights)
    for _ in range(UNITS):
        answer = highs.solve(reduced, unit, ACCEPT)
        if answer.status == OPTIMAL:
            return replace(answer, status=FALLBACK, reason="highspy, with shortened columns")
        best = _better(best, answer)
        if answer.proof is None:
            break
        unit = max(answer.proof.margin_size, SMALLEST)
    return _better(best, _exactly(reduced, best))


def _better(one: Answer, other: Answer) -> Answer:
    """The answer that says more, the later of equals; of two that are not certified the larger
    margin with its λ, and the smaller bound with its w."""
    ranks = [{FAILED: 0, UNCERTIFIED: 1}.get(answer.status, 2) for answer in (one, other)]
    if ranks == [1, 1]:
        high = max((other, one), key=lambda answer: answer.margin)
        low = min((other, one), key=lambda answer: answer.bound)
        return replace(low, margin=high.margin, terms=high.terms, coefficients=high.coefficients)
    return one if ranks[0] > ranks[1] else other


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
    return np.array([group[values[group].argmax()] for group in places], np.int64)


def _exactly(problem: Instance, best: Answer) -> Answer:
    """γ in rational arithmetic, with λ and w rounded; uncertified where they do not show it."""
    exact = solve_exactly(problem, _start(problem, best))
    if exact is None:
        return no_answer(problem, f"{best.reason}; too large or not finite for rational arithmetic")
    gamma, coefficients, weights = exact
    answer = finish(problem, coefficients, weights, ACCEPT)
    if answer.proof is None:
        return answer
    margin, proof = _rounded(gamma), answer.proof
    if not np.isfinite(margin):
        return no_answer(problem, "the margin is beyond double precision")
    if not proof.meets(ACCEPT) or not proof.near(margin, ACCEPT):
        reason = "λ and w, rounded to floats, do not show the margin that rational arithmetic found"
        return replace(answer, status=UNCERTIFIED, reason=reason)
    # Rounding λ and w must not move γ across the threshold, so the exact one is stated.
    stated = margin if gamma > REACHABLE else min(margin, REACHABLE)
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


# Answers that prove themselves --------------------------------------------------------------------


@dataclass(frozen=True)
class Proof:
    """What λ and w show of an LP, and how sure it is."""

    margin: float
    """The worst rival's margin under λ."""
    margin_size: float
    """The size of the numbers it is the sum of."""
    bound: float
    """What no reweighting exceeds, by w."""
    bound_size: float
    """The size of the numbers it is the sum of."""
    certain: float
    """The bound less what rounding may have added to each term's score."""

    def meets(self, accept: float) -> bool:
        """Whether bound and margin meet, up to ``accept`` of the margin's numbers."""
        room = accept * self.margin_size + GRAIN
        above = self.margin - self.bound <= room + BLUR * self.bound_size
        return self.certain - self.margin <= room and above

    def near(self, gamma: float, accept: float) -> bool:
        """Whether ``gamma`` is the margin, up to ``accept`` of its numbers."""
        return abs(self.margin - gamma) <= accept * self.margin_size + GRAIN

    def doubt(self, accept: float) -> str:
        """Why it does not settle the LP; empty if it does."""
        if not self.meets(accept):
            return f"bound and margin differ by {self.bound - self.margin:.1e}"
        blur = BLUR * (self.margin_size + self.bound_size)
        if self.margin - blur > REACHABLE or self.bound + blur <= REACHABLE:
            return ""
        return "bound and margin lie on both sides of the threshold of reach, by their rounding"


def weigh(problem: Instance, coefficients: Floats, duals: Floats) -> Proof:
    """Margin and bound of admissible λ [K] and w [R]."""
    active = coefficients > 0
    gaps, used = problem.gaps[active], coefficients[active]
    reached = problem.fixed + used @ gaps
    worst = int(reached.argmin())
    margin_size = abs(problem.fixed[worst]) + used @ np.abs(gaps[:, worst])
    bound, bound_size = duals @ problem.fixed, duals @ np.abs(problem.fixed)
    certain = bound - BLUR * bound_size
    scores, sizes = problem.gaps @ duals, np.abs(problem.gaps) @ duals
    top, mass = _best_terms(problem, scores), problem.mass
    bound, bound_size = bound + mass @ scores[top], bound_size + mass @ sizes[top]
    certain += mass @ problem.best(scores - BLUR * sizes)
    margin = float(reached[worst])
    return Proof(margin, float(margin_size), float(bound), float(bound_size), float(certain))


@dataclass(frozen=True)
class Answer:
    """One LP's answer; see :class:`~gnn_repair.oracle.solution.Solution`."""

    margin: float
    bound: float
    weights: Floats
    """[C]."""
    terms: Integers
    coefficients: Floats
    status: int = OPTIMAL
    reason: str = ""
    proof: Proof | None = None
    """What λ and w show."""


def no_answer(problem: Instance, reason: str) -> Answer:
    """No answer."""
    none, weights = np.empty(0, np.int64), np.zeros(len(problem.rivals) + 1)
    return Answer(np.nan, np.nan, weights, none, np.empty(0), FAILED, reason)


def finish(problem: Instance, shares: Floats, duals: Floats, accept: float) -> Answer:
    """Make x and w exactly feasible and let them prove themselves at the scale of the answer.

    Args:
        problem: the LP.
        shares: [K] x = λ / m_g, or λ, feasible up to the solver's tolerance.
        duals: [R] w, likewise.
        accept: the largest gap between bound and margin, relative to the margin's numbers.
    """
    shares, duals = shares.clip(min=0.0), duals.clip(min=0.0)
    totals = np.bincount(problem.group, shares, len(problem.mass))
    total = float(duals.sum())
    if not ((totals > 0) & np.isfinite(totals)).all() or not 0 < total < np.inf:
        return no_answer(problem, "the solver's answer is not feasible")
    coefficients = shares / totals[problem.group] * problem.mass[problem.group]
    duals = duals / total
    active = coefficients > 0
    proof = weigh(problem, coefficients, duals)
    if not np.isfinite(proof.bound - proof.margin):
        return no_answer(problem, "the answer's numbers are beyond double precision")
    weights = np.zeros(len(problem.rivals) + 1)
    weights[problem.rivals] = duals
    terms, used = problem.terms[active], coefficients[active]
    answer = Answer(proof.margin, proof.bound, weights, terms, used, proof=proof)
    if not (reason := proof.doubt(accept)):
        return answer
    # γ is between the two for sure, so that a verdict is a proof and not a matter of rounding.
    margin = proof.margin - BLUR * proof.margin_size
    bound = proof.bound + BLUR * proof.bound_size
    return replace(answer, margin=margin, bound=bound, status=UNCERTIFIED, reason=reason)


def pass_oracle(highs: Any, problem: Instance, unit: float, pinned: float | None = None) -> Floats:
    """Give highspy the LP, min −γ over x and γ, or the set of x ≤ 1 whose γ is ``pinned``.

    Columns are K terms, then γ; rows γ − Σ_a x_a D_{a,r} for the R rivals, then Σ_{a∈g} x_a for
    the B groups. Columns of D longer than ``unit``, which all numbers are divided by, are shortened
    to it, so that a message that nobody uses sets no scale. Returns what each x_a was divided by.
    """
    count, rivals = problem.gaps.shape
    columns, least, one = problem.columns, problem.fixed.min(), np.ones(len(problem.mass))
    with np.errstate(over="ignore"):  # a rival infinitely far away is never tight
        fixed = (problem.fixed - least) / unit
    lengths = np.maximum(np.abs(columns).max(1, initial=0.0), unit)
    shorter: Floats = unit / lengths
    cost, low, high, most = -1.0, -np.inf, np.inf, np.full(count, np.inf)
    if pinned is not None:
        cost, low, most = 0.0, (pinned - least) / unit, 1 / shorter
        high = low
    gamma = np.append(np.ones(rivals), np.zeros(len(one)))
    terms = np.concatenate([-(columns / lengths[:, None]).T, problem.masses * shorter])
    pass_lp(
        highs,
        np.append(np.zeros(count), cost),
        np.append(np.zeros(count), low),
        np.append(most, high),
        np.concatenate([np.full(rivals, -np.inf), one]),
        np.concatenate([fixed, one]),
        np.column_stack([terms, gamma]),
    )
    return shorter


class Highs:
    """highspy's dual simplex on pre-scaled LPs, one reused object."""

    def __init__(self, tolerance: float = TIGHT) -> None:
        self._highs = new_highs(tolerance)

    def load(self, problem: Instance, unit: float | None = None) -> Floats:
        """Build the LP, scaled by ``unit`` or the longest column; see :func:`pass_oracle`."""
        return pass_oracle(self._highs, problem, problem.scale if unit is None else unit)

    def run(self) -> str:
        """Solve what was loaded; returns the model status."""
        self._highs.run()
        return status_of(self._highs)

    def read(self) -> tuple[Floats, Floats]:
        """Primal values of the columns and dual values of the rows."""
        solution = self._highs.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)

    def _tolerate(self, tolerance: float) -> None:
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self._highs.setOptionValue(name, tolerance)

    def solve(
        self, problem: Instance, unit: float | None = None, accept: float = GENERAL_ACCEPT
    ) -> Answer:
        """A basic optimum, or a failed answer with its reason; no column exceeds ``unit``."""
        if not len(problem.terms):  # nothing to reweight: its frozen margin
            answer, worst = no_answer(problem, ""), int(problem.fixed.argmin())
            answer.weights[problem.rivals[worst]] = 1.0
            margin = float(problem.fixed[worst])
            return replace(answer, margin=margin, bound=margin, status=FIXED)
        if not np.isfinite(problem.columns).all():
            return no_answer(problem, "the LP's numbers are beyond double precision")
        shorter = self.load(problem, unit)
        status = self.run()
        if status != "Optimal":  # again from scratch: the tightest tolerances can be out of reach
            self._tolerate(LOOSE)
            self._highs.clearSolver()
            status = self.run()
            self._tolerate(TIGHT)
        if status != "Optimal":
            return no_answer(problem, f"highspy says {status}")
        values, duals = self.read()
        return finish(problem, values[:-1] * shorter, -duals[: len(problem.rivals)], accept)


# Terms that others dominate -----------------------------------------------------------------------


def undominated_terms(problem: Instance) -> NDArray[np.bool_]:
    """[K]: the terms to keep, because no other of their group is nowhere worse; of equal ones the
    first.

    With w ≥ 0 a dominated column never scores above the one that dominates it, so a certificate of
    the LP without it is a certificate of the LP.
    """
    keep = np.ones(len(problem.terms), bool)
    gaps, worst = problem.gaps, problem.gaps.min(1)
    for g in range(len(problem.mass)):
        group, champions = np.flatnonzero(problem.group == g), 0
        for best in group[np.argsort(-worst[group], kind="stable")]:
            if keep[best] and champions < CHAMPIONS:
                keep[group] &= ~(gaps[group] <= gaps[best]).all(1)
                keep[best] = True
                champions += 1
    return keep


# Rational arithmetic: slow, small and never wrong -------------------------------------------------

# Every float is a fraction, so the LP has an exact optimum. The method is that of ``simplex.py``,
#
#     max γ   s.t.   γ + s_r − Σ_a λ_a (ℓ_c − ℓ_r) = d_r,   Σ_{a∈g} λ_a = m_g,   λ, s ≥ 0,
#
# with γ always basic; a loose rival's column of the basis inverse is a unit vector.


ExactAnswer = tuple[Fraction, Floats, Floats]
"""γ of a basic optimum, and λ [K] and w [R], rounded."""


def solve_exactly(problem: Instance, start: Integers) -> ExactAnswer | None:
    """The optimum, or None where the LP is too large or its numbers are not finite; ``start`` [B]
    is a term of every group to begin with, as places 0..K−1."""
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
        self.rivals = len(problem.rivals)
        self.size = self.rivals + len(problem.mass)
        self.columns: dict[int, NDArray[Any]] = {}
        masses, reached = _fractions(problem.mass), _fractions(problem.fixed)
        for mass, a in zip(masses, start, strict=True):
            reached = reached + mass * self.column(a)
        self.lead = int(reached.argmin())
        self.head = [*range(self.terms, self.terms + self.rivals), *start]
        self.head[self.lead] = -1
        self.values = np.append(reached - reached[self.lead], masses)
        self.values[self.lead] = reached[self.lead]
        # Row i is column i of the basis inverse: loose rivals, the lead, masses.
        self.inverse = _fractions(np.eye(self.size))
        self.inverse[self.lead, : self.rivals] = -ONE
        self.inverse[self.lead, self.lead] = ONE
        for row, a in zip(self.inverse[self.rivals :], start, strict=True):
            gaps = self.column(a)
            row[: self.rivals] = gaps - gaps[self.lead]
            row[self.lead] = gaps[self.lead]

    def column(self, a: int) -> NDArray[Any]:
        """[R]: the gaps of term a."""
        if a not in self.columns:
            self.columns[a] = _fractions(self.problem.gaps[a])
        return self.columns[a]

    def group(self, a: int) -> int:
        """The row of the inverse that belongs to the mass of term a's group."""
        return self.rivals + int(self.problem.group[a])

    @property
    def weights(self) -> NDArray[Any]:
        """[R]: w, zero where a rival is not tight."""
        return self.inverse[: self.rivals, self.lead]

    def entering(self, careful: bool) -> int | None:
        """A variable that raises γ: about the best, or the first (Bland); None at the optimum."""
        weights = self.weights
        tight = np.flatnonzero(weights)
        for a in self._promising(careful):
            if weights[tight] @ self.column(a)[tight] > self.inverse[self.group(a), self.lead]:
                return a
        negative = tight[weights[tight] < 0]
        if not len(negative):
            return None
        return self.terms + int(negative[0 if careful else weights[negative].argmin()])

    def _promising(self, careful: bool) -> Iterator[int]:
        """Terms whose rate is positive or too small to tell in floats, best first."""
        gaps, group = self.problem.gaps, self.problem.group
        duals = _floats(self.inverse[:, self.lead])
        weights, threshold = duals[: self.rivals], duals[self.rivals :]
        with np.errstate(all="ignore"):
            rates = gaps @ weights - threshold[group]
            sizes = np.abs(gaps) @ np.abs(weights) + np.abs(threshold[group])
            # Sums of numbers below 1e-300 may have lost digits to underflow; exact numbers decide.
            hopeless = rates < -SURE * sizes - 1e-300
        order = range(self.terms) if careful else np.argsort(-np.nan_to_num(rates), kind="stable")
        basic = set(self.head)
        yield from (int(a) for a in order if not hopeless[a] and int(a) not in basic)

    def step(self, enter: int) -> NDArray[Any]:
        """How the basic variables fall as ``enter`` rises."""
        if enter >= self.terms:
            return self.inverse[enter - self.terms].copy()
        gaps = self.column(enter)
        used = np.flatnonzero(gaps)
        return self.inverse[self.group(enter)] - gaps[used] @ self.inverse[used]

    def exchange(self, enter: int, careful: bool) -> None:
        """Bring ``enter`` into the basis for the variable that blocks it first."""
        fall = self.step(enter)
        blocking = [i for i in np.flatnonzero(fall > 0).tolist() if i != self.lead]
        length = min(self.values[i] / fall[i] for i in blocking)
        first = [i for i in blocking if self.values[i] == length * fall[i]]
        leave = min(first, key=lambda i: self.head[i] if careful else -fall[i])
        shares = self.inverse[:, leave] / fall[leave]
        rows = np.flatnonzero(shares)
        self.inverse[rows] -= np.multiply.outer(shares[rows], fall)
        self.inverse[:, leave] = shares
        self.values = self.values - length * fall
        self.values[leave], self.head[leave] = length, enter

    def answer(self) -> ExactAnswer:
        """The basic solution and its dual."""
        coefficients, head = np.zeros(self.terms), np.array(self.head)
        used = (head >= 0) & (head < self.terms)
        coefficients[head[used]] = _floats(self.values[used])
        return self.values[self.lead], coefficients, _floats(self.weights)


_fractions: Any = np.frompyfunc(Fraction, 1, 1)
"""Of numbers, exactly."""


def _floats(values: NDArray[Any]) -> Floats:
    """Of fractions, rounded."""
    return np.array([_rounded(value) for value in values])


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
