"""The peers of the bench answer the same questions; trained models' exposures are the models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.head_solvers import compare_with_milp, run_highs, triangle_model
from benchmarks.heads import HEADS, head_exposure, trained
from gnn_repair.exposure.heads.operations import Curved
from gnn_repair.highs import new_highs
from gnn_repair.oracle import solve
from gnn_repair.oracle.heads.bound import base_of
from tests.helpers.oracle.head_cases import tailed
from tests.helpers.oracle.head_graph import small_graph
from tests.helpers.oracle.head_references import exact, triangle


def unit_number(base) -> int:
    return next(k for k, op in enumerate(base.graph.operations) if isinstance(op, Curved))


def milp():
    highs = new_highs(1e-7)
    for name, value in (("presolve", "on"), ("solver", "choose"), ("mip_rel_gap", 0.0)):
        highs.setOptionValue(name, value)
    return highs


@pytest.mark.parametrize("kind", ["relu", "jk_cat", "bn_residual"])
def test_the_peers_models_are_those_of_the_references(kind):
    exposure = tailed(kind, 12, 2)
    base = base_of(exposure)
    number = unit_number(base)
    for position, target in ((3, 0), (7, 2)):
        model = triangle_model(base, position, target, number)
        found = run_highs(new_highs(1e-7), model, exact=False)
        assert found == pytest.approx(triangle(exposure, position, target), abs=1e-5)
        whole = run_highs(milp(), model, exact=True)
        assert whole == pytest.approx(exact(exposure, position, target), abs=1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_a_trained_models_exposure_is_the_model(kind):
    data = small_graph()
    model = trained(data, kind, 6, epochs=10)
    exposure = head_exposure(model, data)
    torch.testing.assert_close(exposure.logits(), exposure.frozen_logits, atol=1e-5, rtol=1e-5)
    shifted = exposure.aggregate.coefficients.double() * 1.3
    own = exposure.replay(shifted[0]).double()
    torch.testing.assert_close(exposure.logits(shifted)[0], own, atol=1e-5, rtol=1e-5)
    solution = solve(exposure, data.y)
    assert solution.check(exposure).ok


@pytest.mark.parametrize("kind", ["relu", "bn-residual", "jk-cat", "mlp", "layer-norm"])
def test_a_milp_of_another_build_contradicts_no_verdict(kind):
    data = small_graph()
    exposure = head_exposure(trained(data, kind, 6, epochs=10), data)
    solution = solve(exposure, "all")
    chosen = np.arange(0, len(solution), 7)
    found = compare_with_milp(exposure, solution, chosen)
    assert found.contradictions == () and found.compared > len(chosen) // 2
    assert {*solution.verdict[chosen]} == {"can", "cannot"}
    margin = np.where(solution.reachable, -2.0, 2.0)
    opposite = replace(solution, margin=margin, bound=margin + 1)
    wrong = compare_with_milp(exposure, opposite, chosen)
    assert len(wrong.contradictions) == wrong.compared == found.compared
