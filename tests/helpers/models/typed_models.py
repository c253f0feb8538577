"""Models of several node types as people write them, each on the same small graph.

The shapes were collected from public code: PyG's own examples, wrappers around to_hetero, private
copies of HeteroConv, relational layers by hand, models that return one tensor a type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.data import HeteroData
from torch_geometric.utils import scatter

SIZES = {"paper": 30, "author": 18, "venue": 7}
WIDTHS = {"paper": 6, "author": 5, "venue": 3}
RELATIONS = {
    ("author", "writes", "paper"): 70,
    ("paper", "cites", "paper"): 60,
    ("venue", "publishes", "paper"): 34,
    ("paper", "rev_writes", "author"): 60,
    ("paper", "rev_publishes", "venue"): 30,
}
INTO_PAPER = 3
HIDDEN, CLASSES = 8, 3


def graph(seed: int = 0) -> HeteroData:
    """Papers with labels, authors and venues; no edge twice, no loops."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for kind, size in SIZES.items():
        x = torch.randn(size, WIDTHS[kind], generator=generator, dtype=torch.float64)
        data[kind].x = x
    data["paper"].y = torch.randint(CLASSES, (SIZES["paper"],), generator=generator)
    for (source, name, target), count in RELATIONS.items():
        ends = [torch.randint(SIZES[k], (count,), generator=generator) for k in (source, target)]
        edges = torch.unique(torch.stack(ends), dim=1)
        kept = edges[:, edges[0] != edges[1]] if source == target else edges
        data[source, name, target].edge_index = kept[
            :, torch.randperm(kept.shape[1], generator=generator)
        ]
    return data


Types = dict[str, Tensor]
Edges = Mapping[tuple[str, str, str], Tensor]


class Plain(nn.Module):
    """What to_hetero is given: a model that knows nothing of types."""

    def __init__(self, conv: Callable[[int], nn.Module], skip: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(HIDDEN), conv(CLASSES)
        self.lin1 = pyg.Linear(-1, HIDDEN) if skip else None
        self.lin2 = pyg.Linear(-1, CLASSES) if skip else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = self.conv1(x, edge_index)
        if self.lin1 is not None:
            hidden = hidden + self.lin1(x)
        hidden = hidden.relu()
        out = self.conv2(hidden, edge_index)
        return out if self.lin2 is None else out + self.lin2(hidden)


def sage(width: int) -> nn.Module:
    return pyg.SAGEConv((-1, -1), width)


def gat(width: int) -> nn.Module:
    return pyg.GATConv((-1, -1), width, heads=2, concat=False, add_self_loops=False)


def by_edge_type(data: HeteroData, conv: Callable[[int], nn.Module], width: int, **how: Any) -> Any:
    return pyg.HeteroConv({kind: conv(width) for kind in data.edge_types}, **how)


class Stacked(nn.Module):
    """Two HeteroConv and a linear classifier, as in PyG's tutorial."""

    def __init__(
        self, data: HeteroData, conv: Callable[[int], nn.Module] = sage, last: str = "", **how: Any
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(by_edge_type(data, conv, HIDDEN, **how) for _ in range(2))
        self.lin, self.last = pyg.Linear(-1, CLASSES), last

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        x_dict = {k: x.relu() for k, x in self.convs[0](x_dict, edge_index_dict).items()}
        x = self.convs[1](x_dict, edge_index_dict)["paper"]
        if self.last:
            x = getattr(functional, self.last)(x)
        return self.lin(x)


class Mixed(nn.Module):
    """A convolution of its own for every relation; log_softmax at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.lins = pyg.HeteroDictLinear(WIDTHS, HIDDEN)
        self.conv = pyg.HeteroConv(
            {
                ("paper", "cites", "paper"): pyg.GCNConv(HIDDEN, HIDDEN),
                ("author", "writes", "paper"): pyg.GATv2Conv(
                    (HIDDEN, HIDDEN), HIDDEN, add_self_loops=False
                ),
                ("venue", "publishes", "paper"): pyg.GraphConv((HIDDEN, HIDDEN), HIDDEN),
            },
            aggr="sum",
        )
        self.lin = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        x_dict = {k: x.relu() for k, x in self.lins(x_dict).items()}
        return self.lin(self.conv(x_dict, edge_index_dict)["paper"]).log_softmax(dim=-1)


class OwnWrapper(nn.Module):
    """A private copy of HeteroConv: convolutions in a ModuleDict, outputs stacked and averaged."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.convs = nn.ModuleDict({"__".join(kind): sage(CLASSES) for kind in data.edge_types})

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Types:
        out: dict[str, list[Tensor]] = {kind: [] for kind in x_dict}
        for kind, edges in edge_index_dict.items():
            pair = (x_dict[kind[0]], x_dict[kind[2]])
            out[kind[2]].append(self.convs["__".join(kind)](pair, edges))
        return {kind: torch.stack(parts).mean(0) for kind, parts in out.items() if parts}


class SharedConv(nn.Module):
    """One convolution for all relations, after every type was brought to one width."""

    def __init__(self) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({k: nn.Linear(w, HIDDEN) for k, w in WIDTHS.items()})
        self.conv = pyg.SAGEConv((HIDDEN, HIDDEN), CLASSES, aggr="sum")

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        x = {kind: self.lins[kind](x).tanh() for kind, x in x_dict.items()}
        into = [kind for kind in edge_index_dict if kind[2] == "paper"]
        return sum(self.conv((x[k[0]], x[k[2]]), edge_index_dict[k]) for k in into)  # type: ignore[return-value]


class Transformer(nn.Module):
    """HGT as in PyG's example; it writes into the dict that it is given."""

    def __init__(self, data: HeteroData, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.lin_dict = nn.ModuleDict({k: pyg.Linear(-1, HIDDEN) for k in data.node_types})
        convs = (pyg.HGTConv(HIDDEN, HIDDEN, data.metadata(), heads) for _ in range(layers))
        self.convs, self.lin = nn.ModuleList(convs), pyg.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        for kind, x in x_dict.items():
            x_dict[kind] = self.lin_dict[kind](x).relu_()
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.lin(x_dict["paper"])


class Paths(nn.Module):
    """HAN as in PyG's example."""

    def __init__(self, data: HeteroData, heads: int = 2) -> None:
        super().__init__()
        self.han_conv = pyg.HANConv(-1, HIDDEN, data.metadata(), heads=heads, dropout=0.6)
        self.lin = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        return self.lin(self.han_conv(x_dict, edge_index_dict)["paper"])


class Heads(nn.Module):
    """Logits for every type, and embeddings beside them."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.conv = by_edge_type(data, sage, HIDDEN, aggr="mean")
        self.heads = nn.ModuleDict({k: nn.Linear(HIDDEN, CLASSES) for k in data.node_types})

    def forward(self, data: HeteroData) -> tuple[Types, Types]:
        hidden = self.conv(data.x_dict, data.edge_index_dict)
        return {kind: self.heads[kind](x) for kind, x in hidden.items()}, hidden


class Embedded(nn.Module):
    """As on OGB-MAG: only papers have features, the other types a trained embedding."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        others = [kind for kind in data.node_types if kind != "paper"]
        self.emb = nn.ModuleDict({k: nn.Embedding(SIZES[k], HIDDEN) for k in others})
        self.lin = nn.Linear(WIDTHS["paper"], HIDDEN)
        self.convs = nn.ModuleList(by_edge_type(data, sage, w) for w in (HIDDEN, CLASSES))

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Types:
        x_dict = {"paper": self.lin(x_dict["paper"])} | {k: e.weight for k, e in self.emb.items()}
        x_dict = {k: x.relu() for k, x in self.convs[0](x_dict, edge_index_dict).items()}
        return self.convs[1](x_dict, edge_index_dict)


class Attributed(nn.Module):
    """TransformerConv with vectors of edges, a residual and LayerNorm after it."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.lins = pyg.HeteroDictLinear(WIDTHS, HIDDEN)

        def conv(width: int) -> nn.Module:
            return pyg.TransformerConv((HIDDEN, HIDDEN), width // 2, heads=2, edge_dim=2)

        self.conv = by_edge_type(data, conv, HIDDEN)
        self.norm, self.lin = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: Types, edge_index_dict: Edges, edge_attr_dict: Edges) -> Tensor:
        x_dict = self.lins(x_dict)
        out = self.conv(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)
        return self.lin(self.norm(out["paper"] + x_dict["paper"]))


class Products(nn.Module):
    """A relational layer by hand: a sparse matrix of papers × senders for each relation."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        into = [kind for kind in data.edge_types if kind[2] == "paper"]
        self.lins = nn.ModuleDict({k[0]: nn.Linear(WIDTHS[k[0]], CLASSES) for k in into})

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        out = torch.zeros(SIZES["paper"], CLASSES, dtype=x_dict["paper"].dtype)
        for kind, edges in edge_index_dict.items():
            if kind[2] == "paper":
                ones = torch.ones(edges.shape[1], dtype=out.dtype)
                shape = (SIZES["paper"], SIZES[kind[0]])
                matrix = torch.sparse_coo_tensor(edges.flip(0), ones, shape)
                out = out + torch.sparse.mm(matrix, self.lins[kind[0]](x_dict[kind[0]]))
        return out


class Scattered(nn.Module):
    """The same with rows that are gathered and averaged by hand."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        into = [kind for kind in data.edge_types if kind[2] == "paper"]
        self.lins = nn.ModuleDict({k[0]: nn.Linear(WIDTHS[k[0]], CLASSES) for k in into})
        self.root = nn.Linear(WIDTHS["paper"], CLASSES)

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        out = self.root(x_dict["paper"])
        for kind, (source, target) in edge_index_dict.items():
            if kind[2] == "paper":
                sent = self.lins[kind[0]](x_dict[kind[0]])[source]
                out = out + scatter(sent, target, 0, SIZES["paper"], reduce="mean")
        return out


class NodeAttention(nn.Module):
    """Attention between relations that every node decides for itself."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        into = [kind for kind in data.edge_types if kind[2] == "paper"]
        self.convs = nn.ModuleDict({"__".join(k): sage(HIDDEN) for k in into})
        self.score = nn.Sequential(nn.Linear(HIDDEN, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))
        self.lin, self.over_all = nn.Linear(HIDDEN, CLASSES), False

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        outs = []
        for key, conv in self.convs.items():
            kind = tuple(key.split("__"))
            outs.append(conv((x_dict[kind[0]], x_dict["paper"]), edge_index_dict[kind]))
        stacked = torch.stack(outs, dim=1)
        scores = self.score(stacked)
        weights = (scores.mean(0, keepdim=True) if self.over_all else scores).softmax(dim=1)
        return self.lin((weights * stacked).sum(1))


class Wrapped(nn.Module):
    """to_hetero inside, a classifier outside."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.gnn = pyg.to_hetero(Plain(sage), data.metadata(), aggr="mean")
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, data: HeteroData) -> Tensor:
        return self.head(self.gnn(data.x_dict, data.edge_index_dict)["paper"])


class OneSet(nn.Module):
    """All types' nodes in one set, as to_homogeneous makes them; the papers' rows cut out."""

    def __init__(self, conv: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.lins = pyg.HeteroDictLinear(WIDTHS, HIDDEN)
        self.conv1, self.conv2 = conv(HIDDEN, HIDDEN), conv(HIDDEN, CLASSES)

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        x = torch.cat(list(self.lins(x_dict).values()))
        starts = dict(zip(SIZES, (0, *torch.tensor([*SIZES.values()]).cumsum(0)), strict=False))
        moves = [torch.tensor([[starts[k[0]]], [starts[k[2]]]]) for k in edge_index_dict]
        parts = [e + move for e, move in zip(edge_index_dict.values(), moves, strict=True)]
        edges = (torch.cat(parts, dim=1),)
        if hasattr(self.conv1, "num_relations"):
            counts = torch.tensor([part.shape[1] for part in parts])
            edges = (*edges, torch.repeat_interleave(counts))
        hidden = self.conv1(x, *edges).relu()
        return self.conv2(hidden, *edges)[starts["paper"] : starts["paper"] + SIZES["paper"]]


class Jumping(nn.Module):
    """Every layer's papers side by side."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.lins = pyg.HeteroDictLinear(WIDTHS, HIDDEN)
        self.convs = nn.ModuleList(by_edge_type(data, sage, HIDDEN) for _ in range(2))
        self.lin = nn.Linear(3 * HIDDEN, CLASSES)

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Tensor:
        x_dict = self.lins(x_dict)
        seen = [x_dict["paper"]]
        for conv in self.convs:
            x_dict = {k: x.relu() for k, x in conv(x_dict, edge_index_dict).items()}
            seen.append(x_dict["paper"])
        return self.lin(torch.cat(seen, dim=-1))


class Normed(nn.Module):
    """BatchNorm and a linear map for every type."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.conv = by_edge_type(data, sage, HIDDEN)
        self.norms = nn.ModuleDict({kind: pyg.BatchNorm(HIDDEN) for kind in data.node_types})
        self.lins = pyg.HeteroDictLinear(HIDDEN, CLASSES, data.node_types)

    def forward(self, x_dict: Types, edge_index_dict: Edges) -> Types:
        hidden = self.conv(x_dict, edge_index_dict)
        return self.lins({kind: self.norms[kind](x) for kind, x in hidden.items()})


def over_all_nodes(data: HeteroData) -> nn.Module:
    model = NodeAttention(data)
    model.over_all = True
    return model


def with_vectors(data: HeteroData) -> HeteroData:
    for kind in data.edge_types:
        count = data[kind].edge_index.shape[1]
        data[kind].edge_attr = torch.linspace(-1, 1, 2 * count, dtype=torch.float64).view(-1, 2)
    return data


def featureless(data: HeteroData) -> HeteroData:
    for kind in ("author", "venue"):
        del data[kind].x
        data[kind].num_nodes = SIZES[kind]
    return data


@dataclass(frozen=True)
class Model:
    """One model and what its exposure is."""

    make: Callable[[HeteroData], nn.Module]
    groups: int = INTO_PAPER
    tail: str = ""
    """What follows the mixture, as the exposure says it; empty: nothing but affine maps."""
    refused: str = ""
    """What the refusal says; empty: it is exposed."""
    change: Callable[[HeteroData], HeteroData] = field(default=lambda data: data)


MODELS: dict[str, Model] = {
    "to_hetero SAGE": Model(lambda d: pyg.to_hetero(Plain(sage), d.metadata())),
    "to_hetero GAT with skips": Model(
        lambda d: pyg.to_hetero(Plain(gat, skip=True), d.metadata(), aggr="sum"), groups=6
    ),
    "to_hetero by max": Model(
        lambda d: pyg.to_hetero(Plain(sage), d.metadata(), aggr="max"), tail="maximum"
    ),
    "to_hetero inside": Model(Wrapped),
    "HeteroConv by sum": Model(lambda d: Stacked(d, aggr="sum")),
    "HeteroConv by mean": Model(lambda d: Stacked(d, aggr="mean")),
    "HeteroConv by cat": Model(lambda d: Stacked(d, aggr="cat")),
    "HeteroConv by max": Model(lambda d: Stacked(d, aggr="max"), tail="maximum"),
    "HeteroConv by min": Model(lambda d: Stacked(d, aggr="min"), tail="maximum"),
    "HeteroConv then ReLU": Model(lambda d: Stacked(d, last="relu"), tail="relu"),
    "HeteroConv of GAT": Model(lambda d: Stacked(d, gat), groups=6),
    "mixed convolutions": Model(lambda d: Mixed()),
    "own wrapper": Model(OwnWrapper),
    "shared convolution": Model(lambda d: SharedConv()),
    "HGT": Model(Transformer, groups=6, tail="gelu"),
    "HGT of one head": Model(lambda d: Transformer(d, 1, 1), tail="gelu"),
    "HAN": Model(Paths, groups=6, tail="relu"),
    "logits for every type": Model(Heads),
    "embeddings": Model(Embedded, change=featureless),
    "edge vectors": Model(Attributed, groups=6, tail="layer_norm", change=with_vectors),
    "sparse products": Model(Products),
    "rows averaged by hand": Model(Scattered),
    "attention between relations": Model(NodeAttention, tail="softmax"),
    "to_hetero_with_bases": Model(
        lambda d: pyg.to_hetero_with_bases(
            Plain(lambda w: pyg.SAGEConv((-1, -1), w)), d.metadata(), 2, {"x": HIDDEN}
        ),
        groups=6,
    ),
    "RGCN in one set": Model(lambda d: OneSet(lambda a, b: pyg.RGCNConv(a, b, 5))),
    "FastRGCN in one set": Model(lambda d: OneSet(lambda a, b: pyg.FastRGCNConv(a, b, 5))),
    "SAGE in one set": Model(lambda d: OneSet(pyg.SAGEConv)),
    "GAT in one set": Model(lambda d: OneSet(pyg.GATConv), groups=INTO_PAPER + 1),
    "jumping knowledge": Model(Jumping, tail="relu"),
    "BatchNorm by type": Model(Normed),
    "attention over all nodes": Model(over_all_nodes),
    "max within a relation": Model(
        lambda d: Stacked(d, lambda w: pyg.SAGEConv((-1, -1), w, aggr="max")),
        refused=r"\(SAGEConv\) mixes nodes by `scatter_reduce` \(amax\), no weighted sum",
    ),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, HeteroData]:
    """A model of the gallery with random weights, and its graph."""
    torch.manual_seed(1)
    entry = MODELS[name]
    data = entry.change(graph())
    for store in (*data.node_stores, *data.edge_stores):
        for key, value in list(store.items()):
            if isinstance(value, Tensor) and value.is_floating_point():
                store[key] = value.to(dtype)
    model = entry.make(data).to(dtype)
    first_run(model, data)
    return model.eval(), data


@torch.no_grad()
def first_run(model: nn.Module, data: HeteroData) -> Any:
    """Run a model as its user does."""
    if isinstance(model, Heads | Wrapped):
        return model(data)
    if isinstance(model, Attributed):
        return model(data.x_dict, data.edge_index_dict, data.edge_attr_dict)
    return model(data.x_dict, data.edge_index_dict)
