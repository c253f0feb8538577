"""A node in a real browser: its picture, its table of terms, two predictions side by side."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.reporting import PageContext, gather, report
from tests.helpers.report.browser import missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# The picture of a node: a line for two classes, and a frame in which one sees something.

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

SPOTS = (
    "return Object.fromEntries([...document.querySelectorAll(`#plane [data-${arguments[0]}]`)]"
    ".map(m => { const b = m.getBBox(); return [m.dataset[arguments[0]],"
    " [b.x + b.width / 2, b.y + b.height / 2]]; }))"
)


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    exposure, y = make_exposure(classes=2, nodes=60, groups=2)
    repairs = {"reweighting": Tilted(), "set_translation": Moved()}
    path = tmp_path_factory.mktemp("binary") / "r.html"
    report(exposure, y, path, repairs=repairs, class_names=["licit", "illicit"])
    return path, gather(exposure, y, repairs=repairs)


@pytest.fixture(scope="module")
def outlier(tmp_path_factory):
    exposure, y = make_exposure(nodes=40, classes=5)
    far = exposure.frozen_logits[0] + torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    far[torch.arange(40), y] += 4000
    path = tmp_path_factory.mktemp("outlier") / "r.html"
    repairs = {"reweighting": Tilted(), "set_translation": Moved(), "far": far}
    report(exposure, y, path, repairs=repairs)
    return path, gather(exposure, y, repairs=repairs)


def test_a_far_prediction_is_named_at_the_edge_and_does_not_shrink_the_rest(browser, outlier):
    path, evidence = outlier
    node = next(v for v in evidence.nodes if v > 2)
    browser.open(path, f"#node={node}&hide=none")
    assert list(browser.run(SPOTS, "off")) == ["far"]
    assert "far (outside)" in browser.text("#plane")
    near = np.array(list(browser.run(SPOTS, "point").values()))
    assert np.ptp(near, axis=0).max() > 60
    browser.driver.find_element("id", "fit").click()
    assert browser.run(SPOTS, "off") == {}
    spots = browser.run(SPOTS, "point")
    del spots["far"]
    assert np.ptp(np.array(list(spots.values())), axis=0).max() < 12
    browser.driver.find_element("id", "fit-repairs").click()
    assert "fit=repairs" in browser.run("return location.hash")


def zoomed(browser) -> float:
    """Pixels between the frozen point and the oracle."""
    spots = browser.run(SPOTS, "point") | browser.run(SPOTS, "off")
    return float(np.hypot(*np.subtract(spots["frozen"], spots["oracle"])))


def test_wheel_keys_and_pinch_zoom(browser, demo):
    path, evidence = demo
    address = f"#node={evidence.nodes[4]}"
    browser.open(path, address)
    before = zoomed(browser)
    at = browser.run(SPOTS, "point")["frozen"]
    wheel = (
        "const plane = document.getElementById('plane'), area = plane.getBoundingClientRect();"
        "plane.dispatchEvent(new WheelEvent('wheel', {deltaY: -120, clientX: area.left +"
        " arguments[0], clientY: area.top + arguments[1], bubbles: true, cancelable: true}))"
    )
    browser.run("window.scrollTo(0, 0)")
    # A wheel that turns while the page still scrolls goes on scrolling it.
    browser.until("performance.now() > arguments[0]", browser.run("return performance.now() + 260"))
    browser.run(wheel, *at)
    assert zoomed(browser) == pytest.approx(before * np.exp(0.3), rel=0.02)
    # The point under the pointer stays where it is.
    np.testing.assert_allclose(browser.run(SPOTS, "point")["frozen"], at, atol=0.5)
    browser.open(path, address)
    browser.run("document.getElementById('plane').focus()")
    browser.press("SUBTRACT")
    assert zoomed(browser) == pytest.approx(before / 2, rel=0.02)
    chosen = browser.selected()
    browser.press("ARROW_LEFT", "ARROW_UP")
    assert browser.selected() == chosen and "frame=" in browser.run("return location.hash")
    assert browser.run(SPOTS, "point")["frozen"][0] > at[0]
    browser.open(path, address)
    browser.run(
        "const plane = document.getElementById('plane'), area = plane.getBoundingClientRect();"
        "const [x, y] = arguments, touch = (kind, id, dx) => plane.dispatchEvent(new PointerEvent("
        "  kind, {pointerType: 'touch', pointerId: id, bubbles: true,"
        "  clientX: area.left + x + dx, clientY: area.top + y}));"
        "touch('pointerdown', 1, -20); touch('pointerdown', 2, 20);"
        "touch('pointermove', 1, -30); touch('pointermove', 2, 30);"
        "touch('pointerup', 1, 0); touch('pointerup', 2, 0);",
        *at,
    )
    assert zoomed(browser) == pytest.approx(1.5 * before, rel=0.02)
    assert browser.messages() == []


def test_a_rival_cannot_be_chosen_twice(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[4]}")
    read = (
        "return ['rival-one', 'rival-two'].map(id => { const s = document.getElementById(id);"
        " return [s.value, [...s.options].map(o => o.value)]; })"
    )
    for field in ("#rival-one", "#rival-two", "#rival-one"):
        (_, options), _ = browser.run(read)
        browser.choose(field, options[-1] if field == "#rival-one" else options[2])
        (one, ones), (two, twos) = browser.run(read)
        assert one != two and two not in ones and one not in twos
        assert str(evidence.true_class[4]) not in {*ones, *twos}
        assert len(ones) == len(twos) == evidence.num_classes - 2


# The table of terms adds up on screen and on paper.

READ = (
    "return [...document.querySelectorAll('#terms table:not(.part) tr')].map(row =>"
    " [row.dataset.row || (row.dataset.term === undefined ? 'head' : 'term'),"
    "  [...row.cells].map(cell => cell.textContent)])"
)
PAPER_WIDTH = 718
"""Pixels of an A4 sheet between margins of 10 mm."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Node 2 has 60 terms in each of two groups, ten classes."""
    exposure, y = make_exposure(nodes=60, classes=10, groups=2)
    path = tmp_path_factory.mktemp("terms") / "r.html"
    report(exposure, y, path, repairs={"reweighting": Tilted(), "set_translation": Moved()})
    return path, exposure


def number(text: str) -> float:
    return 0.0 if text in ("·", "") else float(text.replace("−", "-").replace("+", ""))


def column_sums(rows) -> None:
    head, *body = rows
    names = head[1]
    for j, name in enumerate(names):
        if not name.startswith(("α", "λ", "over")):
            continue
        listed = [number(cells[j]) for kind, cells in body if kind in ("term", "other", "fixed")]
        total = next(number(cells[j]) for kind, cells in body if kind == "total")
        assert sum(listed) == pytest.approx(total, abs=6e-4 * len(listed)), name


def test_a_slider_keeps_the_columns_summed(browser, page):
    path, _ = page
    browser.open(path, "#node=2")
    browser.choose("#weighting", "what_if")
    before = browser.run(READ)
    browser.choose("#terms input[type=range]", "0.9")
    rows = browser.run(READ)
    assert rows[-1][1] != before[-1][1]
    column_sums(rows)
    assert browser.messages() == []


def test_paper_keeps_every_column_in_sight(browser, page):
    path, _ = page
    browser.open(path, "#node=2", width=PAPER_WIDTH)
    heads = browser.run(READ)[0][1][1:]  # without the sliders
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        seen = browser.run(
            "return [...document.querySelectorAll('#terms th')].filter(c => c.offsetParent)"
            ".map(c => [c.textContent, c.getBoundingClientRect().right])"
        )
        rows = browser.run(
            "return [...document.querySelectorAll('#terms tr[data-row=other]')]"
            ".filter(c => c.offsetParent).length"
        )
        browser.run("window.dispatchEvent(new Event('afterprint'))")
        left = browser.run("return document.querySelectorAll('table.part, table.cut').length")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert set(heads) == {name for name, _ in seen}
    assert max(right for _, right in seen) <= PAPER_WIDTH
    assert rows == 2 and left == 0
    made = browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(made["data"])[:5] == b"%PDF-"


def test_a_hub_s_terms_come_in_portions(browser, tmp_path):
    """Thousands of rows with sliders take seconds; the rest stays added up meanwhile."""
    exposure, y = make_exposure(nodes=600)
    browser.open(report(exposure, y, tmp_path / "hub.html"), "#node=2")  # terms from everybody
    words = []
    for listed in (25, 425, 600):
        rows = browser.run(READ)
        assert [kind for kind, _ in rows].count("term") == listed
        column_sums(rows)
        words.append(browser.text("#terms-more"))
        if listed < 600:
            browser.run("document.querySelector('#terms-more button').click()")
    assert words[0].endswith("Show 400 more") and words[1].endswith("Show all 600 terms")
    assert words[2] == ""


def test_what_is_pressed_in_the_table_keeps_the_focus(browser, page):
    path, _ = page
    browser.open(path, "#node=2")
    focused = "return document.activeElement.textContent"
    values = (
        "return [...document.querySelectorAll('#terms tr[data-term] td.text')]"
        ".filter((_, j) => j % 3 === 0).map(cell => parseInt(cell.textContent))"
    )
    browser.run("document.querySelector('#terms th[data-column=source] button').focus()")
    browser.press("ENTER")
    assert browser.run(focused) == "Source"
    first = browser.run(values)
    assert first == sorted(first)
    browser.press("ENTER")
    assert browser.run(focused) == "Source"
    assert browser.run(values)[0] == 59
    browser.run("document.querySelector('#terms th[data-column=alpha] button').focus()")
    browser.press("SPACE")
    assert browser.run(focused) == "α frozen" and "sort=down%20alpha" in browser.run(
        "return location.hash"
    )
    browser.run("document.querySelector('#terms-more button').focus()")
    browser.press("ENTER")
    assert browser.run("return document.activeElement.id") == "terms"


# Two predictions of one node side by side, and what changed first.


def tables(browser) -> list[list[list[str]]]:
    """The panel's tables; it draws itself when it is seen."""
    browser.run("document.getElementById('compare-panel').scrollIntoView()")
    browser.until("document.querySelector('#compare-tables table') !== null")
    return browser.run(
        "return [...document.querySelectorAll('#compare-tables table')].map(table =>"
        " [...table.rows].map(row => [...row.cells].map(cell => cell.textContent)))"
    )


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
