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


class UniMP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.TransformerConv(FEATURES, WIDTH // 2, heads=2, beta=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.conv2 = pyg.TransformerConv(WIDTH, CLASSES, heads=2, concat=False, beta=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.conv1(x, edge_index)).relu()
        return self.conv2(x, edge_index).log_softmax(-1)


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


class Relational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.RGCNConv(FEATURES, WIDTH, RELATIONS)
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.lin(self.conv(x, edge_index, edge_type).relu())


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
