"""GPU implementations of products of frozen rows: cuBLAS and launches of the Triton kernels."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from gnn_repair.kernels.products import SharedRows
from gnn_repair.kernels.products import plain as plain
from gnn_repair.kernels.products import triton_kernels as kernels
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


def cut(values: Tensor, pieces: int, padded: int) -> Tensor:
    """The bfloat16 pieces of float32 ``values`` [S, k, H], [S, pieces · padded, H]."""
    members, count, channels = values.shape
    values = _rows_together(values)
    out = values.new_empty(members, pieces * padded, channels, dtype=torch.bfloat16)
    kernels.cut[triton.cdiv(padded * channels, BLOCK), members](
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
    if rows.dtype != torch.float32:
        return plain.tall_gradient(rows, upstream)
    members, count, width = rows.shape
    channels = upstream.shape[2]
    blocks = {"BLOCK_P": 64, "BLOCK_K": 16 if width <= 16 else 64, "BLOCK_H": CHANNELS}
    across = triton.cdiv(width, blocks["BLOCK_K"]) * triton.cdiv(channels, CHANNELS)
    wanted = triton.cdiv(BUSY, members * across)
    chunks = max(1, min(wanted, triton.cdiv(count, 2 * blocks["BLOCK_P"])))
    out = rows.new_empty(members, chunks, width, channels)
    kernels.tall_gradient[members, chunks, across](
        rows.contiguous(), upstream.contiguous(), out, *(read or (out, out)), count, width,
        channels, READ=read is not None, **blocks,
    )  # fmt: skip
    return out.sum(1)


def picked_product(shared: SharedRows, own: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """[X, Z_s] W_s of each member's own choice of rows [S, L], [S, L, H]."""
    if shared.nonzeros is None:
        return plain.picked_product(shared, own, index, weight)
    weight, channels = _rows_together(weight), weight.shape[2]
    out = weight.new_empty(*index.shape, channels)
    if index.numel():
        pattern, values = shared.nonzeros
        kernels.picked_product[index.numel(), triton.cdiv(channels, CHANNELS)](
            pattern.indptr, pattern.indices, values, own, index, weight, out, index.shape[1],
            own.shape[1], shared.width, own.shape[2], weight.stride(0), channels,
            BLOCK_T=DEEP, BLOCK_H=CHANNELS,
        )  # fmt: skip
    return out


def picked_gradient(shared: SharedRows, own: Tensor, index: Tensor, upstream: Tensor) -> Tensor:
    """The gradient of :func:`picked_product` for the weight, [S, d + k, H]."""
    if shared.nonzeros is None:
        return plain.picked_gradient(shared, own, index, upstream)
    channels = upstream.shape[2]
    out = upstream.new_zeros(index.shape[0], shared.width + own.shape[2], channels)
    if index.numel():
        pattern, values = shared.nonzeros
        kernels.picked_gradient[index.numel(), triton.cdiv(channels, CHANNELS)](
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
    kernels.read_product[triton.cdiv(rows, ROWS), members, triton.cdiv(channels, CHANNELS)](
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
    kernels.read_cut[triton.cdiv(rows, STEP), members, across](
        upstream, *read, pieces, upstream.numel(), rows, channels, BLOCK_P=STEP, BLOCK_H=CHANNELS
    )
    tiles = triton.cdiv(shared.width, ROWS) * across
    chunks = max(1, min(BUSY // (2 * members * tiles), triton.cdiv(rows, 4 * STEP)))
    parts = upstream.new_empty(members, chunks, shared.width, channels)
    kernels.read_gradient[tiles, chunks, members](
        shared.wide, *read, pieces, parts, upstream.numel(), rows, shared.padded, shared.width,
        channels, EXACT=shared.exact, BLOCK_P=STEP, BLOCK_D=ROWS, BLOCK_H=CHANNELS, num_stages=3,
    )  # fmt: skip
    out = upstream.new_empty(members, shared.width + own.shape[2], channels)
    torch.sum(parts, 1, out=out[:, : shared.width])
    out[:, shared.width :] = tall_gradient(own, upstream, read)
    return out
