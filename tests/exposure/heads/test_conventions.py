"""Tails of models that are called, or that answer, in other ways than logits = model(x, edges)."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.exposure import expose
from tests.helpers.models.gallery import graph
from tests.helpers.models.gallery_models import CONVENTIONS


@pytest.mark.parametrize("name", CONVENTIONS)
@torch.no_grad()
def test_the_same_tail_however_a_model_is_called(name: str) -> None:
    torch.manual_seed(2)
    data = graph()
    model, settings = CONVENTIONS[name](data)
    model.double().eval()
    exposure = expose(model, data, **settings)
    assert exposure.head is not None
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
