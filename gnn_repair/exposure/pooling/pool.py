"""One pooling of nodes into graphs, in the form of an aggregation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gnn_repair.exposure.pooling.rows import GraphPart, Rows
from gnn_repair.exposure.products import MatrixProduct, ProductCall


@dataclass(frozen=True)
class GraphPool(MatrixProduct):
    """Stands where a convolution stands: it sums over the nodes of every graph."""


@dataclass(frozen=True, eq=False)
class Pool:
    """pooled[g] = Σ_t w_t h[source_t] over the entries t of graph g; T entries, B graphs."""

    own: Callable[[], Tensor]
    """Does what the model does."""
    graph: Tensor
    """[T]: the graph an entry belongs to."""
    source: Tensor | None
    """[T]: its node; None: entry t is node t."""
    weight: Tensor
    """[T]: w."""
    table: Tensor
    """h [N, D]."""
    shape: tuple[int, ...]
    """Of what the model's own function returns."""
    graphs: int
    """B."""
    mean: bool = False
    """Whether the function itself divides by the number of nodes; w holds that."""
    weighted: bool = False
    """Whether w are numbers of the model, such as attention."""
    by_channel: bool = False
    """Whether rows are softmax weights by channel × vectors."""
    squares: bool = False
    """Whether rows are squares, as for a variance."""
    base: Tensor | None = None
    """What is changed in place; None: nothing."""
    added: Tensor | None = None
    """What the sum is added to; None: nothing."""
    owner: Tensor | None = None
    """[N]: the graph of every node, where some are not pooled; None: all are."""

    def of_nodes(self, nodes: Tensor, owner: Tensor) -> Pool:
        """The same pool, entry t of which is node ``nodes[t]`` of a graph with all its nodes.

        Args:
            nodes: [T].
            owner: [N]: the graph of every node.
        """
        table = self.table.new_zeros(len(owner), self.table.shape[1])
        table[nodes] = self.table
        return replace(self, source=nodes, table=table, owner=owner)

    def value(self, entries: Tensor) -> Tensor:
        """The sum [B, D] with other numbers [T] in place of w."""
        rows = self.table if self.source is None else self.table[self.source]
        out = rows.new_zeros(self.graphs, rows.shape[1])
        return out.index_add_(0, self.graph, entries.to(rows.dtype).unsqueeze(1) * rows)

    def read(self, result: Tensor) -> Tensor:
        """The sum [B, D] in what the model's own function returned."""
        flat = result.detach().reshape(self.graphs, -1)
        return flat.clone() if self.added is None else flat - self.added

    def finish(self, value: Tensor) -> Tensor:
        """What the model's own function returns (and leaves in its base), from a sum [B, D]."""
        out = (value if self.added is None else value + self.added).reshape(self.shape)
        return out if self.base is None else self.base.copy_(out)


@dataclass(frozen=True, eq=False)
class PoolCall(ProductCall):
    """One recorded pool, in the form of a propagate."""

    @property
    def pool(self) -> Pool:
        """What pools."""
        found: Pool = self.arguments["product"]
        return found

    @property
    def divisor(self) -> Tensor | None:
        """[B]: what the model divides every graph's sum by; None: by nothing."""
        found: Tensor | None = self.arguments.get("divisor")
        return found

    @property
    def kind(self) -> str:
        """Such as ``mean pool``."""
        if self.pool.weighted:
            whole = _sums(self.entries[1], self.entries[2], self.pool.graphs)
            even = torch.allclose(whole[whole != 0], whole.new_ones(()), rtol=1e-4, atol=0.0)
            # One up to float32's rounding of a softmax: what else sums to one in every graph?
            return "attention pool" if even else "weighted pool"
        if self.pool.by_channel:
            return "softmax pool"
        if self.pool.mean or self.by_size:
            return "mean pool"
        return "sum pool" if self.divisor is None else "scaled pool"

    @property
    def last(self) -> str:
        """The title of the last one."""
        return f"the last pool {self.title}" if self.site.name else f"the last {self.kind}"

    @cached_property
    def by_size(self) -> bool:
        """Whether the divisor is the number of nodes."""
        if self.divisor is None:
            return False
        sizes = torch.bincount(self.pool.graph, minlength=self.pool.graphs).clamp(min=1)
        return torch.allclose(self.divisor, sizes.to(self.divisor.dtype))

    @cached_property
    def entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Node, graph and coefficient of every entry, the model's divisor included."""
        pool, weight = self.pool, self.pool.weight
        source = pool.source
        if source is None:
            source = torch.arange(pool.graph.numel(), device=pool.graph.device)
        if self.divisor is not None:
            weight = weight / self.divisor[pool.graph]
        return source, pool.graph, weight


def _sums(graph: Tensor, weight: Tensor, graphs: int) -> Tensor:
    return weight.new_zeros(graphs).index_add_(0, graph, weight)


def unit_pool(
    own: Callable[[], Tensor],
    graph: Tensor,
    table: Tensor,
    shape: Sequence[int],
    graphs: int,
    mean: bool = False,
) -> Pool:
    """The pool that adds up (or averages) every node once."""
    weight = torch.ones(graph.numel(), dtype=table.dtype, device=table.device)
    if mean:
        weight = 1 / torch.bincount(graph, minlength=graphs).to(table.dtype)[graph]
    return Pool(own, graph, None, weight, table, tuple(shape), graphs, mean=mean)


def gathered_pool(
    own: Callable[[], Tensor], pieces: Sequence[GraphPart], shape: tuple[int, ...]
) -> Pool:
    """The pool whose graphs are summed (or averaged) one by one."""
    sizes = torch.tensor([len(piece.nodes) for piece in pieces])
    table, source = pieces[0].table, torch.cat([piece.nodes for piece in pieces])
    graph = torch.repeat_interleave(sizes).to(source.device)
    shares = [1 / max(1, len(p.nodes)) if p.mean else 1.0 for p in pieces]
    weight = torch.tensor(shares, dtype=table.dtype, device=table.device)[graph]
    mean = all(piece.mean for piece in pieces)
    return Pool(own, graph, source, weight, table, shape, len(pieces), mean=mean)


def dense_pool(
    own: Callable[[], Tensor], known: Rows, weight: Tensor, table: Tensor, shape: tuple[int, ...]
) -> Pool:
    """The pool of a dense batch; what stands in its empty rows is added to the sum and stays.

    Args:
        own: does what the model does.
        known: which nodes its rows are.
        weight: [B, n].
        table: [B, n, D].
        shape: of what the model's own function returns.
    """
    assert known.places is not None
    flat, numbers, graphs = table.flatten(0, 1), weight.reshape(-1), len(table)
    empty = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
    empty[known.places] = False
    left = numbers[empty].unsqueeze(1) * flat[empty]
    place = torch.arange(len(flat), device=flat.device)[empty] // table.shape[1]
    added = flat.new_zeros(graphs, flat.shape[1]).index_add_(0, place, left)
    weight, rows = numbers[known.places], flat[known.places]
    pool = Pool(own, known.owner, None, weight, rows, shape, graphs)
    uneven = not bool((weight == weight[:1]).all())
    return replace(pool, weighted=uneven, added=added if bool(added.any()) else None)
