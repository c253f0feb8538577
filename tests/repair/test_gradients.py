"""Gradients of a repaired model's logits for what it is given, against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, SGConv

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.repair import TemperatureScaling
from tests.helpers.repair.repaired_models import KINDS, TwoLayers, fitted_on, graph

BUDGET = Budget(15, None, 0.05, 0.0)
REPAIRS = {
    "set": gr.SetTranslation(BUDGET, hidden=5),
    "node": gr.NodeTranslation(BUDGET, hidden=5),
    "reweighting": gr.Reweighting(BUDGET, hidden=5),
    "head": gr.RefitHead(BUDGET),
    "temperature": TemperatureScaling(),
}
MODELS = ("gcn", "gat", "sage", "graphconv")


def planted(kind: str, repair: str) -> tuple[gr.RepairedModel, Data]:
    torch.manual_seed(0)
    model, data = KINDS[kind]().double().eval(), graph(0, 14)
    data.x = data.x.double()
    return gr.repaired(model, fitted_on(model, data, REPAIRS[repair])), data


@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_those_of_finite_differences(kind, repair):
    repaired, data = planted(kind, repair)
    x = data.x.clone().requires_grad_()
    for mode in (False, True):
        repaired.train(mode)
        assert torch.autograd.gradcheck(
            lambda x: repaired(x, data.edge_index), (x,), fast_mode=True, eps=1e-7, atol=1e-5
        )
    logits = repaired(x, data.edge_index)
    torch.testing.assert_close(logits, repaired(data.x, data.edge_index))
    frozen = repaired.model(x, data.edge_index)
    own, plain = (torch.autograd.grad(z.square().sum(), x)[0] for z in (logits, frozen))
    assert float((own - plain).abs().max()) > 1e-3  # the repair's own part is in it
    assert all(p.grad is None and p.requires_grad for p in repaired.model.parameters())


class Weighted(nn.Module):
    """A model that is given edge weights."""

    def __init__(self, last: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.last = GCNConv(6, 8), last or GCNConv(8, 3)

    def forward(self, x, edge_index, edge_weight):
        return self.last(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


def weighted(last: nn.Module | None = None) -> tuple[gr.RepairedModel, Data]:
    torch.manual_seed(1)
    data = graph(3, 12)
    data.x = data.x.double()
    # Of two self-loops of a node GCNConv takes one weight, and PyTorch gives both its gradient.
    data.edge_index = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    data.edge_weight = torch.rand(data.num_edges, dtype=torch.float64) + 0.5
    model = Weighted(last).double().eval()
    return gr.repaired(model, fitted_on(model, data, REPAIRS["reweighting"])), data


def test_edge_weights_have_gradients_through_the_coefficients():
    repaired, data = weighted()
    assert torch.autograd.gradcheck(
        lambda w: repaired(data.x, data.edge_index, w),
        (data.edge_weight.clone().requires_grad_(),),
        fast_mode=True, eps=1e-7, atol=1e-5,
    )  # fmt: skip


def test_a_model_that_takes_the_whole_data_and_sparse_features():
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(40, 3)

        def forward(self, data):
            return self.conv(data.x, data.edge_index)

    torch.manual_seed(2)
    data = graph(5, 20)
    x = torch.zeros(20, 40, dtype=torch.float64)
    x[torch.arange(20), torch.randint(40, (20,))] = 1.0  # multiplied as sparse without gradients
    data.x = x
    model = Whole().double().eval()
    repaired = gr.repaired(model, fitted_on(model, data, REPAIRS["set"]))

    def logits(x):
        return repaired(Data(x=x, edge_index=data.edge_index))

    # Off the zeros: there states have kinks.
    point = (x + 0.01 * torch.randn_like(x)).requires_grad_()
    assert torch.autograd.gradcheck(logits, (point,), fast_mode=True, eps=1e-7, atol=1e-5)
    assert torch.isfinite(torch.autograd.grad(logits(x.requires_grad_()).sum(), x)[0]).all()


def test_dead_states_and_messages_from_oneself_give_finite_gradients():
    torch.manual_seed(0)
    model = TwoLayers(GCNConv(6, 8), GATConv(8, 8)).double().eval()
    with torch.no_grad():
        model.first.bias.fill_(-0.8)  # many states are exactly zero
    data = graph(0, 16)
    data.x = data.x.double()
    repaired = gr.repaired(model, fitted_on(model, data, REPAIRS["set"]))
    state = gr.expose(model, data).state[0]
    assert bool((state == 0).all(1).any())
    x = data.x.clone().requires_grad_()
    repaired(x, data.edge_index).sum().backward()
    assert torch.isfinite(x.grad).all() and float(x.grad.abs().max()) > 0


def test_without_asking_there_is_no_gradient_and_no_cost():
    repaired, data = planted("gcn", "set")
    assert not repaired(data.x, data.edge_index).requires_grad
    with torch.no_grad():
        assert not repaired(data.x.clone().requires_grad_(), data.edge_index).requires_grad


def test_where_none_can_be_followed_it_says_so():
    torch.manual_seed(0)
    for kind in ("residual", "gin"):
        model, data = KINDS[kind]().eval(), graph(0, 20)
        repaired = gr.repaired(model, fitted_on(model, data, REPAIRS["node"]))
        with pytest.raises(InputError, match="no gradient can be followed through"):
            repaired(data.x.clone().requires_grad_(), data.edge_index)
        assert repaired(data.x, data.edge_index).shape == (20, 3)
    repaired, data = weighted(SGConv(8, 3, K=2))
    with pytest.raises(InputError, match="several hops"):
        repaired(data.x, data.edge_index, data.edge_weight.clone().requires_grad_())
    data = graph(0, 40)
    model = KINDS["gcn"]().eval()
    first = torch.arange(40) % 2 == 0
    ladder = gr.EvidenceLadder(rungs=("messages",), folds=2)
    fitted = ladder.fit(gr.expose(model, data), data.y, first, ~first)
    with pytest.raises(InputError, match="Evidence ladder, which is no differentiable"):
        gr.repaired(model, fitted)(data.x.clone().requires_grad_(), data.edge_index)
