"""What K copies of every member see of an exposure, without a copy of anything wide.

Copy k of member s is number s·K + k, so values [S·K, L] of the copies are values [S, K·L] of the
members, and whatever is picked or multiplied by rows is read where the members keep it. Only what
has a few numbers a node or a term is repeated.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from torch import Tensor

from gnn_repair.kernels.products import SharedRows, product
from gnn_repair.kernels.sets import TermSets
from gnn_repair.repair.inputs import Description, RepairInputs


class StackedDescription(Description):
    """[h, z⁰] of S members, multiplied with the weights of S·K copies."""

    def __init__(self, own: Description, copies: int) -> None:
        self.own, self.copies = own, copies
        self.width, self.shared = own.width, own.shared
        # Beside a shared state stand the logits alone, C wide; they are repeated.
        self.rows = own.rows if own.shared is None else repeated(own.rows, copies)

    @property
    def pieces(self) -> SharedRows | None:
        """The members' own: cut once, whatever is stacked on them."""
        return self.own.pieces

    def times(self, weight: Tensor) -> Tensor:
        """[h, z⁰] W of every row: weight [S·K, d + C, k] gives [S·K, M, k]."""
        if self.shared is not None:
            return super().times(weight)
        members, (_, width, channels) = self.rows.shape[0], weight.shape
        wide = weight.view(members, self.copies, width, channels).transpose(1, 2)
        out = product(self.rows, wide.reshape(members, width, -1))
        out = out.view(members, -1, self.copies, channels).transpose(1, 2)
        return out.reshape(-1, self.rows.shape[1], channels)

    def at(self, index: Tensor) -> Tensor:
        """Rows [S·K, L, d + C] of each copy's own choice [S·K, L]."""
        return super().at(index) if self.shared is not None else picked(self.rows, index)


class StackedInputs(RepairInputs):
    """An exposure as K copies of its S members read it; S·K first on every axis."""

    def __init__(self, own: RepairInputs, copies: int) -> None:
        self.own, self.copies = own, copies
        self.num_members, self.num_classes = own.num_members * copies, own.num_classes
        self.width, self.dtype, self.device = own.width, own.dtype, own.device
        self.outputs = own.outputs
        self.root, self.groups, self.nodes = own.root, own.groups, own.nodes
        self._tail, self.in_order = own._tail, own.in_order

    @cached_property
    def recipients(self) -> Description:
        return StackedDescription(self.own.recipients, self.copies)

    @cached_property
    def messages(self) -> Description:
        return StackedDescription(self.own.messages, self.copies)

    @cached_property
    def sets(self) -> TermSets:
        """The terms; three numbers a term are repeated where members do not share them."""
        own = self.own.sets
        coefficients, cosine, distance = (
            value if value.shape[0] == 1 else repeated(value, self.copies)
            for value in (own.coefficients, own.cosine, own.distance)
        )
        return replace(own, coefficients=coefficients, cosine=cosine, distance=distance)

    @cached_property
    def frozen_logits(self) -> Tensor:  # type: ignore[override]
        return repeated(self.own.frozen_logits, self.copies)

    @cached_property
    def embedding(self) -> Tensor | None:  # type: ignore[override]
        """r of every copy; only a refitted head reads it, and then it is repeated."""
        own = self.own.embedding
        return None if own is None else repeated(own, self.copies)

    @cached_property
    def root_cosine(self) -> Tensor:
        return repeated(self.own.root_cosine, self.copies)

    @cached_property
    def total(self) -> Tensor:
        return repeated(self.own.total, self.copies)

    @cached_property
    def mass(self) -> Tensor:
        return self.own.mass

    @cached_property
    def contributions(self) -> Tensor:
        return repeated(self.own.contributions, self.copies)

    @cached_property
    def fixed_logits(self) -> Tensor:
        return self.own.fixed_logits

    def frozen_at(self, targets: Tensor) -> Tensor:
        """z⁰ of targets [S·K, L], [S·K, L, C]."""
        return picked(self.own.frozen_logits, self.node_of(targets))

    def at(self, values: Tensor, targets: Tensor) -> Tensor:
        """Per-recipient values [S, n, …] of targets [S·K, L], [S·K, L, …]."""
        flat = picked(values.flatten(2), targets)
        return flat.view(*targets.shape, *values.shape[2:])


def repeated(values: Tensor, copies: int) -> Tensor:
    """Values [S, …] once a copy, [S·K, …]."""
    return values.repeat_interleave(copies, dim=0)


def picked(values: Tensor, index: Tensor) -> Tensor:
    """Rows of values [S, M, k] of each copy's own choice ``index`` [S·K, L], [S·K, L, k]."""
    flat = index.reshape(values.shape[0], -1, 1).expand(-1, -1, values.shape[2])
    return values.gather(1, flat).view(*index.shape, values.shape[2])
