"""Details of pools that few models show: who reads whom, and what is called what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pool_models import CLASSES, WIDTH, Body, Pooled, batch_of, ring
from torch import Tensor, nn
from torch_geometric.nn import global_add_pool, global_mean_pool

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused


def test_a_pool_that_one_later_pool_reads_is_not_final_though_another_does_not() -> None:
    class Gated(Body):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2 * WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.nodes(x, edge_index)
            whole = global_add_pool(x, batch)
            parts = [global_mean_pool(x.sin() + whole[batch], batch), global_mean_pool(x, batch)]
            return self.head(torch.cat(parts, dim=1))

    torch.manual_seed(0)
    exposure = gr.expose(Gated().double(), batch_of())
    assert [group.rule[:9] for group in exposure.groups] == ["mean pool", "mean pool"]
    assert exposure.residual is not None and exposure.residual <= 1e-12


def test_gates_that_add_up_to_less_than_one_are_no_attention() -> None:
    def gates(x: Tensor, batch: Tensor) -> Tensor:
        return global_add_pool(x * (x[:, :1].sigmoid() / 10), batch)

    torch.manual_seed(0)
    exposure = gr.expose(Pooled(gates).double(), batch_of())
    assert float(exposure.mass.max()) < 1
    assert exposure.groups[0].rule.startswith("weighted pool: α = the node's weight")


def test_batches_whose_weights_differ_in_sign_are_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def signed(x: Tensor, batch: Tensor) -> Tensor:
        return global_add_pool(x * x[:, :1].tanh(), batch)

    class Signed(Pooled):
        def nodes(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return x + 0 * self.conv1(x, edge_index).sum()

    torch.manual_seed(0)
    model: Any = Signed(signed, wide=5)
    graphs = [ring(5, i, i % 3) for i in range(6)]
    for i, graph in enumerate(graphs):
        graph.x[:, 0] = graph.x[:, 0].abs() * (1 if i < 3 else -1)
    monkeypatch.setattr("gnn_repair.exposure.pooling.batches.LARGEST", 15)
    words = "the pools of one batch make other groups than those of another; pass these graphs"
    with pytest.raises(ExposureRefused, match=words):
        gr.expose(model, [*graphs[:3], graphs[0], graphs[3], graphs[1]])
