"""The set operations on a GPU: Triton kernels (float32) and their launches.

One program works on one target of one member (or one piece of its terms), BLOCK_T terms × all H
channels at a time. Z terms over all targets and members; operations and bytes (float32) per call:

    rows_read      4·Z bytes gathered, 4·Z exchanged atomically
    pool           5·Z·H operations, 4·Z·H bytes gathered from the message table (L2 while it fits)
    pool_gradient  7·Z·H operations, 4·Z·H bytes gathered, 4·Z·H added atomically
    tilt           6·Z·H + 2·Z·C operations, 4·Z·(H + C) bytes gathered
    tilt_gradient  11·Z·H + 3·Z·C operations, 4·Z·(H + C) bytes gathered, 4·Z·H added atomically

    drop_rows      22 integer operations and 8 bytes per number

With dropout, ten integer operations per hidden channel more: masks are recomputed, never stored.
Shapes depend on the targets' number alone, never on their degrees, so every launch can be captured
in a CUDA graph.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnn_repair.kernels.sets import BOUND, Dropout, Layer, ReadRows, Scorer, TermSets

TILE = 2048
"""Hidden channels one program holds at a time."""
SHORT = 8
"""Mean set size up to which blocks are a quarter as deep."""
BUSY = 8192
"""Programs that keep a GPU busy: fewer targets than this share their terms among programs."""
THREADS = 128
"""Terms whose rows one program looks at: one a thread, as what atomic operations return asks."""
MOST_PARTS = 32
"""Pieces of one target's terms: each adds a row to be summed afterwards."""
BLOCK = 1024
"""Numbers a program drops: enough to hide the launch, few enough to fill all processors."""
SIZES = [
    "weights_stride", "cosine_stride", "distance_stride", "T", "P", "L", "G", "R", "C", "threshold"
]  # fmt: skip
"""What varies from graph to graph: no kernel is compiled anew for a size that is odd or even."""


@triton.jit
def mixed_hash(x):
    """A 32-bit mixing function on uint32."""
    x = x ^ (x >> 16)
    x = x * tl.full([], 0x21F0AAAD, tl.uint32)
    x = x ^ (x >> 15)
    x = x * tl.full([], 0xD35A2D97, tl.uint32)
    return x ^ (x >> 15)


@triton.jit
def stream_key(seed):
    """What distinguishes one step's masks from another's."""
    return mixed_hash(tl.load(seed).to(tl.uint32))


@triton.jit
def kept(key, term, channel, threshold):
    """Which channels of which terms survive, [BLOCK_T, BLOCK_H]."""
    row = mixed_hash(key ^ (term.to(tl.uint32) * tl.full([], 0x9E3779B1, tl.uint32)))
    step = channel.to(tl.uint32) * tl.full([], 0x9E3779B9, tl.uint32)
    value = mixed_hash(row[:, None] + step[None, :])
    return value >= threshold.to(tl.uint32)


@triton.jit
def piece(start, stop, part, BLOCK_T: tl.constexpr):
    """The terms this program takes: one of the grid's pieces, each a whole number of blocks."""
    blocks = tl.cdiv(stop - start, BLOCK_T)
    each = tl.cdiv(blocks, tl.num_programs(1)) * BLOCK_T
    first = start + part * each
    return first, tl.minimum(first + each, stop)


@triton.jit(do_not_specialize=["P", "L", "G"])
def rows_read_kernel(
    segments, columns, targets, seen, numbers, counts, P, L, G, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """numbers[s, :counts[s]] = the rows that terms of s's targets read, in the order seen."""
    row = tl.program_id(0).to(tl.int64)
    s = row // L
    v = tl.load(targets + row)
    start, stop = tl.load(segments + v * G), tl.load(segments + (v + 1) * G)
    one = tl.full((BLOCK_T,), 1, tl.int32)
    for at in range(start, stop, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        valid = t < stop
        column = tl.load(columns + t, mask=valid, other=0)
        before = tl.atomic_xchg(seen + s * P + column, one, mask=valid, sem="relaxed")
        first = valid & (before == 0)
        slot = tl.atomic_add(counts + s + column * 0, one, mask=first, sem="relaxed")
        tl.store(numbers + s * P + slot, column, mask=first)


@triton.jit
def hidden_block(
    t, valid, columns, cosine, distance, source, own, by_cosine, by_distance, s, h, inside, key,
    threshold, geometry_c, geometry_d, T, P, H, DROP: tl.constexpr,
):  # fmt: skip
    """drop(relu(first layer)) unscaled, [BLOCK_T, BLOCK_H]; also columns, cosine and distance."""
    column = tl.load(columns + t, mask=valid, other=0).to(tl.int64)
    c = tl.load(cosine + s * geometry_c + t, mask=valid, other=0.0)
    d = tl.load(distance + s * geometry_d + t, mask=valid, other=0.0)
    mask = valid[:, None] & inside[None, :]
    x = tl.load(source + (s * P + column)[:, None] * H + h[None, :], mask=mask, other=0.0)
    x += own[None, :] + c[:, None] * by_cosine[None, :] + d[:, None] * by_distance[None, :]
    x = tl.where(mask & (x > 0), x, 0.0)
    if DROP:
        x = tl.where(kept(key, t, h, threshold), x, 0.0)
    return x, column, c, d


@triton.jit(do_not_specialize=SIZES)
def pool_kernel(
    segments, columns, targets, weights, cosine, distance, recipient, source, by_cosine,
    by_distance, seed, out, weights_stride, cosine_stride, distance_stride, T, P, L, H, G,
    threshold, scale, DROP: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    """out[part, s, l] = Σ_t α · hidden over a piece of the target's terms."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s = row // L
    h = tl.arange(0, BLOCK_H)
    inside = h < H
    v = tl.load(targets + row)
    start, stop = tl.load(segments + v * G), tl.load(segments + (v + 1) * G)
    own = tl.load(recipient + row * H + h, mask=inside, other=0.0)
    g = tl.load(by_cosine + s * H + h, mask=inside, other=0.0)
    k = tl.load(by_distance + s * H + h, mask=inside, other=0.0)
    key = stream_key(seed)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    first, last = piece(start, stop, part, BLOCK_T)
    for at in range(first, last, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        valid = t < last
        x, _column, _c, _d = hidden_block(
            t, valid, columns, cosine, distance, source, own, g, k, s, h, inside, key, threshold,
            cosine_stride, distance_stride, T, P, H, DROP,
        )  # fmt: skip
        w = tl.load(weights + s * weights_stride + t, mask=valid, other=0.0)
        total += tl.sum(w[:, None] * x, axis=0)
    rows = tl.num_programs(0).to(tl.int64)
    tl.store(out + (part * rows + row) * H + h, total * scale, mask=inside)


@triton.jit(do_not_specialize=SIZES)
def pool_gradient_kernel(
    segments, columns, targets, weights, cosine, distance, recipient, source, by_cosine,
    by_distance, seed, upstream, grad_recipient, grad_source, grad_cosine, grad_distance,
    weights_stride, cosine_stride, distance_stride, T, P, L, H, G, threshold, scale,
    DROP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Gradients of pool: sums over the piece's terms per row, messages by atomic additions."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s = row // L
    h = tl.arange(0, BLOCK_H)
    inside = h < H
    v = tl.load(targets + row)
    start, stop = tl.load(segments + v * G), tl.load(segments + (v + 1) * G)
    own = tl.load(recipient + row * H + h, mask=inside, other=0.0)
    g = tl.load(by_cosine + s * H + h, mask=inside, other=0.0)
    k = tl.load(by_distance + s * H + h, mask=inside, other=0.0)
    above = tl.load(upstream + row * H + h, mask=inside, other=0.0) * scale
    key = stream_key(seed)
    by_own = tl.zeros((BLOCK_H,), dtype=tl.float32)
    by_c = tl.zeros((BLOCK_H,), dtype=tl.float32)
    by_d = tl.zeros((BLOCK_H,), dtype=tl.float32)
    first, last = piece(start, stop, part, BLOCK_T)
    for at in range(first, last, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        valid = t < last
        x, column, c, d = hidden_block(
            t, valid, columns, cosine, distance, source, own, g, k, s, h, inside, key, threshold,
            cosine_stride, distance_stride, T, P, H, DROP,
        )  # fmt: skip
        w = tl.load(weights + s * weights_stride + t, mask=valid, other=0.0)
        delta = tl.where(x > 0, w[:, None] * above[None, :], 0.0)
        place = (s * P + column)[:, None] * H + h[None, :]
        tl.atomic_add(grad_source + place, delta, mask=x > 0, sem="relaxed")
        by_own += tl.sum(delta, axis=0)
        by_c += tl.sum(c[:, None] * delta, axis=0)
        by_d += tl.sum(d[:, None] * delta, axis=0)
    rows = tl.num_programs(0).to(tl.int64)
    at_row = (part * rows + row) * H + h
    tl.store(grad_recipient + at_row, by_own, mask=inside)
    tl.store(grad_cosine + at_row, by_c, mask=inside)
    tl.store(grad_distance + at_row, by_d, mask=inside)


@triton.jit
def bounded(raw, bound):
    """bound · tanh(raw), and tanh(raw)."""
    # tanh by exp of a nonpositive number: exact enough, and no overflow.
    small = tl.exp(-2.0 * tl.abs(raw))
    size = (1.0 - small) / (1.0 + small)
    share = tl.where(raw < 0, -size, size)
    return bound * share, share


@triton.jit(do_not_specialize=SIZES)
def tilt_kernel(
    segments, columns, rows, targets, weights, cosine, distance, recipient, source, by_cosine,
    by_distance, seed, output, bias, contributions, out, weights_stride, cosine_stride,
    distance_stride, T, P, L, H, G, R, C, threshold, scale, bound, DROP: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[part, s, l, g] = Σ_t α e^s [ℓ, 1] over a piece of each of the target's groups."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s = row // L
    h, c_at = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    inside, known = h < H, c_at < C
    v = tl.load(targets + row)
    own = tl.load(recipient + row * H + h, mask=inside, other=0.0)
    g_c = tl.load(by_cosine + s * H + h, mask=inside, other=0.0)
    g_d = tl.load(by_distance + s * H + h, mask=inside, other=0.0)
    w_out = tl.load(output + s * H + h, mask=inside, other=0.0) * scale
    b_out = tl.load(bias + s)
    key = stream_key(seed)
    all_rows = tl.num_programs(0).to(tl.int64)
    for group in range(G):
        start = tl.load(segments + v * G + group)
        stop = tl.load(segments + v * G + group + 1)
        mixture = tl.zeros((BLOCK_C,), dtype=tl.float32)
        first, last = piece(start, stop, part, BLOCK_T)
        for at in range(first, last, BLOCK_T):
            t = at + tl.arange(0, BLOCK_T)
            valid = t < last
            x, _column, _c, _d = hidden_block(
                t, valid, columns, cosine, distance, source, own, g_c, g_d, s, h, inside, key,
                threshold, cosine_stride, distance_stride, T, P, H, DROP,
            )  # fmt: skip
            score, _share = bounded(tl.sum(x * w_out[None, :], axis=1) + b_out, bound)
            a = tl.load(weights + s * weights_stride + t, mask=valid, other=0.0)
            e = a * tl.exp(score)
            table_row = tl.load(rows + t, mask=valid, other=0).to(tl.int64)
            place = (s * R + table_row)[:, None] * C + c_at[None, :]
            message = tl.load(
                contributions + place, mask=valid[:, None] & known[None, :], other=0.0
            )
            message = tl.where(c_at[None, :] == C, 1.0, message)
            mixture += tl.sum(e[:, None] * message, axis=0)
        at_row = ((part * all_rows + row) * G + group) * (C + 1) + c_at
        tl.store(out + at_row, mixture, mask=c_at <= C)


@triton.jit(do_not_specialize=SIZES)
def tilt_gradient_kernel(
    segments, columns, rows, targets, weights, cosine, distance, recipient, source, by_cosine,
    by_distance, seed, output, bias, contributions, upstream, grad_output, grad_bias,
    grad_recipient, grad_source, grad_cosine, grad_distance, weights_stride, cosine_stride,
    distance_stride, T, P, L, H, G, R, C, threshold, scale, bound, DROP: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of tilt: sums over the piece's terms per row, messages by atomic additions."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s = row // L
    h, c_at = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    inside, known = h < H, c_at < C
    v = tl.load(targets + row)
    own = tl.load(recipient + row * H + h, mask=inside, other=0.0)
    g_c = tl.load(by_cosine + s * H + h, mask=inside, other=0.0)
    g_d = tl.load(by_distance + s * H + h, mask=inside, other=0.0)
    w_out = tl.load(output + s * H + h, mask=inside, other=0.0) * scale
    b_out = tl.load(bias + s)
    key = stream_key(seed)
    by_own = tl.zeros((BLOCK_H,), dtype=tl.float32)
    by_c = tl.zeros((BLOCK_H,), dtype=tl.float32)
    by_d = tl.zeros((BLOCK_H,), dtype=tl.float32)
    by_out = tl.zeros((BLOCK_H,), dtype=tl.float32)
    by_bias = tl.zeros((BLOCK_T,), dtype=tl.float32)
    for group in range(G):
        start = tl.load(segments + v * G + group)
        stop = tl.load(segments + v * G + group + 1)
        above = tl.load(upstream + (row * G + group) * (C + 1) + c_at, mask=c_at <= C, other=0.0)
        first, last = piece(start, stop, part, BLOCK_T)
        for at in range(first, last, BLOCK_T):
            t = at + tl.arange(0, BLOCK_T)
            valid = t < last
            x, column, c, d = hidden_block(
                t, valid, columns, cosine, distance, source, own, g_c, g_d, s, h, inside, key,
                threshold, cosine_stride, distance_stride, T, P, H, DROP,
            )  # fmt: skip
            score, share = bounded(tl.sum(x * w_out[None, :], axis=1) + b_out, bound)
            a = tl.load(weights + s * weights_stride + t, mask=valid, other=0.0)
            table_row = tl.load(rows + t, mask=valid, other=0).to(tl.int64)
            place = (s * R + table_row)[:, None] * C + c_at[None, :]
            message = tl.load(
                contributions + place, mask=valid[:, None] & known[None, :], other=0.0
            )
            message = tl.where(c_at[None, :] == C, 1.0, message)
            inner = tl.sum(above[None, :] * message, axis=1)
            e = a * tl.exp(score) * inner * bound * (1.0 - share * share)
            delta = tl.where(x > 0, e[:, None] * w_out[None, :], 0.0)
            source_place = (s * P + column)[:, None] * H + h[None, :]
            tl.atomic_add(grad_source + source_place, delta, mask=x > 0, sem="relaxed")
            by_own += tl.sum(delta, axis=0)
            by_c += tl.sum(c[:, None] * delta, axis=0)
            by_d += tl.sum(d[:, None] * delta, axis=0)
            by_out += tl.sum(e[:, None] * x, axis=0) * scale
            by_bias += e
    all_rows = tl.num_programs(0).to(tl.int64)
    at_row = (part * all_rows + row) * H + h
    tl.store(grad_recipient + at_row, by_own, mask=inside)
    tl.store(grad_cosine + at_row, by_c, mask=inside)
    tl.store(grad_distance + at_row, by_d, mask=inside)
    tl.store(grad_output + at_row, by_out, mask=inside)
    tl.store(grad_bias + part * all_rows + row, tl.sum(by_bias, axis=0))


@triton.jit(do_not_specialize=["T", "N", "P"])
def compare_kernel(
    owners, columns, recipient, source, products, squares, T, N, P, D,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """products[s, t] = h_v · h_a and squares[s, t] = ‖h_a − h_v‖²."""
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    s = tl.program_id(1).to(tl.int64)
    valid = t < T
    here = (s * N + tl.load(owners + t, mask=valid, other=0).to(tl.int64)) * D
    there = (s * P + tl.load(columns + t, mask=valid, other=0).to(tl.int64)) * D
    product = tl.zeros((BLOCK_T,), dtype=tl.float32)
    square = tl.zeros((BLOCK_T,), dtype=tl.float32)
    for first in range(0, D, BLOCK_D):
        i = first + tl.arange(0, BLOCK_D)
        mask = valid[:, None] & (i < D)[None, :]
        left = tl.load(recipient + here[:, None] + i[None, :], mask=mask, other=0.0)
        right = tl.load(source + there[:, None] + i[None, :], mask=mask, other=0.0)
        product += tl.sum(left * right, axis=1)
        square += tl.sum((right - left) * (right - left), axis=1)
    tl.store(products + s * T + t, product, mask=valid)
    tl.store(squares + s * T + t, square, mask=valid)


@triton.jit(do_not_specialize=["total", "rows", "channels", "threshold"])
def drop_rows_kernel(
    values, seed, out, total, rows, channels, threshold, scale, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    row = ((at // channels) % rows).to(tl.uint32)
    channel = (at % channels).to(tl.uint32)
    start = mixed_hash(stream_key(seed) ^ (row * tl.full([], 0x9E3779B1, tl.uint32)))
    value = mixed_hash(start + channel * tl.full([], 0x9E3779B9, tl.uint32))
    x = tl.load(values + at, mask=inside, other=0.0)
    x = tl.where(value >= threshold.to(tl.uint32), x * scale, 0.0)
    tl.store(out + at, x, mask=inside)


# Launches -----------------------------------------------------------------------------------------


def _blocks(sets: TermSets, layer: Layer) -> dict[str, Any]:
    """Block sizes; few different ones, since each is a compilation."""
    channels = triton.next_power_of_2(layer.cosine.shape[1])
    recipients = max(1, sets.segments.numel() // sets.groups)
    deep = max(4, TILE // channels)
    short = sets.columns.numel() <= SHORT * recipients
    return {"BLOCK_T": max(2, deep // 4) if short else deep, "BLOCK_H": channels}


def _parts(sets: TermSets, rows: int, deep: int) -> int:
    """Into how many pieces a target's terms are cut; the largest set decides, as it ends last."""
    most = min(BUSY // max(1, rows), MOST_PARTS, sets.longest // (2 * deep))
    return int(triton.next_power_of_2(max(1, most)))


def rows_read(sets: TermSets, targets: Tensor, rows: int) -> ReadRows:
    """See :func:`gnn_repair.kernels.sets.rows_read`; how many they are stays on the device."""
    members, count = targets.shape
    seen = targets.new_zeros(members, rows, dtype=torch.int32)
    numbers, counts = torch.empty_like(seen), seen.new_zeros(members)
    if targets.numel():
        rows_read_kernel[targets.numel(),](
            sets.segments, sets.columns, targets, seen, numbers, counts, rows, count, sets.groups,
            BLOCK_T=THREADS, num_warps=THREADS // 32,
        )  # fmt: skip
    return ReadRows(numbers, counts)


def _inputs(sets: TermSets) -> tuple[Tensor, ...]:
    return sets.coefficients, sets.cosine, sets.distance


def _sizes(sets: TermSets, layer: Layer) -> tuple[int, ...]:
    """Member strides of the terms' numbers, then T, P, L, H and G."""
    terms = sets.columns.numel()
    strides = [terms if values.shape[0] > 1 else 0 for values in _inputs(sets)]
    _, targets, channels = layer.recipient.shape
    return (*strides, terms, layer.source.shape[1], targets, channels, sets.groups)


def pool(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout) -> Tensor:
    """See :func:`gnn_repair.kernels.sets.pool`."""
    rows = targets.numel()
    blocks = _blocks(sets, layer)
    parts = _parts(sets, rows, blocks["BLOCK_T"])
    out = layer.recipient.new_empty(parts, *layer.recipient.shape)
    if rows:
        pool_kernel[rows, parts](
            sets.segments, sets.columns, targets, *_inputs(sets), *layer, dropout.seed, out,
            *_sizes(sets, layer), dropout.threshold, dropout.scale, DROP=dropout.threshold > 0,
            **blocks,
        )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0)


def pool_gradient(
    sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout, gradient: Tensor
) -> tuple[Tensor, ...]:
    """Gradients for the four tables."""
    rows = targets.numel()
    blocks = _blocks(sets, layer)
    parts = _parts(sets, rows, blocks["BLOCK_T"])
    by_row = layer.recipient.new_empty(3, parts, *layer.recipient.shape)
    by_source = torch.zeros_like(layer.source)
    if rows:
        pool_gradient_kernel[rows, parts](
            sets.segments, sets.columns, targets, *_inputs(sets), *layer, dropout.seed, gradient,
            by_row[0], by_source, by_row[1], by_row[2], *_sizes(sets, layer), dropout.threshold,
            dropout.scale, DROP=dropout.threshold > 0, **blocks,
        )  # fmt: skip
    by_target = by_row.sum(1)
    by_cosine, by_distance = by_target[1:].sum(2)
    return by_target[0], by_source, by_cosine, by_distance


def tilt(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    scorer: Scorer,
    contributions: Tensor,
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """See :func:`gnn_repair.kernels.sets.tilt`; nothing is kept for the gradient."""
    rows, classes = targets.numel(), contributions.shape[2]
    blocks = _blocks(sets, layer)
    parts = _parts(sets, rows, blocks["BLOCK_T"])
    out = contributions.new_empty(parts, *targets.shape, sets.groups, classes + 1)
    if rows:
        tilt_kernel[rows, parts](
            sets.segments, sets.columns, sets.rows, targets, *_inputs(sets), *layer, dropout.seed,
            *scorer, contributions, out, *_sizes(sets, layer), contributions.shape[1],
            classes, dropout.threshold, dropout.scale, BOUND, DROP=dropout.threshold > 0,
            BLOCK_C=triton.next_power_of_2(classes + 1), **blocks,
        )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0), out.new_empty(0)


def tilt_gradient(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    scorer: Scorer,
    contributions: Tensor,
    dropout: Dropout,
    kept: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients for output, bias and the four tables."""
    rows, classes = targets.numel(), contributions.shape[2]
    blocks = _blocks(sets, layer)
    parts = _parts(sets, rows, blocks["BLOCK_T"])
    by_row = layer.recipient.new_empty(4, parts, *layer.recipient.shape)
    by_bias = layer.recipient.new_empty(parts, *targets.shape)
    by_source = torch.zeros_like(layer.source)
    if rows:
        tilt_gradient_kernel[rows, parts](
            sets.segments, sets.columns, sets.rows, targets, *_inputs(sets), *layer, dropout.seed,
            *scorer, contributions, gradient, by_row[3], by_bias, by_row[0], by_source,
            by_row[1], by_row[2], *_sizes(sets, layer), contributions.shape[1], classes,
            dropout.threshold, dropout.scale, BOUND, DROP=dropout.threshold > 0,
            BLOCK_C=triton.next_power_of_2(classes + 1), **blocks,
        )  # fmt: skip
    by_target = by_row.sum(1)
    by_cosine, by_distance, by_output = by_target[1:].sum(2)
    return by_output, by_bias.sum((0, 2)), by_target[0], by_source, by_cosine, by_distance


def compare(
    segments: Tensor, columns: Tensor, recipients: Tensor, sources: Tensor
) -> tuple[Tensor, Tensor]:
    """h_v · h_a and ‖h_a − h_v‖² of every term."""
    members, nodes, width = recipients.shape
    terms = columns.numel()
    products = recipients.new_empty(members, terms)
    squares = torch.empty_like(products)
    owners = torch.repeat_interleave(segments.diff())
    if terms:
        compare_kernel[triton.cdiv(terms, 16), members](
            owners, columns, recipients, sources, products, squares, terms, nodes,
            sources.shape[1], width, BLOCK_T=16, BLOCK_D=128,
        )  # fmt: skip
    return products, squares


def drop_rows(values: Tensor, seed: Tensor, share: float) -> Tensor:
    """See :func:`gnn_repair.kernels.drop_rows`."""
    threshold, scale = round(share * 2**32), 1 / (1 - share)
    out = torch.empty_like(values)
    total, (_, rows, channels) = values.numel(), values.shape
    if total:
        drop_rows_kernel[(triton.cdiv(total, BLOCK),)](
            values, seed, out, total, rows, channels, threshold, scale, BLOCK=BLOCK
        )
    return out
