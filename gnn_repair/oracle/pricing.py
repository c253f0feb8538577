"""Kernels that read terms: load margin columns, score them under a dual w, pick the best.

A *column* of term a for target class c holds D_{a,r} = m_g (ℓ_{a,c} − ℓ_{a,r}), one number per
rival r. Columns are stored rival-major, ``columns[r, k]``, so that every loop below runs along
contiguous terms and vectorises. Work per call: R multiply-adds and 8·R bytes per term.
"""

import math

import numba
import numpy as np
from numpy import uint64

# Kernels own no memory, so reference counting is switched off. Passing many arrays costs more than
# solving a small LP, so what runs once per LP or pivot is inlined; what runs rarely is not.
_ENTRY = {"nogil": True, "cache": True, "_nrt": False, "no_cfunc_wrapper": True}
_OPTIONS = {**_ENTRY, "no_cpython_wrapper": True}
entry_kernel = numba.njit(**_ENTRY)
kernel = numba.njit(**_OPTIONS, forceinline=True)
cold_kernel = numba.njit(**_OPTIONS)
# Sums may be reordered (each LP always in the same way), so reductions vectorise.
fast_kernel = numba.njit(
    **_OPTIONS, forceinline=True, fastmath={"reassoc", "contract", "nsz", "nnan"}
)
# Where short sums over classes must stay in order, so that the compiler runs four of them side by
# side instead of gathering inside each.
scalar_kernel = numba.njit(**_OPTIONS, forceinline=True, fastmath={"contract"})
# Places below are unsigned: a signed one may count from the end, and a loop over it would gather
# instead of stream.


@cold_kernel
def load(rows, start, stop, table, target, mass, columns, at):
    """columns[r, at + k] = mass · (ℓ_c − ℓ_r) for terms start + k; rivals in class order."""
    rivals, low, count = uint64(table.shape[1] - 1), uint64(start), uint64(stop - start)
    c, to, one, two, three = uint64(target), uint64(at), uint64(1), uint64(2), uint64(3)
    whole = count - count % uint64(4)
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
    for k in range(whole, count):
        p = uint64(rows[low + k])
        own = table[p, c]
        for i in range(rivals):
            columns[i, to + k] = mass * (own - table[p, i if i < c else i + one])


@fast_kernel
def top(values, start, stop):
    """max of values[start:stop], which is not empty."""
    low, high = uint64(start), uint64(stop)
    a = b = c = d = values[low]
    while low + uint64(4) <= high:
        # Four running maxima: a single one would wait for itself at every step.
        p, q, s, t = (
            values[low],
            values[low + uint64(1)],
            values[low + uint64(2)],
            values[low + uint64(3)],
        )
        a = p if p > a else a
        b = q if q > b else b
        c = s if s > c else c
        d = t if t > d else d
        low += uint64(4)
    while low < high:
        a = values[low] if values[low] > a else a
        low += uint64(1)
    a, c = a if a > b else b, c if c > d else d
    return a if a > c else c


@fast_kernel
def largest(columns, count, out):
    """max |columns[r, k]| over the first ``count`` columns; ``out`` is scratch."""
    length = uint64(count)
    for k in range(length):
        out[k] = abs(columns[0, k])
    for r in range(uint64(1), uint64(columns.shape[0])):
        for k in range(length):
            value = abs(columns[r, k])
            out[k] = value if value > out[k] else out[k]
    return top(out, np.int64(0), count)


@scalar_kernel
def total_gaps(rows, start, count, table, target, out):
    """out[k] = Σ_r (ℓ_c − ℓ_r) for terms start + k, good enough to pick promising ones."""
    c, classes, low, one = uint64(target), uint64(table.shape[1]), uint64(start), uint64(1)
    scale, whole = float(table.shape[1]), uint64(count - count % 4)
    for k in range(uint64(0), whole, uint64(4)):
        # Four terms at a time keep four sums going.
        p, q = uint64(rows[low + k]), uint64(rows[low + k + one])
        s, t = uint64(rows[low + k + uint64(2)]), uint64(rows[low + k + uint64(3)])
        sum_p = sum_q = sum_s = sum_t = 0.0
        for r in range(classes):
            sum_p += table[p, r]
            sum_q += table[q, r]
            sum_s += table[s, r]
            sum_t += table[t, r]
        out[k], out[k + one] = scale * table[p, c] - sum_p, scale * table[q, c] - sum_q
        out[k + uint64(2)] = scale * table[s, c] - sum_s
        out[k + uint64(3)] = scale * table[t, c] - sum_t
    for k in range(whole, uint64(count)):
        p = uint64(rows[low + k])
        sum_p = 0.0
        for r in range(classes):
            sum_p += table[p, r]
        out[k] = scale * table[p, c] - sum_p


@scalar_kernel
def weighted_gaps(rows, start, count, table, target, rivals, first, last, weights, out):
    """out[k] = Σ_s weights[s] (ℓ_c − ℓ_r), r = rivals[s], over slots first ≤ s < last."""
    c, low, one, begin, end = uint64(target), uint64(start), uint64(1), uint64(first), uint64(last)
    whole = uint64(count - count % 4)
    for k in range(uint64(0), whole, uint64(4)):
        p, q = uint64(rows[low + k]), uint64(rows[low + k + one])
        s, t = uint64(rows[low + k + uint64(2)]), uint64(rows[low + k + uint64(3)])
        own_p, own_q, own_s, own_t = table[p, c], table[q, c], table[s, c], table[t, c]
        sum_p = sum_q = sum_s = sum_t = 0.0
        for slot in range(begin, end):
            w, r = weights[slot], uint64(rivals[slot])
            r = r if r < c else r + one
            sum_p += w * (own_p - table[p, r])
            sum_q += w * (own_q - table[q, r])
            sum_s += w * (own_s - table[s, r])
            sum_t += w * (own_t - table[t, r])
        out[k], out[k + one] = sum_p, sum_q
        out[k + uint64(2)], out[k + uint64(3)] = sum_s, sum_t
    for k in range(whole, uint64(count)):
        p = uint64(rows[low + k])
        sum_p = 0.0
        for slot in range(begin, end):
            r = uint64(rivals[slot])
            sum_p += weights[slot] * (table[p, c] - table[p, r if r < c else r + one])
        out[k] = sum_p


@kernel
def power_of_two(size):
    """The power of two that brings ``size`` into (½, 1]; 1 for size 0."""
    if size <= 0.0:
        return 1.0
    mantissa, exponent = math.frexp(size)
    if mantissa == 0.5:
        exponent -= 1
    return math.ldexp(1.0, -exponent)


@fast_kernel
def score(columns, start, count, rivals, first, last, weights, out):
    """out[k] = Σ_s weights[s] · columns[rivals[s], start + k] over slots first ≤ s < last."""
    low, length = uint64(start), uint64(count)
    s = first
    if (last - first) % 2:
        w, a = weights[s], uint64(rivals[s])
        for k in range(length):
            out[k] = w * columns[a, low + k]
        s += 1
    else:
        for k in range(length):
            out[k] = 0.0
    while s < last:
        w, x, a, b = weights[s], weights[s + 1], uint64(rivals[s]), uint64(rivals[s + 1])
        for k in range(length):
            out[k] += w * columns[a, low + k] + x * columns[b, low + k]
        s += 2


@fast_kernel
def worst(columns, start, count, offset, out):
    """out[k] = min_r (offset[r] + columns[r, start + k]): the margin of putting all mass on k."""
    low, length = uint64(start), uint64(count)
    base = offset[0]
    for k in range(length):
        out[k] = base + columns[0, low + k]
    for r in range(uint64(1), uint64(columns.shape[0])):
        base = offset[r]
        for k in range(length):
            value = base + columns[r, low + k]
            out[k] = value if value < out[k] else out[k]


@kernel
def find(values, start, value):
    """The first place from ``start`` on that holds ``value`` (it is known to be there)."""
    k = start
    while values[k] != value:
        k += 1
    return k
