"""A small graph with class-informative features."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
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
