"""Aggregates that are no plain sum or mean: what messages add is reweighted, the rest held."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.utils import scatter, softmax

from gnn_repair import SetTranslation, repaired
from gnn_repair.budget import Budget
from gnn_repair.exposure import expose
from tests.helpers.models.spelled_models import LINEAR, NODES, graph, pna, reweighted

WIDTH, CLASSES = 6, 4


def run_with(model: Any, data: Any, ratio: Tensor) -> Tensor:
    """The model run with each message multiplied by its ratio [N, N]."""
    edges: list[Tensor] = []
    handles = [
        model.register_propagate_forward_pre_hook(lambda _, given: edges.append(given[0])),
        model.register_message_forward_hook(
            lambda _, given, out: (
                out * ratio[edges[-1][1], edges[-1][0]].view(-1, *[1] * (out.dim() - 1))
            )
        ),
    ]
    try:
        with torch.no_grad():
            out: Tensor = model(data.x, data.edge_index)
    finally:
        for handle in handles:
            handle.remove()
    return out


@pytest.mark.parametrize("name", LINEAR)
def test_linear_aggregates_are_the_model_run_on_reweighted_messages(name: str) -> None:
    torch.manual_seed(1)
    model, data = LINEAR[name]().double().eval(), graph()
    exposure = expose(model, data)
    assert exposure.head is None and exposure.scope == ""
    if len(exposure.groups) > 1:  # a weight of its own for a message's part in each aggregate
        return
    lam, ratio = reweighted(exposure)
    truth = run_with(model, data, ratio[0])
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-9, atol=1e-9)
    assert float((truth - exposure.frozen_logits[0]).abs().max()) > 1e-3


def test_signed_messages_narrower_than_the_classes_leave_the_bias_fixed() -> None:
    torch.manual_seed(1)

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.head = nn.Linear(5, 6), nn.Linear(6, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            source, target = edge_index
            signed = torch.where(source > target, -0.5, 1.0).to(x)
            weight = torch.stack([signed, 2 * signed, 3 * signed], dim=1).unsqueeze(2)
            sent = weight * self.lin(x).view(-1, 3, 2)[source]  # three heads of two channels
            logits: Tensor = self.head(scatter(sent, target, dim_size=len(x)).flatten(1))
            return logits

    model = Narrow().double()
    exposure = expose(model, graph())
    assert exposure.num_groups == 6
    everywhere = model.head.bias.detach().expand(NODES, CLASSES)
    torch.testing.assert_close(exposure.fixed_logits[0], everywhere)


def test_what_is_no_sum_is_held_as_the_model_has_it() -> None:
    torch.manual_seed(1)
    model = pyg.SAGEConv(5, CLASSES, aggr=["mean", "max", "sum"]).double()
    data = graph()
    exposure = expose(model, data)
    assert exposure.head is None
    assert "held as it is: the forward of SAGEConv (scatter_reduce)" in str(exposure)
    lam, ratio = reweighted(exposure)
    source, target = data.edge_index
    sent = data.x[source] * ratio[0, target, source].unsqueeze(1)
    parts = [
        scatter(rows, target, 0, NODES, reduce=how)
        for rows, how in ((sent, "mean"), (data.x[source], "max"), (sent, "sum"))
    ]
    with torch.no_grad():
        truth = model.lin_l(torch.cat(parts, dim=1)) + model.lin_r(data.x)
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("heat", [1.0, 0.4])
def test_weights_of_a_softmax_aggregator_are_held(heat: float) -> None:
    torch.manual_seed(1)
    aggregator = pyg.aggr.SoftmaxAggregation(t=heat, learn=heat != 1.0)
    model, data = pyg.SAGEConv(5, CLASSES, aggr=aggregator).double(), graph()
    exposure = expose(model, data)
    assert exposure.head is None
    lam, ratio = reweighted(exposure)
    source, target = data.edge_index
    weights = softmax(data.x[source] * float(aggregator.t), target, num_nodes=NODES)
    sent = weights * data.x[source] * ratio[0, target, source].unsqueeze(1)
    with torch.no_grad():
        mixed = scatter(sent, target, 0, NODES, reduce="sum")
        truth = model.lin_l(mixed) + model.lin_r(data.x)
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-9, atol=1e-9)


def test_a_tail_after_held_parts_is_replayed_with_them() -> None:
    torch.manual_seed(1)
    conv = pna(["mean", "max", "std"])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = conv, nn.Linear(CLASSES, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(self.conv(x, edge_index).relu())

    data = graph()
    exposure = expose(Model().double(), data)
    assert exposure.head is not None
    assert "held as it is: `conv` (PNAConv) (scatter_reduce)" in str(exposure)
    draw = torch.rand(1, exposure.num_terms, generator=torch.Generator().manual_seed(3)).double()
    lengths = exposure.segments.diff()
    scale = (exposure.mass / exposure.masses(draw).clamp(min=1e-300)).view(-1)
    lam = draw[0] * torch.repeat_interleave(scale, lengths)
    torch.testing.assert_close(
        exposure.replay(lam), exposure.logits(lam.unsqueeze(0))[0], rtol=1e-9, atol=1e-9
    )
    assert float((exposure.replay(lam) - exposure.frozen_logits[0]).abs().max()) > 1e-4


def test_a_repair_of_it_is_served() -> None:
    torch.manual_seed(1)
    model, data = pyg.SAGEConv(5, CLASSES, aggr=["mean", "max"]), graph()
    data.x, data.y = data.x.float(), torch.arange(NODES) % CLASSES
    mask = torch.arange(NODES) % 2 == 0
    exposure = expose(model, data)
    budget = Budget(epochs=3, patience=3, learning_rate=0.01, weight_decay=0.0)
    fitted = SetTranslation(budget=budget).fit(exposure, data.y, mask, ~mask)
    served = repaired(model, fitted)(data.x, data.edge_index)
    assert torch.equal(served.argmax(1), fitted.predict(exposure))


class Multiplying(pyg.SAGEConv):
    """A class of its own: PyG shares what it compiles for one among all convolutions of a class,
    and one with several aggregators cannot multiply."""


def test_values_of_a_sparse_graph_are_weights_where_it_is_multiplied_with() -> None:
    torch.manual_seed(1)
    model, data = Multiplying(5, CLASSES).double(), graph()
    weights = torch.rand(data.edge_index.shape[1], generator=torch.Generator().manual_seed(2)) + 0.5
    shape = (NODES, NODES)
    adj = torch.sparse_coo_tensor(data.edge_index.flip(0), weights.double(), shape).coalesce()
    exposure = expose(model, {"x": data.x, "adj_t": adj.to_sparse_csr()}, forward=_by_matrix)
    assert exposure.head is None
    count = (adj.to_dense() != 0).sum(1, keepdim=True).clamp(min=1)
    dense = adj.to_dense() / count
    owner = torch.repeat_interleave(torch.arange(NODES), exposure.segments.diff())
    source = exposure.sources[exposure.rows.long()].long()
    torch.testing.assert_close(exposure.coefficients[0], dense[owner, source])


def _by_matrix(model: Any, data: Any) -> Tensor:
    out: Tensor = model(data["x"], data["adj_t"])
    return out


class Weighed(nn.Module):
    """A product that is added, halved, to what the node itself says."""

    def __init__(self, adjacency):
        super().__init__()
        self.own, self.sent = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
        self.adjacency = adjacency

    def forward(self, x):
        return torch.addmm(self.own(x), self.adjacency, self.sent(x), beta=0.5, alpha=2.0)


def test_what_a_product_is_added_to_is_scaled_as_the_model_scales_it():
    torch.manual_seed(0)
    adjacency = torch.rand(6, 6, dtype=torch.float64)
    model, x = Weighed(adjacency), torch.randn(6, 4, dtype=torch.float64)
    exposure = expose(model, {"x": x})
    torch.testing.assert_close(exposure.mass[0, :, 0], 2 * adjacency.sum(1))
    torch.testing.assert_close(exposure.fixed_logits[0], 0.5 * model.own(x).detach())


@pytest.mark.parametrize("conv", [pyg.GCNConv, pyg.SAGEConv])
def test_what_messages_contribute_is_in_double_precision_of_a_float32_model(conv: Any) -> None:
    torch.manual_seed(0)
    data, last, linear = graph(), conv(5, 8), nn.Linear(8, CLASSES)
    x = data.x = data.x.float()

    model = pyg.Sequential("x, edge_index", [(last, "x, edge_index -> x"), linear])
    exposure = expose(model, data)
    weight = linear.weight.double()
    if conv is pyg.GCNConv:
        told = last.lin(x).double() @ weight.t()
    else:
        told = x.double() @ (weight @ last.lin_l.weight.double()).t()
    assert exposure.coefficients.dtype == torch.float32
    found = exposure.contributions[0]
    torch.testing.assert_close(
        found, told[exposure.sources.long()].detach(), rtol=1e-13, atol=1e-13
    )
