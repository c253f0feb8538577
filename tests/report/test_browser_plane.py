"""The picture of a node: a line for two classes, and a frame in which one sees something."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from gnn_repair.reporting import gather, report
from tests.helpers.report.browser import PHONE, missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

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
