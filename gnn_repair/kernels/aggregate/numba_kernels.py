"""CPU kernels over rows of a pattern, compiled by numba.

Each works on rows ``start : stop`` and writes to its own rows only, so threads share nothing and
the result does not depend on how many there are. T entries, G coefficients an entry, D channels
a coefficient (K = G·D). Operations and bytes (float32) per call:

    mix            2·T·K operations,  4·T·K bytes gathered + 4·N·K written
    dot            2·T·K operations,  4·T·K bytes gathered + 4·T·G written
    segment_max    T·G operations,    4·T·G bytes read
    pair_scores    4·T·K operations,  4·T·K bytes gathered + 4·T·G written
    pair_gradient  6·T·K operations,  4·T·K bytes gathered + 4·N·K written
"""

from gnn_repair.kernel_cache import cached_njit
from gnn_repair.startup import load_numba

load_numba()

_REDUCE = {"reassoc", "contract", "nsz"}


@cached_njit(nogil=True)
def mix(start, stop, indptr, indices, order, coefficients, table, out):
    """out[v, g·D+d] = Σ_t coefficients[order[t], g] · table[indices[t], g·D+d]."""
    groups = coefficients.shape[1]
    width = table.shape[1] // groups
    for v in range(start, stop):
        row = out[v]
        row[:] = 0
        for t in range(indptr[v], indptr[v + 1]):
            message = table[indices[t]]
            weights = coefficients[order[t]]
            for g in range(groups):
                weight = weights[g]
                low = g * width
                for d in range(width):
                    row[low + d] += weight * message[low + d]


@cached_njit(nogil=True, fastmath=_REDUCE)
def dot(start, stop, indptr, indices, gradient, table, out):
    """out[t, g] = Σ_d gradient[v, g·D+d] · table[indices[t], g·D+d] for the entries t of row v."""
    groups = out.shape[1]
    width = table.shape[1] // groups
    for v in range(start, stop):
        row = gradient[v]
        for t in range(indptr[v], indptr[v + 1]):
            message = table[indices[t]]
            for g in range(groups):
                low = g * width
                total = out.dtype.type(0)
                for d in range(width):
                    total += row[low + d] * message[low + d]
                out[t, g] = total


@cached_njit(nogil=True)
def segment_max(start, stop, indptr, scores, out):
    """out[v, g] = max over the entries t of row v of scores[t, g]; 0 for an empty row."""
    for v in range(start, stop):
        if indptr[v] == indptr[v + 1]:
            out[v] = 0
            continue
        out[v] = scores[indptr[v]]
        for t in range(indptr[v] + 1, indptr[v + 1]):
            for g in range(scores.shape[1]):
                out[v, g] = max(out[v, g], scores[t, g])


@cached_njit(nogil=True)
def segment_sum(start, stop, indptr, order, values, out):
    """out[v, g] = Σ over the entries t of row v of values[order[t], g]."""
    for v in range(start, stop):
        out[v] = 0
        for t in range(indptr[v], indptr[v + 1]):
            row = values[order[t]]
            for g in range(row.shape[0]):
                out[v, g] += row[g]


@cached_njit(nogil=True, fastmath=_REDUCE)
def pair_scores(start, stop, indptr, indices, attention, source, recipient, slope, out):
    """out[t, g] = Σ_d a[g·D+d] · leaky(source[indices[t], g·D+d] + recipient[v, g·D+d])."""
    groups = out.shape[1]
    width = source.shape[1] // groups
    for v in range(start, stop):
        own = recipient[v]
        for t in range(indptr[v], indptr[v + 1]):
            message = source[indices[t]]
            for g in range(groups):
                low = g * width
                total = out.dtype.type(0)
                for d in range(width):
                    s = message[low + d] + own[low + d]
                    total += attention[low + d] * (s if s > 0 else slope * s)
                out[t, g] = total


@cached_njit(nogil=True)
def pair_gradient(
    start, stop, indptr, indices, order, attention, here, there, slope, grad, out, grad_attention
):
    """Gradient of pair_scores with respect to ``here`` (the row side) and to the attention.

    out[v, k] = Σ_t grad[order[t], g] · a[k] · leaky'(here[v, k] + there[indices[t], k])
    grad_attention[k] += Σ_t grad[order[t], g] · leaky(here[v, k] + there[indices[t], k])
    """
    groups = grad.shape[1]
    width = here.shape[1] // groups
    for v in range(start, stop):
        row, own = out[v], here[v]
        row[:] = 0
        for t in range(indptr[v], indptr[v + 1]):
            message = there[indices[t]]
            upstream = grad[order[t]]
            for g in range(groups):
                low = g * width
                weight = upstream[g]
                for d in range(width):
                    s = own[low + d] + message[low + d]
                    factor = 1 if s > 0 else slope
                    row[low + d] += weight * attention[low + d] * factor
                    grad_attention[low + d] += weight * factor * s
