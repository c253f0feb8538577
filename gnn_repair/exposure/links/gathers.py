"""Where a model looks up the two ends of its links, and other rows put in their place.

A model of links looks up rows of its nodes' embeddings, ``z[source]`` and ``z[target]``, and only
what it then does to the two rows is the decoder. Both are found by the tensor of links itself: it
is a copy that nothing else shares, so whatever is looked up with a view of it is an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

SOURCE, TARGET = 0, 1
LOOKUPS = ("__getitem__", "index_select", "embedding")
"""By name: libraries put functions of their own in the place of PyTorch's."""


class Gathers(TorchFunctionMode):
    """While open, notes the tables that ends are looked up in, and gives other rows if told."""

    def __init__(
        self,
        links: Tensor,
        rows: Sequence[Tensor] | None = None,
        by_value: bool = False,
        still: frozenset[int] = frozenset(),
    ) -> None:
        """Watch lookups.

        Args:
            links: [2, L] the tensor that the model is given, and nobody else.
            rows: what to give for sources and for targets, [L, d] each.
            by_value: whether an index with the same numbers is of the links, too: right where no
                convolution runs meanwhile, whose own edges might be the links.
            still: where tables lie that are no embeddings, such as biases of nodes: what is looked
                up there is left as it is.
        """
        super().__init__()
        self.links, self.rows, self.by_value, self.still = links, rows, by_value, still
        self.tables: dict[int, Tensor] = {}
        self.seen: list[Tensor] = []
        """Every table, in the order of the lookups."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        found = _lookup(name, args, kwargs) if name in LOOKUPS else None
        ends = self._ends(found[1]) if found is not None else ()
        if found is None or not ends or found[0].data_ptr() in self.still:
            return func(*args, **kwargs)
        self.seen.append(found[0])
        for end in ends:
            self.tables[end] = found[0]
        if self.rows is None:
            return func(*args, **kwargs)
        if len(ends) == 1:
            return self.rows[ends[0]]
        return torch.stack([self.rows[SOURCE], self.rows[TARGET]], dim=found[1].shape.index(2))

    def _ends(self, index: Tensor) -> tuple[int, ...]:
        """Which ends an index picks; none where it is not of the links."""
        if index.dtype != self.links.dtype or not index.numel():
            return ()
        if index.untyped_storage().data_ptr() != self.links.untyped_storage().data_ptr():
            return self._same(index) if self.by_value else ()
        if index.dim() == 2:
            return (SOURCE, TARGET) if index.numel() == self.links.numel() else ()
        if index.numel() != self.links.shape[1]:
            return ()
        return (SOURCE if index.storage_offset() == self.links.storage_offset() else TARGET,)

    def _same(self, index: Tensor) -> tuple[int, ...]:
        if index.shape == self.links.shape and torch.equal(index, self.links):
            return (SOURCE, TARGET)
        ends = (end for end in (SOURCE, TARGET) if torch.equal(index, self.links[end]))
        return tuple(ends)[:1]


def _lookup(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The table and the index of a lookup of rows."""
    if name == "embedding":
        given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
        table, index = given.get("weight"), given.get("input")
    elif name == "__getitem__":
        table, index = args[0], args[1]
        if isinstance(index, tuple) and index and all(i == slice(None) for i in index[1:]):
            index = index[0]
    else:
        given = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
        table, index = given.get("input"), given.get("index")
        if given.get("dim") not in (0, -2):
            return None
    if not isinstance(table, Tensor) or not isinstance(index, Tensor):
        return None
    return (table, index) if table.dim() == 2 and table.is_floating_point() else None
