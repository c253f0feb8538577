"""Products of frozen rows on a GPU: cuBLAS, Triton kernels (float32) and their launches.

P rows, k columns, H channels, L picked rows with e nonzeros on average; operations and bytes a
member:

    cut              3·k·H operations, 4·k·H bytes read, 2·k·H a piece written
    tall_gradient    2·P·k·H operations, 4·P·(k + H) bytes read
    picked_product   2·L·e·H operations, 4·L·e·H bytes gathered (L2 while the weight fits)
    picked_gradient  2·L·e·H operations, 4·L·e·H bytes added atomically
    read_product     2·(j·d + k)·H operations a row read, 2·j·d + 4·k + 4·H bytes
    read_cut         3·H operations a row read, 8·H bytes
    read_gradient    2·j·d·H operations a row read, 2·(j − 1)·d + 4·H bytes
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnn_repair.kernels.products import SharedRows, picked_rows
from gnn_repair.kernels.sets import ReadRows

BLOCK = 2048
"""Numbers one program cuts."""
BUSY = 512
"""Programs of a product that keep a GPU busy."""
CHANNELS = 128
"""Channels one program works on."""
ROWS = 128
"""Rows that are read, or columns of X, one program works on."""
COLUMNS, STEP = 32, 64
"""How many of X's columns, or of the rows that are read, are summed over at a time. With four warps
and three stages these were the fastest of 90 settings on an H200, P = 19,717 and d = 500."""
DEEP = 16
"""Nonzeros one program reads at a time."""


@triton.jit(do_not_specialize=["count", "padded", "stride"])
def cut_kernel(values, out, count, padded, stride, H, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    """bfloat16 pieces of values[s] under one another; rows from count to padded are zero."""
    s = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + s * stride + place, mask=place < count * H, other=0.0)
    high = value.to(tl.bfloat16)
    low = (value - high.to(tl.float32)).to(tl.bfloat16)
    size = padded.to(tl.int64) * H
    first = out + s * PIECES * size + place
    for piece in tl.static_range(PIECES - 1):
        tl.store(first + piece * size, high, mask=place < size)
    tl.store(first + (PIECES - 1) * size, low, mask=place < size)


@triton.jit(do_not_specialize=["P"])
def tall_gradient_kernel(
    rows, upstream, out, numbers, counts, P, K, H, READ: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """out[s, chunk, k, h] = Σ_p rows[s, p, k] · upstream[s, p, h] over a chunk of p, or with READ
    of numbers[s, :counts[s]]."""
    s, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    across = tl.cdiv(H, BLOCK_H)
    k = (tl.program_id(2) // across) * BLOCK_K + tl.arange(0, BLOCK_K)
    h = (tl.program_id(2) % across) * BLOCK_H + tl.arange(0, BLOCK_H)
    count = tl.load(counts + s) if READ else P
    each = tl.cdiv(tl.cdiv(count, BLOCK_P), tl.num_programs(1)) * BLOCK_P
    first = chunk * each
    last = tl.minimum(first + each, count)
    total = tl.zeros((BLOCK_K, BLOCK_H), dtype=tl.float32)
    for at in range(first, last, BLOCK_P):
        p = at + tl.arange(0, BLOCK_P)
        valid = p < last
        if READ:
            p = tl.load(numbers + s * P + p, mask=valid, other=0)
        place = s * P + p
        left_mask = (k < K)[:, None] & valid[None, :]
        left = tl.load(rows + place[None, :] * K + k[:, None], mask=left_mask, other=0.0)
        right_mask = valid[:, None] & (h < H)[None, :]
        right = tl.load(upstream + place[:, None] * H + h[None, :], mask=right_mask, other=0.0)
        # Three products of tensor-core pieces: the precision of float32.
        total += tl.dot(left, right, input_precision="tf32x3")
    row = (s * tl.num_programs(1) + chunk) * K + k
    mask = (k < K)[:, None] & (h < H)[None, :]
    tl.store(out + row[:, None] * H + h[None, :], total, mask=mask)


@triton.jit(do_not_specialize=["L", "M", "width", "K", "stride"])
def picked_product_kernel(
    indptr, columns, values, own, index, weight, out, L, M, width, K, stride, H,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """out[s, l] = [X, Z_s] W_s in row index[s, l], X by its nonzeros."""
    row = tl.program_id(0).to(tl.int64)
    s = row // L
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = h < H
    node = tl.load(index + row)
    start, stop = tl.load(indptr + node), tl.load(indptr + node + 1)
    table = weight + s * stride
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for at in range(start, stop, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        valid = t < stop
        column = tl.load(columns + t, mask=valid, other=0).to(tl.int64)
        x = tl.load(values + t, mask=valid, other=0.0)
        mask = valid[:, None] & inside[None, :]
        w = tl.load(table + column[:, None] * H + h[None, :], mask=mask, other=0.0)
        total += tl.sum(x[:, None] * w, axis=0)
    for k in range(K):
        z = tl.load(own + (s * M + node) * K + k)
        total += z * tl.load(table + (width + k) * H + h, mask=inside, other=0.0)
    tl.store(out + row * H + h, total, mask=inside)


@triton.jit(do_not_specialize=["L", "M", "width", "K"])
def picked_gradient_kernel(
    indptr, columns, values, own, index, upstream, out, L, M, width, K, H,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """out[s] += [X, Z_s]ᵀ G_s over the picked rows, by atomic additions."""
    row = tl.program_id(0).to(tl.int64)
    s = row // L
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = h < H
    node = tl.load(index + row)
    start, stop = tl.load(indptr + node), tl.load(indptr + node + 1)
    table = out + s * (width + K) * H
    g = tl.load(upstream + row * H + h, mask=inside, other=0.0)
    for at in range(start, stop, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        valid = t < stop
        column = tl.load(columns + t, mask=valid, other=0).to(tl.int64)
        x = tl.load(values + t, mask=valid, other=0.0)
        mask = valid[:, None] & inside[None, :]
        place = column[:, None] * H + h[None, :]
        tl.atomic_add(table + place, x[:, None] * g[None, :], mask=mask, sem="relaxed")
    for k in range(K):
        z = tl.load(own + (s * M + node) * K + k)
        tl.atomic_add(table + (width + k) * H + h, z * g, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["P", "K", "width", "stride"])
def read_product_kernel(
    wide, own, numbers, counts, pieces, weight, out, P, padded, width, K, stride, H,
    EXACT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """out[s, p] = [X, Z_s] W_s in the rows p of numbers[s, :counts[s]]."""
    s = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    count = tl.load(counts + s)
    if tl.program_id(0) * BLOCK_P < count:
        h = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)
        inside, valid = h < H, at < count
        row = tl.load(numbers + s * P + at, mask=valid, other=0).to(tl.int64)
        total = tl.zeros((BLOCK_P, BLOCK_H), dtype=tl.float32)
        last: tl.constexpr = 1 if EXACT else 2
        D = (last + 1) * padded
        for first in range(0, padded, BLOCK_D):
            d = first + tl.arange(0, BLOCK_D)
            known = d < padded
            mask = valid[:, None] & known[None, :]
            left = wide + row[:, None] * D + d[None, :]
            x = tl.load(left, mask=mask, other=0.0)
            across = known[:, None] & inside[None, :]
            right = pieces + (s * D + d)[:, None] * H + h[None, :]
            high = tl.load(right, mask=across, other=0.0)
            low = tl.load(right + last * padded * H, mask=across, other=0.0)
            total = tl.dot(x, high, total)
            total = tl.dot(x, low, total)
            if not EXACT:
                total = tl.dot(tl.load(left + padded, mask=mask, other=0.0), high, total)
        for k in range(K):
            z = tl.load(own + (s * P + row) * K + k, mask=valid, other=0.0)
            w = tl.load(weight + s * stride + (width + k) * H + h, mask=inside, other=0.0)
            total += z[:, None] * w[None, :]
        mask = valid[:, None] & inside[None, :]
        tl.store(out + (s * P + row)[:, None] * H + h[None, :], total, mask=mask)


@triton.jit(do_not_specialize=["P"])
def read_cut_kernel(
    values, numbers, counts, out, size, P, H, BLOCK_P: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Both bfloat16 pieces of the rows numbers[s, :counts[s]], one behind the other."""
    s = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    h = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)
    valid = at < tl.load(counts + s)
    mask = valid[:, None] & (h < H)[None, :]
    row = tl.load(numbers + s * P + at, mask=valid, other=0).to(tl.int64)
    value = tl.load(values + (s * P + row)[:, None] * H + h[None, :], mask=mask, other=0.0)
    high = value.to(tl.bfloat16)
    low = (value - high.to(tl.float32)).to(tl.bfloat16)
    place = out + (s * P + at)[:, None] * H + h[None, :]
    tl.store(place, high, mask=mask)
    tl.store(place + size, low, mask=mask)


@triton.jit(do_not_specialize=["P", "width", "size"])
def read_gradient_kernel(
    wide, numbers, counts, pieces, out, size, P, padded, width, H,
    EXACT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """out[s, chunk] = Xᵀ G_s over a chunk of the rows numbers[s, :counts[s]], G_s in pieces."""
    chunk, s = tl.program_id(1), tl.program_id(2).to(tl.int64)
    across = tl.cdiv(H, BLOCK_H)
    d = (tl.program_id(0) // across) * BLOCK_D + tl.arange(0, BLOCK_D)
    h = (tl.program_id(0) % across) * BLOCK_H + tl.arange(0, BLOCK_H)
    count, inside, known = tl.load(counts + s), h < H, d < padded
    each = tl.cdiv(tl.cdiv(count, BLOCK_P), tl.num_programs(1)) * BLOCK_P
    last = tl.minimum(chunk * each + each, count)
    D = (2 if EXACT else 3) * padded
    total = tl.zeros((BLOCK_D, BLOCK_H), dtype=tl.float32)
    for first in range(chunk * each, last, BLOCK_P):
        at = first + tl.arange(0, BLOCK_P)
        valid = at < last
        row = tl.load(numbers + s * P + at, mask=valid, other=0).to(tl.int64)
        mask = valid[:, None] & inside[None, :]
        right = pieces + (s * P + at)[:, None] * H + h[None, :]
        high = tl.load(right, mask=mask, other=0.0)
        low = tl.load(right + size, mask=mask, other=0.0)
        mask = valid[:, None] & known[None, :]
        left = wide + row[:, None] * D + d[None, :]
        x = tl.trans(tl.load(left, mask=mask, other=0.0))
        total = tl.dot(x, high, total)
        total = tl.dot(x, low, total)
        if not EXACT:
            rest = tl.load(left + padded, mask=mask, other=0.0)
            total = tl.dot(tl.trans(rest), high, total)
    line = (s * tl.num_programs(1) + chunk) * width + d
    mask = (d < width)[:, None] & inside[None, :]
    tl.store(out + line[:, None] * H + h[None, :], total, mask=mask)


# Launches -----------------------------------------------------------------------------------------


def cut(values: Tensor, pieces: int, padded: int) -> Tensor:
    """The bfloat16 pieces of float32 ``values`` [S, k, H], [S, pieces · padded, H]."""
    members, count, channels = values.shape
    values = _rows_together(values)
    out = values.new_empty(members, pieces * padded, channels, dtype=torch.bfloat16)
    cut_kernel[triton.cdiv(padded * channels, BLOCK), members](
        values, out, count, padded, values.stride(0), channels, PIECES=pieces, BLOCK=BLOCK
    )
    return out


def _rows_together(values: Tensor) -> Tensor:
    """``values`` [S, k, H] with each member's rows in one block."""
    together = values.stride(2) == 1 and values.stride(1) == values.shape[2]
    return values if together else values.contiguous()


def wide_product(shared: Tensor, pieces: Tensor) -> Tensor:
    """[m, k] times [S, k, H] on tensor cores, accumulated in float32."""
    out: Tensor = torch.bmm(shared.expand(pieces.shape[0], -1, -1), pieces, out_dtype=torch.float32)
    return out


def tall_gradient(rows: Tensor, upstream: Tensor, read: ReadRows | None = None) -> Tensor:
    """Rᵀ G of every member, [S, k, H]: the sum over P, or over what is read, cut into chunks."""
    members, count, width = rows.shape
    channels = upstream.shape[2]
    blocks = {"BLOCK_P": 64, "BLOCK_K": 16 if width <= 16 else 64, "BLOCK_H": CHANNELS}
    across = triton.cdiv(width, blocks["BLOCK_K"]) * triton.cdiv(channels, CHANNELS)
    wanted = triton.cdiv(BUSY, members * across)
    chunks = max(1, min(wanted, triton.cdiv(count, 2 * blocks["BLOCK_P"])))
    out = rows.new_empty(members, chunks, width, channels)
    tall_gradient_kernel[members, chunks, across](
        rows.contiguous(), upstream.contiguous(), out, *(read or (out, out)), count, width,
        channels, READ=read is not None, **blocks,
    )  # fmt: skip
    return out.sum(1)


def picked_product(shared: SharedRows, own: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """[X, Z_s] W_s of each member's own choice of rows [S, L], [S, L, H]."""
    if shared.nonzeros is None:
        return torch.bmm(picked_rows(shared, own, index), weight)
    weight, channels = _rows_together(weight), weight.shape[2]
    out = weight.new_empty(*index.shape, channels)
    if index.numel():
        pattern, values = shared.nonzeros
        picked_product_kernel[index.numel(), triton.cdiv(channels, CHANNELS)](
            pattern.indptr, pattern.indices, values, own, index, weight, out, index.shape[1],
            own.shape[1], shared.width, own.shape[2], weight.stride(0), channels,
            BLOCK_T=DEEP, BLOCK_H=CHANNELS,
        )  # fmt: skip
    return out


def picked_gradient(shared: SharedRows, own: Tensor, index: Tensor, upstream: Tensor) -> Tensor:
    """The gradient of :func:`picked_product` for the weight, [S, d + k, H]."""
    if shared.nonzeros is None:
        return torch.bmm(picked_rows(shared, own, index).mT, upstream)
    channels = upstream.shape[2]
    out = upstream.new_zeros(index.shape[0], shared.width + own.shape[2], channels)
    if index.numel():
        pattern, values = shared.nonzeros
        picked_gradient_kernel[index.numel(), triton.cdiv(channels, CHANNELS)](
            pattern.indptr, pattern.indices, values, own, index, upstream, out, index.shape[1],
            own.shape[1], shared.width, own.shape[2], channels, BLOCK_T=DEEP, BLOCK_H=CHANNELS,
        )  # fmt: skip
    return out


def read_product(shared: SharedRows, own: Tensor, read: ReadRows, weight: Tensor) -> Tensor:
    """[X, Z_s] W_s of every member, [S, P, H], where it is read."""
    members, rows, narrow = own.shape
    weight, channels = _rows_together(weight), weight.shape[2]
    pieces = shared.cut(weight[:, : shared.width])
    out = weight.new_empty(members, rows, channels)
    # A program for every row that could be read; those behind the count end at once.
    read_product_kernel[triton.cdiv(rows, ROWS), members, triton.cdiv(channels, CHANNELS)](
        shared.wide, own.contiguous(), *read, pieces, weight, out, rows, shared.padded,
        shared.width, narrow, weight.stride(0), channels,
        EXACT=shared.exact, BLOCK_P=ROWS, BLOCK_D=COLUMNS, BLOCK_H=CHANNELS, num_stages=3,
    )  # fmt: skip
    return out


def read_gradient(shared: SharedRows, own: Tensor, read: ReadRows, upstream: Tensor) -> Tensor:
    """The gradient of :func:`read_product` for the weight, [S, d + k, H]."""
    members, rows, channels = upstream.shape
    across = triton.cdiv(channels, CHANNELS)
    pieces = upstream.new_empty(2, *upstream.shape, dtype=torch.bfloat16)
    read_cut_kernel[triton.cdiv(rows, STEP), members, across](
        upstream, *read, pieces, upstream.numel(), rows, channels, BLOCK_P=STEP, BLOCK_H=CHANNELS
    )
    tiles = triton.cdiv(shared.width, ROWS) * across
    chunks = max(1, min(BUSY // (2 * members * tiles), triton.cdiv(rows, 4 * STEP)))
    parts = upstream.new_empty(members, chunks, shared.width, channels)
    read_gradient_kernel[tiles, chunks, members](
        shared.wide, *read, pieces, parts, upstream.numel(), rows, shared.padded, shared.width,
        channels, EXACT=shared.exact, BLOCK_P=STEP, BLOCK_D=ROWS, BLOCK_H=CHANNELS, num_stages=3,
    )  # fmt: skip
    out = upstream.new_empty(members, shared.width + own.shape[2], channels)
    torch.sum(parts, 1, out=out[:, : shared.width])
    out[:, shared.width :] = tall_gradient(own, upstream, read)
    return out
