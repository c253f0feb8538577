"""Seeing in a model's run where nodes are pooled into graphs, however that is written.

PyG's pools and aggregations, ``scatter``, ``index_add``, ``segment_reduce``, sums over all nodes of
a single graph and products with a B × N matrix all come down to few functions of PyTorch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gnn_repair.exposure.hand_calls import ADDS, REDUCTIONS
from gnn_repair.exposure.pooling.call_forms import (
    axis_of,
    by_graph,
    graph_of,
    in_place,
    named,
    sums_to_one,
    weighs,
)
from gnn_repair.exposure.pooling.pool import Pool, dense_pool, gathered_pool, unit_pool
from gnn_repair.exposure.pooling.rows import RowOrigins, Rows
from gnn_repair.exposure.products import PLAIN, entries_of

INDEXED = {*ADDS, *REDUCTIONS, Tensor.index_reduce_, Tensor.index_reduce, torch.index_reduce}
"""Functions of (base, axis, index, rows, …)."""
SEGMENTS = {getattr(torch, "segment_reduce", None), getattr(torch, "_segment_reduce", None)}
WHOLE = {torch.sum: False, Tensor.sum: False, torch.mean: True, Tensor.mean: True}
"""Functions of (table, axis), and whether they average: for a single graph."""
EXTREMES = {
    getattr(holder, name)
    for holder in (torch, Tensor)
    for name in ("max", "amax", "min", "amin", "median", "nanmedian", "mode", "std", "var", "prod",
                 "logsumexp", "norm", "quantile")
}  # fmt: skip
"""Functions of (table, axis) that are no sums; the axis of the last two comes by name."""
PRODUCTS = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply}
QUOTIENTS = {
    torch.div, torch.true_divide, torch.divide, Tensor.div, Tensor.div_, Tensor.true_divide,
    Tensor.true_divide_, Tensor.__truediv__, Tensor.__itruediv__, Tensor.divide,
}  # fmt: skip
SQUARES = {torch.square, Tensor.square, torch.pow, Tensor.pow, Tensor.__pow__}
SPELLED = {"amax": "max", "amin": "min", "maximum": "max", "minimum": "min"}
GATHERS = {torch.stack, torch.cat, torch.concat, torch.vstack, torch.concatenate}
"""Functions of a list of sums, one a graph."""
BATCHED = {torch.bmm, Tensor.bmm, torch.matmul, Tensor.matmul, Tensor.__matmul__}
KEPT = 16
"""Products and sums that are remembered: those of one readout."""


class Pools(TorchFunctionMode):
    """While open, pools are handed to a function that does them."""

    def __init__(
        self,
        sizes: tuple[int, int],
        seen: Callable[[Pool], Tensor],
        divided: Callable[[Tensor, Pool, Tensor], Tensor | None],
        busy: Callable[[], bool],
    ) -> None:
        """Watch pools from N nodes to B graphs.

        Args:
            sizes: N and B.
            seen: does a pool.
            divided: is told that a pool's result is divided by a number a graph, [B]; gives the
                quotient where that was put in the place of the model's own.
            busy: whether a convolution is running, whose own sums are none of ours.
        """
        super().__init__()
        self.nodes, self.graphs = sizes
        self.seen, self.divided, self.busy = seen, divided, busy
        self.made: deque[tuple[Tensor, Pool]] = deque(maxlen=KEPT)
        self.weighted: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=KEPT)
        self.squares: deque[Tensor] = deque(maxlen=KEPT)
        self.extremes: list[str] = []
        """Pools that are no sums, by what they do."""
        self.shifted: int | None = None
        """Which of them is shifted in this run, to see whether it matters."""
        self.coarse: list[int] = []
        """How many rows were pooled where it were not the nodes."""
        self.elsewhere: list[str] = []
        """Sums that may be pools of another form, in words."""
        self.origins = RowOrigins(*sizes)

    @property
    def unread(self) -> str:
        """Sums over edges are of no interest here."""
        return ""

    def forget(self) -> None:
        """Let go of what the last run made."""
        for kept in (self.made, self.weighted, self.squares):
            kept.clear()
        self.origins.forget()
        for words in (self.extremes, self.coarse, self.elsewhere):
            words.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let a torch function run, or hand over the pool that it is."""
        given = kwargs or {}
        if self.busy():
            return func(*args, **given)
        pool = self._read(func, args, given)
        if pool is not None:
            out = self.seen(pool)
            self.made.append((out, pool))
            return out
        if func in QUOTIENTS and len(args) > 1:
            quotient = self._quotient(*args[:2])
            if quotient is not None:
                return args[0].copy_(quotient) if in_place(func) else quotient
        before = len(self.extremes)
        self._note_extreme(func, args, given)
        out = func(*args, **given)
        self.origins.note(func, args, given, out)
        if func in WHOLE and args:
            axis = axis_of(args, given)
            self.origins.note_sum(args[0], axis, WHOLE[func], out)
            self._note_elsewhere(args[0], axis)
        if len(self.extremes) > before == self.shifted:
            # Half of itself and a half: zeros move too, and no exponential of it overflows.
            (out if isinstance(out, Tensor) else out[0]).mul_(0.5).add_(0.5)
        if func in PRODUCTS and len(args) == 2:
            self._note_product(out, *args)
        if func in SQUARES and (len(args) < 2 or args[1] == 2):
            self.squares.append(out)
        return out

    # What is remembered ------------------------------------------------------------------------

    def _note_product(self, out: Any, left: Any, right: Any) -> None:
        """Remember w · x of a number and a row a node."""
        rows = len(out) if isinstance(out, Tensor) and out.dim() in (2, 3) else 0
        if not 0 < rows <= self.nodes:
            return
        for weight, table in ((left, right), (right, left)):
            if weight is table:
                self.squares.append(out)
            elif weighs(weight, out) and isinstance(table, Tensor) and table.shape == out.shape:
                self.weighted.append((out, weight, table))

    def _quotient(self, sums: Any, divisor: Any) -> Tensor | None:
        pool = next((pool for out, pool in reversed(self.made) if out is sums), None)
        if pool is None:
            return None
        number = by_graph(divisor, sums, self.nodes, self.graphs)
        if number is None or not bool(((number > 0) & torch.isfinite(number)).all()):
            return None
        return self.divided(sums, pool, number.to(sums.dtype))

    def _note_extreme(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Remember a pool that is no sum."""
        if func in INDEXED and func not in ADDS:
            base, axis, index, rows, how = named(args, kwargs)
            if how not in ("sum", "mean") and self._from_nodes(base, axis, rows, index) is not None:
                self.extremes.append(SPELLED.get(how, how))
        elif func in SEGMENTS and len(args) > 1 and args[1] not in ("sum", "mean"):
            self.extremes.append(SPELLED.get(args[1], args[1]))
        elif func in EXTREMES and self._over_nodes(args, kwargs) is not None:
            self.extremes.append(SPELLED.get(func.__name__, func.__name__))

    def _note_elsewhere(self, rows: Any, axis: Any) -> None:
        """Remember a sum that may be a pool, of rows that are no known nodes."""
        if self.graphs == 1 or not isinstance(rows, Tensor):
            return
        if rows.dim() == 3 and len(rows) == self.graphs and axis in (1, -2):
            self.elsewhere.append("a dense batch of other rows than nodes, such as clusters")
        elif rows.dim() == 2 and len(rows) < self.nodes and axis in (0, -2):
            self.elsewhere.append("graph by graph in a loop")

    # What is read ------------------------------------------------------------------------------

    def _read(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pool | None:
        own = partial(func, *args, **kwargs)
        if func in INDEXED:
            return self._indexed(func, own, args, kwargs)
        if func in SEGMENTS:
            return self._segments(own, *args, **kwargs)
        if func in WHOLE:
            found = self._whole(func, own, args, kwargs)
            return self._dense(func, own, args, kwargs) if found is None else found
        if func in GATHERS and args:
            return self._gathered(func, own, args, kwargs)
        if len(args) != 2:
            return None
        found = self._attended(own, *args) if func in BATCHED else None
        return self._matrix(own, *args) if found is None and func in PLAIN else found

    def _indexed(
        self, func: Any, own: Callable[[], Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Pool | None:
        base, axis, index, rows, how = named(args, kwargs)
        averages = func not in ADDS and how == "mean"
        if (func not in ADDS and how not in ("sum", "mean")) or (
            averages and kwargs.get("include_self", True)
        ):
            return None
        found = self._from_nodes(base, axis, rows, index)
        if found is None:
            return None
        graph, chosen = found
        pool = self._pool(own, graph, rows, base.shape, averages, chosen)
        if pool is None:
            return None
        added = base.reshape(self.graphs, -1).clone() if bool(base.any()) else None
        return replace(pool, base=base if in_place(func) else None, added=added)

    def _from_nodes(
        self, base: Any, axis: Any, rows: Any, index: Any
    ) -> tuple[Tensor, Rows | None] | None:
        """Where a call takes a row a node to a row a graph: each row's graph, and its node.

        The nodes are None where rows are all nodes in their order.
        """
        if not isinstance(base, Tensor) or not isinstance(rows, Tensor) or not rows.dim():
            return None
        if not rows.is_floating_point() or base.shape[1:] != rows.shape[1:]:
            return None
        if axis not in (0, -rows.dim()) or base.shape[0] != self.graphs:
            return None
        graph = graph_of(index, rows)
        if graph is None:
            return None
        chosen = self.origins.selected(index, graph)
        if chosen is None and rows.shape[0] != self.nodes:
            if rows.dim() > 1 and rows.shape[1] > 1:
                self.coarse.append(rows.shape[0])
            return None
        return graph, chosen

    def _pool(
        self,
        own: Callable[[], Tensor],
        graph: Tensor,
        rows: Tensor,
        shape: Sequence[int],
        mean: bool = False,
        chosen: Rows | None = None,
    ) -> Pool | None:
        flat = rows.reshape(len(graph), -1)
        if flat.shape[1] == 1 and bool((flat == flat[:1]).all()):
            return None  # a count of nodes
        pool = unit_pool(own, graph, flat, tuple(shape), self.graphs, mean)
        if chosen is None:
            return self._weighed(pool, rows)
        # The scores by which nodes were chosen stay within h: there are negative ones among them.
        return pool.of_nodes(chosen.nodes, chosen.owner)

    def _weighed(self, pool: Pool, rows: Tensor) -> Pool:
        """The pool with what is known of how its rows were made."""
        if any(out is rows for out in self.squares):
            return replace(pool, squares=True)
        for out, weight, table in reversed(self.weighted):
            if out is rows and weight.shape[1] == 1:
                weight = pool.weight * weight.reshape(-1)
                return replace(pool, weight=weight, table=table, weighted=True)
            if out is rows and sums_to_one(weight, pool.graph, self.graphs):
                return replace(pool, by_channel=True)
        return pool

    def _segments(
        self, own: Callable[[], Tensor], data: Tensor, reduce: str, *args: Any, **kwargs: Any
    ) -> Pool | None:
        lengths, offsets = kwargs.get("lengths"), kwargs.get("offsets")
        if lengths is None and offsets is not None:
            lengths = offsets.diff()
        if lengths is None or lengths.dim() != 1 or lengths.numel() != self.graphs:
            return None
        if data.shape[0] != self.nodes or int(lengths.sum()) != self.nodes:
            return None
        if reduce not in ("sum", "mean"):
            return None
        graph = torch.repeat_interleave(lengths)
        shape = (self.graphs, *data.shape[1:])
        return self._pool(own, graph, data, shape, mean=reduce == "mean")

    def _whole(
        self, func: Any, own: Callable[[], Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Pool | None:
        """A sum over all nodes, where they are one graph's."""
        table = self._over_nodes(args, kwargs)
        if table is None:
            return None
        graph = torch.zeros(self.nodes, dtype=torch.long, device=table.device)
        keep = kwargs.get("keepdim", len(args) > 2 and bool(args[2]))
        shape = (1, table.shape[1]) if keep else (table.shape[1],)
        return self._pool(own, graph, table, shape, mean=WHOLE[func])

    def _over_nodes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
        """The table that a function of (table, axis) takes together over the nodes of one graph."""
        table = args[0] if args else kwargs.get("input")
        axis = axis_of(args, kwargs)
        if self.graphs != 1 or not isinstance(table, Tensor) or axis not in (0, -2):
            return None
        fits = table.dim() == 2 and len(table) == self.nodes and table.is_floating_point()
        return table if fits else None

    def _dense(
        self, func: Any, own: Callable[[], Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Pool | None:
        """A sum over the rows of a dense batch [B, n, D]."""
        table, axis = args[0] if args else None, axis_of(args, kwargs)
        if not isinstance(table, Tensor) or table.dim() != 3 or axis not in (1, -2):
            return None
        known = self.origins.dense(table)
        if known is None:
            return None
        weight = next((w for out, w, _ in reversed(self.weighted) if out is table), None)
        rows = next((x for out, _, x in reversed(self.weighted) if out is table), table)
        share = 1 / table.shape[1] if WHOLE[func] else 1.0
        numbers = table.new_full(table.shape[:2], share)
        numbers = numbers if weight is None else numbers * weight.squeeze(-1)
        return dense_pool(own, known, numbers, rows, tuple(own().shape))

    def _attended(self, own: Callable[[], Tensor], left: Any, right: Any) -> Pool | None:
        """A product [B, 1, n] · [B, n, D], such as attention over the rows of a dense batch."""
        both = isinstance(left, Tensor) and isinstance(right, Tensor)
        if not both or left.dim() != 3 or left.shape[1] != 1 or right.dim() != 3:
            return None
        known = self.origins.dense(right) if left.shape[2] == right.shape[1] else None
        if known is None or len(left) != self.graphs:
            return None
        return dense_pool(own, known, left[:, 0], right, (len(left), 1, right.shape[2]))

    def _gathered(
        self, func: Any, own: Callable[[], Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Pool | None:
        """Sums of one graph after another, put together."""
        pieces = self.origins.gathered(args[0])
        axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        if pieces is None or axis != 0:
            return None
        shape = tuple(own().shape)
        return gathered_pool(own, pieces, shape) if shape[0] == self.graphs else None

    def _matrix(self, own: Callable[[], Tensor], left: Any, right: Any) -> Pool | None:
        """A product with a B × N matrix, such as one of marks."""
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            return None
        if tuple(left.shape) != (self.graphs, self.nodes) or isinstance(right, nn.Parameter):
            return None
        if right.dim() != 2 or right.shape[0] != self.nodes or left.dtype != right.dtype:
            return None
        graph, source, weight = entries_of(left)
        shape = (self.graphs, right.shape[1])
        even = bool((weight == 1).all())
        return Pool(own, graph, source, weight, right, shape, self.graphs, weighted=not even)
