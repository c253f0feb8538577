"""A node in a real browser: its picture, its table of terms, two predictions side by side."""

from __future__ import annotations

import base64
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.reporting import Beside, PageContext, gather, report
from tests.helpers.report.browser import PHONE, missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# The picture of a node: a line for two classes, and a frame in which one sees something.

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

SPOTS = (
    "return Object.fromEntries([...document.querySelectorAll(`#plane [data-${arguments[0]}]`)]"
    ".map(m => { const b = m.getBBox(); return [m.dataset[arguments[0]],"
    " [b.x + b.width / 2, b.y + b.height / 2]]; }))"
)
FRAME = (
    "const box = document.querySelector('#plane svg').viewBox.baseVal;"
    "return [box.width, box.height]"
)


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    exposure, y = make_exposure(classes=2, nodes=60, groups=2)
    repairs = {"reweighting": Tilted(), "set_translation": Moved()}
    path = tmp_path_factory.mktemp("binary") / "r.html"
    report(exposure, y, path, repairs=repairs, class_names=["licit", "illicit"])
    return path, gather(exposure, y, repairs=repairs)


def leads(evidence, i: int) -> dict[str, float]:
    c = int(evidence.true_class[i])
    found = {"frozen": evidence.frozen_logits[i], "oracle": None}
    found |= {item.name: item.logits[i] for item in evidence.corrections}
    made = {name: z[c] - z[1 - c] for name, z in found.items() if z is not None}
    return {**made, "oracle": float(evidence.margin[i])}


@pytest.mark.parametrize("width", [1280, PHONE])
def test_two_classes_stand_on_a_line(browser, binary, width):
    path, evidence = binary
    for i in (0, 1, 20, 40):  # node 2, with terms from everybody, is the first
        browser.open(path, f"#node={evidence.nodes[i]}&fit=all", width)
        spots, expected = browser.run(SPOTS, "point"), leads(evidence, i)
        smallest = spots.pop("nearest", None)
        assert spots.keys() == expected.keys()
        x = np.array([spots[name][0] for name in expected])
        value = np.array(list(expected.values()))
        slope, start = np.polyfit(value, x, 1)
        assert smallest is None or smallest[0] == pytest.approx(start, abs=0.1)  # a lead of nothing
        np.testing.assert_allclose(x, start + slope * value, atol=0.1)
        assert slope > 0
        wide, high = browser.run(FRAME)
        assert all(0 < a < wide and 0 < b < high for a, b in spots.values())
        low, top = browser.run(
            "const bar = document.querySelector('#plane .hull').dataset; return [bar.low, bar.high]"
        )
        c, groups = int(evidence.true_class[i]), len(evidence.groups)
        ends = evidence.segments[i * groups : (i + 1) * groups + 1]
        reach = [evidence.fixed_logits[i][c] - evidence.fixed_logits[i][1 - c]] * 2
        for a, b in pairwise(ends):
            if a < b:
                table = evidence.contributions[evidence.rows[a:b]]
                lead = evidence.coefficients[a:b].sum() * (table[:, c] - table[:, 1 - c])
                reach = [reach[0] + lead.min(), reach[1] + lead.max()]
        np.testing.assert_allclose([float(low), float(top)], reach, rtol=1e-4, atol=1e-4)
        assert float(top) == pytest.approx(evidence.margin[i], abs=1e-4)
    assert not browser.driver.find_element("id", "rival-one-label").is_displayed()
    assert browser.messages() == []


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


def test_the_start_node_is_a_mended_error_in_the_middle(browser, outlier):
    path, evidence = outlier
    browser.open(path, "#nodes")
    i = int(np.flatnonzero(evidence.nodes == browser.selected())[0])
    assert not evidence.right[i] and evidence.reachable[i]
    gammas = evidence.margin[~evidence.right & evidence.reachable]
    assert gammas.min() < evidence.margin[i] < gammas.max()


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


def test_the_translated_polytope_shows_where_set_translation_was_fitted(browser, tmp_path):
    exposure, y = make_exposure()
    repairs = {"node_translation": Moved(1), "set_translation": Moved(2), "reweighting": Tilted()}
    path = report(exposure, y, tmp_path / "r.html", repairs=repairs)
    evidence = gather(exposure, y, repairs=repairs)
    browser.open(path, f"#node={evidence.nodes[3]}&fit=all")
    shift = browser.run(
        "const read = kind => document.querySelector(kind).getAttribute('points').split(' ')"
        ".map(p => p.split(',').map(Number)); return [read('.hull'), read('.shifted-hull')]"
    )
    still, moved = np.array(shift[0]), np.array(shift[1])
    spots = browser.run(SPOTS, "point")
    step = np.subtract(spots["set_translation"], spots["frozen"])
    np.testing.assert_allclose(moved - still, np.broadcast_to(step, still.shape), atol=2.5)
    assert "node_translation" not in spots


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


# Two predictions of one node side by side, and what changed first.

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


def number_compare(text: str) -> float:
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
            [number_compare(row[3]) for row in classes[1:]], change[order], atol=6e-4
        )
        c = int(first.true_class[i])
        rival = int(np.where(np.arange(4) == c, -np.inf, first.frozen_logits[i]).argmax())
        moved = [number_compare(row[3]) for row in terms[1:]]
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
        by_name = {row[0]: number_compare(row[3]) for row in classes[1:]}
        for c in range(4):
            assert by_name[f"class {c}"] == pytest.approx(change[c], abs=6e-4)
        c = int(first.true_class[i])
        rival = int(np.where(np.arange(4) == c, -np.inf, first.frozen_logits[i]).argmax())
        total = sum(number_compare(row[3]) for row in terms[1:])
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
        browser.show(f"#nodes&pair={pair}")
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
