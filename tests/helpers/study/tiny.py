"""A graph and a protocol small enough to run real cases in tests."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, to_undirected

from gnn_repair.datasets import stratified_splits

TINY = (
    "backbones.hidden=8",
    "backbones.heads=2",
    "backbones.short.epochs=12",
    "backbones.long.epochs=12",
    "repairs.hidden=8",
    "repairs.reweighting.epochs=4",
    "repairs.set_translation.epochs=4",
    "repairs.node_translation.epochs=4",
    "repairs.refit_head.epochs=6",
    "repairs.evidence_ladder.epochs=4",
    "repairs.smoothing_layers=2",
    "batches.size=16",
)


def tiny_graph(nodes: int = 60, classes: int = 3) -> Data:
    """A ring with chords, features that tell the class up to noise, three splits."""
    generator = torch.Generator().manual_seed(3)
    ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    chords = torch.randint(nodes, (2, nodes), generator=generator)
    chords = chords[:, chords[0] != chords[1]]
    entries = to_undirected(torch.cat([ring, chords], dim=1), num_nodes=nodes)
    y = torch.randint(classes, (nodes,), generator=generator)
    x = torch.randn(nodes, 6, generator=generator)
    x[torch.arange(nodes), y] += 1.0
    train, val, test = stratified_splits(y, (50, 25, 25), range(3))
    return Data(
        x=x,
        edge_index=add_self_loops(entries, num_nodes=nodes)[0],
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        name="mine",
    )
