# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Kernels over a node's terms: a linear function is largest at a vertex, one term a group.

``ends`` [B, G + 1] says where the terms of each node and group begin and end, ``mass`` [B, G] what
each group weighs; ``rows`` [T] and ``table`` [R, D] are the exposure's rows and contributions. The
terms of a batch of nodes have *places* one after another, node b's from ``begins[b]`` on; ``lifts``
[places, E] are further channels they have there. Work a node: K·D comparisons or K·R·D
multiply-adds.
"""

import numpy as np

from gnn_repair.kernel_cache import cached_njit

_REDUCE = {"reassoc", "contract", "nsz"}


@cached_njit(nogil=True)
def extremes(ends, mass, rows, table, low, high, size):
    """Smallest, largest and largest absolute Σ_g m_g h over the vertices, channel by channel."""
    width = table.shape[1]
    least, most = np.empty(width), np.empty(width)
    for b in range(len(ends)):
        low[b], high[b], size[b] = 0.0, 0.0, 0.0
        for g in range(mass.shape[1]):
            if ends[b, g] == ends[b, g + 1]:
                continue
            message = table[rows[ends[b, g]]]
            for d in range(width):
                least[d] = most[d] = message[d]
            for t in range(ends[b, g] + 1, ends[b, g + 1]):
                message = table[rows[t]]
                for d in range(width):
                    value = message[d]
                    least[d] = value if value < least[d] else least[d]
                    most[d] = value if value > most[d] else most[d]
            m = mass[b, g]
            for d in range(width):
                low[b, d] += m * least[d]
                high[b, d] += m * most[d]
                size[b, d] += m * max(abs(least[d]), abs(most[d]))


@cached_njit(nogil=True, fastmath=_REDUCE)
def scores(ends, begins, rows, table, lifts, functions, lifted, out):
    """out[k, r] = functions[b, r] · h + lifted[b, r] · lifts[k] for the term at place k of b."""
    width, extra = table.shape[1], lifts.shape[1]
    for b in range(len(ends)):
        for k in range(begins[b], begins[b + 1]):
            message = table[rows[ends[b, 0] + k - begins[b]]]
            for r in range(functions.shape[1]):
                function, total = functions[b, r], 0.0
                for d in range(width):
                    total += function[d] * message[d]
                for e in range(extra):
                    total += lifted[b, r, e] * lifts[k, e]
                out[k, r] = total


@cached_njit(nogil=True, fastmath=_REDUCE)
def maxima(ends, begins, mass, rows, table, lifts, functions, lifted, out):
    """out[b, r] = Σ_g m_g max_a of what :func:`scores` gives each term."""
    width, extra = table.shape[1], lifts.shape[1]
    for b in range(len(ends)):
        for r in range(functions.shape[1]):
            function, sums = functions[b, r], 0.0
            for g in range(mass.shape[1]):
                best = -np.inf
                for t in range(ends[b, g], ends[b, g + 1]):
                    message, total = table[rows[t]], 0.0
                    for d in range(width):
                        total += function[d] * message[d]
                    k = begins[b] + t - ends[b, 0]
                    for e in range(extra):
                        total += lifted[b, r, e] * lifts[k, e]
                    best = max(best, total)
                if ends[b, g] < ends[b, g + 1]:
                    sums += mass[b, g] * best
            out[b, r] = sums


@cached_njit(nogil=True)
def mixtures(indptr, terms, shares, rows, table, out):
    """out[i] += Σ λ h over the sparse λ of each i."""
    for i in range(len(out)):
        for k in range(indptr[i], indptr[i + 1]):
            message, share = table[rows[terms[k]]], shares[k]
            for d in range(table.shape[1]):
                out[i, d] += share * message[d]


@cached_njit(nogil=True)
def halve(begins, indptr, halvings, table):
    """Put the middle of corners i and j in place of one, in order; side −1 keeps i, 1 keeps j."""
    for b in range(len(begins) - 1):
        for k in range(indptr[b], indptr[b + 1]):
            i, j = begins[b] + halvings[k, 0], begins[b] + halvings[k, 1]
            gone = j if halvings[k, 2] < 0 else i
            for d in range(table.shape[1]):
                table[gone, d] = 0.5 * (table[i, d] + table[j, d])


@cached_njit(nogil=True, fastmath=_REDUCE)
def widest(ends, begins, points, out):
    """out[b] = the two corners of one group, from begins[b], with the largest Σ |p − q|."""
    for b in range(len(ends)):
        most = 0.0
        for g in range(ends.shape[1] - 1):
            for i in range(ends[b, g], ends[b, g + 1]):
                for j in range(i + 1, ends[b, g + 1]):
                    length = 0.0
                    for d in range(points.shape[1]):
                        length += abs(points[i, d] - points[j, d])
                    if length > most:
                        most = length
                        out[b, 0], out[b, 1] = i - begins[b], j - begins[b]
