"""Lines of one nonlinear operation, written anew for :mod:`recomputation`: NumPy and SciPy only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from gnn_repair.exposure.tails.operations import Activation, Multiply, Operation
from gnn_repair.oracle.tails.lowering import Root

Array = NDArray[Any]
TURNS = {
    "gelu": 1.4142135623730951, "gelu_tanh": 1.4185040087908284, "silu": 2.3993572805154677,
    "elu": 0.0,
}  # fmt: skip
"""f″ changes sign at ± these and nowhere else (ELU: its kink), so f′ is monotone in between."""
HALVINGS = 48
"""Of an interval in which f′ − s changes sign once."""


def length_of(root: Root, x: Array) -> Array:
    parts = x.reshape(*x.shape[:-1], x.shape[-1] // root.size, root.size)
    return np.maximum(np.sqrt((parts**2).sum(-1) + root.offset), root.floor)


def in_ball(root: Root, q: Array) -> Array:
    parts = q.reshape(*q.shape[:-1], -1, root.size)
    length = np.sqrt((parts**2).sum(-1, keepdims=True))
    return (parts / np.maximum(length * (1 + 1e-15), 1.0)).reshape(q.shape)


def name_of(operation: Operation) -> str:
    return operation.name if isinstance(operation, Activation) else ""


def has_values(operation: Operation, low: Array, high: Array) -> Array:
    """Whether f is finite on all of [low, high]: no pole, nothing it is not defined for."""
    inside = {
        "reciprocal": (low > 0) | (high < 0),
        "log": low > 0,
        "sqrt": low >= 0,
        "exp": high < 700,
    }.get(name_of(operation), True)
    return np.isfinite(low) & np.isfinite(high) & inside


def value_of(operation: Operation, y: Array) -> Array:
    """f(y) by NumPy and SciPy."""
    name = name_of(operation)
    if name == "elu":
        assert isinstance(operation, Activation)
        return np.where(y > 0, y, operation.parameter.numpy() * np.expm1(np.minimum(y, 0)))
    table: dict[str, Callable[[Array], Array]] = {
        "relu": lambda v: np.maximum(v, 0),
        "gelu": lambda v: v * special.ndtr(v),
        "gelu_tanh": lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
        "silu": lambda v: v * special.expit(v),
        "tanh": np.tanh,
        "sigmoid": special.expit,
        "softplus": lambda v: np.logaddexp(v, 0.0),
        "square": lambda v: v * v,
        "sqrt": np.sqrt,
        "exp": np.exp,
        "log": np.log,
        "reciprocal": lambda v: 1 / v,
    }
    return table[name](y)


def constant_of(
    operation: Operation, slopes: list[Array], box: list[tuple[Array, Array]], sign: float
) -> Array:
    """max sign · (f(x) − Σ s x) over the box."""
    low, high = box[0]
    if isinstance(operation, Multiply):
        (c, d), (s, t) = box[1], slopes
        return np.max([sign * (x * y - s * x - t * y) for x in (low, high) for y in (c, d)], axis=0)
    points = touching_points(operation, slopes[0], low, high)
    return np.max(sign * (value_of(operation, points) - slopes[0] * points), axis=0)


def touching_points(operation: Operation, slope: Array, low: Array, high: Array) -> Array:
    """All y in [l, u] where f(y) − s y may be largest or smallest: ends, kinks, and f′ = s."""
    name = name_of(operation)
    if name == "relu":
        return np.stack([low, high, np.clip(0.0, low, high)])
    if name in _TOUCHING:
        point = _TOUCHING[name](slope)
        return np.stack([low, high, np.clip(point, low, high), np.clip(-point, low, high)])
    turn = TURNS.get(name)
    ends = (
        [low, high]
        if turn is None
        else [low, np.clip(-turn, low, high), np.clip(turn, low, high), high]
    )
    found = list(ends)
    for begin, end in pairwise(ends):
        a, b = np.array(begin, dtype=float), np.array(end, dtype=float)
        rising = slope_of(operation, b) > slope_of(operation, a)
        for _ in range(HALVINGS):
            middle = (a + b) / 2
            right = (slope_of(operation, middle) < slope) == rising
            a, b = np.where(right, middle, a), np.where(right, b, middle)
        found += [a, b]
    return np.stack(found)


def _least(s: Array) -> Array:
    return np.maximum(s, 1e-300)


_TOUCHING: dict[str, Callable[[Array], Array]] = {
    "tanh": lambda s: np.arccosh(np.maximum(_least(s) ** -0.5, 1.0)),
    "sigmoid": lambda s: 2 * np.arccosh(np.maximum(0.5 * _least(s) ** -0.5, 1.0)),
    "softplus": lambda s: special.logit(np.clip(s, 1e-300, 1 - 1e-16)),
    "square": lambda s: s / 2,
    "sqrt": lambda s: 0.25 / np.maximum(s, 1e-150) ** 2,
    "exp": lambda s: np.log(_least(s)),
    "log": lambda s: 1 / _least(s),
    "reciprocal": lambda s: 1 / np.sqrt(_least(-s)),
}
"""A y with f′(y) = s where there is one; −y is the only other."""


def slope_of(operation: Operation, y: Array) -> Array:
    """f′(y)."""
    name = name_of(operation)
    if name == "elu":
        assert isinstance(operation, Activation)
        return np.where(y > 0, 1.0, operation.parameter.numpy() * np.exp(np.minimum(y, 0)))
    return _SLOPES[name](y)


def _gelu_tanh_slope(v: Array) -> Array:
    scale = np.sqrt(2 / np.pi)
    inner = np.tanh(scale * (v + 0.044715 * v**3))
    return 0.5 * (1 + inner) + 0.5 * v * (1 - inner**2) * scale * (1 + 0.134145 * v**2)


_SLOPES: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda v: special.ndtr(v) + v * np.exp(-v * v / 2) / np.sqrt(2 * np.pi),
    "gelu_tanh": _gelu_tanh_slope,
    "silu": lambda v: special.expit(v) * (1 + v * special.expit(-v)),
    "tanh": lambda v: np.cosh(np.clip(v, -300, 300)) ** -2,
    "sigmoid": lambda v: special.expit(v) * special.expit(-v),
    "softplus": special.expit,
    "square": lambda v: 2 * v,
    "sqrt": lambda v: 0.5 / np.sqrt(np.maximum(v, 1e-300)),
    "exp": np.exp,
    "log": lambda v: 1 / v,
    "reciprocal": lambda v: -(v**-2.0),
}


def middle_slopes(
    operation: Operation, box: list[tuple[Array, Array]]
) -> tuple[list[Array], list[Array]]:
    """The slopes that intervals are found with, above and below: tight at the middle."""
    low, high = box[0]
    middle = (low + high) / 2
    if isinstance(operation, Root):
        parts = middle.reshape(len(middle), -1, operation.size)
        length = np.sqrt((parts**2).sum(-1, keepdims=True) + operation.offset)
        inside = in_ball(operation, (parts / np.maximum(length, 1e-300)).reshape(middle.shape))
        return [inside], [inside]
    if isinstance(operation, Multiply):
        return _middle_product(box)
    if name_of(operation) == "relu":
        top, bottom = np.maximum(high, 0), np.minimum(low, 0)
        above = top / np.maximum(top - bottom, 1e-300)
        stable = (low >= 0) | (high <= 0)
        return [above], [np.where(stable, above, (middle > 0).astype(float))]
    slope = [slope_of(operation, point) for point in (middle, low, high)]
    width = high - low
    rise = value_of(operation, high) - value_of(operation, low)
    options = [np.where(width > 1e-9, rise / np.maximum(width, 1e-9), slope[0]), *slope]
    options = [np.clip(s, -1e150, 1e150) for s in options]  # a sum with a steeper one overflows
    ups = np.stack([s * middle + constant_of(operation, [s], box, 1.0) for s in options])
    lows = np.stack([s * middle - constant_of(operation, [s], box, -1.0) for s in options])
    table = np.stack(options)
    chosen = (ups.argmin(0), lows.argmax(0))
    above, below = (np.take_along_axis(table, one[None], 0)[0] for one in chosen)
    return [above], [below]


def _middle_product(box: list[tuple[Array, Array]]) -> tuple[list[Array], list[Array]]:
    (a, b), (c, d) = box
    x, y = (a + b) / 2, (c + d) / 2

    def value(s: Array, t: Array, sign: float) -> Array:
        corners = [p * q - s * p - t * q for p in (a, b) for q in (c, d)]
        return s * x + t * y + (np.max(corners, axis=0) if sign > 0 else np.min(corners, axis=0))

    tops, bottoms = (value(c, b, 1.0), value(d, a, 1.0)), (value(c, a, -1.0), value(d, b, -1.0))
    # At the middle both planes are equally tight: the first counts, whatever rounding says.
    first = tops[0] <= tops[1] + 1e-9 * (1 + abs(tops[0]) + abs(tops[1]))
    second = bottoms[0] >= bottoms[1] - 1e-9 * (1 + abs(bottoms[0]) + abs(bottoms[1]))
    above = [np.where(first, c, d), np.where(first, b, a)]
    return above, [np.where(second, c, d), np.where(second, a, b)]
