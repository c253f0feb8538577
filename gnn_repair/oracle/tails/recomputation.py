"""Bounds recomputed from the exposure and certificates, for :mod:`check`.

Plain NumPy, many nodes (or parts of nodes) side by side, starting from the aggregate itself:
nothing here is shared with the code that found the certificates but the rewriting of the tail,
whose agreement with the tail :mod:`check` tests by itself. Intervals are computed in float64; what
a certificate proves is summed in extended precision, so no allowance for rounding is needed beyond
the check's own tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    has_values,
    in_ball,
    length_of,
    middle_slopes,
    touching_points,
    value_of,
)

Box = list[tuple[Array, Array]]
Line = tuple[list[Array], list[Array], Array, Array]
"""Slopes [B, k] above and below, one array an input, and what is added to each, [B, k]."""
Signs = tuple[tuple[int, int, int], ...]
"""(nonlinear operation from 0, unit, sign) of every sign that a case assumes."""


class Recomputation:
    """All intervals of B parts of nodes, and the bounds that certificates prove there."""

    def __init__(self, lowered: Lowered, nodes: Sequence[Node], signs: Sequence[Signs]) -> None:
        self.operations, self.signs = lowered.graph.operations, signs
        self.curved = [k for k, op in enumerate(self.operations) if not _is_linear(op)]
        self.numbers = np.array([node.number for node in nodes])
        self.fixed = np.stack([node.fixed for node in nodes])
        groups = [(b, m, messages) for b, node in enumerate(nodes) for m, messages in node.groups]
        self.owner = np.array([b for b, _, _ in groups], np.int64)
        """[S]: the part that each group belongs to; groups of a part stand together."""
        self.points = np.concatenate(
            [np.empty((0, self.fixed.shape[1])), *(m * messages for _, m, messages in groups)]
        )
        """[T, D]: mass times message."""
        self.ends = np.append(0, np.cumsum([len(messages) for *_, messages in groups], dtype=int))
        self.first = np.searchsorted(self.owner, np.arange(len(nodes) + 1))
        self.straight = self._straight()
        self.lost = np.zeros(len(nodes), bool)
        """[B]: an operation has no value somewhere in its box, so that nothing is proved."""
        self.boxes: dict[int, Box] = {}
        self.roots: dict[int, tuple[Array, Array]] = {}
        self.heights: dict[int, Array] = {}
        """By a Root's number: its height above each message, [T, parts]."""
        self.lines: dict[int, Line] = {}
        """By operation: lines that are tight at the middles, with which intervals are found."""
        self.ranges: list[tuple[Array, Array]] = [self._straight_range(0)]
        for k in range(len(self.operations)):
            self.ranges.append(self._bound(k))

    def _straight(self) -> dict[int, tuple[Array, Array]]:
        """Values without nonlinear operations before them: at o [B, k], and what messages add."""
        whose = self.numbers[np.repeat(self.owner, np.diff(self.ends))]
        known = {0: (self.fixed, np.zeros_like(self.fixed), self.points)}
        for k, operation in enumerate(self.operations):
            if _is_linear(operation) and all(i in known for i in operation.inputs):
                inputs = [known[i] for i in operation.inputs]
                known[k + 1] = tuple(  # type: ignore[assignment]
                    _linear_value(operation, [one[part] for one in inputs], numbers)
                    for part, numbers in enumerate((self.numbers, self.numbers, whose))
                )
        owner = np.repeat(self.owner, np.diff(self.ends))
        return {value: (at, moved - zero[owner]) for value, (at, zero, moved) in known.items()}

    def _over_groups(self, function: Any, values: Array) -> Array:
        """[S, k]: the smallest, largest or total over every group."""
        if not len(self.owner):
            return np.empty((0, values.shape[1]))
        return np.asarray(function.reduceat(values, self.ends[:-1], axis=0))

    def _per_part(self, values: Array) -> Array:
        """[B, k]: totals over the groups of a part."""
        total = np.zeros((len(self.fixed), values.shape[1]))
        np.add.at(total, self.owner, values)
        return total

    def _straight_range(self, value: int) -> tuple[Array, Array]:
        """A value that is linear in the messages lies between its values at the vertices."""
        at, moved = self.straight[value]
        low, high = (self._per_part(self._over_groups(f, moved)) for f in (np.minimum, np.maximum))
        return at + low, at + high

    def _bound(self, k: int) -> tuple[Array, Array]:
        """The range of value k + 1; notes the box of a nonlinear operation."""
        operation = self.operations[k]
        if k + 1 in self.straight:
            return self._straight_range(k + 1)
        if k in self.curved:
            for i in set(operation.inputs) - set(self.straight):
                self.ranges[i] = self._tight(i, self.ranges[i])
        inputs = [self.ranges[i] for i in operation.inputs]
        if k in self.curved:
            inputs[0] = self._assumed(k, inputs[0])
            inputs = self._with_values(operation, inputs)
            self.boxes[k] = inputs
            self.lines[k] = _line(operation, *middle_slopes(operation, inputs), inputs)
        if isinstance(operation, Root):
            return self._root(k, operation, inputs[0])
        return _forward(operation, inputs, self.numbers)

    def _with_values(self, operation: Operation, inputs: Box) -> Box:
        """The box, 1 in parts where it holds what the operation has no value for."""
        self.lost |= ~np.all([has_values(operation, *box).all(1) for box in inputs], axis=0)
        if not self.lost.any():
            return inputs
        at = self.lost[:, None]
        return [(np.where(at, 1.0, low), np.where(at, 1.0, high)) for low, high in inputs]

    def _assumed(self, k: int, box: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = box[0].copy(), box[1].copy()
        for b, signs in enumerate(self.signs):
            for place, unit, sign in signs:
                if self.curved[place] == k:
                    clip = np.maximum if sign > 0 else np.minimum
                    low[b, unit], high[b, unit] = clip(low[b, unit], 0), clip(high[b, unit], 0)
        return low, high

    def _tight(self, value: int, known: tuple[Array, Array]) -> tuple[Array, Array]:
        width = known[0].shape[1]
        both = np.concatenate([np.eye(width), -np.eye(width)])[None]
        top = self._largest(*self._walk(value, both, self.lines))
        low, high = -top[:, width:], top[:, :width]
        return np.fmax(known[0], low), np.fmin(known[1], high)  # what is no number says nothing

    def _root(self, k: int, root: Root, box: tuple[Array, Array]) -> tuple[Array, Array]:
        inside = (box[0] <= 0) & (box[1] >= 0)
        least = np.where(inside, 0.0, np.minimum(abs(box[0]), abs(box[1])))
        most = np.maximum(abs(box[0]), abs(box[1]))
        low, high = length_of(root, least), length_of(root, most)
        self.roots[k] = (low, high)
        if root.inputs[0] in self.straight:
            self.heights[k] = self._vertex_lengths(root)
            top = self._per_part(self._over_groups(np.maximum, self.heights[k]))
            alone = self.first[1:] == self.first[:-1]
            self.roots[k] = (low, np.where(alone[:, None], high, np.minimum(high, top)))
            rows = -np.eye(low.shape[1])[None]
            below = -self._largest(*self._walk(k + 1, rows, self.lines))
            self.roots[k] = (np.maximum(low, below), self.roots[k][1])
        return self.roots[k]

    def _vertex_lengths(self, root: Root) -> Array:
        """Lengths at the vertices, one group about the centres of the others after another."""
        at, moved = self.straight[root.inputs[0]]
        sizes = np.diff(self.ends)
        centre = self._over_groups(np.add, moved) / sizes[:, None]
        group = np.repeat(np.arange(len(sizes)), sizes)
        main = self.first[self.owner] == np.arange(len(self.owner))
        around = (at + self._per_part(centre))[self.owner] - centre
        x = moved + np.where(main[:, None], around, -centre)[group]
        plain = Root((), root.size, 0.0, 0.0)
        return np.where(main[group][:, None], length_of(root, x), length_of(plain, x))

    # Lines ------------------------------------------------------------------------------------

    def _given_lines(self, slopes: Array, at: Array) -> dict[int, Line]:
        """Lines of certificates' slopes [Q, U] in the parts ``at``, above and below alike."""
        lines, first = dict[int, Line](), 0
        for k in self.curved:
            parts = []
            for low, _ in self.boxes[k]:
                parts.append(slopes[:, first : first + low.shape[1]])
                first += low.shape[1]
            operation = self.operations[k]
            if isinstance(operation, Root):
                parts = [in_ball(operation, parts[0])]
            box = [(low[at], high[at]) for low, high in self.boxes[k]]
            lines[k] = _line(operation, parts, parts, box)
        return lines

    def _walk(
        self,
        value: int,
        rows: Array,
        lines: dict[int, Line],
        at: Any = slice(None),
        pushes: dict[int, Array] | None = None,
    ) -> tuple[Array, Array, dict[int, Array]]:
        """rows [Q or 1, R, k] · value ≤ functions [Q, R, D] · a + constant [Q, R] + heights of
        Roots, for the parts ``at``."""
        held: dict[int, Array] = {value: rows}
        constant, heights = np.zeros((1, rows.shape[1]), rows.dtype), dict[int, Array]()

        def give(i: int, part: Array) -> None:
            held[i] = held[i] + part if i in held else part

        for k in range(value - 1, -1, -1):
            outer = held.pop(k + 1, None)
            if outer is None:
                continue
            operation = self.operations[k]
            if k not in self.curved:
                widths = [self.ranges[i][0].shape[1] for i in operation.inputs]
                constant = constant + _pull(operation, outer, give, self.numbers[at], widths)
                continue
            up, down = np.maximum(outer, 0), np.minimum(outer, 0)
            above, below, higher, lower = lines[k]
            if isinstance(operation, Root):
                q = below[0].reshape(len(below[0]), 1, -1, operation.size)
                inner = down[..., None] * q
                give(operation.inputs[0], inner.reshape(*inner.shape[:2], -1))
                rest = np.maximum(1.0 - (q * q).sum(3)[:, 0], 0.0)
                constant = constant + _dot(down, np.sqrt(rest * operation.offset))
                if k in self.heights:
                    heights[k] = up
                else:
                    constant = constant + _dot(up, self.roots[k][1][at])
            else:
                for i, s, t in zip(operation.inputs, above, below, strict=True):
                    give(i, up * s[:, None] + down * t[:, None])
                constant = constant + _dot(up, higher) + _dot(down, lower)
            if pushes is not None and k in pushes:
                give(operation.inputs[0], pushes[k])
        width = self.fixed.shape[1]
        return held.get(0, np.zeros((1, rows.shape[1], width), rows.dtype)), constant, heights

    def _largest(
        self,
        functions: Array,
        constant: Array,
        heights: dict[int, Array],
        at: Any = None,
    ) -> Array:
        """The largest value over all admissible aggregates of the parts ``at``, [Q, R]."""
        at = np.arange(len(self.fixed)) if at is None else at
        functions = np.broadcast_to(functions, (len(at), *functions.shape[1:]))
        total = constant + _dot(functions, self.fixed[at])
        up = {k: np.broadcast_to(one, (len(at), *one.shape[1:])) for k, one in heights.items()}
        for q, b in enumerate(at):
            groups = range(self.first[b], self.first[b + 1])
            for g in groups:
                part = slice(self.ends[g], self.ends[g + 1])
                score = functions[q] @ self.points[part].T
                for k, one in up.items():
                    score = score + one[q] @ self.heights[k][part].T
                total[q] += score.max(1)
            if not groups:
                for k, one in up.items():
                    total[q] += one[q] @ self.roots[k][1][b]
        return total

    def bounds(self, at: Array, cases: Sequence[CoveredCase], target: Array) -> Array:
        """[Q]: what the certificates of cases prove about targets' margins in the parts ``at``."""
        weights = np.stack([case.weights for case in cases])
        rows = -weights.astype(np.longdouble)
        rows[np.arange(len(at)), target] = 1.0
        lines = self._given_lines(np.stack([case.slopes for case in cases]), at)
        pushes: dict[int, Array] = {}
        for q, case in enumerate(cases):
            for place, unit, sign, beta in case.splits:
                k = self.curved[place]
                shape = (len(at), 1, self.boxes[k][0][0].shape[1])
                pushes.setdefault(k, np.zeros(shape))[q, 0, unit] += sign * max(beta, 0.0)
        last = len(self.operations)
        walked = self._walk(last, rows[:, None], lines, at, pushes)
        found = self._largest(*walked, at)[:, 0].astype(float)
        return np.where(self.lost[at] | np.isnan(found), np.inf, found)


def _line(operation: Operation, above: list[Array], below: list[Array], box: Box) -> Line:
    """Lines of these slopes; those of a Root need no box."""
    if isinstance(operation, Root):
        return above, below, above[0], below[0]
    higher, lower = (
        constant_of(operation, slopes, box, sign) for slopes, sign in ((above, 1.0), (below, -1.0))
    )
    return above, below, higher, -lower


def _dot(rows: Array, constants: Array) -> Array:
    """rows [Q or 1, R, k] · constants [Q or 1, k], [Q, R]."""
    return np.asarray((rows @ constants[:, :, None])[..., 0])


def _is_linear(operation: Operation) -> bool:
    return isinstance(operation, Affine | Scale | Select | Constant | Add | Concatenate)


def _at(constant: Any, numbers: Array) -> Array:
    """[1, k], or [Q, k] where nodes differ."""
    values: Array = constant.numpy()
    return values[None] if values.ndim == 1 else values[numbers]


def _linear_value(operation: Operation, inputs: list[Array], numbers: Array) -> Array:
    """A linear operation at points [n, k]."""
    same = [(x, x) for x in inputs]
    value = _forward(operation, same, numbers)[0]
    return np.broadcast_to(value, (len(numbers), value.shape[1]))


def _forward(operation: Operation, inputs: Box, numbers: Array) -> tuple[Array, Array]:
    """Interval arithmetic; at points, low and high are the same."""
    low, high = inputs[0] if inputs else (np.empty(0), np.empty(0))
    if isinstance(operation, Affine):
        weight, bias = operation.weight.numpy(), _at(operation.bias, numbers)
        if low is high:
            value = low @ weight.T + bias
            return value, value
        up, down = np.maximum(weight, 0).T, np.minimum(weight, 0).T
        return low @ up + high @ down + bias, high @ up + low @ down + bias
    if isinstance(operation, Scale):
        factor, shift = _at(operation.factor, numbers), _at(operation.shift, numbers)
        ends = low * factor + shift, high * factor + shift
        return np.minimum(*ends), np.maximum(*ends)
    if isinstance(operation, Select):
        index = operation.index.numpy()
        return low[:, index], high[:, index]
    if isinstance(operation, Constant):
        value = np.broadcast_to(
            _at(operation.value, numbers), (len(numbers), operation.value.shape[-1])
        )
        return value, value
    if isinstance(operation, Add):
        pairs = [(f * a, f * b) for f, (a, b) in zip(operation.factors, inputs, strict=True)]
        lows, highs = zip(*[(np.minimum(a, b), np.maximum(a, b)) for a, b in pairs], strict=True)
        return sum(lows[1:], lows[0]), sum(highs[1:], highs[0])
    if isinstance(operation, Concatenate):
        return np.concatenate([a for a, _ in inputs], 1), np.concatenate([b for _, b in inputs], 1)
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
    numbers: Array,
    widths: list[int],
) -> Array:
    """Carry coefficients back through a linear operation; returns what is constant, [Q or 1, R]."""
    none = np.zeros((1, outer.shape[1]), outer.dtype)
    if isinstance(operation, Affine):
        give(operation.inputs[0], outer @ operation.weight.numpy())
        return _dot(outer, _at(operation.bias, numbers))
    if isinstance(operation, Scale):
        give(operation.inputs[0], outer * _at(operation.factor, numbers)[:, None])
        return _dot(outer, _at(operation.shift, numbers))
    if isinstance(operation, Constant):
        return _dot(outer, _at(operation.value, numbers))
    if isinstance(operation, Select):
        inner = np.zeros((*outer.shape[:2], widths[0]), outer.dtype)
        np.add.at(inner.T, operation.index.numpy(), outer.T)
        give(operation.inputs[0], inner)
    elif isinstance(operation, Add):
        for i, factor in zip(operation.inputs, operation.factors, strict=True):
            give(i, factor * outer)
    else:
        pieces = np.split(outer, np.cumsum(widths)[:-1], axis=2)
        for i, piece in zip(operation.inputs, pieces, strict=True):
            give(i, piece)
    return none
