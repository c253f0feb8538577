"""What a repaired model remembers of one graph must not speak for another, or other weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, GINConv, HGTConv, SAGEConv
from torch_geometric.utils import degree

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.exposure.from_model import ExposurePlan

CLASSES, WIDTH = 3, 5


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


class SumsByHand(nn.Module):
    """Means by ``index_add_``."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x, edge_index):
        source, target = edge_index
        degrees = degree(target, len(x)).clamp(min=1).unsqueeze(1)
        for layer in (self.first, self.last):
            x = layer(x).sigmoid() if layer is self.first else x
            x = torch.zeros_like(x).index_add_(0, target, x[source]) / degrees
        return self.last(x)


class Isomorphism(nn.Module):
    """Perceptrons after sums: the first sum reaches the logits through the second."""

    def __init__(self):
        super().__init__()
        self.first = GINConv(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 8)))
        self.last = GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)))

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


def graph(seed, nodes, edges=None):
    generator = torch.Generator().manual_seed(seed)
    if edges is None:
        edges = torch.randint(nodes, (2, 3 * nodes), generator=generator)
    y = torch.randint(CLASSES, (nodes,), generator=generator)
    return Data(x=torch.randn(nodes, WIDTH, generator=generator), edge_index=edges, y=y)


def steps(nodes, step):
    """Every node linked to the one so many steps on: all degrees are the same."""
    place = torch.arange(nodes)
    edges = torch.stack([place, (place + step) % nodes])
    return torch.cat([edges, edges.flip(0)], 1)


def reweighted(model, data):
    """A repair that reads contributions, so what follows the last aggregation matters."""
    repair = gr.Reweighting(budget=Budget(10, None, 0.05, 0.0), hidden=8)
    half = torch.arange(data.num_nodes) % 2 == 0
    fitted = repair.fit(gr.expose(model, data), data.y, half, ~half)
    assert not fitted.unchanged.any()
    return fitted


FIRST = {
    "ring": graph(1, 30, steps(30, 1)),
    "no edges": graph(2, 20, torch.empty(2, 0, dtype=torch.long)),
    "one edge": graph(3, 20, torch.tensor([[0], [1]])),
}
MODELS = {m.__name__: m for m in (Headed, DividedByDegree, SumsByHand, Isomorphism)}


@pytest.mark.filterwarnings("ignore:member 0 is repaired")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("first", FIRST)
def test_a_peculiar_first_graph_does_not_decide_about_others(name, first):
    torch.manual_seed(0)
    model, data = MODELS[name]().eval(), graph(0, 40)
    fitted = reweighted(model, data)
    repaired = gr.repaired(model, fitted)
    for shown in (FIRST[first], data, graph(4, 25), data):
        expected = fitted.member_logits(gr.expose(model, shown))[0]
        found = repaired(shown.x, shown.edge_index)
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)


def test_gradients_follow_the_map_of_the_graph_at_hand():
    torch.manual_seed(0)
    model, data = DividedByDegree().double().eval(), graph(0, 12)
    data.x = data.x.double()
    repair = gr.NodeTranslation(budget=Budget(10, None, 0.05, 0.0), hidden=8)
    half = torch.arange(data.num_nodes) % 2 == 0
    fitted = repair.fit(gr.expose(model, data), data.y, half, ~half)
    repaired = gr.repaired(model, fitted)
    ring = FIRST["ring"]
    repaired(ring.x.double().requires_grad_(), ring.edge_index)
    assert torch.autograd.gradcheck(
        lambda x: repaired(x, data.edge_index), data.x.clone().requires_grad_()
    )


def test_what_the_model_raises_is_not_called_a_missing_gradient():
    torch.manual_seed(0)
    model, data = Headed().eval(), graph(0, 40)
    repaired = gr.repaired(model, reweighted(model, data))
    repaired(data.x, data.edge_index)
    wide = torch.randn(40, WIDTH + 1, requires_grad=True)
    with pytest.raises(Exception, match="shapes") as caught:
        repaired(wide, data.edge_index)
    assert "gradient" not in str(caught.value)


def test_only_the_last_sums_are_reweighted_where_no_edge_links_the_probed_halves():
    torch.manual_seed(0)
    model = Isomorphism().eval()
    apart = gr.expose(model, graph(0, 40, steps(40, 2)))  # even nodes and odd ones never meet
    assert [group.name for group in apart.groups] == ["last"]


def test_a_side_output_does_not_hide_the_aggregation_that_classes_come_from():
    class WithReconstruction(Headed):
        def __init__(self):
            super().__init__()
            self.back = GCNConv(8, WIDTH)

        def forward(self, x, edge_index):
            hidden = self.last(self.first(x, edge_index).relu(), edge_index)
            self.reconstructed = self.back(hidden, edge_index)
            return self.head(hidden)

    torch.manual_seed(0)
    exposure = gr.expose(WithReconstruction().eval(), graph(0, 40))
    assert [group.name for group in exposure.groups] == ["last"]


def test_coefficients_that_are_all_zero_leave_an_empty_group():
    from torch_geometric.nn import GraphConv

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


def test_other_graphs_are_not_certified_again(monkeypatch):
    torch.manual_seed(0)
    model, data = Isomorphism().eval(), graph(0, 40)
    fitted = reweighted(model, data)
    repaired, other = gr.repaired(model, fitted), graph(4, 25)
    expected = fitted.member_logits(gr.expose(model, other))[0]
    repaired(data.x, data.edge_index)
    monkeypatch.setattr("gnn_repair.exposure.from_model.certify", None)
    found = repaired(other.x, other.edge_index)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)


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
        for name, count in (("writes", 50), ("cites", cited)):
            source = "author" if name == "writes" else "paper"
            ends = torch.randint(20, (2, count), generator=generator)
            data[source, name, "paper"].edge_index = ends
        data["paper"].y = torch.arange(20) % CLASSES
        return data

    torch.manual_seed(0)
    model, data = Deep().eval(), typed(0, 40)
    half = torch.arange(20) % 2 == 0
    repair = gr.NodeTranslation(budget=Budget(5, None, 0.05, 0.0), hidden=8)
    fitted = repair.fit(gr.expose(model, data), data["paper"].y, half, ~half)
    plan = ExposurePlan(model)
    empty = typed(1, 0)
    run = lambda model, data: model(data.x_dict, data.edge_index_dict)  # noqa: E731
    assert plan(empty, run).num_terms == 50
    found = plan(data, run)
    assert [g.name for g in found.groups] == [g.name for g in gr.expose(model, data).groups]
    torch.testing.assert_close(
        fitted.member_logits(found),
        fitted.member_logits(gr.expose(model, data)),
        atol=2e-5,
        rtol=1e-5,
    )


def test_a_model_that_is_deeper_on_some_graphs_is_found_anew():
    class Deeper(Headed):
        def forward(self, x, edge_index):
            hidden = self.first(x, edge_index)
            if len(x) > 30:
                hidden = self.last(hidden.relu(), edge_index)
            return self.head(hidden)

    torch.manual_seed(0)
    model, data = Deeper().eval(), graph(0, 40)
    plan, small = ExposurePlan(model), graph(1, 20)
    run = lambda model, data: model(data.x, data.edge_index)  # noqa: E731
    for shown, name in ((data, "last"), (small, "first"), (data, "last")):
        assert [group.name for group in plan(shown, run).groups] == [name]


def test_gradients_through_gates_are_refused_and_others_are_not():
    class Gated(Headed):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) * x[:, :1].sigmoid()

    torch.manual_seed(0)
    model, data = Gated().eval(), graph(0, 40)
    repaired = gr.repaired(model, reweighted(model, data))
    with pytest.raises(InputError, match="no gradient can be followed"):
        repaired(data.x.clone().requires_grad_(), data.edge_index)
    plain = DividedByDegree().eval()
    found = gr.repaired(plain, reweighted(plain, data))(
        data.x.clone().requires_grad_(), data.edge_index
    )
    assert found.requires_grad
