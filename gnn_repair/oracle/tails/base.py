"""What the bounds of a tail start from: polytopes of aggregates, linear beginnings folded in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.tails.operations import Affine, Operation, Scale, Select, TailGraph
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.lowering import Lowered, lower
from gnn_repair.oracle.tails.vertices import extremes, mixtures

ROUNDING = 2.0**-50
"""What an addition may be wrong by, relative to the magnitudes added: four times the unit roundoff
of float64, for the sums of a product and of masses on the way. Bounds are widened by this times the
number of terms of a sum times the magnitudes summed."""


@dataclass(frozen=True, eq=False)
class Base:
    """x_v(λ) = o_v + Σ λ h, and the lowered tail that begins at x.

    Operations at the beginning that are linear and the same for all nodes are folded into the
    contributions, so that the first pre-activations are the mixture itself.
    """

    lowered: Lowered
    num_classes: int
    """C."""
    folded: tuple[Operation, ...]
    """What was folded, in order."""
    nodes: Integers
    """[n]: the graph node of each recipient."""
    ends: Integers
    """[n, G + 1]: where the terms of each recipient and group begin and end."""
    mass: Floats
    """[n, G]."""
    rows: NDArray[np.int32]
    """[T]."""
    sources: NDArray[np.int32]
    """[R]."""
    table: Floats
    """[R, D]: h."""
    fixed: Floats
    """[n, D]: o."""
    low: Floats
    """[n, D]: the smallest x, channel by channel."""
    high: Floats
    """[n, D]: the largest."""
    size: Floats
    """[n, D]: |o| + Σ_g m_g max |h|, which no sum that makes up x exceeds."""
    slack: Floats
    """[n, D]: what x may be off by."""

    @property
    def graph(self) -> TailGraph:
        """The lowered tail."""
        return self.lowered.graph

    @property
    def width(self) -> int:
        """D."""
        return self.table.shape[1]

    def mix(self, position: Integers, indptr: Integers, terms: Integers, shares: Floats) -> Tensor:
        """x at a sparse λ for each of the recipients at ``position``, [L, D]."""
        out = self.fixed[position]
        mixtures(indptr, terms, shares, self.rows, self.table, out)
        return torch.from_numpy(out)


def base_of(exposure: Exposure, position: Integers | None = None) -> Base:
    """The base of an exposure, with the extremes of the recipients at ``position`` (or all)."""
    aggregate = exposure.aggregate
    assert exposure.head is not None
    lowered, folded = _fold(lower(exposure.head))
    recipients = aggregate.recipients.cpu()
    groups, count = aggregate.num_groups, len(recipients)
    segments = aggregate.segments.cpu().numpy()
    ends = segments[np.arange(count)[:, None] * groups + np.arange(groups + 1)]
    mass, rows = aggregate.mass[0].cpu().numpy(), aggregate.rows.cpu().numpy()
    chosen = np.arange(count) if position is None else np.unique(position)
    at, used = torch.from_numpy(chosen), _used(ends[chosen], rows, aggregate.contributions.shape[1])
    table, gross, fixed, weight = _beginning(aggregate, folded, at, used)
    messages = _spread(table, used, aggregate.contributions.shape[1])
    sums = _spread(gross, used, len(messages)) if folded else messages
    offset, magnitude = (_spread(part, at, count) for part in (fixed, weight))
    low, high, size = (np.zeros((count, messages.shape[1])) for _ in range(3))
    low[chosen], high[chosen], size[chosen] = _extremes(
        ends[chosen], mass[chosen], rows, messages, sums
    )
    size += magnitude
    longest = max(messages.shape[1], aggregate.contributions.shape[2]) + aggregate.num_groups
    slack = ROUNDING * longest * size
    return Base(
        lowered=lowered,
        num_classes=exposure.frozen_logits.shape[2],
        folded=folded,
        nodes=recipients.numpy(),
        ends=ends,
        mass=mass,
        rows=rows,
        sources=aggregate.sources.cpu().numpy(),
        table=messages,
        fixed=offset,
        low=low + offset - slack,
        high=high + offset + slack,
        size=size,
        slack=slack,
    )


def _beginning(
    aggregate: Exposure, folded: Sequence[Operation], at: Tensor, used: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h of the rows ``used`` and o of the recipients ``at`` after what is folded, each with the
    largest sums behind it: h, its sums, o, its sums."""
    nodes = aggregate.recipients.cpu()[at]
    table = aggregate.contributions[0].cpu()[used].double()
    fixed = aggregate.fixed_logits[0].cpu()[nodes].double()
    gross, weight = table.abs(), fixed.abs()
    for operation in folded:
        weight = _magnitudes(operation, weight, nodes)
        gross = _linear_part(_absolute(operation), gross)
        fixed = operation.evaluate([fixed], nodes)
        table = _linear_part(operation, table)
    return table, gross, fixed, weight


def _used(ends: Integers, rows: NDArray[np.int32], count: int) -> Tensor:
    """The rows of contributions that the terms of these recipients name."""
    named = np.zeros(count, bool)
    for first, last in zip(ends[:, 0].tolist(), ends[:, -1].tolist(), strict=True):
        named[rows[first:last]] = True
    return torch.from_numpy(np.flatnonzero(named))


def _spread(part: Tensor, index: Tensor, count: int) -> Floats:
    """Rows at their places among ``count``; the others, which nobody asks for, are zero."""
    if len(index) == count:
        return np.ascontiguousarray(part.numpy())
    full = torch.zeros(count, part.shape[1], dtype=torch.float64)
    full[index] = part
    return full.numpy()


def _extremes(
    ends: Integers, mass: Floats, rows: NDArray[np.int32], table: Floats, gross: Floats
) -> tuple[Floats, Floats, Floats]:
    """Smallest and largest Σ λ h, and what the sums behind them come to at most."""
    shape = (len(ends), table.shape[1])
    low, high, size = np.empty(shape), np.empty(shape), np.empty(shape)
    extremes(ends, mass, rows, table, low, high, size)
    if gross is not table:  # what was summed may be far larger than the sums
        extremes(ends, mass, rows, gross, np.empty(shape), np.empty(shape), size)
    return low, high, size


def _absolute(operation: Operation) -> Operation:
    """The operation with the absolute values of its linear part."""
    if isinstance(operation, Affine):
        return replace(operation, weight=operation.weight.abs())
    return (
        replace(operation, factor=operation.factor.abs())
        if isinstance(operation, Scale)
        else operation
    )


def _magnitudes(operation: Operation, weight: Tensor, nodes: Tensor) -> Tensor:
    """What the largest sums that make up the operation's value come to."""
    operation = _absolute(operation)
    if isinstance(operation, Affine):
        operation = replace(operation, bias=operation.bias.abs())
    elif isinstance(operation, Scale):
        operation = replace(operation, shift=operation.shift.abs())
    return operation.evaluate([weight], nodes)


def _linear_part(operation: Operation, table: Tensor) -> Tensor:
    if isinstance(operation, Affine):
        return table @ operation.weight.t()
    if isinstance(operation, Scale):
        return table * operation.factor
    assert isinstance(operation, Select)
    return table[:, operation.index]


def _fold(lowered: Lowered) -> tuple[Lowered, tuple[Operation, ...]]:
    """Take operations off the beginning while one alone reads the aggregate and is linear."""
    operations, folded = list(lowered.graph.operations), list[Operation]()
    while operations and not lowered.reason and len(operations) > 1:
        readers = [k for k, op in enumerate(operations) if 0 in op.inputs]
        first = operations[readers[0]] if len(readers) == 1 else None
        shared = isinstance(first, Scale) and first.factor.dim() == 1
        if first is None or not (shared or isinstance(first, Affine | Select)):
            break
        folded.append(first)
        operations = _without(operations, readers[0])
    graph = replace(lowered.graph, operations=tuple(operations))
    if folded:
        graph = replace(graph, width=_out_width(folded, lowered.graph.width))
    scale = lowered.scale if lowered.scale is None else lowered.scale - len(folded)
    return replace(lowered, graph=graph, scale=scale), tuple(folded)


def _without(operations: list[Operation], number: int) -> list[Operation]:
    """The operations with what operation ``number`` made as the aggregate."""

    def place(value: int) -> int:
        return 0 if value == number + 1 else value - (value > number + 1)

    return [
        replace(op, inputs=tuple(place(i) for i in op.inputs))
        for k, op in enumerate(operations)
        if k != number
    ]


def _out_width(folded: list[Operation], width: int) -> int:
    value = torch.zeros(1, width, dtype=torch.float64)
    for operation in folded:
        value = operation.evaluate([value], torch.zeros(1, dtype=torch.int64))
    return value.shape[1]
