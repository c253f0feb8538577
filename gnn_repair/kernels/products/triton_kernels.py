"""GPU kernels of products of frozen rows, compiled by Triton; see product_gpu.

P rows, k columns, H channels, L picked rows with e nonzeros on average; operations and bytes a
member:

    cut              3·k·H operations, 4·k·H bytes read, 2·k·H a piece written
    tall_gradient    2·P·k·H operations, 4·P·(k + H) bytes read
    picked_product   2·L·e·H operations, 4·L·e·H bytes gathered (L2 while the weight fits)
    picked_gradient  2·L·e·H operations, 4·L·e·H bytes added atomically
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "padded", "stride"])
def cut(values, out, count, padded, stride, H, PIECES: tl.constexpr, BLOCK: tl.constexpr):
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
def tall_gradient(
    rows, upstream, out, P, K, H,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """out[s, chunk, k, h] = Σ_p rows[s, p, k] · upstream[s, p, h] over a chunk of p."""
    s, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    across = tl.cdiv(H, BLOCK_H)
    k = (tl.program_id(2) // across) * BLOCK_K + tl.arange(0, BLOCK_K)
    h = (tl.program_id(2) % across) * BLOCK_H + tl.arange(0, BLOCK_H)
    each = tl.cdiv(tl.cdiv(P, BLOCK_P), tl.num_programs(1)) * BLOCK_P
    first = chunk * each
    last = tl.minimum(first + each, P)
    total = tl.zeros((BLOCK_K, BLOCK_H), dtype=tl.float32)
    for at in range(first, last, BLOCK_P):
        p = at + tl.arange(0, BLOCK_P)
        valid = p < last
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
def picked_product(
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
def picked_gradient(
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
