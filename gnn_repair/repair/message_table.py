"""[h_a, z_a] W of the messages, worked out when it is known whose terms read it.

A step on a few targets reads the messages of their sets, and where graphs are large that is a small
part of all. The table has all P rows all the same, so that terms find theirs where they are; the
rows that nobody reads are left as they come. On a GPU all rows are multiplied: a captured step
cannot depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_repair.kernels.sets import TermSets
from gnn_repair.repair.inputs import Description, RepairInputs

FEW = 0.5
"""Share of the messages up to which they are picked: picking copies rows before multiplying."""
_WHOLE: list[bool] = []


@contextmanager
def whole_tables() -> Iterator[None]:
    """Inside, every step multiplies all messages (for comparisons)."""
    _WHOLE.append(True)
    try:
        yield
    finally:
        _WHOLE.pop()


class MessageTable:
    """The product of all messages with one weight [S, d + C, H]."""

    def __init__(self, inputs: RepairInputs, weight: Tensor) -> None:
        self.inputs, self.weight = inputs, weight

    @cached_property
    def all(self) -> Tensor:
        """[S, P, H]."""
        return self.inputs.messages.times(self.weight)

    def read_by(self, targets: Tensor) -> Tensor:
        """[S, P, H], of which the rows that terms of the targets [S, L] read are right."""
        messages = self.inputs.messages
        if "all" in self.__dict__ or _WHOLE or not messages.picks_cheaply:
            return self.all
        picked = rows_read_by(self.inputs.sets, targets, messages.rows.shape[1])
        if picked is None:
            return self.all
        out: Tensor = _PickedTable.apply(messages, picked, self.weight)  # type: ignore[no-untyped-call]
        return out


class PickedRows(NamedTuple):
    """Rows that each member reads."""

    numbers: Tensor
    """[S, K], ascending; what lies behind a member's own rows repeats its first."""
    real: Tensor
    """[S, K] bool: a member's own rows."""


def rows_read_by(sets: TermSets, targets: Tensor, rows: int) -> PickedRows | None:
    """The messages behind the terms of targets [S, L]; None where they are not few.

    Args:
        sets: the terms.
        targets: positions among the recipients.
        rows: P.
    """
    first, last = (sets.segments[(targets + more) * sets.groups] for more in (0, 1))
    lengths = (last - first).flatten()
    owner = torch.repeat_interleave(lengths)
    place = torch.arange(owner.numel()) - (lengths.cumsum(0) - lengths)[owner]
    read = torch.zeros(targets.shape[0], rows, dtype=torch.bool)
    columns = sets.columns[first.flatten()[owner] + place].long()
    read[owner // targets.shape[1], columns] = True
    counts = read.sum(1)
    most = int(counts.max())
    if most == 0 or most > FEW * rows:
        return None
    # Rows that are read come first, in their order.
    index = read.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
    real = torch.arange(most) < counts.unsqueeze(1)
    return PickedRows(torch.where(real, index, index[:, :1]), real)


class _PickedTable(torch.autograd.Function):
    """A table [S, P, H] of which some rows are worked out; gradients for the weight alone."""

    @staticmethod
    def forward(ctx: Any, messages: Description, picked: PickedRows, weight: Tensor) -> Tensor:
        rows = messages.at(picked.numbers)
        ctx.save_for_backward(rows, *picked)
        out = weight.new_empty(weight.shape[0], messages.rows.shape[1], weight.shape[2])
        # Member by member: whole rows are copied, not single numbers.
        for table, numbers, found in zip(out, picked.numbers, torch.bmm(rows, weight), strict=True):
            table.index_copy_(0, numbers, found)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, numbers, real = ctx.saved_tensors
        own = torch.stack([g.index_select(0, n) for g, n in zip(upstream, numbers, strict=True)])
        own *= real.unsqueeze(2)
        return None, None, torch.bmm(rows.transpose(1, 2), own)
