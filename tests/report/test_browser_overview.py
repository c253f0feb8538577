"""The first screen and its pictures, pages at the ends, and what is saved from a page."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnn_repair as gr
from gnn_repair.reporting import PageContext, gather, report
from tests.helpers.report.browser import PHONE, missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# The first screen, the glossary, and pictures that lead to their nodes.

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

WORDS = ("γ", "α", "λ", "β", "term", "group", "witness", "reach")


def test_every_word_is_explained_on_hover_and_in_a_list(browser, demo):
    path, evidence = demo
    seen = {}
    for fragment in ("", f"#node={evidence.nodes[0]}"):
        browser.open(path, fragment)
        seen |= dict(
            browser.run(
                "return [...document.querySelectorAll('.gloss')].filter(e => e.offsetParent).map(e"
                " => { e.dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));"
                " return [e.textContent.toLowerCase(),"
                "  document.getElementById('tip').lastChild.textContent]; })"
            )
        )
        listed = browser.run(
            "return [...document.querySelectorAll('.glossary dt')].map(e => e.textContent)"
        )
        assert fragment or listed == list(WORDS)
    for word in WORDS:
        found = [text for name, text in seen.items() if name.startswith(word)]
        assert found and len(found[0]) > 20, word


# Pages at the ends: one node, none wrong, none reachable, no messages, dots in corners.

TICKS = (
    "return [...document.querySelectorAll('#plane text.small[text-anchor=middle]')]"
    ".map(tick => tick.textContent)"
)
REPAIRS = {"reweighting": Tilted(), "set_translation": Moved()}


def chart(title: str, rest: str) -> str:
    return f".chart[aria-label='{title}'] {rest}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Writes a page about some labels and nodes of one exposure."""
    exposure, y = make_exposure()
    folder = tmp_path_factory.mktemp("extremes")

    def write(name, labels=y, nodes=None, repairs=REPAIRS):
        return report(exposure, labels, folder / f"{name}.html", nodes=nodes, repairs=repairs)

    return write, exposure, y


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """Half of the nodes hear nothing; some of these are right by their own features."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = SAGEConv(5, 3)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 5, generator=generator), torch.randint(0, 3, (30,), generator=generator)
    ends = torch.randint(0, 15, (2, 40), generator=generator)
    exposure = gr.expose(Mean(), Data(x=x, edge_index=ends, y=y))
    path = tmp_path_factory.mktemp("silent") / "report.html"
    return report(exposure, y, path, edge_index=ends), gather(exposure, y, edge_index=ends)


def test_names_of_regions_cover_no_mark(browser, demo):
    path, evidence = demo
    covered = []
    browser.open(path, "#nodes", PHONE)
    for node in evidence.nodes[[0, 40, 90, 140, 200, 260, 340, 500]]:
        browser.show(f"#node={node}&hide=none")
        covered += browser.run(
            "const boxes = [...document.querySelectorAll('#plane .region-name')].map(t =>"
            " [t.textContent, t.getBoundingClientRect()]);"
            "const marks = [...document.querySelectorAll('#plane [data-point], #plane .vertex')];"
            "return boxes.flatMap(([name, box]) => marks.filter(mark => {"
            "  const other = mark.getBoundingClientRect(), x = (other.left + other.right) / 2,"
            "    y = (other.top + other.bottom) / 2;"
            "  return x > box.left && x < box.right && y > box.top + 2 && y < box.bottom - 2;"
            "}).map(mark => [location.hash, name, mark.classList.contains('vertex')]))"
        )
        names = browser.run(
            "return [...document.querySelectorAll('#plane .region-name')].map(t => t.textContent)"
        )
        assert names and all(name.startswith("class ") for name in names)
    # A region smaller than its name leaves no choice; four names covered something once.
    assert len(covered) <= 1 and not any(not term for *_, term in covered), covered


def test_arrows_scroll_a_long_table(browser, written):
    write, *_ = written
    path = write("scroll")
    browser.open(path, "#node=2", PHONE)  # terms from everybody
    browser.run("document.getElementById('terms').focus()")
    browser.press("ARROW_DOWN", "ARROW_DOWN")
    browser.until("document.getElementById('terms').scrollTop > 0")
    assert browser.selected() == 2
    browser.run("document.getElementById('list').focus()")
    browser.press("ARROW_DOWN")
    assert browser.selected() != 2


def test_numbers_on_paper_are_not_broken(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    # A4 between its margins; the events are those of a real print.
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        browser.resize(703)
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        broken, cells = browser.run(
            "const cells = [...document.querySelectorAll('#readout td, #terms td, .sides td')]"
            " .filter(cell => cell.offsetWidth && /^[+−]?[\\d.]+$/.test(cell.textContent));"
            "const lines = cell => { const range = document.createRange();"
            "  range.selectNodeContents(cell);"
            "  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size; };"
            "return [cells.filter(cell => lines(cell) > 1).map(cell => cell.textContent),"
            " cells.length]"
        )
        assert broken == [] and cells > 40
        browser.run("window.dispatchEvent(new Event('afterprint'))")
        browser.open(path)
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        assert browser.run("return document.querySelector('#story details').open")
        browser.run("window.dispatchEvent(new Event('afterprint'))")
        assert not browser.run("return document.querySelector('#story details').open")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_zooming_ends_before_numbers_do(browser, written):
    """Without an end the ticks of the axes were counted for ever, and the page hung."""
    write, *_ = written
    path = write("zoom")
    for button in ("closer", "farther"):
        browser.open(path, "#node=3")
        browser.driver.set_script_timeout(20)
        browser.run(
            "for (let i = 0; i < 90; i++) document.getElementById(arguments[0]).click()", button
        )
        words, link = browser.run(TICKS), browser.run("return location.hash")
        assert len(words) == len(set(words)) > 2, words
        browser.open(path, link)
        assert browser.run(TICKS) == words
        assert browser.messages() == []


def test_predictions_are_read_without_scrolling(browser, demo):
    path, evidence = demo
    for width in (PHONE, 1101, 1280):
        browser.open(path, f"#node={evidence.nodes[0]}", width)
        room = browser.run(
            "const box = document.getElementById('readout');"
            "return [box.scrollWidth, box.clientWidth]"
        )
        assert room[0] <= room[1], width


# Taking things away: pictures, tables, links, and how the page was made.

FORMULA = '=1+1,"quoted"'
MADE = {"protocol": "abc123", "seed": "7", "command": "gnn-repair report --store <b>x</b>"}


@pytest.fixture(scope="module")
def world_export(tmp_path_factory):
    exposure, y = make_exposure(groups=2)
    repairs = {"reweighting": Tilted(), "set_translation": Moved()}
    path = tmp_path_factory.mktemp("export") / "r.html"
    names = ["plain", FORMULA, "c", "d"]
    report(exposure, y, path, repairs=repairs, class_names=names, context=PageContext(made=MADE))
    return path, gather(exposure, y, repairs=repairs), names


@pytest.fixture
def folder(browser, tmp_path):
    place = {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": False}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", place)
    return tmp_path


def fetched(browser, folder, name: str) -> bytes:
    path = folder / name
    browser.wait(lambda: path.is_file() and path.stat().st_size, f"the file {name}")
    return path.read_bytes()


def press(browser, label: str) -> None:
    browser.run(f"document.querySelector('[aria-label=\"{label}\"]').click()")


def test_pictures_are_files_of_their_own(browser, world_export, folder):
    path, evidence, _ = world_export
    node = evidence.nodes[0]
    browser.open(path, f"#node={node}")
    for what in ("polytope", "logits", "neighbourhood"):
        press(browser, f"Save {what} as SVG")
        text = fetched(browser, folder, f"{what}-node-{node}.svg").decode()
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and float(root.get("width")) > 100
        assert "var(" not in text and "rgb(" in text
    drawn = browser.run("return document.querySelector('#plane .hull').getAttribute('points')")
    assert drawn in (folder / f"polytope-node-{node}.svg").read_text()
    press(browser, "Save polytope as PNG")
    image = fetched(browser, folder, f"polytope-node-{node}.png")
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    box = browser.run("return document.querySelector('#plane svg').viewBox.baseVal.width")
    assert int.from_bytes(image[16:20], "big") == 2 * int(box)
    browser.open(path)
    browser.unfold()
    cards = browser.run(
        "return [...document.querySelectorAll('.chart')].map(c => [c.querySelector('h2')."
        "textContent, c.querySelectorAll('.tools button').length, c.querySelector('svg') !== null])"
    )
    assert all(buttons == 2 for _, buttons, drawn in cards if drawn) and len(cards) >= 7
    press(browser, "Save Accuracy as SVG")
    assert b"Reweight" in fetched(browser, folder, "accuracy.svg")
    assert browser.messages() == []


def rows(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))


STATE = (
    "const value = id => document.getElementById(id).value;"
    "return [['filter-status', 'order', 'view', 'rival-one', 'rival-two', 'weighting',"
    "  'colouring', 'degree-from'].map(value),"
    " document.querySelector('#what-if-margin').dataset.value,"
    " [...document.querySelectorAll('[data-draw]')].map(box => box.checked),"
    " document.querySelector('#plane .hull').getAttribute('points'),"
    " [...document.querySelectorAll('#terms tr[data-term]')].map(row => row.dataset.term),"
    " document.querySelector('#count').textContent]"
)


def test_a_link_holds_the_whole_view(browser, world_export):
    path, evidence, _ = world_export
    # The error with the most terms: what a slider leaves to the others depends on its way.
    node = evidence.nodes[np.argmax(np.where(evidence.right, 0, evidence.degree))]
    browser.open(path, f"#node={node}")
    browser.choose("#filter-status", "wrong")
    browser.choose("#degree-from", "3")
    browser.choose("#order", "degree")
    browser.choose("#view", "three")
    options = browser.run(
        "return [...document.querySelectorAll('#rival-one option')].map(o=>o.value)"
    )
    browser.choose("#rival-one", options[-1])
    browser.choose("#weighting", "oracle")
    browser.choose("#colouring", "prediction")
    for box in (1, 3):
        browser.run(f"document.querySelectorAll('[data-draw]')[{box}].click()")
    browser.run("document.querySelector('[data-set=oracle]').click()")
    sliders = browser.driver.find_elements("css selector", "#terms input:not([disabled])")
    for place, share in ((0, "0.3"), (1, "0.4"), (0, "0.6")):
        term = sliders[place].get_attribute("data-term")
        browser.choose(f"#terms input[data-term='{term}']", share)
    browser.run("document.getElementById('closer').click()")
    browser.run("document.querySelectorAll('#terms th button')[3].click()")
    before, link = browser.run(STATE), browser.run("return location.hash")
    browser.open(path, link)
    after = browser.run(STATE)
    assert float(after[1]) == pytest.approx(float(before[1]), abs=2e-3)
    numbers = [np.array([[float(v) for v in p.split(",")] for p in s[3].split()])
               for s in (before, after)]  # fmt: skip
    np.testing.assert_allclose(*numbers, atol=0.1)
    for j in (0, 2, 4, 5):
        assert after[j] == before[j]
    assert browser.messages() == []
    browser.run(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => {"
        " window.copied = text; }}}); document.getElementById('copy-link').click()"
    )
    browser.until("window.copied === location.href")
    browser.until("document.getElementById('copy-link').textContent === 'Copied'")


def test_nonsense_in_a_link_harms_nothing(browser, world_export):
    path, evidence, _ = world_export
    node = evidence.nodes[3]
    for part in (
        "what=nobody,1:7,99999:0.5,x:y&one=77&two=-1&frame=1,2&hide=9,x&view=__proto__&sort=up "
        "constructor&fit=&weigh=nobody&colour=3&order=gain 99&a=7&b=zz&from=x&to=1e999",
        "%E0%A4%A", "frame=0,0,0,0&what=99999:0.5", "frame=1,-1,1,-1&b=zz",
        "frame=-1e308,1e308,-5,5&one=77",
    ):  # fmt: skip
        browser.open(path, f"#node={node}&{part}")
        assert browser.selected() == node, part
        assert browser.run("return document.querySelectorAll('#plane svg .hull').length") == 1
        assert browser.messages() == [], part


def test_no_name_is_a_formula_of_a_spreadsheet(browser, tmp_path, folder):
    exposure, y = make_exposure()
    names = ["@SUM(1+1)", "-1+1", "+1+1", "=1+1"]
    evidence = gather(exposure, y)
    browser.open(report(exposure, y, tmp_path / "r.html", class_names=names), "#nodes&order=node")
    press(browser, "Save the listed nodes as CSV")
    found = {int(row["node"]): row for row in rows(fetched(browser, folder, "nodes.csv"))}
    for node, true in zip(evidence.nodes, evidence.true_class, strict=True):
        assert found[int(node)]["true class"] == f"'{names[true]}"
    assert set(evidence.true_class) == set(range(4))
