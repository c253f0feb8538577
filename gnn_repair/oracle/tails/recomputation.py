"""Bounds of one node recomputed from the exposure and a certificate, for :mod:`check`.

Plain NumPy, one node at a time, starting from the aggregate itself: nothing here is shared with
the code that found the certificate but the rewriting of the tail, whose agreement with the tail
:mod:`check` tests by itself. Intervals are computed in float64; what a certificate proves is summed
in extended precision, so no allowance for rounding is needed beyond the check's own tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gnn_repair.exposure.tails.operations import (
    Add,
    Affine,
    Concatenate,
    Constant,
    Multiply,
    Operation,
    Scale,
    Select,
)
from gnn_repair.oracle.tails.lowering import Lowered, Root
from gnn_repair.oracle.tails.recomputed_cases import CoveredCase, Node
from gnn_repair.oracle.tails.recomputed_lines import (
    Array,
    constant_of,
    in_ball,
    length_of,
    middle_slopes,
    touching_points,
    value_of,
)


class Recomputation:
    """All intervals of one node in one case, and the bound that its certificate proves."""

    def __init__(self, lowered: Lowered, node: Node, case: CoveredCase) -> None:
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
        low, high = length_of(root, least), length_of(root, most)
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
                lengths.append(length_of(root, self._linear_value(value, x)))
            else:
                x = self._linear_value(value, mass * messages - centres[g]) - zero
                lengths.append(length_of(Root((), root.size, 0.0, 0.0), x))
        return lengths

    # Lines ------------------------------------------------------------------------------------

    def _middle_lines(self) -> dict[int, tuple[list[Array], list[Array]]]:
        """Slopes above and below of every operation bounded so far, tight at the middles."""
        return {k: middle_slopes(self.operations[k], box) for k, box in self.boxes.items()}

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
                parts = [in_ball(operation, parts[0])]
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
                constant = constant + up @ constant_of(operation, above, box, 1.0)
                constant = constant - down @ constant_of(operation, below, box, -1.0)
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
    values = value_of(operation, touching_points(operation, flat, low, high))
    return values.min(0), values.max(0)


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
