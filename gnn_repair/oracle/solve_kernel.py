# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels that solve one LP after another, straight from an exposure's tables."""

from typing import Any

import numpy as np
from numpy import uint64

from gnn_repair.oracle.columns import (
    LARGE,
    LpTerms,
    clear_columns,
    keep_basic,
    maxima,
    sample,
    shrink,
    sweep,
    take_all,
)
from gnn_repair.oracle.compiling import cold_kernel, entry_kernel, kernel, kernel_once
from gnn_repair.oracle.factor import refactor
from gnn_repair.oracle.proof import BLUR
from gnn_repair.oracle.simplex import improve, start
from gnn_repair.oracle.status import FAILED, FIXED, OPTIMAL
from gnn_repair.oracle.workspace import (
    AHEAD,
    CHOSEN,
    DUAL,
    GROUP,
    HEAD,
    HUGE,
    LOWS,
    MASS,
    OFFSET,
    PRESENT,
    SMALL,
    STEP,
    TERM,
    TIGHT,
    TOPS,
    VALUES,
)
from gnn_repair.thresholds import REACHABLE

ACCEPT = 1e-11
"""Largest accepted gap between bound and margin, relative to the numbers the answer is made of: a
hundred thousand roundings, and a hundredth of what the check accepts."""
FLOOR = 1e-318
"""Below 2e-308 products are rounded to multiples of 5e-324; an answer adds up some hundreds."""
CACHED = 1 << 17
"""Numbers of a table that stay in the second-level cache by themselves: a megabyte."""
ROUNDS = 60
"""Passes over a large LP before the fallback: of 44,433 hostile LPs none took more than eight."""
REPAIRS = 3
"""Fresh inversions before the fallback: where the third has not helped, the numbers are beyond
doubles, and exact arithmetic is next."""


@entry_kernel
def solve_range(
    first, last, members, positions, targets, nodes, segments, rows, senders, tables, masses,
    fixed_logits, room, margin, bound, status, weights, counts, terms, shares, sources, groups,
):  # fmt: skip
    """Solve LPs ``first : last``; LP i writes row i − first of the first five outputs.

    members, positions, targets [L]; nodes [n]; senders [R]: the source of a table row; tables
    [S, R, C]; masses [S or 1, n, G]. weights [·, C]: w. counts [·]: size of the support; terms,
    shares, sources and groups: the support, its λ and where it comes from, one LP after another.
    Returns how many of these there are.
    """
    filled = np.int64(0)
    ahead = last if tables.shape[1] * tables.shape[2] > CACHED else first
    for i in range(first, last):
        s, p, c, k = members[i], positions[i], targets[i], i - first
        beta = fixed_logits[s, nodes[p]]
        present = _present(segments, p, masses[min(s, masses.shape[0] - 1), p], room)
        base = _differences(beta, c, room.state)
        if present == 0:
            _write_fixed(room.state, weights[k])
            status[k], margin[k], bound[k], counts[k] = FIXED, base, base, 0
            continue
        _set_ahead(segments, masses.shape[2], members, positions, i, ahead, room.places)
        status[k], margin[k], bound[k], counts[k] = _solve(
            LpTerms(rows, tables[s], c),
            present,
            beta,
            room,
            weights[k],
            terms[filled:],
            shares[filled:],
        )
        end = filled + counts[k]
        _write_origin(rows, senders, room.places, terms, filled, end, sources, groups)
        filled = end
    return filled


@kernel_once
def _present(segments, p, masses, room):
    """Numbers, beginnings and masses of the groups recipient p has; returns their number."""
    groups, total = np.int64(0), masses.shape[0]
    for g in range(total):
        if segments[p * total + g + 1] > segments[p * total + g]:
            room.places[PRESENT, groups] = g
            room.places[LOWS, groups] = segments[p * total + g]
            room.state[MASS, groups] = masses[g]
            groups += 1
    room.places[LOWS, groups] = segments[(p + 1) * total]
    return groups


@kernel_once
def _differences(beta, c, state):
    """d_r = β_c − β_r less their minimum over rivals, which is returned."""
    base = np.inf
    for r in range(beta.shape[0]):
        state[OFFSET, r] = beta[c] - beta[r] if r != c else HUGE
        base = min(base, state[OFFSET, r])
    for r in range(beta.shape[0]):
        state[OFFSET, r] -= base if r != c else 0.0
    return base


@kernel_once
def _write_fixed(state, weights):
    """w of a node without terms: all on the rival with the smallest margin."""
    closest = 0
    while state[OFFSET, closest] > 0.0:
        closest += 1
    for r in range(weights.shape[0]):
        weights[r] = 0.0
    weights[closest] = 1.0


@kernel_once
def _set_ahead(segments, total, members, positions, i, end, places):
    """The terms of LP i + 1, unless they are likely to be in the cache already."""
    places[AHEAD, 0] = places[AHEAD, 1] = 0
    if i + 1 < end:
        p = positions[i + 1]
        if p != positions[i] and members[i + 1] == members[i]:
            places[AHEAD, 0], places[AHEAD, 1] = segments[p * total], segments[(p + 1) * total]


@kernel_once
def _solve(problem, groups, beta, room, weights, terms, shares):
    """One LP; returns (status, margin, bound, size of the support) and writes w, support and λ."""
    large = room.places[LOWS, groups] - room.places[LOWS, 0] > SMALL
    if large:
        count, scale, longest = sample(problem, room, groups)
    else:
        count, scale, longest = take_all(problem, room, groups)
    if not longest <= LARGE:
        clear_columns(room, np.int64(0), room.labels.shape[1])
        return FAILED, np.nan, np.nan, 0
    for r in range(room.entries.shape[0]):
        room.state[OFFSET, r] *= scale if r != problem.target else 1.0
    lead = start(room, groups, problem.target)
    slots, repairs, margin, bound, support = groups + 1, 0, 0.0, 0.0, 0
    for _ in range(ROUNDS):
        slots, lead = improve(problem, room, groups, count, lead, slots, scale)
        stuck, slots = slots < 0, abs(slots)
        total = _normalise(room.state, groups, slots)
        if large:
            if 2 * count > room.labels.shape[1]:
                count = keep_basic(room, groups)
            before = count
            count, size = sweep(problem, room, groups, slots, count, scale)
            if size * size > LARGE:
                scale *= shrink(room, groups, slots, count)
            if count > before and not stuck:
                continue
        else:
            maxima(room, groups, total)
        bound = _write_weights(problem.target, beta, room, groups, slots, scale, weights)
        support = _write_terms(room, groups, terms, shares)
        margin, size = _margin(problem, beta, support, terms, shares, room.buffer)
        if not stuck:
            # The margin's own numbers settle nearly every LP; the bound's are asked for if not.
            if accepted(margin, bound, bound, size, 0.0):
                return OPTIMAL, margin, bound, support
            bound, certain, other = _bound_anew(problem, beta, room, groups, weights)
            if accepted(margin, bound, certain, size, other):
                return OPTIMAL, margin, bound, support
        repairs += 1
        if repairs > REPAIRS or not refactor(room, groups, slots):
            break
    return FAILED, margin, bound, support


@kernel
def accepted(margin, bound, certain, size, other):
    """Whether bound and margin meet, and on the same side of the threshold of reach.

    ``size`` is that of the numbers the margin is the sum of, ``other`` that of the bound's;
    ``certain`` is the bound less what rounding may have added to it.
    """
    blur = BLUR * (size + other)
    decided = margin - blur > REACHABLE or bound + blur <= REACHABLE
    meet = certain - margin <= ACCEPT * size + FLOOR
    return meet and margin - bound <= ACCEPT * size + BLUR * other + FLOOR and decided


@cold_kernel
def _bound_anew(problem, beta, room, groups, weights):
    """w·d + Σ_g m_g max_a w·D_a from the exposure's own numbers, the same with each term less its
    own rounding, and the size of the bound's numbers.

    A huge term that w makes equal to small ones scores within its own rounding of them. That may
    blur the bound, but must not excuse a small term that scores too high.
    """
    c, bound, size = problem.target, 0.0, 0.0
    for r in range(beta.shape[0]):
        part = weights[r] * (beta[c] - beta[r])
        bound += part
        size += abs(part)
    certain = bound - BLUR * size
    for g in range(groups):
        best, top, parts = -np.inf, -np.inf, 0.0
        for t in range(room.places[LOWS, g], room.places[LOWS, g + 1]):
            row, score, total = problem.rows[t], 0.0, 0.0
            for r in range(beta.shape[0]):
                part = weights[r] * (problem.table[row, c] - problem.table[row, r])
                score += part
                total += abs(part)
            best = max(best, score - BLUR * total)
            if score > top:
                top, parts = score, total
        bound += room.state[MASS, g] * top
        certain += room.state[MASS, g] * best
        size += room.state[MASS, g] * parts
    return bound, certain, size


@kernel_once
def _normalise(state, groups, slots):
    """Clip rounding below zero off w and divide it by its sum, which is returned."""
    total = 0.0
    for s in range(groups, slots):
        state[DUAL, s] = max(state[DUAL, s], 0.0)
        total += state[DUAL, s]
    for s in range(groups, slots):
        state[DUAL, s] /= total
    return total


@kernel_once
def _write_weights(c, beta, room, groups, slots, scale, weights):
    """w of the tight rivals, by class; returns the bound w·d + Σ_g m_g max_a w·D_a."""
    bound = 0.0
    for r in range(beta.shape[0]):
        weights[r] = 0.0
    for g in range(groups):
        bound += room.state[TOPS, g]
    bound /= scale
    for s in range(groups, slots):
        r = room.places[TIGHT, s]
        weights[r] = room.state[DUAL, s]
        bound += weights[r] * (beta[c] - beta[r])
    return bound


@kernel_once
def _write_terms(room, groups, terms, shares):
    """The support in the order of terms and its λ = m_g x, made exactly feasible; returns its
    size. TOPS and STEP are scratch."""
    state, places, labels, count = room.state, room.places, room.labels, uint64(0)
    for g in range(groups):
        state[TOPS, g] = 0.0
    for i in range(uint64(room.entries.shape[0] + groups)):
        places[CHOSEN, count], state[STEP, count] = places[HEAD, i], state[VALUES, i]
        count += uint64((places[HEAD, i] >= 0) & (state[VALUES, i] > 0.0))
    for k in range(count):
        state[TOPS, uint64(labels[GROUP, uint64(places[CHOSEN, k])])] += state[STEP, k]
    for k in range(count):
        j, at = uint64(places[CHOSEN, k]), np.int64(k)
        term, group = labels[TERM, j], uint64(labels[GROUP, j])
        while at > 0 and terms[at - 1] > term:
            terms[at], shares[at] = terms[at - 1], shares[at - 1]
            at -= 1
        terms[at], shares[at] = term, state[STEP, k] / state[TOPS, group] * state[MASS, group]
    return np.int64(count)


@kernel_once
def _write_origin(rows, senders, places, terms, start, stop, sources, groups):
    """Source node and group of terms[start:stop], which ascend."""
    g = uint64(0)
    for k in range(uint64(start), uint64(stop)):
        term = terms[k]
        while term >= places[LOWS, g + uint64(1)]:
            g += uint64(1)
        sources[k], groups[k] = senders[uint64(rows[uint64(term)])], places[PRESENT, g]


@kernel_once
def _margin(problem, beta, count, terms, shares, reached):
    """min_r M(c, r), summed anew from the exposure's own numbers, and how large the numbers are
    that it is the sum of; reached is scratch."""
    c, classes = uint64(problem.target), uint64(beta.shape[0])
    for r in range(classes):
        reached[r] = beta[c] - beta[r]
    for k in range(count):
        row, share = uint64(problem.rows[terms[k]]), shares[k]
        own = problem.table[row, c]
        for r in range(classes):
            reached[r] += share * (own - problem.table[row, r])
    worst: Any = c
    least = np.inf
    for r in range(classes):
        if r != c and not reached[r] >= least:
            least, worst = reached[r], r
    size = abs(beta[c] - beta[worst])
    for k in range(count):
        row = uint64(problem.rows[terms[k]])
        size += shares[k] * abs(problem.table[row, c] - problem.table[row, worst])
    return least, size
