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
from gnn_repair.exposure.pooling.pool import Pool, unit_pool
from gnn_repair.exposure.products import PLAIN, entries_of

INDEXED = {*ADDS, *REDUCTIONS, Tensor.index_reduce_, Tensor.index_reduce, torch.index_reduce}
"""Functions of (base, axis, index, rows, …)."""
SEGMENTS = {getattr(torch, "segment_reduce", None), getattr(torch, "_segment_reduce", None)}
WHOLE = {torch.sum: False, Tensor.sum: False, torch.mean: True, Tensor.mean: True}
"""Functions of (table, axis), and whether they average: for a single graph."""
EXTREMES = {torch.max, Tensor.max, torch.amax, Tensor.amax, torch.min, Tensor.min}
PRODUCTS = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply}
QUOTIENTS = {
    torch.div, torch.true_divide, torch.divide, Tensor.div, Tensor.div_, Tensor.true_divide,
    Tensor.true_divide_, Tensor.__truediv__, Tensor.__itruediv__, Tensor.divide,
}  # fmt: skip
SQUARES = {torch.square, Tensor.square, torch.pow, Tensor.pow, Tensor.__pow__}
SPELLED = {"amax": "max", "amin": "min", "maximum": "max", "minimum": "min"}
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

    @property
    def unread(self) -> str:
        """Sums over edges are of no interest here."""
        return ""

    def forget(self) -> None:
        """Let go of what the last run made."""
        for kept in (self.made, self.weighted, self.squares):
            kept.clear()
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
                return args[0].copy_(quotient) if _in_place(func) else quotient
        before = len(self.extremes)
        self._note_extreme(func, args, given)
        out = func(*args, **given)
        if len(self.extremes) > before == self.shifted:
            # Half of itself: more than rounding, and no exponential of it overflows.
            out.mul_(0.5)
        if func in PRODUCTS and len(args) == 2:
            self._note_product(out, *args)
        if func in SQUARES and (len(args) < 2 or args[1] == 2):
            self.squares.append(out)
        return out

    # What is remembered ------------------------------------------------------------------------

    def _note_product(self, out: Any, left: Any, right: Any) -> None:
        """Remember w · x of a number and a row a node."""
        if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != self.nodes:
            return
        for weight, table in ((left, right), (right, left)):
            if weight is table:
                self.squares.append(out)
            elif _weighs(weight, out) and isinstance(table, Tensor) and table.shape == out.shape:
                self.weighted.append((out, weight, table))

    def _quotient(self, sums: Any, divisor: Any) -> Tensor | None:
        pool = next((pool for out, pool in reversed(self.made) if out is sums), None)
        if pool is None:
            return None
        number = _by_graph(divisor, sums, self.nodes, self.graphs)
        if number is None or not bool(((number > 0) & torch.isfinite(number)).all()):
            return None
        return self.divided(sums, pool, number.to(sums.dtype))

    def _note_extreme(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Remember a pool that is no sum."""
        if func in INDEXED and func not in ADDS:
            base, axis, _, rows, how = _named(args, kwargs)
            if how not in ("sum", "mean") and self._from_nodes(base, axis, rows):
                self.extremes.append(SPELLED.get(how, how))
        elif func in SEGMENTS and len(args) > 1 and args[1] not in ("sum", "mean"):
            self.extremes.append(SPELLED.get(args[1], args[1]))
        elif func in EXTREMES and self._over_nodes(args, kwargs) is not None:
            self.extremes.append("max" if "max" in func.__name__ else "min")
        elif func in WHOLE and self.graphs > 1 and args and isinstance(args[0], Tensor):
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if args[0].dim() == 3 and len(args[0]) == self.graphs and axis in (1, -2):
                self.elsewhere.append("a dense batch (to_dense_batch)")
            elif args[0].dim() == 2 and len(args[0]) < self.nodes and axis in (0, -2):
                self.elsewhere.append("graph by graph in a loop")

    # What is read ------------------------------------------------------------------------------

    def _read(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pool | None:
        own = partial(func, *args, **kwargs)
        if func in INDEXED:
            return self._indexed(func, own, args, kwargs)
        if func in SEGMENTS:
            return self._segments(own, *args, **kwargs)
        if func in WHOLE:
            return self._whole(func, own, args, kwargs)
        if func in PLAIN and len(args) == 2:
            return self._matrix(own, *args)
        return None

    def _indexed(
        self, func: Any, own: Callable[[], Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Pool | None:
        base, axis, index, rows, how = _named(args, kwargs)
        averages = func not in ADDS and how == "mean"
        if (func not in ADDS and how not in ("sum", "mean")) or (
            averages and kwargs.get("include_self", True)
        ):
            return None
        if not self._from_nodes(base, axis, rows):
            return None
        graph = _graph_of(index, rows)
        pool = graph if graph is None else self._pool(own, graph, rows, base.shape, averages)
        if pool is None:
            return None
        added = base.reshape(self.graphs, -1).clone() if bool(base.any()) else None
        return replace(pool, base=base if _in_place(func) else None, added=added)

    def _from_nodes(self, base: Any, axis: Any, rows: Any) -> bool:
        """Whether a call takes a row a node to a row a graph."""
        if not isinstance(base, Tensor) or not isinstance(rows, Tensor) or not rows.dim():
            return False
        if not rows.is_floating_point() or base.shape[1:] != rows.shape[1:]:
            return False
        if axis not in (0, -rows.dim()) or base.shape[0] != self.graphs:
            return False
        if rows.shape[0] != self.nodes:
            if rows.dim() > 1 and rows.shape[1] > 1:
                self.coarse.append(rows.shape[0])
            return False
        return True

    def _pool(
        self,
        own: Callable[[], Tensor],
        graph: Tensor,
        rows: Tensor,
        shape: Sequence[int],
        mean: bool = False,
    ) -> Pool | None:
        flat = rows.reshape(self.nodes, -1)
        if flat.shape[1] == 1 and bool((flat == flat[:1]).all()):
            return None  # a count of nodes
        pool = unit_pool(own, graph, flat, tuple(shape), self.graphs, mean)
        if any(out is rows for out in self.squares):
            return replace(pool, squares=True)
        for out, weight, table in reversed(self.weighted):
            if out is rows and weight.shape[1] == 1:
                weight = pool.weight * weight.reshape(-1)
                return replace(pool, weight=weight, table=table, weighted=True)
            if out is rows and _sums_to_one(weight, graph, self.graphs):
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
        axis = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
        if self.graphs != 1 or not isinstance(table, Tensor) or axis not in (0, -2):
            return None
        fits = table.dim() == 2 and len(table) == self.nodes and table.is_floating_point()
        return table if fits else None

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


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Base, axis, index, rows and reduction of an indexed sum, given by place or by name."""
    rows = kwargs.get("src", kwargs.get("source"))
    words = [None, kwargs.get("dim"), kwargs.get("index"), rows, kwargs.get("reduce", "sum")]
    return (*args[:5], *words[len(args[:5]) :])


def _weighs(weight: Any, out: Tensor) -> bool:
    """Whether something is a number a node, or a number a node and channel, of rows."""
    numbers = isinstance(weight, Tensor) and weight.is_floating_point() and weight.dim() == 2
    return numbers and out.shape[1] > 1 and tuple(weight.shape) in ((len(out), 1), (*out.shape,))


def _in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__itruediv__" or (name.endswith("_") and not name.endswith("__"))


def _sums_to_one(weight: Tensor, graph: Tensor, graphs: int) -> bool:
    """Whether numbers by node and channel are a softmax: up to float32's rounding of one."""
    total = weight.new_zeros(graphs, weight.shape[1]).index_add_(0, graph, weight)
    kept = torch.bincount(graph, minlength=graphs) > 0
    return torch.allclose(total[kept], total.new_ones(()), rtol=1e-4, atol=0.0)


def _graph_of(index: Any, rows: Tensor) -> Tensor | None:
    """The graph of every row: a list, or the same list in every channel."""
    if not isinstance(index, Tensor) or index.dtype != torch.int64:
        return None
    index = index.as_subclass(Tensor)  # PyG's Index is one too
    if index.dim() == 1:
        return index if len(index) == len(rows) else None
    if index.shape != rows.shape or index.numel() == 0:
        return None
    flat = index.reshape(len(index), -1) if any(index.stride()[1:]) else None
    if flat is not None and not bool((flat == flat[:, :1]).all()):
        return None
    return index[(slice(None), *[0] * (index.dim() - 1))]


def _by_graph(divisor: Any, sums: Tensor, nodes: int, graphs: int) -> Tensor | None:
    """A divisor as one number a graph, [B]; None where it is none, or the same for all."""
    if isinstance(divisor, int | float):
        # The number of nodes, where there is one graph; any other number is a scale.
        return sums.new_full((1,), nodes) if graphs == 1 and divisor == nodes else None
    if not isinstance(divisor, Tensor) or divisor.dim() == 0:
        return None
    try:
        wide = divisor.expand(sums.shape).reshape(graphs, -1)
    except RuntimeError:
        return None
    return wide[:, 0].clone() if bool((wide == wide[:, :1]).all()) else None
