"""Graphs with several labels, or with a value: the extremes are those of their nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool

import gnn_repair as gr


class Told(nn.Module):
    """Nodes say K numbers; the graph takes their sum or mean, and a constant."""

    def __init__(self, outputs: int, mean: bool) -> None:
        super().__init__()
        self.conv, self.lin = GCNConv(4, 5), nn.Linear(5, outputs)
        self.pool = global_mean_pool if mean else global_add_pool

    def said(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index).relu()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.lin(self.pool(self.said(x, edge_index), batch))


def graphs(y: Any) -> list[Data]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for number in range(6):
        size = 4 + number % 3
        x = torch.randn(size, 4, generator=generator, dtype=torch.float64)
        line = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        made.append(Data(x=x, edge_index=line, y=y(number)))
    return made


def extremes(model: Any, data: list[Data], mean: bool) -> tuple[Tensor, Tensor]:
    """What all mass on one node gives at least and at most, [B, K]: the corners of a simplex."""
    low, high = [], []
    with torch.no_grad():
        for graph in data:
            mass = 1.0 if mean else float(graph.num_nodes)
            corners = model.lin(mass * model.said(graph.x, graph.edge_index))
            low.append(corners.amin(0))
            high.append(corners.amax(0))
    return torch.stack(low), torch.stack(high)


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_labels_of_graphs(mean: bool) -> None:
    flags = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1]])
    data = graphs(lambda number: flags[number : number + 1])
    torch.manual_seed(5)
    model = Told(3, mean).double().eval()
    exposure = gr.expose(model, data)
    assert exposure.outputs == "labels" and exposure.graph_starts is not None
    low, high = extremes(model, data, mean)
    within = torch.where(flags > 0, high > 0, low < 0)
    found = gr.reach(exposure, flags)
    assert (found.micro.hits, found.micro.total) == (int(within.sum()), 18)
    ranges = gr.value_range(exposure)
    torch.testing.assert_close(torch.as_tensor(ranges.low).view(6, 3), low, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.as_tensor(ranges.high).view(6, 3), high, rtol=1e-9, atol=1e-9)
    assert ranges.sentence(0).startswith("graph 0, ") and "node " in ranges.sentence(0)


def test_values_of_graphs() -> None:
    data = graphs(lambda number: torch.tensor([0.3 + number]))
    torch.manual_seed(6)
    model = Told(1, mean=True).double().eval()
    exposure = gr.expose(model, data)
    assert exposure.outputs == "values"
    low, high = extremes(model, data, mean=True)
    ranges = gr.value_range(exposure)
    torch.testing.assert_close(torch.as_tensor(ranges.low), low[:, 0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.as_tensor(ranges.high), high[:, 0], rtol=1e-9, atol=1e-9)
