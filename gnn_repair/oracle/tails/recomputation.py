"""Bounds of one node recomputed from the exposure and a certificate, for :mod:`check`.

Plain NumPy, one node at a time, starting from the aggregate itself: nothing here is shared with
the code that found the certificate but the rewriting of the tail, whose agreement with the tail
:mod:`check` tests by itself. Intervals are computed in float64; what a certificate proves is summed
in extended precision, so no allowance for rounding is needed beyond the check's own tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

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
from gnn_repair.oracle.tails.lowering import Lowered, Root, Smooth

Array = NDArray[Any]
TURNS = {
    "gelu": 1.4142135623730951, "gelu_tanh": 1.4185040087908284, "silu": 2.3993572805154677,
    "tanh": 0.0, "sigmoid": 0.0, "elu": 0.0,
}  # fmt: skip
"""f″ changes sign at ± these and nowhere else (ELU: its kink), so f′ is monotone in between."""
HALVINGS = 48
"""Of an interval in which f′ − s changes sign once."""


@dataclass(frozen=True)
class Node:
    """One node's mixture: o [D], and of every group the mass and the messages [K, D]."""

    number: int
    fixed: Array
    groups: tuple[tuple[float, Array], ...]


@dataclass(frozen=True)
class Case:
    """One case of a proof."""

    weights: Array
    slopes: Array
    """[U]."""
    splits: tuple[tuple[int, int, int, float], ...]
    """(nonlinear operation from 0, unit, sign, β)."""


class Recomputation:
    """All intervals of one node in one case, and the bound that its certificate proves."""

    def __init__(self, lowered: Lowered, node: Node, case: Case) -> None:
        self.lowered, self.node, self.case = lowered, node, case
        self.operations = lowered.graph.operations
        self.curved = [k for k, op in enumerate(self.operations) if not _is_linear(op)]
        self.boxes: dict[int, list[tuple[Array, Array]]] = {}
        self.roots: dict[int, tuple[Array, Array]] = {}
        self.heights: dict[int, list[Array]] = {}
        """By a Root's number: of every group, its height above each message, [K, parts]."""
        self.ranges: list[tuple[Array, Array]] = [self._range()]
        for k in range(len(self.operations)):
            self.ranges.append(self._bound(k))

    def _range(self) -> tuple[Array, Array]:
        low, high = self.node.fixed.copy(), self.node.fixed.copy()
        for mass, messages in self.node.groups:
            low += mass * messages.min(0)
            high += mass * messages.max(0)
        return low, high

    def _bound(self, k: int) -> tuple[Array, Array]:
        """The range of value k + 1; notes the box of a nonlinear operation."""
        operation = self.operations[k]
        if k not in self.curved and self._before_is_linear(k):
            return self._linear_range(k + 1)
        if k in self.curved:
            for i in operation.inputs:
                self.ranges[i] = self._tight(i, self.ranges[i])
        inputs = [self.ranges[i] for i in operation.inputs]
        if k in self.curved:
            inputs[0] = self._assumed(k, inputs[0])
            self.boxes[k] = inputs
        if isinstance(operation, Root):
            return self._root(k, operation, inputs[0])
        return _forward(operation, inputs, self.node.number)

    def _linear_range(self, value: int) -> tuple[Array, Array]:
        """A value that is linear in the messages lies between its values at the vertices."""
        zero = self._linear_value(value, np.zeros((1, len(self.node.fixed))))[0]
        low = self._linear_value(value, self.node.fixed[None])[0].copy()
        high = low.copy()
        for mass, messages in self.node.groups:
            parts = self._linear_value(value, mass * messages) - zero
            low, high = low + parts.min(0), high + parts.max(0)
        return low, high

    def _assumed(self, k: int, box: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = box[0].copy(), box[1].copy()
        for place, unit, sign, _ in self.case.splits:
            if self.curved[place] == k and sign > 0:
                low[unit], high[unit] = max(low[unit], 0.0), max(high[unit], 0.0)
            elif self.curved[place] == k:
                low[unit], high[unit] = min(low[unit], 0.0), min(high[unit], 0.0)
        return low, high

    def _tight(self, value: int, known: tuple[Array, Array]) -> tuple[Array, Array]:
        width = len(known[0])
        both = np.concatenate([np.eye(width), -np.eye(width)])
        top = self.largest(*self.walk(value, both, self._middle_lines()))
        return np.maximum(known[0], -top[width:]), np.minimum(known[1], top[:width])

    def _root(self, k: int, root: Root, box: tuple[Array, Array]) -> tuple[Array, Array]:
        inside = (box[0] <= 0) & (box[1] >= 0)
        least = np.where(inside, 0.0, np.minimum(abs(box[0]), abs(box[1])))
        most = np.maximum(abs(box[0]), abs(box[1]))
        low, high = _length(root, least), _length(root, most)
        if self._before_is_linear(k):
            self.heights[k] = self._vertex_lengths(root)
            top = np.array([h.max(0) for h in self.heights[k]]).sum(0) if self.node.groups else high
            high = np.minimum(high, top)
        self.roots[k] = (low, high)
        if self._before_is_linear(k):
            below = -self.largest(*self.walk(k + 1, -np.eye(len(low)), self._middle_lines()))
            self.roots[k] = (np.maximum(low, below), high)
        return self.roots[k]

    def _before_is_linear(self, k: int) -> bool:
        todo = list(self.operations[k].inputs)
        while todo:
            value = todo.pop()
            if value and value - 1 in self.curved:
                return False
            todo += self.operations[value - 1].inputs if value else ()
        return True

    def _linear_value(self, value: int, x: Array) -> Array:
        """A value without nonlinear operations before it, at points [n, D]."""
        ranges = [(x, x)]
        for operation in self.operations[:value]:
            ready = all(ranges[i] is not None for i in operation.inputs)
            linear = _is_linear(operation) and ready
            inputs = [ranges[i] for i in operation.inputs]
            made = _forward(operation, inputs, self.node.number) if linear else None
            ranges.append(made)  # type: ignore[arg-type]
        return np.broadcast_to(ranges[value][0], (len(x), ranges[value][0].shape[-1]))

    def _vertex_lengths(self, root: Root) -> list[Array]:
        """Lengths at the vertices, one group about the centres of the others after another."""
        value, lengths = root.inputs[0], []
        centres = [mass * messages.mean(0) for mass, messages in self.node.groups]
        zero = self._linear_value(value, np.zeros((1, len(self.node.fixed))))
        for g, (mass, messages) in enumerate(self.node.groups):
            if g == 0:
                x = (
                    self.node.fixed
                    + mass * messages
                    + sum(centres[1:], np.zeros_like(self.node.fixed))
                )
                lengths.append(_length(root, self._linear_value(value, x)))
            else:
                x = self._linear_value(value, mass * messages - centres[g]) - zero
                lengths.append(_length(Root((), root.size, 0.0, 0.0), x))
        return lengths

    # Lines ------------------------------------------------------------------------------------

    def _middle_lines(self) -> dict[int, tuple[list[Array], list[Array]]]:
        """Slopes above and below of every operation bounded so far, tight at the middles."""
        return {k: _middle(self.operations[k], box) for k, box in self.boxes.items()}

    def given_lines(self) -> dict[int, tuple[list[Array], list[Array]]]:
        """The certificate's slopes, above and below alike."""
        lines, first = dict[int, tuple[list[Array], list[Array]]](), 0
        for k in self.curved:
            parts = []
            for low, _ in self.boxes[k]:
                parts.append(self.case.slopes[first : first + len(low)])
                first += len(low)
            operation = self.operations[k]
            if isinstance(operation, Root):
                parts = [_in_ball(operation, parts[0])]
            lines[k] = (parts, parts)
        return lines

    def walk(
        self,
        value: int,
        rows: Array,
        lines: dict[int, tuple[list[Array], list[Array]]],
        pushed: bool = False,
    ) -> tuple[Array, Array, dict[int, Array]]:
        """rows [R, k] · value ≤ functions [R, D] · a + constant [R] + heights of Roots."""
        held: dict[int, Array] = {value: rows}
        constant, heights = np.zeros(len(rows), rows.dtype), dict[int, Array]()

        def give(i: int, part: Array) -> None:
            held[i] = held[i] + part if i in held else part

        for k in range(value - 1, -1, -1):
            outer = held.pop(k + 1, None)
            if outer is None:
                continue
            operation = self.operations[k]
            if k not in self.curved:
                constant = constant + _pull(operation, outer, give, self.node.number, self.ranges)
                continue
            up, down = np.maximum(outer, 0), np.minimum(outer, 0)
            above, below = lines[k]
            if isinstance(operation, Root):
                q = below[0].reshape(-1, operation.size)
                give(operation.inputs[0], (down[:, :, None] * q).reshape(len(rows), -1))
                rest = np.maximum(1.0 - (q * q).sum(1), 0.0)
                constant = constant + down @ np.sqrt(rest * operation.offset)
                if k in self.heights:
                    heights[k] = up
                else:
                    constant = constant + up @ self.roots[k][1]
            else:
                box = self.boxes[k]
                for i, s, t in zip(operation.inputs, above, below, strict=True):
                    give(i, up * s + down * t)
                constant = constant + up @ _constant(operation, above, box, 1.0)
                constant = constant - down @ _constant(operation, below, box, -1.0)
            if pushed:
                give(operation.inputs[0], self._pushes(k, outer.shape))
        width = len(self.node.fixed)
        return held.get(0, np.zeros((len(rows), width), rows.dtype)), constant, heights

    def _pushes(self, k: int, shape: tuple[int, ...]) -> Array:
        push = np.zeros((1, len(self.boxes[k][0][0])))
        for place, unit, sign, beta in self.case.splits:
            if self.curved[place] == k:
                push[0, unit] += sign * max(beta, 0.0)
        return push

    def largest(self, functions: Array, constant: Array, heights: dict[int, Array]) -> Array:
        """The largest value over all admissible aggregates, [R]."""
        total = constant + functions @ self.node.fixed
        for g, (mass, messages) in enumerate(self.node.groups):
            score = mass * (functions @ messages.T)
            for k, up in heights.items():
                score = score + up @ self.heights[k][g].T
            total = total + score.max(1)
        if not self.node.groups:
            for k, up in heights.items():
                total = total + up @ self.roots[k][1]
        return total

    def bound(self, target: int) -> float:
        """What the case's certificate proves about the target's margin."""
        row = -self.case.weights.astype(np.longdouble)
        row[target] = 1.0
        last = len(self.operations)
        return float(self.largest(*self.walk(last, row[None], self.given_lines(), True))[0])


def _is_linear(operation: Operation) -> bool:
    return isinstance(operation, Affine | Scale | Select | Constant | Add | Concatenate)


def _at(constant: Any, node: int) -> Array:
    values: Array = constant.numpy()
    return values if values.ndim == 1 else values[node]


def _length(root: Root, x: Array) -> Array:
    parts = x.reshape(*x.shape[:-1], -1, root.size)
    return np.maximum(np.sqrt((parts**2).sum(-1) + root.offset), root.floor)


def _in_ball(root: Root, q: Array) -> Array:
    parts = q.reshape(-1, root.size)
    length = np.sqrt((parts**2).sum(1, keepdims=True))
    return (parts / np.maximum(length * (1 + 1e-15), 1.0)).ravel()


def _forward(
    operation: Operation, inputs: list[tuple[Array, Array]], node: int
) -> tuple[Array, Array]:
    """Interval arithmetic; at points, low and high are the same."""
    low, high = inputs[0] if inputs else (np.empty(0), np.empty(0))
    if isinstance(operation, Affine):
        weight, bias = operation.weight.numpy(), _at(operation.bias, node)
        up, down = np.maximum(weight, 0).T, np.minimum(weight, 0).T
        return low @ up + high @ down + bias, high @ up + low @ down + bias
    if isinstance(operation, Scale):
        factor, shift = _at(operation.factor, node), _at(operation.shift, node)
        ends = low * factor + shift, high * factor + shift
        return np.minimum(*ends), np.maximum(*ends)
    if isinstance(operation, Select):
        index = operation.index.numpy()
        return low[..., index], high[..., index]
    if isinstance(operation, Constant):
        value = _at(operation.value, node)
        return value, value
    if isinstance(operation, Add):
        pairs = [(f * a, f * b) for f, (a, b) in zip(operation.factors, inputs, strict=True)]
        lows, highs = zip(*[(np.minimum(a, b), np.maximum(a, b)) for a, b in pairs], strict=True)
        return sum(lows[1:], lows[0]), sum(highs[1:], highs[0])
    if isinstance(operation, Concatenate):
        shape = max((a.shape[:-1] for a, _ in inputs), key=len)
        wide = [
            (np.broadcast_to(a, (*shape, a.shape[-1])), np.broadcast_to(b, (*shape, b.shape[-1])))
            for a, b in inputs
        ]
        return np.concatenate([a for a, _ in wide], -1), np.concatenate([b for _, b in wide], -1)
    if isinstance(operation, Multiply):
        (c, d) = inputs[1]
        corners = np.stack([low * c, low * d, high * c, high * d])
        return corners.min(0), corners.max(0)
    flat = np.broadcast_to(0.0, low.shape)
    values = value_of(operation, _points(operation, flat, low, high))
    return values.min(0), values.max(0)


def _name(operation: Operation) -> str:
    return operation.name if isinstance(operation, Activation | Smooth) else ""


def value_of(operation: Operation, y: Array) -> Array:
    """f(y) by NumPy and SciPy."""
    name = _name(operation)
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
        "exp": np.exp,
        "log": np.log,
        "reciprocal": lambda v: 1 / v,
    }
    return table[name](y)


def _constant(
    operation: Operation, slopes: list[Array], box: list[tuple[Array, Array]], sign: float
) -> Array:
    """max sign · (f(x) − Σ s x) over the box."""
    low, high = box[0]
    if isinstance(operation, Multiply):
        (c, d), (s, t) = box[1], slopes
        return np.max([sign * (x * y - s * x - t * y) for x in (low, high) for y in (c, d)], axis=0)
    points = _points(operation, slopes[0], low, high)
    return np.max(sign * (value_of(operation, points) - slopes[0] * points), axis=0)


def _points(operation: Operation, slope: Array, low: Array, high: Array) -> Array:
    """All y in [l, u] where f(y) − s y may be largest or smallest: ends, kinks, and f′ = s."""
    name = _name(operation)
    if name == "relu":
        return np.stack([low, high, np.clip(0.0, low, high)])
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


def slope_of(operation: Operation, y: Array) -> Array:
    """f′(y)."""
    name = _name(operation)
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
    "exp": np.exp,
    "log": lambda v: 1 / v,
    "reciprocal": lambda v: -(v**-2.0),
}


def _middle(
    operation: Operation, box: list[tuple[Array, Array]]
) -> tuple[list[Array], list[Array]]:
    """The slopes that intervals are found with, above and below: tight at the middle."""
    low, high = box[0]
    middle = (low + high) / 2
    if isinstance(operation, Root):
        parts = middle.reshape(-1, operation.size)
        q = parts / np.maximum(np.sqrt((parts**2).sum(1, keepdims=True) + operation.offset), 1e-300)
        inside = _in_ball(operation, q.ravel())
        return [inside], [inside]
    if isinstance(operation, Multiply):
        return _middle_product(box)
    if _name(operation) == "relu":
        top, bottom = np.maximum(high, 0), np.minimum(low, 0)
        above = top / np.maximum(top - bottom, 1e-300)
        stable = (low >= 0) | (high <= 0)
        return [above], [np.where(stable, above, (middle > 0).astype(float))]
    slope = [slope_of(operation, point) for point in (middle, low, high)]
    width = high - low
    rise = value_of(operation, high) - value_of(operation, low)
    options = [np.where(width > 1e-9, rise / np.maximum(width, 1e-9), slope[0]), *slope]
    ups = np.stack([s * middle + _constant(operation, [s], box, 1.0) for s in options])
    lows = np.stack([s * middle - _constant(operation, [s], box, -1.0) for s in options])
    table, units = np.stack(options), np.arange(len(low))
    return [table[ups.argmin(0), units]], [table[lows.argmax(0), units]]


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


def _pull(
    operation: Operation,
    outer: Array,
    give: Callable[[int, Array], None],
    node: int,
    ranges: list[tuple[Array, Array]],
) -> Array:
    """Carry coefficients back through a linear operation; returns what is constant, [R]."""
    none = np.zeros(len(outer), outer.dtype)
    if isinstance(operation, Affine):
        give(operation.inputs[0], outer @ operation.weight.numpy())
        return outer @ _at(operation.bias, node)
    if isinstance(operation, Scale):
        give(operation.inputs[0], outer * _at(operation.factor, node))
        return outer @ _at(operation.shift, node)
    if isinstance(operation, Constant):
        return outer @ _at(operation.value, node)
    if isinstance(operation, Select):
        inner = np.zeros((len(outer), ranges[operation.inputs[0]][0].shape[-1]), outer.dtype)
        np.add.at(inner.T, operation.index.numpy(), outer.T)
        give(operation.inputs[0], inner)
    elif isinstance(operation, Add):
        for i, factor in zip(operation.inputs, operation.factors, strict=True):
            give(i, factor * outer)
    else:
        widths = [ranges[i][0].shape[-1] for i in operation.inputs]
        pieces = np.split(outer, np.cumsum(widths)[:-1], axis=1)
        for i, piece in zip(operation.inputs, pieces, strict=True):
            give(i, piece)
    return none
