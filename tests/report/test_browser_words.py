"""Words on the page: none over another, none cut for good, none said twice, by touch as well."""

from __future__ import annotations

import pytest

from gnn_repair.reporting import report
from tests.helpers.report.browser import PHONE, missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

LONG = [f"{name} and whatever else belongs to it" for name in ("alpha", "beta", "gamma", "delta")]
OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll(arguments[0])) {
  const texts = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()])
    .filter(([, box]) => box.width);
  texts.forEach(([a, one], j) => texts.slice(j + 1).forEach(([b, two]) => {
    const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
    const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
    // Boxes of text are taller than its letters.
    if (wide > 1 && high > 4) found.push([a.textContent, b.textContent]);
  }));
}
return found"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    exposure, y = make_exposure(nodes=50)
    repairs = {
        "reweighting": Tilted(),
        "set_translation": Moved(),
        "a method with quite a long name of its own": exposure.frozen_logits[0] + 0.3,
    }
    path = tmp_path_factory.mktemp("words") / "r.html"
    names = [f"a node with a long name, number {v}" for v in range(50)]
    report(exposure, y, path, repairs=repairs, class_names=LONG, node_names=names)
    return path


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_no_words_lie_over_others(browser, demo, page, width):
    path, evidence = demo
    for name in (path, page):
        browser.open(name, "", width)
        browser.unfold()
        assert browser.run(OVERLAPS, ".chart svg") == []
    for node in evidence.nodes[[0, 7, 100, 300, 500, 700]]:
        browser.open(path, f"#node={node}&hide=none", width)
        assert browser.run(OVERLAPS, "#plane svg, #logits svg, #neighbourhood svg") == []


def test_what_is_cut_can_be_read(browser, page):
    browser.open(page, "", PHONE)
    browser.unfold()
    cut = (
        "const bad = []; for (const text of document.querySelectorAll('svg text')) {"
        "  if (!text.textContent.includes('…')) continue;"
        "  let owner = text; while (owner && !owner.tip) owner = owner.parentElement;"
        "  const lines = owner ? (typeof owner.tip === 'function' ? owner.tip() : owner.tip) : [];"
        "  const [start, end] = text.textContent.split('…'), least = start.length + end.length;"
        "  if (!lines.some(l => l.includes(start) && l.endsWith(end) && l.length > least))"
        "    bad.push(text.textContent);"
        "} return [bad, document.querySelectorAll('svg text').length]"
    )
    bad, texts = browser.run(cut)
    assert bad == [] and texts > 50
    browser.open(page, "#nodes", PHONE)
    bad, texts = browser.run(cut)
    assert bad == [] and texts > 10
    # A cell whose text is cut by its width says it in the card.
    browser.run(
        "const cell = document.querySelector('#terms td.text');"
        "cell.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 9, clientY: 9,"
        " pointerType: 'mouse'}))"
    )
    assert "a node with a long name, number" in browser.text("#tip")


def test_a_touch_shows_the_card_and_another_takes_it_away(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}", PHONE)
    touch = (
        "document.querySelector(arguments[0]).dispatchEvent(new PointerEvent('pointerdown',"
        " {pointerType: 'touch', bubbles: true, clientX: 50, clientY: 50}));"
        "return document.getElementById('tip').hidden ? '' :"
        " [...document.getElementById('tip').children].map(line => line.textContent)"
    )
    lines = browser.run(touch, "#plane circle.vertex")
    source = evidence.sources[evidence.rows[evidence.starts[0]]]
    assert lines[0] in {f"node {source}", "itself"} or lines[0].startswith("node ")
    assert lines[1].startswith("is class ") and "class class" not in " ".join(lines)
    assert browser.run(touch, "#node-head h2") == ""
    assert "class class" not in browser.run("return document.body.textContent")


def test_a_card_stays_when_the_finger_is_lifted(browser, demo):
    """A real touch: lifting it makes the pointer leave and moves the focus, which hid the card."""
    path, evidence = demo
    send = browser.driver.execute_cdp_cmd
    send("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 1})
    try:
        browser.open(path, f"#node={evidence.nodes[0]}", PHONE)
        for selector in ("#plane [data-point=oracle]", "#plane-caption .gloss", "#logits path"):
            x, y = browser.run(
                "const mark = document.querySelector(arguments[0]);"
                "mark.scrollIntoView({block: 'center'});"
                "const box = mark.getBoundingClientRect();"
                "return [box.left + box.width / 2, box.top + box.height / 2]",
                selector,
            )
            send(
                "Input.dispatchTouchEvent",
                {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]},
            )
            send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
            browser.settle()
            assert browser.run("return document.getElementById('tip').hidden") is False, selector
    finally:
        send("Emulation.setTouchEmulationEnabled", {"enabled": False})
