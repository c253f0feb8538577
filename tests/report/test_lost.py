"""Where the evidence was lost, on the page: what the ladder found, and nothing without one."""

from __future__ import annotations

import pytest
import torch

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.methods import rung_title
from gnn_repair.repair.ladder import EvidenceLadder
from tests.helpers.report.browser import missing
from tests.helpers.report.pages import payload_of

BRIEF = Budget(4, 4, 0.02, 1e-4, decoupled=True, epoch_zero=True)
NAMES = ["<b>first</b>", "second", "third"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    data = gr.load_dataset("builtin")
    frozen = gr.train_backbone("gcn", data, splits=range(2), budget=Budget(20, None, 1e-2, 5e-4))
    exposure = gr.expose(frozen)
    rungs = ("messages", "labels")
    ladder = EvidenceLadder(rungs, hidden=8, folds=2, budget=BRIEF)
    masks = data.train_mask[:, :2], data.val_mask[:, :2]
    fitted = ladder.fit(exposure, data.y, *masks, data=data, device="cpu")
    names = (NAMES + [f"class {c}" for c in range(3, exposure.num_classes)])[: exposure.num_classes]
    path = tmp_path_factory.mktemp("lost") / "report.html"
    given = {"nodes": torch.arange(20), "member": 1, "class_names": names}
    gr.report(exposure, data.y, path, repairs={"evidence_ladder": fitted}, **given)
    return path, fitted, exposure, data


def test_the_page_holds_what_the_ladder_found_for_the_member_that_is_shown(written):
    path, fitted, *_ = written
    lost, findings = payload_of(path)["run"]["lost"], fitted.member(1).findings()
    titles = [rung_title(name) for name in fitted.candidates]
    assert [row["rung"] for row in lost["rows"]] == titles[1:]
    right, judged = fitted.right_out_of_fold()
    labels = fitted.constants["labels"][1]
    for number, row in enumerate(lost["rows"], 1):
        below = titles.index(row["above"])
        gained = right[1, number].double() - right[1, below].double()
        assert row["gain"] == pytest.approx(100 * float(gained[judged[1]].mean()), abs=1e-6)
        for label, gain in enumerate(row["classes"]):
            own = gained[labels == label]
            assert gain is None if not len(own) else abs(gain - 100 * float(own.mean())) < 1e-6
    assert lost["advice"] == list(findings.advice())
    assert lost["chosen"] == rung_title(fitted.chosen[1])
    assert lost["transductive"] == titles[2:]  # not the messages
    assert lost["nodes"] == int(judged[1].sum())


def test_without_a_ladder_there_is_no_such_section(written, tmp_path):
    _, _, exposure, data = written
    plain = torch.zeros(exposure.num_nodes, exposure.num_classes)
    gr.report(
        exposure, data.y, tmp_path / "plain.html", nodes=torch.arange(9), repairs={"mine": plain}
    )
    assert payload_of(tmp_path / "plain.html")["run"]["lost"] is None


@pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")
def test_a_browser_shows_it_and_names_are_no_markup(browser, written):
    path, fitted, *_ = written
    browser.open(path)
    assert "Where the evidence was lost" in browser.text("#charts")
    text = browser.text("#lost")
    for line in fitted.member(1).findings().advice():
        assert line in text
    assert "<b>first</b>" in text
    rows = browser.run("return document.querySelectorAll('#lost tbody tr').length")
    assert rows == len(fitted.candidates) - 1
    assert browser.messages() == []
