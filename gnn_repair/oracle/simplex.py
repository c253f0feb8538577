# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""A primal simplex method for the exact-mass LP, and the memory it works in.

    max γ   s.t.   γ + s_r − Σ_a x_a D_{a,r} = d_r,   Σ_{a∈g} x_a = 1,   x, s ≥ 0

A *column* of term a for target class c holds D_{a,r} = m_g (ℓ_{a,c} − ℓ_{a,r}), one number per
class r, that of the target zero. The basis has C class rows and B mass rows; the target's own row
has d = HUGE and is never tight. γ is always basic. The slack of a rival that is not tight is basic
too, at the position of its class, and its column of the basis inverse is a unit vector; only the
inverse's other columns, the *slots*, are stored: slot g for mass row g < B, slots B … p−1 for the
tight rivals.

The dual is the row of γ: w_r = inverse[slot of r, lead] ≥ 0 with Σ w = 1, u_g = inverse[g, lead],
and column a of group g improves γ at the rate w·D_a − u_g. Everything is scaled so that the longest
column is near one; the tolerances below are relative to that.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy import int64, uint64

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
HUGE = 1e300
"""Stands for a value that never blocks a step: γ may take any, and the target is no rival."""
UNBOUNDED = 1e-100 * HUGE
"""A shortest step beyond this comes from HUGE alone: nothing blocks. Steps are ratios of numbers
about one to pivots of at least PIVOT."""
BLAND_FIRST_SLACK = 1_000_000_000
"""Slacks come after every column in Bland's order, and no LP has so many columns."""
SINGULAR = 1e-14
"""Columns are about one long, so a pivot of a hundred roundings is made of nothing else."""
CANDIDATES = 48
"""Columns that a pass over a large LP may add, about: a few times the size of most bases, so that
one or two passes suffice, and few enough to price at once."""

# Kernels own no memory, so reference counting is switched off. Passing many arrays costs more than
# solving a small LP, so what runs once per LP or pivot is inlined; what runs rarely is not.
ENTRY = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True, "error_model": "numpy"}
_OPTIONS = {**ENTRY, "no_cpython_wrapper": True}
cold_kernel = numba.njit(**_OPTIONS)
kernel = numba.njit(**_OPTIONS, forceinline=True)
# What is called from one place only is compiled there and nowhere else.
kernel_once = numba.njit(**_OPTIONS, inline="always")
# Without "no NaN" and "no signed zero" the compiler may not vectorise a maximum.
loop = numba.njit(**_OPTIONS, forceinline=True, fastmath={"contract", "nnan", "nsz"})

# Memory -------------------------------------------------------------------------------------------

GAMMA = -1
SLACK = -2
"""Numbers of variables that are no columns: γ, and SLACK − r for the slack of class r."""
OFFSET, VALUES, STEP, DUAL, MASS, TOPS, LOOSE, INVERSE = range(8)
"""Rows of ``state``."""
HEAD, TIGHT, LOWS, BOUNDS, CHOSEN = range(5)
"""Rows of ``places``."""
GROUP, TERM = range(2)
"""Rows of ``labels``."""


class Room(NamedTuple):
    """The memory one thread works in, well under a megabyte; n = C + G positions."""

    entries: Any
    """[C, capacity]: D_{a,r} of the columns the simplex method works on, scaled."""
    labels: Any
    """[2, capacity] int64: of each column, the GROUP and the exposure's TERM."""
    state: Any
    """[INVERSE + n, n]: where the method stands.

    OFFSET [C]: d_r ≥ 0, less the smallest, scaled; HUGE for the target.
    VALUES [n]: the basic solution, HUGE for γ and the target's slack.
    STEP [n]: how the basic variables fall as the entering one rises; also scratch.
    DUAL [slot]: u_g and w_r.
    MASS [G]: m_g of each group that is present.
    TOPS [G]: max_a w·D_a of each; also scratch.
    LOOSE [C]: 1 where the slack of class r is basic, else 0.
    INVERSE + slot [n]: the stored columns of the basis inverse, by position.
    """
    places: Any
    """[5, n + 1] int64.

    HEAD [n]: the variable at each position: a column j ≥ 0, GAMMA, or SLACK − r at r.
    TIGHT [slot ≥ B]: the rival of each slot.
    LOWS [G + 1]: where the terms of each group that is present begin, and the end.
    BOUNDS [G + 1]: the first columns, by group.
    CHOSEN [n]: scratch.
    """
    buffer: Any
    """[capacity]: a number per column."""
    full: Any
    """[n, 2n]: to invert the basis afresh."""


def new_room(classes: int, groups: int) -> Room:
    """Memory for LPs of C classes and up to G groups."""
    size = classes + groups
    capacity = 6 * CANDIDATES + 8 * size
    return Room(
        np.zeros((classes, capacity)),
        np.zeros((2, capacity), np.int64),
        np.zeros((INVERSE + size, size + 1)),
        np.zeros((CHOSEN + 1, size + 1), np.int64),
        np.zeros(max(capacity, size)),
        np.zeros((size, 2 * size)),
    )


# Loops --------------------------------------------------------------------------------------------

# Places are unsigned: a signed one may count from the end, and a loop over it would gather instead
# of stream.


@loop
def fill(values, start, stop, number):
    """values[start:stop] = number."""
    for k in range(uint64(start), uint64(stop)):
        values[k] = number


@loop
def set_multiple(array, into, factor, origin, count):
    """array[into, :count] = factor · array[origin, :count]."""
    new, old = array[uint64(into)], array[uint64(origin)]
    for k in range(uint64(count)):
        new[k] = factor * old[k]


@loop
def add_multiple(array, into, factor, origin, count):
    """array[into, :count] += factor · array[origin, :count]."""
    new, old = array[uint64(into)], array[uint64(origin)]
    for k in range(uint64(count)):
        new[k] += factor * old[k]


@loop
def top(values, start, stop):
    """max of values[start:stop]."""
    best = -math.inf
    for k in range(uint64(start), uint64(stop)):
        best = max(best, values[k])
    return best


@kernel
def find(values, start, value):
    """The first place from ``start`` on that holds ``value`` (it is known to be there)."""
    k = uint64(start)
    while values[k] != value:
        k += uint64(1)
    return int64(k)


# The method ---------------------------------------------------------------------------------------


@kernel
def start(room, groups, c):
    """A promising vertex and its inverse; returns the position of γ.

    Each group takes the column with the best mean margin; ``buffer`` holds the sums. The best worst
    margin would be nearer to the optimum and farther in steps: where many columns mix in the end,
    what is lowest at a vertex says little.
    """
    entries, state, places = room.entries, room.state, room.places
    classes = entries.shape[0]
    for r in range(classes):
        state[STEP, r] = state[OFFSET, r] if r != c else 0.0
    for g in range(groups):
        low = places[BOUNDS, g]
        j = find(room.buffer, low, top(room.buffer, low, places[BOUNDS, g + 1]))
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
    # The inverse of this basis: γ, slacks of all rivals but ``lead``, a column per group.
    for s in range(INVERSE, INVERSE + groups + 1):
        fill(state[s], 0, classes + groups, 0.0)
    for r in range(classes):
        state[INVERSE + groups, r] = -1.0
    state[INVERSE + groups, lead] = 1.0
    for g in range(groups):
        j = places[HEAD, classes + g]
        own = entries[lead, j]
        for r in range(uint64(classes)):
            state[INVERSE + g, r] = entries[r, uint64(j)] - own
        state[INVERSE + g, lead] = own
        state[INVERSE + g, classes + g] = 1.0
    return lead


@kernel
def improve(room, groups, count, lead, slots):
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
        for s in range(uint64(slots)):
            state[DUAL, s] = state[INVERSE + s, uint64(lead)]
        enter, rate = _entering(_price(room, groups, count, slots), room, groups, slots, careful)
        if rate <= RATE:
            return slots, lead
        if enter < 0:  # a slack: its slot of the inverse
            set_multiple(state, STEP, 1.0, INVERSE + SLACK - enter, size)
        else:
            _set_step(room, groups, enter, slots)
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


@loop
def _price(room, groups, count, slots):
    """buffer[k] = w·D_k − u_g for every column k; returns the largest.

    Columns up to the last bound are ordered by group, those beyond are not.
    """
    state, places, rates = room.state, room.places, room.buffer
    for g in range(groups):
        fill(rates, places[BOUNDS, g], places[BOUNDS, g + 1], -state[DUAL, g])
    for k in range(places[BOUNDS, groups], count):
        rates[k] = -state[DUAL, room.labels[GROUP, k]]
    for slot in range(uint64(groups), uint64(slots)):
        w, row = state[DUAL, slot], room.entries[uint64(places[TIGHT, slot])]
        for k in range(uint64(count)):
            rates[k] += w * row[k]
    return top(rates, 0, count)


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


@loop
def _set_step(room, groups, enter, slots):
    """STEP = B⁻¹ (−D_j; e_g) for column j = ``enter``."""
    state, entries, j = room.state, room.entries, uint64(enter)
    classes, g = uint64(entries.shape[0]), uint64(room.labels[GROUP, j])
    size = classes + uint64(groups)
    set_multiple(state, STEP, 1.0, uint64(INVERSE) + g, size)
    for s in range(uint64(groups), uint64(slots)):
        entry = entries[uint64(room.places[TIGHT, s]), j]
        add_multiple(state, STEP, -entry, uint64(INVERSE) + s, size)
    step, loose = state[STEP], state[LOOSE]
    for r in range(classes):
        step[r] -= loose[r] * entries[r, j]


@kernel_once
def _leaving(room, size, careful):
    """The position that blocks the step: Harris' two passes, or Bland's rule; −1 if none does."""
    state, places = room.state, room.places
    shortest = _shortest_step(state, size, 0.0 if careful else FEASIBLE)
    leave: Any = -1
    if careful:
        for i in range(size):
            value, fall = state[VALUES, i], state[STEP, i]
            first = leave < 0 or _order(places[HEAD, i]) < _order(places[HEAD, leave])
            if fall > PIVOT and value / fall <= shortest and first and value < HUGE:
                leave = i
        return leave
    if shortest < UNBOUNDED:
        steepest = PIVOT
        for i in range(size):
            if state[VALUES, i] <= shortest * state[STEP, i] and state[STEP, i] > steepest:
                steepest, leave = state[STEP, i], i
    return leave


@loop
def _shortest_step(state, size, slack):
    """min_i (VALUES_i + slack) / STEP_i over the steps above PIVOT; HUGE if there are none."""
    values, step, shortest = state[VALUES], state[STEP], HUGE
    for i in range(uint64(size)):
        ratio = (values[i] + slack) / step[i]
        shortest = min(shortest, ratio if step[i] > PIVOT else HUGE)
    return shortest


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
    set_multiple(state, INVERSE + slot, 1.0, INVERSE + last, state.shape[1])
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
        fill(full[i], 0, 2 * size, 0.0)
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
        for k in range(2 * size):
            full[best, k], full[i, k] = full[i, k], full[best, k] / pivot
        for j in range(size):
            if j != i:
                add_multiple(full, j, -full[j, i], i, 2 * size)
    return True
