"""Sums of gathered rows that a model's forward does itself, such as index_add_ of w · x[source].

Where each message is a number times a row of one table, the sum is a product with the N × N matrix
that holds these numbers, and is treated as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gnn_repair.exposure.products import Product

GATHERS = {Tensor.__getitem__, torch.index_select, Tensor.index_select}
ADDS = {
    torch.index_add: False, Tensor.index_add: False, Tensor.index_add_: True,
    torch.scatter_add: False, Tensor.scatter_add: False, Tensor.scatter_add_: True,
}  # fmt: skip
"""Functions of (base, axis, index, messages), and whether they change the base in place."""
REDUCTIONS = {torch.scatter_reduce, Tensor.scatter_reduce, Tensor.scatter_reduce_}
"""Functions of (base, axis, index, messages, reduce)."""
NO_ROWS = "messages that are no multiples of nodes' rows"
UNKNOWN = torch.empty(0)
"""Stands for numbers that rows of zeros hide."""
KEPT = 16
"""Gathers that are remembered: those of one layer and its attention."""
PROPORTIONAL = 1e-5
"""How far a message may be from a multiple of its source's row, relative to its size: above
float32's rounding of one product, below what a nonlinearity or an edge's vector does."""


@dataclass(frozen=True, eq=False)
class HandSum(Product):
    """A sum by hand in the form of a product."""

    base: Tensor | None = None
    """What is changed in place; None: nothing."""
    kind: ClassVar[str] = "sum by hand"
    rule: ClassVar[str] = "α = the number that multiplies the source's row, h = that row"
    coefficients_from: ClassVar[str] = "messages divided by their sources' rows"

    def finish(self, value: Tensor) -> Tensor:
        """What the model's own function returns, and leaves in its base."""
        out = super().finish(value)
        return out if self.base is None else self.base.copy_(out)


class HandSums:
    """Remembers gathered rows, and finds the product that a sum of them is."""

    def __init__(self, nodes: int, senders: frozenset[int] = frozenset()) -> None:
        self.nodes, self.senders = nodes, senders | {nodes}
        self.gathered: deque[tuple[Tensor, Tensor]] = deque(maxlen=KEPT)
        self.matrices: deque[Tensor] = deque(maxlen=KEPT)
        self.other: str = ""
        """The last sum over edges that is no product, in words."""

    def note(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Remember x[index] of a table [N, D] and a list of nodes."""
        if function not in GATHERS or kwargs or len(args) < 2:
            return
        table, index = args[0], args[-1]
        if function is not Tensor.__getitem__ and (len(args) != 3 or args[1] != 0):
            return
        fits = isinstance(table, Tensor) and table.dim() == 2 and table.shape[0] in self.senders
        if fits and table.is_floating_point() and _is_list(index):
            self.gathered.append((table, index))

    def read(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> HandSum | None:
        """The product that a call does, if it adds multiples of gathered rows."""
        if function in REDUCTIONS and len(args) >= 4 and args[0].dim() == 2:
            how = kwargs.get("reduce", args[4] if len(args) > 4 else "")
            self.other = f"{function.__name__} by {how}"
            return None
        if function not in ADDS or len(args) != 4 or kwargs:
            return None
        base, axis, index, sent = args
        if axis != 0 or not _fits(base, sent, self.nodes):
            return None
        target = _targets(index, sent)
        if target is None:
            return None
        why = NO_ROWS
        for table, source in reversed(self.gathered):
            weight = _multiples(table, source, target, sent)
            if weight is UNKNOWN:
                why = "messages of which some are zero, so that their numbers cannot be told"
            elif weight is not None:
                matrix = self._matrix(torch.stack([target, source]), weight, len(table))
                added = base.clone() if bool(base.any()) else None
                inplace = base if ADDS[function] else None
                return HandSum(matrix, table, False, 1.0, added, inplace)
        if len(sent) != self.nodes:
            self.other = f"{function.__name__} of {why}"
        return None

    def _matrix(self, place: Tensor, weight: Tensor, senders: int) -> Tensor:
        """The N × M matrix of these numbers. Hops over the same edges with the same numbers get
        the same matrix, though each finds its numbers with a rounding of its own."""
        for known in self.matrices:
            same = known.shape[1] == senders and torch.equal(known._indices(), place)
            if same and torch.allclose(known._values(), weight, rtol=PROPORTIONAL, atol=0.0):
                return known
        shape = (self.nodes, senders)
        made = torch.sparse_coo_tensor(place, weight, shape, check_invariants=False)
        self.matrices.append(made)
        return made


def _is_list(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.int64


def _fits(base: Any, sent: Any, nodes: int) -> bool:
    return (
        isinstance(base, Tensor)
        and isinstance(sent, Tensor)
        and base.dim() == sent.dim() == 2
        and base.shape[0] == nodes
        and base.shape[1] == sent.shape[1] > 1  # one number is a multiple of any other
        and sent.is_floating_point()
    )


def _targets(index: Any, sent: Tensor) -> Tensor | None:
    """The recipient of every message: a list, or the same list in every channel."""
    if _is_list(index):
        return index if len(index) == len(sent) else None
    same = isinstance(index, Tensor) and index.shape == sent.shape and index.dtype == torch.int64
    if not same or not bool((index == index[:, :1]).all()):
        return None
    return index[:, 0]


def _multiples(table: Tensor, source: Tensor, target: Tensor, sent: Tensor) -> Tensor | None:
    """w [E] with sent = w · table[source]; None where there is none, or UNKNOWN."""
    if len(source) != len(sent) or table.shape[1] != sent.shape[1] or table.dtype != sent.dtype:
        return None
    # The recipients' own rows, as attention gathers them; without edges there are none.
    if len(source) and torch.equal(source, target):
        return None
    with torch.no_grad():
        rows = table[source]
        size = rows.square().sum(1)
        weight = (rows * sent).sum(1) / size.clamp(min=torch.finfo(size.dtype).tiny)
        unknown, even = size == 0, True
        if bool(unknown.any()):
            # A row of zeros says nothing of its number; it is known where all others are the same.
            known = weight[~unknown]
            if not len(known):
                return None
            even = torch.allclose(known, known[0], rtol=PROPORTIONAL, atol=0.0)
            weight = torch.where(unknown, known[0] if even else 0.0, weight)
        gap = (sent - weight.unsqueeze(1) * rows).abs().amax(1)
        scale = sent.abs().amax(1).clamp(min=torch.finfo(size.dtype).tiny)
    if not bool((gap <= PROPORTIONAL * scale).all()):
        return None
    return UNKNOWN if bool(unknown.any()) and not even else weight
