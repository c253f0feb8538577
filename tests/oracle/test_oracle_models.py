"""The oracle on exposures of trained models: the eight backbones and a PyG model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.explain import Explainer
from torch_geometric.explain.metric import unfaithfulness
from torch_geometric.nn import GCNConv, SAGEConv, SGConv

from gnn_repair.backbones import BACKBONES, find_backbone, train_backbone
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.oracle import reach, solve_oracle
from gnn_repair.oracle.explainer import OracleExplainer


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_is_certified(graph, name):
    budget = replace(find_backbone(name).budget, epochs=5)
    frozen = train_backbone(name, graph, device="cpu", budget=budget)
    exposure = expose(frozen)
    solution = solve_oracle(exposure, "all")
    verdict = solution.check(exposure)
    assert verdict.ok, verdict
    assert len(solution) == exposure.num_members * exposure.num_nodes * exposure.num_classes
    theirs = solve_oracle(exposure.member(1), "all", method="highs")
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


@pytest.mark.parametrize("last", [GCNConv, SAGEConv])
def test_the_edge_mask_is_lambda(graph, last):
    model = TwoLayers(last, graph.num_features, 3).double()
    # Without the doubled self-loops, so that GCN adds its own ones and SAGE has none.
    edges = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
    explainer = explainer_of(model, OracleExplainer())
    explanation = explainer(graph.x, edges, target=graph.y, index=5)
    solution = explanation.solution
    assert solution.node.tolist() == [5] and solution.target.tolist() == [int(graph.y[5])]
    used = explanation.edge_mask.nonzero().view(-1)
    assert (edges[1, used] == 5).all()
    by_source = dict(zip(solution.sources.tolist(), solution.coefficients.tolist(), strict=True))
    own = by_source.pop(5, 0.0)
    assert set(edges[0, used].tolist()) == set(by_source)
    for column in used.tolist():
        expected = by_source[int(edges[0, column])]
        assert float(explanation.edge_mask[column]) == pytest.approx(expected, rel=1e-6)
    assert float(explanation.self_loops[5]) == pytest.approx(own, abs=1e-6)
    assert explanation.get_explanation_subgraph().num_edges == len(by_source)
    assert 0 <= unfaithfulness(explainer, explanation) <= 1


def test_parallel_edges_share_and_all_nodes_add_up(graph):
    model = TwoLayers(SAGEConv, graph.num_features, 3).double()
    explanation = explainer_of(model, OracleExplainer(), explanation_type="model")(
        graph.x, graph.edge_index
    )
    solution = explanation.solution
    total = float(explanation.edge_mask.sum() + explanation.self_loops.sum())
    assert total == pytest.approx(solution.coefficients.sum(), rel=1e-5)
    # Node 1 has two self-loop entries; whatever falls on them is split evenly.
    loops = (graph.edge_index == 1).all(0)
    assert int(loops.sum()) == 2
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
    with pytest.raises(InputError, match="goes beyond one hop"):
        explainer(graph.x, graph.edge_index, target=graph.y)


def test_unsupported_settings_are_refused(graph):
    with pytest.raises(ValueError, match="does not support"):
        explainer_of(
            TwoLayers(GCNConv, graph.num_features, 3), OracleExplainer(), node_mask_type="object"
        )
