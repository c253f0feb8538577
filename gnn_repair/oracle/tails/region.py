"""Everything bounds need to know of a batch of nodes: where each value of the tail can lie.

The largest value of a linear function over a node's admissible aggregates is a maximum over its
terms, so intervals of pre-activations that are linear in the messages are exact; deeper ones follow
from linear bounds carried backwards. All classes of a node share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.tails.operations import Activation, Operation, TailGraph
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.backward import Linear, Relaxed, backward, relaxed, width_of
from gnn_repair.oracle.tails.base import ROUNDING, Base
from gnn_repair.oracle.tails.functions import defined
from gnn_repair.oracle.tails.intervals import INTERVALS, keeps_channels, size_of
from gnn_repair.oracle.tails.lines import NONLINEAR, Interval, lines_at
from gnn_repair.oracle.tails.lowering import Root
from gnn_repair.oracle.tails.vertices import maxima

HUGE = 1e100
"""Numbers from here on are not gone on with: their products would overflow."""
PORTION = 1 << 22
"""Numbers of coefficients formed at once when a whole layer is bounded (32 MB)."""


@dataclass(frozen=True, eq=False)
class Region:
    """B nodes (or LPs: rows may repeat a node) and the intervals of their tails' values."""

    base: Base
    position: Integers
    """[B]: recipients."""
    begins: Integers
    """[B + 1]: where the places of each one's terms begin."""
    lifts: Floats
    """[places, E]: what each term adds to the linear functions that stand above a Root."""
    boxes: dict[int, tuple[Interval, ...]]
    """By number of a nonlinear operation: intervals of its inputs."""
    tops: dict[int, Interval]
    """By number of a Root: the interval of its value."""
    lift_of: dict[int, int]
    """By number of a Root: its first channel among the lifts, where it has any."""
    lines: dict[int, Relaxed]
    """By number of a nonlinear operation: its lines, tight at the middles."""
    sizes: tuple[Tensor, ...]
    """M of every value, [B, k]: what the sums behind it may come to, for rounding."""
    unbounded: Tensor
    """[B] bool: a function met a pole, or a number too large to go on with. No bound holds there;
    the intervals from there on stand in for what is not known."""

    @property
    def nodes(self) -> Tensor:
        """[B]: graph nodes."""
        return torch.from_numpy(self.base.nodes[self.position])

    @property
    def ends(self) -> Integers:
        """[B, G + 1]."""
        return self.base.ends[self.position]

    @property
    def mass(self) -> Floats:
        """[B, G]."""
        return self.base.mass[self.position]

    @property
    def fixed(self) -> Tensor:
        """[B, D]: o."""
        return torch.from_numpy(self.base.fixed[self.position])

    def __len__(self) -> int:
        return len(self.position)

    def take(self, index: Integers) -> Region:
        """Some of the rows, in any order, repeated or not."""
        at = torch.from_numpy(index)
        counts = np.diff(self.begins)[index]
        begins = np.append(0, np.cumsum(counts))
        places = np.repeat(self.begins[index] - begins[:-1], counts) + np.arange(begins[-1])
        return replace(
            self,
            position=self.position[index],
            begins=begins,
            lifts=self.lifts[places] if self.lifts.shape[1] else np.empty((len(places), 0)),
            boxes={k: tuple(i.take(at) for i in box) for k, box in self.boxes.items()},
            tops={k: top.take(at) for k, top in self.tops.items()},
            lines={k: part.take(at) for k, part in self.lines.items()},
            sizes=tuple(size[at] for size in self.sizes),
            unbounded=self.unbounded[at],
        )

    def relax(self, at: Sequence[Tensor]) -> dict[int, Relaxed]:
        """Lines of all nonlinear operations, tight at the values ``at``."""
        operations = self.base.graph.operations
        return {k: self.line(k, [at[i] for i in operations[k].inputs]) for k in self.boxes}

    def line(self, number: int, at: Sequence[Tensor]) -> Relaxed:
        """One operation's lines, tight where its inputs are ``at``."""
        operation, box = self.base.graph.operations[number], self.boxes[number]
        lift, top = self.lift_of.get(number), self.tops.get(number)
        lines = lines_at(operation, box, at, lift is not None)
        return relaxed(operation, box, lines, None if top is None else top.high, lift)

    def with_line(self, number: int) -> Region:
        """The region with an operation's lines, tight at the middles."""
        line = self.line(number, [interval.middle for interval in self.boxes[number]])
        return replace(self, lines={**self.lines, number: line})

    def backward(
        self,
        value: int,
        coefficients: Tensor,
        parts: dict[int, Relaxed],
        pushes: dict[int, Tensor] | None = None,
    ) -> Linear:
        """Bound coefficients [B or 1, R, k] · value above by linear functions."""
        linear = backward(
            self.base.graph, value, coefficients, parts, self.nodes, self.lifts.shape[1],
            self.sizes, pushes,
        )  # fmt: skip
        empty = np.diff(self.begins) == 0
        return self._without_terms(linear, empty) if self.lift_of and empty.any() else linear

    def _without_terms(self, linear: Linear, empty: NDArray[np.bool_]) -> Linear:
        """Where there are no terms to lift, a Root's coefficient meets its one value."""
        high = torch.zeros(len(self), self.lifts.shape[1], dtype=torch.float64)
        for number, first in self.lift_of.items():
            top = self.tops[number].high
            high[:, first : first + top.shape[1]] = top
        alone = (linear.lifted @ high.unsqueeze(2)).squeeze(2)
        constant = linear.constant + alone * torch.from_numpy(empty).unsqueeze(1)
        return replace(linear, constant=constant)

    def largest(self, linear: Linear) -> Tensor:
        """[B, R]: the largest value of linear functions over the admissible aggregates, rounded
        up."""
        out = np.empty(linear.constant.shape)
        maxima(
            self.ends, self.begins, self.mass, self.base.rows, self.base.table, self.lifts,
            linear.functions.numpy(), linear.lifted.numpy(), out,
        )  # fmt: skip
        offset = (linear.functions @ self.fixed.unsqueeze(2)).squeeze(2)
        # Every sum on the way has at most so many terms, each off by at most ROUNDING of its size.
        longest = max(size.shape[1] for size in self.sizes) + self.base.width + 16
        return (
            torch.from_numpy(out) + offset + linear.constant + ROUNDING * longest * linear.weighed
        )


def bare_region(base: Base, position: Integers) -> Region:
    """The region without any interval: enough to search for witnesses."""
    counts = base.ends[position, -1] - base.ends[position, 0]
    begins = np.append(0, np.cumsum(counts))
    sizes = (torch.from_numpy(base.size[position]),)
    unbounded, lifts = torch.zeros(len(position), dtype=torch.bool), np.empty((int(begins[-1]), 0))
    return Region(base, position, begins, lifts, {}, {}, {}, {}, sizes, unbounded)


def region_of(base: Base, position: Integers, signs: dict[int, Tensor] | None = None) -> Region:
    """The region of the recipients at ``position``: intervals of everything, value by value.

    Args:
        base: of the exposure.
        position: [B] recipients; one may stand several times.
        signs: by number of an elementwise operation, [B, k] of −1, 0, 1: the sign its input is
            taken to have, which halves its interval.
    """
    start = Interval(torch.from_numpy(base.low[position]), torch.from_numpy(base.high[position]))
    region = bare_region(base, position)
    intervals, exact = [start], [True]  # exact: nothing better is to be had by linear bounds
    for number, operation in enumerate(base.graph.operations):
        inputs = [intervals[i] for i in operation.inputs]
        if isinstance(operation, NONLINEAR):
            for i in operation.inputs:
                if not exact[i]:
                    intervals[i], exact[i] = _tightened(region, i, intervals[i]), True
            inputs = [intervals[i] for i in operation.inputs]
            if signs is not None and number in signs:
                inputs[0] = clipped(inputs[0], signs[number])
            inputs, lost = _within_reach(operation, inputs)
            boxes = {**region.boxes, number: tuple(inputs)}
            region = replace(region, boxes=boxes, unbounded=region.unbounded | lost)
        if isinstance(operation, Root):
            region = _with_root(
                region, number, operation, inputs[0], _is_linear(base.graph, number)
            )
            intervals.append(region.tops[number])
        else:
            if isinstance(operation, NONLINEAR):
                region = region.with_line(number)
            intervals.append(INTERVALS[type(operation)](operation, inputs, region.nodes))
        sizes = [region.sizes[i] for i in operation.inputs]
        size = size_of(operation, sizes, intervals[-1], region.nodes)
        region = replace(region, sizes=(*region.sizes, size))
        exact.append(all(exact[i] for i in operation.inputs) and keeps_channels(operation))
    return region


def _within_reach(
    operation: Operation, inputs: Sequence[Interval]
) -> tuple[list[Interval], Tensor]:
    """The inputs of an operation, 1 in rows where it has no bound over them; and those rows."""
    fine = torch.stack([(x.low.abs() < HUGE) & (x.high.abs() < HUGE) for x in inputs]).all(0)
    if isinstance(operation, Activation):
        fine &= defined(operation.name, inputs[0].low, inputs[0].high)
    lost = ~fine.all(1)
    if not bool(lost.any()):
        return list(inputs), lost
    at = lost.unsqueeze(1)
    return [
        Interval(torch.where(at, 1.0, x.low), torch.where(at, 1.0, x.high)) for x in inputs
    ], lost


def clipped(box: Interval, signs: Tensor) -> Interval:
    """The part of an interval on the side of zero that ``signs`` (−1, 0, 1) names."""
    low = torch.where(signs > 0, box.low.clamp(min=0.0), box.low)
    high = torch.where(signs < 0, box.high.clamp(max=0.0), box.high)
    # An empty side proves anything; the interval is then the one point at its end.
    return Interval(torch.minimum(low, high), torch.maximum(low, high))


def _tightened(region: Region, value: int, known: Interval) -> Interval:
    """The interval of a value by linear bounds, within what is known already."""
    width = width_of(region.base.graph, value)
    eye = torch.eye(width, dtype=torch.float64)
    rows = torch.cat([eye, -eye]).unsqueeze(0)
    step = max(1, PORTION // (2 * width * max(region.base.width, width)))
    lows, highs = [], []
    for first in range(0, len(region), step):
        part = region.take(np.arange(first, min(first + step, len(region))))
        top = part.largest(part.backward(value, rows, part.lines))
        highs.append(top[:, :width])
        lows.append(-top[:, width:])
    low = torch.maximum(known.low, torch.cat(lows).nan_to_num(nan=-torch.inf))
    high = torch.minimum(known.high, torch.cat(highs).nan_to_num(nan=torch.inf))
    # Two sound bounds cross by rounding only, where the value is a single point.
    return Interval(torch.minimum(low, high), torch.maximum(low, high))


def _is_linear(graph: TailGraph, number: int) -> bool:
    """Whether no nonlinear operation stands before this one."""
    seen, todo = set[int](), list(graph.operations[number].inputs)
    while todo:
        value = todo.pop()
        if value == 0 or value in seen:
            continue
        seen.add(value)
        operation = graph.operations[value - 1]
        if isinstance(operation, NONLINEAR):
            return False
        todo += operation.inputs
    return True


def _with_root(region: Region, number: int, operation: Root, box: Interval, linear: bool) -> Region:
    """Add a Root's interval, and its interpolation between vertices where its input is linear."""
    squares = torch.where(
        (box.low <= 0) & (box.high >= 0), 0.0, torch.minimum(box.low.abs(), box.high.abs())
    ).square()
    peaks = torch.maximum(box.low.abs(), box.high.abs()).square()

    def root(square: Tensor) -> Tensor:
        total = square.unflatten(1, (-1, operation.size)).sum(2) + operation.offset
        return total.sqrt().clamp(min=operation.floor)

    top = Interval(root(squares) * (1 - 1e-12), root(peaks) * (1 + 1e-12))
    if not linear:
        return replace(region, tops={**region.tops, number: top}).with_line(number)
    sizes = region.sizes[operation.inputs[0]].unflatten(1, (-1, operation.size)).norm(dim=2)
    slack = ROUNDING * (box.low.shape[1] + region.base.width + 16) * (sizes + top.high)
    lifts, high = _interpolation(region, operation, slack)
    top = Interval(top.low, torch.minimum(top.high, high))
    region = replace(
        region,
        lifts=np.concatenate([region.lifts, lifts], axis=1),
        lift_of={**region.lift_of, number: region.lifts.shape[1]},
        tops={**region.tops, number: top},
    ).with_line(number)
    return replace(region, tops={**region.tops, number: _raised(region, number, top)})


def _raised(region: Region, number: int, top: Interval) -> Interval:
    """A Root's smallest value by its tangent at the frozen masses' centre."""
    eye = -torch.eye(top.low.shape[1], dtype=torch.float64).unsqueeze(0)
    whole = replace(region, sizes=(*region.sizes, top.high))
    below = -whole.largest(whole.backward(number + 1, eye, whole.lines))
    return Interval(torch.maximum(top.low, below), top.high)


def _interpolation(region: Region, operation: Root, slack: Tensor) -> tuple[Floats, Tensor]:
    """τ of each term, [places, parts], and the largest Σ λ τ.

    σ is convex. With one group it is at most its interpolation between the vertices; with several,
    the length of a sum is at most the sum of lengths, one group about a centre after another. Each
    is rounded up by ``slack`` [B, parts].
    """
    base, ends, mass = region.base, region.ends, region.mass
    owner = np.repeat(np.arange(len(region)), np.diff(region.begins))
    term = np.arange(len(owner)) - region.begins[owner] + ends[owner, 0]
    group = (term[:, None] >= ends[owner, 1:-1]).sum(1)
    weight = mass[owner, group]
    points = base.table[base.rows[term]] * weight[:, None]
    first = np.argmax(ends[:, 1:] > ends[:, :-1], axis=1)[owner] == group
    centre = _centres(points, owner, group, ends)
    points[~first] -= centre[owner[~first], group[~first]]
    rest = centre.sum(1) - centre[np.arange(len(region)), np.argmax(ends[:, 1:] > ends[:, :-1], 1)]
    points[first] += (base.fixed[region.position] + rest)[owner[first]]
    nodes = region.nodes[torch.from_numpy(owner)]
    x = _affine_value(base.graph, operation.inputs[0], torch.from_numpy(points), nodes)
    zero = _affine_value(
        base.graph, operation.inputs[0], torch.zeros_like(x[:, :1]).expand(-1, base.width), nodes
    )
    x[torch.from_numpy(~first)] -= zero[torch.from_numpy(~first)]
    main = torch.from_numpy(first)
    square = x.unflatten(1, (-1, operation.size)).square().sum(2)
    length = (square + operation.offset * main.unsqueeze(1)).sqrt()
    length = torch.where(main.unsqueeze(1), length.clamp(min=operation.floor), length)
    length = length + slack[torch.from_numpy(owner)]
    lifts = length.numpy() / weight[:, None]
    high = np.zeros((len(region), length.shape[1]))
    for g in range(mass.shape[1]):
        best = np.zeros_like(high)
        np.maximum.at(best, owner[group == g], length.numpy()[group == g])
        high += best
    empty = np.diff(region.begins) == 0
    if empty.any():
        alone = _affine_value(base.graph, operation.inputs[0], region.fixed, region.nodes)
        square = alone.unflatten(1, (-1, operation.size)).square().sum(2) + operation.offset
        high[empty] = (square.sqrt().clamp(min=operation.floor) + slack).numpy()[empty]
    return lifts, torch.from_numpy(high)


def _centres(points: Floats, owner: Integers, group: Integers, ends: Integers) -> Floats:
    """The mean vertex of each group, [B, G, D]."""
    centre = np.zeros((len(ends), ends.shape[1] - 1, points.shape[1]))
    np.add.at(centre, (owner, group), points)
    return centre / np.maximum(np.diff(ends, axis=1), 1)[:, :, None]


def _affine_value(graph: TailGraph, value: int, x: Tensor, nodes: Tensor) -> Tensor:
    """A value that no nonlinear operation stands before, at points x."""
    return replace(graph, operations=graph.operations[:value]).values(x, nodes)[value]
