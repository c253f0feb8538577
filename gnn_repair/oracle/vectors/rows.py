# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Loops over rows of numbers, eight at a time.

Where a loop ends within eight, the lanes behind its end are read and written too; the arrays have
room for them, and nothing counts on what they hold.
"""

import math

from numpy import uint64

from gnn_repair.oracle.vectors.lanes import (
    WIDTH,
    broadcast,
    first_of,
    get,
    get_row,
    kernel,
    larger,
    largest_lane,
    magnitude,
    multiply_add,
    put,
    put_row,
    smaller,
    where_larger,
)
from gnn_repair.oracle.workspace import DUAL, HUGE, STEP, STRIDE, TIGHT, VALUES

NOTHING = -math.inf
"""A score that no column has."""
FINITE = 1e308
"""Squared lengths beyond this, and what is not a number, count as infinite: the next sum might
overflow."""

# Filling and combining ----------------------------------------------------------------------------


@kernel
def fill(values, start, stop, number):
    """values[start:stop] = number."""
    for k in range(start, stop, WIDTH):
        put(values, k, broadcast(number))


@kernel
def fill_row(array, row, start, stop, number):
    """array[row, start:stop] = number."""
    for k in range(start, stop, WIDTH):
        put_row(array, row, k, broadcast(number))


@kernel
def copy_row(array, into, origin, count):
    """array[into, :count] = array[origin, :count]."""
    for k in range(0, count, WIDTH):
        put_row(array, into, k, get_row(array, origin, k))


@kernel
def set_multiple(array, into, factor, origin, count):
    """array[into, :count] = factor · array[origin, :count]."""
    for k in range(0, count, WIDTH):
        put_row(array, into, k, broadcast(factor) * get_row(array, origin, k))


@kernel
def add_multiple(array, into, factor, origin, count):
    """array[into, :count] += factor · array[origin, :count]."""
    for k in range(0, count, WIDTH):
        row = get_row(array, origin, k)
        put_row(array, into, k, multiply_add(broadcast(factor), row, get_row(array, into, k)))


@kernel
def exchange_and_divide(array, first, second, count, divisor):
    """Exchange two rows, and divide what comes to ``first`` by ``divisor``."""
    for k in range(0, count, WIDTH):
        row = get_row(array, second, k) / broadcast(divisor)
        put_row(array, second, k, get_row(array, first, k))
        put_row(array, first, k, row)


# Scores of columns --------------------------------------------------------------------------------


@kernel
def largest(columns, count):
    """max |columns[r, k]| over the first ``count`` columns, and up to seven more."""
    best = broadcast(0.0)
    for r in range(columns.shape[0]):
        for k in range(0, count, WIDTH):
            best = larger(best, magnitude(get_row(columns, r, k)))
    return largest_lane(best)


@kernel
def top(values, start, stop):
    """max of values[start:stop]; up to seven numbers more are read."""
    best = broadcast(NOTHING)
    for k in range(start, stop, WIDTH):
        best = larger(best, get(values, k))
    return largest_lane(best)


@kernel
def close_and_top(values, start, stop):
    """max of values[start:stop]; overwrites values[stop : stop + 8], so the last group is first."""
    put(values, stop, broadcast(NOTHING))
    return top(values, start, stop)


@kernel
def find(values, start, value):
    """The first place from ``start`` on that holds ``value`` (it is known to be there)."""
    k = start
    lane = _first(values, k, value)
    while lane == STRIDE:
        k += STRIDE
        lane = _first(values, k, value)
    return k + lane


@kernel
def _first(values, k, value):
    """Where among values[k : k + STRIDE]; STRIDE if nowhere."""
    x, y, z = k + WIDTH, k + 2 * WIDTH, k + 3 * WIDTH
    return first_of(get(values, k), get(values, x), get(values, y), get(values, z), value)


@kernel
def add_up(columns, count, out):
    """out[k] = Σ_r columns[r, k], and NOTHING after the last; returns the largest squared length of
    a column."""
    longest = broadcast(0.0)
    for k in range(0, count, WIDTH):
        total = length = broadcast(0.0)
        for r in range(columns.shape[0]):
            entry = get_row(columns, r, k)
            total = total + entry
            length = multiply_add(entry, entry, length)
        # A comparison with what is not a number would drop it silently.
        length = where_larger(broadcast(FINITE), length, length, broadcast(math.inf))
        longest = larger(longest, length)
        put(out, k, total)
    put(out, count, broadcast(NOTHING))
    return largest_lane(longest)


@kernel
def add_scores(room, groups, count, slots):
    """buffer[k] += w·D_k for the first ``count`` columns, w the dual; returns the largest.

    What follows them in the buffer, up to STRIDE numbers, is taken for NOTHING.
    """
    entries, state, places, rates = room.entries, room.state, room.places, room.buffer
    fill(rates, count, count + STRIDE, NOTHING)
    best = broadcast(NOTHING)
    for k in range(0, count, STRIDE):
        x, y, z = k + WIDTH, k + 2 * WIDTH, k + 3 * WIDTH
        p, q, s, t = get(rates, k), get(rates, x), get(rates, y), get(rates, z)
        for slot in range(uint64(groups), uint64(slots)):
            w, r = broadcast(state[DUAL, slot]), places[TIGHT, slot]
            p = multiply_add(w, get_row(entries, r, k), p)
            q = multiply_add(w, get_row(entries, r, x), q)
            s = multiply_add(w, get_row(entries, r, y), s)
            t = multiply_add(w, get_row(entries, r, z), t)
        put(rates, k, p)
        put(rates, x, q)
        put(rates, y, s)
        put(rates, z, t)
        best = larger(best, larger(larger(p, q), larger(s, t)))
    return largest_lane(best)


# The ratio test -----------------------------------------------------------------------------------


@kernel
def shortest_step(state, size, slack, pivot):
    """min_i (VALUES_i + slack) / STEP_i over the steps above ``pivot``; HUGE if there are none."""
    limit = broadcast(HUGE)
    for i in range(0, size, WIDTH):
        fall = get_row(state, STEP, i)
        ratio = (get_row(state, VALUES, i) + broadcast(slack)) / fall
        limit = smaller(limit, where_larger(fall, broadcast(pivot), ratio, broadcast(HUGE)))
    return -largest_lane(broadcast(0.0) - limit)


@kernel
def steepest_within(state, size, length, near):
    """near[i] = STEP_i where a step of ``length`` reaches zero, else 0; returns the largest."""
    limit, steepest = broadcast(length), broadcast(0.0)
    for i in range(0, size, WIDTH):
        fall = get_row(state, STEP, i)
        blocks = where_larger(get_row(state, VALUES, i), limit * fall, broadcast(0.0), fall)
        put(near, i, blocks)
        steepest = larger(steepest, blocks)
    return largest_lane(steepest)
