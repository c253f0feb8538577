"""Products of frozen rows in plain PyTorch: the reference, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.kernels.products import SharedRows
from gnn_repair.kernels.sets import ReadRows


def cut(values: Tensor, pieces: int, padded: int) -> Tensor:
    """See :func:`gnn_repair.kernels.products.SharedRows.times`."""
    members, count, channels = values.shape
    out = values.new_zeros(members, pieces, padded, channels, dtype=torch.bfloat16)
    high = values.bfloat16()
    out[:, :-1, :count] = high.unsqueeze(1)
    out[:, -1, :count] = values - high
    return out.view(members, pieces * padded, channels)


def wide_product(shared: Tensor, pieces: Tensor) -> Tensor:
    """[m, k] times [S, k, H], both bfloat16, accumulated in float32."""
    return torch.matmul(shared.float(), pieces.float())


def tall_gradient(rows: Tensor, upstream: Tensor) -> Tensor:
    """Rᵀ G of every member: [S, P, k] and [S, P, H] give [S, k, H]."""
    return torch.bmm(rows.mT, upstream)


def picked_product(shared: SharedRows, own: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """[X, Z_s] W_s of each member's own choice of rows [S, L], [S, L, H]."""
    return torch.bmm(_picked(shared, own, index), weight)


def picked_gradient(shared: SharedRows, own: Tensor, index: Tensor, upstream: Tensor) -> Tensor:
    """The gradient of :func:`picked_product` for the weight, [S, d + k, H]."""
    return torch.bmm(_picked(shared, own, index).mT, upstream)


def read_product(shared: SharedRows, own: Tensor, read: ReadRows, weight: Tensor) -> Tensor:
    """[X, Z_s] W_s in the rows that are read, zero elsewhere: [S, P, H]."""
    out = weight.new_zeros(own.shape[0], own.shape[1], weight.shape[2])
    for table, rows, joined, by in zip(out, *_read(shared, own, read), weight, strict=True):
        table[rows] = joined @ by
    return out


def read_gradient(shared: SharedRows, own: Tensor, read: ReadRows, upstream: Tensor) -> Tensor:
    """The gradient of :func:`read_product` for the weight, [S, d + k, H]."""
    each = zip(*_read(shared, own, read), upstream, strict=True)
    return torch.stack([joined.mT @ above[rows] for rows, joined, above in each])


def _read(shared: SharedRows, own: Tensor, read: ReadRows) -> tuple[list[Tensor], list[Tensor]]:
    """The rows that each member reads, and [X, Z_s] there."""
    ends = zip(read.numbers, read.counts.tolist(), strict=True)
    rows = [numbers[:count].long() for numbers, count in ends]
    joined = zip(own, rows, strict=True)
    return rows, [torch.cat([shared.dense[at], mine[at]], dim=1) for mine, at in joined]


def _picked(shared: SharedRows, own: Tensor, index: Tensor) -> Tensor:
    chosen = own.gather(1, index.unsqueeze(2).expand(-1, -1, own.shape[2]))
    return torch.cat([shared.dense[index], chosen], dim=2)
