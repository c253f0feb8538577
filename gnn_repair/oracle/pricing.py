# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels that read terms: load margin columns, score them under a dual w, pick the best.

A *column* of term a for target class c holds D_{a,r} = m_g (ℓ_{a,c} − ℓ_{a,r}), one number per
rival r. Columns are stored rival-major, ``columns[r, k]``, so that every loop over columns runs
along contiguous numbers. Work per call: R multiply-adds and 8·R bytes per term.
"""

import math
from typing import Any

import numba
from numpy import uint64

from gnn_repair.oracle.lanes import (
    WIDTH,
    first_lane,
    get,
    get_row,
    larger,
    largest_lane,
    magnitude,
    put,
    smaller,
    spread,
)
from gnn_repair.oracle.room import DUAL, TIGHT

# Kernels own no memory, so reference counting is switched off. Passing many arrays costs more than
# solving a small LP, so what runs once per LP or pivot is inlined; what runs rarely is not.
_ENTRY = {
    "nogil": True,
    "cache": True,
    "_nrt": False,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
}
_OPTIONS = {**_ENTRY, "cache": False, "no_cpython_wrapper": True}
entry_kernel = numba.njit(**_ENTRY)
cold_kernel = numba.njit(**_OPTIONS)
kernel = numba.njit(**_OPTIONS, forceinline=True)
# What is called from one place only is compiled there and nowhere else.
kernel_once = numba.njit(**_OPTIONS, inline="always")
# Where short sums over classes must stay in order, so that the compiler runs four of them side by
# side instead of gathering inside each.
scalar_kernel = numba.njit(**_OPTIONS, forceinline=True, fastmath={"contract", "nnan", "nsz"})
# Places below are unsigned: a signed one may count from the end, and a loop over it would gather
# instead of stream.

NOTHING = -1e300
"""A score that no column has."""


@kernel
def largest(columns, count):
    """max |columns[r, k]| over the first ``count`` columns; those after them must be zeros."""
    best = spread(0.0)
    for r in range(columns.shape[0]):
        for k in range(0, count, WIDTH):
            best = larger(best, magnitude(get_row(columns, r, k)))
    return largest_lane(best)


@kernel
def load(problem, start, count, mass, columns, at):
    """columns[r, at + k] = mass · (ℓ_c − ℓ_r) for terms start + k; rivals in class order."""
    rows, table, c, one = problem.rows, problem.table, uint64(problem.target), uint64(1)
    low, to, two, three = uint64(start), uint64(at), uint64(2), uint64(3)
    whole = uint64(count - count % 4)
    rivals = uint64(table.shape[1]) - one
    for k in range(uint64(0), whole, uint64(4)):
        # Four terms at a time turn scattered stores into one of four doubles.
        p, q = uint64(rows[low + k]), uint64(rows[low + k + one])
        s, t = uint64(rows[low + k + two]), uint64(rows[low + k + three])
        own_p, own_q, own_s, own_t = table[p, c], table[q, c], table[s, c], table[t, c]
        j = to + k
        for i in range(rivals):
            r = i if i < c else i + one
            columns[i, j] = mass * (own_p - table[p, r])
            columns[i, j + one] = mass * (own_q - table[q, r])
            columns[i, j + two] = mass * (own_s - table[s, r])
            columns[i, j + three] = mass * (own_t - table[t, r])
    for k in range(whole, uint64(count)):
        p = uint64(rows[low + k])
        for i in range(rivals):
            r = i if i < c else i + one
            columns[i, to + k] = mass * (table[p, c] - table[p, r])


@kernel
def top(values, start, stop):
    """max of values[start:stop]; up to seven numbers more are read."""
    best = spread(NOTHING)
    for k in range(start, stop, WIDTH):
        best = larger(best, get(values, k))
    return largest_lane(best)


@kernel
def find(values, start, value):
    """The first place from ``start`` on that holds ``value`` (it is known to be there)."""
    k = start
    lane = first_lane(get(values, k), value)
    while lane == WIDTH:
        k += WIDTH
        lane = first_lane(get(values, k), value)
    return k + lane


@scalar_kernel
def most_total(rows, start, stop, table, target):
    """The term of start : stop with the largest Σ_r (ℓ_c − ℓ_r), good enough to begin with.

    Nothing is stored and nothing branches, so that memory is read without a pause.
    """
    c, classes, end, one = uint64(target), uint64(table.shape[1]), uint64(stop - 1), uint64(1)
    scale = float(table.shape[1])
    best_p = best_q = best_s = best_t = -math.inf
    at_p: Any = uint64(start)
    at_q = at_s = at_t = at_p
    for k in range(uint64(start), uint64(stop), uint64(4)):
        # Four terms at a time keep four sums going; the last one stands in for those missing.
        kq, ks, kt = _first(k + one, end), _first(k + uint64(2), end), _first(k + uint64(3), end)
        p, q, s, t = uint64(rows[k]), uint64(rows[kq]), uint64(rows[ks]), uint64(rows[kt])
        sum_p, sum_q = scale * table[p, c], scale * table[q, c]
        sum_s, sum_t = scale * table[s, c], scale * table[t, c]
        for r in range(classes):
            sum_p -= table[p, r]
            sum_q -= table[q, r]
            sum_s -= table[s, r]
            sum_t -= table[t, r]
        at_p, best_p = (k, sum_p) if sum_p > best_p else (at_p, best_p)
        at_q, best_q = (kq, sum_q) if sum_q > best_q else (at_q, best_q)
        at_s, best_s = (ks, sum_s) if sum_s > best_s else (at_s, best_s)
        at_t, best_t = (kt, sum_t) if sum_t > best_t else (at_t, best_t)
    at_p, best_p = (at_q, best_q) if best_q > best_p else (at_p, best_p)
    at_s, best_s = (at_t, best_t) if best_t > best_s else (at_s, best_s)
    return at_s if best_s > best_p else at_p


@kernel
def _first(k, end):
    return k if k < end else end


@scalar_kernel
def weighted_gaps(rows, start, count, table, target, room, first, last):
    """buffer[k] = w·(ℓ_c − ℓ) for terms start + k, w in slots first : last of the dual."""
    c, low, one, end = uint64(target), uint64(start), uint64(1), uint64(start + count - 1)
    state, places, out = room.state, room.places, room.buffer
    for k in range(uint64(0), uint64(count), uint64(4)):
        kq, ks = _first(low + k + one, end), _first(low + k + uint64(2), end)
        kt = _first(low + k + uint64(3), end)
        p, q, s, t = uint64(rows[low + k]), uint64(rows[kq]), uint64(rows[ks]), uint64(rows[kt])
        own_p, own_q, own_s, own_t = table[p, c], table[q, c], table[s, c], table[t, c]
        sum_p = sum_q = sum_s = sum_t = 0.0
        for slot in range(uint64(first), uint64(last)):
            w, r = state[DUAL, slot], uint64(places[TIGHT, slot])
            r = r if r < c else r + one
            sum_p += w * (own_p - table[p, r])
            sum_q += w * (own_q - table[q, r])
            sum_s += w * (own_s - table[s, r])
            sum_t += w * (own_t - table[t, r])
        out[k], out[k + one] = sum_p, sum_q
        out[k + uint64(2)], out[k + uint64(3)] = sum_s, sum_t
    put(out, count, spread(NOTHING))


@kernel
def first_gap(row, table, target):
    """max_r |ℓ_c − ℓ_r| of one table row."""
    size = 0.0
    for r in range(uint64(table.shape[1])):
        size = max(size, abs(table[uint64(row), uint64(target)] - table[uint64(row), r]))
    return size


@kernel
def power_of_two(size):
    """The power of two that brings ``size`` into (½, 1]; 1 for size 0."""
    if size <= 0.0:
        return 1.0
    mantissa, exponent = math.frexp(size)
    if mantissa == 0.5:
        exponent -= 1
    return math.ldexp(1.0, -exponent)


@kernel
def worst(columns, start, count, state, offset, out):
    """out[k] = min_r (state[offset, r] + columns[r, start + k]): the margin of all mass on k."""
    for k in range(0, count, WIDTH):
        least = spread(state[offset, 0]) + get_row(columns, 0, start + k)
        for r in range(1, columns.shape[0]):
            margin = spread(state[offset, uint64(r)]) + get_row(columns, r, start + k)
            least = smaller(least, margin)
        put(out, k, least)
    put(out, count, spread(NOTHING))
