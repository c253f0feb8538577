"""One model a page, and every number says what it is about."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gnn_repair.reporting import PageContext, gather, report, report_results
from tests.helpers.report.browser import missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

COLUMNS = ["dataset", "backbone", "split", "method", "part", "metric", "value"]
REPAIRS = {"reweighting": Tilted(), "set_translation": Moved()}


def stored(values: dict[str, list[float]], dataset: str = "mine") -> pd.DataFrame:
    """Results of three splits, 0, 2 and 5."""
    rows = [
        [dataset, "gcn", split, method, "test", "accuracy", value]
        for method, accuracies in values.items()
        for split, value in zip((0, 2, 5), accuracies, strict=True)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.fixture(scope="module")
def world():
    exposure, y = make_exposure()
    evidence = gather(exposure, y, repairs=REPAIRS)
    right = float(evidence.right.mean())
    tilted = float((evidence.corrections[0].predictions == evidence.true_class).mean())
    return exposure, y, right, tilted


def page(world, path, split=None, results=None, **options):
    exposure, y, *_ = world
    context = PageContext(dataset="mine", backbone="gcn", split=split, results=results)
    return report(exposure, y, path, repairs=REPAIRS, context=context, **options)


def cards(browser) -> dict[str, str]:
    return browser.run(
        "return Object.fromEntries([...document.querySelectorAll('.chart')].map(card =>"
        " [card.querySelector('h2').textContent, card.querySelector('.caption').textContent]))"
    )


def test_the_stored_mean_and_the_page_s_own_model_are_told_apart(browser, world, tmp_path):
    *_, right, tilted = world
    results = stored({"frozen": [0.3, right, 0.9], "reweighting": [0.4, tilted, 0.5]})
    path = page(world, tmp_path / "r.html", split=2, selection="test nodes", results=results)
    browser.open(path)
    browser.unfold()
    assert browser.text("#key-figures b") == f"{100 * right:.1f} %"
    # What the page is about stands once; a card that is about something else says so.
    assert "mine × gcn · split 2 · 40 test nodes" in browser.text("#scope")
    about = cards(browser)
    assert "(mine × gcn · mean over splits 0, 2 and 5 · test nodes)" in about["Accuracy"]
    assert not [name for name, words in about.items() if "split 2" in words]
    assert len(about) >= 7
    own = browser.run("return [...document.querySelectorAll('[data-own]')].map(m => m.dataset.own)")
    np.testing.assert_allclose([float(v) for v in own], [100 * right, 100 * tilted])
    mean = 100 * np.mean([0.3, right, 0.9])
    assert f"{mean:.1f}" in browser.text(".chart[aria-label=Accuracy] svg")
    assert browser.run("return document.getElementById('case-choice').hidden")
    assert browser.messages() == []


def test_a_stored_number_that_this_model_does_not_repeat_is_seen(browser, world, tmp_path):
    *_, right, tilted = world
    frame = stored({"frozen": [right, 0.1, 0.2], "reweighting": [tilted + 0.1, 0.1, 0.2]})
    results = frame[frame["split"] == 0]
    path = page(world, tmp_path / "r.html", split=0, selection="test nodes", results=results)
    browser.open(path)
    browser.unfold()
    own = browser.run("return [...document.querySelectorAll('[data-own]')].map(m => m.dataset.own)")
    assert [float(v) for v in own] == [pytest.approx(100 * tilted)]


def test_nodes_are_called_test_nodes_only_where_they_are(browser, world, tmp_path):
    import torch

    for options, word in (
        ({}, "nodes"),
        ({"nodes": torch.arange(30)}, "chosen nodes"),
        ({"nodes": torch.arange(30), "selection": "validation nodes"}, "validation nodes"),
    ):
        browser.open(page(world, tmp_path / "r.html", **options))
        text = browser.text("#overview")
        assert "test nodes" not in text and "test accuracy" not in text
        browser.unfold()
        assert f"accuracy on {word} (%)" in browser.text("#overview")
        number = 40 if not options else 30
        assert f"{number} {word}" in browser.text("#key-figures")


def test_a_study_s_case_changes_every_card_of_a_case(browser, tmp_path):
    frames = [
        stored({"frozen": [0.5, 0.6, 0.7], "reweighting": [0.6, 0.7, 0.8]}, "one"),
        stored({"frozen": [0.2, 0.2, 0.2], "reweighting": [0.3, 0.3, 0.3]}, "two"),
    ]
    path = report_results(pd.concat(frames), tmp_path / "r.html")
    browser.open(path)
    assert "60.0" in browser.text("#key-figures") and "one × gcn" in browser.text("#key-figures")
    assert not browser.run("return document.getElementById('case-choice').hidden")
    browser.choose("#case", "1")
    figures = browser.text("#key-figures")
    assert "20.0" in figures and "two × gcn" in figures and "one × gcn" not in figures
    about = cards(browser)
    assert "(two × gcn · mean over splits 0, 2 and 5 · test nodes)" in about["Accuracy"]
    assert "(all 2 cases" in about["Gain over Frozen, all cases"]
    assert browser.run("return location.hash") == "#overview&case=1"
    browser.driver.back()
    assert "one × gcn" in browser.text("#key-figures")
    assert browser.messages() == []
