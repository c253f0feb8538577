"""Models in the styles people write node classifiers in, with more after the last convolution."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric import nn as pyg
from torch_geometric.data import Data

FEATURES, WIDTH, CLASSES, RELATIONS = 6, 8, 4, 3


class Head(nn.Module):
    """Two convolutions; ``after`` follows the second, then a linear layer, then ``end``."""

    def __init__(
        self, after: Any, conv: nn.Module | None = None, end: Any = None, width: int = WIDTH
    ):
        super().__init__()
        self.conv1 = pyg.GCNConv(FEATURES, WIDTH)
        self.conv2 = conv or pyg.GCNConv(WIDTH, WIDTH)
        self.after, self.end = after, end or nn.Identity()
        self.lin = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.end(self.lin(self.after(self.conv2(x, edge_index))))


def mlp(*widths: int, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), *([nn.BatchNorm1d(after)] * norm), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


class Tuned(nn.Module):
    """Residual message passing with normalisation and jumping knowledge by sum, cat or none."""

    def __init__(self, norm: Callable[[int], nn.Module], jump: str = "", conv: Any = pyg.GCNConv):
        super().__init__()
        self.jump = jump
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.convs = nn.ModuleList(conv(WIDTH, WIDTH) for _ in range(3))
        self.skips = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(3))
        self.lin = nn.Linear(WIDTH * (3 if jump == "cat" else 1), CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, kept = self.enter(x), []
        for conv, skip, norm in zip(self.convs, self.skips, self.norms, strict=True):
            x = F.dropout(norm(conv(x, edge_index) + skip(x)).relu(), 0.5, self.training)
            kept.append(x)
        if self.jump == "sum":
            x = sum(kept)
        elif self.jump == "max":
            x = torch.stack(kept).max(0).values
        elif self.jump == "mean":
            x = torch.stack(kept, dim=-1).mean(-1)
        elif self.jump == "cat":
            x = torch.cat(kept, dim=1)
        return self.lin(x)


class GIN(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            pyg.GINConv(mlp(first, WIDTH, WIDTH, norm=norm), train_eps=True)
            for first in (FEATURES, WIDTH)
        )
        self.lin1, self.lin2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.lin2(F.dropout(self.lin1(x).relu(), 0.5, self.training))


class GCNII(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList(
            pyg.GCN2Conv(WIDTH, alpha=0.2, theta=0.5, layer=k + 1, shared_weights=False)
            for k in range(3)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = first = self.enter(x).relu()
        for conv in self.convs:
            x = F.relu(conv(F.dropout(x, 0.5, self.training), first, edge_index))
        return self.leave(x)


class Hop(pyg.MessagePassing):
    """One step of a random walk's mean."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


class HopGates(nn.Module):
    """An MLP's logits walked several hops, each hop gated by a score of its own (as DAGNN does)."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.score = mlp(FEATURES, WIDTH, CLASSES), nn.Linear(CLASSES, 1)
        self.hops = nn.ModuleList(Hop() for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        walked = [self.mlp(x)]
        for hop in self.hops:
            walked.append(hop(walked[-1], edge_index))
        every = torch.stack(walked, dim=1)
        gate = torch.sigmoid(self.score(every).squeeze(-1)).unsqueeze(1)
        return torch.matmul(gate, every).squeeze(1)


class HopAttention(nn.Module):
    """Layers attended to by a softmax over their scores."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.SAGEConv(FEATURES, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)
        self.score, self.lin = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first = self.conv1(x, edge_index).tanh()
        second = self.conv2(first, edge_index).tanh()
        both = torch.stack([first, second], dim=1)
        share = torch.softmax(self.score(both), dim=1)
        return self.lin((share * both).sum(1))


class UniMP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.TransformerConv(FEATURES, WIDTH // 2, heads=2, beta=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.conv2 = pyg.TransformerConv(WIDTH, CLASSES, heads=2, concat=False, beta=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.conv1(x, edge_index)).relu()
        return self.conv2(x, edge_index).log_softmax(-1)


class Deeper(nn.Module):
    """Pre-activation residual layers and a closing norm."""

    def __init__(self, block: str = "res+", conv: Any = None) -> None:
        super().__init__()
        self.enter, self.lin = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                (conv or pyg.GCNConv)(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), block=block
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enter(x)
        x = self.layers[0].conv(x, edge_index)
        x = self.layers[1](x, edge_index)
        return self.lin(self.layers[0].act(self.layers[0].norm(x)))


class Attended(nn.Module):
    """GAT heads side by side (or averaged), ELU, linear."""

    def __init__(self, kind: Any = pyg.GATConv, concat: bool = True) -> None:
        super().__init__()
        self.conv1 = kind(FEATURES, WIDTH, heads=2)
        self.conv2 = kind(2 * WIDTH, WIDTH, heads=3, concat=concat)
        self.lin = nn.Linear(3 * WIDTH if concat else WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.conv1(x, edge_index))
        return self.lin(F.elu(self.conv2(x, edge_index)))


class Gated(nn.Module):
    """g ⊙ conv + (1 − g) ⊙ x, the gate reading both (``both``) or the input alone."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.both = both
        self.enter, self.conv = nn.Linear(FEATURES, WIDTH), pyg.GCNConv(WIDTH, WIDTH)
        self.gate = nn.Linear(2 * WIDTH if both else WIDTH, WIDTH)
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enter(x).relu()
        h = self.conv(x, edge_index)
        gate = self.gate(torch.cat([h, x], 1) if self.both else x).sigmoid()
        h = gate * h + (1 - gate) * x
        return self.lin(h if self.both else h.relu())


class Cosine(nn.Module):
    """Cosine similarity to a prototype of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = pyg.SAGEConv(FEATURES, WIDTH), nn.Parameter(torch.tensor(3.0))
        self.prototypes = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        unit = F.normalize(self.conv(x, edge_index), dim=-1)
        return self.scale * unit @ F.normalize(self.prototypes, dim=-1).t()


class Parallel(nn.Module):
    """Two convolutions side by side, each with an activation of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.left, self.right = pyg.GCNConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)
        self.lin = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enter(x).relu()
        left, right = self.left(x, edge_index).relu(), self.right(x, edge_index).tanh()
        return self.lin(torch.cat([left, right], dim=-1))


class HalfMax(Parallel):
    """Beside a sum, a branch that aggregates by max and stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.right = pyg.SAGEConv(WIDTH, WIDTH, aggr="max")


class Relational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.RGCNConv(FEATURES, WIDTH, RELATIONS)
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.lin(self.conv(x, edge_index, edge_type).relu())


class Directed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = (
            pyg.DirGNNConv(pyg.SAGEConv(FEATURES, WIDTH)),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.conv(x, edge_index).relu())


class OverRelations(nn.Module):
    """The larger of two directions, channel by channel."""

    def __init__(self) -> None:
        super().__init__()
        kinds = {("n", kind, "n"): pyg.SAGEConv(FEATURES, CLASSES) for kind in "ab"}
        self.conv = pyg.HeteroConv(kinds, aggr="max")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edges = {("n", "a", "n"): edge_index, ("n", "b", "n"): edge_index.flip(0)}
        return self.conv({"n": x}, edges)["n"]


class InPlace(nn.Module):
    """Everything that can be overwritten is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.skip = pyg.GCNConv(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH)
        self.act, self.lin = nn.ReLU(inplace=True), nn.Linear(WIDTH + 2, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.skip(x)
        h += self.conv(x, edge_index)
        wide = h.view(-1, 2, WIDTH // 2)
        wide[:, 0].mul_(2.0)
        wide[:, 1, 0] = 0.5
        h = self.act(h)
        out = x.new_zeros(x.shape[0], WIDTH + 2)
        out[:, :2] = x[:, :2]
        out[:, 2:] = h
        out.sub_(0.1)
        return self.lin(out)


class HeadWise(nn.Module):
    """Heads as an axis of their own, mapped together and one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(FEATURES, 2 * WIDTH)
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.own = nn.Parameter(torch.randn(2, WIDTH, CLASSES))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        heads = self.conv(x, edge_index).view(-1, 2, WIDTH)
        heads = self.shared(heads).relu()
        return torch.einsum("nhd,hdc->nhc", heads, self.own).mean(1)


class Tied(nn.Module):
    """One convolution used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.conv = nn.Linear(FEATURES, WIDTH), pyg.GCNConv(WIDTH, WIDTH)
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(2):
            x = x + self.conv(x.relu(), edge_index)
        return self.lin(x.relu())


class ByHand(nn.Module):
    """Normalisation written out by hand."""

    def __init__(self, root_mean_square: bool) -> None:
        super().__init__()
        self.conv, self.lin = pyg.SAGEConv(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.root_mean_square = root_mean_square

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv(x, edge_index)
        if self.root_mean_square:
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-3)
        else:
            h = (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1e-3)
        return self.lin(h)


class Detour(nn.Module):
    """A step outside PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(FEATURES, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.conv(x, edge_index)
        return torch.from_numpy(out.numpy().clip(0)).to(out)


class Layer(nn.Module):
    """A graph convolution without PyG: the matrix is multiplied by hand."""

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor], inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(inputs, WIDTH)),
            nn.Parameter(torch.randn(WIDTH)),
        )
        self.product = product

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return self.product(adj, x @ self.weight) + self.bias


class ByMatrix(nn.Module):
    """Two such layers, a skip connection, an activation and a linear layer."""

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor], after: Any) -> None:
        super().__init__()
        self.first, self.second = Layer(product, FEATURES), Layer(product, WIDTH)
        self.after, self.lin = after, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = self.first(x, adj).relu()
        return self.lin(self.after(self.second(x, adj) + x)).log_softmax(1)

    def by_hand(self, x: Tensor, adj: Tensor, other: Tensor) -> Tensor:
        """The logits with another matrix in the second layer."""
        x = (adj @ x @ self.first.weight + self.first.bias).relu()
        second = other @ (x @ self.second.weight) + self.second.bias
        return self.lin(self.after(second + x)).log_softmax(1)


class Net(nn.Module):
    def __init__(self, classes: int = 4, keeps: Data | None = None) -> None:
        super().__init__()
        self.conv, self.lin = pyg.SAGEConv(FEATURES, WIDTH), nn.Linear(WIDTH, classes)
        self.keeps = keeps

    def logits(self, x: Tensor, edge_index: Tensor, mixed: Tensor | None = None) -> Tensor:
        """The output, or what it would be with another mean of neighbours."""
        h = self.conv(x, edge_index)
        if mixed is not None:
            h = self.conv.lin_l(mixed) + self.conv.lin_r(x)
        return self.lin(h.relu())


class Paired(Net):
    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits(x, edge_index), x.sum()


class Keeping(Net):
    def forward(self) -> Tensor:
        assert self.keeps is not None
        return self.logits(self.keeps.x, self.keeps.edge_index)


class OneLogit(Net):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.logits(x, edge_index)


class ByData(Net):
    def forward(self, data: Data) -> Tensor:
        return self.logits(data.x, data.edge_index)


CONVENTIONS: dict[str, Callable[[Data], tuple[nn.Module, dict[str, Any]]]] = {
    "a pair": lambda data: (Paired(), {}),
    "a pair, said how": lambda data: (
        Paired(),
        {"forward": lambda model, data: model(data.x, data.edge_index)[0]},
    ),
    "keeps its data": lambda data: (Keeping(keeps=data), {}),
    "one logit": lambda data: (OneLogit(1), {}),
    "takes data": lambda data: (ByData(), {}),
}
