"""Tails of models that are called, or that answer, in other ways than logits = model(x, edges)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gallery import graph
from gallery_models import FEATURES, WIDTH
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from gnn_repair.exposure import TailedExposure, expose


class Net(nn.Module):
    def __init__(self, classes: int = 4, keeps: Data | None = None) -> None:
        super().__init__()
        self.conv, self.lin = pyg.SAGEConv(FEATURES, WIDTH), nn.Linear(WIDTH, classes)
        self.keeps = keeps

    def logits(self, x: Tensor, edge_index: Tensor, mixed: Tensor | None = None) -> Tensor:
        """The output, or what it would be with another mean of neighbours."""
        h = self.conv(x, edge_index)
        if mixed is not None:
            h = self.conv.lin_l(mixed) + self.conv.lin_r(x)
        return self.lin(h.relu())


class Paired(Net):
    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits(x, edge_index), x.sum()


class Keeping(Net):
    def forward(self) -> Tensor:
        assert self.keeps is not None
        return self.logits(self.keeps.x, self.keeps.edge_index)


class OneLogit(Net):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.logits(x, edge_index)


class ByData(Net):
    def forward(self, data: Data) -> Tensor:
        return self.logits(data.x, data.edge_index)


CASES: dict[str, Callable[[Data], tuple[nn.Module, dict[str, Any]]]] = {
    "a pair": lambda data: (Paired(), {}),
    "a pair, said how": lambda data: (
        Paired(),
        {"forward": lambda model, data: model(data.x, data.edge_index)[0]},
    ),
    "keeps its data": lambda data: (Keeping(keeps=data), {}),
    "one logit": lambda data: (OneLogit(1), {}),
    "takes data": lambda data: (ByData(), {}),
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_same_tail_however_a_model_is_called(name: str) -> None:
    torch.manual_seed(2)
    data = graph()
    model, settings = CASES[name](data)
    model.double().eval()
    exposure = expose(model, data, **settings)
    assert isinstance(exposure, TailedExposure)
    lam = torch.zeros_like(exposure.coefficients)  # every node listens to one neighbour only
    mixed = torch.zeros_like(data.x)
    for node in range(data.num_nodes):
        start, stop = int(exposure.segments[node]), int(exposure.segments[node + 1])
        if stop > start:
            lam[0, start] = 1.0
            mixed[node] = data.x[exposure.sources[exposure.rows[start]]]
    expected = model.logits(data.x, data.edge_index, mixed)
    found = exposure.logits(lam)[0]
    assert exposure.replay is not None
    torch.testing.assert_close(exposure.replay(lam[0]), found)
    if expected.shape[1] == 1:
        found, expected = found[:, 1:] - found[:, :1], expected
    torch.testing.assert_close(found, expected)
