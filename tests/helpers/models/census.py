"""The census of further styles: what each of them gives, or the cause of its refusal."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, weight_norm
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import scatter, softmax

NODES, FEATURES, WIDTH, CLASSES = 24, 6, 8, 4
AFFINE, TAILED = "affine", "tail"


@dataclass(frozen=True)
class Style:
    """One way to write a model."""

    build: Callable[[Data], Any]
    gives: str
    """``affine``, ``tail``, or a part of the sentence it is refused with."""


def graph(dtype: torch.dtype = torch.float64) -> Data:
    """Random and directed, with self-loops, edge features and labels."""
    generator = torch.Generator().manual_seed(5)
    chance = torch.rand(NODES, NODES, generator=generator)
    chance.fill_diagonal_(0)
    index = (chance < 0.16).nonzero().t().contiguous()
    return Data(
        x=torch.randn(NODES, FEATURES, generator=generator, dtype=dtype),
        edge_index=index,
        edge_attr=torch.rand(index.shape[1], 3, generator=generator, dtype=dtype),
        y=torch.arange(NODES) % CLASSES,
    )


# Models -------------------------------------------------------------------------------------------


class Two(nn.Module):
    """A first convolution, a second, and a function of what it gives and of the layers before."""

    def __init__(
        self, last: Callable[..., nn.Module] = pyg.GCNConv, width: int = WIDTH, **more: Any
    ):
        super().__init__()
        self.conv1 = pyg.GCNConv(FEATURES, WIDTH)
        self.conv2 = last(WIDTH, WIDTH, **more)
        self.lin = nn.Linear(width, CLASSES)

    def after(self, x: Tensor, before: Tensor) -> Any:
        return self.lin(x)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        before = self.conv1(x, edge_index).relu()
        return self.after(self.conv2(before, edge_index), before)


class Functional(Two):
    """F.layer_norm with weights given, then GELU."""

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        weight = torch.linspace(0.5, 1.5, WIDTH, dtype=x.dtype)
        return self.lin(F.gelu(F.layer_norm(x, (WIDTH,), weight)))


class Einsum(Two):
    """Two experts mixed by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(2, WIDTH, WIDTH))

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        return self.lin(torch.einsum("nd,kde->nke", x, self.experts).relu().mean(1))


class Selected(Two):
    """index_select of channels, and of all nodes in their own order."""

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        x = x.index_select(0, torch.arange(x.shape[0]))
        return self.lin(x.index_select(1, torch.arange(WIDTH).flip(0)).relu())


class WeightNorm(Two):
    """Linear layers with weight_norm or spectral_norm, old and new style."""

    def __init__(self, norm: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.inner = norm(nn.Linear(WIDTH, WIDTH))

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        return self.lin(self.inner(x).relu())


class HopAttention(Two):
    """nn.MultiheadAttention over the layers of a node."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        layers = torch.stack([before, x.relu()], dim=1)
        mixed, _ = self.attention(layers, layers, layers, need_weights=False)
        return self.lin(mixed.mean(1))


class NodeAttention(Two):
    """nn.MultiheadAttention over all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        mixed, _ = self.attention(x[None], x[None], x[None], need_weights=False)
        return self.lin(mixed[0])


class HopSoftmax(Two):
    """Softmax weights over hops, by node."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        layers = torch.stack([before, x], dim=1)
        gate = self.score(layers.tanh()).softmax(dim=1)
        return self.lin((gate * layers).sum(1))


class Jumping(nn.Module):
    """JumpingKnowledge of PyG."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(FEATURES, WIDTH), pyg.GCNConv(WIDTH, WIDTH)
        self.jump = pyg.JumpingKnowledge(mode, WIDTH, 2)
        self.lin = nn.Linear(2 * WIDTH if mode == "cat" else WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first = self.conv1(x, edge_index).relu()
        return self.lin(self.jump([first, self.conv2(first, edge_index).relu()]))


class Normed(Two):
    """A normalisation behind the last convolution."""

    def __init__(self, norm: nn.Module, how: str = "") -> None:
        super().__init__()
        self.norm, self.how = norm, how

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        if self.how == "message":
            return self.lin(self.norm(before, x).relu())
        if self.how == "channels":
            return self.lin(self.norm(x[:, None])[:, 0].relu())
        return self.lin(self.norm(x).relu())


class Answer(Two):
    """Returns something else than a tensor."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def after(self, x: Tensor, before: Tensor) -> Any:
        x = x.relu()
        logits = self.lin(x)
        return {
            "dict": lambda: {"logits": logits, "embedding": x},
            "dict of one": lambda: {"out": logits},
            "tuple": lambda: (logits, x),
            "embedding first": lambda: (x, logits),
            "dataclass": lambda: Output(logits, x),
            "list": lambda: [logits],
        }[self.kind]()


@dataclass
class Output:
    """What some libraries return."""

    logits: Tensor
    hidden: Tensor


class DenseBuffer(nn.Module):
    """Keeps its adjacency, N × N, as a buffer."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("adj", matrix)
        self.lin1, self.lin2 = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.adj @ self.lin1(x)).relu()
        return self.lin2(torch.matmul(self.adj, x).relu())


class ByScatter(nn.Module):
    """Messages gathered and added without MessagePassing."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.lin1, self.lin2 = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lin = nn.Linear(WIDTH, CLASSES)
        self.score = nn.Linear(2 * WIDTH, 1)

    def spread(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        sent, size = x[source], x.shape[0]
        if self.how == "index_add":
            return torch.zeros_like(x).index_add_(0, target, sent)
        if self.how == "scatter_add":
            index = target.unsqueeze(-1).expand_as(sent)
            return torch.zeros_like(x).scatter_add(0, index, sent)
        if self.how == "mean":
            return scatter(sent, target, 0, size, reduce="mean")
        if self.how == "attention":
            pair = torch.cat([x[target], sent], dim=1)
            weight = softmax(F.leaky_relu(self.score(pair), 0.2), target, num_nodes=size)
            return scatter(weight * sent, target, 0, size, reduce="sum")
        if self.how == "edge":
            return torch.zeros_like(x).index_add_(0, target, (sent + x[target]).relu())
        if self.how == "statement":
            out, gate = x.clone(), torch.sigmoid((x[source] * x[target]).sum(1, keepdim=True))
            out.index_add_(0, target, gate * sent)
            return out
        return scatter(sent, target, 0, size, reduce=self.how)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.spread(self.lin1(x), edge_index).relu()
        return self.lin(self.spread(self.lin2(x), edge_index).relu())


class PlainEnd(ByScatter):
    """The same without an activation at the end; degrees on both sides, by hand."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        degree = torch.bincount(target, minlength=x.shape[0]).clamp(min=1).to(x.dtype)
        norm = degree[source].rsqrt() * degree[target].rsqrt()
        x = self.spread(self.lin1(x), edge_index).relu()
        x = self.lin2(x)
        sent = norm.unsqueeze(1) * x[source]
        mixed = torch.zeros_like(x).index_add(0, target, sent)
        return self.lin(mixed).log_softmax(dim=-1)


class Unpacked(Two):
    """Features and edges come as a pair, logits go beside their log_softmax."""

    def forward(self, data: Any) -> Any:
        x, edge_index = data
        z = self.lin(self.conv2(self.conv1(x, edge_index).relu(), edge_index))
        return z, z.log_softmax(dim=-1)


class Detached(DenseBuffer):
    """Hops that are cut off from the gradient in place, as random propagation writes them."""

    def forward(self, x: Tensor) -> Tensor:
        x, total = x * 0.5, x * 0.5
        for _ in range(2):
            x = torch.spmm(self.adj, x).detach_()
            total.add_(x)
        return self.lin2(self.lin1(total.div_(3).detach_()).relu())


class AdjacencyRows(nn.Module):
    """A linear layer on the rows of the graph itself, beside one on features."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.rows, self.own = nn.Linear(nodes, WIDTH), nn.Linear(FEATURES, WIDTH)
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return self.lin((self.rows(adj) + self.own(x)).relu())


class Unseen(Two):
    """The last layer mixes nodes where nobody can watch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.attention = how, nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.enter = nn.Linear(FEATURES, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enter(x)
        if self.how == "loop":
            source, target = edge_index
            heard = [x[source[target == node]].sum(0) for node in range(len(x))]
            return self.lin(torch.stack(heard))
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).fill_diagonal_(False)
        hidden[edge_index[1], edge_index[0]] = False
        mixed, _ = self.attention(x[None], x[None], x[None], attn_mask=hidden)
        return self.lin(mixed[0])


class EdgeFeatures(nn.Module):
    """Messages that hear the edge's features, then an activation."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(FEATURES, WIDTH), conv
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.lin(F.elu(self.conv2(x, edge_index, edge_attr)))


class Half(Two):
    """Half precision inside."""

    def after(self, x: Tensor, before: Tensor) -> Tensor:
        return self.lin(x.relu())


# What they give ----------------------------------------------------------------------------------


def degrees(data: Data) -> torch.Tensor:
    return torch.bincount(torch.bincount(data.edge_index[1], minlength=NODES))


def adjacency(data: Data) -> torch.Tensor:
    dense = torch.zeros(NODES, NODES, dtype=data.x.dtype)
    dense[data.edge_index[1], data.edge_index[0]] = 1.0
    return dense / dense.sum(1, keepdim=True).clamp(min=1)


def pna(aggregators: list[str]) -> Callable[[Data], nn.Module]:
    def build(data: Data) -> nn.Module:
        more = {"aggregators": aggregators, "scalers": ["identity", "amplification"]}
        return Two(pyg.PNAConv, deg=degrees(data), **more)

    return build


def several(*aggregators: str) -> Callable[[Data], nn.Module]:
    """SAGEConv with several aggregators side by side."""
    return lambda data: Two(pyg.SAGEConv, aggr=list(aggregators))


def plain(kind: Callable[..., nn.Module], *args: Any, **more: Any) -> Callable[[Data], nn.Module]:
    return lambda data: kind(*args, **more)


def rows_of_graph(data: Data) -> nn.Module:
    data.adj = adjacency(data)
    return AdjacencyRows(NODES)


def sequential(data: Data) -> nn.Module:
    return pyg.Sequential(
        "x, edge_index",
        [
            (pyg.GCNConv(FEATURES, WIDTH), "x, edge_index -> x"), nn.ReLU(),
            (pyg.GCNConv(WIDTH, WIDTH), "x, edge_index -> x"), nn.ReLU(),
            nn.Linear(WIDTH, CLASSES),
        ],
    )  # fmt: skip


def hetero(data: Data) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.HeteroConv({("a", "to", "a"): pyg.SAGEConv(FEATURES, CLASSES)})

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            return self.conv(x_dict, edge_index_dict)

    return Net()


STYLES: dict[str, Style] = {
    "PNA, mean and sum": Style(pna(["mean", "sum"]), AFFINE),
    "PNA with max and std": Style(pna(["mean", "max", "std"]), TAILED),
    "SAGE with mean and sum": Style(several("mean", "sum"), AFFINE),
    "SAGE with softmax aggregation": Style(plain(Two, pyg.SAGEConv, aggr="softmax"), AFFINE),
    "SAGE with median": Style(plain(Two, pyg.SAGEConv, aggr="median"), "`sort`"),
    "F.layer_norm": Style(plain(Functional), TAILED),
    "einsum experts": Style(plain(Einsum), TAILED),
    "index_select": Style(plain(Selected), TAILED),
    "weight_norm": Style(plain(WeightNorm, weight_norm), TAILED),
    "spectral_norm by parametrization": Style(
        plain(WeightNorm, parametrizations.spectral_norm), TAILED
    ),
    "MultiheadAttention over layers": Style(plain(HopAttention), TAILED),
    "MultiheadAttention over nodes": Style(plain(NodeAttention), AFFINE),
    "softmax over hops": Style(plain(HopSoftmax), TAILED),
    "JK lstm": Style(plain(Jumping, "lstm"), TAILED),
    "JK max": Style(plain(Jumping, "max"), TAILED),
    "BatchNorm": Style(plain(Normed, nn.BatchNorm1d(WIDTH)), TAILED),
    "PairNorm": Style(plain(Normed, pyg.PairNorm()), TAILED),
    "GraphNorm": Style(plain(Normed, pyg.GraphNorm(WIDTH)), TAILED),
    "InstanceNorm of PyG": Style(plain(Normed, pyg.InstanceNorm(WIDTH)), "`norm` (InstanceNorm)"),
    "MessageNorm": Style(plain(Normed, pyg.MessageNorm(True), "message"), TAILED),
    "returns a dict with logits": Style(plain(Answer, "dict"), TAILED),
    "returns (logits, embedding)": Style(plain(Answer, "tuple"), TAILED),
    "returns (embedding, logits)": Style(plain(Answer, "embedding first"), TAILED),
    "returns a dataclass": Style(plain(Answer, "dataclass"), TAILED),
    "returns a list": Style(plain(Answer, "list"), TAILED),
    "dense adjacency as a buffer": Style(lambda data: DenseBuffer(adjacency(data)), TAILED),
    "index_add by hand": Style(plain(ByScatter, "index_add"), TAILED),
    "scatter_add by hand": Style(plain(ByScatter, "scatter_add"), TAILED),
    "scatter mean by hand": Style(plain(ByScatter, "mean"), TAILED),
    "attention by hand": Style(plain(ByScatter, "attention"), TAILED),
    "scatter max by hand": Style(plain(ByScatter, "max"), "`scatter_reduce` (amax)"),
    "edge messages by hand": Style(plain(ByScatter, "edge"), TAILED),
    "gated by hand, statement form": Style(plain(ByScatter, "statement"), TAILED),
    "index_add by hand, nothing after": Style(plain(PlainEnd, "index_add"), AFFINE),
    "linear end, root weights": Style(plain(Two, pyg.SAGEConv), AFFINE),
    "NNConv": Style(
        lambda data: EdgeFeatures(pyg.NNConv(WIDTH, WIDTH, nn.Linear(3, WIDTH * WIDTH))), TAILED
    ),
    "Sequential of PyG": Style(sequential, TAILED),
    "DataParallel": Style(lambda data: nn.DataParallel(Functional()).cpu(), TAILED),
    "TorchScript": Style(
        lambda data: torch.jit.script(nn.Sequential(nn.Linear(6, 4))), "TorchScript"
    ),
    "torch.compile": Style(lambda data: torch.compile(Functional()), "_orig_mod"),
    "a pair unpacked, logits beside their log_softmax": Style(plain(Unpacked), AFFINE),
    "hops detached in place": Style(lambda data: Detached(adjacency(data)), TAILED),
    "linear layer on adjacency rows": Style(rows_of_graph, TAILED),
    "EGConv": Style(plain(Two, pyg.EGConv, num_heads=2, num_bases=2), AFFINE),
    "EGConv with several aggregators": Style(
        plain(Two, pyg.EGConv, num_heads=2, aggregators=["sum", "mean", "max"]), AFFINE
    ),
    "loop over nodes": Style(plain(Unseen, "loop"), AFFINE),
    "MultiheadAttention with the graph as mask": Style(plain(Unseen, "attention"), AFFINE),
    "HeteroConv": Style(hetero, "node types"),
    "half precision": Style(lambda data: Half().half(), "convert it with model.float()"),
}


HALF = {"half precision": torch.float16}


def built(name: str):
    torch.manual_seed(3)
    data = graph(HALF.get(name, torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old spellings of weight_norm, and TorchScript
        model = STYLES[name].build(data)
    if name not in HALF and name != "TorchScript":
        model = model.to(torch.float64)
    return model.eval(), data
