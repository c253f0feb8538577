"""The operations on the CPU: numba kernels and the calls that share them among threads.

A call of a kernel owns what it writes (rows of a pattern, a band of channels or a range of targets
of one member), so results do not depend on the number of threads. Operations and bytes (float32)
per call, for T entries of G coefficients with D channels each (K = G·D) over N rows, and for Z
terms of a member's targets with H channels:

    mix_rows             2·T·K operations,  4·T·K bytes gathered + 4·N·K written
    dot_rows             2·T·K operations,  4·T·K bytes gathered + 4·T·G written
    max_rows, sum_rows   T·G operations,    4·T·G bytes read
    pair_scores_rows     4·T·K operations,  4·T·K bytes gathered + 4·T·G written
    pair_gradient_rows   6·T·K operations,  4·T·K bytes gathered + 4·N·K written
    pool_band            5·Z·H operations (+ 10·Z·H integer ones with dropout), 4·Z·H gathered
    pool_gradient_band   9·Z·H operations, 4·Z·H bytes gathered, 4·Z·H read and written
    tilt_range           6·Z·H + 2·Z·C operations, 4·Z·(H + C) bytes gathered, 4·Z written
    tilt_weights_range   2·Z·C operations, 4·Z·C bytes gathered, 4·Z written
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from gnn_repair.kernel_cache import cached_njit
from gnn_repair.kernels.aggregate import Pattern
from gnn_repair.kernels.sets import BOUND, LOW, Dropout, Layer, Scorer, TermSets

CHUNKS = 16
"""Pieces a pass over a pattern or a member's targets is cut into, whatever the number of threads:
results never depend on it."""
BAND = 64
"""Channels one call works on: wide enough to vectorise, narrow enough to occupy threads."""

_REDUCE = {"reassoc", "contract", "nsz"}
_GOLD = np.uint32(0x9E3779B1)
_STEP = np.uint32(0x9E3779B9)
_FIRST = np.uint32(0x21F0AAAD)
_SECOND = np.uint32(0xD35A2D97)
_S15 = np.uint32(15)
_S16 = np.uint32(16)
"""The multipliers and shifts of :mod:`gnn_repair.kernels.sets`, typed once for the kernels."""


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="gnn-repair")


def _run(jobs: list[Callable[[], None]]) -> None:
    count = torch.get_num_threads()
    if count == 1 or len(jobs) <= 1:
        for job in jobs:
            job()
    else:
        list(_threads(count).map(lambda job: job(), jobs))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().numpy()


def _like(value: float, tensor: Tensor) -> Any:
    """``value`` in the tensor's precision, so that the kernel's arithmetic stays in it."""
    return torch.tensor(value, dtype=tensor.dtype).numpy()[()]


# Kernels over the rows of a pattern ---------------------------------------------------------------


@cached_njit(nogil=True)
def mix_rows(start, stop, indptr, indices, order, coefficients, table, out):
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
def dot_rows(start, stop, indptr, indices, gradient, table, out):
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
def max_rows(start, stop, indptr, scores, out):
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
def sum_rows(start, stop, indptr, order, values, out):
    """out[v, g] = Σ over the entries t of row v of values[order[t], g]."""
    for v in range(start, stop):
        out[v] = 0
        for t in range(indptr[v], indptr[v + 1]):
            row = values[order[t]]
            for g in range(row.shape[0]):
                out[v, g] += row[g]


@cached_njit(nogil=True, fastmath=_REDUCE)
def pair_scores_rows(start, stop, indptr, indices, attention, source, recipient, slope, out):
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
def pair_gradient_rows(
    start, stop, indptr, indices, order, attention, here, there, slope, grad, out, grad_attention
):
    """Gradient of the pair scores with respect to ``here`` (the row side) and to the attention.

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


# Kernels over the terms of a member's targets ----------------------------------------------------


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
def pool_band(
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
def pool_gradient_band(
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
def tilt_range(
    first, last, segments, groups, columns, targets, base, coefficients, cosine, distance,
    recipient, source, by_cosine, by_distance, key, threshold, scale, rows, output, bias,
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
                score = bias[0] + scale * _score(
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
def tilt_weights_range(
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
def compare_range(first, last, segments, columns, recipient, source, products, squares):
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


@cached_njit(nogil=True)
def drop_all(values, key, threshold, scale, out):
    """out[s, l] = values[s, l] · scale where a hash of (key, l, channel) is not below threshold."""
    members, rows, channels = values.shape
    factor = np.empty(channels, values.dtype)
    nothing = values.dtype.type(0)
    for row in range(rows):
        start = term_key(key, row)
        for i in range(channels):
            value = mixed_hash(np.uint32(start + np.uint32(np.uint32(i) * _STEP)))
            factor[i] = scale if value >= threshold else nothing
        for s in range(members):
            for i in range(channels):
                out[s, row, i] = values[s, row, i] * factor[i]


# Sums over a pattern ------------------------------------------------------------------------------


def _over_rows(pattern: Pattern, kernel: Callable[..., None], *operands: Any) -> None:
    """Run ``kernel(start, stop, …)`` over all rows, in chunks of about equal entries."""
    arrays = [_array(one) if isinstance(one, Tensor) else one for one in operands]
    pieces = pairwise(chunk_bounds(pattern))
    _run([partial(kernel, a, b, *arrays) for a, b in pieces if a < b])


def chunk_bounds(pattern: Pattern) -> list[int]:
    """CHUNKS + 1 row numbers that cut the rows into pieces of about equal entries."""
    work = pattern.indptr + torch.arange(pattern.num_rows + 1)
    cuts = torch.linspace(0, float(work[-1]), CHUNKS + 1, dtype=torch.float64)
    bounds: list[int] = torch.searchsorted(work.double(), cuts).clamp(max=pattern.num_rows).tolist()
    bounds[0], bounds[-1] = 0, pattern.num_rows
    return bounds


def mix(pattern: Pattern, order: Tensor, coefficients: Tensor, table: Tensor) -> Tensor:
    """Σ_t coefficients · table over each row's entries; see :func:`gnn_repair.kernels.mix`."""
    out = table.new_empty(pattern.num_rows, table.shape[1])
    rows = pattern.indptr, pattern.indices
    _over_rows(pattern, mix_rows, *rows, order, coefficients, table, out)
    return out


def dot(pattern: Pattern, gradient: Tensor, table: Tensor, groups: int) -> Tensor:
    """⟨gradient of the row, table row⟩ per entry and group, [T, G]."""
    out = table.new_empty(pattern.indices.numel(), groups)
    _over_rows(pattern, dot_rows, pattern.indptr, pattern.indices, gradient, table, out)
    return out


def segment_sum(pattern: Pattern, order: Tensor, values: Tensor) -> Tensor:
    """Σ of ``values`` [T, G] over each row's entries, [N, G]."""
    out = values.new_empty(pattern.num_rows, values.shape[1])
    _over_rows(pattern, sum_rows, pattern.indptr, order, values, out)
    return out


def segment_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Softmax of ``scores`` [T, G] over each row's entries."""
    top = scores.new_empty(pattern.num_rows, scores.shape[1])
    _over_rows(pattern, max_rows, pattern.indptr, scores, top)
    powers = (scores - top[pattern.recipients]).exp_()
    return powers.div_(segment_sum(pattern, pattern.identity, powers)[pattern.recipients])


def segment_softmax_gradient(pattern: Pattern, shares: Tensor, gradient: Tensor) -> Tensor:
    """α (∂α − Σ α ∂α), [T, G]."""
    weighted = shares * gradient
    total = segment_sum(pattern, pattern.identity, weighted)
    return weighted.sub_(shares * total[pattern.recipients])


def pair_scores(
    pattern: Pattern,
    attention: Tensor,
    source: Tensor,
    recipient: Tensor,
    slope: float,
    groups: int,
) -> Tensor:
    """a · leaky(source_a + recipient_v) per entry and group, [T, G]."""
    out = source.new_empty(pattern.indices.numel(), groups)
    tables = attention, source, recipient, _like(slope, source)
    _over_rows(pattern, pair_scores_rows, pattern.indptr, pattern.indices, *tables, out)
    return out


def pair_gradient(
    pattern: Pattern,
    order: Tensor,
    attention: Tensor,
    here: Tensor,
    there: Tensor,
    slope: float,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`pair_scores` for the row side and for the attention vector."""
    out = here.new_empty(pattern.num_rows, here.shape[1])
    partial_sums = here.new_zeros(CHUNKS, here.shape[1])
    tensors = (pattern.indptr, pattern.indices, order, attention, here, there)
    operands = (*map(_array, tensors), _like(slope, here), _array(gradient), _array(out))
    pieces = enumerate(pairwise(chunk_bounds(pattern)))
    _run(
        [
            partial(pair_gradient_rows, a, b, *operands, _array(partial_sums[chunk]))
            for chunk, (a, b) in pieces
            if a < b
        ]
    )
    return out, partial_sums.sum(0)


# Sums over a repair's terms -----------------------------------------------------------------------


def _each(count: int, step: int, kernel: Callable[..., None], *operands: Any) -> None:
    """Run ``kernel(first, last, …)`` on every member's pieces of ``count``, ``step`` long.

    What has two axes or more has members first, or one row that serves all; the rest is shared.
    """
    arrays = [_array(one) if isinstance(one, Tensor) else one for one in operands]
    members = max((len(one) for one in arrays if np.ndim(one) > 1), default=0)
    jobs: list[Callable[[], None]] = []
    for s in range(members):
        own = [one[s if len(one) > 1 else 0] if np.ndim(one) > 1 else one for one in arrays]
        jobs += [
            partial(kernel, first, min(first + step, count), *own)
            for first in range(0, count, max(1, step))
        ]
    _run(jobs)


def _terms(
    sets: TermSets, targets: Tensor, base: Tensor, weights: Tensor, layer: Layer, dropout: Dropout
) -> tuple[Any, ...]:
    """What the kernels over terms have in common, in their order."""
    key = stream_key(int(dropout.seed) & LOW)
    masks = key, dropout.threshold, _like(dropout.scale, layer.source)
    ends = sets.segments, sets.groups, sets.columns
    return (*ends, targets, base, weights, sets.cosine, sets.distance, *layer, *masks)


def _starts(sets: TermSets, targets: Tensor) -> Tensor:
    """[S, L]: the first term of each target."""
    return sets.segments[targets * sets.groups]


def _offsets(sets: TermSets, targets: Tensor) -> tuple[Tensor, int]:
    """[S, L]: where each target's terms begin in a list of all members' terms, and its length."""
    lengths = sets.segments[(targets + 1) * sets.groups] - _starts(sets, targets)
    ends = lengths.view(-1).cumsum(0)
    total = int(ends[-1]) if ends.numel() else 0
    return (ends - lengths.view(-1)).view_as(lengths), total


def pool(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout) -> Tensor:
    """See :func:`gnn_repair.kernels.sets.pool`."""
    out = torch.empty_like(layer.recipient)
    terms = _terms(sets, targets, _starts(sets, targets), sets.coefficients, layer, dropout)
    _each(out.shape[2], BAND, pool_band, *terms, out)
    return out


def pool_gradient(
    sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout, gradient: Tensor
) -> tuple[Tensor, ...]:
    """Gradients for the four tables."""
    terms = _terms(sets, targets, _starts(sets, targets), sets.coefficients, layer, dropout)
    return _spread(terms, layer, gradient)[:4]


def _spread(terms: tuple[Any, ...], layer: Layer, upstream: Tensor) -> tuple[Tensor, ...]:
    """Gradients of Σ_t weights · hidden · upstream for the tables, and Σ_t weights · hidden."""
    # Zeros of numpy cost nothing where nobody adds to them: the system hands out empty pages.
    out = [
        torch.from_numpy(np.zeros(tuple(table.shape), _array(table).dtype))
        for table in (*layer, layer.cosine)
    ]
    _each(layer.cosine.shape[1], BAND, pool_gradient_band, *terms, upstream, *out)
    return tuple(out)


def tilt(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    scorer: Scorer,
    contributions: Tensor,
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """See :func:`gnn_repair.kernels.sets.tilt`; also the unbounded scores of the targets' terms."""
    offsets, total = _offsets(sets, targets)
    out = contributions.new_empty(*targets.shape, sets.groups, contributions.shape[2] + 1)
    raw = contributions.new_empty(total)
    _each(
        targets.shape[1], -(-targets.shape[1] // CHUNKS), tilt_range,
        *_terms(sets, targets, offsets, sets.coefficients, layer, dropout), sets.rows,
        scorer.output, scorer.bias.unsqueeze(1), contributions, _like(BOUND, raw), raw, out,
    )  # fmt: skip
    return out, raw


def tilt_gradient(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    scorer: Scorer,
    contributions: Tensor,
    dropout: Dropout,
    raw: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients for output, bias and the four tables."""
    offsets, _ = _offsets(sets, targets)
    by_score = torch.empty_like(raw)
    _each(
        targets.shape[1], -(-targets.shape[1] // CHUNKS), tilt_weights_range,
        sets.segments, sets.groups, sets.rows, targets, offsets, sets.coefficients, contributions,
        _like(BOUND, raw), raw, gradient, by_score,
    )  # fmt: skip
    terms = _terms(sets, targets, offsets, by_score, layer, dropout)
    *tables, by_output = _spread(terms, layer, scorer.output.unsqueeze(1))
    starts = [int(first[0]) if len(first) else 0 for first in offsets]
    by_bias = torch.stack(
        [by_score[a:b].sum() for a, b in zip(starts, [*starts[1:], raw.numel()], strict=True)]
    )
    return by_output, by_bias, *tables


def compare(
    segments: Tensor, columns: Tensor, recipients: Tensor, sources: Tensor
) -> tuple[Tensor, Tensor]:
    """h_v · h_a and ‖h_a − h_v‖² of every term."""
    products = recipients.new_empty(recipients.shape[0], columns.numel())
    squares = torch.empty_like(products)
    count = recipients.shape[1]
    operands = segments, columns, recipients, sources, products, squares
    _each(count, -(-count // CHUNKS), compare_range, *operands)
    return products, squares


def drop_rows(values: Tensor, seed: Tensor, share: float) -> Tensor:
    """See :func:`gnn_repair.kernels.drop_rows`: the plain form's very bits."""
    # In the values' own precision, as the plain form divides.
    scale = (values.new_ones(()) / (1 - share)).numpy()[()]
    out, key = torch.empty_like(values), stream_key(int(seed) & LOW)
    drop_all(_array(values), key, round(share * 2**32), scale, _array(out))
    return out
