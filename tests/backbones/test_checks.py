"""A graph that cannot be trained on is refused before anything is trained, in one sentence."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.backbones import BACKBONES, Shape, train_backbone
from gnn_repair.errors import InputError, SplitError
from gnn_repair.training import Budget

BRIEF = Budget(1, None, 0.01, 0.0)


def refused(graph, message: str, error: type[Exception] = InputError, **options):
    with pytest.raises(error, match=message):
        train_backbone("gcn", graph, device="cpu", budget=BRIEF, **options)


def test_overlapping_masks(graph):
    graph.val_mask[:, 2] |= graph.train_mask[:, 2]
    refused(graph, "train_mask and val_mask overlap: node .* of split 2", SplitError)


def test_nobody_needs_a_test_mask(graph):
    del graph.test_mask
    frozen = train_backbone("gcn", graph, [0], device="cpu", budget=BRIEF)
    assert frozen.num_members == 1


def test_numpy_numbers_name_splits(graph):
    backbone = BACKBONES["gcn"](Shape(hidden=4))
    frozen = train_backbone(backbone, graph, torch.tensor([2, 0]).numpy(), budget=BRIEF)
    assert frozen.splits == (2, 0)
    assert all(type(split) is int for split in frozen.splits)
