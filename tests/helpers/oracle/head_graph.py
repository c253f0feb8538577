"""A small graph with class-informative features, and models with tails for it."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv
from torch_geometric.utils import add_self_loops, coalesce, to_undirected


def small_graph(nodes: int = 30, classes: int = 3) -> Data:
    """Thirty nodes, noisy one-hot features, masks with one split."""
    generator = torch.Generator().manual_seed(5)
    entries = torch.randint(0, nodes, (2, 2 * nodes), generator=generator)
    entries = coalesce(to_undirected(entries[:, entries[0] != entries[1]]))
    y = torch.arange(nodes) % classes
    x = 0.6 * torch.randn(nodes, 5, generator=generator)
    x[torch.arange(nodes), y] += 0.7
    mask = torch.arange(nodes)[:, None] % 3
    return Data(
        x=x, y=y, edge_index=add_self_loops(entries, num_nodes=nodes)[0], num_nodes=nodes,
        train_mask=mask == 0, val_mask=mask == 1, test_mask=mask == 2,
    )  # fmt: skip


HIDDEN, CLASSES = 8, 3


class Model(nn.Module):
    """Two layers, then what ``tail`` says."""

    def __init__(self, convolution, tail, head=HIDDEN):
        super().__init__()
        self.first, self.last = GCNConv(5, HIDDEN), convolution()
        self.tail = tail
        self.norm, self.batch = nn.LayerNorm(HIDDEN), nn.BatchNorm1d(HIDDEN)
        self.head = nn.Linear(head, CLASSES)

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        return self.head(self.tail(self, self.last(h, edge_index), h))


def gcn():
    return GCNConv(HIDDEN, HIDDEN)


def gin():
    return GINConv(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)))


def gat():
    return GATConv(HIDDEN, HIDDEN // 2, heads=2)


MODELS = {
    "relu": (gcn, lambda m, a, h: a.relu()),
    "residual": (gcn, lambda m, a, h: (m.batch(a) + h).relu()),
    "layer norm": (gcn, lambda m, a, h: m.norm(a + h).relu()),
    "jk max": (gcn, lambda m, a, h: torch.maximum(a.relu(), h)),
    "gin": (gin, lambda m, a, h: a.relu()),
    "sage": (lambda: SAGEConv(HIDDEN, HIDDEN, normalize=True), lambda m, a, h: a.relu()),
    "gat": (gat, lambda m, a, h: nn.functional.elu(a)),
    "gate": (gcn, lambda m, a, h: h.sigmoid() * a.tanh()),
    "softplus": (gcn, lambda m, a, h: nn.functional.softplus(a, threshold=19)),
}


def model_of(name: str) -> Model:
    torch.manual_seed(3)
    return Model(*MODELS[name]).eval()
