"""Linear functions above and below a nonlinear operation, over the intervals of its inputs.

A relaxation is a choice of *slopes* only: what must be added so that the line stays above (or
below) the operation everywhere follows from them, so no choice of slopes is ever unsound. A slope
is better or worse at a point ``at``; there the candidates are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_repair.exposure.tails.operations import Activation, Multiply, Operation
from gnn_repair.oracle.tails.functions import function_of
from gnn_repair.oracle.tails.lowering import Root

NONLINEAR = (Activation, Multiply, Root)
SAFETY = 1e-13
"""Relative widening of a line's constant: values of f and of the touching point are good to a few
units in the last place, and the touching point enters in second order."""
ABSOLUTE = 4e-16
"""Of 1 + |y|: what sums like 1 + erf are good to where they nearly cancel."""
STEEPEST = 1e150
"""Slopes at most: a line's constant follows from its slope, and must not overflow."""
TIE = 1e-9
"""Planes closer than this, relative to their values, count as equally tight."""
POINT = 1e-9
"""An interval shorter than this has no chord that float64 could tell; its slope is f′."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Where one input of an operation lies, [B, k] each."""

    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        """The centre."""
        return (self.low + self.high) / 2

    def take(self, index: Tensor) -> Interval:
        """The rows of some of the B."""
        return Interval(self.low[index], self.high[index])


@dataclass(frozen=True, eq=False)
class Lines:
    """Slopes above and below one operation, one tensor an input; None: the lift stands above."""

    above: tuple[Tensor, ...] | None
    below: tuple[Tensor, ...]

    def chosen(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        """Per unit the slopes that an upper bound with these coefficients [B, k] uses."""
        if self.above is None:
            return self.below
        up = coefficients > 0
        return tuple(torch.where(up, a, b) for a, b in zip(self.above, self.below, strict=True))


def constant_above(
    operation: Operation, slopes: Sequence[Tensor], box: Sequence[Interval]
) -> Tensor:
    """The smallest b with Σ s x + b ≥ f(x) on the box, rounded up, [B, k]."""
    if isinstance(operation, Multiply):
        return _corners(slopes, box).amax(0)
    return _touch(operation, slopes[0], box[0])[1]


def constant_below(
    operation: Operation, slopes: Sequence[Tensor], box: Sequence[Interval]
) -> Tensor:
    """The largest b with Σ s x + b ≤ f(x) on the box, rounded down, [B, k]."""
    if isinstance(operation, Multiply):
        return _corners(slopes, box).amin(0)
    if isinstance(operation, Root):
        return _root_constant(operation, slopes[0])
    return _touch(operation, slopes[0], box[0])[0]


def _touch(operation: Operation, slope: Tensor, box: Interval) -> tuple[Tensor, Tensor]:
    """The smallest and the largest f(y) − s y over the interval, rounded outwards."""
    if isinstance(operation, Activation) and operation.name == "relu":
        return _touch_relu(slope, box)
    f, parameter = function_of(operation)
    low, high = torch.full_like(slope, torch.inf), torch.full_like(slope, -torch.inf)
    for point in (box.low, box.high, *f.touching(slope, parameter)):
        y = torch.minimum(torch.maximum(point, box.low), box.high)
        value, line = f.value(y, parameter), slope * y
        slack = SAFETY * (value.abs() + line.abs())
        slack = slack if f.steep else slack + ABSOLUTE * (1 + y.abs())
        low = torch.minimum(low, value - line - slack)
        high = torch.maximum(high, value - line + slack)
    return low, high


def _touch_relu(slope: Tensor, box: Interval) -> tuple[Tensor, Tensor]:
    """The same for a ReLU: at the ends and, where the interval holds it, at the kink."""
    first, last = (
        box.low.clamp(min=0.0) - slope * box.low,
        box.high.clamp(min=0.0) - slope * box.high,
    )
    slack = SAFETY * (first.abs() + last.abs() + slope.abs() * (box.high - box.low))
    kink = torch.where((box.low < 0) & (box.high > 0), 0.0, first)
    low = torch.minimum(torch.minimum(first, last), kink) - slack
    return low, torch.maximum(torch.maximum(first, last), kink) + slack


def _corners(slopes: Sequence[Tensor], box: Sequence[Interval]) -> Tensor:
    """x y − s x − t y at the four corners: a bilinear function is extreme there, [4, B, k]."""
    (s, t), (first, second) = slopes, box
    corners = [(x, y) for x in (first.low, first.high) for y in (second.low, second.high)]
    return torch.stack([x * y - s * x - t * y for x, y in corners])


def _root_constant(operation: Root, slopes: Tensor) -> Tensor:
    """√(‖x‖² + e) ≥ q·x + √(1 − ‖q‖²) √e for ‖q‖ ≤ 1, by Cauchy and Schwarz, [B, parts]."""
    parts = slopes.unflatten(1, (-1, operation.size))
    rest = (1.0 - parts.square().sum(2)).clamp(min=0.0)
    return (rest * operation.offset).sqrt() * (1 - 4 * SAFETY)


def within_ball(operation: Root, slopes: Tensor) -> Tensor:
    """q shrunk to ‖q‖ ≤ 1 where rounding or a solver left it outside."""
    parts = slopes.unflatten(1, (-1, operation.size))
    length = parts.norm(dim=2, keepdim=True)
    return (parts / (length * (1 + 4 * SAFETY)).clamp(min=1.0)).flatten(1)


def lines_at(
    operation: Operation, box: Sequence[Interval], at: Sequence[Tensor], lifted: bool
) -> Lines:
    """Slopes that are tight at the point ``at`` (one [B, k] an input) where there is a choice."""
    if isinstance(operation, Root):
        return _root_lines(operation, box[0], at[0], lifted)
    if isinstance(operation, Multiply):
        return _product_lines(box, at)
    if isinstance(operation, Activation) and operation.name == "relu":
        return _relu_lines(box[0], at[0])
    return _smooth_lines(operation, box[0], at[0])


def _relu_lines(box: Interval, at: Tensor) -> Lines:
    """The chord above; below slope 1 where the point is positive, else 0."""
    high, low = box.high.clamp(min=0.0), box.low.clamp(max=0.0)
    above = high / (high - low).clamp(min=1e-300)
    below = torch.where((at > 0) | (box.low >= 0), 1.0, 0.0).to(above.dtype)
    stable = (box.low >= 0) | (box.high <= 0)
    below = torch.where(stable, above, below)
    return Lines((above,), (below,))


def _smooth_lines(operation: Operation, box: Interval, at: Tensor) -> Lines:
    """The tightest at ``at`` among the chord and the tangents at ``at`` and at both ends."""
    f, parameter = function_of(operation)
    at = torch.minimum(torch.maximum(at, box.low), box.high)
    width = box.high - box.low
    rise = f.value(box.high, parameter) - f.value(box.low, parameter)
    tangents = [f.slope(point, parameter) for point in (at, box.low, box.high)]
    chord = torch.where(width > POINT, rise / width.clamp(min=POINT), tangents[0])
    slopes = torch.stack([chord, *tangents]).nan_to_num(0.0).clamp(-STEEPEST, STEEPEST)
    low, high = _touch(operation, slopes, box)
    lows, ups = slopes * at + low, slopes * at + high
    above = slopes.gather(0, ups.argmin(0, keepdim=True))[0]
    below = slopes.gather(0, lows.argmax(0, keepdim=True))[0]
    return Lines((above,), (below,))


def _product_lines(box: Sequence[Interval], at: Sequence[Tensor]) -> Lines:
    """McCormick's envelopes: x y ≤ u y + l′ x − u l′ and the like; the tighter at ``at``."""
    (x, y), (p, q) = box, at

    def better(options: list[tuple[Tensor, Tensor]], sign: float) -> tuple[Tensor, Tensor]:
        values = []
        for s, t in options:
            gaps = _corners((s, t), box)
            limit = gaps.amax(0) if sign > 0 else gaps.amin(0)
            values.append(sign * (s * p + t * q + limit))
        # At the middle of a box both are the same: the first then, whatever rounding says.
        size = values[0].abs() + values[1].abs() + 1.0
        first = values[0] <= values[1] + TIE * size
        (s0, t0), (s1, t1) = options
        return torch.where(first, s0, s1), torch.where(first, t0, t1)

    above = better([(y.low, x.high), (y.high, x.low)], 1.0)
    below = better([(y.low, x.low), (y.high, x.high)], -1.0)
    return Lines(above, below)


def _root_lines(operation: Root, box: Interval, at: Tensor, lifted: bool) -> Lines:
    """The tangent below; above, the interpolation between vertices where there is one."""
    parts = at.unflatten(1, (-1, operation.size))
    length = (parts.square().sum(2, keepdim=True) + operation.offset).sqrt()
    q = (parts / length.clamp(min=1e-300)).flatten(1)
    return Lines(None, (within_ball(operation, q),))
