"""What a repaired model remembers of one graph must not speak for another, or other weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GCNConv, GINConv, GraphConv, HGTConv, SAGEConv
from torch_geometric.utils import degree

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.exposure.from_model import ExposurePlan
from tests.helpers.repair.repaired_models import CLASSES, WIDTH, fitted_on, graph

BUDGET = Budget(10, None, 0.05, 0.0)


class Headed(nn.Module):
    """A linear head after the last convolution: what is remembered is its matrix."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.head = GCNConv(WIDTH, 8), GCNConv(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x, edge_index):
        return self.head(self.last(self.first(x, edge_index).relu(), edge_index))


class DividedByDegree(Headed):
    """Sums that the model itself divides: where all degrees are the same, one map for all."""

    def __init__(self):
        super().__init__()
        self.last = SAGEConv(8, 8, aggr="sum", root_weight=False)

    def forward(self, x, edge_index):
        sums = self.last(self.first(x, edge_index).relu(), edge_index)
        return self.head(sums / degree(edge_index[1], len(x)).clamp(min=1).unsqueeze(1))


class SumsByHand(Headed):
    """Means by ``index_add_``."""

    def forward(self, x, edge_index):
        source, target = edge_index
        degrees = degree(target, len(x)).clamp(min=1).unsqueeze(1)
        for layer in (self.first.lin, self.last.lin):
            x = layer(x).sigmoid() if layer is self.first.lin else x
            x = torch.zeros_like(x).index_add_(0, target, x[source]) / degrees
        return self.head(x)


class Isomorphism(nn.Module):
    """Perceptrons after sums: the first sum reaches the logits through the second."""

    def __init__(self):
        super().__init__()
        self.first = GINConv(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 8)))
        self.last = GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)))

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


class Deeper(Headed):
    """Deeper on graphs of more than thirty nodes."""

    def __init__(self):
        super().__init__()
        self.enter, self.first = nn.Linear(WIDTH, 8), GCNConv(8, 8)

    def forward(self, x, edge_index):
        hidden = self.first(self.enter(x), edge_index)
        if len(x) > 30:
            hidden = self.last(hidden.relu(), edge_index)
        return self.head(hidden)


def linked(seed, nodes, edges):
    data = graph(seed, nodes)
    data.edge_index = edges
    return data


def steps(nodes, step):
    """Every node linked to the one so many steps on: all degrees are the same."""
    place = torch.arange(nodes)
    edges = torch.stack([place, (place + step) % nodes])
    return torch.cat([edges, edges.flip(0)], 1)


FIRST = {
    "ring": linked(1, 30, steps(30, 1)),
    "no edges": linked(2, 20, torch.empty(2, 0, dtype=torch.long)),
    "one edge": linked(3, 20, torch.tensor([[0], [1]])),
}
MODELS = {m.__name__: m for m in (Headed, DividedByDegree, SumsByHand, Isomorphism, Deeper)}


@pytest.mark.filterwarnings("ignore:member 0 is repaired")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("first", FIRST)
def test_a_peculiar_first_graph_does_not_decide_about_others(name, first):
    """A repair that reads contributions, so what follows the last aggregation matters."""
    torch.manual_seed(0)
    model, data = MODELS[name]().eval(), graph(0, 40)
    fitted = fitted_on(model, data, gr.Reweighting(budget=BUDGET, hidden=8))
    assert not fitted.unchanged.any()
    repaired = gr.repaired(model, fitted)
    for shown in (FIRST[first], data, graph(4, 25), data):
        expected = fitted.member_logits(gr.expose(model, shown))[0]
        found = repaired(shown.x, shown.edge_index)
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)


def test_gradients_follow_the_map_of_the_graph_at_hand():
    torch.manual_seed(0)
    model, data, ring = DividedByDegree().double().eval(), graph(0, 12), FIRST["ring"]
    data.x = data.x.double()
    fitted = fitted_on(model, data, gr.NodeTranslation(budget=BUDGET, hidden=8))
    repaired = gr.repaired(model, fitted)
    repaired(ring.x.double().requires_grad_(), ring.edge_index)
    assert torch.autograd.gradcheck(
        lambda x: repaired(x, data.edge_index), data.x.clone().requires_grad_(), fast_mode=True
    )


def test_what_the_model_raises_is_not_called_a_missing_gradient():
    torch.manual_seed(0)
    model, data = Headed().eval(), graph(0, 40)
    repaired = gr.repaired(model, fitted_on(model, data))
    repaired(data.x, data.edge_index)
    wide = torch.randn(40, WIDTH + 1, requires_grad=True)
    with pytest.raises(Exception, match="shapes") as caught:
        repaired(wide, data.edge_index)
    assert "gradient" not in str(caught.value)


class WithReconstruction(Headed):
    """A side output does not hide the aggregation that classes come from."""

    def __init__(self):
        super().__init__()
        self.back = GCNConv(8, WIDTH)

    def forward(self, x, edge_index):
        hidden = self.last(self.first(x, edge_index).relu(), edge_index)
        self.reconstructed = self.back(hidden, edge_index)
        return self.head(hidden)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        # Even nodes and odd ones never meet: no edge links the halves that are probed.
        (Isomorphism, linked(0, 40, steps(40, 2))),
        (WithReconstruction, graph(0, 40)),
    ],
)
def test_only_the_last_sums_are_reweighted(model, data):
    torch.manual_seed(0)
    exposure = gr.expose(model().eval(), data)
    assert [group.name for group in exposure.groups] == ["last"]


def test_coefficients_that_are_all_zero_leave_an_empty_group():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GraphConv(WIDTH, CLASSES)

        def forward(self, x, edge_index, edge_weight):
            return self.conv(x, edge_index, edge_weight)

    torch.manual_seed(0)
    model, data = Weighted().eval(), graph(0, 20)
    data.edge_weight = torch.zeros(data.num_edges)
    exposure = gr.expose(model, data)
    assert exposure.num_terms == 0 and len(exposure.groups) == 1
    logits = model(data.x, data.edge_index, data.edge_weight).double()
    torch.testing.assert_close(exposure.fixed_logits[0], logits)


class Normed(Headed):
    """Running statistics are buffers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, edge_index):
        return self.head(self.last(self.norm(self.first(x, edge_index)), edge_index))


def test_whatever_a_model_holds_is_certified_again_when_it_changes():
    torch.manual_seed(0)
    model, data = Normed().eval(), graph(0, 20)
    plan = ExposurePlan(model)

    def certified() -> bool:
        return plan(data, lambda own, _: own(data.x, data.edge_index)).residual is not None

    assert certified()
    for held in (*model.parameters(), *model.buffers()):
        assert not certified()
        held.data.add_(1)
        assert certified()


def test_relations_that_are_empty_at_first_do_not_decide_about_others():
    """A graph on which no paper cites another comes first."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            kinds = [("author", "writes", "paper"), ("paper", "cites", "paper")]
            layout = ["paper", "author"], kinds
            self.first, self.last = (HGTConv(WIDTH, WIDTH, layout) for _ in range(2))
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x_dict, edge_index_dict):
            paper = self.first(x_dict, edge_index_dict)["paper"].tanh()
            last = self.last({**x_dict, "paper": paper}, edge_index_dict)["paper"]
            return self.head(last.tanh())

    def typed(seed, cited):
        generator = torch.Generator().manual_seed(seed)
        data = HeteroData()
        for kind in ("paper", "author"):
            data[kind].x = torch.randn(20, WIDTH, generator=generator)
        for source, name, count in (("author", "writes", 50), ("paper", "cites", cited)):
            ends = torch.randint(20, (2, count), generator=generator)
            data[source, name, "paper"].edge_index = ends
        data["paper"].y = torch.arange(20) % CLASSES
        return data

    def run(model, data):
        return model(data.x_dict, data.edge_index_dict)

    torch.manual_seed(0)
    model, data = Deep().eval(), typed(0, 40)
    exposure, plan, half = gr.expose(model, data), ExposurePlan(model), torch.arange(20) % 2 == 0
    repair = gr.NodeTranslation(budget=BUDGET, hidden=8)
    fitted = repair.fit(exposure, data["paper"].y, half, ~half)
    assert plan(typed(1, 0), run).num_terms == 50
    found = plan(data, run)
    assert [g.name for g in found.groups] == [g.name for g in exposure.groups]
    said = fitted.member_logits(found), fitted.member_logits(exposure)
    torch.testing.assert_close(*said, atol=2e-5, rtol=1e-5)
