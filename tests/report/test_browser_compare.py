"""Two predictions of one node side by side, and what changed first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.reporting import Beside, PageContext, gather, report
from tests.helpers.report.browser import missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

PARTS = np.arange(30) % 4


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two members as two splits; the second one's evidence at the first one's nodes."""
    exposure, y = make_exposure(members=2, groups=2)
    nodes, repairs = torch.arange(30), {"reweighting": Tilted(), "set_translation": Moved()}
    first = gather(exposure, y, nodes, repairs=repairs)
    second = gather(exposure, y, nodes, member=1, repairs={"reweighting": Tilted()})
    path = tmp_path_factory.mktemp("compare") / "r.html"
    other = Beside(second, PARTS[second.nodes], 1)
    report(
        exposure,
        y,
        path,
        nodes=nodes,
        repairs=repairs,
        context=PageContext(beside={"split <1>": other}),
    )
    return path, first, second


def tables(browser) -> list[list[list[str]]]:
    """The panel's tables; it draws itself when it is seen."""
    browser.run("document.getElementById('compare-panel').scrollIntoView()")
    browser.until("document.querySelector('#compare-tables table') !== null")
    return browser.run(
        "return [...document.querySelectorAll('#compare-tables table')].map(table =>"
        " [...table.rows].map(row => [...row.cells].map(cell => cell.textContent)))"
    )


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))


def centred(logits: np.ndarray) -> np.ndarray:
    return logits - logits.mean()


def lead(logits: np.ndarray, c: int) -> float:
    return float(logits[c] - np.delete(logits, c).max())


def test_two_methods_on_one_node(browser, world):
    path, first, _ = world
    now = first.corrections[0]
    for i in (0, 9, 20):
        browser.open(path, f"#node={first.nodes[i]}&a=0 frozen&b=0 reweighting")
        classes, terms = tables(browser)
        change = centred(now.logits[i]) - centred(first.frozen_logits[i])
        order = np.argsort(-np.abs(change), kind="stable")
        assert [row[0] for row in classes[1:]] == [f"class {c}" for c in order]
        np.testing.assert_allclose(
            [number(row[3]) for row in classes[1:]], change[order], atol=6e-4
        )
        c = int(first.true_class[i])
        rival = int(np.where(np.arange(4) == c, -np.inf, first.frozen_logits[i]).argmax())
        moved = [number(row[3]) for row in terms[1:]]
        expected = (now.logits[i] - first.frozen_logits[i]) @ (np.eye(4)[c] - np.eye(4)[rival])
        assert sum(moved) == pytest.approx(expected, abs=2e-2)
        listed = [abs(v) for v, row in zip(moved, terms[1:], strict=True) if "other" not in row[0]]
        assert listed == sorted(listed, reverse=True)
        words = browser.text("#compare-words")
        was, says = (int(z[i].argmax()) for z in (first.frozen_logits, now.logits))
        told = f"Both predict class {was}" if was == says else f"changes from class {was} ("
        assert told in words
        assert f"{abs(lead(now.logits[i], c)):.2f}" in words
    assert browser.run("return document.querySelectorAll('#compare-pictures svg').length") == 2
    browser.open(path, f"#node={first.nodes[0]}&a=0 frozen&b=0 set_translation")
    tables(browser)
    assert "reweights no message" in browser.text("#compare-tables")
    assert browser.messages() == []


def test_two_runs_on_one_node(browser, world):
    path, first, second = world
    place = {int(node): j for j, node in enumerate(second.nodes)}
    for i in (0, 5, 25):
        j = place[int(first.nodes[i])]
        browser.open(path, f"#node={first.nodes[i]}")
        classes, terms = tables(browser)
        titles = browser.run(
            "return [...document.querySelectorAll('#compare-panel figcaption')]"
            ".map(title => title.textContent)"
        )
        assert titles == ["A: this page's model: Frozen", "B: split <1>: Frozen"]
        change = centred(second.frozen_logits[j]) - centred(first.frozen_logits[i])
        by_name = {row[0]: number(row[3]) for row in classes[1:]}
        for c in range(4):
            assert by_name[f"class {c}"] == pytest.approx(change[c], abs=6e-4)
        c = int(first.true_class[i])
        rival = int(np.where(np.arange(4) == c, -np.inf, first.frozen_logits[i]).argmax())
        total = sum(number(row[3]) for row in terms[1:])
        assert total == pytest.approx(change[c] - change[rival], abs=2e-2)
        words = browser.text("#compare-words")
        told = f"γ goes from {first.margin[i]:.2f} to {second.margin[j]:.2f}."
        assert told.replace("-", "−") in words
        part = ["the training nodes", "the validation nodes", "no part", ""][PARTS[first.nodes[i]]]
        assert (f"In split <1> it belongs to {part}." in words) == bool(part)
    frames = browser.run(
        "return [...document.querySelectorAll('#compare-pictures svg')].map(svg =>"
        " [...svg.querySelectorAll('text.small')].map(t => t.textContent))"
    )
    assert frames[0] == frames[1] and len(frames[0]) > 4  # one frame for both
    assert (
        browser.run("return document.querySelector('#compare-panel i, #compare-panel b')") is None
    )
    assert browser.messages() == []


def test_what_changed_comes_first_in_the_list_too(browser, world):
    path, first, second = world
    place = [list(second.nodes).index(node) for node in first.nodes]
    was, now = first.predictions[first.nodes], second.predictions[first.nodes]
    moved = np.abs(
        [lead(second.frozen_logits[j], c) - lead(first.frozen_logits[i], c)
         for i, (j, c) in enumerate(zip(place, first.true_class, strict=True))]
    )  # fmt: skip
    browser.open(path, "#nodes&order=changed")
    browser.settle()
    browser.press("HOME")
    browser.run("document.getElementById('list').scrollTop = 0")
    browser.settle()
    listed = browser.run(
        "return [...document.querySelectorAll('.row')].map(row => Number(row.dataset.node))"
    )
    order = sorted(range(30), key=lambda i: (was[i] == now[i], -moved[i]))
    assert listed == [int(first.nodes[i]) for i in order][: len(listed)]
    right, true = was == first.true_class, first.true_class
    for pair, expected in (
        ("changed", was != now),
        ("b", ~right & (now == true)),
        ("a", right & (now != true)),
        ("both", right & (now == true)),
        ("none", ~right & (now != true)),
    ):
        browser.open(path, f"#nodes&pair={pair}")
        assert browser.shown() == int(expected.sum()), pair


def test_only_runs_on_the_same_graph_are_compared(tmp_path):
    exposure, y = make_exposure()
    evidence = gather(exposure, y)
    path = tmp_path / "r.html"
    for beside, words in (
        ({"x": replace(evidence, labels=(evidence.labels + 1) % 4)}, "has other labels"),
        ({"x": 3}, "beside\\['x'\\] is 3; give what"),
        ([evidence], "give a mapping from titles"),
    ):
        with pytest.raises(InputError, match=words):
            report(exposure, y, path, context=PageContext(beside=beside))
    assert not path.exists()
