"""Real cases end to end, against the pieces called one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch_geometric.data import Data

from gnn_repair.backbones import BACKBONES, Backbone, Shape, train_backbone
from gnn_repair.backbones.architectures import GCN
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.methods import FROZEN, MARKERS, METHODS, RUNGS, Look, Method
from gnn_repair.oracle.solver import solve
from gnn_repair.repair import (
    CrossFitted,
    EvidenceLadder,
    FittedRepair,
    Repair,
    Reweighting,
    SetTranslation,
)
from gnn_repair.repair.adapters import FittedTranslation
from gnn_repair.repair.base import about, untrained_statistics
from gnn_repair.repair.baselines import FeaturePerceptron
from gnn_repair.repair.folds import build_repair
from gnn_repair.repair.ladder.rungs import calibration_error
from gnn_repair.reporting.figures import _look
from gnn_repair.reporting.writing import report
from gnn_repair.results.records import check_methods
from gnn_repair.study import PAPER, Case, Store, make_tables, override, run_study
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

PROTOCOL = override(PAPER, TINY)


@pytest.fixture(scope="module")
def data():
    return tiny_graph()


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
    return train_backbone(GCN(shape), data, (0, 2), device="cpu", budget=budget)


def test_a_record_a_split(records):
    assert [record.split for record in records] == [0, 2]
    for record in records:
        assert record.protocol == PROTOCOL.digest
        assert record.members == 2
        assert set(record.methods) == set(METHODS)
        assert record.graph["nodes"] == 60
        assert record.graph["train"] + record.graph["val"] + record.graph["test"] == 60
        assert record.environment["torch"] == torch.__version__
        assert set(METHODS) | {"frozen", "oracle", "evidence", "total"} <= set(record.seconds)


def test_frozen_accuracies_are_the_backbone_s(records, frozen, data):
    for part in ("train", "val", "test"):
        expected = frozen.accuracy(data[f"{part}_mask"])
        found = torch.tensor([record.frozen[part] for record in records])
        torch.testing.assert_close(found, expected)


def test_repair_accuracies_are_the_repair_s(records, frozen, data):
    exposure, columns = expose(frozen), [0, 2]
    repair = Reweighting(budget=PROTOCOL.repairs.reweighting, hidden=8)
    fitted = repair.fit(
        exposure, data.y, data.train_mask[:, columns], data.val_mask[:, columns], device="cpu"
    )
    right = (fitted.predict(exposure) == data.y).t()
    mask = data.test_mask[:, columns]
    expected = (right & mask).sum(0) / mask.sum(0)
    found = [record.methods["reweighting"] for record in records]
    torch.testing.assert_close(torch.tensor([row["test"] for row in found]), expected)
    assert [row["best_epoch"] for row in found] == fitted.best_epoch.tolist()
    assert {row["parameters"] for row in found} == {fitted.num_parameters}


def test_chance_is_counted_class_by_class(records, frozen, data):
    """At every error, from a solution of each class by itself."""
    exposure = expose(frozen)
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


def test_the_ladder_s_record_holds_every_rung(records, frozen, data):
    exposure, columns = expose(frozen), [0, 2]
    settings = PROTOCOL.repairs
    ladder = EvidenceLadder(budget=settings.evidence_ladder)
    masks = data.train_mask[:, columns], data.val_mask[:, columns]
    fitted = ladder.fit(exposure, data.y, *masks, data=data, device="cpu")
    for member, record in enumerate(records):
        found, test = record.methods["evidence_ladder"], data.test_mask[:, columns[member]]
        for place, (name, told) in enumerate(fitted.rung_log_probs(exposure).items()):
            right = (told[member].argmax(1) == data.y)[test].double().mean()
            assert found[f"test {name}"] == pytest.approx(float(right))
            assert found[f"out-of-fold {name}"] == pytest.approx(
                float(fitted.out_of_fold[name][member])
            )
            assert found[f"weight {name}"] == pytest.approx(float(fitted.weights[member, place]))
            assert found[f"chosen {name}"] == (fitted.chosen[member] == name)
        assert found["test frozen"] == pytest.approx(record.frozen["test"])
        assert 0 <= found["calibration error"] <= 1
        labels = fitted.constants["labels"][member]
        said = fitted.constants["out_of_fold"][member].argmax(2)
        for label in range(3):
            own = labels == label
            hits = (said[:, own] == label).double().mean(1)
            assert found[f"nodes of class {label}"] == int(own.sum())
            for place, name in enumerate(fitted.candidates[1:], 1):
                key = f"out-of-fold gain {name} class {label}"
                assert found[key] == pytest.approx(float(hits[place] - hits[0]))
        assert 0 <= record.methods["retrained_backbone"]["test single"] <= 1


def test_the_oracle_counts_what_it_should(records, frozen, data):
    exposure = expose(frozen)
    for member, record in enumerate(records):
        mask = data.test_mask[:, record.split]
        solution = solve(exposure.member(member), data.y, mask)
        wrong = (frozen.logits[member].argmax(1) != data.y).numpy()[solution.node]
        found = record.oracle["test"]
        assert found["nodes"] == int(mask.sum()) == len(solution)
        assert found["reachable"] == int(solution.reachable.sum())
        assert found["errors"] == int(wrong.sum())
        assert found["reachable_errors"] == int((wrong & solution.reachable).sum())
        assert found["true_class_reach"] == pytest.approx(solution.reachable.mean())
        assert found["support"] == pytest.approx(solution.support[solution.reachable].mean())
        assert 1 - found["true_class_reach"] <= 1 - record.frozen["test"]
        assert record.oracle["largest_gap"] < 1e-9
        assert sum(record.oracle["status"].values()) == int(mask.sum()) + record.graph["val"]


def test_reachable_errors_fixed_are_those_of_the_pieces(records, frozen, data):
    exposure, columns = expose(frozen), [0, 2]
    repair = Reweighting(budget=PROTOCOL.repairs.reweighting, hidden=8)
    masks = data.train_mask[:, columns], data.val_mask[:, columns]
    predicted = repair.fit(exposure, data.y, *masks, device="cpu").predict(exposure)
    for member, record in enumerate(records):
        mask = data.test_mask[:, columns[member]]
        one = exposure.member(member)
        solution = solve(one, data.y, mask)
        errors = frozen.logits[member].argmax(1) != data.y
        fixed = sum(
            bool(errors[node] and predicted[member, node] == data.y[node])
            for node, reachable in zip(solution.node.tolist(), solution.reachable, strict=True)
            if reachable
        )
        assert record.methods["reweighting"]["reachable_errors_fixed"] == fixed
        # A reweighting is itself a proof of reach: it fixes no other errors.
        right = (predicted[member] == data.y) & errors & mask
        assert int(right.sum()) == fixed
        for name in METHODS:
            most = record.oracle["test"]["reachable_errors"]
            assert 0 <= record.methods[name]["reachable_errors_fixed"] <= most


def test_the_protocol_s_thresholds_decide(frozen, data):
    exposure = expose(frozen)
    masks = {"val": data.val_mask[:, [0, 2]], "test": data.test_mask[:, [0, 2]]}
    strict = override(PAPER, ["oracle.reachable_above=1e9"]).oracle
    first = summarise_oracle(exposure, data.y, masks, strict).summaries[0]
    assert (first["test"]["reachable"], first["test"]["true_class_reach"]) == (0, 0.0)
    assert first["test"]["support"] is None
    sparse = override(PAPER, ["oracle.active_above=1e9"]).oracle
    first = summarise_oracle(exposure, data.y, masks, sparse).summaries[0]
    assert first["test"]["support"] == 0.0


def test_a_subset_of_methods_is_all_that_is_run(data):
    settings = Settings(PROTOCOL, lambda name: data, BACKBONES, "cpu")
    (record,) = run_case(settings, Case("mine", "sgc", (1,), ("refit_head",)), lambda text: None)
    assert list(record.methods) == ["refit_head"]
    assert record.oracle is None
    assert "oracle" not in record.seconds


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


@pytest.mark.parametrize(
    ("datasets", "backbones", "message"),
    [
        (lambda d: {"broken": with_nan(d), "mine": d}, ["gcn"], "dataset 'broken' cannot be used"),
        (lambda d: {"mine": Data(x=d.x)}, ["gcn"], "no tensor edge_index"),
        (lambda d: {"mine": d}, {"mine": Backbone}, "cannot be built"),
    ],
)
def test_bad_objects_are_refused_before_the_first_case(
    tmp_path, data, datasets, backbones, message
):
    with pytest.raises(InputError, match=message):
        run_study(datasets(data), backbones, [0], store=tmp_path, device="cpu")
    assert list(tmp_path.iterdir()) == []


def with_nan(data):
    broken = data.clone()
    broken.x = torch.full_like(data.x, float("nan"))
    return broken


# A method is declared once: whoever adds one sees it in records, tables, figures and pages.


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedMajority(FittedRepair):
    """Everybody gets the commonest training class."""

    def member_logits(self, exposure: Any) -> torch.Tensor:
        classes = self._matching(exposure)["counts"].double()
        return classes.unsqueeze(1).expand(-1, exposure.num_recipients, -1)


@dataclass(frozen=True)
class Majority(Repair[FittedMajority]):
    """The whole file of a further repair."""

    fitted_type = FittedMajority

    def learn(self, task):
        exposure, train = task.exposure, task.train_targets
        counts = torch.zeros(exposure.num_members, exposure.num_classes)
        counts.scatter_add_(1, train.labels, train.real.float())
        values = {"parameters": {}, "constants": {"counts": counts}}
        return self.fitted(**about(exposure), **untrained_statistics(exposure), **values)


@pytest.fixture
def declared(monkeypatch):
    """The one line."""
    method = Method(
        title="Majority vote",
        output="one class",
        message_set=False,
        repair=Majority,
        look=Look("circle", "#123456", "#abcdef"),
        trained=False,
        batched=False,
        from_paper=False,
    )
    monkeypatch.setitem(METHODS, "majority", method)
    return method


@pytest.fixture
def data_declaring():
    return tiny_graph()


def test_a_further_method_is_in_records_and_tables(declared, data_declaring):
    case = Case("mine", "gcn", (0, 1), check_methods(["reweighting", "majority"]))
    settings = Settings(PROTOCOL, lambda name: data_declaring, BACKBONES, "cpu")
    records = run_case(settings, case, lambda text: None)
    for split, record in enumerate(records):
        labels = data_declaring.y[data_declaring.train_mask[:, split]]
        commonest = int(torch.bincount(labels).argmax())
        test = data_declaring.y[data_declaring.test_mask[:, split]]
        expected = float((test == commonest).double().mean())
        assert record.methods["majority"]["test"] == pytest.approx(expected)
    controls, full = make_tables(records, ["controls", "full-controls"])
    assert controls.sheets[0].rows["Majority vote (not in the paper)"][0] == "one class"
    assert "Majority vote (not in the paper)" in [sheet.title for sheet in full.sheets]


def test_a_further_method_is_on_the_page_and_in_the_figures(declared, data_declaring, tmp_path):
    from gnn_repair.backbones import Shape, train_backbone

    backbone = BACKBONES["gcn"](Shape(hidden=8))
    budget = PROTOCOL.backbones.short
    frozen = train_backbone(backbone, data_declaring, (0,), device="cpu", budget=budget)
    exposure = expose(frozen)
    masks = data_declaring.train_mask[:, :1], data_declaring.val_mask[:, :1]
    fitted = build_repair(declared, PROTOCOL.repairs, exposure).fit(
        exposure, data_declaring.y, *masks, device="cpu"
    )
    path = report(
        exposure,
        data_declaring.y,
        tmp_path / "page.html",
        repairs={"majority": fitted, "mine": fitted},
    )
    payload = payload_of(path)
    titles = {repair["key"]: repair["title"] for repair in payload["run"]["repairs"]}
    assert titles == {"majority": "Majority vote", "mine": "mine"}
    look = payload["looks"]["majority"]
    assert look == {
        "marker": "circle",
        "colour": "#123456",
        "dark": "#abcdef",
        "message_set": False,
    }
    assert set(payload["looks"]) == set(METHODS)
    assert _look("majority") == ("o", "#123456")
    assert _look("nobody's") == ("P", "#9467bd")


def test_every_method_is_built_as_the_protocol_says(data_declaring):
    from gnn_repair.backbones import train_backbone

    frozen = train_backbone("sgc", data_declaring, (0,), budget=PROTOCOL.backbones.short)
    exposure = expose(frozen)
    changed = override(PROTOCOL, ["repairs.seed=3", "repairs.dropout=0.4"]).repairs
    built = {name: build_repair(method, changed, exposure) for name, method in METHODS.items()}
    for name in ("reweighting", "set_translation", "node_translation", "refit_head"):
        assert built[name].budget == getattr(changed, name)
        assert built[name].seed == 3
    assert {built[name].hidden for name in ("reweighting", "set_translation")} == {8}
    assert [built[name].dropout for name in ("reweighting", "refit_head")] == [0.4, 0.0]
    assert built["correct_and_smooth"].layers == built["label_propagation"].layers == 2
    ladder = built["evidence_ladder"]
    assert (ladder.budget, ladder.dropout, ladder.seed) == (changed.evidence_ladder, 0.4, 3)
    assert built["cross_fitted"] == CrossFitted(built["set_translation"], seed=3)
    assert built["cross_fitted_smoothing"] == CrossFitted(built["correct_and_smooth"], seed=3)
    assert built["feature_perceptron"] == FeaturePerceptron(hidden=8, seed=3)
    assert built["retrained_backbone"].seed == 3


def test_looks_that_nobody_can_draw_are_refused():
    with pytest.raises(InputError, match="marker is 'blob'; choose from diamond"):
        Look("blob", "#000000", "#000000")
    with pytest.raises(InputError, match="dark is 'red'; write it as"):
        Look("circle", "#000000", "red")
    drawn = {(m.look.marker, m.look.colour) for m in METHODS.values()}
    assert len(drawn) == len(METHODS)
    assert {marker for marker, _ in drawn} <= set(MARKERS)


# Counts of errors fixed and of shifts inside D_v, on planted predictions and planted shifts.

SETTINGS = override(PAPER, TINY)


def test_only_reachable_errors_of_test_nodes_count():
    y = torch.tensor([0, 1, 2, 0, 1])
    #                             fixed     fixed     not reachable, not test, still wrong
    predicted = torch.tensor([[0, 1, 2, 0, 0], [0, 0, 0, 0, 0]])
    wrong = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 0, 1]]).bool()
    test = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1]]).bool().t()
    counted = errors_fixed(predicted, y, wrong, test)
    assert counted == [{"reachable_errors_fixed": 2}, {"reachable_errors_fixed": 1}]
    assert errors_fixed(predicted, y, None, test) == [{}, {}]


@pytest.fixture(scope="module")
def exposure():
    frozen = train_backbone(
        GCN(Shape(8, 2, 0.5)), tiny_graph(), (0, 1), device="cpu",
        budget=SETTINGS.backbones.short,
    )  # fmt: skip
    return expose(frozen)


def fitted(repair, exposure):
    data = tiny_graph()
    masks = data.train_mask[:, :2], data.val_mask[:, :2]
    return repair.fit(exposure, data.y, *masks, device="cpu")


def test_planted_shifts(exposure, monkeypatch):
    """Zero is inside, a shift beyond all contributions outside; the frozen rule has no shift."""
    repair = SetTranslation(budget=SETTINGS.repairs.set_translation, hidden=8)
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
    assert shifts_inside(nothing, exposure, test) == [{}, {}]


def test_shifts_are_judged_at_their_own_member_s_scale(monkeypatch):
    """One message per node moves nothing, so a shift is as far away as it is long."""
    table = np.array([[1.0, -1.0, 0.0]] * 4)
    one = exposure_of(Numbers(np.ones((4, 1), np.int64), np.ones(4), table, np.zeros((4, 3))))
    large = {"coefficients": 1000, "frozen_logits": 1000, "contributions": 1, "fixed_logits": 1}
    both = {n: torch.cat([getattr(one, n), k * getattr(one, n)]) for n, k in large.items()}
    pair, shift = replace(one, **both), torch.tensor([5.0, -5.0, 0.0]).expand(2, 4, 3)
    monkeypatch.setattr("gnn_repair.study.measures.REALIZABLE", 1e-2)
    everyone = torch.ones(4, 2, dtype=torch.bool)
    found = solve_displacements(pair, shift, everyone)
    assert found.inside.tolist() == [False] * 4 + [True] * 4
    for s in range(2):
        alone = solve_displacements(pair.member(s), shift[:1], everyone[:, :1])
        assert (alone.inside == found.inside[found.member == s]).all()


def test_other_methods_have_no_shifts(exposure):
    repair = Reweighting(budget=SETTINGS.repairs.reweighting, hidden=8)
    everyone = torch.ones(60, 2, dtype=torch.bool)
    assert shifts_inside(fitted(repair, exposure), exposure, everyone) == [{}, {}]


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
