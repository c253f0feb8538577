"""The exact-mass LP in rational arithmetic: slow, small and never wrong.

Every float is a fraction, so the LP has an exact optimum. The method is the one of ``simplex.py``,

    max γ   s.t.   γ + s_r − Σ_a λ_a (ℓ_c − ℓ_r) = d_r,   Σ_{a∈g} λ_a = m_g,   λ, s ≥ 0,

with γ always basic and, of the basis inverse, only the columns of tight rivals and masses kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gnn_repair.oracle.tables import Floats, Instance, Integers

LIMIT = 300_000
"""Numbers (terms × rivals) beyond which nobody would wait for an answer."""
STALLS = 30
"""Steps without progress before Bland's rule, which cannot cycle, takes over."""
SURE = 1e-12
"""A rate in floats is sure beyond this, relative to the numbers it is the sum of: K·R roundings."""
ZERO, ONE = Fraction(0), Fraction(1)


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
