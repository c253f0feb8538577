"""CPU kernels of the set operations, compiled by numba; see :mod:`gnn_repair.kernels.sets.cpu`.

Z = Σ terms over a member's targets, H channels. Operations and bytes (float32) per member:

    pool           5·Z·H operations (+ 10·Z·H integer ones with dropout), 4·Z·H bytes gathered
    pool_gradient  9·Z·H operations, 4·Z·H bytes gathered, 4·Z·H read and written
    score_tilt     6·Z·H + 2·Z·C operations, 4·Z·(H + C) bytes gathered, 4·Z written
    tilt_weights   2·Z·C operations, 4·Z·C bytes gathered, 4·Z written

Each call owns what it writes: a band of channels of one member (pool, pool_gradient) or a range
of one member's targets (the others), so results do not depend on the number of threads.
"""

import math

import numba
import numpy as np

from gnn_repair.kernel_cache import cached_njit
from gnn_repair.startup import load_numba

load_numba()

_REDUCE = {"reassoc", "contract", "nsz"}
_GOLD = np.uint32(0x9E3779B1)
_STEP = np.uint32(0x9E3779B9)
_FIRST = np.uint32(0x21F0AAAD)
_SECOND = np.uint32(0xD35A2D97)
_S15 = np.uint32(15)
_S16 = np.uint32(16)
"""The multipliers and shifts of :mod:`gnn_repair.kernels.dropout`, typed once for the kernels."""


@numba.njit(inline="always")
def mixed_hash(x):
    """A 32-bit mixing function."""
    x = np.uint32(x ^ (x >> _S16))
    x = np.uint32(x * _FIRST)
    x = np.uint32(x ^ (x >> _S15))
    x = np.uint32(x * _SECOND)
    return np.uint32(x ^ (x >> _S15))


@cached_njit()
def stream_key(seed):
    """What distinguishes one step's masks from another's."""
    return mixed_hash(np.uint32(seed))


@numba.njit(inline="always")
def term_key(key, term):
    """What distinguishes one term's mask from another's."""
    return mixed_hash(np.uint32(key ^ np.uint32(np.uint32(term) * _GOLD)))


@numba.njit(inline="always")
def _hidden(own, message, c, d, by_c, by_d, row, threshold, out):
    """out[i] = relu(first layer), zero where dropped; unscaled."""
    zero = out.dtype.type(0)
    if threshold == 0:
        for i in range(out.shape[0]):
            x = own[i] + message[i] + c * by_c[i] + d * by_d[i]
            out[i] = x if x > zero else zero
    else:
        for i in range(out.shape[0]):
            x = own[i] + message[i] + c * by_c[i] + d * by_d[i]
            h = mixed_hash(np.uint32(row + np.uint32(np.uint32(i) * _STEP)))
            out[i] = x if (x > zero) & (h >= threshold) else zero


@cached_njit(nogil=True)
def pool(
    low, high, segments, groups, columns, targets, base, weights, cosine, distance,
    recipient, source, by_cosine, by_distance, key, threshold, scale, out,
):  # fmt: skip
    """out[at, low:high] = Σ_t weights[base[at] + t] · hidden, for every target."""
    by_c, by_d = by_cosine[low:high], by_distance[low:high]
    hidden = np.empty(high - low, out.dtype)
    for at in range(targets.shape[0]):
        v = targets[at]
        start, stop = segments[v * groups], segments[(v + 1) * groups]
        total, own = out[at, low:high], recipient[at, low:high]
        total[:] = 0
        for t in range(start, stop):
            row = np.uint32(term_key(key, t) + np.uint32(np.uint32(low) * _STEP))
            message = source[columns[t], low:high]
            _hidden(own, message, cosine[t], distance[t], by_c, by_d, row, threshold, hidden)
            w = weights[base[at] + t - start] * scale
            for i in range(hidden.shape[0]):
                total[i] += w * hidden[i]


@cached_njit(nogil=True)
def pool_gradient(
    low, high, segments, groups, columns, targets, base, weights, cosine, distance,
    recipient, source, by_cosine, by_distance, key, threshold, scale, upstream,
    grad_recipient, grad_source, grad_cosine, grad_distance, grad_upstream,
):  # fmt: skip
    """Gradients of Σ_t weights · hidden · upstream for channels low:high, and Σ_t weights · hidden.

    ``upstream`` has a row per target, or a single row that all targets share. The passes over a
    term's channels are separate loops: each vectorises, one loop with all of them does not.
    """
    by_c, by_d = by_cosine[low:high], by_distance[low:high]
    sum_c, sum_d = grad_cosine[low:high], grad_distance[low:high]
    sum_up = grad_upstream[low:high]
    moving = 1 if upstream.shape[0] > 1 else 0
    hidden, delta = np.empty(high - low, recipient.dtype), np.empty(high - low, recipient.dtype)
    zero = recipient.dtype.type(0)
    for at in range(targets.shape[0]):
        v = targets[at]
        start, stop = segments[v * groups], segments[(v + 1) * groups]
        here, own = grad_recipient[at, low:high], recipient[at, low:high]
        above = upstream[at * moving, low:high]
        for t in range(start, stop):
            w = weights[base[at] + t - start] * scale
            c, d = cosine[t], distance[t]
            row = np.uint32(term_key(key, t) + np.uint32(np.uint32(low) * _STEP))
            message = source[columns[t], low:high]
            _hidden(own, message, c, d, by_c, by_d, row, threshold, hidden)
            for i in range(hidden.shape[0]):
                delta[i] = w * above[i] if hidden[i] > zero else zero
            there = grad_source[columns[t], low:high]
            for i in range(hidden.shape[0]):
                there[i] += delta[i]
            for i in range(hidden.shape[0]):
                here[i] += delta[i]
            for i in range(hidden.shape[0]):
                sum_c[i] += c * delta[i]
            for i in range(hidden.shape[0]):
                sum_d[i] += d * delta[i]
            for i in range(hidden.shape[0]):
                sum_up[i] += w * hidden[i]


@cached_njit(nogil=True, fastmath=_REDUCE)
def _score(own, message, c, d, by_cosine, by_distance, output, row, threshold, hidden):
    _hidden(own, message, c, d, by_cosine, by_distance, row, threshold, hidden)
    total = hidden.dtype.type(0)
    for i in range(hidden.shape[0]):
        total += output[i] * hidden[i]
    return total


@cached_njit(nogil=True)
def score_tilt(
    first, last, segments, groups, columns, rows, targets, base, coefficients, cosine, distance,
    recipient, source, by_cosine, by_distance, key, threshold, scale, output, bias,
    contributions, bound, raw, out,
):  # fmt: skip
    """raw[base[at] + t] = the unbounded score; out[at, g] = Σ_t α e^s [ℓ, 1]."""
    classes = contributions.shape[1]
    hidden = np.empty(recipient.shape[1], recipient.dtype)
    for at in range(first, last):
        v = targets[at]
        begin = segments[v * groups]
        for g in range(groups):
            total = out[at, g]
            total[:] = 0
            for t in range(segments[v * groups + g], segments[v * groups + g + 1]):
                score = bias + scale * _score(
                    recipient[at], source[columns[t]], cosine[t], distance[t], by_cosine,
                    by_distance, output, term_key(key, t), threshold, hidden,
                )  # fmt: skip
                raw[base[at] + t - begin] = score
                e = coefficients[t] * math.exp(bound * math.tanh(score))
                message = contributions[rows[t]]
                for c in range(classes):
                    total[c] += e * message[c]
                total[classes] += e


@cached_njit(nogil=True, fastmath=_REDUCE)
def tilt_weights(
    first, last, segments, groups, rows, targets, base, coefficients, contributions, bound, raw,
    gradient, out,
):  # fmt: skip
    """out[base[at] + t] = ∂/∂raw of ⟨gradient, Σ_t α e^s [ℓ, 1]⟩."""
    classes = contributions.shape[1]
    for at in range(first, last):
        v = targets[at]
        begin = segments[v * groups]
        for g in range(groups):
            above = gradient[at, g]
            for t in range(segments[v * groups + g], segments[v * groups + g + 1]):
                place = base[at] + t - begin
                share = math.tanh(raw[place])
                message = contributions[rows[t]]
                inner = above[classes]
                for c in range(classes):
                    inner += above[c] * message[c]
                slope = bound * (1 - share * share)
                out[place] = coefficients[t] * math.exp(bound * share) * inner * slope


@cached_njit(nogil=True, fastmath=_REDUCE)
def compare(first, last, segments, columns, recipient, source, products, squares):
    """products[t] = h_v · h_a and squares[t] = ‖h_a − h_v‖² for the terms of rows first:last."""
    for v in range(first, last):
        own = recipient[v]
        for t in range(segments[v], segments[v + 1]):
            message = source[columns[t]]
            product = own.dtype.type(0)
            square = own.dtype.type(0)
            for i in range(own.shape[0]):
                product += own[i] * message[i]
                gap = message[i] - own[i]
                square += gap * gap
            products[t] = product
            squares[t] = square
