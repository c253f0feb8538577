"""Repairs of models that classify graphs: the recipients are graphs, the messages their nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.repair import CorrectAndSmooth, TemperatureScaling
from gnn_repair.repair.inputs import RepairInputs, alone_logits

QUICK = Budget(epochs=60, patience=None, learning_rate=1e-2, weight_decay=0.0, epoch_zero=True)


class Net(nn.Module):
    """Node vectors are the features, so that what a repair may learn is known."""

    def __init__(self, nonlinear: bool) -> None:
        super().__init__()
        self.conv = GCNConv(6, 6, add_self_loops=True)
        wide = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
        self.head = wide if nonlinear else nn.Linear(12, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.conv(x, edge_index)
        return self.head(torch.cat([global_mean_pool(x, batch), global_add_pool(x, batch)], 1))


def graphs(count: int, seed: int = 0) -> list[Data]:
    """One node a graph shouts its class in the last three features; a decoy shouts another."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        size, label = 4 + number % 4, number % 3
        x = 0.1 * torch.randn(size, 6, generator=generator)
        x[0, label] = 1.0
        x[1, 3 + (label + 1) % 3] = 2.0
        line = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        made.append(Data(x=x, edge_index=line, y=torch.tensor([label])))
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["linear", "tailed"])
def world(request: pytest.FixtureRequest) -> Any:
    data = graphs(90)
    y = torch.cat([graph.y for graph in data])
    torch.manual_seed(1)
    model = Net(request.param).eval()
    train, val = torch.arange(90) < 45, (torch.arange(90) >= 45) & (torch.arange(90) < 60)
    return model, data, gr.expose(model, data), y, train, val


def test_a_node_alone(world: Any) -> None:
    """What describes a node: the logits of its graph if every pool heard it alone."""
    model, data, exposure, *_ = world
    batch = Batch.from_data_list(data)
    with torch.no_grad():
        x = model.conv(batch.x, batch.edge_index)
        size = torch.bincount(batch.batch)[batch.batch].unsqueeze(1)
        told = model.head(torch.cat([x, size * x], 1)).double()
        mean, total = global_mean_pool(x, batch.batch), global_add_pool(x, batch.batch)
        by_mean = model.head(torch.cat([x, total[batch.batch]], 1)).double()
        by_sum = model.head(torch.cat([mean[batch.batch], size * x], 1)).double()
    alone = alone_logits(exposure, exposure.sources, batch.num_nodes)[0]
    torch.testing.assert_close(alone, told, rtol=1e-4, atol=1e-4)
    # Where each pool's message counts as a sender of its own, the other pool stays as it is.
    slot = torch.repeat_interleave(exposure.segments.diff())
    row, node = exposure.rows.long(), exposure.sources[exposure.rows.long()].long()
    rows = exposure.contributions.shape[1] if exposure.head is None else len(row)
    apart = alone_logits(exposure, torch.arange(rows), rows + 1)[0]
    for group, said in enumerate((by_mean, by_sum)):
        own = slot % 2 == group
        torch.testing.assert_close(apart[row[own]], said[node[own]], rtol=1e-4, atol=1e-4)
    assert bool((apart[-1] == 0).all())


def test_a_node_in_two_pools_is_one_message(world: Any) -> None:
    """It is described once, by what both pools would say of it, whichever comes first."""
    _, _, exposure, *_ = world
    described = RepairInputs(exposure).messages.rows[0][:, -3:].double()
    alone = alone_logits(exposure, exposure.sources, int(exposure.graph_starts[-1]))[0]
    assert len(described) == len(alone)
    torch.testing.assert_close(described, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [gr.Reweighting, gr.SetTranslation, gr.NodeTranslation])
def test_repairs_learn_what_the_graphs_show(world: Any, kind: Any) -> None:
    _, _, exposure, y, train, val = world
    repair = kind(budget=QUICK, hidden=16, dropout=0.0)
    fitted = repair.fit(exposure, y, train, val)
    test = ~(train | val)
    before = (exposure.frozen_logits[0].argmax(1) == y)[test].float().mean()
    after = (fitted.predict(exposure) == y)[test].float().mean()
    assert after > before + 0.2
    if kind is gr.Reweighting:
        weights = fitted.coefficients(exposure)
        torch.testing.assert_close(exposure.masses(weights), exposure.mass, rtol=1e-9, atol=0)


def test_a_repaired_module_takes_batches(world: Any, tmp_path: Path) -> None:
    model, _, exposure, y, train, val = world
    fitted = gr.Reweighting(budget=QUICK, hidden=8).fit(exposure, y, train, val)
    module = gr.repaired(model, fitted)
    other = graphs(20, seed=5)
    wanted = fitted.member_logits(gr.expose(model, other))[0].float()
    batch = Batch.from_data_list(other)
    for _ in range(2):  # the first call probes, the second takes the model apart as known
        found = module(batch.x, batch.edge_index, batch.batch)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    fewer = Batch.from_data_list(other[:7])
    found = module(fewer.x, fewer.edge_index, fewer.batch)
    torch.testing.assert_close(found, wanted[:7], rtol=1e-4, atol=1e-4)
    changed = module.changes(batch.x, batch.edge_index, batch.batch)
    told = gr.expose(model, other).frozen_logits[0].argmax(1)
    assert changed["graph"].tolist() == (told != wanted.argmax(1)).nonzero().view(-1).tolist()
    module.save(tmp_path / "repaired")
    again = gr.RepairedModel.load(tmp_path / "repaired", Net(not isinstance(model.head, nn.Linear)))
    found = again(fewer.x, fewer.edge_index, fewer.batch)
    torch.testing.assert_close(found, wanted[:7], rtol=1e-4, atol=1e-4)


def test_refitted_heads_and_temperatures(world: Any) -> None:
    _, _, exposure, y, train, val = world
    budget = Budget(epochs=200, patience=None, learning_rate=5e-2, weight_decay=0.0)
    fitted = gr.RefitHead(budget=budget).fit(exposure, y, train, val)
    right = (fitted.predict(exposure) == y)[~(train | val)].float().mean()
    assert right > 0.8  # the head's input says the class linearly
    TemperatureScaling().fit(exposure, y, train, val)


@pytest.mark.parametrize("repair", [CorrectAndSmooth(), gr.EvidenceLadder()])
def test_what_needs_links_between_recipients_says_so(world: Any, repair: Any) -> None:
    _, _, exposure, y, train, val = world
    with pytest.raises(InputError, match="this exposure classifies graphs, which have none"):
        repair.fit(exposure, y, train, val)
