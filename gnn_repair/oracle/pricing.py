# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels that read terms: load margin columns, score them under a dual w, pick the best.

A *column* of term a for target class c holds D_{a,r} = m_g (ℓ_{a,c} − ℓ_{a,r}), one number per
class r; that of the target is zero. Columns are stored class by class, ``columns[r, k]``, so that
every loop over columns runs along contiguous numbers. Work per call: C multiply-adds and 8·C bytes
per term.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numba
from numpy import uint64

from gnn_repair.kernel_cache import cached_njit
from gnn_repair.oracle.blocks import (
    added,
    eight_from,
    fetch_rows,
    gaps,
    get_column,
    get_rows,
    put_rows,
    transposed,
)
from gnn_repair.oracle.lanes import (
    WIDTH,
    first_of,
    get,
    get_row,
    larger,
    largest_lane,
    magnitude,
    multiply_add,
    put,
    spread,
    where_larger,
)
from gnn_repair.oracle.workspace import AHEAD, DUAL, STRIDE, TIGHT

# Kernels own no memory, so reference counting is switched off. Passing many arrays costs more than
# solving a small LP, so what runs once per LP or pivot is inlined; what runs rarely is not.
_ENTRY = {
    "nogil": True,
    "_nrt": False,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
}
_OPTIONS = {**_ENTRY, "no_cpython_wrapper": True}
entry_kernel = cached_njit(**_ENTRY)
cold_kernel = numba.njit(**_OPTIONS)
kernel = numba.njit(**_OPTIONS, forceinline=True)
# What is called from one place only is compiled there and nowhere else.
kernel_once = numba.njit(**_OPTIONS, inline="always")


@contextmanager
def moderately_optimised() -> Iterator[None]:
    """Kernels compiled inside are optimised at LLVM's second level.

    It takes a fifth less time than the third, and code that says *eight at a time* runs as fast.
    """
    level = numba.config.OPT
    numba.config.OPT = type(level)(min(level, 2))
    try:
        yield
    finally:
        numba.config.OPT = level


# Places below are unsigned: a signed one may count from the end, and a loop over it would gather
# instead of stream.

DISTANCE = 128
"""Terms between the one that is read and the one that is asked for, where tables are large."""
NOTHING = -math.inf
"""A score that no column has."""
FINITE = 1e308
"""Squared lengths beyond this, and what is not a number, count as infinite."""


@kernel
def largest(columns, count):
    """max |columns[r, k]| over the first ``count`` columns, and up to seven more."""
    best = spread(0.0)
    for r in range(columns.shape[0]):
        for k in range(0, count, WIDTH):
            best = larger(best, magnitude(get_row(columns, r, k)))
    return largest_lane(best)


@kernel
def load(problem, start, count, masses, columns):
    """columns[r, k] = masses[k] · (ℓ_c − ℓ_r) for terms start + k.

    Eight terms by eight classes are turned at a time; up to seven more masses are read.
    """
    table, classes = problem.table, problem.table.shape[1]
    for k in range(0, count, WIDTH):
        terms = eight_from(problem.rows, start + k, start + count - 1)
        own = get_column(table, terms, problem.target)
        for r in range(0, classes, WIDTH):
            turned = gaps(get(masses, k), own, transposed(get_rows(table, terms, r, classes - r)))
            put_rows(columns, r, k, classes - r, turned)


@kernel
def copy_terms(problem, start, count, room, base):
    """copies[base + r, k] = ℓ_r of terms start + k, and buffer[k] = Σ_r (ℓ_c − ℓ_r).

    Eight terms by eight classes are turned at a time.
    """
    classes, far = problem.table.shape[1], room.places[AHEAD, 1] > 0
    last = problem.rows.shape[0] - WIDTH
    for k in range(0, count, WIDTH):
        if far:
            at = min(start + k + DISTANCE, last)
            fetch(problem, at, at + WIDTH)
        terms, total = eight_from(problem.rows, start + k, start + count - 1), spread(0.0)
        for r in range(0, classes, WIDTH):
            turned = transposed(get_rows(problem.table, terms, r, classes - r))
            put_rows(room.copies, base + r, k, classes - r, turned)
            total = total + added(turned)
        own = get_row(room.copies, base + problem.target, k)
        put(room.buffer, k, spread(float(classes)) * own - total)
    put(room.buffer, count, spread(NOTHING))


@kernel
def weigh(room, base, c, count, groups, slots):
    """buffer[k] = w·(ℓ_c − ℓ) of the first ``count`` copies from row ``base`` on, w the dual."""
    state, places, copies, out = room.state, room.places, room.copies, room.buffer
    for k in range(0, count, 2 * WIDTH):
        own, other = get_row(copies, base + c, k), get_row(copies, base + c, k + WIDTH)
        p = q = spread(0.0)
        for slot in range(uint64(groups), uint64(slots)):
            w, r = spread(state[DUAL, slot]), places[TIGHT, slot]
            p = multiply_add(w, own - get_row(copies, base + r, k), p)
            q = multiply_add(w, other - get_row(copies, base + r, k + WIDTH), q)
        put(out, k, p)
        put(out, k + WIDTH, q)
    put(out, count, spread(NOTHING))


@kernel
def top(values, start, stop):
    """max of values[start:stop]; up to seven numbers more are read."""
    best = spread(NOTHING)
    for k in range(start, stop, WIDTH):
        best = larger(best, get(values, k))
    return largest_lane(best)


@kernel
def close_and_top(values, start, stop):
    """max of values[start:stop]; overwrites values[stop : stop + 8], so the last group is first."""
    put(values, stop, spread(NOTHING))
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
def look_ahead(problem, places, terms):
    """Fetch table rows of the next LP, which memory can do while this one is computed."""
    first = places[AHEAD, 0]
    last = min(first + terms, places[AHEAD, 1])
    fetch(problem, first, last)
    places[AHEAD, 0] = last


@kernel
def fetch(problem, first, last):
    """Ask for the table rows of terms first : last."""
    for t in range(first, last, WIDTH):
        terms = eight_from(problem.rows, t, last - 1)
        for r in range(0, problem.table.shape[1], WIDTH):
            fetch_rows(problem.table, terms, r)


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
    return math.ldexp(1.0, -max(exponent, -1000))


@kernel
def add_up(columns, count, out):
    """out[k] = Σ_r columns[r, k], and NOTHING after the last; returns the largest squared length of
    a column."""
    longest = spread(0.0)
    for k in range(0, count, WIDTH):
        total = length = spread(0.0)
        for r in range(columns.shape[0]):
            entry = get_row(columns, r, k)
            total = total + entry
            length = multiply_add(entry, entry, length)
        # A comparison with what is not a number would drop it silently.
        length = where_larger(spread(FINITE), length, length, spread(math.inf))
        longest = larger(longest, length)
        put(out, k, total)
    put(out, count, spread(NOTHING))
    return largest_lane(longest)
