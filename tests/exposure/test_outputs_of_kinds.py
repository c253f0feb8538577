"""Labels and values of whole graphs, and of nodes of one of several types."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, HeteroConv, SAGEConv, global_add_pool

import gnn_repair as gr


class Pooled(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(4, 6), nn.Linear(6, outputs)

    def nodes(self, x, edge_index):
        return self.conv(x, edge_index).relu()

    def forward(self, x, edge_index, batch):
        out = self.head(global_add_pool(self.nodes(x, edge_index), batch))
        return out.squeeze(-1) if out.shape[1] == 1 else out


def graphs(columns: int) -> list[Data]:
    torch.manual_seed(1)
    found = []
    for _ in range(20):
        size = int(torch.randint(3, 7, (1,)))
        y = torch.randn(1) if columns == 1 else (torch.rand(1, columns) > 0.5).float()
        edges = torch.randint(0, size, (2, 2 * size))
        found.append(Data(x=torch.randn(size, 4).double(), edge_index=edges, y=y.double()))
    return found


def test_a_graphs_value_lies_between_its_nodes_extremes():
    many, model = graphs(1), Pooled(1).double()
    exposure = gr.expose(model, many)
    assert exposure.outputs == "values"
    assert exposure.residual <= 1e-12
    ranges = gr.value_range(exposure)
    assert all(ranges.check(exposure))
    batch = Batch.from_data_list(many)
    with torch.no_grad():
        alone = model.nodes(batch.x, batch.edge_index) @ model.head.weight[0]
        bias = float(model.head.bias)
    for i in range(20):
        own = alone[batch.batch == i]
        assert ranges.low[i] == pytest.approx(bias + len(own) * float(own.min()), abs=1e-12)
        assert ranges.high[i] == pytest.approx(bias + len(own) * float(own.max()), abs=1e-12)
    assert ranges.sentence(0).startswith("graph 0, value 0 is ")
    in_parts = gr.expose(model, DataLoader(many, batch_size=7))
    assert in_parts.outputs == "values"
    assert gr.value_range(in_parts).high == pytest.approx(ranges.high, abs=1e-12)


def test_labels_of_graphs_are_reached_repaired_and_served(tmp_path):
    many, model = graphs(3), Pooled(3).double()
    exposure = gr.expose(model, many)
    y = torch.cat([graph.y for graph in many])
    solution = gr.solve(exposure, y)
    assert solution.check(exposure).ok
    assert str(solution[0]).startswith("graph 0, label 0 ")
    part = torch.arange(20) % 2 == 0
    budget = gr.SetTranslation().budget
    fitted = gr.SetTranslation(budget=type(budget)(3, None, 1e-2, 0.0)).fit(
        exposure, y, part, ~part, device="cpu"
    )
    batch = Batch.from_data_list(many)
    served = gr.repaired(model, fitted)(batch.x, batch.edge_index, batch.batch)
    assert torch.allclose(served, fitted.logits(exposure), atol=1e-9)
    solution.save(tmp_path / "graphs")
    assert str(type(solution).load(tmp_path / "graphs")[0]) == str(solution[0])


def test_labels_of_one_of_several_node_types():
    torch.manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(30, 4).double(), torch.randn(20, 3).double()
    writes = torch.stack([torch.randint(0, 20, (90,)), torch.randint(0, 30, (90,))])
    data["author", "writes", "paper"].edge_index = writes
    data["paper"].y = (torch.rand(30, 3) > 0.5).double()

    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kinds = {kind: SAGEConv((3, 4), 3) for kind in data.edge_types}
            self.conv = HeteroConv(kinds)

        def forward(self, x_dict, edge_index_dict):
            return self.conv(x_dict, edge_index_dict)["paper"]

    model = Typed().double()
    exposure = gr.expose(model, data)
    assert exposure.outputs == "labels"
    solution = gr.solve(exposure, torch.ones(30, 3))
    assert solution.check(exposure).ok
    conv = next(iter(model.conv.convs.values()))
    with torch.no_grad():
        said = data["author"].x @ conv.lin_l.weight.t()
        fixed = conv.lin_r(data["paper"].x) + conv.lin_l.bias
    for i in range(len(solution)):
        node, label = int(solution.node[i]), int(solution.target[i])
        heard = said[writes[0, writes[1] == node], label]
        loudest = float(heard.max()) if heard.numel() else 0.0
        assert solution.margin[i] == pytest.approx(float(fixed[node, label]) + loudest, abs=1e-12)
    assert "author" in str(solution[int(solution.reachable.argmax())])
