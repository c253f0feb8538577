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


def test_a_test_node_that_trains(graph):
    graph.test_mask |= graph.train_mask
    refused(graph, "train_mask and test_mask overlap", SplitError)


def test_features_that_are_not_finite(graph):
    graph.x[7, 3] = torch.nan
    refused(graph, "at node 7, feature 3")


def test_unlabelled_training_nodes(graph):
    node = int(graph.train_mask[:, 0].nonzero()[0])
    graph.y[node] = -1
    refused(graph, f"train_mask of split . holds node {node}, which is unlabelled", SplitError)


def test_labels_beyond_the_classes(graph):
    graph.classes = 2
    refused(graph, "y is 2 at node")


def test_missing_and_foreign_pieces(graph):
    refused({"x": graph.x}, "data is dict; give a PyG Data")
    refused(None, "data is NoneType; give a PyG Data")
    graph.edge_index[0, 0] = 99
    refused(graph, "edge_index names node 99")
    del graph.val_mask
    refused(graph, "no tensor val_mask")


def test_masks_of_another_type(graph):
    graph.train_mask = graph.train_mask.float()
    refused(graph, "train_mask is torch.float32", SplitError)


def test_nobody_needs_a_test_mask(graph):
    del graph.test_mask
    frozen = train_backbone("gcn", graph, [0], device="cpu", budget=BRIEF)
    assert frozen.num_members == 1


def test_arguments(graph):
    refused(graph, r"splits is 0; give several, such as \[0\]", splits=0)
    refused(graph, "split 0.5 does not exist", splits=[0.5])
    refused(graph, "seed is -1", seed=-1)
    with pytest.raises(InputError, match="budget is 5; give a Budget"):
        train_backbone("gcn", graph, budget=5)
    for wrong in (None, BACKBONES["gcn"], 3):
        with pytest.raises(InputError, match="give a name such as 'gcn' or an instance"):
            train_backbone(wrong, graph)


def test_numpy_numbers_name_splits(graph):
    backbone = BACKBONES["gcn"](Shape(hidden=4))
    frozen = train_backbone(backbone, graph, torch.tensor([2, 0]).numpy(), budget=BRIEF)
    assert frozen.splits == (2, 0)
    assert all(type(split) is int for split in frozen.splits)
