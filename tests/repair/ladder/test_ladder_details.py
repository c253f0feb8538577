"""The evidence a ladder gathers, by hand and from both sides."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from toy_exposures import toy_exposure, toy_graph

from gnn_repair.errors import InputError
from gnn_repair.repair.base import prepare
from gnn_repair.repair.evidence import LabelEvidence, evidence_of
from gnn_repair.repair.targets import check_graph_data


def test_the_graph_that_is_given_must_be_the_exposed_one():
    exposure, graph = toy_exposure("gcn"), toy_graph()
    check_graph_data(exposure, graph)
    check_graph_data(exposure, Data(edge_index=graph.edge_index))
    check_graph_data(exposure, Data(edge_index=torch.empty(2, 0, dtype=torch.long)))
    odd = graph.x.clone()
    odd[3, 1] = float("inf")
    for data, words in [
        (Data(x=graph.x), "no edge_index"),
        (Data(edge_index=graph.edge_index.double()), "no edge_index"),
        (Data(edge_index=graph.edge_index[0]), "no edge_index"),
        (Data(edge_index=graph.edge_index[[0, 1, 0]]), "no edge_index"),
        (Data(edge_index=graph.edge_index - 1), "holds -1; nodes are counted from 0"),
        (Data(edge_index=graph.edge_index + 1), "data has 31 nodes but the exposure has 30"),
        (Data(x=graph.x[:29], edge_index=graph.edge_index[:, :1]), "data has 29 nodes"),
        (Data(x=graph.x[:, 0], edge_index=graph.edge_index), "not a table"),
        (Data(x=odd, edge_index=graph.edge_index), "NaN or infinite"),
    ]:
        with pytest.raises(InputError, match=words):
            check_graph_data(exposure, data)


def test_neighbours_labels_by_plain_loops():
    """P and P² without the way back, as dense matrices."""
    entries = torch.tensor([[0, 1, 1, 2, 3, 3, 4, 2], [1, 0, 2, 1, 3, 1, 3, 4]])
    known = torch.tensor([[0, 2, 1, 2, 2], [2, 1, 2, 0, 1]])
    found = LabelEvidence(entries, known, 2, torch.float64).histograms(known)
    adjacency = torch.zeros(5, 5, dtype=torch.float64)
    for source, recipient in entries.t().tolist():
        if source != recipient:
            adjacency[recipient, source] += 1
    walk = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    twice = walk @ walk
    back = twice.diagonal()
    away = (twice - back.diag()) / torch.where(back < 1, 1 - back, 1.0).unsqueeze(1)
    for s in range(2):
        shown = torch.nn.functional.one_hot(known[s], 3).double()
        torch.testing.assert_close(found[s], torch.cat([walk @ shown, away @ shown], 1))


def test_evidence_is_of_training_and_validation_nodes():
    graph, exposure = toy_graph(), toy_exposure("gcn")
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    task = prepare(exposure, graph.y, *masks, None, "cpu")
    expected = torch.where((masks[0] | masks[1]).t(), graph.y, exposure.num_classes)
    assert torch.equal(evidence_of(task).labels.known, expected)
    assert evidence_of(task).features is None
    told = evidence_of(prepare(exposure, graph.y, *masks, graph, "cpu"))
    assert told.features.width == graph.x.shape[1] and told.labels.width == 8
