"""Operations of PyTorch without a form of their own here: kept as they are and run by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.operations import Operation


@dataclass(frozen=True)
class Slot:
    """Stands in an operation's arguments for a tensor that differs by node."""

    position: int
    """Which of the inputs, or which of the constants by node."""
    rest: tuple[int, ...]
    """The shape of one node's part."""
    axis: int
    """Where the axis over nodes goes."""
    dtype: torch.dtype
    fixed: bool = False
    """Whether it is one of the constants."""

    def filled(self, rows: Tensor) -> Tensor:
        """The tensor with nodes [n, width] in their place."""
        tensor = rows.reshape(rows.shape[0], *self.rest).movedim(0, self.axis)
        if self.dtype == torch.bool:
            return tensor != 0
        return tensor if self.dtype.is_floating_point else tensor.to(self.dtype)


@dataclass(frozen=True, eq=False)
class Opaque(Operation):
    """Any node-wise operation of PyTorch; it can be run and differentiated but not bounded."""

    target: Callable[..., Any]
    """The ATen operation."""
    arguments: tuple[Any, ...]
    """Its arguments, with a :class:`Slot` for each tensor that differs by node."""
    keywords: dict[str, Any]
    fixed: tuple[Tensor, ...]
    """Constants by node, [N, width] each."""
    output: int | None
    """Which of several results; None where there is one."""
    axis: int
    """The axis of the result that runs over nodes."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        def fill(slot: Slot) -> Tensor:
            fixed = self.fixed[slot.position][nodes] if slot.fixed else None
            return slot.filled(values[slot.position] if fixed is None else fixed)

        arguments, keywords = tree_map_only(Slot, fill, (self.arguments, self.keywords))
        result = self.target(*arguments, **keywords)
        result = result if self.output is None else result[self.output]
        return result.double().movedim(self.axis, 0).reshape(nodes.numel(), -1)

    @property
    def title(self) -> str:
        return name_of(self.target)

    def to(self, device: str | torch.device) -> Opaque:
        """The operation with its constants on another device."""
        pieces = (self.arguments, self.keywords, self.fixed)
        arguments, keywords, fixed = tree_map_only(Tensor, lambda t: t.to(device), pieces)
        return replace(self, arguments=arguments, keywords=keywords, fixed=fixed)


def name_of(target: Any) -> str:
    """What an ATen operation is called in PyTorch, such as ``softplus``."""
    name = str(getattr(target, "_schema", target).name).partition("::")[2] or str(target)
    return name.strip("_")


def restorable(target: Any) -> bool:
    """Whether an operation may be read from a file: only elementwise ones, which touch nothing."""
    return torch.Tag.pointwise in getattr(target, "tags", ())


def find_target(name: str) -> Callable[..., Any]:
    """The elementwise ATen operation written as ``name.overload``."""
    packet, _, overload = name.partition(".")
    known = packet.isidentifier() and overload.isidentifier() and not packet.startswith("__")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None) if known else None
    if found is None or not restorable(found):
        raise InputError(
            f"it names the operation {name[:60]!r}, which is no elementwise one of this PyTorch"
        )
    return found
