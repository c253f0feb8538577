# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""``gnn_repair.oracle.vectors.rows`` as plain numba loops; see there for what each does."""

import math

from numpy import int64, uint64

from gnn_repair.oracle.vectors.rows import FINITE, NOTHING
from gnn_repair.oracle.workspace import DUAL, HUGE, STEP, TIGHT, VALUES
from tools.plain_simplex.compiling import kernel, ordered_kernel

# Places are unsigned as in the package: a signed one may count from the end, and a loop over it
# would gather instead of stream.


@kernel
def fill(values, start, stop, number):
    for k in range(uint64(start), uint64(stop)):
        values[k] = number


@kernel
def fill_row(array, row, start, stop, number):
    fill(array[uint64(row)], start, stop, number)


@kernel
def copy_row(array, into, origin, count):
    new, old = array[uint64(into)], array[uint64(origin)]
    for k in range(uint64(count)):
        new[k] = old[k]


@kernel
def set_multiple(array, into, factor, origin, count):
    new, old = array[uint64(into)], array[uint64(origin)]
    for k in range(uint64(count)):
        new[k] = factor * old[k]


@kernel
def add_multiple(array, into, factor, origin, count):
    new, old = array[uint64(into)], array[uint64(origin)]
    for k in range(uint64(count)):
        new[k] += factor * old[k]


@kernel
def exchange_and_divide(array, first, second, count, divisor):
    one, other = array[uint64(first)], array[uint64(second)]
    for k in range(uint64(count)):
        divided = other[k] / divisor
        other[k] = one[k]
        one[k] = divided


@kernel
def largest(columns, count):
    best = 0.0
    for r in range(uint64(columns.shape[0])):
        row = columns[r]
        for k in range(uint64(count)):
            best = max(best, abs(row[k]))
    return best


@kernel
def top(values, start, stop):
    best = NOTHING
    for k in range(uint64(start), uint64(stop)):
        best = max(best, values[k])
    return best


@kernel
def close_and_top(values, start, stop):
    return top(values, start, stop)


@kernel
def find(values, start, value):
    k = uint64(start)
    while values[k] != value:
        k += uint64(1)
    return int64(k)


@ordered_kernel
def add_up(columns, count, out):
    fill(out, 0, count, 0.0)
    for r in range(uint64(columns.shape[0])):
        row = columns[r]
        for k in range(uint64(count)):
            out[k] += row[k] * row[k]
    longest = 0.0
    for k in range(uint64(count)):
        longest = max(longest, out[k] if out[k] < FINITE else math.inf)
        out[k] = 0.0
    for r in range(uint64(columns.shape[0])):
        row = columns[r]
        for k in range(uint64(count)):
            out[k] += row[k]
    return longest


@kernel
def add_scores(room, groups, count, slots):
    rates = room.buffer
    for slot in range(uint64(groups), uint64(slots)):
        w, row = room.state[DUAL, slot], room.entries[uint64(room.places[TIGHT, slot])]
        for k in range(uint64(count)):
            rates[k] += w * row[k]
    return top(rates, 0, count)


@kernel
def shortest_step(state, size, slack, pivot):
    values, step, shortest = state[VALUES], state[STEP], HUGE
    for i in range(uint64(size)):
        ratio = (values[i] + slack) / step[i]
        shortest = min(shortest, ratio if step[i] > pivot else HUGE)
    return shortest


@kernel
def steepest_within(state, size, length, near):
    values, step, steepest = state[VALUES], state[STEP], 0.0
    for i in range(uint64(size)):
        near[i] = 0.0 if values[i] > length * step[i] else step[i]
        steepest = max(steepest, near[i])
    return steepest
