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
from gnn_repair.oracle.tails.lowering import Smooth

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


def function_of(operation: Operation) -> tuple[Function, Tensor]:
    """The function of an elementwise operation, and its parameter."""
    if isinstance(operation, Activation):
        return FUNCTIONS[operation.name], operation.parameter
    assert isinstance(operation, Smooth)
    return FUNCTIONS[operation.name], torch.zeros((), dtype=torch.float64)


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


FUNCTIONS = {
    "relu": Function(ACTIVATIONS["relu"], lambda y, _: (y > 0).double(), _kink),
    "elu": Function(
        ACTIVATIONS["elu"],
        lambda y, alpha: torch.where(y > 0, torch.ones_like(y), alpha * y.clamp(max=0).exp()),
        _elu,
    ),
    "tanh": Function(ACTIVATIONS["tanh"], lambda y, _: 1 - y.tanh() ** 2, _tanh),
    "sigmoid": Function(
        ACTIVATIONS["sigmoid"], lambda y, _: y.sigmoid() * (1 - y.sigmoid()), _sigmoid
    ),
    # The turns are the zeros of f″: ±√2 for GELU, and found numerically for the other two.
    "gelu": Function(
        ACTIVATIONS["gelu"], _gelu_slope, _by_bisection(_gelu_slope, (-(2**0.5), 2**0.5))
    ),
    "gelu_tanh": Function(
        ACTIVATIONS["gelu_tanh"],
        _gelu_tanh_slope,
        _by_bisection(_gelu_tanh_slope, (-1.4185040087908284, 1.4185040087908284)),
    ),
    "silu": Function(
        ACTIVATIONS["silu"],
        _silu_slope,
        _by_bisection(_silu_slope, (-2.3993572805154677, 2.3993572805154677)),
    ),
    "exp": Function(lambda y, _: y.exp(), lambda y, _: y.exp(), lambda s, _: (_positive(s).log(),)),
    "log": Function(
        lambda y, _: y.log(), lambda y, _: 1 / y, lambda s, _: (1 / s.clamp(min=1e-300),)
    ),
    "reciprocal": Function(
        lambda y, _: 1 / y, lambda y, _: -1 / y**2, lambda s, _: (_positive(-s).rsqrt(),)
    ),
}
