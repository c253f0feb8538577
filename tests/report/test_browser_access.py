"""The page without a mouse and without eyes: keys, roles, live regions, contrast, targets."""

from __future__ import annotations

import re

import pytest

from tests.helpers.report.accessibility import axe_script, violations
from tests.helpers.report.browser import PHONE, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

needs_axe = pytest.mark.skipif(
    axe_script() is None,
    reason="axe-core is not here: npm install --no-save axe-core, or name it in GNN_REPAIR_AXE",
)
THEMES = {"light": 1, "dark": 2}
"""Presses of the button."""


def dress(browser, theme: str) -> None:
    for _ in range(THEMES[theme]):
        browser.run("document.getElementById('theme').click()")


@needs_axe
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("view", ["overview", "node", "line", "head"])
def test_axe_finds_nothing_serious(browser, demo, small, binary, nonlinear, theme, view):
    path, fragment = {
        "overview": (demo[0], ""),
        "node": (demo[0], f"#node={demo[1].nodes[0]}"),
        "line": (binary, "#nodes"),
        "head": (nonlinear, "#nodes"),
    }[view]
    browser.open(path, fragment, PHONE if view == "line" else 1280)
    dress(browser, theme)
    assert violations(browser, axe_script()) == []


def luminance(colour: str) -> float:
    channels = [int(v) / 255 for v in re.findall(r"[\d.]+", colour)[:3]]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    a, b = sorted((luminance(one), luminance(two)))
    return (b + 0.05) / (a + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_words_stand_out_from_what_is_behind_them(browser, demo, theme):
    """Words in pictures, which checkers skip: against the panel and against tinted regions."""
    path, evidence = demo
    for fragment in ("", f"#node={evidence.nodes[0]}"):
        browser.open(path, fragment)
        dress(browser, theme)
        found = browser.run(
            "const panel = getComputedStyle(document.querySelector('.panel')).backgroundColor;"
            "const region = [...document.querySelectorAll('#plane .region')].map(r => {"
            "  const style = getComputedStyle(r); return [style.fill, style.fillOpacity]; });"
            "return [panel, region, [...document.querySelectorAll('svg text')].map(t =>"
            " [t.textContent, getComputedStyle(t).fill, Boolean(t.closest('#plane'))])]"
        )
        panel, regions, texts = found
        behind = [mixed(panel, *region) for region in regions]
        assert len(texts) > 20
        for text, colour, inside in texts:
            for ground in [panel, *(behind if inside else [])]:
                assert contrast(colour, ground) >= 4.5, (text, colour, ground)


def mixed(panel: str, colour: str, opacity: str) -> str:
    ground, tint = ([float(v) for v in re.findall(r"[\d.]+", c)[:3]] for c in (panel, colour))
    share = float(opacity)
    made = [round((1 - share) * g + share * t) for g, t in zip(ground, tint, strict=True)]
    return f"rgb({made[0]}, {made[1]}, {made[2]})"


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_what_is_pressed_is_large_enough(browser, demo, width):
    path, evidence = demo
    for fragment in ("", f"#node={evidence.nodes[0]}"):
        browser.open(path, fragment, width)
        sizes = browser.run(
            "return [...document.querySelectorAll('button, select, input, summary, .row')]"
            ".filter(e => e.offsetParent && !e.closest('label input')).map(e => { const box ="
            " (e.type === 'checkbox' ? e.closest('label') : e).getBoundingClientRect();"
            " return [e.id || e.textContent, box.width, box.height]; })"
        )
        assert len(sizes) > 10
        assert not [entry for entry in sizes if min(entry[1:]) < 23.9]


def test_one_sentence_is_announced(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    regions = browser.run(
        "return [...document.querySelectorAll('[aria-live], [role=status], [role=alert],"
        " [role=log], output')].filter(e => e.tagName !== 'OUTPUT').map(e => e.id)"
    )
    assert sorted(regions) == ["announce", "notice"]
    said = "document.getElementById('announce').textContent"
    browser.press("ARROW_DOWN", "ARROW_DOWN")
    headline = browser.text("#certificate .headline")
    browser.until(f"{said} === arguments[0]", f"Node {evidence.nodes[2]}: {headline}")
    browser.choose("#filter-status", "right")
    browser.until(
        f"[document.getElementById('count').textContent].includes({said})"
        f" || {said}.startsWith(arguments[0])",
        f"Node {evidence.nodes[evidence.right][0]}: ",
    )
    outputs = browser.run(
        "return [...document.querySelectorAll('output')].every(o =>"
        " o.getAttribute('aria-live') === 'off')"
    )
    assert outputs


def test_the_list_is_a_listbox(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    browser.run("document.getElementById('list').focus()")

    def active() -> tuple[int, str, str]:
        return browser.run(
            "const box = document.getElementById('list'), option ="
            " document.getElementById(box.getAttribute('aria-activedescendant'));"
            "return [Number(option.dataset.node), option.getAttribute('aria-posinset'),"
            " option.getAttribute('aria-setsize')]"
        )

    size = str(len(evidence.nodes))
    assert active() == [evidence.nodes[0], "1", size]
    browser.press("ARROW_DOWN")
    assert active() == [evidence.nodes[1], "2", size]
    browser.press("END")
    browser.settle()
    assert active() == [evidence.nodes[-1], size, size]
    browser.press("PAGE_UP")
    browser.press("HOME")
    browser.settle()
    assert active() == [evidence.nodes[0], "1", size]
    assert browser.run("return document.activeElement.id") == "list"


def test_keys_do_what_the_mouse_does(browser, demo):
    path, evidence = demo
    browser.open(path)
    # One stop a picture; arrows walk inside; Enter shows the nodes.
    stops = browser.run(
        "return [...document.querySelectorAll('.chart svg')].map(svg =>"
        " svg.querySelectorAll('.go[tabindex=\"0\"]').length)"
    )
    assert set(stops) == {1}
    browser.run("document.querySelector('.chart svg .go[tabindex=\"0\"]').focus()")
    browser.press("ARROW_RIGHT")
    assert browser.run("return document.activeElement.matches('.go')")
    assert browser.text("#tip") and not browser.run("return document.getElementById('tip').hidden")
    assert browser.run("return document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.press("ENTER")
    assert browser.run("return document.getElementById('overview').hidden")
    assert 0 < browser.shown() < len(evidence.nodes)
    # A neighbour that is a test node opens by key.
    sources = {int(v) for v in evidence.sources}
    assert sources
    for node in evidence.nodes[:60]:
        browser.open(path, f"#node={node}")
        mark = "document.querySelector('#neighbourhood .go[tabindex=\"0\"]')"
        if browser.run(f"return Boolean({mark})"):
            break
    other = int(browser.run(f"{mark}.focus(); return {mark}.dataset.source"))
    browser.press("ENTER")
    assert browser.selected() == other
    assert browser.messages() == []
