# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels that choose the columns the simplex method works on.

Up to SMALL terms it sees every column. Beyond, it works on a few dozen, and passes over the full
set only certify the answer or find columns that improve it. The first pass copies the terms class
by class, so that later ones read numbers side by side from the cache.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import uint64

from gnn_repair.oracle.compiling import cold_kernel, kernel
from gnn_repair.oracle.simplex import RATE
from gnn_repair.oracle.vectors.rows import (
    NOTHING,
    add_up,
    close_and_top,
    fill,
    fill_row,
    find,
    largest,
    set_multiple,
    top,
)
from gnn_repair.oracle.vectors.terms import copy_terms, load_columns, score_terms
from gnn_repair.oracle.workspace import (
    BOUNDS,
    CANDIDATES,
    DUAL,
    GROUP,
    HEAD,
    HUGE,
    INVERSE,
    LOWS,
    MASS,
    OFFSET,
    STRIP,
    TERM,
    TOPS,
    VALUES,
)

LARGE = 4096.0
"""The scale changes when the longest column's squared length is above this, or below the
inverse: lengths from 1/64 to 64 leave the tolerances, which are meant for lengths about one, two
decimals either way."""


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
    length. Up to seven columns of zeros follow.

    The scale is a guess from each group's first term; where that is far off, all terms are asked.
    """
    state, places, size = room.state, room.places, 0.0
    low, count = places[LOWS, 0], places[LOWS, groups] - places[LOWS, 0]
    for g in range(groups):
        size = max(size, _size(problem, room, g, places[LOWS, g], places[LOWS, g] + 1))
        places[BOUNDS, g] = places[LOWS, g] - low
        for k in range(uint64(places[BOUNDS, g]), uint64(places[LOWS, g + 1] - low)):
            room.labels[GROUP, k] = g
            room.labels[TERM, k] = uint64(low) + k
    places[BOUNDS, groups] = count
    scale, longest = power_of_two(size), 0.0
    for _ in range(2):
        for g in range(groups):
            fill(room.buffer, places[BOUNDS, g], places[BOUNDS, g + 1], state[MASS, g] * scale)
        fill(room.buffer, count, count + 1, 0.0)
        load_columns(problem, low, count, room.buffer, room.entries)
        longest = add_up(room.entries, count, room.buffer)
        if 1.0 / LARGE <= longest <= LARGE:
            break
        scale = _exact_scale(problem, room, groups)
    return count, scale, longest


@kernel
def _size(problem, room, g, start, stop):
    """max m_g |ℓ_c − ℓ_r| of terms start : stop, which are of group g."""
    size = 0.0
    for t in range(start, stop):
        size = max(size, widest_gap(problem.rows[t], problem.table, problem.target))
    return size * room.state[MASS, g]


@cold_kernel
def _exact_scale(problem, room, groups):
    """What brings the largest |D| into (½, 1]."""
    size, lows = 0.0, room.places[LOWS]
    for g in range(groups):
        size = max(size, _size(problem, room, g, lows[g], lows[g + 1]))
    return power_of_two(size)


@cold_kernel
def clear_columns(room, first, last):
    """Zeros in columns ``first : last``, and up to seven more."""
    for r in range(room.entries.shape[0]):
        fill_row(room.entries, r, first, last, 0.0)


@cold_kernel
def _rescale(room, count):
    """Bring the first ``count`` columns into [−1, 1]; returns the factor, a power of two.

    Columns are read eight at a time, and what an earlier LP left after the last must not count.
    """
    entries = room.entries
    clear_columns(room, count, count + 1)
    factor = power_of_two(largest(entries, count))
    for r in range(entries.shape[0]):
        set_multiple(entries, r, factor, r, count)
    return factor


@cold_kernel
def sample(problem, room, groups):
    """The columns a large LP begins with: the best of each block under equal rival weights.

    Returns their number, the scale and the longest one's squared length.
    """
    for g in range(groups):
        room.state[DUAL, g] = NOTHING
    count, _ = sweep(problem, room, groups, np.int64(0), np.int64(0), 1.0)
    scale = _rescale(room, count)
    longest = add_up(room.entries, count, room.buffer)
    for g in range(groups):
        if room.places[BOUNDS, g] == room.places[BOUNDS, g + 1]:
            longest = np.inf  # scores that overflow choose no column
    return count, scale, longest


@cold_kernel
def sweep(problem, room, groups, slots, count, scale):
    """One pass over all terms under the dual: group maxima into TOPS, and the best term of
    each block joins the working columns if it beats its group's threshold u_g.

    The first pass, without slots, weighs rivals equally and copies the terms strip by strip; later
    ones read the copies, and copy again what did not fit.
    Returns the new number of working columns and the largest |D| among the new.
    """
    state, places, size, n = room.state, room.places, 0.0, np.int64(0)
    block = (places[LOWS, groups] - places[LOWS, 0]) // CANDIDATES + 16 & ~15
    length, classes = block * max(1, STRIP // block), problem.table.shape[1]
    spare = room.copies.shape[0] // classes - 1
    for g in range(groups):
        peak, factor, end = NOTHING, state[MASS, g] * scale, places[LOWS, g + 1]
        threshold = (state[DUAL, g] + RATE) / factor
        if slots == 0:
            places[BOUNDS, g] = count
        for low in range(places[LOWS, g], end, length):
            base, high = min(n, spare) * classes, min(low + length, end)
            if slots == 0 or n >= spare:
                copy_terms(problem, low, high - low, room, base)
            if slots > 0:
                score_terms(room, base, problem.target, high - low, groups, slots)
            best = top(room.buffer, np.int64(0), high - low)
            peak, n = max(peak, best), n + 1
            if best > threshold:
                count, most = _pick(
                    room, base, problem.target, g, low, high, block, threshold, factor, count
                )
                size = max(size, most)
        state[TOPS, g] = factor * peak
        if slots == 0:
            places[BOUNDS, g + 1] = count
    return count, size


@kernel
def _pick(room, base, c, g, low, high, block, threshold, factor, count):
    """The best term of each block of a strip joins the columns if it scores above ``threshold``.

    Returns the new number of columns and the largest |D| among the new.
    """
    labels, copies, size = room.labels, room.copies, 0.0
    for k in range(np.int64(0), high - low, block):
        best = top(room.buffer, k, min(k + block, high - low))
        if best > threshold:
            at = find(room.buffer, k, best)
            labels[GROUP, count], labels[TERM, count] = g, low + at
            for r in range(room.entries.shape[0]):
                value = factor * (copies[base + c, at] - copies[base + r, at])
                room.entries[r, count] = value
                size = max(size, abs(value))
            count += 1
    return count, size


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
    for g in range(groups - 1, -1, -1):
        best = close_and_top(room.buffer, bounds[g], bounds[g + 1])
        state[TOPS, g] = (state[DUAL, g] + best) / total


@kernel
def widest_gap(row, table, target):
    """max_r |ℓ_c − ℓ_r| of one table row."""
    size = 0.0
    for r in range(uint64(table.shape[1])):
        size = max(size, abs(table[uint64(row), uint64(target)] - table[uint64(row), r]))
    return size


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
