# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Loops over an exposure's terms, eight at a time: load margin columns, score them under a dual w.

A *column* of term a for target class c holds D_{a,r} = m_g (ℓ_{a,c} − ℓ_{a,r}), one number per
class r; that of the target is zero. Columns are stored class by class, ``columns[r, k]``, so that
every loop over columns runs along contiguous numbers. Work per call: C multiply-adds and 8·C bytes
per term.
"""

from numpy import uint64

from gnn_repair.oracle.vectors.blocks import (
    added,
    eight_from,
    fetch_rows,
    gaps,
    get_column,
    get_rows,
    put_rows,
    transposed,
)
from gnn_repair.oracle.vectors.lanes import (
    WIDTH,
    broadcast,
    get,
    get_part,
    get_row,
    kernel,
    multiply_add,
    put,
    put_row,
)
from gnn_repair.oracle.vectors.rows import NOTHING
from gnn_repair.oracle.workspace import (
    AHEAD,
    DUAL,
    GROUP,
    INVERSE,
    LOOSE,
    MASS,
    STEP,
    TERM,
    TIGHT,
)

# Places below are unsigned: a signed one may count from the end, and a loop over it would gather
# instead of stream.

DISTANCE = 128
"""Terms between the one that is read and the one that is asked for, where tables are large: memory
answers about as late as so many terms take to copy."""


@kernel
def load_columns(problem, start, count, masses, columns):
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
        terms, total = eight_from(problem.rows, start + k, start + count - 1), broadcast(0.0)
        for r in range(0, classes, WIDTH):
            turned = transposed(get_rows(problem.table, terms, r, classes - r))
            put_rows(room.copies, base + r, k, classes - r, turned)
            total = total + added(turned)
        own = get_row(room.copies, base + problem.target, k)
        put(room.buffer, k, broadcast(float(classes)) * own - total)
    put(room.buffer, count, broadcast(NOTHING))


@kernel
def score_terms(room, base, c, count, groups, slots):
    """buffer[k] = w·(ℓ_c − ℓ) of the first ``count`` copies from row ``base`` on, w the dual."""
    state, places, copies, out = room.state, room.places, room.copies, room.buffer
    for k in range(0, count, 2 * WIDTH):
        own, other = get_row(copies, base + c, k), get_row(copies, base + c, k + WIDTH)
        p = q = broadcast(0.0)
        for slot in range(uint64(groups), uint64(slots)):
            w, r = broadcast(state[DUAL, slot]), places[TIGHT, slot]
            p = multiply_add(w, own - get_row(copies, base + r, k), p)
            q = multiply_add(w, other - get_row(copies, base + r, k + WIDTH), q)
        put(out, k, p)
        put(out, k + WIDTH, q)
    put(out, count, broadcast(NOTHING))


@kernel
def set_step(problem, room, groups, enter, slots, scale):
    """STEP = B⁻¹ (−D_j; e_g) for column j = ``enter``."""
    entries, state, places = room.entries, room.state, room.places
    classes = entries.shape[0]
    g, row = room.labels[GROUP, enter], problem.rows[room.labels[TERM, enter]]
    own, factor = broadcast(problem.table[row, problem.target]), broadcast(state[MASS, g] * scale)
    for i in range(0, classes + groups, WIDTH):
        fall = get_row(state, INVERSE + g, i)
        for s in range(uint64(groups), uint64(slots)):
            entry = broadcast(-entries[uint64(places[TIGHT, s]), uint64(enter)])
            fall = multiply_add(entry, get_row(state, INVERSE + s, i), fall)
        gap = factor * (own - get_part(problem.table, row, i, classes - i))
        put_row(state, STEP, i, fall - get_row(state, LOOSE, i) * gap)


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
