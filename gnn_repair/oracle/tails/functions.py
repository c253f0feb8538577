"""Elementwise functions: values, slopes, and where a line of given slope touches them.

For any slope s, the largest f(y) − s y over [l, u] is attained at an end or where f′(y) = s. So a
line of slope s above f on [l, u] needs only the points where f′ = s; ``touching`` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_repair.exposure.tails.operations import ACTIVATIONS, Activation, Operation

Pointwise = Callable[[Tensor, Tensor], Tensor]
BISECTIONS = 42
"""Halvings of an interval of length 60 at most: to 1e-11, which enters in second order."""


@dataclass(frozen=True)
class Function:
    """One elementwise f with a parameter."""

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
    steep: bool = False
    """Whether slopes are unbounded, and values good to a relative error. Slopes of the others stay
    below 2 (or |α|), their values are good to 1e-16 of 1 + |y|."""


def function_of(operation: Operation) -> tuple[Function, Tensor]:
    """The function of an elementwise operation, and its parameter."""
    assert isinstance(operation, Activation)
    return FUNCTIONS[operation.name], operation.parameter


def defined(name: str, low: Tensor, high: Tensor) -> Tensor:
    """Whether an elementwise function has a value on all of [low, high]: no pole, no gap."""
    if name == "reciprocal":
        return (low > 0) | (high < 0)
    if name in ("log", "sqrt"):
        return low > 0 if name == "log" else low >= 0
    return torch.ones_like(low, dtype=torch.bool)


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


def _by_bisection(
    slope: Pointwise, turns: tuple[float, float]
) -> Callable[..., tuple[Tensor, ...]]:
    """f′ falls, rises between ``turns`` and falls again: at most one point in each part."""

    ends = torch.tensor([[-60.0, *turns], [*turns, 60.0]], dtype=torch.float64)
    signs = torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64)

    def touching(wanted: Tensor, parameter: Tensor) -> tuple[Tensor, ...]:
        shape = (3, *[1] * wanted.dim())
        low, high = (end.view(shape).expand(3, *wanted.shape) for end in ends)
        sign = signs.view(shape)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            beyond = sign * (slope(middle, parameter) - wanted) > 0
            low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
        return low.unbind(0)

    return touching


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


def _positive(y: Tensor) -> Tensor:
    return y.clamp(min=1e-300)


def _softplus(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (torch.logit(slope.clamp(1e-300, 1.0 - 1e-16)),)


def _reciprocal(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    point = _positive(-slope).rsqrt()
    return (point, -point)


FUNCTIONS = {
    "relu": Function(ACTIVATIONS["relu"], lambda y, _: (y > 0).double(), _kink, 0.0),
    "elu": Function(
        ACTIVATIONS["elu"],
        lambda y, alpha: torch.where(y > 0, torch.ones_like(y), alpha * y.clamp(max=0).exp()),
        _elu,
    ),
    "tanh": Function(ACTIVATIONS["tanh"], lambda y, _: 1 - y.tanh() ** 2, _tanh, -1.0, 1.0),
    "sigmoid": Function(
        ACTIVATIONS["sigmoid"], lambda y, _: y.sigmoid() * (1 - y.sigmoid()), _sigmoid, 0.0, 1.0
    ),
    # _by_bisection's turns are the zeros of f″: ±√2 for GELU, found numerically for the other two;
    # smallest values are rounded down.
    "gelu": Function(
        ACTIVATIONS["gelu"],
        _gelu_slope,
        _by_bisection(_gelu_slope, (-(2**0.5), 2**0.5)),
        -0.1700,
        turn=(-0.7618, -0.7418),
    ),
    "gelu_tanh": Function(
        ACTIVATIONS["gelu_tanh"],
        _gelu_tanh_slope,
        _by_bisection(_gelu_tanh_slope, (-1.4185040087908284, 1.4185040087908284)),
        -0.1701,
        turn=(-0.7625, -0.7425),
    ),
    "silu": Function(
        ACTIVATIONS["silu"],
        _silu_slope,
        _by_bisection(_silu_slope, (-2.3993572805154677, 2.3993572805154677)),
        -0.2785,
        turn=(-1.2885, -1.2685),
    ),
    "softplus": Function(ACTIVATIONS["softplus"], lambda y, _: y.sigmoid(), _softplus, 0.0),
    "square": Function(
        ACTIVATIONS["square"], lambda y, _: 2 * y, lambda s, _: (s / 2,), 0.0, turn=(0.0, 0.0),
        steep=True,
    ),
    "sqrt": Function(
        ACTIVATIONS["sqrt"], lambda y, _: 0.5 * _positive(y).rsqrt(),
        lambda s, _: (0.25 / s.clamp(min=1e-150).square(),), 0.0, steep=True,
    ),
    "exp": Function(
        ACTIVATIONS["exp"], lambda y, _: y.exp(), lambda s, _: (_positive(s).log(),), 0.0,
        steep=True,
    ),
    "log": Function(
        ACTIVATIONS["log"], lambda y, _: 1 / y, lambda s, _: (1 / _positive(s),), steep=True
    ),
    "reciprocal": Function(
        ACTIVATIONS["reciprocal"], lambda y, _: -1 / y**2, _reciprocal, steep=True
    ),
}  # fmt: skip
