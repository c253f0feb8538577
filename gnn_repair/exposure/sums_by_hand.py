"""Sums of gathered rows that a model's forward does itself, such as index_add_ of w · x[source].

Where each message is a number times a row of one table, the sum is a product with the N × N matrix
that holds these numbers, and is treated as one. Other messages, such as relu(x[source] + e), are
kept whole: the sum over the last of them is a product with a matrix of ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gnn_repair.exposure.hand_calls import HandAdd, is_list, read_add, read_gather
from gnn_repair.exposure.products import Product

NO_ROWS = "messages that are no multiples of nodes' rows"
HIDDEN = "messages of which some are zero, so that their numbers cannot be told"
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

    kind: ClassVar[str] = "sum by hand"
    rule: ClassVar[str] = "α = the number that multiplies the source's row, h = that row"
    coefficients_from: ClassVar[str] = "messages divided by their sources' rows"


@dataclass(frozen=True, eq=False)
class HandMessages(HandSum):
    """A sum of whole messages: ``table`` [T, D] holds them, ``matrix`` who sends to whom."""

    rule: ClassVar[str] = "generic rule: α = 1 per entry, h = the whole message"
    coefficients_from: ClassVar[str] = "the sum: 1"
    by_entry: ClassVar[bool] = True

    def value(self, entries: Tensor | None = None) -> Tensor:
        """The sum [N, D] of the messages, times other numbers [T] where given."""
        rows = self.matrix._indices()[0]
        numbers = self.matrix._values() if entries is None else entries.to(self.table.dtype)
        out = self.table.new_zeros(self.matrix.shape[0], self.table.shape[1])
        return out.index_add(0, rows, numbers.unsqueeze(1) * self.table)


@dataclass(frozen=True, eq=False)
class ByHead:
    """One call that adds messages: a product for each of its heads."""

    call: HandAdd
    products: list[HandSum]

    def results(self, do: Callable[[Product], Tensor]) -> Tensor:
        """What the model's own function returns, and leaves in its base."""
        parts = [do(product) for product in self.products]
        out = parts[0] if self.call.base.dim() == 2 else torch.stack(parts, dim=1)
        return self.call.base.copy_(out) if self.call.inplace else out


class HandSums:
    """Remembers gathered rows, and finds the product that a sum of them is."""

    def __init__(
        self,
        nodes: int,
        senders: frozenset[int] = frozenset(),
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch the sums of one run after the other.

        Args:
            nodes: N.
            senders: how many nodes the other types have.
            clock: how many aggregations have been seen in this run.
        """
        self.nodes, self.senders, self.clock = nodes, senders | {nodes}, clock
        self.gathered: deque[tuple[Tensor, Tensor]] = deque(maxlen=KEPT)
        self.matrices: deque[Tensor] = deque(maxlen=KEPT)
        self.other: str = ""
        """The last sum over edges that is no product, in words."""
        self.whole: int | None = None
        """Which of the unread sums of a run is kept as whole messages."""
        self.unread = 0
        """Unread sums of this run so far."""
        self.last_unread = -1
        """Aggregations seen before the last of them."""

    def forget(self) -> None:
        """Let go of what the last run gathered."""
        self.gathered.clear()
        self.unread, self.last_unread = 0, -1

    def read_last_whole(self, seen: int) -> bool:
        """From now on keep the last run's last sum as one of whole messages.

        False where it could be read, or where some of the aggregations ``seen`` came after it: what
        attention divides by is a sum, too, and the messages themselves come later.
        """
        if self.whole is not None or self.last_unread < seen or not self.unread:
            return False
        self.whole = self.unread - 1
        return True

    def note(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Remember x[index] of a table [N, D] or [N, H, D] and a list of nodes."""
        found = read_gather(function, args, kwargs)
        if found is not None and found[0].shape[0] in self.senders:
            self.gathered.append(found)

    def read(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ByHead | None:
        """The products that a call does, one a head, if it adds messages between nodes."""
        call = read_add(function, args, kwargs)
        if call is None or call.base.dim() not in (2, 3):
            return None
        if call.how not in ("sum", "mean"):
            self.other = call.name
            return None
        target = _targets(call.index, call.sent)
        if target is None or not _fits(call.base, call.sent, self.nodes):
            return None
        products, why = self._multiples_of(call, target)
        if products is None and len(call.sent) != self.nodes:
            products = self._whole(call, target)
            self.other = f"{call.name} of {why}"
        return None if products is None else ByHead(call, products)

    def _multiples_of(self, call: HandAdd, target: Tensor) -> tuple[list[HandSum] | None, str]:
        why = NO_ROWS
        bases, sent = _heads(call.base), _heads(call.sent)
        for table, source in reversed(self.gathered):
            if table.dim() != call.sent.dim() or table.shape[1:] != call.sent.shape[1:]:
                continue
            tables = _heads(table)
            weights = [
                _multiples(one, source, target, part)
                for one, part in zip(tables, sent, strict=True)
            ]
            if any(weight is UNKNOWN for weight in weights):
                why = HIDDEN
            elif all(weight is not None for weight in weights):
                place = torch.stack([target, source])
                return [
                    self._product(call, base, one, place, weight)
                    for base, one, weight in zip(bases, tables, weights, strict=True)
                    if weight is not None
                ], ""
        return None, why

    def _product(
        self, call: HandAdd, base: Tensor, table: Tensor, place: Tensor, weight: Tensor
    ) -> HandSum:
        weight = weight * _share(call, place[0], self.nodes)
        matrix = self._matrix(place, weight, len(table))
        added = base.clone() if bool(base.any()) else None
        return HandSum(matrix, table, False, 1.0, added)

    def _whole(self, call: HandAdd, target: Tensor) -> list[HandSum] | None:
        """The sum as one of whole messages, where it is the one to be read so."""
        self.unread, self.last_unread = self.unread + 1, self.clock()
        sources = [
            index
            for table, index in reversed(self.gathered)
            if len(index) == len(target) and not torch.equal(index, target)
        ]
        if self.whole != self.unread - 1 or not sources:
            return None
        place = torch.stack([target, sources[0]])
        weight = call.sent.new_ones(len(target)) * _share(call, target, self.nodes)
        matrix = torch.sparse_coo_tensor(
            place, weight, (self.nodes, self.nodes), check_invariants=False
        )
        found: list[HandSum] = []
        for base, sent in zip(_heads(call.base), _heads(call.sent), strict=True):
            added = base.clone() if bool(base.any()) else None
            found.append(HandMessages(matrix, sent, False, 1.0, added))
        return found

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


def _heads(value: Tensor) -> list[Tensor]:
    """[N, D] alone, or the heads of [N, H, D]."""
    return [value] if value.dim() == 2 else list(value.unbind(1))


def _share(call: HandAdd, target: Tensor, nodes: int) -> Tensor | float:
    """What a mean multiplies every message by."""
    if call.how == "sum":
        return 1.0
    counts = torch.bincount(target, minlength=nodes)
    return 1 / counts.to(call.sent.dtype)[target]


def _fits(base: Tensor, sent: Tensor, nodes: int) -> bool:
    return (
        base.dim() == sent.dim()
        and base.shape[0] == nodes
        and base.shape[1:] == sent.shape[1:]
        and sent.shape[-1] > 1  # one number is a multiple of any other
        and sent.is_floating_point()
    )


def _targets(index: Tensor, sent: Tensor) -> Tensor | None:
    """The recipient of every message: a list, or the same list in every channel."""
    if is_list(index):
        return index if len(index) == len(sent) else None
    if index.shape != sent.shape or index.dtype != torch.int64 or not index[0:1].numel():
        return None
    flat = index.flatten(1)
    return flat[:, 0] if bool((flat == flat[:, :1]).all()) else None


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
