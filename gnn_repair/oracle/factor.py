# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels that invert a basis afresh when updates have lost too many digits."""

from gnn_repair.oracle.compiling import cold_kernel, kernel_once
from gnn_repair.oracle.vectors.rows import add_multiple, exchange_and_divide, fill_row
from gnn_repair.oracle.workspace import (
    GAMMA,
    GROUP,
    HEAD,
    HUGE,
    INVERSE,
    OFFSET,
    SLACK,
    TIGHT,
    VALUES,
)

SINGULAR = 1e-14
"""Columns are about one long, so a pivot of a hundred roundings is made of nothing else."""


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
