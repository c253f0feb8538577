# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Many LPs at once, straight from an exposure's tables, in threads.

Up to SMALL terms the simplex method sees every column. Beyond, it works on a few dozen, and passes
over the full set only certify the answer or find columns that improve it.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy import uint64

from gnn_repair.errors import InputError
from gnn_repair.kernel_cache import cached_njit
from gnn_repair.oracle.problems import FAILED, FIXED, OPTIMAL, Problems, Tables, whole_number
from gnn_repair.oracle.simplex import (
    BOUNDS,
    CANDIDATES,
    CHOSEN,
    DUAL,
    ENTRY,
    GROUP,
    HEAD,
    HUGE,
    INVERSE,
    LOWS,
    MASS,
    OFFSET,
    RATE,
    STEP,
    TERM,
    TIGHT,
    TOPS,
    VALUES,
    Room,
    cold_kernel,
    improve,
    kernel,
    kernel_once,
    new_room,
    refactor,
    set_multiple,
    start,
    top,
)
from gnn_repair.oracle.solution import Solution, build_solution
from gnn_repair.published import REACHABLE
from gnn_repair.startup import collection_paused

CHUNK = 1024
"""LPs a thread takes at a time: a millisecond of work, long beside the call into compiled code and
short beside a user's patience."""
SMALL = 128
"""Up to so many terms the simplex method sees every column: so many numbers of eight classes are
what a first-level cache holds a quarter of."""
BLUR = 4e-15
"""How far sums of up to a few dozen numbers may be off, relative to those numbers. An answer that
far from the threshold of reach, or nearer, has not decided it."""
ACCEPT = 1e-11
"""Largest accepted gap between bound and margin, relative to the numbers the answer is made of: a
hundred thousand roundings, and a hundredth of what the check accepts."""
FLOOR = 1e-318
"""Below 2e-308 products are rounded to multiples of 5e-324; an answer adds up some hundreds."""
ROUNDS = 60
"""Passes over a large LP before the fallback: of 44,433 hostile LPs none took more than eight."""
REPAIRS = 3
"""Fresh inversions before the fallback: where the third has not helped, the numbers are beyond
doubles, and exact arithmetic is next."""
FINITE = 1e308
"""Squared lengths beyond this, and what is not a number, count as infinite: the next sum might
overflow."""
LARGE = 4096.0
"""The scale changes when the longest column's squared length is above this, or below the
inverse: lengths from 1/64 to 64 leave the tolerances, which are meant for lengths about one, two
decimals either way."""
Result = TypeVar("Result")


def check_threads(threads: Any) -> None:
    """Raise InputError unless it is a number of threads, or None for all cores."""
    if threads is not None and whole_number(threads, "threads") < 1:
        raise InputError(f"threads must be at least 1, not {threads}")


def map_lps(
    count: int,
    solve: Callable[[int, Any], Result],
    make: Callable[[], Any],
    threads: int | None = None,
) -> list[Result]:
    """[solve(i, make()) for i in range(count)], but ``make`` is called once per thread only."""
    workers = max(1, min(threads or os.cpu_count() or 1, count))
    memory = threading.local()

    def work(index: int) -> Result:
        if not hasattr(memory, "solver"):
            memory.solver = make()
        return solve(index, memory.solver)

    if workers == 1:
        return [work(index) for index in range(count)]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(count)))


def solve_tables(tables: Tables, asked: Problems, threads: int | None = None) -> Solution:
    """Our own solver alone on any tables; where it gives up the status is FAILED."""
    starts = range(0, max(1, len(asked)), CHUNK)

    def work(place: int, room: Room) -> Solution:
        first = starts[place]
        return _solve_chunk(tables, asked.taken(slice(first, first + CHUNK)), room)

    def make() -> Room:
        return new_room(tables.num_classes, tables.num_groups)

    if not solve_range.signatures:
        with collection_paused():  # compiles, or loads what was compiled
            _solve_chunk(tables, asked.taken(slice(0)), make())
    return Solution.concatenate(map_lps(len(starts), work, make, threads))


def _solve_chunk(tables: Tables, asked: Problems, room: Room) -> Solution:
    size, width = len(asked), tables.num_classes + tables.num_groups - 2
    margin, bound = np.empty(size), np.empty(size)
    status, counts = np.empty(size, np.int8), np.empty(size, np.int64)
    weights = np.empty((size, tables.num_classes))
    terms, shares = np.empty(size * width, np.int64), np.empty(size * width)
    filled = solve_range(
        asked.member, asked.position, asked.target, tables.nodes, tables.segments, tables.rows,
        tables.contributions, tables.mass, tables.fixed_logits,
        room, margin, bound, status, weights, counts, terms, shares,
    )  # fmt: skip
    return build_solution(
        tables, asked, counts, terms[:filled], coefficients=shares[:filled],
        margin=margin, bound=bound, status=status, rival_weights=weights,
    )  # fmt: skip


# One LP after another -----------------------------------------------------------------------------


@cached_njit(**ENTRY)
def solve_range(
    members, positions, targets, nodes, segments, rows, tables, masses, fixed_logits, room,
    margin, bound, status, weights, counts, terms, shares,
):  # fmt: skip
    """Solve L LPs; LP k writes row k of the first five outputs.

    members, positions, targets [L]; nodes [n]; tables [S, R, C]; masses [S or 1, n, G]; weights
    [L, C]: w; counts [L]: size of the support; terms and shares: the support and its λ, one LP
    after another. Returns how many of these there are.
    """
    filled = np.int64(0)
    for k in range(members.shape[0]):
        s, p, c = members[k], positions[k], targets[k]
        beta = fixed_logits[s, nodes[p]]
        present = _present(segments, p, masses[min(s, masses.shape[0] - 1), p], room)
        base = _differences(beta, c, room.state)
        if present == 0:
            _write_fixed(room.state, weights[k])
            status[k], margin[k], bound[k], counts[k] = FIXED, base, base, 0
            continue
        status[k], margin[k], bound[k], counts[k] = _solve(
            LpTerms(rows, tables[s], c),
            present,
            beta,
            room,
            weights[k],
            terms[filled:],
            shares[filled:],
        )
        filled += counts[k]
    return filled


@kernel_once
def _present(segments, p, masses, room):
    """Beginnings and masses of the groups recipient p has; returns their number."""
    groups, total = np.int64(0), masses.shape[0]
    for g in range(total):
        if segments[p * total + g + 1] > segments[p * total + g]:
            room.places[LOWS, groups] = segments[p * total + g]
            room.state[MASS, groups] = masses[g]
            groups += 1
    room.places[LOWS, groups] = segments[(p + 1) * total]
    return groups


@kernel_once
def _differences(beta, c, state):
    """d_r = β_c − β_r less their minimum over rivals, which is returned."""
    base = np.inf
    for r in range(beta.shape[0]):
        state[OFFSET, r] = beta[c] - beta[r] if r != c else HUGE
        base = min(base, state[OFFSET, r])
    for r in range(beta.shape[0]):
        state[OFFSET, r] -= base if r != c else 0.0
    return base


@kernel_once
def _write_fixed(state, weights):
    """w of a node without terms: all on the rival with the smallest margin."""
    closest = 0
    while state[OFFSET, closest] > 0.0:
        closest += 1
    for r in range(weights.shape[0]):
        weights[r] = 0.0
    weights[closest] = 1.0


@kernel_once
def _solve(problem, groups, beta, room, weights, terms, shares):
    """One LP; returns (status, margin, bound, size of the support) and writes w, support and λ."""
    large = room.places[LOWS, groups] - room.places[LOWS, 0] > SMALL
    if large:
        count, scale, longest = sample(problem, room, groups)
    else:
        count, scale, longest = take_all(problem, room, groups)
    if not longest <= LARGE:
        return FAILED, np.nan, np.nan, 0
    for r in range(room.entries.shape[0]):
        room.state[OFFSET, r] *= scale if r != problem.target else 1.0
    lead = start(room, groups, problem.target)
    slots, repairs, margin, bound, support = groups + 1, 0, 0.0, 0.0, 0
    for _ in range(ROUNDS):
        slots, lead = improve(room, groups, count, lead, slots)
        stuck, slots = slots < 0, abs(slots)
        total, clipped = _normalise(room.state, groups, slots)
        if large:
            if 2 * count > room.labels.shape[1]:
                count = keep_basic(room, groups)
            before = count
            count, size = sweep(problem, room, groups, slots, count, scale)
            if size * size > LARGE:
                scale *= shrink(room, groups, slots, count)
            if count > before and not stuck:
                continue
        else:
            maxima(room, groups, total)
        bound = _write_weights(problem.target, beta, room, groups, slots, scale, weights)
        support = _write_terms(room, groups, terms, shares)
        margin, size = _margin(problem, beta, support, terms, shares, room.buffer)
        if not stuck:
            # The margin's own numbers settle nearly every LP; the bound's are asked for if not, or
            # if w is another than the one that was priced.
            if not clipped and accept(margin, bound, bound, size, 0.0):
                return OPTIMAL, margin, bound, support
            bound, certain, other = _bound_anew(problem, beta, room, groups, weights)
            if accept(margin, bound, certain, size, other):
                return OPTIMAL, margin, bound, support
        repairs += 1
        if repairs > REPAIRS or not refactor(room, groups, slots):
            break
    return FAILED, margin, bound, support


@kernel
def accept(margin, bound, certain, size, other):
    """Whether bound and margin meet, and on the same side of the threshold of reach.

    ``size`` is that of the numbers the margin is the sum of, ``other`` that of the bound's;
    ``certain`` is the bound less what rounding may have added to it.
    """
    blur = BLUR * (size + other)
    decided = margin - blur > REACHABLE or bound + blur <= REACHABLE
    meet = certain - margin <= ACCEPT * size + FLOOR
    return meet and margin - bound <= ACCEPT * size + BLUR * other + FLOOR and decided


@cold_kernel
def _bound_anew(problem, beta, room, groups, weights):
    """w·d + Σ_g m_g max_a w·D_a from the exposure's own numbers, the same with each term less its
    own rounding, and the size of the bound's numbers.

    A huge term that w makes equal to small ones scores within its own rounding of them. That may
    blur the bound, but must not excuse a small term that scores too high.
    """
    c, bound, size = problem.target, 0.0, 0.0
    for r in range(beta.shape[0]):
        part = weights[r] * (beta[c] - beta[r])
        bound += part
        size += abs(part)
    certain = bound - BLUR * size
    for g in range(groups):
        best, top, parts = -np.inf, -np.inf, 0.0
        for t in range(room.places[LOWS, g], room.places[LOWS, g + 1]):
            row, score, total = problem.rows[t], 0.0, 0.0
            for r in range(beta.shape[0]):
                part = weights[r] * (problem.table[row, c] - problem.table[row, r])
                score += part
                total += abs(part)
            best = max(best, score - BLUR * total)
            if score > top:
                top, parts = score, total
        bound += room.state[MASS, g] * top
        certain += room.state[MASS, g] * best
        size += room.state[MASS, g] * parts
    return bound, certain, size


@kernel_once
def _normalise(state, groups, slots):
    """Clip rounding below zero off w and divide it by its sum; that sum, and whether it did."""
    total, clipped = 0.0, False
    for s in range(groups, slots):
        clipped = clipped or state[DUAL, s] < 0.0
        state[DUAL, s] = max(state[DUAL, s], 0.0)
        total += state[DUAL, s]
    for s in range(groups, slots):
        state[DUAL, s] /= total
    return total, clipped


@kernel_once
def _write_weights(c, beta, room, groups, slots, scale, weights):
    """w of the tight rivals, by class; returns the bound w·d + Σ_g m_g max_a w·D_a."""
    bound = 0.0
    for r in range(beta.shape[0]):
        weights[r] = 0.0
    for g in range(groups):
        bound += room.state[TOPS, g]
    bound /= scale
    for s in range(groups, slots):
        r = room.places[TIGHT, s]
        weights[r] = room.state[DUAL, s]
        bound += weights[r] * (beta[c] - beta[r])
    return bound


@kernel_once
def _write_terms(room, groups, terms, shares):
    """The support in the order of terms and its λ = m_g x, made exactly feasible; returns its
    size. TOPS and STEP are scratch."""
    state, places, labels, count = room.state, room.places, room.labels, uint64(0)
    for g in range(groups):
        state[TOPS, g] = 0.0
    for i in range(uint64(room.entries.shape[0] + groups)):
        places[CHOSEN, count], state[STEP, count] = places[HEAD, i], state[VALUES, i]
        count += uint64((places[HEAD, i] >= 0) & (state[VALUES, i] > 0.0))
    for k in range(count):
        state[TOPS, uint64(labels[GROUP, uint64(places[CHOSEN, k])])] += state[STEP, k]
    for k in range(count):
        j, at = uint64(places[CHOSEN, k]), np.int64(k)
        term, group = labels[TERM, j], uint64(labels[GROUP, j])
        while at > 0 and terms[at - 1] > term:
            terms[at], shares[at] = terms[at - 1], shares[at - 1]
            at -= 1
        terms[at], shares[at] = term, state[STEP, k] / state[TOPS, group] * state[MASS, group]
    return np.int64(count)


@kernel_once
def _margin(problem, beta, count, terms, shares, reached):
    """min_r M(c, r), summed anew from the exposure's own numbers, and how large the numbers are
    that it is the sum of; reached is scratch."""
    c, classes = uint64(problem.target), uint64(beta.shape[0])
    for r in range(classes):
        reached[r] = beta[c] - beta[r]
    for k in range(count):
        row, share = uint64(problem.rows[terms[k]]), shares[k]
        own = problem.table[row, c]
        for r in range(classes):
            reached[r] += share * (own - problem.table[row, r])
    worst: Any = c
    least = np.inf
    for r in range(classes):
        if r != c and not reached[r] >= least:
            least, worst = reached[r], r
    size = abs(beta[c] - beta[worst])
    for k in range(count):
        row = uint64(problem.rows[terms[k]])
        size += shares[k] * abs(problem.table[row, c] - problem.table[row, worst])
    return least, size


# Columns ------------------------------------------------------------------------------------------


class LpTerms(NamedTuple):
    """Where an LP's terms are."""

    rows: Any
    """[T] int32: table rows of the exposure's terms."""
    table: Any
    """[R, C]: contributions of the LP's member."""
    target: Any
    """The class c."""


@kernel
def take_all(problem, room, groups):
    """Load every term; returns the number of columns, the scale and the longest column's squared
    length.

    The scale is a guess from each group's first term; where that is far off, all terms are asked.
    """
    places, labels, size = room.places, room.labels, 0.0
    low, count = places[LOWS, 0], places[LOWS, groups] - places[LOWS, 0]
    for g in range(groups):
        size = max(size, _size(problem, room, g, places[LOWS, g], places[LOWS, g] + 1))
        places[BOUNDS, g] = places[LOWS, g] - low
        for k in range(uint64(places[BOUNDS, g]), uint64(places[LOWS, g + 1] - low)):
            labels[GROUP, k], labels[TERM, k] = g, uint64(low) + k
    places[BOUNDS, groups] = count
    scale, longest = power_of_two(size), 0.0
    for _ in range(2):
        for g in range(groups):
            factor = room.state[MASS, g] * scale
            _load(problem, low, places[BOUNDS, g], places[BOUNDS, g + 1], factor, room.entries)
        longest = _add_up(room, count)
        if 1.0 / LARGE <= longest <= LARGE:
            break
        scale = _exact_scale(problem, room, groups)
    return count, scale, longest


@kernel
def _load(problem, low, first, last, factor, columns):
    """columns[r, k] = factor · (ℓ_c − ℓ_r) for terms low + k, k in first : last."""
    table, c = problem.table, uint64(problem.target)
    for k in range(uint64(first), uint64(last)):
        row = table[uint64(problem.rows[uint64(low) + k])]
        own = row[c]
        for r in range(uint64(table.shape[1])):
            columns[r, k] = factor * (own - row[r])


@kernel
def _add_up(room, count):
    """buffer[k] = Σ_r D_{k,r}; returns the largest squared length of a column, infinite where one
    is beyond doubles or not a number."""
    entries, sums, longest = room.entries, room.buffer, 0.0
    for k in range(uint64(count)):
        total, length = 0.0, 0.0
        for r in range(uint64(entries.shape[0])):
            total += entries[r, k]
            length += entries[r, k] * entries[r, k]
        sums[k] = total
        longest = max(longest, length if length < FINITE else math.inf)
    return longest


@kernel
def _size(problem, room, g, start, stop):
    """max m_g |ℓ_c − ℓ_r| of terms start : stop, which are of group g."""
    size, table, c = 0.0, problem.table, uint64(problem.target)
    for t in range(start, stop):
        row = uint64(problem.rows[t])
        for r in range(uint64(table.shape[1])):
            size = max(size, abs(table[row, c] - table[row, r]))
    return size * room.state[MASS, g]


@cold_kernel
def _exact_scale(problem, room, groups):
    """What brings the largest |D| into (½, 1]."""
    size, lows = 0.0, room.places[LOWS]
    for g in range(groups):
        size = max(size, _size(problem, room, g, lows[g], lows[g + 1]))
    return power_of_two(size)


@cold_kernel
def _rescale(room, count):
    """Bring the first ``count`` columns into [−1, 1]; returns the factor, a power of two."""
    entries, most = room.entries, 0.0
    for r in range(entries.shape[0]):
        for k in range(count):
            most = max(most, abs(entries[r, k]))
    factor = power_of_two(most)
    for r in range(entries.shape[0]):
        set_multiple(entries, r, factor, r, count)
    return factor


@cold_kernel
def sample(problem, room, groups):
    """The columns a large LP begins with: the best of each block under equal rival weights.

    Returns their number, the scale and the longest one's squared length.
    """
    state, places, classes = room.state, room.places, room.entries.shape[0]
    for g in range(groups):
        state[DUAL, g] = -math.inf
    for r in range(classes):
        places[TIGHT, groups + r], state[DUAL, groups + r] = r, 1.0
    count, _ = sweep(problem, room, groups, groups + classes, np.int64(0), 1.0)
    at = 0
    for g in range(groups):
        places[BOUNDS, g] = at
        while at < count and room.labels[GROUP, at] == g:
            at += 1
    places[BOUNDS, groups] = count
    scale = _rescale(room, count)
    longest = _add_up(room, count)
    for g in range(groups):
        if places[BOUNDS, g] == places[BOUNDS, g + 1]:
            longest = np.inf  # scores that overflow choose no column
    return count, scale, longest


@cold_kernel
def sweep(problem, room, groups, slots, count, scale):
    """One pass over all terms under the dual: group maxima into TOPS, and the best term of each
    block joins the working columns if it beats its group's threshold u_g.

    Returns the new number of working columns and the largest |D| among the new.
    """
    state, labels, lows, size = room.state, room.labels, room.places[LOWS], 0.0
    block, c = (lows[groups] - lows[0]) // CANDIDATES + 16, problem.target
    for g in range(groups):
        peak, factor = -math.inf, state[MASS, g] * scale
        threshold = (state[DUAL, g] + RATE) / factor
        for low in range(lows[g], lows[g + 1], block):
            high = min(low + block, lows[g + 1])
            best, at = _best_of(problem, room, groups, slots, low, high)
            peak = max(peak, best)
            if best > threshold:
                labels[GROUP, count], labels[TERM, count] = g, at
                row = problem.rows[at]
                for r in range(room.entries.shape[0]):
                    value = factor * (problem.table[row, c] - problem.table[row, r])
                    room.entries[r, count] = value
                    size = max(size, abs(value))
                count += 1
        state[TOPS, g] = factor * peak
    return count, size


@kernel
def _best_of(problem, room, groups, slots, low, high):
    """The largest w·(ℓ_c − ℓ) of terms low : high, and the first term that has it."""
    table, dual, tight = problem.table, room.state[DUAL], room.places[TIGHT]
    c, best, at = uint64(problem.target), -math.inf, low
    for t in range(low, high):
        row, score = uint64(problem.rows[uint64(t)]), 0.0
        own = table[row, c]
        for s in range(uint64(groups), uint64(slots)):
            score += dual[s] * (own - table[row, uint64(tight[s])])
        if score > best:
            best, at = score, t
    return best, at


@cold_kernel
def shrink(room, groups, slots, count):
    """Scale everything down when a new column is far larger than the others; returns the factor.

    γ, slacks and rival rows are in the units of D; x and mass rows are not.
    """
    state, classes = room.state, room.entries.shape[0]
    factor = _rescale(room, count)
    for r in range(classes):
        state[OFFSET, r] *= factor if state[OFFSET, r] < HUGE else 1.0
    for i in range(classes + groups):
        variable = room.places[HEAD, i]
        if variable < 0:
            state[VALUES, i] *= factor if state[VALUES, i] < HUGE else 1.0
            for g in range(groups):
                state[INVERSE + g, i] *= factor
        else:
            for s in range(groups, slots):
                state[INVERSE + s, i] /= factor
    return factor


@cold_kernel
def keep_basic(room, groups):
    """Drop all working columns but the basic ones; returns their number."""
    places, labels = room.places, room.labels
    count, last = np.int64(0), np.int64(-1)
    for g in range(groups + 1):
        places[BOUNDS, g] = 0
    while True:
        at = -1
        for i in range(room.entries.shape[0] + groups):
            j = places[HEAD, i]
            if j > last and (at < 0 or j < places[HEAD, at]):
                at = i
        if at < 0:
            return count
        last = places[HEAD, at]
        for r in range(room.entries.shape[0]):
            room.entries[r, count] = room.entries[r, last]
        labels[GROUP, count], labels[TERM, count] = labels[GROUP, last], labels[TERM, last]
        places[HEAD, at] = count
        # Later columns are looked for above ``last``, so the new number must not be found again.
        count += 1


@kernel
def maxima(room, groups, total):
    """max_{a∈g} w·D_a of every group into TOPS, from the rates of the last pricing.

    All terms are among the columns, and w has been divided by ``total`` since.
    """
    state, bounds = room.state, room.places[BOUNDS]
    for g in range(groups):
        best = top(room.buffer, bounds[g], bounds[g + 1])
        state[TOPS, g] = (state[DUAL, g] + best) / total


@kernel
def power_of_two(size):
    """The power of two that brings ``size`` into (½, 1]; 1 for size 0. It is never infinite."""
    if size <= 0.0:
        return 1.0
    mantissa, exponent = math.frexp(size)
    if mantissa == 0.5:
        exponent -= 1
    # The inverse of a subnormal number would be infinite: powers of two end at 2^1023.
    return math.ldexp(1.0, -max(exponent, -1000))
