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
ZERO, ONE = Fraction(0), Fraction(1)


def solve_with_second_attempts(
    tables: Tables, asked: Problems, threads: int | None = None
) -> Solution:
    """Our own solver on any tables, and what helps where it gives up."""
    whole = solve_tables(tables, asked, threads)
    stuck = np.flatnonzero(whole.status == FAILED)
    if not len(stuck):
        return whole
    left = asked.taken(stuck)
    lps = [_instance(tables, left, i) for i in range(len(left))]
    kept = [undominated_terms(problem) for problem in lps]
    answers, highs = _without_dominated(tables, left, lps, kept), Highs()
    for i, problem in enumerate(lps):
        if answers[i].status == FAILED:
            reduced, first = problem.part(kept[i]), whole.rival_weights[stuck[i]][problem.rivals]
            if all(np.isfinite(x).all() for x in (reduced.columns, reduced.fixed)):
                answers[i] = _carefully(reduced, first, answers[i], highs)
            else:
                answers[i] = no_answer(problem, "its differences are beyond double precision")
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


def _without_dominated(
    tables: Tables, asked: Problems, lps: Sequence[Instance], kept: Sequence[NDArray[np.bool_]]
) -> list[Answer]:
    """Our own method on the terms that are kept; a failed answer where that does not settle it."""
    answers = [no_answer(problem, "our simplex method did not converge") for problem in lps]
    fewer = np.array([i for i, keep in enumerate(kept) if not keep.all()], np.int64)
    if not len(fewer):
        return answers
    each = [lps[i].terms[kept[i]] for i in fewer]
    terms, owner = np.concatenate(each), np.repeat(np.arange(len(fewer)), [len(t) for t in each])
    reduced = select_terms(tables, asked.position[fewer], owner, terms)
    lone = Problems(asked.member[fewer], np.arange(len(fewer)), asked.target[fewer])
    again = solve_tables(reduced, lone, 1)
    for k, i in enumerate(fewer):
        if again.status[k] == OPTIMAL:
            one = again[k]
            numbers = one.margin, one.bound, again.rival_weights[k]
            support = terms[one.terms], one.coefficients
            reason = f"solved again without {int((~kept[i]).sum())} dominated terms"
            answers[i] = Answer(*numbers, *support, FALLBACK, reason)
    return answers


def _carefully(reduced: Instance, weights: Floats, best: Answer, highs: Highs) -> Answer:
    """highspy in several units, then rational arithmetic; the best of them if none certifies."""
    unit = _first_unit(reduced, weights)
    for _ in range(UNITS):
        answer = highs.solve(reduced, unit, ACCEPT)
        if answer.status == OPTIMAL:
            return replace(answer, status=FALLBACK, reason="highspy, with shortened columns")
        best = _better(best, answer)
        if answer.status == FAILED:
            break
        unit = max(_proof_of(reduced, answer).margin_size, SMALLEST)
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
    return np.array([own[values[own].argmax()] for own in places])


def _proof_of(problem: Instance, answer: Answer) -> Proof:
    coefficients = np.zeros(len(problem.terms))
    coefficients[np.searchsorted(problem.terms, answer.terms)] = answer.coefficients
    return weigh(problem, coefficients, answer.weights[problem.rivals])


def _exactly(problem: Instance, best: Answer) -> Answer:
    """γ in rational arithmetic, with λ and w rounded; uncertified where they do not show it."""
    exact = solve_exactly(problem, _start(problem, best))
    if exact is None:
        return no_answer(problem, f"{best.reason}; too large or not finite for rational arithmetic")
    gamma, coefficients, weights = exact
    answer = finish(problem, coefficients, weights, ACCEPT)
    if answer.status == FAILED:
        return answer
    margin = _rounded(gamma)
    if not np.isfinite(margin):
        return no_answer(problem, "the margin is beyond double precision")
    proof = _proof_of(problem, answer)
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
    for g, mass in enumerate(problem.mass):
        own = np.flatnonzero(problem.group == g)
        top = own[scores[own].argmax()]
        bound, bound_size = bound + mass * scores[top], bound_size + mass * sizes[top]
        certain += mass * (scores[own] - BLUR * sizes[own]).max()
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
    answer = Answer(proof.margin, proof.bound, weights, terms, used)
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
    index = np.empty((count, rivals + 1), np.int64)
    index[:, :rivals] = np.arange(rivals)
    index[:, rivals] = rivals + problem.group
    value = np.concatenate([-(columns / lengths[:, None]), shorter[:, None]], axis=1)
    start = np.arange(count + 1) * (rivals + 1)
    pass_lp(
        highs,
        np.append(np.zeros(count), cost),
        np.append(np.zeros(count), low),
        np.append(most, high),
        np.concatenate([np.full(rivals, -np.inf), one]),
        np.concatenate([fixed, one]),
        (
            np.append(start, start[-1] + rivals),
            np.concatenate([index.ravel(), np.arange(rivals)]),
            np.concatenate([value.ravel(), np.ones(rivals)]),
        ),
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
        # The columns of the basis inverse: loose rivals, the lead, masses.
        self.inverse = [[Fraction(i == r) for i in range(self.size)] for r in range(self.size)]
        self.inverse[self.lead][: self.rivals] = [-ONE] * self.rivals
        self.inverse[self.lead][self.lead] = ONE
        for g, a in enumerate(start):
            gaps, column = self.column(a), self.inverse[self.rivals + g]
            column[: self.rivals] = [gap - gaps[self.lead] for gap in gaps]
            column[self.lead] = gaps[self.lead]

    def column(self, a: int) -> list[Fraction]:
        """[R]: the gaps of term a."""
        if a not in self.columns:
            self.columns[a] = [Fraction(x) for x in self.problem.gaps[a].tolist()]
        return self.columns[a]

    def weights(self) -> dict[int, Fraction]:
        """w of the tight rivals."""
        rivals = ((r, self.inverse[r][self.lead]) for r in range(self.rivals))
        return {r: w for r, w in rivals if w}

    def rate(self, a: int, weights: dict[int, Fraction]) -> Fraction:
        """How fast γ rises with λ_a: w·gap − u_g."""
        gaps, group = self.column(a), self.rivals + int(self.problem.group[a])
        total = sum((w * gaps[r] for r, w in weights.items()), ZERO)
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
        for gap, column in zip(gaps, self.inverse, strict=False):
            if gap:
                fall = [a - gap * b if b else a for a, b in zip(fall, column, strict=True)]
        return fall

    def exchange(self, enter: int, careful: bool) -> None:
        """Bring ``enter`` into the basis for the variable that blocks it first."""
        fall = self.step(enter)
        blocking = [i for i in range(self.size) if fall[i] > 0 and i != self.lead]
        length = min(self.values[i] / fall[i] for i in blocking)
        first = [i for i in blocking if self.values[i] == length * fall[i]]
        leave = min(first, key=lambda i: self.head[i] if careful else -fall[i])
        for column in self.inverse:
            share = column[leave] / fall[leave]
            if share:
                column[:] = [a - share * b if b else a for a, b in zip(column, fall, strict=True)]
            column[leave] = share
        self.values = [a - length * b if b else a for a, b in zip(self.values, fall, strict=True)]
        self.values[leave], self.head[leave] = length, enter

    def answer(self) -> ExactAnswer:
        """The basic solution and its dual."""
        coefficients, weights = np.zeros(self.terms), np.zeros(self.rivals)
        for place, variable in enumerate(self.head):
            if 0 <= variable < self.terms:
                coefficients[variable] = _rounded(self.values[place])
        for r, w in self.weights().items():
            weights[r] = _rounded(w)
        return self.values[self.lead], coefficients, weights


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
