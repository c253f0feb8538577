"""Further styles in which people write node classifiers, each in words of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric import nn as pyg
from torch_geometric.utils import scatter, softmax

FEATURES, WIDTH, CLASSES = 6, 8, 4


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


class Detached(nn.Module):
    """Hops that are cut off from the gradient in place, as random propagation writes them."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("adj", matrix)
        self.lin1, self.lin2 = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)

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
