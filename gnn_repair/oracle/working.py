# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels that choose the columns the simplex method works on.

Up to SMALL terms it sees every column. Beyond, it works on a few hundred, and passes over the full
set only certify the answer or find columns that improve it, so a large LP costs two or three reads
of its terms.
"""

from typing import Any, NamedTuple

import numpy as np

from gnn_repair.oracle.pricing import (
    cold_kernel,
    find,
    kernel,
    largest,
    load,
    power_of_two,
    score,
    top,
    total_gaps,
    weighted_gaps,
)
from gnn_repair.oracle.simplex import RATE

SMALL = 128
CANDIDATES = 64
"""Columns that a pass over a large LP may add, about."""
STRIP = 512
"""Terms scored at a time, so that scores stay in the first-level cache."""
LARGE = 8.0
"""A scaled |D| beyond this changes the scale."""


class Terms(NamedTuple):
    """Where an LP's terms are."""

    rows: Any
    """[T] int32: table rows of the exposure's terms."""
    table: Any
    """[R, C]: contributions of the LP's member."""
    target: Any
    """The class c."""
    lows: Any
    """[G + 1] int64: where the terms of each group that is present begin, and the end."""
    mass: Any
    """[G]: m_g of each group that is present."""
    groups: Any
    """B, how many are."""


@cold_kernel
def take_all(problem, columns, bounds, buffer):
    """Load every term; returns how many there are and the scale applied."""
    count = np.int64(0)
    for g in range(problem.groups):
        low, high = problem.lows[g], problem.lows[g + 1]
        bounds[g] = count
        mass = problem.mass[g]
        load(problem.rows, low, high, problem.table, problem.target, mass, columns.entries, count)
        for t in range(low, high):
            columns.group[count] = g
            columns.term[count] = t
            count += 1
    bounds[problem.groups] = count
    return count, _rescale(columns.entries, count, buffer)


@cold_kernel
def sample(problem, columns, bounds, buffer):
    """The columns a large LP begins with: the best of each block under equal rival weights."""
    block, strip = _block(problem)
    count = np.int64(0)
    for g in range(problem.groups):
        bounds[g] = count
        for low in range(problem.lows[g], problem.lows[g + 1], strip):
            length = min(strip, problem.lows[g + 1] - low)
            total_gaps(problem.rows, low, length, problem.table, problem.target, buffer)
            for k in range(np.int64(0), length, block):
                best = top(buffer, k, min(k + block, length))
                columns.group[count], columns.term[count] = g, low + find(buffer, k, best)
                count += 1
    bounds[problem.groups] = count
    for j in range(count):
        _fetch(problem, columns, j, 1.0)
    return count, _rescale(columns.entries, count, buffer)


@kernel
def _rescale(entries, count, buffer):
    """Bring the largest of the first ``count`` columns into (½, 1]; returns the factor."""
    factor = power_of_two(largest(entries, count, buffer))
    for r in range(entries.shape[0]):
        for k in range(count):
            entries[r, k] *= factor
    return factor


@cold_kernel
def sweep(problem, columns, basis, slots, count, scale, tops, buffer):
    """One pass over all terms under the dual: group maxima into tops[0], and the best term of
    each block joins the working columns if it beats its group's threshold u_g.

    Returns the new number of working columns.
    """
    block, strip = _block(problem)
    groups = problem.groups
    for g in range(groups):
        factor = problem.mass[g] * scale
        tops[0, g] = -np.inf
        for low in range(problem.lows[g], problem.lows[g + 1], strip):
            length = min(strip, problem.lows[g + 1] - low)
            weighted_gaps(
                problem.rows, low, length, problem.table, problem.target, basis.tight, groups,
                slots, basis.dual, buffer,
            )  # fmt: skip
            best = top(buffer, np.int64(0), length) * factor
            tops[0, g] = max(tops[0, g], best)
            if best <= basis.dual[g] + RATE:
                continue
            for k in range(np.int64(0), length, block):
                best = top(buffer, k, min(k + block, length))
                if best * factor > basis.dual[g] + RATE:
                    columns.group[count], columns.term[count] = g, low + find(buffer, k, best)
                    _fetch(problem, columns, count, scale)
                    count += 1
    return count


@kernel
def _block(problem):
    """Terms that compete for one place among the columns, and terms scored at a time."""
    block = (problem.lows[problem.groups] - problem.lows[0]) // CANDIDATES + 16 & ~15
    return block, block * max(1, STRIP // block)


@kernel
def _fetch(problem, columns, j, scale):
    """Load the entries of column j."""
    row, c = problem.rows[columns.term[j]], problem.target
    factor = problem.mass[columns.group[j]] * scale
    for i in range(columns.entries.shape[0]):
        r = i if i < c else i + 1
        columns.entries[i, j] = factor * (problem.table[row, c] - problem.table[row, r])


@cold_kernel
def shrink(entries, before, count, basis, slots):
    """Scale everything down when a new column is far larger than the others; returns the factor.

    γ, slacks and rival rows are in the units of D; x and mass rows are not.
    """
    size = 0.0
    for r in range(entries.shape[0]):
        for k in range(before, count):
            size = max(size, abs(entries[r, k]))
    if size <= LARGE:
        return 1.0
    factor = power_of_two(size)
    rivals = entries.shape[0]
    for r in range(rivals):
        basis.fixed[r] *= factor
        for k in range(count):
            entries[r, k] *= factor
    for i in range(rivals + basis.groups):
        if basis.head[i] < 0:
            basis.values[i] *= factor
            for g in range(basis.groups):
                basis.inverse[g, i] *= factor
        else:
            for s in range(basis.groups, slots):
                basis.inverse[s, i] /= factor
    return factor


@cold_kernel
def keep_basic(columns, basis, groups, bounds):
    """Drop all working columns but the basic ones; returns their number."""
    count, last = np.int64(0), np.int64(-1)
    for g in range(groups + 1):
        bounds[g] = 0
    while True:
        at = -1
        for i in range(basis.fixed.shape[0] + groups):
            j = basis.head[i]
            if j > last and (at < 0 or j < basis.head[at]):
                at = i
        if at < 0:
            return count
        last = basis.head[at]
        for r in range(columns.entries.shape[0]):
            columns.entries[r, count] = columns.entries[r, last]
        columns.group[count], columns.term[count] = columns.group[last], columns.term[last]
        basis.head[at] = count
        # Later columns are looked for above ``last``, so the new number must not be found again.
        count += 1


@cold_kernel
def maxima(entries, bounds, basis, groups, slots, tops, buffer):
    """tops[0, g] = max_{a∈g} w·D_a when all terms are among the columns."""
    count = bounds[groups]
    score(entries, np.int64(0), count, basis.tight, groups, slots, basis.dual, buffer)
    for g in range(groups):
        tops[0, g] = top(buffer, bounds[g], bounds[g + 1])
