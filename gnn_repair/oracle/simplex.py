"""A primal simplex method for the exact-mass LP.

    max γ   s.t.   γ + s_r − Σ_a x_a D_{a,r} = d_r,   Σ_{a∈g} x_a = 1,   x, s ≥ 0

The basis has R rival rows and B mass rows. γ is always basic. The slack of a rival that is not
tight is basic too, and its column of the basis inverse is a unit vector; only the inverse's other
columns, the *slots*, are stored: slot g for mass row g < B, slots B … p−1 for the tight rivals.

The dual is the row of γ: w_r = inverse[slot of r, lead] ≥ 0 with Σ w = 1, u_g = inverse[g, lead],
and column a of group g improves γ at the rate w·D_a − u_g. Everything is scaled so that
|D| ≤ 1; the tolerances below are relative to that.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy import uint64

from gnn_repair.oracle.pricing import cold_kernel, fast_kernel, find, kernel, score, top, worst

GAMMA = -1
SLACK = -2

RATE = 1e-12
"""A column enters when it improves γ faster than this."""
PIVOT = 1e-11
"""Smallest pivot element."""
FEASIBLE = 1e-13
"""How far below zero the ratio test lets a basic variable go in exchange for a larger pivot."""
PROGRESS = 1e-14
"""A step that raises γ by less counts as a stall."""


class Columns(NamedTuple):
    """The columns the method works on, rival-major."""

    entries: Any
    """[R, capacity]: D_{a,r}, scaled."""
    group: Any
    """[capacity] int64: the group of each column."""
    term: Any
    """[capacity] int64: the exposure's term behind each column."""


class Basis(NamedTuple):
    """Where the method stands; n = R + B positions."""

    groups: Any
    """B."""
    fixed: Any
    """[R]: d_r ≥ 0, less the smallest, scaled."""
    head: Any
    """[n] int64: the variable at each position: a column j ≥ 0, GAMMA, or SLACK − r."""
    place: Any
    """[R] int64: the position of rival r's slack, or −1 when r is tight."""
    tight: Any
    """[n] int64: the rival of each slot ≥ B."""
    inverse: Any
    """[slot, position]: the stored columns of the basis inverse."""
    values: Any
    """[n]: the basic solution."""
    step: Any
    """[n]: how the basic variables fall as the entering one rises; also scratch."""
    dual: Any
    """[slot]: u_g and w_r."""
    full: Any
    """[n, 2n]: room to invert the basis afresh."""


def new_basis(rivals: int, groups: int) -> Basis:
    """Room for a basis of R rivals and up to ``groups`` groups."""
    size = rivals + groups
    return Basis(
        groups,
        np.empty(rivals),
        np.empty(size, np.int64),
        np.empty(rivals, np.int64),
        np.empty(size, np.int64),
        np.empty((size, size)),
        np.empty(size),
        np.empty(size),
        np.empty(size),
        np.empty((size, 2 * size)),
    )


@cold_kernel
def start(columns, bounds, basis, buffer):
    """The greedy vertex and its inverse; returns the position of γ.

    Group after group takes the column with the best worst margin given those already chosen.
    bounds [B + 1]: columns of group g are bounds[g] : bounds[g+1].
    """
    rivals, reached = basis.fixed.shape[0], basis.step
    groups = basis.groups
    for r in range(rivals):
        reached[r] = basis.fixed[r]
    for g in range(groups):
        count = bounds[g + 1] - bounds[g]
        worst(columns.entries, bounds[g], count, reached, buffer)
        j = bounds[g] + find(buffer, np.int64(0), top(buffer, np.int64(0), count))
        basis.head[rivals + g] = j
        basis.values[rivals + g] = 1.0
        for r in range(rivals):
            reached[r] += columns.entries[r, j]
    lead: Any = np.int64(0)
    for r in range(1, rivals):
        if reached[r] < reached[lead]:
            lead = r
    for r in range(rivals):
        basis.head[r] = SLACK - r
        basis.place[r] = r
        basis.values[r] = reached[r] - reached[lead]
    basis.head[lead], basis.place[lead], basis.values[lead] = GAMMA, -1, reached[lead]
    basis.tight[groups] = lead
    _invert_start(columns.entries, groups, rivals, lead, basis.head, basis.inverse)
    return lead


@kernel
def _invert_start(entries, groups, rivals, lead, head, inverse):
    """The inverse of the greedy basis: γ, slacks of all rivals but ``lead``, a column a group."""
    for i in range(rivals + groups):
        inverse[groups, i] = -1.0 if i < rivals else 0.0
    inverse[groups, lead] = 1.0
    for g in range(groups):
        j = head[rivals + g]
        own = entries[lead, j]
        for r in range(rivals):
            inverse[g, r] = entries[r, j] - own
        for h in range(groups):
            inverse[g, rivals + h] = 0.0
        inverse[g, lead] = own
        inverse[g, rivals + g] = 1.0


@cold_kernel
def improve(columns, bounds, count, basis, lead, slots, buffer):
    """Pivot until no column and no slack improves γ; returns the number of slots.

    A negative return −p says that the method got stuck with p slots (no pivot, or too many).
    """
    groups = basis.groups
    size = basis.fixed.shape[0] + groups
    stalled = 0
    for _ in range(50 * size + 200):
        careful = stalled > 2 * size
        for s in range(slots):
            basis.dual[s] = basis.inverse[s, lead]
        score(columns.entries, np.int64(0), count, basis.tight, groups, slots, basis.dual, buffer)
        _shift(columns.group, bounds, count, groups, basis.dual, buffer)
        enter, rate = _entering(count, groups, slots, basis.tight, basis.dual, buffer, careful)
        if rate <= RATE:
            return slots
        if enter >= 0:
            _column(columns.entries, enter, columns.group[enter], slots, basis)
        else:
            for i in range(size):
                basis.step[i] = basis.inverse[SLACK - enter, i]
        leave = _leaving(size, basis.step, basis.values, basis.head, lead, careful, buffer)
        if leave < 0:
            return -slots
        before = basis.values[lead]
        slots = _pivot(enter, leave, slots, basis)
        stalled = 0 if basis.values[lead] > before + PROGRESS else stalled + 1
    return -slots


@fast_kernel
def _shift(group, bounds, count, groups, dual, rates):
    """rates[k] −= u_g of column k; columns beyond bounds[B] are in no order."""
    for g in range(groups):
        for k in range(uint64(bounds[g]), uint64(bounds[g + 1])):
            rates[k] -= dual[g]
    for k in range(uint64(bounds[groups]), uint64(count)):
        rates[k] -= dual[group[k]]


@kernel
def _entering(count, groups, slots, tight, dual, rates, careful):
    """The variable with the best rate (Dantzig), or the first that improves (Bland).

    Returns (column j, rate) or (SLACK − slot, rate).
    """
    rate = top(rates, np.int64(0), count)
    if careful and rate > RATE:
        j = np.int64(0)
        while rates[j] <= RATE:
            j += 1
        return j, rate
    enter: Any = np.int64(-1)
    for s in range(groups, slots):
        better = -dual[s] > rate
        if careful and enter < -1 and -dual[s] > RATE:
            better = tight[s] < tight[SLACK - enter]  # Bland's order is by rival, not by slot
        if better:
            rate, enter = -dual[s], SLACK - s
    if enter == -1:
        enter = find(rates, np.int64(0), rate)
    return enter, rate


@kernel
def _column(entries, j, g, slots, basis):
    """step = B⁻¹ (−D_j; e_g): how the basic variables fall when column j enters."""
    step, inverse, place = basis.step, basis.inverse, basis.place
    rivals, groups = place.shape[0], basis.groups
    size = rivals + groups
    for i in range(size):
        step[i] = inverse[g, i]
    for s in range(groups, slots):
        factor = entries[basis.tight[s], j]
        for i in range(size):
            step[i] -= factor * inverse[s, i]
    for r in range(rivals):
        if place[r] >= 0:
            step[place[r]] -= entries[r, j]


@kernel
def _leaving(size, step, values, head, lead, careful, buffer):
    """The position that blocks the step: Harris' two passes, or Bland's rule; −1 if none does."""
    own, step[lead] = step[lead], 0.0  # γ never leaves
    _ratios(size, step, values, 0.0 if careful else FEASIBLE, buffer)
    limit = -top(buffer, np.int64(0), size)
    leave: Any = np.int64(-1)
    if careful:
        for i in range(size):
            blocks = step[i] > PIVOT and values[i] <= limit * step[i]
            if blocks and (leave < 0 or _order(head[i]) < _order(head[leave])):
                leave = i
    else:
        _pivots(size, step, values, limit, buffer)
        pivot = top(buffer, np.int64(0), size)
        if pivot > 0.0:
            leave = find(buffer, np.int64(0), pivot)
    step[lead] = own
    return leave


@fast_kernel
def _ratios(size, step, values, slack, out):
    """out[i] = −(how far the entering variable may rise before position i falls to −slack)."""
    for i in range(uint64(size)):
        out[i] = (values[i] + slack) / (-step[i] if step[i] > PIVOT else -PIVOT)
    for i in range(uint64(size)):
        out[i] = out[i] if step[i] > PIVOT else -1e300


@fast_kernel
def _pivots(size, step, values, limit, out):
    """out[i] = step[i] where position i blocks within ``limit``, else 0."""
    for i in range(uint64(size)):
        out[i] = step[i] if values[i] <= limit * step[i] else 0.0
    for i in range(uint64(size)):
        out[i] = out[i] if step[i] > PIVOT else 0.0


@kernel
def _order(variable):
    """Bland's order: columns first, then slacks by rival."""
    return variable if variable >= 0 else 1_000_000_000 - variable


@kernel
def _pivot(enter, leave, slots, basis):
    """Exchange the variable at ``leave`` for ``enter``; returns the new number of slots."""
    step, values, inverse, tight = basis.step, basis.values, basis.inverse, basis.tight
    size = basis.fixed.shape[0] + basis.groups
    pivot, out = step[leave], basis.head[leave]
    length = max(values[leave], 0.0) / pivot
    for i in range(size):
        values[i] -= length * step[i]
    values[leave] = length
    if out <= SLACK:
        # The leaving slack's column of the inverse was a unit vector and becomes a slot.
        tight[slots] = SLACK - out
        basis.place[SLACK - out] = -1
        for i in range(size):
            inverse[slots, i] = 0.0
        inverse[slots, leave] = 1.0
        slots += 1
    for s in range(slots):
        factor = inverse[s, leave] / pivot
        for i in range(size):
            inverse[s, i] -= factor * step[i]
        inverse[s, leave] = factor
    if enter >= 0:
        basis.head[leave] = enter
        return slots
    s = SLACK - enter
    basis.head[leave] = SLACK - tight[s]
    basis.place[tight[s]] = leave
    slots -= 1
    tight[s] = tight[slots]
    for i in range(size):
        inverse[s, i] = inverse[slots, i]
    return slots
