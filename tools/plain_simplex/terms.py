# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""``gnn_repair.oracle.vectors.terms`` as plain numba loops; see there for what each does.

Asking for memory ahead of its use has no plain form, so ``look_ahead`` does nothing.
"""

from numpy import uint64

from gnn_repair.oracle.workspace import (
    DUAL,
    GROUP,
    INVERSE,
    LOOSE,
    MASS,
    STEP,
    TERM,
    TIGHT,
)
from tools.plain_simplex.compiling import kernel
from tools.plain_simplex.rows import add_multiple, copy_row, fill


@kernel
def load_columns(problem, start, count, masses, columns):
    table, target = problem.table, uint64(problem.target)
    for k in range(uint64(count)):
        row = table[uint64(problem.rows[uint64(start) + k])]
        own, mass = row[target], masses[k]
        for r in range(uint64(table.shape[1])):
            columns[r, k] = mass * (own - row[r])


@kernel
def copy_terms(problem, start, count, room, base):
    table, copies, classes = problem.table, room.copies, problem.table.shape[1]
    for k in range(uint64(count)):
        row, total = table[uint64(problem.rows[uint64(start) + k])], 0.0
        for r in range(uint64(classes)):
            copies[uint64(base) + r, k] = row[r]
            total += row[r]
        room.buffer[k] = float(classes) * row[uint64(problem.target)] - total


@kernel
def score_terms(room, base, c, count, groups, slots):
    copies, out = room.copies, room.buffer
    own = copies[uint64(base + c)]
    fill(out, 0, count, 0.0)
    for slot in range(uint64(groups), uint64(slots)):
        w, row = room.state[DUAL, slot], copies[uint64(base + room.places[TIGHT, slot])]
        for k in range(uint64(count)):
            out[k] += w * (own[k] - row[k])


@kernel
def set_step(problem, room, groups, enter, slots, scale):
    state, classes = room.state, uint64(room.entries.shape[0])
    g = uint64(room.labels[GROUP, enter])
    copy_row(state, STEP, uint64(INVERSE) + g, classes + uint64(groups))
    for s in range(uint64(groups), uint64(slots)):
        entry = room.entries[uint64(room.places[TIGHT, s]), uint64(enter)]
        add_multiple(state, STEP, -entry, uint64(INVERSE) + s, classes + uint64(groups))
    row = problem.table[uint64(problem.rows[uint64(room.labels[TERM, enter])])]
    own, factor = row[uint64(problem.target)], state[MASS, g] * scale
    step, loose = state[STEP], state[LOOSE]
    for r in range(classes):
        step[r] -= loose[r] * (factor * (own - row[r]))


@kernel
def look_ahead(problem, places, terms):
    pass


@kernel
def fetch(problem, first, last):
    pass
