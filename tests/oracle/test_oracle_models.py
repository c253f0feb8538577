"""The oracle on exposures of trained models and of graph classifiers."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import Explainer
from torch_geometric.explain.metric import fidelity, unfaithfulness
from torch_geometric.nn import (
    FastRGCNConv,
    GATConv,
    GCNConv,
    GraphConv,
    MessagePassing,
    SAGEConv,
    SGConv,
    global_add_pool,
    global_mean_pool,
)
from torch_geometric.utils import add_remaining_self_loops

import gnn_repair as gr
from gnn_repair.backbones import BACKBONES, find_backbone, train_backbone
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.oracle import reach, solve
from gnn_repair.oracle.explainer import OracleExplainer, _check_faithful

# The oracle on exposures of trained models: the eight backbones and a PyG model.


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_is_certified(graph, name):
    budget = replace(find_backbone(name).budget, epochs=5)
    frozen = train_backbone(name, graph, device="cpu", budget=budget)
    exposure = expose(frozen)
    solution = solve(exposure, "all")
    verdict = solution.check(exposure)
    assert verdict.ok, verdict
    assert len(solution) == exposure.num_members * exposure.num_nodes * exposure.num_classes
    theirs = solve(exposure.member(1), "all", method="highs")
    np.testing.assert_allclose(solution.margin[solution.member == 1], theirs.margin, atol=1e-6)
    # α is admissible, so no margin can be below the frozen one.
    assert (solution.margin >= _frozen_margins(exposure, solution) - 1e-9).all()
    report = reach(exposure, graph.y, graph.test_mask)
    for s, member in enumerate(report.members):
        assert member.true_class.total == int(graph.test_mask[:, s].sum())
        correct = 1 - member.error.total / member.true_class.total
        assert member.true_class.value >= correct - 0.05


def _frozen_margins(exposure, solution):
    logits = exposure.frozen_logits.numpy()[solution.member, solution.node]
    index = np.arange(len(logits))
    own = logits[index, solution.target]
    logits[index, solution.target] = -np.inf
    return own - logits.max(1)


class TwoLayers(torch.nn.Module):
    def __init__(self, last, features, classes):
        super().__init__()
        torch.manual_seed(0)
        self.first = GCNConv(features, 8)
        self.last = last(8, classes)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


def explainer_of(model, algorithm, **kind):
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    return Explainer(
        model,
        algorithm,
        explanation_type=kind.pop("explanation_type", "phenomenon"),
        model_config=config,
        edge_mask_type="object",
        **kind,
    )


LAYERS = [GCNConv, SAGEConv, GATConv, GraphConv]


@pytest.mark.parametrize("last", LAYERS)
def test_the_edge_mask_is_lambda_over_alpha(graph, last):
    model = TwoLayers(last, graph.num_features, 3).double()
    explainer = explainer_of(model, OracleExplainer())
    explanation = explainer(graph.x, graph.edge_index, target=graph.y, index=5)
    solution, exposure = explanation.solution, expose(model, graph)
    assert solution.node.tolist() == [5] and solution.target.tolist() == [int(graph.y[5])]
    part = exposure.restrict(torch.tensor([5]))
    sources = part.sources[part.rows.long()].tolist()
    alpha = dict(zip(sources, part.coefficients[0].tolist(), strict=True))
    lam = dict(zip(solution.sources.tolist(), solution.coefficients.tolist(), strict=True))
    for column, (source, recipient) in enumerate(graph.edge_index.t().tolist()):
        expected = lam.get(source, 0.0) / alpha[source] if recipient == 5 else 0.0
        assert float(explanation.edge_mask[column]) == pytest.approx(expected, rel=1e-9)
    assert explanation.get_explanation_subgraph().num_edges == len(lam)
    assert 0 <= unfaithfulness(explainer, explanation) <= 1


def test_one_explainer_explains_one_graph_and_model_after_another(graph):
    """Each time what a fresh one says; an exposure that was given stays the one that is asked."""
    model = TwoLayers(GCNConv, graph.num_features, 3).double()
    used, other = OracleExplainer(), graph.clone()
    other.x = graph.x.roll(5, 0)

    def mask(algorithm, data):
        explainer = explainer_of(model, algorithm)
        found = explainer(data.x, data.edge_index, target=data.y, index=5)
        return found.edge_mask, found.solution.margin.tolist()

    for data in (graph, other, graph):
        (mine, own), (theirs, margin) = mask(used, data), mask(OracleExplainer(), data)
        assert torch.equal(mine, theirs) and own == margin
    before = expose(model, graph)
    with torch.no_grad():
        model.last.lin.weight.mul_(-1)
    (mine, own), (theirs, margin) = mask(used, graph), mask(OracleExplainer(), graph)
    assert torch.equal(mine, theirs) and own == margin
    with pytest.raises(InputError, match="reweighted self"):
        mask(OracleExplainer(before), graph)


@pytest.mark.parametrize("member", [0, 1])
def test_an_exposure_of_some_nodes_and_several_members_explains_its_own(graph, member):
    models = [TwoLayers(SAGEConv, graph.num_features, 3).double() for _ in range(2)]
    with torch.no_grad():
        models[1].last.lin_l.weight.copy_(models[0].last.lin_l.weight.flip(0))
    one, other = (expose(model, graph).restrict([9, 5, 2]) for model in models)
    names = ("coefficients", "contributions", "fixed_logits", "frozen_logits")
    beside = {name: torch.cat([getattr(one, name), getattr(other, name)]) for name in names}
    both, given = replace(one, **beside, fingerprint=()), (graph.x, graph.edge_index)
    for algorithm in (OracleExplainer(both, member=member), OracleExplainer()):
        explainer = explainer_of(models[member], algorithm)
        found = explainer(*given, target=graph.y, index=torch.tensor([5, 9]))
        if algorithm.exposure is both:
            mask, margin = found.edge_mask, found.solution.margin
    torch.testing.assert_close(mask, found.edge_mask)
    np.testing.assert_allclose(margin, found.solution.margin)
    assert mask.any() and (margin != solve(both.member(1 - member), graph.y, [5, 9]).margin).any()


def briefly_trained(model, graph):
    """A few steps on shuffled labels: wrong about many nodes, and not hopeless."""
    labels = graph.y.roll(3)
    labels[::2] = graph.y[::2].roll(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(12):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(graph.x, graph.edge_index), labels).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("last", LAYERS)
def test_reachable_errors_flip_under_pygs_own_fidelity(graph, last):
    model = briefly_trained(TwoLayers(last, graph.num_features, 3).double(), graph)
    wrong = (model(graph.x, graph.edge_index).argmax(1) != graph.y).nonzero().view(-1)
    explainer = explainer_of(model, OracleExplainer())
    explanation = explainer(graph.x, graph.edge_index, target=graph.y, index=wrong)
    solution = explanation.solution
    assert solution.reachable.sum() > 0 and len(solution) == len(wrong) > 5
    # fid− counts the nodes whose rightness the mask changes: all are wrong without it.
    _, changed = fidelity(explainer, explanation)
    assert changed == pytest.approx(solution.reachable.mean())
    seen = explainer.get_masked_prediction(graph.x, graph.edge_index, None, explanation.edge_mask)
    flips = (seen.argmax(1) == graph.y)[wrong].numpy()
    np.testing.assert_array_equal(flips, solution.reachable)
    own = seen[wrong, graph.y[wrong]]
    rivals = seen[wrong].scatter(1, graph.y[wrong][:, None], -torch.inf).amax(1)
    np.testing.assert_allclose((own - rivals).detach().numpy(), solution.margin, atol=1e-9)


def test_only_the_exposed_layer_is_masked_until_released(graph):
    model = TwoLayers(GCNConv, graph.num_features, 3).double()
    explainer_of(model, OracleExplainer())(graph.x, graph.edge_index, target=graph.y, index=5)
    assert model.first.explain is False and model.last.explain is None
    pickle.loads(pickle.dumps(model))
    OracleExplainer.release(model)
    assert model.first.explain is None and "explain_message" not in vars(model.last)


def test_a_loop_that_the_layer_adds_itself_has_no_place(graph):
    edges = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
    gcn = TwoLayers(GCNConv, graph.num_features, 3).double()
    with pytest.raises(InputError, match=r"add_remaining_self_loops\(edge_index\)"):
        explainer_of(gcn, OracleExplainer())(graph.x, edges, target=graph.y, index=5)
    full, _ = add_remaining_self_loops(edges, num_nodes=graph.num_nodes)
    explainer_of(gcn, OracleExplainer())(graph.x, full, target=graph.y)


class Sides(torch.nn.Module):
    """Two parallel layers after the first."""

    def __init__(self, features, classes):
        super().__init__()
        torch.manual_seed(0)
        self.first = GCNConv(features, 8)
        self.mean, self.gat = SAGEConv(8, classes), GATConv(8, classes, heads=2, concat=False)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        return self.mean(x, edge_index) + self.gat(x, edge_index)


def headed(features, classes):
    return TwoLayers(partial(GATConv, heads=2, concat=False), features, classes)


@pytest.mark.parametrize("build", [headed, Sides])
def test_every_group_is_masked_by_its_own_ratio(graph, build):
    model = briefly_trained(build(graph.num_features, 3).double(), graph)
    wrong = (model(graph.x, graph.edge_index).argmax(1) != graph.y).nonzero().view(-1)
    explainer = explainer_of(model, OracleExplainer())
    explanation = explainer(graph.x, graph.edge_index, target=graph.y, index=wrong)
    solution, exposure = explanation.solution, expose(model, graph)
    assert solution.reachable.any() and explanation.group_mask.shape[1] == exposure.num_groups > 1
    seen = explainer.get_masked_prediction(graph.x, graph.edge_index, None, explanation.edge_mask)
    own = seen[wrong, graph.y[wrong]]
    rivals = seen[wrong].scatter(1, graph.y[wrong][:, None], -torch.inf).amax(1)
    np.testing.assert_allclose((own - rivals).detach().numpy(), solution.margin, atol=1e-9)
    # Each group keeps its mass: Σ α · ratio over an explained node's edges is Σ α.
    part = exposure.restrict(wrong[:1])
    alpha = [part.coefficients[0, a:b] for a, b in itertools.pairwise(part.segments.tolist())]
    last = explanation.group_mask[graph.edge_index[1] == wrong[0]]
    edges = graph.edge_index[0, graph.edge_index[1] == wrong[0]].tolist()
    for g, own_alpha in enumerate(alpha):
        rows = part.rows[part.segments[g] : part.segments[g + 1]].long()
        by_source = dict(zip(part.sources[rows].tolist(), own_alpha.tolist(), strict=True))
        total = sum(by_source[s] * float(r) for s, r in zip(edges, last[:, g], strict=True))
        assert total == pytest.approx(float(own_alpha.sum()), rel=1e-9)


def test_a_mask_that_would_not_reweight_the_model_is_refused(graph):
    """An exposure of another model with the same layers."""
    model = TwoLayers(SAGEConv, graph.num_features, 3).double()
    other = expose(model, Data(x=graph.x.flip(0), edge_index=graph.edge_index))
    with pytest.raises(InputError, match="away from its reweighted self"):
        explainer_of(model, OracleExplainer(other))(graph.x, graph.edge_index, target=graph.y)


def test_parallel_edges_share_their_ratio(graph):
    model = TwoLayers(SAGEConv, graph.num_features, 3).double()
    explanation = explainer_of(model, OracleExplainer(), explanation_type="model")(
        graph.x, graph.edge_index
    )
    exposure = expose(model, graph)
    # SAGE's α is one over the degree, so Σ α · mask is the node's mass again, one.
    degree = graph.edge_index[1].bincount()
    total = torch.zeros(graph.num_nodes).double()
    total.index_add_(0, graph.edge_index[1], explanation.edge_mask.double())
    torch.testing.assert_close(total / degree, exposure.mass[0, :, 0])
    # Node 1 has two self-loop entries; they carry one message and the same ratio.
    loops = (graph.edge_index == 1).all(0)
    first, second = explanation.edge_mask[loops].tolist()
    assert first == second


def test_two_hops_have_no_place_on_edges(graph):
    class Filter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv = SGConv(graph.num_features, 3, K=2)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    explainer = explainer_of(Filter().double(), OracleExplainer())
    with pytest.raises(InputError, match="goes beyond one hop or is another model"):
        explainer(graph.x, graph.edge_index, target=graph.y)


def test_unsupported_settings_are_refused(graph):
    with pytest.raises(ValueError, match="does not support"):
        explainer_of(
            TwoLayers(GCNConv, graph.num_features, 3), OracleExplainer(), node_mask_type="object"
        )


# Could some reweighting of its nodes make the graph right? Planted, and learned.


class Planted(nn.Module):
    """Every node says what its features say; the graph takes sum or mean."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.say = nn.Linear(4, 3, bias=False).double()
        with torch.no_grad():
            # Class 0 by the first feature, 1 by the second; the third favours class 2.
            self.say.weight.copy_(torch.tensor([[3.0, 0, 0, 0], [0, 2, 0, 1], [0, 0, 1, 0]]))
        self.pool = global_mean_pool if mean else global_add_pool

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.say(self.pool(x, batch))


def planted_graphs() -> tuple[list[Data], list[int]]:
    """Graphs of class 0 or 1 in which one node alone knows it; the last has no such node."""
    generator = torch.Generator().manual_seed(4)
    graphs, motif = [], []
    for number in range(9):
        size = 5 + number % 3
        x = torch.zeros(size, 4, dtype=torch.float64)
        x[:, 2] = 1 + torch.rand(size, generator=generator, dtype=torch.float64)
        label, place = number % 2, (2 * number) % size
        if number < 8:
            x[place] = 0
            x[place, label] = 1
        links = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        graphs.append(Data(x=x, edge_index=links, y=torch.tensor([label])))
        motif.append(place)
    return graphs, motif


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_the_witness_is_the_node_that_knows(mean: bool) -> None:
    graphs, motif = planted_graphs()
    y = torch.cat([graph.y for graph in graphs])
    exposure = gr.expose(Planted(mean), graphs)
    assert bool((exposure.frozen_logits[0].argmax(1) == 2).all())
    solution = gr.solve(exposure, y)
    assert solution.reachable.tolist() == [True] * 8 + [False]
    assert str(solution.check(exposure)).startswith("9 certificates, all hold")
    for number, graph in enumerate(graphs[:8]):
        witness = solution[number]
        mass = 1.0 if mean else float(graph.num_nodes)
        assert exposure.graph_starts is not None
        assert (witness.sources - int(exposure.graph_starts[number])).tolist() == [motif[number]]
        assert witness.coefficients.tolist() == [pytest.approx(mass)]
        assert witness.margin == pytest.approx(mass * (3 if number % 2 == 0 else 2))
    found = gr.reach(exposure, y)
    assert (found.true_class, found.error) == (pytest.approx(8 / 9), pytest.approx(8 / 9))


# Graphs with several labels, or with a value: the extremes are those of their nodes.


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


class Relations(torch.nn.Module):
    """Two relations in one sum: every edge is in one of two groups."""

    def __init__(self, features, classes):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = GCNConv(features, 8), FastRGCNConv(8, classes, 2)

    def forward(self, x, edge_index, edge_type):
        return self.last(self.first(x, edge_index).relu(), edge_index, edge_type)


def test_an_edge_of_one_group_is_masked_by_the_ratio_of_that_group(graph, monkeypatch):
    model = Relations(graph.num_features, 3).double()
    # PyG takes an RGCNConv's for it, if one was made before.
    monkeypatch.setattr(FastRGCNConv, "_orig_propagate", MessagePassing.propagate)
    explainer = explainer_of(model, OracleExplainer())
    kinds = torch.arange(graph.num_edges) % 2
    explanation = explainer(graph.x, graph.edge_index, target=graph.y, edge_type=kinds)
    assert explanation.group_mask.shape[1] == 2
    given = graph.x, graph.edge_index, None, explanation.edge_mask
    seen = explainer.get_masked_prediction(*given, edge_type=kinds).detach()
    own = seen.gather(1, graph.y[:, None])[:, 0]
    rivals = seen.scatter(1, graph.y[:, None], -torch.inf).amax(1)
    np.testing.assert_allclose((own - rivals).numpy(), explanation.solution.margin, atol=1e-9)
    twice = graph.edge_index.repeat(1, 2), kinds.new_tensor([0, 1]).repeat_interleave(len(kinds))
    with pytest.raises(InputError):  # two groups of one pair of nodes are no mask of its edges
        explainer(graph.x, twice[0], target=graph.y, edge_type=twice[1])


@pytest.mark.parametrize("seen", [np.nan, np.inf, 1.0])
def test_a_masked_model_that_gives_other_numbers_or_none_is_refused(graph, seen):
    torch.manual_seed(0)
    exposure = expose(GCNConv(graph.num_features, 3).double(), graph, outputs="classes")
    solution = solve(exposure, torch.zeros(graph.num_nodes, dtype=torch.long), [0, 1])
    told = exposure.logits(solution.dense(exposure))[0, [0, 1]]
    _check_faithful(told, exposure, solution)
    told[1, 0] += seen
    with pytest.raises(InputError, match="away from its reweighted self"):
        _check_faithful(told, exposure, solution)
