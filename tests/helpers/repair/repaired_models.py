"""Models of several kinds, a graph for each, and a repair that is fitted to it."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    SAGEConv,
    SGConv,
    TAGConv,
)

import gnn_repair as gr
from gnn_repair.budget import Budget

CLASSES, WIDTH = 3, 6


class TwoLayers(nn.Module):
    """A convolution, ReLU, another, and a linear head."""

    def __init__(self, first, last, width=8, tail=None):
        super().__init__()
        self.first, self.last = first, last
        self.head = tail or nn.Linear(width, CLASSES)

    def forward(self, x, edge_index):
        return self.head(self.last(self.first(x, edge_index).relu(), edge_index))


class Residual(nn.Module):
    """A skip around the last convolution, LayerNorm and ReLU before the head."""

    def __init__(self):
        super().__init__()
        self.enter, self.conv = nn.Linear(WIDTH, 8), GCNConv(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x, edge_index):
        x = self.enter(x).relu()
        return self.head(self.norm(x + self.conv(x, edge_index)).relu())


class Predicts(nn.Module):
    """An MLP, then personalised PageRank."""

    def __init__(self):
        super().__init__()
        self.lin, self.prop = nn.Linear(WIDTH, CLASSES), APPNP(3, 0.1)

    def forward(self, x, edge_index):
        return self.prop(self.lin(x), edge_index)


def mlp():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES))


KINDS = {
    "gcn": lambda: TwoLayers(GCNConv(WIDTH, 8), GCNConv(8, 8)),
    "gat": lambda: TwoLayers(GATConv(WIDTH, 4, heads=2), GATConv(8, 4, heads=2)),
    "gatv2": lambda: TwoLayers(GATv2Conv(WIDTH, 8), GATv2Conv(8, 8)),
    "sage": lambda: TwoLayers(SAGEConv(WIDTH, 8), SAGEConv(8, 8)),
    "graphconv": lambda: TwoLayers(GraphConv(WIDTH, 8), GraphConv(8, 8)),
    "sgc": lambda: SGConv(WIDTH, CLASSES, K=2),
    "tag": lambda: TwoLayers(GCNConv(WIDTH, 8), TAGConv(8, 8, K=2)),
    "appnp": Predicts,
    "gin": lambda: TwoLayers(GCNConv(WIDTH, 8), GINConv(nn.Identity()), tail=mlp()),
    "residual": Residual,
}


def graph(seed, nodes):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, WIDTH, generator=generator)
    edges = torch.randint(nodes, (2, 3 * nodes), generator=generator)
    edges = torch.cat([edges, edges.flip(0)], 1)
    y = torch.randint(CLASSES, (nodes,), generator=generator)
    return Data(x=x, edge_index=edges, y=y)


def fitted_on(model, data, repair=None):
    repair = repair or gr.SetTranslation(budget=Budget(20, None, 0.05, 0.0), hidden=8)
    exposure = gr.expose(model, data)
    first = torch.arange(data.num_nodes) % 2 == 0
    return repair.fit(exposure, data.y, first, ~first)
