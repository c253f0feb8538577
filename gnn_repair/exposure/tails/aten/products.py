"""Matrix products with constants, and of a node's own vectors with each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.tails.aten import arithmetic
from gnn_repair.exposure.tails.aten.reductions import summed
from gnn_repair.exposure.tails.aten.registry import Result, Translation
from gnn_repair.exposure.tails.builder import Builder, Operand, Unfollowed
from gnn_repair.exposure.tails.layout import Frame, Traced
from gnn_repair.exposure.tails.operations import Affine

WIDEST = 1 << 24
"""Numbers in the matrix of a product repeated over heads, beyond which it is kept opaque: 128 MB of
mostly zeros."""


def mm(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
    """[N, d] × [d, k] by a constant, from either side."""
    if isinstance(left, Traced) and isinstance(right, Tensor):
        return _from_right(builder, out, left, right)
    if isinstance(left, Tensor) and isinstance(right, Traced):
        turned = _from_right(builder, out.t(), right.viewed(lambda t: t.t()), left.t())
        assert isinstance(turned, Traced)
        return turned.viewed(lambda t: t.t())
    raise Unfollowed("mixes the values of different nodes")


def _from_right(builder: Builder, out: Tensor, left: Traced, right: Tensor) -> Result:
    value, frame = builder.flat(left)
    if frame.axis == len(frame.shape) - 1:
        raise Unfollowed("mixes the values of different nodes")
    repeats = frame.width // frame.shape[-1]
    if (frame.width * repeats * right.shape[1]) > WIDEST:
        raise Unfollowed
    weight = torch.kron(_identity(builder, repeats), right.detach().double().t().contiguous())
    return _affine(builder, value, weight, frame.last(right.shape[1], tuple(out.shape)))


def _identity(builder: Builder, size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64, device=builder.device)


def _affine(builder: Builder, value: int, weight: Tensor, frame: Frame) -> Result:
    bias = weight.new_zeros(weight.shape[0])
    return builder.shown(
        builder.emit(Affine((value,), weight.contiguous(), bias), frame.width), frame
    )


def mv(builder: Builder, out: Tensor, matrix: Operand, vector: Operand) -> Result:
    """[N, d] × [d]."""
    if not isinstance(matrix, Traced) or not isinstance(vector, Tensor):
        raise Unfollowed("mixes the values of different nodes")
    column = mm(builder, out.unsqueeze(1), matrix, vector.unsqueeze(1))
    assert isinstance(column, Traced)
    return column.viewed(lambda t: t.squeeze(1))


def bmm(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
    """[B, m, d] × [B, d, k]: a product for every head, or for every node."""
    if isinstance(left, Traced) and isinstance(right, Tensor):
        found = _by_head(builder, out, left, right)
        if found is not None:
            return found
    if isinstance(left, Tensor) and isinstance(right, Traced):
        turned = right.viewed(lambda t: t.mT)
        found = _by_head(builder, out.mT, turned, left.mT)
        if found is not None:
            return found.viewed(lambda t: t.mT)
    return _by_node(builder, out, left, right)


def _by_head(builder: Builder, out: Tensor, left: Traced, right: Tensor) -> Traced | None:
    """Nodes are the rows: one matrix for each of B heads, together block diagonal."""
    value, frame = builder.flat(left)
    if frame.shape != frame.outer or frame.axis != 1:
        return None
    weight = torch.block_diag(*right.detach().double().mT)
    made = _affine(
        builder, value, weight, Frame(tuple(out.shape), 1, tuple(out.shape), frame.places)
    )
    assert isinstance(made, Traced)
    return made


def _by_node(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
    """Nodes are the batch: products element by element, summed over d."""
    wide = (*out.shape[:2], left.shape[2], out.shape[2])  # type: ignore[union-attr]
    spread = [_expanded(side, axis, wide) for side, axis in ((left, 3), (right, 1))]
    terms = arithmetic.mul(builder, torch.empty(wide, device="meta"), *spread)
    assert isinstance(terms, Traced)
    return summed(builder, out, terms, [2])


def _expanded(side: Operand, axis: int, shape: tuple[int, ...]) -> Operand:
    if isinstance(side, Traced):
        return side.viewed(lambda t: t.unsqueeze(axis).expand(shape))
    assert isinstance(side, Tensor)
    return side.unsqueeze(axis).expand(shape)


def added(product: Translation) -> Translation:
    """β · base + α · product: addmm, addmv, baddbmm."""

    def translate(
        builder: Builder,
        out: Tensor,
        base: Operand,
        left: Operand,
        right: Operand,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> Result:
        if not isinstance(left, Traced) and not isinstance(right, Traced):
            raise Unfollowed
        made: Any = product(builder, out, left, right)
        if alpha != 1:
            made = arithmetic.mul(builder, out, made, float(alpha))
        if beta != 1 and not isinstance(base, Traced):
            base = base * beta
        elif beta != 1:
            base = arithmetic.mul(builder, out, base, float(beta))  # type: ignore[assignment]
        return arithmetic.add(builder, out, base, made)

    return translate


TRANSLATIONS: dict[str, Translation] = {
    "mm": mm,
    "mv": mv,
    "bmm": bmm,
    "addmm": added(mm),
    "addmv": added(mv),
    "baddbmm": added(bmm),
}
