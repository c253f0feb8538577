"""Interval arithmetic through the operations, and what the sums behind a value may come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gnn_repair.exposure.tails.operations import (
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    Multiply,
    Operation,
    Scale,
    Select,
)
from gnn_repair.oracle.tails.base import ROUNDING
from gnn_repair.oracle.tails.functions import function_of
from gnn_repair.oracle.tails.lines import ABSOLUTE, SAFETY, Interval


def keeps_channels(operation: Operation) -> bool:
    """Whether each channel depends on one input channel only, so that intervals stay exact."""
    return isinstance(operation, Scale | Select | Concatenate | Constant | Activation)


def _at(constant: Tensor, nodes: Tensor) -> Tensor:
    return constant.unsqueeze(0) if constant.dim() == 1 else constant[nodes]


def _wide(low: Tensor, high: Tensor, below: Tensor, above: Tensor, terms: int) -> Interval:
    """Rounded outwards: each end by what its own sum of ``terms`` magnitudes may be wrong by.

    A sum of positive numbers stays positive, however large the other end is.
    """
    share = ROUNDING * (terms + 2)
    return Interval(low - share * below, high + share * above)


def _affine(op: Operation, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
    assert isinstance(op, Affine)
    (x,), up, down = inputs, op.weight.clamp(min=0).t(), op.weight.clamp(max=0).t()
    bias, least, most = _at(op.bias, nodes), x.low.abs(), x.high.abs()
    return _wide(
        x.low @ up + x.high @ down + bias,
        x.high @ up + x.low @ down + bias,
        least @ up - most @ down + bias.abs(),
        most @ up - least @ down + bias.abs(),
        op.weight.shape[1],
    )


def _scale(op: Operation, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
    assert isinstance(op, Scale)
    (x,), factor, shift = inputs, _at(op.factor, nodes), _at(op.shift, nodes)
    ends = x.low * factor, x.high * factor
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    size = shift.abs()
    return _wide(low + shift, high + shift, low.abs() + size, high.abs() + size, 1)


def _select(op: Operation, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
    assert isinstance(op, Select)
    return Interval(inputs[0].low[:, op.index], inputs[0].high[:, op.index])


def _constant(op: Operation, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
    assert isinstance(op, Constant)
    value = _at(op.value, nodes).expand(len(nodes), -1)
    return Interval(value, value)


def _add(op: Operation, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
    assert isinstance(op, Add)
    ends = [(f * x.low, f * x.high) for f, x in zip(op.factors, inputs, strict=True)]
    lows = torch.stack([torch.minimum(*pair) for pair in ends])
    highs = torch.stack([torch.maximum(*pair) for pair in ends])
    return _wide(lows.sum(0), highs.sum(0), lows.abs().sum(0), highs.abs().sum(0), len(ends))


def _concatenate(op: Operation, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
    return Interval(
        torch.cat([x.low for x in inputs], dim=1), torch.cat([x.high for x in inputs], dim=1)
    )


def _multiply(op: Operation, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
    x, y = inputs
    corners = torch.stack([a * b for a in (x.low, x.high) for b in (y.low, y.high)])
    low, high = corners.amin(0), corners.amax(0)
    return _wide(low, high, low.abs(), high.abs(), 1)


def _pointwise(op: Operation, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
    f, parameter = function_of(op)
    (x,) = inputs
    ends = []
    for y in (x.low, x.high):
        value = f.value(y, parameter)
        slack = SAFETY * value.abs()
        slack = slack if f.steep else slack + ABSOLUTE * (1 + y.abs())
        ends.append((value - slack, value + slack))
    (a, b), (c, d) = ends
    low, high = torch.minimum(a, c), torch.maximum(b, d)
    if f.turn is not None:
        inside = (x.low <= f.turn[1]) & (x.high >= f.turn[0])
        low = torch.where(inside, f.least, low)
    if getattr(op, "name", "") == "elu":  # the sign of α decides; between the ends lies 0 at most
        inside = (x.low < 0) & (x.high > 0)
        low = torch.where(inside, low.clamp(max=0), low)
        high = torch.where(inside, high.clamp(min=0), high)
    return Interval(low.clamp(min=f.least), high.clamp(max=f.most))


Rule = Callable[[Operation, Sequence[Interval], Tensor], Interval]
INTERVALS: dict[type[Operation], Rule] = {
    Affine: _affine,
    Scale: _scale,
    Select: _select,
    Constant: _constant,
    Add: _add,
    Concatenate: _concatenate,
    Multiply: _multiply,
    Activation: _pointwise,
}


def size_of(op: Operation, sizes: Sequence[Tensor], made: Interval, nodes: Tensor) -> Tensor:
    """What the sums behind an operation's value come to, given those behind its inputs."""
    if isinstance(op, Affine):
        return sizes[0] @ op.weight.abs().t() + _at(op.bias, nodes).abs()
    if isinstance(op, Scale):
        return sizes[0] * _at(op.factor, nodes).abs() + _at(op.shift, nodes).abs()
    if isinstance(op, Select):
        return sizes[0][:, op.index]
    if isinstance(op, Add):
        return sum((abs(f) * s for f, s in zip(op.factors, sizes, strict=True)), 0 * sizes[0])
    if isinstance(op, Concatenate):
        return torch.cat(list(sizes), dim=1)
    return torch.maximum(made.low.abs(), made.high.abs())  # a line starts anew from its input
