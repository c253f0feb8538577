# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels that invert a basis afresh when updates have lost too many digits."""

from gnn_repair.oracle.pricing import cold_kernel
from gnn_repair.oracle.simplex import GAMMA, SLACK


@cold_kernel
def refactor(columns, slots, basis):
    """Invert the basis afresh and recompute the basic solution; False if it is singular."""
    rivals, groups, full = basis.fixed.shape[0], basis.groups, basis.full
    size = rivals + groups
    for i in range(size):
        for k in range(2 * size):
            full[i, k] = 0.0
    for i in range(size):
        full[i, size + i] = 1.0
        variable = basis.head[i]
        if variable <= SLACK:
            full[SLACK - variable, i] = 1.0
            continue
        for r in range(rivals):
            full[r, i] = 1.0 if variable == GAMMA else -columns.entries[r, variable]
        if variable >= 0:
            full[rivals + columns.group[variable], i] = 1.0
    if not _eliminate(full, size):
        return False
    for i in range(size):
        basis.values[i] = 0.0
        for r in range(size):
            basis.values[i] += full[i, size + r] * (basis.fixed[r] if r < rivals else 1.0)
        for s in range(slots):
            row = rivals + s if s < groups else basis.tight[s]
            basis.inverse[s, i] = full[i, size + row]
    return True


@cold_kernel
def _eliminate(full, size):
    """Gauss–Jordan with row exchanges on [matrix | identity]; False if the matrix is singular."""
    for i in range(size):
        best = i
        for k in range(i + 1, size):
            if abs(full[k, i]) > abs(full[best, i]):
                best = k
        if abs(full[best, i]) < 1e-14:
            return False
        for k in range(2 * size):
            full[i, k], full[best, k] = full[best, k], full[i, k]
        pivot = full[i, i]
        for k in range(2 * size):
            full[i, k] /= pivot
        for j in range(size):
            factor = full[j, i]
            if j != i and factor != 0.0:
                for k in range(2 * size):
                    full[j, k] -= factor * full[i, k]
    return True
