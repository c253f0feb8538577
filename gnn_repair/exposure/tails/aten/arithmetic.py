"""Sums, products and quotients, element by element."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.tails.aten.registry import Result, Translation
from gnn_repair.exposure.tails.builder import Builder, Operand, Unfollowed
from gnn_repair.exposure.tails.layout import Traced, frame_of
from gnn_repair.exposure.tails.operations import Add, Multiply, Normalize, Select


def add(builder: Builder, out: Tensor, left: Operand, right: Operand, alpha: float = 1) -> Result:
    """left + α · right."""
    frame, (a, b) = builder.aligned(out.shape, left, right)
    if isinstance(a, int) and isinstance(b, int):
        value = builder.emit(Add((a, b), (1.0, float(alpha))), frame.width)
    elif isinstance(a, int):
        value = builder.scaled(a, 1.0, alpha * b)
    else:
        assert isinstance(b, int)
        value = builder.scaled(b, float(alpha), a)
    return builder.shown(value, frame)


def sub(builder: Builder, out: Tensor, left: Operand, right: Operand, alpha: float = 1) -> Result:
    """left − α · right."""
    return add(builder, out, left, right, -alpha)


def rsub(builder: Builder, out: Tensor, left: Operand, right: Operand, alpha: float = 1) -> Result:
    """right − α · left."""
    return add(builder, out, right, left, -alpha)


def neg(builder: Builder, out: Tensor, source: Traced) -> Result:
    """−x."""
    return mul(builder, out, source, -1.0)


def mul(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
    """left ⊙ right."""
    frame, (a, b) = builder.aligned(out.shape, left, right)
    if isinstance(a, int) and isinstance(b, int):
        made = (
            builder.applied("square", a) if a == b else builder.emit(Multiply((a, b)), frame.width)
        )
        return builder.shown(made, frame)
    value, factor = (a, b) if isinstance(a, int) else (b, a)
    assert isinstance(value, int)
    return builder.shown(builder.scaled(value, factor, 0.0), frame)


def div(
    builder: Builder, out: Tensor, left: Operand, right: Operand, rounding_mode: str | None = None
) -> Result:
    """left / right; by the norm of left itself, ``normalize``."""
    if rounding_mode is not None:
        raise Unfollowed
    if not isinstance(right, Traced):
        frame, (value, divisor) = builder.aligned(out.shape, left, right)
        assert isinstance(value, int) and isinstance(divisor, Tensor)
        return builder.shown(builder.scaled(value, 1 / divisor, 0.0), frame)
    if isinstance(left, Traced) and (normal := _normalized(builder, out, left, right)) is not None:
        return normal
    value, frame = builder.flat(right)
    inverse = builder.shown(builder.applied("reciprocal", value), frame)
    return mul(builder, out, left, inverse)


def _normalized(builder: Builder, out: Tensor, left: Traced, right: Traced) -> Traced | None:
    norm = builder.norms.get(right.value)
    if norm is None or left.shape != out.shape:
        return None
    value, frame = builder.flat(left)
    order = _order(builder, value, norm.source)
    if order is None:
        return None
    # Where every channel's norm stands among the norms: that of the part the channel is in.
    found = frame_of(right.viewed(lambda t: t.expand(out.shape)), builder.num_nodes)
    places = torch.arange(frame.width, device=builder.device) // norm.size
    if found is None or found[0] != frame or not torch.equal(found[1][order], places):
        return None
    normal = builder.emit(Normalize((norm.source,), norm.size, norm.eps), frame.width)
    return builder.shown(builder.select(normal, order.argsort()), frame)


def _order(builder: Builder, value: int, source: int) -> Tensor | None:
    """How the channels of a value are permuted to make the source; None: it is made otherwise."""
    whole = torch.arange(builder.widths[value], device=builder.device)
    made = builder.operations[source - 1] if source else None
    if source == value:
        return whole
    permuted = isinstance(made, Select) and made.inputs == (value,)
    if not permuted or not torch.equal(made.index.sort().values, whole):  # type: ignore[union-attr]
        return None
    return made.index  # type: ignore[union-attr]


def addcmul(
    builder: Builder, out: Tensor, base: Operand, left: Operand, right: Operand, value: float = 1
) -> Result:
    """base + value · left ⊙ right."""
    if not isinstance(left, Traced) and not isinstance(right, Traced):
        return add(builder, out, base, left * right, value)
    return add(builder, out, base, mul(builder, out, left, right), value)  # type: ignore[arg-type]


def lerp(builder: Builder, out: Tensor, start: Operand, end: Operand, weight: Operand) -> Result:
    """start + weight ⊙ (end − start)."""
    if not isinstance(start, Traced) and not isinstance(end, Traced):
        gap: Any = end - start
    else:
        gap = sub(builder, out, end, start)
    step = mul(builder, out, gap, weight)
    return add(builder, out, start, step)  # type: ignore[arg-type]


def masked_fill(
    builder: Builder, out: Tensor, source: Operand, mask: Operand, value: Operand
) -> Result:
    """x where a constant mask is off."""
    if not isinstance(source, Traced) or isinstance(mask, Traced) or isinstance(value, Traced):
        raise Unfollowed
    frame, (number, marks) = builder.aligned(out.shape, source, mask)
    assert isinstance(number, int) and isinstance(marks, Tensor)
    return builder.shown(builder.scaled(number, 1 - marks, marks * float(value)), frame)


TRANSLATIONS: dict[str, Translation] = {
    "add": add,
    "sub": sub,
    "subtract": sub,
    "rsub": rsub,
    "neg": neg,
    "mul": mul,
    "multiply": mul,
    "div": div,
    "true_divide": div,
    "addcmul": addcmul,
    "lerp": lerp,
    "masked_fill": masked_fill,
}
