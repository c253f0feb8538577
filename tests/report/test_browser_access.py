"""The page by keys, touch and screen reader; its words and names."""

from __future__ import annotations

import csv
import re

import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

import gnn_repair as gr
from gnn_repair.reporting import PageContext, gather, report
from tests.helpers.report.accessibility import axe_script, violations
from tests.helpers.report.browser import PHONE, missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# The page without a mouse and without eyes: keys, roles, live regions, contrast, targets.

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
        browser.show(f"#node={node}")
        mark = "document.querySelector('#neighbourhood .go[tabindex=\"0\"]')"
        if browser.run(f"return Boolean({mark})"):
            break
    other = int(browser.run(f"{mark}.focus(); return {mark}.dataset.source"))
    browser.press("ENTER")
    assert browser.selected() == other
    assert browser.messages() == []


# Words on the page: none over another, none cut for good, none said twice, by touch as well.

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
    browser.open(path, "#nodes", width)
    for node in evidence.nodes[[0, 7, 100, 300, 500, 700]]:
        browser.show(f"#node={node}&hide=none")
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


# Names of every kind: what recipients are called, and names that are hard to tell apart.

TURNED = "\u202e\u05d0\u05d1\u05d2"  # an override that is never closed, and Hebrew
FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
NAMES = ["dup", "dup", "", TURNED, FAMILY * 40, "w" * 200, " \n ", "class 2", "=1+1", "plain"]


class Papers(nn.Module):
    """Papers hear authors and papers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        kinds = [("author", "writes", "paper"), ("paper", "cites", "paper")]
        self.conv = HeteroConv({kind: SAGEConv((4, 4), 3) for kind in kinds}, aggr="sum")

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)["paper"]


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.randn(30, 4, generator=generator)
    data["author"].x = torch.randn(12, 4, generator=generator)
    for kind, senders in (("writes", 12), ("cites", 30)):
        ends = [torch.randint(0, size, (60,), generator=generator) for size in (senders, 30)]
        sender = "author" if kind == "writes" else "paper"
        data[sender, kind, "paper"].edge_index = torch.stack(ends).unique(dim=1)
    y = torch.randint(0, 3, (30,), generator=generator)
    exposure = gr.expose(Papers(), data, node_type="paper")
    path = tmp_path_factory.mktemp("papers") / "report.html"
    return report(exposure, y, path, nodes=torch.arange(25)), gather(exposure, y, torch.arange(25))


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    exposure, y = make_exposure(nodes=120, classes=len(NAMES))
    own = {"reweighting": Tilted(), "set_translation": Moved(), "m" * 150: torch.rand(120, 10)}
    path = tmp_path_factory.mktemp("named") / "report.html"
    people = [NAMES[v % len(NAMES)] if v else "" for v in range(120)]
    report(
        exposure, y, path, repairs=own, class_names=NAMES, node_names=people,
        context=PageContext(dataset="d" * 90, backbone="gcn"),
    )  # fmt: skip
    return path, gather(exposure, y, repairs=own)


def test_classes_can_be_told_apart(browser, named):
    path, _ = named
    browser.open(path, "#nodes")
    options = browser.run(
        "return [...document.querySelectorAll('#filter-label option')].map(o => o.textContent)"
    )[1:]
    assert len(set(options)) == len(NAMES) and all(name.strip() for name in options)
    assert options[:3] == ["dup (0)", "dup (1)", "class 2 (2)"]
    assert options[6:8] == ["class 6", "class 2 (7)"]
    # What turns the reading direction is taken out, and Hebrew is kept within itself.
    assert options[3] == f"\u2068{TURNED[1:]}\u2069"
    browser.open(path, "#node=0")
    assert browser.text("#node-head h2") == "Node 0"
    browser.open(path, "#node=9")
    assert browser.text("#node-head h2") == "Node plain"
    assert "number 9" in browser.text("#node-head .facts")


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_no_name_breaks_the_page(browser, named, width):
    path, evidence = named
    for fragment in ("", "#nodes", f"#node={evidence.nodes[3]}&hide=none"):
        browser.open(path, fragment, width)
        wide = browser.run(
            "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
        )
        assert wide[0] <= wide[1], fragment
        # Half of a letter would be shown as a box.
        assert browser.run("return document.body.innerText.includes('\\ufffd')") is False
        assert browser.run(
            "return [...document.querySelectorAll('svg text')].every(text =>"
            " text.textContent.isWellFormed())"
        )
        tall = browser.run(
            "return Math.max(0, ...[...document.querySelectorAll('#readout tr')].map(row =>"
            " row.offsetHeight))"
        )
        assert tall < 70, fragment
    assert browser.messages() == []


def test_names_in_files_are_the_names(browser, named, tmp_path):
    path, evidence = named
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    browser.open(path, "#nodes&order=node")
    browser.run("document.getElementById('nodes-csv').click()")
    saved = tmp_path / "nodes.csv"
    browser.wait(saved.is_file, "the file")
    with saved.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["node"]) for row in rows] == sorted(evidence.nodes)
    labels = evidence.labels
    assert {row["true class"] for row in rows if labels[int(row["node"])] == 3} == {TURNED[1:]}
    assert {row["true class"] for row in rows if labels[int(row["node"])] == 1} == {"dup (1)"}
