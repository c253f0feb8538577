"""The record of a run alone gives every convolution's groups, sources and coefficients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from convolutions import CASES, NODES, Net, graph
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from gnn_repair.exposure import Exposure, TailedExposure
from gnn_repair.exposure.model_on_data import on_data
from gnn_repair.exposure.model_state import resting
from gnn_repair.exposure.record.exposing import RecordWanted, expose_subject


def recorded(model: nn.Module, data: Any, hops: str = "paths") -> Exposure | TailedExposure:
    with resting(model), torch.no_grad():
        return expose_subject(on_data(model, data, None, None), RecordWanted(hops)).exposure


def dense(exposure: Exposure) -> list[Tensor]:
    """One [N, N] matrix (recipient × source) per group."""
    count = exposure.num_groups
    place = torch.repeat_interleave(torch.arange(NODES * count), exposure.segments.diff())
    out = torch.zeros(count, NODES, NODES, dtype=torch.float64)
    source = exposure.sources[exposure.rows.long()].long()
    alpha = exposure.coefficients[0].double()
    return list(out.index_put_((place % count, place // count, source), alpha, accumulate=True))


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_groups_are_those_of_the_formula(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(5)
    net, data = Net(case).double().eval(), graph()
    for parameter in net.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    exposure = recorded(net, data, case.hops)
    assert isinstance(exposure, Exposure)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    expected = case.operators(net.conv2, net.hidden(data), data)
    for found, theirs in zip(dense(exposure), expected, strict=True):
        torch.testing.assert_close(found, theirs, rtol=1e-12, atol=1e-12)


class Beside(nn.Module):
    """A convolution, a maximum over all nodes and an earlier convolution beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(5, 8), pyg.SAGEConv(8, 8, root_weight=False)
        self.lin = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv1(x, edge_index).relu()
        return self.lin(self.conv2(h, edge_index) + h + h.amax(0))


def test_what_mixes_nodes_beside_the_final_sums_is_named() -> None:
    torch.manual_seed(0)
    source = graph()
    exposure = recorded(Beside().double(), Data(x=source.x, edge_index=source.edge_index))
    assert isinstance(exposure, Exposure) and [g.name for g in exposure.groups] == ["conv2"]
    assert "`conv1` (GCNConv) (scatter_add)" in exposure.fixed and "(amax)" in exposure.fixed
