"""A judge of oracle answers that shares nothing with the oracle: no scale, no tolerance, no code.

Weak duality needs no solver: any admissible λ shows that γ is at least its worst margin, any
mixture w that γ is at most its bound. Both are evaluated from the numbers themselves, λ scaled to
its masses and w to one, in extended precision for every LP and in fractions for some.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.oracle.solution import Solution
from tests.campaigns.lp_families import Numbers

Wide = NDArray[np.longdouble]
MEET = 1e-9
"""How far bound and margin of an optimum may be apart, relative to what the margin is the sum
of."""
BLUR = 2e-14
"""What rounding λ and w to floats may move, relative to what margin and bound are sums of."""
TINY = 1e-314
"""Absolute errors of so little are the grain of the smallest floats."""
WINS = 1e-7
"""The paper's threshold."""


@dataclass(frozen=True)
class Enclosure:
    """[L] each: γ is at least ``low`` and at most ``high``."""

    low: Wide
    high: Wide
    low_size: Wide
    """Of the numbers that ``low`` is the sum of."""
    high_size: Wide
    """The same; of the largest, where rounding cannot tell which term is the best."""
    best_size: Wide
    """The same, of the best term alone."""
    astray: NDArray[np.bool_]
    """Whether λ or w are not what they must be."""


def judge(numbers: Numbers, solution: Solution) -> Iterator[tuple[int, str]]:
    """(LP, what is wrong with it) for every fault."""
    with np.errstate(all="ignore"):
        found = intervals(numbers, solution)
        yield from _faults(numbers, solution, found)


def _faults(numbers: Numbers, solution: Solution, found: Enclosure) -> Iterator[tuple[int, str]]:
    answered = solution.status != 3
    optimal = answered & (solution.status != 4)
    near = MEET * found.low_size + BLUR * found.best_size + TINY
    wide = near + BLUR * found.high_size
    blur = BLUR * (found.low_size + found.high_size) + TINY
    faults = {
        "λ or w are not admissible": answered & found.astray,
        "an optimum whose bound and margin do not meet": optimal
        & ~(found.high - found.low <= near),
        "a margin that is not that of λ": answered & ~(abs(solution.margin - found.low) <= near),
        "a bound that is not that of w": answered & ~(abs(solution.bound - found.high) <= wide),
        "called reachable, and w shows that it is not": (solution.margin > WINS)
        & (found.high <= WINS - blur),
        "called unreachable, and λ shows that it is not": optimal
        & (solution.margin <= WINS)
        & (found.low > WINS + blur),
    }
    if numbers.known is not None:
        true = numbers.known[solution.recipient]
        planted = optimal & (solution.target == 0)
        faults["not the planted optimum"] = planted & ~(abs(solution.margin - true) <= near)
    for text, flags in faults.items():
        yield from ((int(i), text) for i in np.flatnonzero(flags))


def intervals(numbers: Numbers, solution: Solution) -> Enclosure:
    """What λ and w of every LP prove, in extended precision."""
    table, fixed = numbers.table.astype(np.longdouble), numbers.fixed.astype(np.longdouble)
    groups = numbers.lengths.shape[1]
    masses = _masses(numbers)
    recipient, target, lps = solution.recipient, solution.target, len(solution)
    index = np.arange(lps)
    behind = fixed[recipient, target][:, None] - fixed[recipient]

    counts = np.diff(solution.indptr)
    owner = np.repeat(index, counts)
    slot = owner * groups + solution.groups
    share, totals = _scaled(solution, slot, masses[recipient].ravel())
    parts = share[:, None] * (table[solution.terms, target[owner]][:, None] - table[solution.terms])
    reached, sizes = behind.copy(), np.abs(behind)
    np.add.at(reached, owner, parts)
    np.add.at(sizes, owner, np.abs(parts))
    reached[index, target] = np.inf
    worst = reached.min(1)
    tied = reached - BLUR * sizes <= worst[:, None]
    high, high_size, best_size = _bounds(numbers, solution, table, behind, masses)
    astray = _astray(numbers, solution, owner, totals, masses)
    low_size = np.where(tied, sizes, 0).max(1)
    return Enclosure(worst, high, low_size, high_size, best_size, astray)


def _masses(numbers: Numbers) -> Wide:
    """[n, G]: Σ α as floats add it up; the LP's right-hand side is that float."""
    lengths = numbers.lengths.ravel()
    owner = np.repeat(np.arange(len(lengths)), lengths)
    total = np.zeros(len(lengths), np.longdouble)
    np.add.at(total, owner, numbers.alpha.astype(np.longdouble))
    return total.reshape(numbers.lengths.shape)


def _scaled(solution: Solution, slot: NDArray[np.int64], masses: Wide) -> tuple[Wide, Wide]:
    """λ brought to its masses exactly, and what its sums were."""
    share = solution.coefficients.astype(np.longdouble)
    totals = np.zeros(len(masses), np.longdouble)
    np.add.at(totals, slot, share)
    return share * (masses / np.where(totals == 0, 1, totals))[slot], totals


def _bounds(
    numbers: Numbers, solution: Solution, table: Wide, behind: Wide, masses: Wide
) -> tuple[Wide, Wide, Wide]:
    """w·d + Σ_g m_g max_a w·D_a, and two sizes of what it is the sum of."""
    weights = solution.rival_weights.astype(np.longdouble)
    weights = weights / weights.sum(1, keepdims=True)
    parts = np.where(weights != 0, weights * behind, 0)
    high, size = parts.sum(1), np.abs(parts).sum(1)
    alone = size.copy()
    ends = np.append(0, np.cumsum(numbers.lengths.ravel())).reshape(-1)
    groups = numbers.lengths.shape[1]
    for g in range(groups):
        low = ends[solution.recipient * groups + g]
        counts = numbers.lengths[solution.recipient, g]
        kept = np.flatnonzero(counts)
        if not len(kept):
            continue
        starts = np.cumsum(counts[kept]) - counts[kept]
        owner = np.repeat(kept, counts[kept])
        term = np.arange(len(owner)) + np.repeat(low[kept] - starts, counts[kept])
        rows = table[term]
        columns = rows[np.arange(len(rows)), solution.target[owner]][:, None] - rows
        columns = np.where(weights[owner] != 0, weights[owner] * columns, 0)
        scores, sizes = columns.sum(1), np.abs(columns).sum(1)
        tops = np.maximum.reduceat(scores, starts)
        short, mass = np.repeat(tops, counts[kept]) - scores, masses[solution.recipient[kept], g]
        best, tied = np.where(short == 0, sizes, 0), np.where(short <= BLUR * sizes, sizes, 0)
        high[kept] += mass * tops
        size[kept] += mass * np.maximum.reduceat(tied, starts)
        alone[kept] += mass * np.maximum.reduceat(best, starts)
    return high, size, alone


def _astray(
    numbers: Numbers,
    solution: Solution,
    owner: NDArray[np.int64],
    totals: Wide,
    masses: Wide,
) -> NDArray[np.bool_]:
    """[L]: λ negative, off its masses or on foreign terms; w negative, not of sum one, or on the
    target."""
    # Sums of a few dozen floats are off by 1e-14 at most: 1e-12 excuses no wrong mass or mixture.
    groups, lps = numbers.lengths.shape[1], len(solution)
    goal = masses[solution.recipient]
    wrong: NDArray[np.bool_] = (
        ~(np.abs(totals.reshape(lps, groups) - goal) <= 1e-12 * goal + TINY)
    ).any(1)
    ends = np.append(0, np.cumsum(numbers.lengths.ravel()))
    segment = solution.recipient[owner] * groups + solution.groups
    outside = (solution.terms < ends[segment]) | (solution.terms >= ends[segment + 1])
    wrong |= np.bincount(owner, outside | ~(solution.coefficients >= 0), lps) > 0
    weights = solution.rival_weights
    wrong |= ~(weights >= 0).all(1) | ~(abs(weights.sum(1) - 1) <= 1e-12)
    wrong |= weights[np.arange(lps), solution.target] != 0
    return wrong


def judge_exactly(numbers: Numbers, solution: Solution, i: int) -> str:
    """What is wrong with LP i in rational arithmetic; empty if nothing is."""
    low, high, low_size, high_size = exact_interval(numbers, solution, i)
    if low > high:
        return "weak duality fails, so the judge is wrong"
    margin, optimal = float(solution.margin[i]), int(solution.status[i]) not in (3, 4)
    blur = Fraction(BLUR) * (low_size + high_size) + Fraction(TINY)
    near = Fraction(MEET) * low_size + blur
    if optimal and high - low > near:
        return "an optimum whose bound and margin do not meet, in fractions"
    if margin > WINS and high <= Fraction(WINS) - blur:
        return "called reachable, and w shows in fractions that it is not"
    if optimal and margin <= WINS and low > Fraction(WINS) + blur:
        return "called unreachable, and λ shows in fractions that it is not"
    return ""


def exact_interval(
    numbers: Numbers, solution: Solution, i: int
) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """What λ and w of LP i prove, exactly, and the sizes of what these are sums of."""
    node, c, groups = int(solution.recipient[i]), int(solution.target[i]), numbers.lengths.shape[1]
    rivals = [r for r in range(numbers.table.shape[1]) if r != c]
    fixed = [Fraction(x) for x in numbers.fixed[node].tolist()]
    w = {r: Fraction(float(solution.rival_weights[i, r])) for r in rivals}
    whole = sum(w.values())
    reached = {r: fixed[c] - fixed[r] for r in rivals}
    sizes = {r: abs(value) for r, value in reached.items()}
    high = sum((w[r] * reached[r] for r in rivals), Fraction(0)) / whole
    size = sum((w[r] * sizes[r] for r in rivals), Fraction(0)) / whole
    ends = np.append(0, np.cumsum(numbers.lengths.ravel()))
    support = range(int(solution.indptr[i]), int(solution.indptr[i + 1]))
    for g in range(groups):
        terms = range(int(ends[node * groups + g]), int(ends[node * groups + g + 1]))
        if not terms:
            continue
        mass = sum(Fraction(x) for x in numbers.alpha[terms.start : terms.stop].tolist())
        gaps = {a: _gaps(numbers, a, c) for a in terms}
        scored = [(sum(w[r] * gap[r] for r in rivals), a) for a, gap in gaps.items()]
        score, best = max(scored)
        high += mass * score / whole
        size += mass * sum(w[r] * abs(gaps[best][r]) for r in rivals) / whole
        held = [k for k in support if int(solution.groups[k]) == g]
        share = {int(solution.terms[k]): Fraction(float(solution.coefficients[k])) for k in held}
        total = sum(share.values())
        for a, part in share.items():
            for r in rivals:
                reached[r] += part / total * mass * gaps[a][r]
                sizes[r] += part / total * mass * abs(gaps[a][r])
    worst = min(reached.values())
    tied = [sizes[r] for r in rivals if reached[r] - Fraction(BLUR) * sizes[r] <= worst]
    return worst, high, max(tied), size


def _gaps(numbers: Numbers, a: int, c: int) -> dict[int, Any]:
    row = [Fraction(x) for x in numbers.table[a].tolist()]
    return {r: row[c] - row[r] for r in range(len(row)) if r != c}
