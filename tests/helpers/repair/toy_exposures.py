"""Small exposures of all eight backbones, of a graph with everything awkward in it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import add_self_loops, coalesce, to_undirected

from gnn_repair.backbones import BACKBONES, Frozen, Shape, train_backbone
from gnn_repair.datasets import stratified_splits
from gnn_repair.exposure import Exposure, expose

NODES, FEATURES, CLASSES = 30, 9, 3


@cache
def toy_graph(dtype: torch.dtype = torch.float64, seed: int = 5) -> Data:
    """Node 0 is isolated but for its self-loop, 1 has two self-loops, 2 is a hub, 4 is all zero."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(1, NODES, (2, 2 * NODES), generator=generator)
    hub = torch.stack([torch.arange(3, NODES), torch.full((NODES - 3,), 2)])
    own = torch.tensor([[1], [1]])
    entries = coalesce(torch.cat([ends[:, ends[0] != ends[1]], hub, own], dim=1))
    entries = add_self_loops(to_undirected(entries, num_nodes=NODES), num_nodes=NODES)[0]
    y = torch.arange(NODES) % CLASSES
    x = torch.rand(NODES, FEATURES, generator=generator, dtype=torch.float64)
    x *= torch.rand(NODES, FEATURES, generator=generator) < 0.3
    x[torch.arange(NODES), y] += 0.4
    x[4] = 0
    train, val, test = stratified_splits(y, (50, 25, 25), range(2))
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    return Data(x=x.to(dtype), edge_index=entries, y=y, name="toy", **masks)


@cache
def toy_frozen(backbone: str, dtype: torch.dtype = torch.float64) -> Frozen:
    """Two briefly trained members: wrong often enough to leave something to repair."""
    architecture = BACKBONES[backbone](Shape(hidden=8, heads=2))
    budget = replace(architecture.budget, epochs=6)
    return train_backbone(architecture, toy_graph(dtype), (0, 1), device="cpu", budget=budget)


@cache
def toy_exposure(backbone: str, dtype: torch.dtype = torch.float64) -> Exposure:
    return expose(toy_frozen(backbone, dtype))


class Net(nn.Module):
    """A user's model with a buffer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = GCNConv(FEATURES, 8), GCNConv(8, CLASSES)
        self.register_buffer("offset", torch.zeros(8))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x, edge_index).relu() + self.offset, edge_index)


def net(seed: int = 0) -> Net:
    return Net(seed).double().eval()
