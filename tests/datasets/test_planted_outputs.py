"""The planted truths hold by arithmetic alone, and ranges find them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import GraphConv

import gnn_repair as gr
from gnn_repair.datasets.planted_outputs import planted_labels, planted_links, planted_values


def test_labels_with_evidence_have_a_speaker_and_an_even_mean_overhears_it():
    data = planted_labels()
    heard = data.x[data.edge_index[0]].view(800, 5, 6)
    assert torch.equal((heard > 0).any(1), data.evidence)
    assert (data.evidence <= data.y).all()
    missed = data.evidence & (heard.mean(1) <= 0)
    assert missed.sum() > 0.8 * data.evidence.sum()
    assert (data.train_mask.int() + data.val_mask.int() + data.test_mask.int() == 1).all()
    assert torch.equal(planted_labels().x, data.x)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GraphConv(1, 1, bias=False)
        nn.init.ones_(self.conv.lin_rel.weight)
        nn.init.zeros_(self.conv.lin_root.weight)

    def forward(self, x, edge_index, edge_weight):
        return self.conv(x, edge_index, edge_weight).squeeze(-1)


def test_planted_intervals_and_what_lies_outside_are_found():
    data = planted_values()
    exposure = gr.expose(Sum().double(), data)
    assert exposure.outputs == "values"
    assert exposure.residual <= 1e-12
    ranges = gr.value_range(exposure)
    assert ranges.low == pytest.approx(data.low.numpy(), abs=1e-12)
    assert ranges.high == pytest.approx(data.high.numpy(), abs=1e-12)
    assert (ranges.distance(data.y) > 1e-9).tolist() == data.outside.tolist()
    assert 0 < data.outside.sum() < 400


def test_friends_are_neighbours_of_the_targets_community():
    data = planted_links()
    community = data.x.argmax(1)
    senders = data.edge_index[0].view(300, 4)
    source, target = data.edge_label_index
    same = community[senders[source]] == community[target].unsqueeze(1)
    assert torch.equal(same.any(1), data.friend)
    assert torch.equal(community[source] == community[target], data.edge_label)
    assert (source != target).all()
