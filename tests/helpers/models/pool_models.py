"""Graph classifiers in the ways in which people write them, and what each must be exposed as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.data import Batch, Data
from torch_geometric.nn import aggr, global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.utils import scatter, softmax, to_dense_batch

CLASSES, FEATURES, WIDTH = 3, 5, 6


def doubled() -> list[Data]:
    """The graphs in double precision, as copies."""
    graphs = [graph.clone() for graph in GRAPHS]
    for graph in graphs:
        graph.x, graph.u = graph.x.double(), graph.u.double()
    return graphs


def ring(size: int, seed: int, label: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    around = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
    x = torch.randn(size, FEATURES, generator=generator)
    both = torch.cat([around, around.flip(0)], dim=1)
    u = torch.randn(1, 2, generator=generator)
    return Data(x=x, edge_index=both, y=torch.tensor([label]), u=u)


GRAPHS = [ring(4 + i % 4, i, i % CLASSES) for i in range(11)]
SIZES = [graph.num_nodes for graph in GRAPHS]


def batch_of(dtype: torch.dtype = torch.float64, count: int = len(GRAPHS)) -> Any:
    batch: Any = Batch.from_data_list(GRAPHS[:count])
    batch.x, batch.u = batch.x.to(dtype), batch.u.to(dtype)
    return batch


def mlp(wide: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(wide, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, out))


class Body(nn.Module):
    """Two convolutions; what follows them is the subject of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(FEATURES, WIDTH), pyg.GCNConv(WIDTH, WIDTH)

    def nodes(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index).relu()


class Pooled(Body):
    """A pool, a head, and perhaps something at the end."""

    def __init__(
        self,
        pool: Callable[[Tensor, Tensor], Tensor],
        head: nn.Module | None = None,
        wide: int = WIDTH,
        end: Callable[[Tensor], Any] = lambda z: z,
    ) -> None:
        super().__init__()
        self.pool, self.end = pool, end
        self.head = nn.Linear(wide, CLASSES) if head is None else head

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        return self.end(self.head(self.pool(self.nodes(x, edge_index), batch)))


class NodesFirst(Body):
    """Nodes are classified and the graph takes their mean; called with the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last = pyg.GCNConv(WIDTH, CLASSES)

    def forward(self, data: Any) -> Tensor:
        x = F.dropout(self.nodes(data.x, data.edge_index), training=self.training)
        x = self.last(x, data.edge_index)
        return F.log_softmax(global_mean_pool(x, data.batch), dim=1)


class JumpingGIN(nn.Module):
    """Sums at every layer, concatenated, then an MLP; or a linear score a layer, added up."""

    def __init__(self, scores: bool) -> None:
        super().__init__()
        wide = [FEATURES, WIDTH, WIDTH]
        convs = [pyg.GINConv(mlp(a, b), train_eps=True) for a, b in pairwise(wide)]
        self.convs = nn.ModuleList(convs)
        self.scores = nn.ModuleList([nn.Linear(w, CLASSES) for w in wide]) if scores else None
        self.head = mlp(sum(wide), CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        layers = [x]
        for conv in self.convs:
            layers.append(F.relu(conv(layers[-1], edge_index)))
        pools = [global_add_pool(h, batch) for h in layers]
        if self.scores is None:
            return self.head(torch.cat(pools, dim=1))
        told = [
            F.dropout(s(p), 0.5, self.training) for s, p in zip(self.scores, pools, strict=True)
        ]
        return sum(told[1:], told[0])


class Normed(Pooled):
    """GraphNorm takes means of every graph, and of squares, long before the pool."""

    def __init__(self) -> None:
        super().__init__(global_mean_pool)
        self.norm = pyg.GraphNorm(WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        x = self.norm(self.nodes(x, edge_index), batch)
        return self.head(global_mean_pool(F.relu(x, inplace=True), batch))


class OtherNames(Body):
    """The graph of every node under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch_idx: Tensor) -> Tensor:
        return self.head(global_mean_pool(self.nodes(x, edge_index), batch_idx))


class WithGlobals(Body):
    """Attributes of the graph stand beside the pooled vector."""

    def __init__(self) -> None:
        super().__init__()
        self.head = mlp(WIDTH + 2, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, u: Tensor) -> Tensor:
        return self.head(torch.cat([global_mean_pool(self.nodes(x, edge_index), batch), u], 1))


class Alone(Body):
    """A model of one graph at a time: no batch at all."""

    def __init__(self) -> None:
        super().__init__()
        self.head = mlp(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.nodes(x, edge_index).mean(dim=0, keepdim=True))


class Gate(nn.Module):
    """Attention by hand."""

    def __init__(self, squash: Callable[..., Tensor] = softmax) -> None:
        super().__init__()
        self.gate, self.squash = nn.Linear(WIDTH, 1), squash

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return global_add_pool(x * self.squash(self.gate(x), batch), batch)


class Choosing(Body):
    """A layer that leaves some of the nodes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, _, _, batch, *_ = self.layer(self.nodes(x, edge_index), edge_index, None, batch)
        return self.head(global_mean_pool(x, batch))


def by_index_add(x: Tensor, batch: Tensor) -> Tensor:
    graphs = int(batch.max()) + 1
    total = torch.zeros(graphs, x.size(1), dtype=x.dtype).index_add_(0, batch, x)
    return total / torch.bincount(batch, minlength=graphs).unsqueeze(1)


def by_marks(x: Tensor, batch: Tensor) -> Tensor:
    return F.one_hot(batch).to(x.dtype).t() @ x


def by_segments(x: Tensor, batch: Tensor) -> Tensor:
    return torch.segment_reduce(x, "mean", lengths=torch.bincount(batch), axis=0)


def by_reduction(x: Tensor, batch: Tensor) -> Tensor:
    out = x.new_zeros(int(batch.max()) + 1, x.size(1))
    index = batch.view(-1, 1).expand_as(x)
    return out.scatter_reduce_(0, index, x, reduce="mean", include_self=False)


def over_roots(x: Tensor, batch: Tensor) -> Tensor:
    return scatter(x, batch, dim=0) / torch.bincount(batch).to(x.dtype).sqrt().view(-1, 1)


def over_its_norm(x: Tensor, batch: Tensor) -> Tensor:
    total = global_add_pool(x, batch)
    return total / total.norm(dim=1, keepdim=True)


def product_of_two(x: Tensor, batch: Tensor) -> Tensor:
    return global_add_pool(x, batch) * global_mean_pool(x, batch)


def dense_mean(x: Tensor, batch: Tensor) -> Tensor:
    dense, mask = to_dense_batch(x, batch)
    return dense.sum(1) / mask.sum(1, keepdim=True)


def beside(*pools: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, batch: torch.cat([pool(x, batch) for pool in pools], dim=-1)


@dataclass(frozen=True)
class Case:
    """A model, whether it ends in a tail, and the mass of each group in graphs of n nodes."""

    build: Callable[[], nn.Module]
    masses: tuple[Callable[[int], float] | None, ...]
    tail: bool = False


def one(nodes: int) -> float:
    return 1.0


def every(nodes: int) -> float:
    return float(nodes)


def local() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


MODELS: dict[str, Case] = {
    "mean": Case(lambda: Pooled(global_mean_pool), (one,)),
    "sum": Case(lambda: Pooled(global_add_pool), (every,)),
    "nodes classified, then mean": Case(NodesFirst, (one,)),
    "mean, MLP": Case(lambda: Pooled(global_mean_pool, mlp(WIDTH, CLASSES)), (one,), True),
    "attention": Case(
        lambda: Pooled(aggr.AttentionalAggregation(nn.Linear(WIDTH, 1), local())), (one,)
    ),
    "attention by hand, MLP": Case(lambda: Pooled(Gate(), mlp(WIDTH, CLASSES)), (one,), True),
    "gated sum": Case(lambda: Pooled(Gate(lambda gate, _: gate.sigmoid())), (None,)),
    "softmax by channel": Case(lambda: Pooled(aggr.SoftmaxAggregation(learn=True)), (every,)),
    "Set2Set": Case(lambda: Pooled(aggr.Set2Set(WIDTH, 3), wide=2 * WIDTH), (one,)),
    "deep sets": Case(
        lambda: Pooled(aggr.DeepSetsAggregation(local(), local())), (every,), True
    ),
    "sum beside mean": Case(
        lambda: Pooled(beside(global_add_pool, global_mean_pool), wide=2 * WIDTH), (every, one)
    ),
    # PyG computes one sum and reads it twice, so that there is one group.
    "several aggregators": Case(
        lambda: Pooled(aggr.MultiAggregation(["sum", "mean"]), wide=2 * WIDTH), (every,)
    ),
    "max beside mean": Case(
        lambda: Pooled(
            beside(global_max_pool, global_mean_pool), mlp(2 * WIDTH, CLASSES)
        ), (one,), True,
    ),
    "jumping knowledge, MLP": Case(lambda: JumpingGIN(False), (every,) * 3, True),
    "a score a layer": Case(lambda: JumpingGIN(True), (every,) * 3),
    "GraphNorm": Case(Normed, (one,)),
    "attributes of the graph": Case(WithGlobals, (one,), True),
    "index_add": Case(lambda: Pooled(by_index_add), (one,)),
    "scatter_reduce": Case(lambda: Pooled(by_reduction), (one,)),
    "a matrix of marks": Case(lambda: Pooled(by_marks), (every,)),
    "segments": Case(lambda: Pooled(by_segments), (one,)),
    "sum over the root of the size": Case(lambda: Pooled(over_roots), (lambda n: n**0.5,)),
    "sum over its own norm": Case(lambda: Pooled(over_its_norm), (every,), True),
    # Affine in each of them, and not in both.
    "product of sum and mean": Case(lambda: Pooled(product_of_two), (every, one), True),
    "a dense batch": Case(lambda: Pooled(dense_mean), (one,)),
    "top k": Case(lambda: Choosing(pyg.TopKPooling(WIDTH, 0.5)), (one,)),
    "SAGPool": Case(lambda: Choosing(pyg.SAGPooling(WIDTH, 0.5)), (one,)),
    "one logit": Case(
        lambda: Pooled(global_mean_pool, nn.Linear(WIDTH, 1), end=lambda z: z.view(-1)), (one,)
    ),
    "a tuple": Case(lambda: Pooled(global_mean_pool, end=lambda z: (z, z.argmax(1))), (one,)),
    "softmax at the end": Case(
        lambda: Pooled(global_mean_pool, mlp(WIDTH, CLASSES), end=lambda z: z.softmax(1)),
        (one,), True,
    ),
}  # fmt: skip
"""How public code pools and classifies graphs, more or less by how often it is seen."""


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "max": lambda: Pooled(global_max_pool),
    "sort": lambda: Pooled(aggr.SortAggregation(2), wide=2 * WIDTH),
    "pairs": lambda: Pooled(aggr.LCMAggregation(WIDTH, WIDTH)),
    "windows": lambda: Pooled(lambda x, b: F.avg_pool1d(to_dense_batch(x, b)[0].mT, 2)[..., 0]),
}
"""What is said of each stands in the golden record."""


class ByHand(nn.Module):
    """The larger half of every graph's nodes, found by hand."""

    def forward(self, x: Tensor, edge_index: Tensor, _: None, batch: Tensor) -> tuple[Any, ...]:
        kept = x[:, 0] >= global_mean_pool(x, batch)[batch, 0]
        return x[kept], edge_index[:, :0], None, batch[kept], kept.nonzero().view(-1)


class Kept(Body):
    """Layers that keep some nodes, each followed by a readout; weights can be put in by hand."""

    def __init__(self, layers: list[nn.Module], head: nn.Module, pool: Callable[..., Tensor]):
        super().__init__()
        self.layers, self.head, self.pool = nn.ModuleList(layers), head, pool
        self.weights: list[Tensor] = []
        self.perms: list[Tensor] = []

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, total, self.perms = self.nodes(x, edge_index), 0.0, []
        for number, layer in enumerate(self.layers):
            x, edge_index, _, batch, perm, *_ = layer(x, edge_index, None, batch)
            self.perms.append(perm)
            rows = x * self.weights[number].unsqueeze(1) if self.weights else x
            both = [self.pool(rows, batch), global_max_pool(x, batch)]
            total = total + torch.cat(both, dim=1)
        return self.head(total)


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "top k": lambda: [pyg.TopKPooling(WIDTH, 0.5)],
    "top k twice": lambda: [pyg.TopKPooling(WIDTH, 0.8), pyg.TopKPooling(WIDTH, 0.5)],
    "all, in another order": lambda: [pyg.TopKPooling(WIDTH, 1.0)],
    "SAGPool": lambda: [pyg.SAGPooling(WIDTH, 0.5), pyg.SAGPooling(WIDTH, 0.7)],
    "by hand": lambda: [ByHand()],
}


def with_a_map(x: Tensor, batch: Tensor) -> Tensor:
    """Empty rows are not empty any more: what stands there stays."""
    dense, _ = to_dense_batch(x, batch)
    return (dense + 0.5).tanh().sum(1)


def attended(x: Tensor, batch: Tensor) -> Tensor:
    dense, mask = to_dense_batch(x, batch)
    scores = dense[..., 0].masked_fill(~mask, -1e9).softmax(1)
    return torch.bmm(scores.unsqueeze(1), dense).squeeze(1)


def weighed(x: Tensor, batch: Tensor) -> Tensor:
    dense, mask = to_dense_batch(x, batch)
    scores = dense[..., :1].masked_fill(~mask.unsqueeze(-1), -1e9).softmax(1)
    return (scores * dense).sum(dim=1)


def padded_mean(x: Tensor, batch: Tensor) -> Tensor:
    return to_dense_batch(x, batch)[0].mean(1)


def by_starts(x: Tensor, batch: Tensor) -> Tensor:
    ends = torch.bincount(batch).cumsum(0).tolist()
    return torch.stack([x[a:b].sum(0) for a, b in zip([0, *ends], ends, strict=False)])


def by_lists(x: Tensor, batch: Tensor) -> Tensor:
    """A mean as a product with a sparse matrix, whose numbers are written in a list."""
    counts = torch.bincount(batch).tolist()
    shares = torch.tensor([1 / n for n in counts for _ in range(n)], dtype=x.dtype)
    places = torch.stack([batch, torch.arange(len(x))])
    return torch.sparse.mm(torch.sparse_coo_tensor(places, shares, (len(counts), len(x))), x)


def by_products(turned: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Attention of each graph by itself, as a row times a matrix or from the other side."""

    def pool(x: Tensor, batch: Tensor) -> Tensor:
        parts = torch.split(x, torch.bincount(batch).tolist())
        if turned:
            return torch.stack([(part.t() @ part[:, :1].softmax(0))[:, 0] for part in parts])
        return torch.cat([part[:, :1].softmax(0).t() @ part for part in parts])

    return pool


def by_splits(x: Tensor, batch: Tensor) -> Tensor:
    parts = torch.split(x, torch.bincount(batch).tolist())
    return torch.cat([part.mean(dim=0, keepdim=True) for part in parts], dim=0)


ROWS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[..., Any]]] = {
    "a map before the sum": (with_a_map, lambda x, n: (x + 0.5).tanh()),
    "attention by a product": (attended, lambda x, n: x * x[:, :1].softmax(0)),
    "attention by a sum": (weighed, lambda x, n: x * x[:, :1].softmax(0)),
    "a mean with empty rows": (padded_mean, lambda x, n: x / max(SIZES)),
    "sums between starts": (by_starts, lambda x, n: x),
    "a matrix of a list": (by_lists, lambda x, n: x / n),
    "products in a loop": (by_products(False), lambda x, n: x * x[:, :1].softmax(0)),
    "turned products in a loop": (by_products(True), lambda x, n: x * x[:, :1].softmax(0)),
    "means of splits": (by_splits, lambda x, n: x / n),
}


def built(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """The model with every parameter and statistic drawn, so that nothing hides behind zeros."""
    model = MODELS[name].build().to(dtype).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for values in [*model.parameters(), *model.buffers()]:
            if values.is_floating_point():
                drawn = torch.randn(values.shape, generator=generator).to(dtype)
                values.copy_(drawn.abs() + 0.5 if "buffer" in type(values).__name__ else drawn / 2)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                assert module.running_var is not None
                module.running_var.uniform_(0.5, 2, generator=generator)
    return model
