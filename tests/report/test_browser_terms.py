"""The table of terms adds up on screen and on paper."""

from __future__ import annotations

import base64

import pytest

from gnn_repair.reporting import report
from tests.helpers.report.browser import missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

READ = (
    "return [...document.querySelectorAll('#terms table:not(.part) tr')].map(row =>"
    " [row.dataset.row || (row.dataset.term === undefined ? 'head' : 'term'),"
    "  [...row.cells].map(cell => cell.textContent)])"
)
LISTED = 25
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


@pytest.mark.parametrize("weighting", ["frozen", "oracle", "unit"])
def test_every_column_adds_up_with_what_is_not_listed(browser, page, weighting):
    path, exposure = page
    browser.open(path, "#node=2")
    browser.choose("#weighting", weighting)
    rows = browser.run(READ)
    kinds = [kind for kind, _ in rows]
    assert kinds == ["head", *["term"] * LISTED, "other", "fixed", "total"]
    assert any("95 other terms" in cell for cell in rows[LISTED + 1][1])
    column_sums(rows)
    mass = float(exposure.mass[0, 2].sum())
    alpha = rows[0][1].index("α frozen")
    assert number(rows[-1][1][alpha]) == pytest.approx(mass, abs=1e-4)


def test_listing_all_terms_leaves_no_others(browser, page):
    path, _ = page
    browser.open(path, "#node=2")
    browser.run("document.querySelector('#terms-more button').click()")
    rows = browser.run(READ)
    assert [kind for kind, _ in rows].count("term") == 120
    assert "other" not in [kind for kind, _ in rows]
    column_sums(rows)


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
