"""Linear upper bounds of linear functions of a tail's values, from the end to the aggregate.

Given coefficients C of a value, C · value ≤ A · x + lifted · τ + constant for every admissible x:
walking backwards, linear operations are multiplied out, and a nonlinear one is replaced by its
upper line where its coefficient is positive and by its lower one where it is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_repair.exposure.tails.operations import (
    Add,
    Affine,
    Concatenate,
    Constant,
    Operation,
    Scale,
    Select,
    TailGraph,
)
from gnn_repair.oracle.tails.lines import (
    NONLINEAR,
    Interval,
    Lines,
    constant_above,
    constant_below,
)
from gnn_repair.oracle.tails.lowering import Root


@dataclass(frozen=True, eq=False)
class Relaxed:
    """One nonlinear operation over a batch: its box, its lines and their constants."""

    operation: Operation
    box: tuple[Interval, ...]
    lines: Lines
    above: Tensor
    """[B, k]: what is added to the upper lines."""
    below: Tensor
    """[B, k]: to the lower ones."""
    lift: int | None = None
    """The first of a Root's channels among the lifts; None where it has none."""

    def take(self, index: Tensor) -> Relaxed:
        """The rows of some of the B."""
        cut = tuple(
            None if s is None else tuple(t[index] for t in s)
            for s in (self.lines.above, self.lines.below)
        )
        lines = Lines(cut[0], cut[1] or ())
        box = tuple(interval.take(index) for interval in self.box)
        return Relaxed(self.operation, box, lines, self.above[index], self.below[index], self.lift)


def relaxed(
    operation: Operation,
    box: Sequence[Interval],
    lines: Lines,
    top: Tensor | None = None,
    lift: int | None = None,
) -> Relaxed:
    """An operation with lines of these slopes; ``top`` [B, k] is a Root's largest value."""
    below = constant_below(operation, lines.below, box)
    if lines.above is not None:
        above = constant_above(operation, lines.above, box)
    else:
        assert top is not None
        above = top if lift is None else torch.zeros_like(top)
    return Relaxed(operation, tuple(box), lines, above, below, lift)


@dataclass(frozen=True, eq=False)
class Linear:
    """C · value ≤ functions · x + lifted · τ + constant."""

    functions: Tensor
    """[B, R, D]."""
    lifted: Tensor
    """[B, R, E]."""
    constant: Tensor
    """[B, R]."""
    slopes: dict[int, tuple[Tensor, ...]]
    """What each nonlinear operation was replaced by, where R = 1: slopes [B, k] an input."""
    seen: dict[int, Tensor]
    """The coefficients [B or 1, R, k] each nonlinear operation had."""
    weighed: Tensor
    """[B, R]: Σ |C| M over all values, M what the sums behind a value may come to: what rounding
    errors of the sums on the way back are relative to."""


def backward(
    graph: TailGraph,
    value: int,
    coefficients: Tensor,
    parts: dict[int, Relaxed],
    nodes: Tensor,
    lifts: int,
    sizes: Sequence[Tensor],
    pushes: dict[int, Tensor] | None = None,
) -> Linear:
    """Bound ``coefficients`` [B or 1, R, k] · ``value`` above.

    Args:
        graph: the lowered tail.
        value: number of the value.
        coefficients: C.
        parts: the nonlinear operations' relaxations, by number.
        nodes: [B] graph nodes.
        lifts: E.
        sizes: M of every value, [B, k] each.
        pushes: by operation number, [B, R, k]: multiples of its input that are added, which must
            be nonnegative for inputs known to have that sign.
    """
    batch, rows = len(nodes), coefficients.shape[1]
    walk = _Walk(graph, nodes, {value: coefficients}, batch, rows, lifts, sizes)
    for number in range(value - 1, -1, -1):
        outer = walk.held.pop(number + 1, None)
        if outer is None and value == len(graph.operations) and number in parts:
            # A norm whose σ no output reads; proofs have slopes of every nonlinear operation.
            outer = coefficients.new_zeros(1, rows, width_of(graph, number + 1))
        if outer is None:
            continue
        walk.weigh(number + 1, outer)
        operation = graph.operations[number]
        if isinstance(operation, NONLINEAR):
            walk.nonlinear(number, parts[number], outer)
            if pushes is not None and number in pushes:
                walk.give_line(operation.inputs[0], pushes[number])
        else:
            _LINEAR[type(operation)](walk, operation, outer)
    functions = walk.held.get(0)
    if functions is None:
        functions = walk.constant.new_zeros(1, rows, graph.width)
    walk.weigh(0, functions)
    full = functions.expand(batch, -1, -1).contiguous()
    weighed = walk.weighed + walk.constant.abs()
    return Linear(full, walk.lifted, walk.constant, walk.slopes, walk.seen, weighed)


class _Walk:
    """What has been gathered on the way back."""

    def __init__(
        self, graph: TailGraph, nodes: Tensor, held: dict[int, Tensor], batch: int, rows: int,
        lifts: int, sizes: Sequence[Tensor],
    ) -> None:  # fmt: skip
        self.graph, self.nodes, self.held, self.sizes = graph, nodes, held, sizes
        new = next(iter(held.values())).new_zeros
        self.constant, self.lifted = new(batch, rows), new(batch, rows, lifts)
        self.weighed = new(batch, rows)
        self.slopes: dict[int, tuple[Tensor, ...]] = {}
        self.seen: dict[int, Tensor] = {}

    def give(self, value: int, coefficients: Tensor) -> None:
        """Add coefficients of a value."""
        held = self.held.get(value)
        self.held[value] = coefficients if held is None else held + coefficients

    def weigh(self, value: int, coefficients: Tensor) -> None:
        """Note the size of C · value."""
        size = self.sizes[value].unsqueeze(2)
        self.weighed = self.weighed + (coefficients.abs() @ size).squeeze(2)

    def give_line(self, value: int, coefficients: Tensor) -> None:
        """The same for a line's part, which others may cancel: it is weighed by itself."""
        self.weigh(value, coefficients)
        self.give(value, coefficients)

    def add_constant(self, coefficients: Tensor, constant: Tensor) -> None:
        """Add C · b for b [k] or by node [N, k]."""
        if constant.dim() == 1:
            self.constant = self.constant + coefficients @ constant
        else:
            at = constant[self.nodes].unsqueeze(2)
            self.constant = self.constant + (coefficients @ at).squeeze(2)

    def nonlinear(self, number: int, part: Relaxed, outer: Tensor) -> None:
        """Replace an operation by its lines."""
        self.seen[number] = outer
        up, down = outer.clamp(min=0.0), outer.clamp(max=0.0)
        constants = (up @ part.above.unsqueeze(2) + down @ part.below.unsqueeze(2)).squeeze(2)
        self.constant = self.constant + constants
        if outer.shape[1] == 1:
            self.slopes[number] = part.lines.chosen(outer.expand(len(self.nodes), -1, -1)[:, 0])
        if isinstance(part.operation, Root):
            self._root(part, part.operation, up, down)
            return
        assert part.lines.above is not None
        for value, above, below in zip(
            part.operation.inputs, part.lines.above, part.lines.below, strict=True
        ):
            self.give_line(value, up * above.unsqueeze(1) + down * below.unsqueeze(1))

    def _root(self, part: Relaxed, operation: Root, up: Tensor, down: Tensor) -> None:
        if part.lift is not None:
            self.lifted[:, :, part.lift : part.lift + up.shape[2]] += up
        q = part.lines.below[0].unflatten(1, (-1, operation.size)).unsqueeze(1)
        self.give_line(operation.inputs[0], (down.unsqueeze(3) * q).flatten(2))


def _affine(walk: _Walk, op: Operation, outer: Tensor) -> None:
    assert isinstance(op, Affine)
    walk.add_constant(outer, op.bias)
    walk.give(op.inputs[0], outer @ op.weight)


def _scale(walk: _Walk, op: Operation, outer: Tensor) -> None:
    assert isinstance(op, Scale)
    walk.add_constant(outer, op.shift)
    factor = op.factor if op.factor.dim() == 1 else op.factor[walk.nodes].unsqueeze(1)
    walk.give(op.inputs[0], outer * factor)


def _select(walk: _Walk, op: Operation, outer: Tensor) -> None:
    assert isinstance(op, Select)
    inner = outer.new_zeros(*outer.shape[:2], width_of(walk.graph, op.inputs[0]))
    walk.give(op.inputs[0], inner.index_add_(2, op.index, outer))


def width_of(graph: TailGraph, value: int) -> int:
    """How many channels a value has."""
    if value == 0:
        return graph.width
    op = graph.operations[value - 1]
    if isinstance(op, Affine):
        return op.weight.shape[0]
    if isinstance(op, Select):
        return op.index.numel()
    if isinstance(op, Constant):
        return op.value.shape[-1]
    if isinstance(op, Concatenate):
        return sum(width_of(graph, i) for i in op.inputs)
    width = width_of(graph, op.inputs[0])
    return width // op.size if isinstance(op, Root) else width


def _constant(walk: _Walk, op: Operation, outer: Tensor) -> None:
    assert isinstance(op, Constant)
    walk.add_constant(outer, op.value)


def _add(walk: _Walk, op: Operation, outer: Tensor) -> None:
    assert isinstance(op, Add)
    for value, factor in zip(op.inputs, op.factors, strict=True):
        walk.give(value, outer if factor == 1.0 else factor * outer)


def _concatenate(walk: _Walk, op: Operation, outer: Tensor) -> None:
    widths = [width_of(walk.graph, i) for i in op.inputs]
    for value, piece in zip(op.inputs, outer.split(widths, dim=2), strict=True):
        walk.give(value, piece)


_LINEAR: dict[type[Operation], Callable[[_Walk, Operation, Tensor], None]] = {
    Affine: _affine,
    Scale: _scale,
    Select: _select,
    Constant: _constant,
    Add: _add,
    Concatenate: _concatenate,
}
