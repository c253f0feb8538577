"""Real cases end to end, against the pieces called one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from gnn_repair.backbones import BACKBONES, Shape, train_backbone
from gnn_repair.backbones.architectures import GCN
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.methods import FROZEN, MARKERS, METHODS, RUNGS, Look
from gnn_repair.oracle.problems import FAILED
from gnn_repair.oracle.solver import solve
from gnn_repair.repair import Reweighting, SetTranslation
from gnn_repair.repair.adapters import FittedTranslation
from gnn_repair.repair.folds import build_repair
from gnn_repair.repair.ladder.rungs import calibration_error
from gnn_repair.reporting.writing import report
from gnn_repair.results.records import PARTS, check_methods
from gnn_repair.study import (
    INDEPENDENT,
    PAPER,
    Case,
    Store,
    make_tables,
    measures,
    override,
    run_study,
)
from gnn_repair.study.case import Settings, run_case
from gnn_repair.study.measures import (
    errors_fixed,
    further_scores,
    shifts_inside,
    solve_displacements,
    summarise_oracle,
)
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.repair.planted_graphs import climbed, planted, planted_exposure
from tests.helpers.report.pages import payload_of
from tests.helpers.study.tiny import TINY, tiny_graph

# One real case end to end, against the pieces called one by one.

PROTOCOL = override(PAPER, [*TINY, "backbones.seed=1", "repairs.seed=2"])


def uneven_graph():
    """Masks differ in size from split to split."""
    graph = tiny_graph()
    graph.test_mask[:9, 0] = graph.val_mask[40:44, 2] = False
    return graph


@pytest.fixture(scope="module")
def data():
    return uneven_graph()


@pytest.fixture(scope="module")
def records(data):
    case = Case("mine", "gcn", (0, 2), check_methods(("oracle", *METHODS)))
    stages: list[str] = []
    settings = Settings(PROTOCOL, lambda name: data, BACKBONES, "cpu")
    made = run_case(settings, case, stages.append)
    assert {"exposing", "oracle", "training, epoch 0"} <= set(stages)
    return made


@pytest.fixture(scope="module")
def frozen(data):
    shape = Shape(8, 2, 0.5)
    budget = PROTOCOL.backbones.short
    return train_backbone(GCN(shape), data, (0, 2), device="cpu", budget=budget, seed=1)


@pytest.fixture(scope="module")
def exposure(frozen):
    return expose(frozen)


def fitted(repair, exposure):
    data = uneven_graph()
    masks = data.train_mask[:, [0, 2]], data.val_mask[:, [0, 2]]
    return repair.fit(exposure, data.y, *masks, device="cpu")


def shares(right, mask):
    """Of each member's [S, N] right answers, those within its column of a mask [N, S]."""
    return [float(own[mask[:, s]].double().mean()) for s, own in enumerate(right)]


def test_a_record_a_split(records, data):
    assert [record.split for record in records] == [0, 2]
    for record in records:
        assert (record.protocol, record.members, record.stack) == (PROTOCOL.digest, 2, [0, 2])
        assert set(record.methods) == set(METHODS)
        assert record.graph["nodes"] == 60
        sizes = {part: int(data[f"{part}_mask"][:, record.split].sum()) for part in PARTS}
        assert {part: record.graph[part] for part in PARTS} == sizes
        assert torch.__version__.startswith(record.environment["torch"])
        assert set(METHODS) | {"frozen", "oracle", "evidence", "total"} <= set(record.seconds)


def test_accuracies_are_those_of_the_pieces(records, frozen, exposure, data):
    repair = Reweighting(budget=PROTOCOL.repairs.reweighting, hidden=8, seed=2)
    reweighted = fitted(repair, exposure)
    for part in PARTS:
        mask = data[f"{part}_mask"][:, [0, 2]]
        expected = frozen.accuracy(data[f"{part}_mask"]).tolist()
        assert [record.frozen[part] for record in records] == pytest.approx(expected)
        expected = shares(reweighted.predict(exposure) == data.y, mask)
        own = [record.methods["reweighting"] for record in records]
        assert [row[part] for row in own] == pytest.approx(expected)
    assert [row["best_epoch"] for row in own] == reweighted.best_epoch.tolist()
    assert {row["parameters"] for row in own} == {reweighted.num_parameters}


def test_chance_is_counted_class_by_class(records, frozen, exposure, data):
    """At every error, from a solution of each class by itself."""
    for member, record in enumerate(records):
        said = frozen.logits[member].argmax(1)
        errors = (data.test_mask[:, record.split] & (said != data.y)).nonzero().flatten()
        wins = torch.stack(
            [
                torch.from_numpy(solution.reachable[solution.member == member])
                for label in range(3)
                for solution in [solve(exposure, torch.full((60,), label), errors)]
            ],
            dim=1,
        ).double()
        other = torch.ones_like(wins)
        rows = torch.arange(len(errors))
        other[rows, data.y[errors]] = other[rows, said[errors]] = 0
        chance = float((wins * other).sum(1).div(other.sum(1)).mean())
        found = record.oracle["test"]
        assert found["chance_reach"] == pytest.approx(chance)
        assert found["excess"] == pytest.approx(found["error_reach"] - chance)
        assert found["reachable_classes"] == pytest.approx(float(wins.sum(1).mean()))
        assert "chance_reach" not in record.oracle["val"]


def test_the_oracle_counts_what_it_should_and_what_is_fixed_of_it(records, frozen, exposure, data):
    repair = Reweighting(budget=PROTOCOL.repairs.reweighting, hidden=8, seed=2)
    predicted = fitted(repair, exposure).predict(exposure)
    for member, record in enumerate(records):
        mask = data.test_mask[:, record.split]
        solution = solve(exposure.member(member), data.y, mask)
        errors = frozen.logits[member].argmax(1) != data.y
        wrong, reachable = errors.numpy()[solution.node], solution.reachable
        found = record.oracle["test"]
        expected = {"nodes": mask.sum(), "reachable": reachable.sum(), "errors": wrong.sum()}
        expected |= {"reachable_errors": (wrong & reachable).sum(), "undecided": 0}
        expected |= {"true_class_reach": reachable.mean(), "error_reach": reachable[wrong].mean()}
        expected |= {"support": solution.support[reachable].mean()}
        assert {name: found[name] for name in expected} == pytest.approx(
            {name: float(value) for name, value in expected.items()}
        )
        assert record.oracle["largest_gap"] < 1e-9
        assert sum(record.oracle["status"].values()) == int(mask.sum()) + record.graph["val"]
        nodes = solution.node[wrong & reachable]
        fixed = int((predicted[member] == data.y)[nodes].sum())
        assert record.methods["reweighting"]["reachable_errors_fixed"] == fixed
        # A reweighting is itself a proof of reach: it fixes no other errors.
        right = (predicted[member] == data.y) & errors & mask
        assert int(right.sum()) == fixed
        for name in METHODS:
            most = found["reachable_errors"]
            assert 0 <= record.methods[name]["reachable_errors_fixed"] <= most


def test_the_protocol_s_thresholds_decide(exposure, data):
    masks = {"val": data.val_mask[:, [0, 2]], "test": data.test_mask[:, [0, 2]]}
    strict = override(PAPER, ["oracle.reachable_above=1e9"]).oracle
    first = summarise_oracle(exposure, data.y, masks, strict).summaries[0]
    assert (first["test"]["reachable"], first["test"]["true_class_reach"]) == (0, 0.0)
    assert first["test"]["support"] is None
    loose = override(PAPER, ["oracle.reachable_above=0"]).oracle
    for summary in (first, summarise_oracle(exposure, data.y, masks, loose).summaries[0]):
        assert "chance_reach" not in summary["test"]  # which is of the usual threshold
    sparse = override(PAPER, ["oracle.active_above=1e9"]).oracle
    first = summarise_oracle(exposure, data.y, masks, sparse).summaries[0]
    assert first["test"]["support"] == 0.0


def test_what_no_solver_answers_is_in_no_share_of_an_affine_model(exposure, data, monkeypatch):
    masks = {part: data[f"{part}_mask"][:, [0, 2]] for part in ("val", "test")}
    answers = solve(exposure, data.y, masks["val"] | masks["test"])
    lost = answers.node % 3 == 0
    bound = np.where(lost, np.nan, answers.bound)
    bound[((answers.member == 1) & ~lost).nonzero()[0][-1]] += 0.5
    margin, status = np.where(lost, np.nan, answers.margin), answers.status
    status = np.where(lost, FAILED, status)
    failed = replace(answers, status=status, margin=margin, bound=bound)
    monkeypatch.setattr("gnn_repair.study.measures.solve", lambda *given: failed)
    found = summarise_oracle(exposure, data.y, masks, PROTOCOL.oracle).summaries
    for member, summary in enumerate(found):
        mine = (failed.member == member) & masks["test"][failed.node, member].numpy()
        known, test = mine & ~lost, summary["test"]
        assert test["undecided"] == (mine & lost).sum() > 0
        assert (test["nodes"], test["reachable"]) == (known.sum(), failed.reachable[known].sum())
        assert test["true_class_reach"] == pytest.approx(answers.reachable[known].mean())
        assert summary["status"]["failed"] == (lost & (failed.member == member)).sum()
        assert summary["largest_gap"] == pytest.approx(0.5 * member, abs=1e-9)


def test_a_subset_of_methods_is_all_that_is_run_and_counted(data, monkeypatch):
    """By a clock that is a second later whenever it is read."""
    clock = SimpleNamespace(perf_counter=count().__next__)
    monkeypatch.setattr("gnn_repair.study.case.time", clock)
    settings = Settings(PROTOCOL, lambda name: data, BACKBONES, "cpu")
    (record,) = run_case(settings, Case("mine", "sgc", (1,), ("refit_head",)), lambda text: None)
    assert list(record.methods) == ["refit_head"]
    assert record.oracle is None
    stages = dict.fromkeys(("frozen", "expose", "refit_head", "evidence"), 1)
    assert record.seconds == {**stages, "total": 8}


def test_a_backbone_of_one_s_own_and_data_of_one_s_own(tmp_path, data):
    outcome = run_study(
        {"mine": data},
        {"narrow": GCN(Shape(4, 1, 0.0)), "usual": GCN},
        [0],
        store=tmp_path,
        methods=["refit_head"],
        protocol=PROTOCOL,
        device="cpu",
    )
    assert (outcome.stored, outcome.failures) == (2, {})
    sizes = {r.backbone: r.frozen["parameters"] for r in Store(tmp_path).records(PROTOCOL.digest)}
    # Two layers and a classifier with biases: 6·w + w, w·w + w, 3·w + 3.
    assert sizes == {
        "narrow": 6 * 4 + 4 + 4 * 4 + 4 + 3 * 4 + 3,
        "usual": 6 * 8 + 8 + 8 * 8 + 8 + 3 * 8 + 3,
    }


def test_data_are_loaded_as_the_protocol_and_the_root_say(monkeypatch, tmp_path):
    seen = []

    def load(*given, **options):
        seen.append((given, options))
        raise InputError("not here")

    monkeypatch.setattr("gnn_repair.study.case.load_dataset", load)
    given = {"store": tmp_path / "store", "root": tmp_path, "protocol": INDEPENDENT}
    outcome = run_study(["builtin"], ["gcn"], [0], device="cpu", **given)
    assert outcome.failures == {"builtin × gcn": "not here"}
    assert seen == [(("builtin", tmp_path), {"draw": "numpy"})]


# A method is declared once: whoever adds one sees it in records, tables and pages.


def test_a_further_method_is_in_records_tables_and_on_the_page(
    monkeypatch, exposure, data, tmp_path
):
    look, scaling = Look("circle", "#123456", "#abcdef"), METHODS["temperature_scaling"]
    declared = replace(scaling, title="Ours", output="one class", look=look)
    monkeypatch.setitem(METHODS, "ours", declared)
    case = Case("mine", "gcn", (0, 1), check_methods(["temperature_scaling", "ours"]))
    settings = Settings(PROTOCOL, lambda name: data, BACKBONES, "cpu")
    records = run_case(settings, case, lambda text: None)
    for record in records:
        assert record.methods["ours"] == record.methods["temperature_scaling"]
    controls, full = make_tables(records, ["controls", "full-controls"])
    assert controls.sheets[0].rows["Ours (not in the paper)"][0] == "one class"
    assert "Ours (not in the paper)" in [sheet.title for sheet in full.sheets]
    held = fitted(build_repair(declared, PROTOCOL.repairs, exposure), exposure)
    repairs = {"ours": held, "mine": held}
    payload = payload_of(report(exposure, data.y, tmp_path / "page.html", repairs=repairs))
    titles = {repair["key"]: repair["title"] for repair in payload["run"]["repairs"]}
    assert titles == {"ours": "ours", "mine": "mine"}
    drawn = {"marker": "circle", "colour": "#123456", "dark": "#abcdef", "message_set": False}
    assert payload["looks"]["ours"] == drawn
    assert set(payload["looks"]) == set(METHODS)


def test_looks_that_nobody_can_draw_are_refused():
    with pytest.raises(InputError, match="marker is 'blob'; choose from diamond"):
        Look("blob", "#000000", "#000000")
    with pytest.raises(InputError, match="dark is 'red'; write it as"):
        Look("circle", "#000000", "red")
    drawn = {(m.look.marker, m.look.colour) for m in METHODS.values()}
    assert len(drawn) == len(METHODS)
    assert {marker for marker, _ in drawn} <= set(MARKERS)


# Counts of errors fixed and of shifts inside D_v, on planted predictions and planted shifts.


def test_only_reachable_errors_of_test_nodes_count():
    y = torch.tensor([0, 1, 2, 0, 1])
    #                             fixed     fixed     not reachable, not test, still wrong
    predicted = torch.tensor([[0, 1, 2, 0, 0], [0, 0, 0, 0, 0]])
    wrong = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 0, 1]]).bool()
    test = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1]]).bool().t()
    counted = errors_fixed(predicted, y, wrong, test)
    assert counted == [{"reachable_errors_fixed": 2}, {"reachable_errors_fixed": 1}]
    assert errors_fixed(predicted, y, None, test) == [{}, {}]


def test_planted_shifts(exposure, monkeypatch):
    """Zero is inside, a shift beyond all contributions outside; the frozen rule has no shift."""
    repair = SetTranslation(budget=PROTOCOL.repairs.set_translation, hidden=8)
    found = replace(fitted(repair, exposure), best_epoch=torch.tensor([3, 3]))
    far = torch.tensor([2e3, -1e3, -1e3])
    shift = torch.zeros(2, exposure.num_recipients, 3)
    shift[0, ::2] = far
    shift[1, 10:] = far
    shift[1, 0] = torch.nan
    monkeypatch.setattr(FittedTranslation, "shift", lambda self, exposure: shift.clone())
    test = torch.zeros(60, 2, dtype=torch.bool)
    test[:10, 0] = True
    test[:16, 1] = True
    counts = {"shifts_undecided": 0}
    assert shifts_inside(found, exposure, test) == [
        {"shifts": 10, "shifts_inside": 5, **counts},
        {"shifts": 15, "shifts_inside": 9, **counts},
    ]
    kept = replace(found, best_epoch=torch.tensor([0, 3]))
    assert shifts_inside(kept, exposure, test)[0] == {}
    assert shifts_inside(kept, exposure, test)[1]["shifts"] == 15
    nothing = replace(found, best_epoch=torch.tensor([0, 0]))
    other = fitted(Reweighting(budget=PROTOCOL.repairs.reweighting, hidden=8), exposure)
    for without in (nothing, other):
        assert shifts_inside(without, exposure, test) == [{}, {}]
    solved = measures.solve_with_second_attempts
    unproved = lambda *given: replace(solved(*given), bound=np.zeros(25))  # noqa: E731
    monkeypatch.setattr(measures, "solve_with_second_attempts", unproved)
    assert [own["shifts_undecided"] for own in shifts_inside(found, exposure, test)] == [5, 6]


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_shifts_are_judged_at_their_own_member_s_scale(offset, monkeypatch):
    """One message per node moves nothing, so a shift is as far away as it is long."""
    table = np.array([[1.0, -1.0, 0.0]] * 4) + offset  # which all classes have in common
    one = exposure_of(Numbers(np.ones((4, 1), np.int64), np.ones(4), table, np.zeros((4, 3))))
    large = {"coefficients": 10, "frozen_logits": 1000, "contributions": 100, "fixed_logits": 1}
    both = {n: torch.cat([getattr(one, n), k * getattr(one, n)]) for n, k in large.items()}
    pair, shift = replace(one, **both), torch.tensor([5.0, -5.0, 0.0]).expand(2, 4, 3)
    monkeypatch.setattr("gnn_repair.study.measures.REALIZABLE", 1e-2)
    everyone = torch.ones(4, 2, dtype=torch.bool)
    found = solve_displacements(pair, shift, everyone)
    assert found.inside.tolist() == [False] * 4 + [True] * 4
    for s in range(2):
        alone = solve_displacements(pair.member(s), shift[:1], everyone[:, :1])
        assert (alone.inside == found.inside[found.member == s]).all()


def test_without_similar_is_without_every_candidate_that_reads_similar_nodes():
    """All weight on one candidate after another: what is left to judge without similar nodes."""
    data, held = planted("labels")[1], planted_exposure("labels")
    fitted = climbed("labels")
    assert "smoothed" in fitted.candidates  # a combination of those before it
    for place, name in enumerate(fitted.candidates):
        weights = torch.zeros_like(fitted.weights)
        weights[:, place] = 1
        one = replace(fitted, constants={**fitted.constants, "weights": weights})
        (found,) = further_scores(one, held, data.y, data.test_mask)
        if name == "smoothed" or (name != FROZEN and "similar" in RUNGS[name].blocks):
            assert "test without similar" not in found
        else:
            assert found["test without similar"] == found[f"test {name}"]


def test_calibration_errors_are_at_temperatures_of_validation_nodes():
    """The frozen model's by another method: test labels have no part in them."""
    data, held, fitted = planted("labels")[1], planted_exposure("labels"), climbed("labels")
    (found,) = further_scores(fitted, held, data.y, data.test_mask)
    val, test, logits = data.val_mask[:, 0], data.test_mask[:, 0], held.frozen_logits[0]

    def loss(inverse):
        return float(torch.nn.functional.cross_entropy(logits[val] * inverse, data.y[val]))

    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded").x
    for name, said in {
        " frozen scaled": logits * best,
        " frozen": logits,
        "": fitted.member_logits(held)[0],
    }.items():
        expected = calibration_error(said.log_softmax(1)[test], data.y[test])
        assert found[f"calibration error{name}"] == pytest.approx(expected, abs=1e-4)
