"""Graphs, several kinds of node, labels and values: the same answers on a GPU as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import (
    GATConv,
    GraphConv,
    HeteroConv,
    SAGEConv,
    global_add_pool,
    global_mean_pool,
)

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.datasets import generate_publications, motif_graphs, planted_labels, planted_values
from tests.helpers.models.output_models import Network

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHORT = Budget(6, None, 1e-2, 1e-4, decoupled=True, epoch_zero=False)


class Pooled(nn.Module):
    def __init__(self, hidden: bool):
        super().__init__()
        self.conv = GATConv(8, 16, heads=2)
        last = nn.Linear(64, 3)
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), last) if hidden else last

    def forward(self, x, edge_index, batch):
        x = self.conv(x, edge_index).relu()
        return self.head(torch.cat([global_mean_pool(x, batch), global_add_pool(x, batch)], 1))


class Typed(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        into = [kind for kind in kinds if kind[2] == "paper"]
        self.conv = HeteroConv({kind: SAGEConv((-1, -1), 32) for kind in into}, aggr="sum")
        self.lin = nn.Linear(32, 6)

    def forward(self, x_dict, edge_index_dict):
        return self.lin(self.conv(x_dict, edge_index_dict)["paper"])


def doubled(data):
    return data.apply(lambda value: value.double() if value.is_floating_point() else value)


def on_both(model, data, **options):
    """The exposure made on the CPU, and the one made on the GPU."""
    model = model.double().eval()
    here = gr.expose(model, data, **options)
    there = gr.expose(copy.deepcopy(model).cuda(), copy.copy(data).to("cuda"), **options)
    assert there.rows.is_cuda
    assert there.residual is not None and there.residual <= 1e-12
    torch.testing.assert_close(here.to("cuda").logits().cpu(), here.logits())
    torch.testing.assert_close(there.frozen_logits.cpu(), here.frozen_logits, rtol=1e-9, atol=1e-9)
    return here, there


def agree(answers, *names):
    for name in names:
        gap = getattr(answers[0], name) - getattr(answers[1], name)
        assert abs(gap).max() < 1e-9, name


@pytest.mark.parametrize("hidden", [False, True])
def test_graphs(hidden):
    torch.manual_seed(0)
    batch = doubled(Batch.from_data_list(motif_graphs()[:60]))
    pair = on_both(Pooled(hidden), batch)
    answers = [gr.solve(e, batch.y) for e in pair]
    assert list(answers[0].verdict) == list(answers[1].verdict)
    if not hidden:  # after a head a margin is that of the witness that was found first
        agree(answers, "margin")
    assert bool(answers[1].check(pair[1]))
    mask, repair = torch.arange(60) % 2 == 0, gr.Reweighting(budget=SHORT, dropout=0.0)
    told = [repair.fit(e, batch.y, mask, ~mask).member_logits(e).cpu() for e in pair]
    torch.testing.assert_close(*told, rtol=1e-4, atol=1e-4)


def test_several_kinds_of_node():
    torch.manual_seed(0)
    data = doubled(generate_publications())
    model = Typed(data.edge_types).double()
    model(data.x_dict, data.edge_index_dict)
    pair = on_both(model, data, node_type="paper")
    y, there = data["paper"].y, pair[1]
    agree([gr.solve(e, y) for e in pair], "margin")
    train, val = data["paper"].train_mask[:, 0], data["paper"].val_mask[:, 0]
    fitted = gr.SetTranslation(budget=SHORT).fit(there, y, train, val)
    served = gr.repaired(copy.deepcopy(model).cuda().eval(), fitted, node_type="paper")
    moved = copy.copy(data).to("cuda")
    with torch.no_grad():
        said = served(moved.x_dict, moved.edge_index_dict)
    torch.testing.assert_close(said, fitted.member_logits(there)[0], rtol=1e-6, atol=1e-6)


def test_labels_and_values():
    torch.manual_seed(0)
    data = doubled(planted_labels())
    pair = on_both(Network(6, conv=SAGEConv), data)
    agree([gr.solve(e, data.y) for e in pair], "margin")
    fitted = gr.SetTranslation(budget=SHORT).fit(pair[1], data.y, data.train_mask, data.val_mask)
    assert fitted.predict(pair[1]).shape == data.y.shape
    values = on_both(GraphConv(1, 1), doubled(planted_values()))
    agree([gr.value_range(e) for e in values], "low", "high")
