"""Places in a model's run where a tensor can be watched and replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor, to_edge_index


@dataclass(frozen=True)
class Site:
    """One tensor of one run: what a propagate aggregated, or what went in or out of a module."""

    kind: Literal["aggregate", "input", "output"]
    name: str
    """The module's name in the model."""
    order: int
    """Which time: propagates are counted over the whole run, the rest per module."""


@dataclass(frozen=True, eq=False)
class Call:
    """One recorded ``propagate``."""

    site: Site
    conv: Any
    invocation: int
    """Which time the convolution was run (one run may propagate several times)."""
    given: Any
    """The first argument of the convolution's forward: its input x."""
    edge_index: Any
    size: Any
    arguments: dict[str, Any]
    value: Tensor
    """The aggregate, before ``update``."""
    attention: Tensor | None
    """What the convolution left in ``_alpha``."""

    @property
    def kind(self) -> str:
        """What aggregates, such as ``GCNConv``."""
        return type(self.conv).__name__

    @property
    def title(self) -> str:
        """Such as ```conv2` (GCNConv)``."""
        return f"`{self.site.name}` ({self.kind})" if self.site.name else f"the {self.kind}"

    @property
    def last(self) -> str:
        """The title of the last one."""
        return f"the last convolution {self.title}"

    @property
    def num_nodes(self) -> int:
        """Recipients of this propagate."""
        return int(self.value.shape[self.conv.node_dim])

    @property
    def num_entries(self) -> int:
        """Messages of this propagate."""
        index = self.edge_index
        if isinstance(index, SparseTensor):
            return int(index.nnz())
        return int(index._nnz() if is_torch_sparse_tensor(index) else index.shape[1])

    @cached_property
    def entries(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Source and recipient of every message in the conv's own order, and stored values."""
        index, value = self.edge_index, None
        if isinstance(index, SparseTensor):
            recipient, source, value = index.coo()
            return source, recipient, value
        if is_torch_sparse_tensor(index):
            (recipient, source), value = to_edge_index(index)
            return source, recipient, value
        index = index.as_subclass(Tensor)
        forward = self.conv.flow == "source_to_target"
        return (index[0], index[1], None) if forward else (index[1], index[0], None)

    def forget_entries(self) -> None:
        """Free the lists of entries, which on large graphs are large; they can be made anew."""
        self.__dict__.pop("entries", None)

    def messages(self) -> Tensor:
        """The messages themselves [T, B, D], by running the propagate again."""
        kept: list[Tensor] = []
        with unfused(self.conv):
            handle = self.conv.register_message_forward_hook(lambda *it: kept.append(it[-1]))
            try:
                plain_propagate(self.conv)(self.edge_index, size=self.size, **self.arguments)
            finally:
                handle.remove()
        return in_blocks(kept[0], self.conv.node_dim)

    def aggregated(self, messages: Tensor) -> Tensor:
        """What the convolution makes of other messages [T, B, D], before ``update``."""
        kept: list[Tensor] = []
        axis = self.conv.node_dim

        def instead(*it: Any) -> Tensor:
            return out_of_blocks(messages, it[-1].shape, axis)

        with unfused(self.conv):
            handles = [
                self.conv.register_message_forward_hook(instead),
                self.conv.register_aggregate_forward_hook(lambda *it: kept.append(it[-1])),
            ]
            try:
                plain_propagate(self.conv)(self.edge_index, size=self.size, **self.arguments)
            finally:
                for handle in handles:
                    handle.remove()
        return kept[0]


class unfused:  # noqa: N801  (reads as a clause: with unfused(conv))
    """While open, the convolution builds its messages one by one, so that hooks see them."""

    def __init__(self, conv: Any) -> None:
        self.conv, self.fuse = conv, conv.fuse

    def __enter__(self) -> None:
        self.conv.fuse = False

    def __exit__(self, *_: object) -> None:
        self.conv.fuse = self.fuse


def alive(value: Tensor) -> bool:
    """Whether a tensor's memory is still there; some modules free that of their inputs."""
    if value.layout != torch.strided or value.numel() == 0:
        return True
    return value.untyped_storage().nbytes() > 0


def plain_propagate(conv: Any) -> Any:
    """The propagate of the convolution's class, whatever was set on the instance."""
    return type(conv).propagate.__get__(conv)


def in_blocks(value: Tensor, node_dim: int) -> Tensor:
    """[N, B, D]: nodes first, channels last, everything between (heads, stacks) as blocks."""
    value = value.movedim(node_dim, 0)
    return value.reshape(value.shape[0], -1, value.shape[-1])


def out_of_blocks(blocks: Tensor, shape: Sequence[int], node_dim: int) -> Tensor:
    """The inverse of :func:`in_blocks`, back to the given shape."""
    shape = list(shape)
    shape.insert(0, shape.pop(node_dim))
    return blocks.reshape(shape).movedim(0, node_dim)
