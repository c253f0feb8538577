"""A method is declared once: whoever adds one sees it in records, tables, figures and pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from gnn_repair.backbones import BACKBONES
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.methods import MARKERS, METHODS, Look, Method
from gnn_repair.repair import CrossFitted, FittedRepair, Repair
from gnn_repair.repair.base import about, untrained
from gnn_repair.repair.baselines import FeaturePerceptron
from gnn_repair.repair.folds import build_repair
from gnn_repair.reporting.figures import _look
from gnn_repair.reporting.writing import report
from gnn_repair.results.records import chosen_methods
from gnn_repair.study import PAPER, Case, make_tables, override
from gnn_repair.study.case import Settings, run_case
from tests.helpers.report.pages import payload_of
from tests.helpers.study.tiny import TINY, tiny_graph

PROTOCOL = override(PAPER, TINY)


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
        return self.fitted(**about(exposure), **untrained(exposure), **values)


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
def data():
    return tiny_graph()


def test_a_further_method_is_in_records_and_tables(declared, data):
    case = Case("mine", "gcn", (0, 1), chosen_methods(["reweighting", "majority"]))
    settings = Settings(PROTOCOL, lambda name: data, BACKBONES, "cpu")
    records = run_case(settings, case, lambda text: None)
    for split, record in enumerate(records):
        labels = data.y[data.train_mask[:, split]]
        commonest = int(torch.bincount(labels).argmax())
        test = data.y[data.test_mask[:, split]]
        expected = float((test == commonest).double().mean())
        assert record.methods["majority"]["test"] == pytest.approx(expected)
    controls, full = make_tables(records, ["controls", "full-controls"])
    assert controls.sheets[0].rows["Majority vote (not in the paper)"][0] == "one class"
    assert "Majority vote (not in the paper)" in [sheet.title for sheet in full.sheets]


def test_a_further_method_is_on_the_page_and_in_the_figures(declared, data, tmp_path):
    from gnn_repair.backbones import Shape, train_backbone

    backbone = BACKBONES["gcn"](Shape(hidden=8))
    budget = PROTOCOL.backbones.short
    frozen = train_backbone(backbone, data, (0,), device="cpu", budget=budget)
    exposure = expose(frozen)
    masks = data.train_mask[:, :1], data.val_mask[:, :1]
    fitted = build_repair(declared, PROTOCOL.repairs, exposure).fit(
        exposure, data.y, *masks, device="cpu"
    )
    path = report(
        exposure, data.y, tmp_path / "page.html", repairs={"majority": fitted, "mine": fitted}
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


def test_every_method_is_built_as_the_protocol_says(data):
    from gnn_repair.backbones import train_backbone

    frozen = train_backbone("sgc", data, (0,), budget=PROTOCOL.backbones.short)
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
