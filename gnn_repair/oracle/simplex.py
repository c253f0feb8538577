# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""A primal simplex method for the exact-mass LP.

    max γ   s.t.   γ + s_r − Σ_a x_a D_{a,r} = d_r,   Σ_{a∈g} x_a = 1,   x, s ≥ 0

The basis has C class rows and B mass rows; the target's own row has d = HUGE and is never tight. γ
is always basic. The slack of a rival that is not tight is basic too, at the position of its class,
and its column of the basis inverse is a unit vector; only the inverse's other columns, the *slots*,
are stored: slot g for mass row g < B, slots B … p−1 for the tight rivals.

The dual is the row of γ: w_r = inverse[slot of r, lead] ≥ 0 with Σ w = 1, u_g = inverse[g, lead],
and column a of group g improves γ at the rate w·D_a − u_g. Everything is scaled so that the longest
column is near one; the tolerances below are relative to that.
"""

from typing import Any

import numpy as np
from numpy import uint64

from gnn_repair.oracle.vectors.lanes import WIDTH, cold_kernel, kernel, kernel_once
from gnn_repair.oracle.vectors.rows import (
    add_multiple,
    add_scores,
    close_and_top,
    copy_row,
    exchange_and_divide,
    fill,
    fill_row,
    find,
    set_multiple,
    shortest_step,
    steepest_within,
)
from gnn_repair.oracle.vectors.terms import look_ahead, set_step
from gnn_repair.oracle.workspace import (
    BOUNDS,
    DUAL,
    GAMMA,
    GROUP,
    HEAD,
    HUGE,
    INVERSE,
    LOOSE,
    OFFSET,
    SLACK,
    STEP,
    TIGHT,
    VALUES,
)

RATE = 1e-12
"""A column enters when it improves γ faster than this: some thousand roundings of a sum of numbers
about one, and a tenth of the gap that an answer may have."""
PIVOT = 1e-11
"""Smallest pivot element: dividing by less would blow rounding up beyond the gap that an answer may
have."""
FEASIBLE = 1e-13
"""How far below zero the ratio test lets a basic variable go in exchange for a larger pivot: x ≥ 0
is restored when the answer is written, and it costs γ no more than this."""
PROGRESS = 1e-14
"""A step that raises γ by less counts as a stall: it is within rounding of none."""
EARLY = 24
"""Terms of the next LP fetched in a step: in the few steps of a small LP, all of another small
one."""
UNBOUNDED = 1e-100 * HUGE
"""A shortest step beyond this comes from HUGE alone: nothing blocks. Steps are ratios of numbers
about one to pivots of at least PIVOT."""
BLAND_FIRST_SLACK = 1_000_000_000
"""Slacks come after every column in Bland's order, and no LP has so many columns."""
SINGULAR = 1e-14
"""Columns are about one long, so a pivot of a hundred roundings is made of nothing else."""


@kernel
def start(room, groups, c):
    """A promising vertex and its inverse; returns the position of γ.

    Each group takes the column with the best mean margin; ``buffer`` holds the sums. The best worst
    margin would be nearer to the optimum and farther in steps: where many columns mix in the end,
    what is lowest at a vertex says little.
    """
    entries, state, places = room.entries, room.state, room.places
    classes = entries.shape[0]
    # The lanes behind the last position too: what an earlier LP left there must not block a step.
    for i in range(classes, classes + groups + WIDTH):
        state[VALUES, i] = 0.0
    for r in range(classes):
        state[STEP, r] = state[OFFSET, r] if r != c else 0.0
    for g in range(groups - 1, -1, -1):
        low = places[BOUNDS, g]
        j = find(room.buffer, low, close_and_top(room.buffer, low, places[BOUNDS, g + 1]))
        places[HEAD, classes + g] = j
        state[VALUES, classes + g] = 1.0
        for r in range(uint64(classes)):
            state[STEP, r] += entries[r, uint64(j)]
    state[STEP, c] = HUGE
    lead: Any = 0
    for r in range(1, classes):
        if state[STEP, r] < state[STEP, lead]:
            lead = r
    for r in range(uint64(classes)):
        places[HEAD, r] = SLACK - r
        state[LOOSE, r] = 1.0
        state[VALUES, r] = state[STEP, r] - state[STEP, lead]
    places[HEAD, lead], state[VALUES, lead], state[LOOSE, lead] = GAMMA, HUGE, 0.0
    places[TIGHT, groups] = lead
    _invert_start(entries, state, places, groups, classes, lead)
    return lead


@kernel_once
def _invert_start(entries, state, places, groups, classes, lead):
    """The inverse of the first basis: γ, slacks of all rivals but ``lead``, a column a group."""
    for s in range(INVERSE, INVERSE + groups + 1):
        fill_row(state, s, 0, classes + groups, 0.0)
    for r in range(classes):
        state[INVERSE + groups, r] = -1.0
    state[INVERSE + groups, lead] = 1.0
    for g in range(groups):
        j = uint64(places[HEAD, classes + g])
        own = entries[lead, j]
        for r in range(uint64(classes)):
            state[INVERSE + g, r] = entries[r, j] - own
        state[INVERSE + g, lead] = own
        state[INVERSE + g, classes + g] = 1.0


@kernel
def improve(problem, room, groups, count, lead, slots, scale):
    """Pivot until no column and no slack improves γ; returns the number of slots and γ's position.

    A negative number −p says that the method got stuck with p slots (no pivot, or too many).
    """
    state, places = room.state, room.places
    size = room.entries.shape[0] + groups
    stalled = 0
    # Of 44,433 hostile LPs (tests/campaigns/lps.py, seed 0) none took more than two pivots a row
    # of its basis: beyond fifty it goes in circles, and the fallback is quicker.
    for _ in range(50 * size + 200):
        # Twice round the basis without progress is a cycle or near to one: Bland's rule ends it.
        careful = stalled > 2 * size
        look_ahead(problem, places, EARLY)
        for s in range(uint64(slots)):
            state[DUAL, s] = state[INVERSE + s, uint64(lead)]
        rate = _price(room, groups, count, slots)
        enter, rate = _entering(rate, room, groups, slots, careful)
        if rate <= RATE:
            return slots, lead
        if enter < 0:  # a slack: its slot of the inverse
            copy_row(state, STEP, INVERSE + SLACK - enter, size)
        else:
            set_step(problem, room, groups, enter, slots, scale)
        leave = _leaving(room, size, careful)
        if leave < 0:
            return -slots, lead
        inverse = 1.0 / state[STEP, leave]
        length = max(state[VALUES, leave], 0.0) * inverse
        slots = _pivot(state, places, size, enter, leave, length, inverse, slots)
        if enter < 0:
            slots = _go_home(state, places, enter, leave, slots)
            lead = lead if places[HEAD, lead] == GAMMA else leave
        stalled = 0 if length * rate > PROGRESS else stalled + 1
    return -slots, lead


@kernel_once
def _price(room, groups, count, slots):
    """buffer[k] = w·D_k − u_g for every column k; returns the largest.

    Columns up to the last bound are ordered by group, those beyond are not.
    """
    state, places, rates = room.state, room.places, room.buffer
    for g in range(groups):
        fill(rates, places[BOUNDS, g], places[BOUNDS, g + 1], -state[DUAL, g])
    for k in range(places[BOUNDS, groups], count):
        rates[k] = -state[DUAL, room.labels[GROUP, k]]
    return add_scores(room, groups, count, slots)


@kernel_once
def _entering(rate, room, groups, slots, careful):
    """The variable with the best rate (Dantzig), or the first that improves (Bland).

    ``rate`` is the best of the columns. Returns (column j, rate) or (SLACK − slot, rate).
    """
    state, places = room.state, room.places
    enter: Any = -1
    if careful and rate > RATE:
        enter = 0
        while room.buffer[enter] <= RATE:
            enter += 1
        return enter, rate
    for s in range(groups, slots):
        better = -state[DUAL, s] > rate
        if careful and enter < -1 and -state[DUAL, s] > RATE:
            # Bland's order is by rival, not by slot.
            better = places[TIGHT, s] < places[TIGHT, SLACK - enter]
        if better:
            rate, enter = -state[DUAL, s], SLACK - s
    if enter == -1 and rate > RATE:
        enter = find(room.buffer, np.int64(0), rate)
    return enter, rate


@kernel_once
def _leaving(room, size, careful):
    """The position that blocks the step: Harris' two passes, or Bland's rule; −1 if none does."""
    state, places = room.state, room.places
    shortest = shortest_step(state, size, 0.0 if careful else FEASIBLE, PIVOT)
    leave: Any = -1
    if careful:
        for i in range(size):
            value, fall = state[VALUES, i], state[STEP, i]
            first = leave < 0 or _order(places[HEAD, i]) < _order(places[HEAD, leave])
            if fall > PIVOT and value / fall <= shortest and first and value < HUGE:
                leave = i
        return leave
    steepest = steepest_within(state, size, shortest, room.buffer)
    if steepest > PIVOT and shortest < UNBOUNDED:
        leave = find(room.buffer, np.int64(0), steepest)
    return leave


@kernel_once
def _order(variable):
    """Bland's order: columns first, then slacks by rival."""
    return variable if variable >= 0 else BLAND_FIRST_SLACK - variable


@kernel_once
def _pivot(state, places, size, enter, leave, length, inverse, slots):
    """Exchange the variable at ``leave`` for ``enter``; returns the new number of slots."""
    out, at = places[HEAD, leave], uint64(leave)
    add_multiple(state, VALUES, -length, STEP, size)
    state[VALUES, at] = length
    for s in range(uint64(INVERSE), uint64(INVERSE + slots)):
        factor = state[s, at] * inverse
        add_multiple(state, s, -factor, STEP, size)
        state[s, at] = factor
    if out <= SLACK:
        # The leaving slack's column of the inverse was a unit vector and becomes a slot.
        places[TIGHT, slots], state[LOOSE, at] = leave, 0.0
        set_multiple(state, INVERSE + slots, -inverse, STEP, size)
        state[INVERSE + slots, at] = inverse
        slots += 1
    places[HEAD, at] = enter
    return slots


@kernel_once
def _go_home(state, places, enter, leave, slots):
    """A slack that has entered at ``leave`` changes places with what is at its rival's position,
    and its slot ends; returns the new number of slots."""
    slot, last = SLACK - enter, slots - 1
    home = places[TIGHT, slot]
    places[TIGHT, slot] = places[TIGHT, last]
    copy_row(state, INVERSE + slot, INVERSE + last, state.shape[1])
    for s in range(INVERSE, INVERSE + last):
        state[s, leave], state[s, home] = state[s, home], state[s, leave]
    state[VALUES, leave], state[VALUES, home] = state[VALUES, home], state[VALUES, leave]
    places[HEAD, leave], places[HEAD, home] = places[HEAD, home], SLACK - home
    state[LOOSE, home] = 1.0
    return last


@cold_kernel
def refactor(room, groups, slots):
    """Invert the basis afresh and recompute the basic solution; False if it is singular."""
    classes, full, state, places = room.entries.shape[0], room.full, room.state, room.places
    size = classes + groups
    for i in range(size):
        fill_row(full, i, 0, 2 * size, 0.0)
    for i in range(size):
        full[i, size + i] = 1.0
        variable = places[HEAD, i]
        if variable <= SLACK:
            full[SLACK - variable, i] = 1.0
            continue
        for r in range(classes):
            full[r, i] = 1.0 if variable == GAMMA else -room.entries[r, variable]
        if variable >= 0:
            full[classes + room.labels[GROUP, variable], i] = 1.0
    if not _eliminate(full, size):
        return False
    for i in range(size):
        total = 0.0
        # The target's column is a unit vector on both sides: its HUGE reaches its own slack only.
        for r in range(size):
            total += full[i, size + r] * (state[OFFSET, r] if r < classes else 1.0)
        state[VALUES, i] = total if state[VALUES, i] < HUGE else HUGE
        for s in range(slots):
            row = classes + s if s < groups else places[TIGHT, s]
            state[INVERSE + s, i] = full[i, size + row]
    return True


@kernel_once
def _eliminate(full, size):
    """Gauss–Jordan with row exchanges on [matrix | identity]; False if the matrix is singular."""
    for i in range(size):
        best = i
        for k in range(i + 1, size):
            if abs(full[k, i]) > abs(full[best, i]):
                best = k
        pivot = full[best, i]
        if abs(pivot) < SINGULAR:
            return False
        exchange_and_divide(full, i, best, 2 * size, pivot)
        for j in range(size):
            if j != i:
                add_multiple(full, j, -full[j, i], i, 2 * size)
    return True
