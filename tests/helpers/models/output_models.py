"""Models of classes, labels and values."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

NODES = 40


class Network(nn.Module):
    def __init__(self, outputs: int, after=None, conv=GCNConv) -> None:
        super().__init__()
        self.first, self.last = conv(6, 8), conv(8, outputs)
        self.after = after or (lambda z: z)

    def forward(self, x, edge_index):
        return self.after(self.last(self.first(x, edge_index).relu(), edge_index))


def graph(y=None, dtype=torch.float32):
    torch.manual_seed(3)
    edges = torch.randint(0, NODES, (2, 150))
    return Data(x=torch.randn(NODES, 6).to(dtype), edge_index=edges, y=y)


def several(columns):
    draw = torch.Generator().manual_seed(0)
    return (torch.rand(NODES, columns, generator=draw) > 0.5).float()


class PpiGat(nn.Module):
    """Heads averaged at the end, linear skips."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.lin1 = GATConv(6, 4, heads=4), nn.Linear(6, 16)
        self.conv2, self.lin2 = GATConv(16, 5, heads=3, concat=False), nn.Linear(16, 5)

    def forward(self, x, edge_index):
        x = nn.functional.elu(self.conv1(x, edge_index) + self.lin1(x))
        return self.conv2(x, edge_index) + self.lin2(x)


class OgbSage(nn.Module):
    """Dropout between layers, logits at the end, as the examples for proteins have it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(6, 8), SAGEConv(8, 8), SAGEConv(8, 5)])

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = nn.functional.dropout(conv(x, edge_index).relu(), training=self.training)
        return self.convs[-1](x, edge_index)


class HeadedGcn(nn.Module):
    """A linear head on a normalised last layer, probabilities at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(6, 8), GCNConv(8, 8)
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, data):
        x = self.conv1(data.x, data.edge_index).relu()
        return torch.sigmoid(self.head(self.norm(self.conv2(x, data.edge_index))))
