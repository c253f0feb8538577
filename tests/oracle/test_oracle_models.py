"""The oracle on exposures of trained models and of graph classifiers, and as a PyG explainer."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

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
from gnn_repair.oracle.explainer import OracleExplainer, _check_faithful, masks_of
from tests.helpers.oracle.oracle_cases import as_members

# The eight backbones, and graph classifiers in which one node knows.


def margins_of(logits, target):
    """By how much the target's logit is ahead of all others, [L]."""
    own = logits.gather(1, target[:, None])[:, 0]
    return (own - logits.scatter(1, target[:, None], -torch.inf).amax(1)).detach().numpy()


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_is_certified(graph, name):
    budget = replace(find_backbone(name).budget, epochs=5)
    exposure = expose(train_backbone(name, graph, [0, 1], device="cpu", budget=budget))
    solution = solve(exposure, "all")
    verdict = solution.check(exposure)
    assert verdict.ok, verdict
    assert len(solution) == exposure.num_members * exposure.num_nodes * exposure.num_classes
    theirs = solve(exposure.member(1), "all", range(9), method="highs")
    ours = solution.margin[(solution.member == 1) & (solution.node < 9)]
    np.testing.assert_allclose(ours, theirs.margin, atol=1e-6)
    # α is admissible, so no margin can be below the frozen one.
    frozen = solution.to_frame(exposure)["frozen_margin"].to_numpy()
    assert (solution.margin >= frozen - 1e-9).all()
    report = reach(exposure, graph.y, graph.test_mask[:, :2])
    for s, member in enumerate(report.members):
        assert member.true_class.total == int(graph.test_mask[:, s].sum())
        correct = 1 - member.error.total / member.true_class.total
        assert member.true_class.value >= correct - 1e-9


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
    (graphs, motif), model = planted_graphs(), Planted(mean)
    masses = [1.0 if mean else float(graph.num_nodes) for graph in graphs]
    y = torch.cat([graph.y for graph in graphs])
    exposure = gr.expose(model, graphs)
    assert bool((exposure.frozen_logits[0].argmax(1) == 2).all())
    solution = gr.solve(exposure, y)
    assert solution.reachable.tolist() == [True] * 8 + [False]
    assert str(solution.check(exposure)).startswith("9 certificates, all hold")
    for number, mass in enumerate(masses[:8]):
        witness = solution[number]
        assert (witness.sources - int(exposure.graph_starts[number])).tolist() == [motif[number]]
        assert witness.coefficients.tolist() == [pytest.approx(mass)]
        assert witness.margin == pytest.approx(mass * (3 if number % 2 == 0 else 2))
    found = gr.reach(exposure, y)
    assert (found.true_class, found.error) == (pytest.approx(8 / 9), pytest.approx(8 / 9))
    # As labels or values: the ends are what all mass on one node gives.
    said = [mass * model.say(graph.x).detach() for mass, graph in zip(masses, graphs, strict=True)]
    low, high = (torch.stack([getattr(part, end)(0) for part in said]) for end in ("amin", "amax"))
    flags = (torch.arange(27).view(9, 3) % 4 < 2).double()
    for graph, row in zip(graphs, flags, strict=True):
        graph.y = row[None]
    labels = gr.expose(model, graphs)
    assert labels.outputs == "labels"
    within = torch.where(flags > 0, high > 0, low < 0)
    micro = gr.reach(labels, flags).micro
    assert (micro.hits, micro.total) == (int(within.sum()), 27)
    ranges = gr.value_range(labels)
    for ours, theirs in ((ranges.low, low), (ranges.high, high)):
        np.testing.assert_allclose(ours.reshape(9, 3), theirs, rtol=1e-9, atol=1e-9)
    assert ranges.sentence(0).startswith("graph 0, ") and "node " in ranges.sentence(0)


# PyG's own tools see the reweighted model.


class TwoLayers(torch.nn.Module):
    def __init__(self, last, features, classes, end=nn.Identity):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.end = GCNConv(features, 8), last(8, classes), end()

    def forward(self, x, edge_index):
        return self.end(self.last(self.first(x, edge_index).relu(), edge_index))


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


class Relations(torch.nn.Module):
    """Two relations in one sum: every edge is in one of two groups."""

    def __init__(self, features, classes):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = GCNConv(features, 8), FastRGCNConv(8, classes, 2)

    def forward(self, x, edge_index, edge_type):
        return self.last(self.first(x, edge_index).relu(), edge_index, edge_type)


def layers(last, **more):
    return partial(TwoLayers, last, **more)


BUILDS = {
    "GCN": layers(GCNConv),
    "SAGE": layers(SAGEConv),
    "GAT": layers(GATConv),
    "GraphConv": layers(GraphConv),
    "log_softmax": layers(SAGEConv, end=partial(nn.LogSoftmax, 1)),
    "heads": layers(partial(GATConv, heads=2, concat=False)),
    "sides": Sides,
    "relations": Relations,
}


def explainer_of(model, algorithm, kind="phenomenon", returns="raw", **more):
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": returns}
    return Explainer(
        model,
        algorithm,
        explanation_type=kind,
        model_config=config | more.pop("config", {}),
        edge_mask_type="object",
        **more,
    )


def briefly_trained(model, graph, more):
    """A few steps on shuffled labels: wrong about many nodes, and not hopeless."""
    labels = graph.y.roll(3)
    labels[::2] = graph.y[::2].roll(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(12):
        optimizer.zero_grad()
        logits = model(graph.x, graph.edge_index, **more)
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", BUILDS)
def test_reachable_errors_flip_under_pygs_own_tools(graph, name, monkeypatch):
    """By the margins of the solution, every group by its own ratio, which keeps its mass."""
    more = {"edge_type": torch.arange(graph.num_edges) % 2} if name == "relations" else {}
    model = BUILDS[name](graph.num_features, 3).double()
    if more:  # PyG takes an RGCNConv's for it, if one was made before
        monkeypatch.setattr(FastRGCNConv, "_orig_propagate", MessagePassing.propagate)
    model = briefly_trained(model, graph, more)
    wrong = model(graph.x, graph.edge_index, **more).argmax(1) != graph.y
    nodes = wrong.nonzero().view(-1)
    returns = "log_probs" if name == "log_softmax" else "raw"
    explainer = explainer_of(model, OracleExplainer(), returns=returns)
    given = graph.x, graph.edge_index
    explanation = explainer(*given, target=graph.y, index=wrong, **more)
    solution = explanation.solution
    assert (
        solution.node.tolist() == nodes.tolist() and solution.reachable.sum() > 0 < len(nodes) - 5
    )
    seen = explainer.get_masked_prediction(*given, None, explanation.edge_mask, **more)
    np.testing.assert_allclose(margins_of(seen[nodes], graph.y[nodes]), solution.margin, atol=1e-9)
    # fid− counts the nodes whose rightness the mask changes: all are wrong without it.
    assert more or fidelity(explainer, explanation)[1] == pytest.approx(solution.reachable.mean())
    exposure = expose(model, Data(x=graph.x, edge_index=graph.edge_index, **more))
    assert ("group_mask" in explanation) == (exposure.num_groups > 1)
    part = exposure.restrict(nodes[:1])
    own = graph.edge_index[1] == nodes[0]
    for g in range(exposure.num_groups):
        mask = explanation.group_mask[:, g] if exposure.num_groups > 1 else explanation.edge_mask
        kept = own & (more["edge_type"] == g) if more else own
        ends = part.segments[g], part.segments[g + 1]
        sources = part.sources[part.rows[slice(*ends)].long()].tolist()
        alpha = dict(zip(sources, part.coefficients[0, slice(*ends)].tolist(), strict=True))
        pairs = zip(graph.edge_index[0, kept].tolist(), mask[kept].tolist(), strict=True)
        total = sum(alpha[source] * ratio for source, ratio in pairs)
        assert total == pytest.approx(sum(alpha.values()), rel=1e-9)
    assert not explanation.edge_mask[~wrong[graph.edge_index[1]]].any()
    # Afterwards the model is what it was.
    again = model(graph.x, graph.edge_index, **more)
    assert bool(((again.argmax(1) != graph.y) == wrong).all())
    assert more or 0 <= unfaithfulness(explainer, explanation) <= 1
    assert model.first.explain is False
    pickle.loads(pickle.dumps(model))
    OracleExplainer.release(model)
    layers = [module for module in model.modules() if isinstance(module, MessagePassing)]
    assert all(one.explain is None and "explain_message" not in vars(one) for one in layers)


def test_parallel_edges_share_their_ratio(graph):
    model = TwoLayers(SAGEConv, graph.num_features, 3).double()
    explanation = explainer_of(model, OracleExplainer(), "model")(graph.x, graph.edge_index)
    # SAGE's α is one over the degree, so Σ α · mask is the node's mass again, one.
    degree, total = graph.edge_index[1].bincount(), torch.zeros(graph.num_nodes).double()
    total.index_add_(0, graph.edge_index[1], explanation.edge_mask.double())
    torch.testing.assert_close(total / degree, expose(model, graph).mass[0, :, 0])
    # Node 1 has two self-loop entries; they carry one message and the same ratio.
    first, second = explanation.edge_mask[(graph.edge_index == 1).all(0)].tolist()
    assert first == second


def test_one_explainer_explains_one_graph_and_model_after_another(graph):
    """Each time what a fresh one says; an exposure that was given stays the one that is asked."""
    model = TwoLayers(GCNConv, graph.num_features, 3).double()
    used, other = OracleExplainer(), graph.clone()
    other.x = graph.x.roll(5, 0)

    def mask(algorithm, data):
        explainer = explainer_of(model, algorithm)
        found = explainer(data.x, data.edge_index, target=data.y, index=5)
        return found.edge_mask.tolist(), found.solution.margin.tolist()

    for data in (graph, other, graph):
        assert mask(used, data) == mask(OracleExplainer(), data)
    before = expose(model, graph)
    with torch.no_grad():
        model.last.lin.weight.mul_(-1)
    assert mask(used, graph) == mask(OracleExplainer(), graph)
    with pytest.raises(InputError, match="reweighted self"):
        mask(OracleExplainer(before), graph)


@pytest.mark.parametrize("member", [0, 1])
def test_an_exposure_of_some_nodes_and_several_members_explains_its_own(graph, member):
    models = [TwoLayers(SAGEConv, graph.num_features, 3).double() for _ in range(2)]
    with torch.no_grad():
        models[1].last.lin_l.weight.copy_(models[0].last.lin_l.weight.flip(0))
    one, other = (expose(model, graph).restrict([9, 5, 2]) for model in models)
    both = as_members([one, other])
    ours, alone = (
        explainer_of(models[member], algorithm)(
            graph.x, graph.edge_index, target=graph.y, index=torch.tensor([5, 9])
        )
        for algorithm in (OracleExplainer(both, member=member), OracleExplainer())
    )
    torch.testing.assert_close(ours.edge_mask, alone.edge_mask)
    np.testing.assert_allclose(ours.solution.margin, alone.solution.margin)
    foreign = solve(both.member(1 - member), graph.y, [5, 9]).margin
    assert ours.edge_mask.any() and (ours.solution.margin != foreign).any()


def test_what_no_mask_reweights_is_refused(graph, monkeypatch):
    """Hops, loops that the layer adds, two groups of one pair of nodes, edges of coefficient 0."""
    # PyG takes an RGCNConv's for it, if one was made before.
    monkeypatch.setattr(FastRGCNConv, "_orig_propagate", MessagePassing.propagate, raising=False)
    edges = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
    filtered = SGConv(graph.num_features, 3, K=2).double()
    gcn = TwoLayers(GCNConv, graph.num_features, 3).double()
    related = Relations(graph.num_features, 3).double()
    twice = {"edge_type": torch.arange(2).repeat_interleave(graph.num_edges)}
    for model, index, more, words in (
        (filtered, graph.edge_index, {}, "goes beyond one hop"),
        (gcn, edges, {}, r"add_remaining_self_loops\(edge_index\)"),
        (related, graph.edge_index.repeat(1, 2), twice, "edge"),
    ):
        with pytest.raises(InputError, match=words):
            explainer_of(model, OracleExplainer())(graph.x, index, target=graph.y, **more)
    full, _ = add_remaining_self_loops(edges, num_nodes=graph.num_nodes)
    for plain in (gcn, GATConv(graph.num_features, 3, heads=2, concat=False).double()):
        explainer_of(plain, OracleExplainer())(graph.x, full, target=graph.y)
    exposure = expose(gcn, graph)
    solution, alpha = solve(exposure, graph.y, [5]), exposure.coefficients.clone()
    alpha[0, solution.terms[0]] = 0
    silent = replace(exposure, coefficients=alpha, frozen_logits=exposure.logits(alpha))
    with pytest.raises(InputError, match="coefficient 0"):
        masks_of(solution, silent, graph.edge_index)
    for settings in (
        {"node_mask_type": "object"},
        {"config": {"mode": "binary_classification", "return_type": "probs"}},
        {"config": {"task_level": "graph"}},
    ):
        with pytest.raises(ValueError, match="does not support"):
            explainer_of(gcn, OracleExplainer(), **settings)


@pytest.mark.parametrize("seen", [np.nan, np.inf, 0.02])
def test_a_masked_model_that_gives_other_numbers_or_none_is_refused(graph, seen):
    torch.manual_seed(0)
    exposure = expose(GCNConv(graph.num_features, 3).double(), graph, outputs="classes")
    solution = solve(exposure, torch.zeros(graph.num_nodes, dtype=torch.long), [0, 1])
    told = exposure.logits(solution.dense(exposure))[0, [0, 1]]
    _check_faithful(told, exposure, solution)
    told[1, 0] += seen
    with pytest.raises(InputError, match="away from its reweighted self"):
        _check_faithful(told, exposure, solution)
