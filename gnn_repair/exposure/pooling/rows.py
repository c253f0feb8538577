"""Which node stands behind a row, where a model pools other rows than its nodes in their order.

Layers that keep some nodes (TopKPooling and its like) index the batch vector; dense batches write
the nodes into rows of B × n; loops take the nodes of one graph after another. Each of them shows in
a function of PyTorch from which the node of every row can be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TAKES = {"__getitem__", "index_select", "split", "tensor_split"}
"""Functions that take rows out of a tensor, by name: methods and functions share theirs."""
RESHAPES = {"view", "reshape", "unflatten"}
KEPT = 16
"""Selections and dense layouts that are remembered: a model has a few."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that are nodes."""

    nodes: Tensor
    """[M]: the node behind each row."""
    owner: Tensor
    """[N]: the graph of every node."""
    places: Tensor | None = None
    """[M]: where each row lies in a dense batch; None: rows are in this order."""


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Some nodes' rows of a table, or their sum or mean."""

    made: Tensor
    table: Tensor
    nodes: Tensor
    mean: bool = False


class RowOrigins:
    """What the functions of one run say about rows."""

    def __init__(self, nodes: int, graphs: int) -> None:
        self.nodes, self.graphs = nodes, graphs
        self._selected: list[tuple[Tensor, Rows]] = []
        self._places: list[Tensor] = []
        self._parts: dict[int, GraphPart] = {}
        self._sums: dict[int, GraphPart] = {}

    def forget(self) -> None:
        """Let go of the last run."""
        for kept in (self._selected, self._places, self._parts, self._sums):
            kept.clear()

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Look at a function that has run."""
        name = getattr(func, "__name__", "")
        if not args or not isinstance(args[0], Tensor):
            return
        if name in TAKES:
            self._note_taken(name, args, kwargs, out)
        elif name in ("scatter", "scatter_") and len(args) > 3:
            self._note_reordered(out, args[2], args[3])
        elif name == "__setitem__" and self._covers(args[0], args[2]):
            self._note_places(args[1])
        elif name in RESHAPES and isinstance(out, Tensor) and self._covers(out, args[0]):
            even = out.dim() > 2 and out.shape[0] == self.graphs
            if even and out.shape[0] * out.shape[1] == self.nodes == args[0].shape[0]:
                self._note_places(torch.arange(self.nodes, device=out.device))

    # Selections --------------------------------------------------------------------------------

    def _note_taken(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        base = args[0]
        if base.dim() == 1 and base.dtype == torch.int64 and isinstance(out, Tensor):
            known = self._of_index(base)
            if known is None and len(base) == self.nodes:
                known = Rows(torch.arange(self.nodes, device=base.device), base)
            index = _rows_of(name, args, kwargs)
            if known is not None and index is not None:
                self._select(out, Rows(known.nodes[index], known.owner))
        elif base.dim() == 2 and len(base) == self.nodes and base.is_floating_point():
            self._note_parts(name, args, kwargs, out)

    def _note_reordered(self, out: Any, index: Any, taken: Any) -> None:
        """A selection whose rows are put into another order, as PyG's layers do."""
        if not isinstance(taken, Tensor) or not isinstance(index, Tensor) or index.dim() != 1:
            return
        known = self._of_index(taken) if taken.dtype == torch.int64 else None
        if known is None or not len(out) == len(index) == len(known.nodes):
            return
        nodes = known.nodes.new_full((len(index),), -1)
        nodes[index] = known.nodes
        if bool((nodes >= 0).all()):
            self._select(out, Rows(nodes, known.owner))

    def _select(self, out: Tensor, rows: Rows) -> None:
        seldom = torch.bincount(rows.nodes, minlength=self.nodes).max() <= 1 if len(out) else False
        # Nodes that come twice are ends of edges, and rows of edges are no nodes.
        if seldom and out.dim() == 1 and len(out) == len(rows.nodes):
            self._selected.append((out, rows))
            del self._selected[:-KEPT]

    def _of_index(self, index: Tensor) -> Rows | None:
        for made, rows in reversed(self._selected):
            if made.data_ptr() == index.data_ptr() and len(made) == len(index):
                return rows
        return None

    def selected(self, index: Any, graph: Tensor) -> Rows | None:
        """The nodes behind rows that an index sends to graphs, where some were selected.

        Args:
            index: what the pool is given.
            graph: the same as one number a row.
        """
        found = self._of_index(index) if isinstance(index, Tensor) else None
        if found is None:  # a copy of what was selected, if only one selection looks like it
            alike = [rows for made, rows in self._selected if torch.equal(made, graph)]
            same = all(torch.equal(rows.nodes, alike[0].nodes) for rows in alike)
            found = alike[0] if alike and same else None
        fits = found is not None and torch.equal(found.owner[found.nodes], graph)
        return found if fits else None

    # Dense batches -----------------------------------------------------------------------------

    def _covers(self, out: Any, rows: Any) -> bool:
        """Whether a row a node is written into something larger, or laid out anew."""
        both = isinstance(out, Tensor) and isinstance(rows, Tensor)
        return both and rows.dim() > 1 and len(rows) == self.nodes and rows.is_floating_point()

    def _note_places(self, index: Any) -> None:
        index = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        if isinstance(index, Tensor) and index.dtype == torch.int64 and index.dim() == 1:
            self._places.append(index)
            del self._places[:-KEPT]

    def dense(self, table: Any) -> Rows | None:
        """The nodes in the rows of a dense batch [B, n, …]; None where none was seen."""
        if not isinstance(table, Tensor) or table.dim() < 3 or len(table) != self.graphs:
            return None
        width = table.shape[1]
        for index in reversed(self._places):
            if len(index) != self.nodes or int(index.max()) >= self.graphs * width:
                continue
            owner, within = index // width, index % width
            starts = owner.diff(prepend=owner[:1] - 1) != 0
            # Of each graph the first rows, one after another: else the batch had another width.
            follows = torch.where(starts, within == 0, within == within.roll(1) + 1)
            if bool(follows.all()) and bool((owner.diff() >= 0).all()):
                return Rows(torch.arange(self.nodes, device=index.device), owner, index)
        return None

    # Loops -------------------------------------------------------------------------------------

    def _note_parts(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        if name in ("split", "tensor_split"):
            if kwargs.get("dim", args[2] if len(args) > 2 else 0) not in (0, -2):
                return
            nodes = torch.arange(self.nodes, device=args[0].device)
            parts = zip(out, nodes.split([len(part) for part in out]), strict=True)
        else:
            index = _rows_of(name, args, kwargs)
            if index is None or not isinstance(out, Tensor) or out.dim() != 2:
                return
            own = torch.arange(self.nodes, device=args[0].device)[index]
            parts = zip([out], [own], strict=True)
        for made, own in parts:
            self._parts[id(made)] = GraphPart(made, args[0], own)

    def note_sum(self, rows: Any, axis: Any, mean: bool, out: Any) -> None:
        """Remember the sum or mean of the rows of some nodes."""
        part = self._parts.get(id(rows))
        if part is not None and axis in (0, -2) and isinstance(out, Tensor):
            self._sums[id(out)] = GraphPart(out, part.table, part.nodes, mean)

    def gathered(self, parts: Any) -> list[GraphPart] | None:
        """The parts whose sums, one a graph, are put together; None where they are none."""
        if not isinstance(parts, tuple | list) or len(parts) != self.graphs:
            return None
        found = [self._sums.get(id(part)) for part in parts]
        known = [part for part in found if part is not None]
        if len(known) < len(found) or any(p.table is not known[0].table for p in known):
            return None
        return known


def _rows_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Which rows a function takes, as something that indexes; None where it takes none."""
    if name == "index_select":
        given = dict(zip(("input", "dim", "index"), args, strict=False)) | dict(kwargs)
        return given.get("index") if given.get("dim") in (0, -args[0].dim()) else None
    index = args[1] if len(args) > 1 else None
    if isinstance(index, tuple) and index and all(i == slice(None) for i in index[1:]):
        index = index[0]
    if isinstance(index, Tensor):
        return index if index.dim() == 1 and not index.is_floating_point() else None
    return index if isinstance(index, slice) else None
