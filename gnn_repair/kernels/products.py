"""Products of frozen rows with trained weights, with gradients for the weights.

The rows [X, Z_s] of member s have a part X that all members share, often thousands wide, and a
narrow part Z_s of their own. On a GPU the wide part runs on tensor cores: X and W are each written
as a sum of bfloat16 pieces, and the products of pieces are accumulated in float32. X is cut once;
a 0/1 matrix is its own first piece. What is lost is about 2⁻¹⁷ of |X||W|, close to the rounding
of a float32 sum of that length. P rows, d shared columns, H channels, S members, j = 2 or 3:

    times      2·j·S·P·d·H operations, 2·j·(P·d + S·d·H) + 4·S·P·H bytes
    gradient   the same operations, 2·j·(P·d + S·P·H) + 4·S·d·H bytes
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_repair.kernels import backend

ALIGNMENT = 8
"""Tensor cores read rows of a multiple of this many numbers without copying them first."""


class SharedRows:
    """X [P, d], cut into bfloat16 pieces for products from the left and from the right."""

    def __init__(self, x: Tensor) -> None:
        self.rows, self.width = x.shape
        high = x.bfloat16()
        low = (x - high.float()).bfloat16()
        self.exact = not bool(low.any())
        """Whether X is its own first piece."""
        pieces = (high, high) if self.exact else (high, low, high)
        across = -self.width % ALIGNMENT
        padded = [torch.nn.functional.pad(piece, (0, across)) for piece in pieces]
        self.wide = torch.cat(padded, dim=1)
        """[P, j·d] for X W."""
        down = -self.rows % ALIGNMENT
        self.tall = torch.cat([torch.nn.functional.pad(p, (0, 0, 0, down)) for p in padded]).t()
        """[d, j·P] for Xᵀ G."""

    def times(self, weight: Tensor) -> Tensor:
        """X W of every member: [S, d, H] gives [S, P, H]."""
        return _product(self.wide, self._cut(weight))

    def gradient(self, upstream: Tensor) -> Tensor:
        """Xᵀ G of every member: [S, P, H] gives [S, d, H]."""
        return _product(self.tall, self._cut(upstream))[:, : self.width]

    def _cut(self, values: Tensor) -> Tensor:
        """The pieces of ``values`` [S, k, H] under one another, each padded like X's."""
        members, count, channels = values.shape
        padded = count + -count % ALIGNMENT
        pieces = 2 if self.exact else 3
        out = values.new_empty(members, pieces, padded, channels, dtype=torch.bfloat16)
        if padded > count:
            out[:, :, count:] = 0
        high = out[:, 0, :count]
        high.copy_(values)
        if not self.exact:
            out[:, 1, :count] = high
        torch.sub(values, high, out=out[:, -1, :count])
        return out.view(members, pieces * padded, channels)


def _product(shared: Tensor, pieces: Tensor) -> Tensor:
    """[m, k] times [S, k, H], accumulated in float32."""
    left = shared.expand(pieces.shape[0], -1, -1)
    if left.device.type == "cuda":
        out: Tensor = torch.bmm(left, pieces, out_dtype=torch.float32)
        return out
    return torch.bmm(left.float(), pieces.float())


def product(rows: Tensor, weight: Tensor, shared: SharedRows | None = None) -> Tensor:
    """[X, Z_s] W_s of every member, [S, P, H].

    Args:
        rows: Z, [S, P, k], without gradient.
        weight: [S, d + k, H], or [S, k, H] where nothing is shared.
        shared: X.
    """
    out: Tensor = _Product.apply(rows, weight, shared)  # type: ignore[no-untyped-call]
    return out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, shared: SharedRows | None) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shared = shared
        if shared is None:
            return torch.bmm(rows, weight)
        out = shared.times(weight[:, : shared.width])
        return out.baddbmm_(rows, weight[:, shared.width :])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        upstream = upstream.contiguous()
        by_own: Tensor = backend(rows.device.type).tall_gradient(rows, upstream)
        if ctx.shared is None:
            return None, by_own, None
        return None, torch.cat([ctx.shared.gradient(upstream), by_own], dim=1), None
