# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels that solve one LP after another, straight from an exposure's tables."""

from typing import Any, NamedTuple

import numpy as np

from gnn_repair.oracle.factor import refactor
from gnn_repair.oracle.pricing import cold_kernel, entry_kernel, find, kernel
from gnn_repair.oracle.simplex import Basis, Columns, improve, new_basis, start
from gnn_repair.oracle.working import (
    CANDIDATES,
    SMALL,
    STRIP,
    Terms,
    keep_basic,
    maxima,
    sample,
    shrink,
    sweep,
    take_all,
)

OPTIMAL, FALLBACK, FIXED, FAILED = 0, 1, 2, 3
"""Status codes; a kernel's FAILED asks for the fallback."""
ACCEPT = 1e-11
"""Largest accepted gap between bound and margin, relative to the largest |D|."""
ROUNDS = 60
"""Passes over a large LP before the fallback."""
REPAIRS = 3
"""Fresh inversions before the fallback."""


class Room(NamedTuple):
    """The memory one thread works in: a few megabytes, whatever the exposure's size."""

    columns: Columns
    """The columns the simplex method works on."""
    basis: Basis
    """Its state."""
    lows: Any
    """[G + 1] int64, see :class:`Terms`."""
    mass: Any
    """[G], see :class:`Terms`."""
    bounds: Any
    """[G + 1] int64: the first columns, by group."""
    tops: Any
    """[2, G]: the largest scores, and what a score must beat."""
    buffer: Any
    """Scores."""


def new_room(rivals: int, groups: int, widest: int) -> Room:
    """Memory for LPs of up to ``groups`` groups and ``widest`` terms."""
    # A stride that is no power of two keeps a column's entries in different cache sets.
    capacity = (6 * CANDIDATES + 4 * (rivals + groups)) // 16 * 16 + 24
    columns = Columns(
        np.empty((rivals, capacity)), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    )
    return Room(
        columns,
        new_basis(rivals, groups),
        np.empty(groups + 1, np.int64),
        np.empty(groups),
        np.empty(groups + 1, np.int64),
        np.empty((2, groups)),
        np.empty(max(capacity, STRIP, 2 * widest // CANDIDATES + 32)),
    )


@entry_kernel
def solve_range(
    first, last, members, positions, targets, nodes, segments, rows, tables, masses, fixed_logits,
    room, margin, bound, status, weights, counts, terms, shares,
):  # fmt: skip
    """Solve LPs ``first : last``; LP i writes row i − first of the seven outputs.

    members, positions, targets [L]; nodes [n]; tables [S, R, C]; masses [S or 1, n, G].
    weights [·, C]: w. counts [·], terms and shares [·, C+G−2]: the support and its λ.
    """
    rivals, total = tables.shape[2] - 1, masses.shape[2]
    lows, mass = room.lows, room.mass
    for i in range(first, last):
        s, p, c, k = members[i], positions[i], targets[i], i - first
        beta = fixed_logits[s, nodes[p]]
        groups = _present(segments, p, total, masses[min(s, masses.shape[0] - 1), p], lows, mass)
        basis = room.basis
        base = _differences(beta, c, basis.fixed)
        for r in range(rivals + 1):
            weights[k, r] = 0.0
        counts[k] = 0
        if groups == 0:
            r = find(basis.fixed, np.int64(0), 0.0)
            weights[k, r if r < c else r + 1] = 1.0
            margin[k] = bound[k] = base
            status[k] = FIXED
            continue
        problem = Terms(rows, tables[s], c, lows, mass, groups)
        status[k], bound[k], slots = _solve(problem, room)
        _write_weights(basis, groups, slots, c, weights[k])
        counts[k] = _write_terms(problem, room.columns, basis, terms[k], shares[k])
        margin[k] = _margin(problem, beta, counts[k], terms[k], shares[k])
        for r in range(rivals + 1):
            bound[k] += weights[k, r] * (beta[c] - beta[r])


@kernel
def _present(segments, p, total, masses, lows, mass):
    """Beginnings and masses of the groups recipient p has; returns their number."""
    groups = 0
    for g in range(total):
        if segments[p * total + g + 1] > segments[p * total + g]:
            lows[groups] = segments[p * total + g]
            mass[groups] = masses[g]
            groups += 1
    lows[groups] = segments[(p + 1) * total]
    return groups


@kernel
def _differences(beta, c, fixed):
    """fixed_r = β_c − β_r less their minimum over rivals, which is returned."""
    base = np.inf
    for r in range(fixed.shape[0]):
        fixed[r] = beta[c] - beta[r if r < c else r + 1]
        base = min(base, fixed[r])
    for r in range(fixed.shape[0]):
        fixed[r] -= base
    return base


@kernel
def _with_groups(basis, groups):
    """The same memory for a node with B groups."""
    return Basis(
        groups, basis.fixed, basis.head, basis.place, basis.tight, basis.inverse, basis.values,
        basis.step, basis.dual, basis.full,
    )  # fmt: skip


@cold_kernel
def _solve(problem, room):
    """One LP; returns (status, Σ_g m_g max_a w·D_a, slots) and leaves the rest in ``basis``."""
    basis = _with_groups(room.basis, problem.groups)
    columns, bounds, tops, buffer = room.columns, room.bounds, room.tops, room.buffer
    large = problem.lows[problem.groups] - problem.lows[0] > SMALL
    if large:
        count, scale = sample(problem, columns, bounds, buffer)
    else:
        count, scale = take_all(problem, columns, bounds, buffer)
    for r in range(basis.fixed.shape[0]):
        basis.fixed[r] *= scale
    lead = start(columns, bounds, basis, buffer)
    slots, repairs, peak = problem.groups + 1, 0, 0.0
    for _ in range(ROUNDS):
        slots = improve(columns, bounds, count, basis, lead, slots, buffer)
        stuck, slots = slots < 0, abs(slots)
        _normalise(basis, problem.groups, slots)
        if large:
            if 2 * count > columns.term.shape[0]:
                count = keep_basic(columns, basis, problem.groups, bounds)
            before = count
            count = sweep(problem, columns, basis, slots, count, scale, tops, buffer)
            scale *= shrink(columns.entries, before, count, basis, slots)
            if count > before and not stuck:
                continue
        else:
            maxima(columns.entries, bounds, basis, problem.groups, slots, tops, buffer)
        peak = 0.0
        for g in range(problem.groups):
            peak += tops[0, g]
        gap = peak - _reached(columns, basis, problem.groups, slots, tops)
        if gap <= ACCEPT and not stuck:
            return OPTIMAL, peak / scale, slots
        repairs += 1
        if repairs > REPAIRS or not refactor(columns, slots, basis):
            break
    return FAILED, peak / scale, slots


@kernel
def _normalise(basis, groups, slots):
    """Clip rounding below zero off w and make it sum to one again."""
    total = 0.0
    for s in range(groups, slots):
        basis.dual[s] = max(basis.dual[s], 0.0)
        total += basis.dual[s]
    for s in range(groups, slots):
        basis.dual[s] /= total


@kernel
def _reached(columns, basis, groups, slots, tops):
    """min_r (d_r + Σ x D_r) − w·d for the basic x, made exactly feasible first."""
    rivals, reached = basis.fixed.shape[0], basis.step
    for g in range(groups):
        tops[1, g] = 0.0
    for i in range(basis.fixed.shape[0] + groups):
        if basis.head[i] >= 0:
            basis.values[i] = max(basis.values[i], 0.0)
            tops[1, columns.group[basis.head[i]]] += basis.values[i]
    for r in range(rivals):
        reached[r] = basis.fixed[r]
    for i in range(basis.fixed.shape[0] + groups):
        j = basis.head[i]
        if j >= 0:
            basis.values[i] /= tops[1, columns.group[j]]
            for r in range(rivals):
                reached[r] += basis.values[i] * columns.entries[r, j]
    least = reached[0]
    for r in range(1, rivals):
        least = min(least, reached[r])
    for s in range(groups, slots):
        least -= basis.dual[s] * basis.fixed[basis.tight[s]]
    return least


@kernel
def _write_weights(basis, groups, slots, c, weights):
    """w of the tight rivals, by class."""
    for s in range(groups, slots):
        r = basis.tight[s]
        weights[r if r < c else r + 1] = basis.dual[s]


@kernel
def _write_terms(problem, columns, basis, terms, shares):
    """The support in the order of terms and its λ = m_g x; returns its size."""
    count = np.int64(0)
    for i in range(basis.fixed.shape[0] + problem.groups):
        j = basis.head[i]
        if j < 0 or basis.values[i] <= 0.0:
            continue
        at = count
        while at > 0 and terms[at - 1] > columns.term[j]:
            terms[at], shares[at] = terms[at - 1], shares[at - 1]
            at -= 1
        terms[at] = columns.term[j]
        shares[at] = basis.values[i] * problem.mass[columns.group[j]]
        count += 1
    return count


@kernel
def _margin(problem, beta, count, terms, shares):
    """min_r M(c, r), summed anew from the exposure's own numbers."""
    least, c = np.inf, problem.target
    for r in range(beta.shape[0]):
        if r == c:
            continue
        value = beta[c] - beta[r]
        for k in range(count):
            row = problem.rows[terms[k]]
            value += shares[k] * (problem.table[row, c] - problem.table[row, r])
        least = min(least, value)
    return least
