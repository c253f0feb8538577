"""Taking the tail out of a model: what it does to its final aggregates, as a short graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnn_repair.exposure.tails.operations import Affine, Operation, Scale, Select, TailGraph


@dataclass(frozen=True, eq=False)
class Extracted:
    """logits_v = T_v(W x_v + b_v), where x_v are the final aggregates side by side."""

    tail: TailGraph
    weight: Tensor
    """W [D, Σ widths of the sites], float64: the affine start of what follows."""
    bias: Tensor
    """b, [D] or [N, D]."""

    def aggregate(self, values: Tensor) -> Tensor:
        """W x + b of all nodes, [N, D] float64."""
        return values.double() @ self.weight.t() + self.bias


def affine_start(operations: list[Operation], width: int, device: torch.device) -> Extracted:
    """Move the affine steps at the start of a tail out of it, as long as they do not widen it.

    Contributions are then stored in as few channels as the first nonlinearity reads.
    """
    weight = torch.eye(width, dtype=torch.float64, device=device)
    bias = torch.zeros(width, dtype=torch.float64, device=device)
    while operations and sum(0 in operation.inputs for operation in operations) == 1:
        first = next(k for k, operation in enumerate(operations) if 0 in operation.inputs)
        step = _as_affine(operations[first], weight.shape[0])
        if step is None or not 2 <= step.weight.shape[0] <= weight.shape[0]:
            break
        weight, bias = step.weight @ weight, bias @ step.weight.t() + step.bias
        operations = _without(operations, first)
    if weight.shape[0] < 2:  # an exposure has at least two channels: the second one stays zero
        weight = torch.cat([weight, torch.zeros_like(weight)])
        bias = torch.nn.functional.pad(bias, (0, 1))
        first_alone = Select((0,), torch.zeros(1, dtype=torch.long, device=device))
        operations = [first_alone, *_shifted(operations, 1)]
    return Extracted(TailGraph(weight.shape[0], tuple(operations)), weight, bias)


def _as_affine(operation: Operation, width: int) -> Affine | None:
    if isinstance(operation, Affine):
        return operation
    if isinstance(operation, Scale) and operation.factor.dim() == 1:
        return Affine(operation.inputs, torch.diag(operation.factor), operation.shift)
    if isinstance(operation, Select):
        identity = torch.eye(width, dtype=torch.float64, device=operation.index.device)
        rows = identity[operation.index]
        return Affine(operation.inputs, rows, rows.new_zeros(rows.shape[0]))
    return None


def _without(operations: list[Operation], removed: int) -> list[Operation]:
    """The tail without the operation that starts it; its readers read the aggregate instead."""

    def number(old: int) -> int:
        if old == removed + 1:
            return 0
        return old if old <= removed else old - 1

    rest = operations[:removed] + operations[removed + 1 :]
    return [replace(op, inputs=tuple(number(i) for i in op.inputs)) for op in rest]


def _shifted(operations: list[Operation], by: int) -> list[Operation]:
    """The operations after ``by`` more have been put before them; 0 becomes the last of these."""
    return [replace(op, inputs=tuple(i + by for i in op.inputs)) for op in operations]
