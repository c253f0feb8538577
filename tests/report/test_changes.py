"""The smallest change and the other classes: what a page holds of them, and the words it uses."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
import torch

import gnn_repair as gr
from gnn_repair.oracle.witness import gain_words
from gnn_repair.reporting import PageContext, gather, report
from tests.helpers.report.browser import missing
from tests.helpers.report.pages import payload_of
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")


def run_of(path) -> dict:
    return payload_of(path)["run"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    exposure, y = make_exposure(groups=2, nodes=60)
    path = tmp_path_factory.mktemp("changes") / "r.html"
    report(exposure, y, path, repairs={"reweighting": Tilted(), "set_translation": Moved()})
    return exposure, y, gather(exposure, y, others=True), path


def test_every_class_is_asked_and_the_smallest_change_is_admissible_and_wins(world):
    exposure, y, evidence, _ = world
    found, wrong = evidence.classes, ~evidence.right
    solved = gr.solve(exposure, "all")
    reachable = (solved.margin > 1e-7).reshape(-1, 4)[evidence.nodes]
    np.testing.assert_array_equal(found.reachable, reachable)
    for i, node in enumerate(evidence.nodes.tolist()):
        true, predicted = int(evidence.true_class[i]), int(evidence.predictions[node])
        others = [c for c in range(4) if c not in (true, predicted)]
        assert found.chance[i] == found.possible[i] == pytest.approx(reachable[i, others].mean())
        if not wrong[i]:
            continue
        for c in set(range(4)) - {predicted}:
            (one,) = gr.nearest_reweighting(exposure, torch.full_like(y, c), torch.tensor([node]))
            expected = one.share if reachable[i, c] else np.inf
            assert found.share[i, c] == pytest.approx(expected)
        terms = slice(evidence.starts[i], evidence.starts[i + 1])
        lam, alpha = found.nearest[terms], evidence.coefficients[terms]
        if not evidence.reachable[i]:
            np.testing.assert_array_equal(lam, alpha)
            continue
        ends = evidence.segments[2 * i : 2 * i + 3] - evidence.starts[i]
        for low, high in pairwise(ends):
            assert lam[low:high].sum() == pytest.approx(alpha[low:high].sum())
        assert lam.min() >= -1e-12
        assert np.abs(lam - alpha).sum() / 2 / alpha.sum() == pytest.approx(found.share[i, true])
        logits = evidence.fixed_logits[i] + lam @ evidence.contributions[evidence.rows[terms]]
        assert logits[true] > np.delete(logits, true).max()
    assert np.isnan(found.share[evidence.right]).all()


def test_answers_that_are_known_are_not_asked_for_again(world, tmp_path, monkeypatch):
    exposure, y, *_ = world
    found = gr.diagnose(exposure, y=y)
    monkeypatch.setattr("gnn_repair.reporting.evidence.reach", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr("gnn_repair.reporting.evidence.least_changes", lambda *_: pytest.fail("x"))
    assert run_of(found.report(tmp_path / "r.html"))["chance_summary"] is not None


def test_of_too_many_errors_a_sample_is_asked(world, monkeypatch):
    exposure, y, whole, _ = world
    monkeypatch.setattr("gnn_repair.reporting.evidence.MOST_CHANGES", 12)
    some = gather(exposure, y, others=True).classes
    asked = ~np.isnan(some.share).all(1)
    assert 2 <= asked.sum() < (~whole.right).sum()
    np.testing.assert_array_equal(some.share[asked], whole.classes.share[asked])
    np.testing.assert_array_equal(some.chance, whole.classes.chance)


def told(browser, path, node: int) -> tuple[str, str, list[str]]:
    browser.open(path, f"#node={node}")
    chips = browser.run(
        "return [...document.querySelectorAll('.chip')].map(chip => chip.textContent)"
    )
    panel = browser.text("#certificate").replace("−", "-")
    return browser.text("#certificate .headline"), panel, chips


@needs_browser
@pytest.mark.parametrize("fewer", [0, 1])
def test_the_tile_of_changes_is_their_median(browser, world, tmp_path, fewer):
    """The lower of the two in the middle where their number is even."""
    exposure, y, evidence, _ = world
    own = evidence.classes.share[np.arange(len(evidence.nodes)), evidence.true_class]
    chosen = np.flatnonzero(np.isfinite(own))[fewer:]
    nodes = torch.from_numpy(evidence.nodes[chosen])
    browser.open(report(exposure, y, tmp_path / "r.html", nodes=nodes))
    tiles = browser.run(
        "return [...document.querySelectorAll('.figure')].map(tile => tile.innerText)"
    )
    told = next(tile for tile in tiles if "(median)" in tile)
    median = 100 * np.sort(own[chosen])[(len(chosen) - 1) // 2]
    assert float(told.split()[0]) == float(f"{median:.2g}")


@needs_browser
def test_the_headline_leads_with_the_smallest_change(browser, world):
    exposure, y, evidence, path = world
    seen = set()
    for i in range(len(evidence.nodes)):
        node, true = int(evidence.nodes[i]), int(evidence.true_class[i])
        kind = "right" if evidence.right[i] else "can" if evidence.reachable[i] else "cannot"
        if kind in seen and i % 4:
            continue
        seen.add(kind)
        headline, panel, chips = told(browser, path, node)
        says = int(evidence.predictions[node])
        found = evidence.classes
        could = [c for c in range(4) if found.reachable[i, c] and c != says]
        if kind == "right":
            assert headline == f"Predicted class {true}, which is right."
            continue
        assert headline.startswith(f"Predicted class {says}, true class {true}. ")
        if kind == "can":
            (one,) = gr.nearest_reweighting(exposure, y, torch.tensor([node]))
            words = gain_words(one.gains, one.names).replace(f"node {node} ", "its own message ")
            # Python writes a list with a comma before its end.
            bare = re.sub(r",? and | a little more|, ", " ", words.removeprefix("giving "))
            page = re.sub(r",? and | a little more|, ", " ", headline.split("Giving ")[-1])
            assert page == f"{bare} would be enough to fix it."
            assert f"{len(could) + 1} of 4 classes could win here" in panel or not could
            if len(could) > 1:
                order = sorted(could, key=lambda c: found.share[i, c])
                assert [re.match(r"class (\d)", chip)[1] for chip in chips] == [*map(str, order)]
                assert f"class {true} (true)" in " ".join(chips)
        else:
            assert "No weighting of these messages can fix it: whatever the weights" in headline
            rivals = np.flatnonzero(evidence.rival_weights[i] > 0.01)
            assert all(f"class {r}" in headline for r in rivals)
            assert f"by at least {-evidence.margin[i]:.2f}" in headline
    assert seen == {"right", "can", "cannot"}
    assert browser.messages() == []


@needs_browser
def test_a_what_if_keeps_the_plane_in_sight_and_the_table_follows(browser, world):
    *_, path = world
    browser.open(path, "#node=2")  # terms from everybody
    before = browser.text("#terms [data-row=total]")
    browser.run("document.getElementById('terms-panel').scrollIntoView()")
    assert not browser.run("return document.querySelector('#plane.floating')")
    browser.choose("#terms input[type=range]", "0.9")
    browser.until("document.querySelector('#plane.floating') !== null")
    assert browser.run("return document.getElementById('weighting').value") == "what_if"
    total = browser.text("#terms [data-row=total]")
    assert total != before
    inside = browser.run(
        "const box = document.getElementById('plane').getBoundingClientRect();"
        "return box.bottom <= innerHeight && box.right <= innerWidth && box.width > 200"
    )
    assert inside
    browser.run("window.scrollTo(0, 0)")
    browser.until("document.querySelector('#plane.floating') === null")
    assert browser.messages() == []


class Folded:
    """A repair of two members that judges itself."""

    nested = torch.tensor([0.0, 1.0])

    def logits(self, exposure):
        return exposure.frozen_logits[:, exposure.recipients]


def test_the_best_repair_is_chosen_on_validation_nodes(tmp_path):
    exposure, y = make_exposure()
    frozen = exposure.frozen_logits[0].float()
    val, test = torch.arange(20), torch.arange(20, 40)
    right = 9.0 * torch.nn.functional.one_hot(y, 4)
    there, here = frozen.clone(), frozen.clone()
    there[val], here[test] = right[val], right[test]
    repairs = {"there": there, "here": here, "same": 2 * frozen}
    options = {"nodes": test, "repairs": repairs}
    best = run_of(report(exposure, y, tmp_path / "a.html", val=val, **options))["best"]
    assert best == {"key": "there", "nodes": 20}
    poor = {"nodes": test, "repairs": {"same": 2 * frozen}}
    assert run_of(report(exposure, y, tmp_path / "b.html", val=val, **poor))["best"]["key"] is None
    assert run_of(report(exposure, y, tmp_path / "c.html", **options))["best"] is None
    pair, y = make_exposure(members=2)
    for member, key in ((0, None), (1, "folded")):  # each member by its own held-out nodes
        told = {"member": member, "repairs": {"folded": Folded()}}
        page = report(pair, y, tmp_path / "d.html", nodes=test, val=val, **told)
        assert run_of(page)["best"]["key"] == key


@needs_browser
def test_what_changes_no_prediction_is_in_no_chart_of_predictions(browser, tmp_path):
    exposure, y = make_exposure()
    repairs = {"cooler": 0.5 * exposure.frozen_logits[0], "set_translation": Moved()}
    browser.open(report(exposure, y, tmp_path / "r.html", repairs=repairs))
    browser.unfold()
    for title in ("What each repair did", "Accuracy"):
        drawn = browser.text(f".chart[aria-label='{title}'] svg")
        assert "Set translation" in drawn and "cooler" not in drawn
    assert "cooler changes no prediction" in browser.text("#charts")


def test_fields_of_the_context_are_given_one_by_one_or_together(tmp_path):
    exposure, y = make_exposure()
    path = tmp_path / "r.html"
    report(exposure, y, path, backbone="gcn", context=PageContext(dataset="cora", title="mine"))
    assert (run_of(path)["dataset"], run_of(path)["backbone"]) == ("cora", "gcn")
    with pytest.warns(DeprecationWarning, match="solution"):
        report(exposure, y, path, solution=None)
    with pytest.raises(TypeError, match="datset"):
        report(exposure, y, path, datset="cora")
