"""Functions of single elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.tails.aten import arithmetic
from gnn_repair.exposure.tails.aten.registry import Result, Translation
from gnn_repair.exposure.tails.builder import Builder, Norm, Operand, Unfollowed
from gnn_repair.exposure.tails.layout import Traced
from gnn_repair.exposure.tails.operations import Activation, Add, Affine, Maximum


def plain(name: str) -> Translation:
    """An activation without settings."""

    def translate(builder: Builder, out: Tensor, source: Traced) -> Result:
        value, frame = builder.flat(source)
        return builder.shown(builder.applied(name, value), frame)

    return translate


def gelu(builder: Builder, out: Tensor, source: Traced, approximate: str = "none") -> Result:
    """GELU, exact or by its tanh form."""
    return plain("gelu" if approximate == "none" else "gelu_tanh")(builder, out, source)


def leaky_relu(
    builder: Builder, out: Tensor, source: Traced, negative_slope: float = 0.01
) -> Result:
    """x, or slope · x below 0."""
    value, frame = builder.flat(source)
    return builder.shown(builder.applied("leaky_relu", value, negative_slope), frame)


def prelu(builder: Builder, out: Tensor, source: Operand, weight: Operand) -> Result:
    """Leaky ReLU with learned slopes."""
    if not isinstance(source, Traced) or isinstance(weight, Traced):
        raise Unfollowed
    frame, (value, slope) = builder.aligned(out.shape, source, weight)
    assert isinstance(value, int) and isinstance(slope, Tensor)
    if slope.dim() > 1:
        raise Unfollowed
    return builder.shown(builder.applied("leaky_relu", value, slope), frame)


def elu(
    builder: Builder,
    out: Tensor,
    source: Traced,
    alpha: float = 1.0,
    scale: float = 1.0,
    input_scale: float = 1.0,
) -> Result:
    """ELU and SELU: scale · x, or scale · α (e^{s x} − 1) below 0."""
    value, frame = builder.flat(source)
    if input_scale != 1:
        value = builder.scaled(value, float(input_scale), 0.0)
    value = builder.applied("elu", value, alpha * input_scale)
    if scale != input_scale:
        value = builder.scaled(value, scale / input_scale, 0.0)
    return builder.shown(value, frame)


def celu(builder: Builder, out: Tensor, source: Traced, alpha: float = 1.0) -> Result:
    """α ELU(x / α)."""
    return elu(builder, out, source, alpha, 1.0, 1 / alpha)


def _between(builder: Builder, value: int, low: Any, high: Any) -> int:
    """min(max(x, low), high) out of ReLUs; bounds are numbers or None."""
    if low is not None:
        below = builder.applied("relu", builder.scaled(value, 1.0, -float(low)))
        value = builder.scaled(below, 1.0, float(low))
    if high is not None:
        above = builder.applied("relu", builder.scaled(value, -1.0, float(high)))
        value = builder.scaled(above, -1.0, float(high))
    return value


def clamp(
    builder: Builder, out: Tensor, source: Traced, low: Any = None, high: Any = None, **keys: Any
) -> Result:
    """clamp and hardtanh."""
    low, high = keys.get("min", low), keys.get("max", high)
    if isinstance(low, Tensor | Traced) or isinstance(high, Tensor | Traced):
        raise Unfollowed
    value, frame = builder.flat(source)
    bounded = _between(builder, value, low, high)
    norm = builder.norms.get(value)
    if norm is not None and low is not None and high is None:
        builder.norms[bounded] = Norm(norm.source, norm.size, max(norm.eps, float(low)))
    return builder.shown(bounded, frame)


def hardtanh(
    builder: Builder, out: Tensor, source: Traced, low: float = -1, high: float = 1
) -> Result:
    """hardtanh and ReLU6."""
    return clamp(builder, out, source, low, high)


def clamp_max(builder: Builder, out: Tensor, source: Traced, high: Any) -> Result:
    """min(x, high)."""
    return clamp(builder, out, source, None, high)


def threshold(builder: Builder, out: Tensor, source: Traced, level: float, value: float) -> Result:
    """x above the level, else the value; continuous only where the two agree."""
    if level != value:
        raise Unfollowed
    return clamp(builder, out, source, level)


def hardsigmoid(builder: Builder, out: Tensor, source: Traced) -> Result:
    """min(max(x / 6 + 1/2, 0), 1)."""
    value, frame = builder.flat(source)
    bounded = _between(builder, builder.scaled(value, 1 / 6, 0.5), 0.0, 1.0)
    return builder.shown(bounded, frame)


def hardswish(builder: Builder, out: Tensor, source: Traced) -> Result:
    """x · hardsigmoid(x)."""
    gate = hardsigmoid(builder, out, source)
    return arithmetic.mul(builder, out, source, gate)  # type: ignore[arg-type]


def absolute(builder: Builder, out: Tensor, source: Traced) -> Result:
    """|x| = relu(x) + relu(−x)."""
    value, frame = builder.flat(source)
    up = builder.applied("relu", value)
    down = builder.applied("relu", builder.scaled(value, -1.0, 0.0))
    return builder.shown(builder.emit(Add((up, down), (1.0, 1.0)), frame.width), frame)


def extreme(sign: float) -> Translation:
    """maximum (sign 1) or minimum (sign −1) of two tensors."""

    def translate(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
        frame, operands = builder.aligned(out.shape, left, right)
        numbers = [
            part if isinstance(part, int) else builder.constant(part, frame.width)
            for part in operands
        ]
        return builder.shown(largest(builder, numbers, sign), frame)

    return translate


def largest(builder: Builder, numbers: list[int], sign: float) -> int:
    """The elementwise maximum of values, or their minimum as −max(−x)."""
    width = builder.widths[numbers[0]]
    if sign < 0:
        numbers = [builder.scaled(number, -1.0, 0.0) for number in numbers]
    value = builder.emit(Maximum(tuple(numbers)), width)
    return value if sign > 0 else builder.scaled(value, -1.0, 0.0)


def glu(builder: Builder, out: Tensor, source: Traced, dim: int = -1) -> Result:
    """x₁ ⊙ σ(x₂), the halves of one axis."""
    size = source.shape[dim] // 2
    halves = [source.viewed(lambda t, s=start: t.narrow(dim, s, size)) for start in (0, size)]  # type: ignore[misc]
    gate = plain("sigmoid")(builder, out, halves[1])
    return arithmetic.mul(builder, out, halves[0], gate)  # type: ignore[arg-type]


def power(builder: Builder, out: Tensor, source: Operand, exponent: Any) -> Result:
    """x to the power of 2, ±½ or −1."""
    if not isinstance(source, Traced) or isinstance(exponent, Traced | Tensor):
        raise Unfollowed
    steps = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    if steps is None:
        raise Unfollowed
    return TRANSLATIONS[steps](builder, out, source)


def root(builder: Builder, out: Tensor, source: Traced) -> Result:
    """√x; of a sum of squares, a norm that may be divided by."""
    value, frame = builder.flat(source)
    made = builder.applied("sqrt", value)
    total = builder.operations[value - 1] if value else None
    squares = builder.operations[total.inputs[0] - 1] if isinstance(total, Affine) else None
    if isinstance(squares, Activation) and squares.name == "square":
        assert isinstance(total, Affine)
        size = builder.widths[total.inputs[0]] // builder.widths[value]
        eye = torch.eye(builder.widths[value], dtype=torch.float64, device=builder.device)
        if torch.equal(total.weight, eye.repeat_interleave(size, 1)) and not total.bias.any():
            builder.norms[made] = Norm(squares.inputs[0], size, 0.0)
    return builder.shown(made, frame)


def inverse_root(builder: Builder, out: Tensor, source: Traced) -> Result:
    """1 / √x."""
    return plain("reciprocal")(builder, out, plain("sqrt")(builder, out, source))


PLAIN = "relu silu tanh sigmoid square exp log reciprocal"

TRANSLATIONS: dict[str, Callable[..., Result]] = {
    **{name: plain(name) for name in PLAIN.split()},
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "_prelu_kernel": prelu,
    "prelu": prelu,
    "elu": elu,
    "celu": celu,
    "clamp": clamp,
    "clamp_min": clamp,
    "clamp_max": clamp_max,
    "hardtanh": hardtanh,
    "threshold": threshold,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "abs": absolute,
    "maximum": extreme(1.0),
    "minimum": extreme(-1.0),
    "glu": glu,
    "sqrt": root,
    "rsqrt": inverse_root,
    "pow": power,
}
