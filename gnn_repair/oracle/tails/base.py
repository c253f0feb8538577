"""What the bounds of a tail start from: polytopes of aggregates, linear beginnings folded in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.tails.operations import Affine, Operation, Scale, Select, TailGraph
from gnn_repair.exposure.tails.tailed import TailedExposure
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


def base_of(exposure: TailedExposure) -> Base:
    """The base of all recipients of an exposure."""
    aggregate = exposure.aggregate
    lowered, folded = _fold(lower(exposure.tail))
    recipients = aggregate.recipients.cpu()
    table = aggregate.contributions[0].double().cpu()
    fixed = aggregate.fixed_logits[0].cpu()[recipients].double()
    gross, weight = table.abs(), fixed.abs()
    for operation in folded:
        weight = _magnitudes(operation, weight, recipients)
        gross = _linear_part(_absolute(operation), gross)
        fixed = operation.evaluate([fixed], recipients)
        table = _linear_part(operation, table)
    groups, count = aggregate.num_groups, len(recipients)
    segments = aggregate.segments.cpu().numpy()
    ends = segments[np.arange(count)[:, None] * groups + np.arange(groups + 1)]
    mass = aggregate.mass[0].cpu().numpy()
    rows, messages = aggregate.rows.cpu().numpy(), np.ascontiguousarray(table.numpy())
    offset = np.ascontiguousarray(fixed.numpy())
    low, high, size = (np.empty((count, messages.shape[1])) for _ in range(3))
    extremes(ends, mass, rows, messages, low, high, size)
    if folded:  # what was summed may be far larger than the sums
        least, most = np.empty_like(low), np.empty_like(low)
        extremes(ends, mass, rows, np.ascontiguousarray(gross.numpy()), least, most, size)
    size += weight.numpy()
    slack = ROUNDING * messages.shape[1] * size
    return Base(
        lowered, folded, recipients.numpy(), ends, mass, rows, aggregate.sources.cpu().numpy(),
        messages, offset, low + offset - slack, high + offset + slack, size,
    )  # fmt: skip


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
