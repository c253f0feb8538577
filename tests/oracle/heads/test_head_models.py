"""Ordinary PyG models with nonlinear heads: exposed, judged, replayed and checked."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.explain import Explainer, ModelConfig
from torch_geometric.nn import SAGEConv

from gnn_repair.exposure import expose
from gnn_repair.oracle import OracleExplainer, reach, solve
from tests.helpers.oracle.head_graph import CLASSES, MODELS, model_of, small_graph


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_a_tail_is_judged_and_the_verdicts_hold(name):
    data = small_graph()
    exposure = expose(model_of(name), data)
    assert exposure.head is not None
    solution = solve(exposure, "all")
    assert solution.replayed and solution.reachable.any()
    verification = solution.check(exposure)
    assert verification.ok, verification
    if name == "softplus":
        assert "softplus" in next(iter(solution.reasons.values()))
    else:
        assert solution.excluded.any() and solution.decided.mean() > 0.85
    part = exposure.restrict(torch.tensor([4, 9]))
    assert solve(part, "all").check(part).ok
    assert solution.excluded.sum() == 0 or "%" in str(reach(exposure, data.y))


@pytest.mark.parametrize("bias_free_head", [False, True])
def test_a_length_that_no_margin_reads_changes_no_verdict(bias_free_head):
    """Divided by its length at the very end, a vector has the margins' signs it had before."""
    torch.manual_seed(5)
    first, head = SAGEConv(5, CLASSES), nn.Linear(CLASSES, CLASSES, bias=False)
    head = head if bias_free_head else nn.Identity()

    class Last(nn.Module):
        def __init__(self, length):
            super().__init__()
            self.first, self.head, self.length = first, head, length

        def forward(self, x, edge_index):
            out = self.first(x, edge_index)
            return self.head(nn.functional.normalize(out) if self.length else out)

    data = small_graph()
    plain = solve(expose(Last(False), data), "all")
    exposure = expose(Last(True), data)
    solution = solve(exposure, "all")
    assert exposure.head is not None and solution.check(exposure).ok
    clear = abs(plain.margin) > 1e-4
    assert (solution.reachable == plain.reachable)[clear & solution.decided].all()
    assert solution.decided[clear].all() and plain.reachable[clear].any()


def test_an_explanation_makes_the_model_say_so():
    data, model = small_graph(), model_of("relu")
    exposure = expose(model, data)
    solution = solve(exposure, "all")
    wrong = solution.reachable & (
        model(data.x, data.edge_index).argmax(1).numpy()[solution.node] != solution.target
    )
    i = int(wrong.nonzero()[0][0])
    node, target = int(solution.node[i]), int(solution.target[i])
    explainer = Explainer(
        model, OracleExplainer(exposure), explanation_type="phenomenon", edge_mask_type="object",
        model_config=ModelConfig("multiclass_classification", "node", "raw"),
    )  # fmt: skip
    labels = torch.full((data.num_nodes,), target)
    explanation = explainer(data.x, data.edge_index, target=labels, index=node)
    masked = explainer.get_masked_prediction(
        data.x, data.edge_index, edge_mask=explanation.edge_mask
    )
    assert int(masked[node].argmax()) == target
    assert explanation.solution.verdict[0] == "can"
