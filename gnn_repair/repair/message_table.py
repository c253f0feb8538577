"""[h_a, z_a] W of the messages, worked out when it is known whose terms read it.

A step on a few targets reads the messages of their sets, and where graphs are large that is a small
part of all. The table has all P rows all the same, so that terms find theirs where they are; the
rows that nobody reads are left as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_repair.kernels.products import read_product
from gnn_repair.kernels.sets import TermSets, rows_read
from gnn_repair.repair.inputs import Description, RepairInputs

FEW = 0.5
"""Share of the messages up to which they are picked: picking copies rows before multiplying, and on
a GPU its products run at a good half of the speed of the whole one."""
_WHOLE: ContextVar[bool] = ContextVar("whole tables", default=False)


@contextmanager
def whole_tables() -> Iterator[None]:
    """Inside, every step of this thread multiplies all messages."""
    before = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(before)


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
        if "all" in self.__dict__ or _WHOLE.get() or not messages.picks_cheaply:
            return self.all
        picked = self._on_gpu(targets) if messages.pieces else self._on_cpu(targets)
        return self.all if picked is None else picked

    def _on_gpu(self, targets: Tensor) -> Tensor | None:
        """How many rows are read is known to the device alone, as a captured step asks."""
        messages, sets = self.inputs.messages, self.inputs.sets
        rows = messages.rows.shape[1]
        if messages.pieces is None or expected_terms(sets, targets) > FEW * rows:
            return None
        return read_product(
            messages.pieces, messages.rows, rows_read(sets, targets, rows), self.weight
        )

    def _on_cpu(self, targets: Tensor) -> Tensor | None:
        messages = self.inputs.messages
        rows = messages.rows.shape[1]
        numbers, counts = rows_read(self.inputs.sets, targets, rows)
        most = int(counts.max())
        if most == 0 or most > FEW * rows:
            return None
        picked = numbers[:, :most]
        out: Tensor = _PickedTable.apply(messages, picked, self.weight)  # type: ignore[no-untyped-call]
        return out


def expected_terms(sets: TermSets, targets: Tensor) -> float:
    """Terms of a member's targets [S, L] if they are like all recipients."""
    recipients = max(1, (sets.segments.numel() - 1) // sets.groups)
    return targets.shape[1] * sets.columns.numel() / recipients


class _PickedTable(torch.autograd.Function):
    """A table [S, P, H] of which rows [S, K] are worked out; gradients for the weight alone.

    Behind a member's own rows others fill up the K; nobody reads them, and their gradient is zero.
    """

    @staticmethod
    def forward(ctx: Any, messages: Description, numbers: Tensor, weight: Tensor) -> Tensor:
        rows = messages.at(numbers)
        ctx.save_for_backward(rows, numbers)
        out = weight.new_empty(weight.shape[0], messages.rows.shape[1], weight.shape[2])
        # Member by member: whole rows are copied, not single numbers.
        for table, own, found in zip(out, numbers, torch.bmm(rows, weight), strict=True):
            table.index_copy_(0, own, found)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, numbers = ctx.saved_tensors
        own = torch.stack([g.index_select(0, n) for g, n in zip(upstream, numbers, strict=True)])
        return None, None, torch.bmm(rows.transpose(1, 2), own)
