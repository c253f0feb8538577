"""Graphs whose classes are told by one kind of evidence that the frozen model does not have."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, to_undirected

from gnn_repair.backbones import BACKBONES, Frozen, Shape, train_backbone
from gnn_repair.budget import LADDER as BUDGET
from gnn_repair.datasets import stratified_splits
from gnn_repair.exposure import Exposure, expose
from gnn_repair.repair import EvidenceLadder

NODES, CLASSES = 240, 3
LADDER = EvidenceLadder(hidden=16, folds=3, budget=replace(BUDGET, epochs=60, learning_rate=0.02))


@cache
def planted(told_by: str, splits: int = 1) -> tuple[Frozen, Data]:
    """A model trained on noise, and the graph as the ladder may see it.

    ``told_by`` is ``features`` (x shows the class), ``labels`` (neighbours share it) or
    ``nothing`` (the model knows the class already).
    """
    generator = torch.Generator().manual_seed(4)
    y = torch.randint(CLASSES, (NODES,), generator=generator)
    ends = torch.randint(NODES, (2, 12 * NODES), generator=generator)
    alike = y[ends[0]] == y[ends[1]]
    keep = alike if told_by == "labels" else torch.arange(12 * NODES) < 4 * NODES
    ends = ends[:, keep & (ends[0] != ends[1])]
    entries = add_self_loops(to_undirected(ends, num_nodes=NODES), num_nodes=NODES)[0]
    noise = torch.randn(NODES, 8, generator=generator)
    if told_by == "nothing":
        noise[torch.arange(NODES), y] += 6
        entries = torch.arange(NODES).expand(2, -1)
    train, val, test = stratified_splits(y, (30, 40, 30), range(splits))
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    blind = Data(x=noise, edge_index=entries, y=y, name=told_by, classes=CLASSES, **masks)
    architecture = BACKBONES["gcn"](Shape(hidden=8))
    budget = replace(architecture.budget, epochs=60 if told_by == "nothing" else 5)
    frozen = train_backbone(architecture, blind, device="cpu", budget=budget)
    seen = blind.clone()
    if told_by == "features":
        seen.x = torch.randn(NODES, 8, generator=generator)
        seen.x[torch.arange(NODES), y] += 4
    return frozen, seen


@cache
def planted_exposure(told_by: str, splits: int = 1) -> Exposure:
    return expose(planted(told_by, splits)[0])


def fit(ladder: EvidenceLadder, told_by: str, splits: int = 1, y: torch.Tensor | None = None):
    """A ladder fitted to it."""
    data, exposure = planted(told_by, splits)[1], planted_exposure(told_by, splits)
    labels = data.y if y is None else y
    masks = data.train_mask, data.val_mask
    return ladder.fit(exposure, labels, *masks, data=data, device="cpu")


@cache
def climbed(told_by: str, splits: int = 1):
    return fit(LADDER, told_by, splits)


def test_accuracy(logits: torch.Tensor, data: Data) -> float:
    right = (logits.argmax(2) == data.y) & data.test_mask.t()
    return float((right.sum(1) / data.test_mask.sum(0)).mean())


test_accuracy.__test__ = False  # type: ignore[attr-defined]
