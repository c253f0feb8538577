"""The peers of the bench answer the same questions; trained models' exposures are the models."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.head_solvers import compare_with_milp, peer_figures, run_highs, triangle_model
from benchmarks.heads import HEADS, Journal, head_exposure, parse_widths, time_stages, trained
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure.heads.operations import Curved
from gnn_repair.highs import new_highs
from gnn_repair.oracle import solve
from gnn_repair.oracle.heads.polytope import base_of
from tests.helpers.oracle.head_cases import tailed
from tests.helpers.oracle.head_graph import small_graph
from tests.helpers.oracle.head_references import exact, triangle

CAMPAIGN = int(os.environ.get("GNN_REPAIR_HEAD_NODES", "0"))


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


def test_stages_leave_less_and_less_open():
    data = small_graph()
    exposure = head_exposure(trained(data, "relu", 6, epochs=10), data)
    position, target = np.arange(data.num_nodes), data.y.numpy()
    stages = time_stages(exposure, position, target)
    shares = [stage.decided for stage in stages]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert stages[0].reached == data.num_nodes
    figures = peer_figures(exposure, position, target, 5)
    assert 0 <= figures["LP excludes (%)"] <= 100
    with pytest.raises(InputError, match="no list of hidden units"):
        parse_widths("64,many")


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


def test_curved_heads_are_not_given_to_a_milp():
    data = small_graph()
    exposure = head_exposure(trained(data, "gelu", 6, epochs=2), data)
    assert compare_with_milp(exposure, solve(exposure, data.y), np.arange(3)) is None


def test_rows_are_kept_and_read_again(tmp_path):
    journal = Journal(tmp_path / "rows")
    assert journal.read("cora-relu") is None
    journal.write("cora-relu", {"can": 3, "peer": None, "decided (µs)": 1.5})
    assert journal.read("cora-relu") == {"can": 3, "peer": None, "decided (µs)": 1.5}
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["cora-relu.json"]
    (tmp_path / "rows" / "cora-relu.json").write_text("[1")
    with pytest.raises(FileFormatError, match="delete it"):
        journal.read("cora-relu")
    assert Journal(None).read("cora-relu") is None


@pytest.mark.skipif(not CAMPAIGN, reason="set GNN_REPAIR_HEAD_NODES and GNN_REPAIR_DATA")
@pytest.mark.parametrize("kind", ["relu", "bn-residual", "jk-cat"])
@pytest.mark.parametrize("name", ["cora", "chameleon", "actor"])
def test_errors_of_real_models_against_a_milp(name, kind):
    data = load_dataset(name)
    exposure = head_exposure(trained(data, kind, 64, 150), data)
    wrong = (exposure.frozen_logits[0].argmax(1) != data.y) & data.test_mask[:, 0]
    solution = solve(exposure, data.y, wrong)
    base = base_of(exposure, solution.recipient)
    number, highs, compared = unit_number(base), milp(), 0
    highs.setOptionValue("time_limit", 60.0)
    # Those that were hard come first.
    for i in np.argsort(-solution.status, kind="stable")[: -(-CAMPAIGN // 9)]:
        position, target = int(solution.recipient[i]), int(solution.target[i])
        upper = run_highs(highs, triangle_model(base, position, target, number), exact=True)
        ended = highs.modelStatusToString(highs.getModelStatus()) == "Optimal"
        if ended and abs(upper) > 1e-4:
            assert solution.verdict[i] == ("can" if upper > 0 else "cannot")
            compared += 1
    print(f"\n{name} {kind}: {compared} compared, no contradiction")
