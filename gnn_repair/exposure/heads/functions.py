"""Elementwise functions: values, slopes, and where a line of given slope touches them.

For any slope s, the largest f(y) − s y over [l, u] is attained at an end or where f′(y) = s. So a
line of slope s above f on [l, u] needs only the points where f′ = s; ``touching`` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

Pointwise = Callable[[Tensor, Tensor], Tensor]
BISECTIONS = 42
"""Halvings of an interval of length 60 at most: to 1e-11, which enters in second order."""
SAFETY = 1e-13
"""Relative widening of a line's constant: values of f and of the touching point are good to a few
units in the last place, and the touching point enters in second order."""
ABSOLUTE = 4e-16
"""Of 1 + |y|: what sums like 1 + erf are good to where they nearly cancel."""
STEEPEST = 1e150
"""Slopes at most: a line's constant follows from its slope, and must not overflow."""
POINT = 1e-9
"""An interval shorter than this has no chord that float64 could tell; its slope is f′."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Where a value lies, [B, k] each."""

    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        """The centre."""
        return (self.low + self.high) / 2

    @property
    def largest(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def holds(self, point: float | Tensor = 0.0) -> Tensor:
        """Whether a point lies strictly inside."""
        return (self.low < point) & (self.high > point)

    def nearest(self, point: Tensor) -> Tensor:
        """The point inside that is nearest to another."""
        return torch.minimum(torch.maximum(point, self.low), self.high)

    def take(self, index: Tensor) -> Interval:
        """The rows of some of the B."""
        return Interval(self.low[index], self.high[index])


@dataclass(frozen=True)
class Function:
    """One elementwise f with a parameter (slope of leaky ReLU and PReLU, α of ELU)."""

    value: Pointwise
    """f(y)."""
    slope: Pointwise
    """f′(y); one of the two at a kink."""
    touching: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    """All y with f′(y) = s, kinks included, given s and the parameter; elsewhere any number."""
    least: float = -math.inf
    """What f never falls below, however its values are rounded."""
    most: float = math.inf
    """What it never exceeds."""
    turn: tuple[float, float] | None = None
    """Where f attains ``least`` inside its domain, between these two; None where it is monotone."""
    off: float = 0.0
    """How far values may be from a function whose slope and touching points these are."""
    steep: bool = False
    """Whether slopes are unbounded, and values good to a relative error. Slopes of the others stay
    below 2 (or |α|), their values are good to 1e-16 of 1 + |y|."""
    defined: Callable[[Interval], Tensor] = lambda box: torch.ones_like(box.low, dtype=torch.bool)
    """Whether f has a value on all of an interval: no pole, no gap."""
    piecewise: bool = False
    """Whether f is linear on both sides of zero."""

    def _slack(self, y: Tensor, *sizes: Tensor) -> Tensor:
        """What f(y), or its difference from a line, may be off by."""
        slack = SAFETY * sum((size.abs() for size in sizes), torch.zeros_like(y))
        return slack if self.steep else slack + ABSOLUTE * (1 + y.abs()) + self.off

    def range(self, box: Interval, parameter: Tensor) -> Interval:
        """The values of f over an interval, rounded outwards."""
        ends = []
        for y in (box.low, box.high):
            value = self.value(y, parameter)
            slack = self._slack(y, value)
            ends.append((value - slack, value + slack))
        (a, b), (c, d) = ends
        low, high = torch.minimum(a, c), torch.maximum(b, d)
        if self.turn is not None:
            low = torch.where(
                (box.low <= self.turn[1]) & (box.high >= self.turn[0]), self.least, low
            )
        if self is FUNCTIONS["elu"]:  # the sign of α decides; between the ends lies 0 at most
            inside = box.holds()
            low = torch.where(inside, low.clamp(max=0), low)
            high = torch.where(inside, high.clamp(min=0), high)
        return Interval(low.clamp(min=self.least), high.clamp(max=self.most))

    def gaps(self, slope: Tensor, box: Interval, parameter: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest f(y) − s y over an interval, rounded outwards."""
        if self.piecewise:
            return self._gaps_of_two_lines(slope, box, parameter)
        low, high = torch.full_like(slope, torch.inf), torch.full_like(slope, -torch.inf)
        for point in (box.low, box.high, *self.touching(slope, parameter)):
            y = box.nearest(point)
            value, line = self.value(y, parameter), slope * y
            slack = self._slack(y, value, line)
            low = torch.minimum(low, value - line - slack)
            high = torch.maximum(high, value - line + slack)
        return low, high

    def _gaps_of_two_lines(
        self, slope: Tensor, box: Interval, parameter: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same at the ends and, where the interval holds it, at the kink."""
        first, last = (self.value(y, parameter) - slope * y for y in (box.low, box.high))
        slack = SAFETY * (first.abs() + last.abs() + slope.abs() * (box.high - box.low))
        kink = torch.where(box.holds(), 0.0, first)
        low = torch.minimum(torch.minimum(first, last), kink) - slack
        return low, torch.maximum(torch.maximum(first, last), kink) + slack

    def lines(self, box: Interval, at: Tensor, parameter: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes above and below that are tight at a point.

        Of a ReLU the chord above, and below slope 1 where the point is positive, else 0; of others
        the tightest among the chord and the tangents at the point and at both ends.
        """
        if self.piecewise:
            high, low = box.high.clamp(min=0.0), box.low.clamp(max=0.0)
            chord = high / (high - low).clamp(min=1e-300)
            below = torch.where((at > 0) | (box.low >= 0), 1.0, 0.0).to(chord.dtype)
            return chord, torch.where((box.low >= 0) | (box.high <= 0), chord, below)
        at, width = box.nearest(at), box.high - box.low
        rise = self.value(box.high, parameter) - self.value(box.low, parameter)
        tangents = [self.slope(point, parameter) for point in (at, box.low, box.high)]
        chord = torch.where(width > POINT, rise / width.clamp(min=POINT), tangents[0])
        slopes = torch.stack([chord, *tangents]).nan_to_num(0.0).clamp(-STEEPEST, STEEPEST)
        low, high = self.gaps(slopes, box, parameter)
        above = slopes.gather(0, (slopes * at + high).argmin(0, keepdim=True))[0]
        below = slopes.gather(0, (slopes * at + low).argmax(0, keepdim=True))[0]
        return above, below


def _kink(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (torch.zeros_like(slope),)


def _elu(slope: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
    inner = (slope / torch.where(alpha == 0, 1.0, alpha)).clamp(min=1e-300).log()
    return (torch.zeros_like(slope), inner.clamp(max=0.0))


def _sigmoid(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    """p (1 − p) = s at p = (1 ± √(1 − 4 s)) / 2; y = ± 2 artanh √(1 − 4 s)."""
    root = (1.0 - 4.0 * slope).clamp(0.0, 1.0 - 1e-15).sqrt()
    point = 2.0 * torch.atanh(root)
    return (point, -point)


def _tanh(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    point = torch.atanh((1.0 - slope).clamp(0.0, 1.0 - 1e-15).sqrt())
    return (point, -point)


def _bisected(
    slope: Pointwise, turns: tuple[float, float], wanted: Tensor, parameter: Tensor
) -> tuple[Tensor, ...]:
    """f′ falls, rises between two ``turns`` and falls again: at most one point in each part."""
    shape = (3, *[1] * wanted.dim())
    ends = torch.tensor([[-60.0, *turns], [*turns, 60.0]], dtype=torch.float64)
    low, high = (end.view(shape).expand(3, *wanted.shape) for end in ends)
    sign = torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64).view(shape)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beyond = sign * (slope(middle, parameter) - wanted) > 0
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return low.unbind(0)


def _gelu_slope(y: Tensor, _: Tensor) -> Tensor:
    density = (-0.5 * y * y).exp() / math.sqrt(2 * math.pi)
    return 0.5 * torch.erfc(-y / math.sqrt(2.0)) + y * density


def _gelu_tanh_slope(y: Tensor, _: Tensor) -> Tensor:
    scale = math.sqrt(2 / math.pi)
    inner = (scale * (y + 0.044715 * y**3)).tanh()
    return 0.5 * (1 + inner) + 0.5 * y * (1 - inner**2) * scale * (1 + 3 * 0.044715 * y**2)


def _silu_slope(y: Tensor, _: Tensor) -> Tensor:
    p = y.sigmoid()
    return p * (1 + y * (1 - p))


def _mish_slope(y: Tensor, _: Tensor) -> Tensor:
    inner = torch.logaddexp(y, torch.zeros_like(y)).tanh()
    return inner + y * (1 - inner**2) * y.sigmoid()


def _positive(y: Tensor) -> Tensor:
    return y.clamp(min=1e-300)


def _softplus(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (torch.logit(slope.clamp(1e-300, 1.0 - 1e-16)),)


def _reciprocal(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    point = _positive(-slope).rsqrt()
    return (point, -point)


FUNCTIONS: dict[str, Function] = {
    "relu": Function(
        lambda x, _: x.relu(), lambda y, _: (y > 0).double(), _kink, 0.0, piecewise=True
    ),
    "leaky_relu": Function(
        lambda x, slope: torch.where(x > 0, x, slope * x),
        lambda y, slope: torch.where(y > 0, torch.ones_like(y), slope),
        _kink,
        piecewise=True,
    ),
    "elu": Function(
        lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0))),
        lambda y, alpha: torch.where(y > 0, torch.ones_like(y), alpha * y.clamp(max=0).exp()),
        _elu,
    ),
    "tanh": Function(lambda x, _: x.tanh(), lambda y, _: 1 - y.tanh() ** 2, _tanh, -1.0, 1.0),
    "sigmoid": Function(
        lambda x, _: x.sigmoid(), lambda y, _: y.sigmoid() * (1 - y.sigmoid()), _sigmoid, 0.0, 1.0
    ),
    # Turns of f′ are the zeros of f″: ±√2 for GELU, found numerically for the other two; smallest
    # values are rounded down.
    "gelu": Function(
        lambda x, _: functional.gelu(x),
        _gelu_slope,
        partial(_bisected, _gelu_slope, (-(2**0.5), 2**0.5)),
        -0.1700,
        turn=(-0.7618, -0.7418),
    ),
    "gelu_tanh": Function(
        lambda x, _: functional.gelu(x, approximate="tanh"),
        _gelu_tanh_slope,
        partial(_bisected, _gelu_tanh_slope, (-1.4185040087908284, 1.4185040087908284)),
        -0.1701,
        turn=(-0.7625, -0.7425),
    ),
    "silu": Function(
        lambda x, _: functional.silu(x),
        _silu_slope,
        partial(_bisected, _silu_slope, (-2.3993572805154677, 2.3993572805154677)),
        -0.2785,
        turn=(-1.2885, -1.2685),
    ),
    "mish": Function(
        lambda x, _: functional.mish(x),
        _mish_slope,
        partial(_bisected, _mish_slope, (-2.2563763963607931, 1.4905711794854284)),
        -0.3089,
        turn=(-1.2025, -1.1825),
    ),
    # PyTorch's softplus is x beyond 20, at most e⁻²⁰ less than log(1 + eˣ).
    "softplus_linear": Function(
        lambda x, _: functional.softplus(x), lambda y, _: y.sigmoid(), _softplus, 0.0, off=2.1e-9
    ),
    "softplus": Function(
        lambda x, _: torch.logaddexp(x, torch.zeros_like(x)),
        lambda y, _: y.sigmoid(),
        _softplus,
        0.0,
    ),
    "square": Function(
        lambda x, _: x.square(), lambda y, _: 2 * y, lambda s, _: (s / 2,), 0.0, turn=(0.0, 0.0),
        steep=True,
    ),
    "sqrt": Function(
        lambda x, _: x.sqrt(), lambda y, _: 0.5 * _positive(y).rsqrt(),
        lambda s, _: (0.25 / s.clamp(min=1e-150).square(),), 0.0, steep=True,
        defined=lambda box: box.low >= 0,
    ),
    "exp": Function(
        lambda x, _: x.exp(), lambda y, _: y.exp(), lambda s, _: (_positive(s).log(),), 0.0,
        steep=True,
    ),
    "log": Function(
        lambda x, _: x.log(), lambda y, _: 1 / y, lambda s, _: (1 / _positive(s),), steep=True,
        defined=lambda box: box.low > 0,
    ),
    "reciprocal": Function(
        lambda x, _: x.reciprocal(), lambda y, _: -1 / y**2, _reciprocal, steep=True,
        defined=lambda box: (box.low > 0) | (box.high < 0),
    ),
}  # fmt: skip
