"""Products of frozen rows with trained weights, with gradients for the weights.

The rows [X, Z_s] of member s have a part X that all members share, often thousands wide and
sparse, and a narrow part Z_s of their own. All rows at once run on tensor cores: X and W are each
written as a sum of bfloat16 pieces, and the products of pieces are accumulated in float32. X is
cut once; a 0/1 matrix is its own first piece. What is lost is about 2⁻¹⁷ of |X||W|, close to the
rounding of a float32 sum of that length. A few picked rows go by their nonzeros, in float32.
P rows, d shared columns, H channels, S members, j = 2 or 3 pieces:

    times      2·j·S·P·d·H operations, 2·j·(P·d + S·d·H) + 4·S·P·H bytes
    gradient   the same operations, 2·j·(P·d + S·P·H) + 4·S·d·H bytes

A table of which only some rows are read costs those rows' share of this (:func:`read_product`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_repair.kernels.aggregate import Pattern, kernel_module
from gnn_repair.kernels.sets import ReadRows

ALIGNMENT = 16
"""Tensor cores read rows of a multiple of 8 numbers without copying them first; of a multiple of
16 Triton knows that it may load several at once."""
SPARSE_BELOW = 0.25
"""Picked rows with a smaller share of nonzeros are multiplied by these alone."""


def _aligned(count: int) -> int:
    return count + -count % ALIGNMENT


class SharedRows:
    """X [P, d] float32, the same for all members."""

    def __init__(self, x: Tensor) -> None:
        self.dense = x
        self.rows, self.width = x.shape
        self.kernels = kernel_module("products", x)
        """None where rows are multiplied as they are, without pieces."""
        high = x.bfloat16()
        low = (x - high.float()).bfloat16()
        self.exact = not bool(low.any())
        """Whether X is its own first piece."""
        pieces = (high, high) if self.exact else (high, low, high)
        across, down = (-count % ALIGNMENT for count in (self.width, self.rows))
        padded = [torch.nn.functional.pad(piece, (0, across, 0, down)) for piece in pieces]
        self.wide = torch.cat([piece[: self.rows] for piece in padded], dim=1)
        """[P, j·d] for X W."""
        self.tall = torch.cat(padded).t()
        """[d, j·P] for Xᵀ G."""
        self.padded = self.width + across
        """Columns of one piece in ``wide``."""

    @cached_property
    def nonzeros(self) -> tuple[Pattern, Tensor] | None:
        """X by its nonzeros; None where it is not sparse."""
        if int(self.dense.count_nonzero()) >= SPARSE_BELOW * self.dense.numel():
            return None
        return Pattern.from_dense(self.dense)

    def times(self, weight: Tensor) -> Tensor:
        """X W of every member: [S, d, H] gives [S, P, H]."""
        return self.kernels.wide_product(self.wide, self.cut(weight))

    def gradient(self, upstream: Tensor) -> Tensor:
        """Xᵀ G of every member: [S, P, H] gives [S, d, H]."""
        out: Tensor = self.kernels.wide_product(self.tall, self.cut(upstream))
        return out[:, : self.width]

    def cut(self, values: Tensor) -> Tensor:
        """The pieces of ``values`` [S, k, H] that stand opposite X's, each padded like these."""
        pieces = 2 if self.exact else 3
        return self.kernels.cut(values, pieces, _aligned(values.shape[1]))


def product(own: Tensor, weight: Tensor, shared: SharedRows | None = None) -> Tensor:
    """[X, Z_s] W_s of every member, [S, P, H].

    Args:
        own: Z, [S, P, k]; with a gradient only where nothing is shared.
        weight: [S, d + k, H], or [S, k, H] where nothing is shared.
        shared: X.
    """
    if kernel_module("products", own) is None or (own.requires_grad and shared is None):
        return plain_product(own, weight, shared)
    return _Product.apply(own, weight, shared)  # type: ignore[no-untyped-call]


def picked_product(shared: SharedRows, own: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """[X, Z_s] W_s of each member's own choice of rows ``index`` [S, L], [S, L, H]."""
    if shared.kernels is None:
        return torch.bmm(picked_rows(shared, own, index), weight)
    return _Rows.apply("picked", shared, own, index, weight)  # type: ignore[no-untyped-call]


def read_product(shared: SharedRows, own: Tensor, read: ReadRows, weight: Tensor) -> Tensor:
    """[X, Z_s] W_s of every member, [S, P, H], right in the rows that are read alone.

    Its gradient takes that of the other rows for zero.
    """
    if shared.kernels is None:
        return plain_product(own, weight, shared)
    return _Rows.apply("read", shared, own, read, weight)  # type: ignore[no-untyped-call]


def plain_product(own: Tensor, weight: Tensor, shared: SharedRows | None = None) -> Tensor:
    """:func:`product` in PyTorch's own operations."""
    if shared is None:
        return torch.bmm(own, weight)
    by_shared, by_own = weight.split([shared.width, weight.shape[1] - shared.width], dim=1)
    return torch.matmul(shared.dense, by_shared) + torch.bmm(own, by_own)


def picked_rows(shared: SharedRows, own: Tensor, index: Tensor) -> Tensor:
    """[X, Z_s] in each member's own choice of rows [S, L], [S, L, d + k]."""
    chosen = own.gather(1, index.unsqueeze(2).expand(-1, -1, own.shape[2]))
    return torch.cat([shared.dense[index], chosen], dim=2)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, weight: Tensor, shared: SharedRows | None) -> Tensor:
        ctx.save_for_backward(own)
        ctx.shared = shared
        if shared is None:
            return torch.bmm(own, weight)
        out = shared.times(weight[:, : shared.width])
        return out.baddbmm_(own, weight[:, shared.width :])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (own,) = ctx.saved_tensors
        upstream = upstream.contiguous()
        by_own = kernel_module("products", own).tall_gradient(own, upstream)
        if ctx.shared is None:
            return None, by_own, None
        return None, torch.cat([ctx.shared.gradient(upstream), by_own], dim=1), None


class _Rows(torch.autograd.Function):
    """Some rows alone: ``picked`` ones, each member's own choice [S, L], or those that are read."""

    @staticmethod
    def forward(
        ctx: Any, kind: str, shared: SharedRows, own: Tensor, rows: Any, weight: Tensor
    ) -> Tensor:
        ctx.kind, ctx.shared, ctx.rows = kind, shared, rows
        ctx.save_for_backward(own)
        return getattr(shared.kernels, f"{kind}_product")(shared, own, rows, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradient = getattr(ctx.shared.kernels, f"{ctx.kind}_gradient")
        by_weight = gradient(ctx.shared, *ctx.saved_tensors, ctx.rows, upstream.contiguous())
        return None, None, None, None, by_weight
