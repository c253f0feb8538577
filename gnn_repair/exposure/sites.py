"""Places in a model's run where a tensor can be watched and replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.nn import HANConv, HGTConv
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
class Part:
    """The messages of one relation in a propagate, in a graph of several node types."""

    name: str
    """Such as ``author writes paper``."""
    source_type: str
    """The node type that sends."""
    shift: int
    """The number of that type's first node among all senders."""
    own: bool
    """Whether that type is the recipients' own."""
    states: slice | None = None
    """Where the senders' states lie among the propagate's; None: they are all of them."""
    entries: Tensor | None = None
    """[t] the relation's entries; None: all."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Whose messages a propagate sends, and to whom, in a graph of several node types."""

    recipient_type: str
    parts: tuple[Part, ...] = ()
    """One a relation into the classified type; none: it sends to another type."""
    rows: slice | None = None
    """Where the recipients lie among the propagate's; None: they are all of them."""


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
    graph: Any = None
    """The second argument of the convolution's forward: its edges."""
    placement: Placement | None = None
    """Which relations' messages these are; None: the graph has one type of node."""
    sent: Tensor | None = None
    """The messages, where the model has hooks of its own on them."""

    @property
    def blocks(self) -> Tensor:
        """The aggregate as blocks [N, B, D]."""
        return in_blocks(self.value, self.conv.node_dim, merged_heads(self.conv))

    @property
    def within(self) -> bool:
        """Whether recipients hear nodes of their own set only."""
        return self.placement is None or all(part.own for part in self.placement.parts)

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
        index = self.edge_index
        if isinstance(index, SparseTensor):
            recipient, source, value = index.coo()
            return source, recipient, value
        if is_torch_sparse_tensor(index):
            (recipient, source), value = to_edge_index(index)
            return source, recipient, value
        first, second = endpoints(index)
        forward = self.conv.flow == "source_to_target"
        return (first, second, None) if forward else (second, first, None)

    def forget_entries(self) -> None:
        """Free the lists of entries, which on large graphs are large; they can be made anew."""
        self.__dict__.pop("entries", None)

    def messages(self) -> Tensor:
        """The messages themselves [T, B, D], by running the propagate again."""
        heads = merged_heads(self.conv)
        if self.sent is not None:
            return in_blocks(self.sent, self.conv.node_dim, heads)
        kept: list[Tensor] = []
        with unfused(self.conv):
            handle = self.conv.register_message_forward_hook(lambda *it: kept.append(it[-1]))
            try:
                plain_propagate(self.conv)(self.edge_index, size=self.size, **self.arguments)
            finally:
                handle.remove()
        return in_blocks(kept[0], self.conv.node_dim, heads)

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


def merged_heads(conv: Any) -> int:
    """How many heads lie side by side in the channels of a convolution's messages."""
    return int(conv.heads) if isinstance(conv, HGTConv | HANConv) else 1


def endpoints(index: Any) -> tuple[Tensor, Tensor]:
    """Sources and recipients of a graph's edges, whatever form it has."""
    if isinstance(index, SparseTensor):
        recipient, source, _ = index.coo()
        return source, recipient
    if is_torch_sparse_tensor(index):
        recipient, source = to_edge_index(index)[0]
        return source, recipient
    plain = index.as_subclass(Tensor)
    return plain[0], plain[1]


def in_blocks(value: Tensor, node_dim: int, heads: int = 1) -> Tensor:
    """[N, B, D]: nodes first, channels last, everything between (heads, stacks) as blocks."""
    value = value.movedim(node_dim, 0)
    return value.reshape(value.shape[0], -1, value.shape[-1] // heads)


def out_of_blocks(blocks: Tensor, shape: Sequence[int], node_dim: int) -> Tensor:
    """The inverse of :func:`in_blocks`, back to the given shape."""
    shape = list(shape)
    shape.insert(0, shape.pop(node_dim))
    return blocks.reshape(shape).movedim(0, node_dim)


def placed_into(part: Tensor, whole: Tensor, rows: slice) -> Tensor:
    """The whole with a part in the place of some of its rows."""
    return torch.cat([whole[: rows.start], part, whole[rows.stop :]])


def repeated_into(part: Tensor, whole: Tensor, rows: slice) -> Tensor:
    """The same, with copies of the part's rows in all other places."""
    count, size = part.shape[0], whole.shape[0]
    first = -rows.start % count
    copies = -(-(first + size) // count)
    return part.repeat(copies, *[1] * (part.dim() - 1))[first : first + size]


def inputs_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a convolution reads and over which edges: its forward's first two arguments."""
    given = args[0] if args else kwargs.get("x", kwargs.get("x_dict"))
    graph = args[1] if len(args) > 1 else kwargs.get("edge_index", kwargs.get("edge_index_dict"))
    return given, graph


def unmoved(known: Mapping[str, Any], seen: Mapping[str, Any], senders: bool = False) -> bool:
    """Whether a propagate was given the same tensors in another run.

    Args:
        known: its arguments in one run.
        seen: those in the other.
        senders: whether of pairs only what senders bring counts, not the recipients' own.
    """
    return all(_equal(value, seen.get(name), senders) for name, value in known.items())


def _equal(left: Any, right: Any, senders: bool) -> bool:
    if isinstance(left, tuple | list):
        if not isinstance(right, tuple | list) or len(left) != len(right):
            return False
        first = 1 if senders else None
        return all(_equal(a, b, senders) for a, b in zip(left[:first], right[:first], strict=True))
    if not isinstance(left, Tensor) or left.layout != torch.strided:
        return True
    return isinstance(right, Tensor) and torch.equal(left, right)


def hooked(
    conv: Any, stage: str, run: Callable[[], Tensor], change: Callable[[Tensor], Tensor | None]
) -> Tensor:
    """What ``run`` gives while ``change`` sees (and may replace) what a stage of ``conv`` gave."""
    register = getattr(conv, f"register_{stage}_forward_hook")
    with unfused(conv):
        handle = register(lambda *it: change(it[-1]))
        try:
            return run()
        finally:
            handle.remove()
