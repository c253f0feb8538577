"""Details of pools that few models show: who reads whom, and what is called what."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import global_add_pool, global_mean_pool

import gnn_repair as gr
from tests.helpers.models.pool_models import CLASSES, WIDTH, Body, Pooled, batch_of


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
    assert exposure.groups[0].rule.startswith("weighted pool: α = a weight")
