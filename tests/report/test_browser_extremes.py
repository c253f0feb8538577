"""Pages at the ends: one node, none wrong, none reachable, no messages, dots in corners."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnn_repair as gr
from gnn_repair.reporting import gather, report, report_results
from tests.helpers.report.browser import PHONE, missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

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


def test_one_node_is_spoken_of_as_one(browser, written):
    write, exposure, y = written
    evidence = gather(exposure, y)
    wrong, right = evidence.nodes[~evidence.right], evidence.nodes[evidence.right]
    reached = wrong[evidence.reachable[~evidence.right]][0]
    browser.open(write("one", nodes=torch.tensor([reached])))
    words = browser.text("#story-sentence")
    assert words.startswith("The only chosen node is wrong; the evidence was there; ")
    assert browser.text("#subtitle") == "1 node, 1 of them misclassified"
    text = browser.run("return document.getElementById('overview').innerText")
    assert "1 nodes" not in text and "1 errors" not in text and "1 chosen nodes" not in text
    browser.open(write("few", nodes=torch.tensor([reached, right[0], right[1]]), repairs=None))
    assert browser.text("#story-sentence") == (
        "One of 3 chosen nodes is wrong; the evidence was there."
    )
    assert browser.messages() == []


def test_where_all_is_right_no_error_is_typical(browser, written):
    write, exposure, _ = written
    browser.open(write("right", exposure.frozen_logits[0].argmax(1)))
    assert browser.text("#story-sentence") == "The frozen model is right about all 40 nodes."
    assert browser.text("#story .starts").startswith("Start with node ")
    assert browser.text("#key-figures b") == "100.0 %"
    assert browser.messages() == []


def test_a_repair_that_breaks_more_than_it_fixes_is_not_praised(browser, written):
    write, exposure, y = written
    spoilt = exposure.frozen_logits[0].clone()
    right = (spoilt.argmax(1) == y).nonzero().view(-1)[:2]
    spoilt[right] = -spoilt[right]
    browser.open(write("spoilt", repairs={"mine": spoilt}))
    words = browser.text("#story-sentence")
    assert words.endswith("; no repair gains: mine fixes none and breaks 2 others.")


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


def test_a_witness_without_terms_is_counted(browser, silent):
    path, evidence = silent
    browser.open(path)
    browser.unfold()
    counts = browser.run(
        "return [...document.querySelectorAll(arguments[0])].filter(r => r.tip && r.go)"
        " .map(r => [r.go.support, r.go.status || '', r.tip[1]])",
        chart("Size of the witness", "rect"),
    )
    found: dict[int, int] = {}
    for support, status, line in counts:
        if status:  # a part of a column, not the whole of it
            size = int(support.split("~")[0])
            found[size] = found.get(size, 0) + int(line.split(": ")[1].split()[0])
    sizes, times = np.unique(evidence.support[evidence.reachable], return_counts=True)
    assert found == dict(zip(sizes.tolist(), times.tolist(), strict=True)) and 0 in found
    # Numbers of nodes are whole.
    ticks = browser.run(
        "return [...document.querySelectorAll(arguments[0])].map(t => t.textContent)",
        chart("Size of the witness", "text[text-anchor=end]"),
    )
    assert ticks and all(float(tick).is_integer() for tick in ticks)
    browser.run("document.querySelectorAll(arguments[0])[1].dispatchEvent(new MouseEvent('click',"
                " {bubbles: true}))", chart("Size of the witness", ".go"))  # fmt: skip
    assert browser.shown() == found[0]


def test_nothing_reached_leaves_no_empty_picture(browser, written):
    write, exposure, y = written
    evidence = gather(exposure, y)
    lost = evidence.nodes[~evidence.right & ~evidence.reachable]
    browser.open(write("lost", nodes=torch.from_numpy(lost.copy())))
    assert browser.run("return document.querySelector(arguments[0])",
                       chart("Size of the witness", "")) is None  # fmt: skip
    assert "for none of them the evidence was there" in browser.text("#story-sentence")
    assert browser.messages() == []


def test_a_spread_lies_within_its_picture(browser, tmp_path):
    rows = [
        {"dataset": "d", "backbone": "b", "split": split, "method": method, "part": "test",
         "metric": "accuracy", "value": value}
        for method, values in (("frozen", (0.3, 0.3, 0.4)), ("reweighting", (0.3, 0.4, 0.4)))
        for split, value in enumerate(values)
    ]  # fmt: skip
    path = report_results(pd.DataFrame(rows), tmp_path / "study.html")
    for width in (PHONE, 1280):
        browser.open(path, "", width)
        overlaps = browser.run(
            "const svg = document.querySelector(arguments[0]), found = [];"
            "for (const group of svg.querySelectorAll('g')) {"
            "  const [name, number] = [...group.querySelectorAll('text')].map(t =>"
            "    t.getBoundingClientRect());"
            "  for (const mark of group.querySelectorAll('line, path, circle')) {"
            "    const box = mark.getBoundingClientRect();"
            "    if (box.left < name.right || box.right > number.left) found.push(mark.tagName);"
            "  }"
            "} return found",
            chart("Accuracy", "svg"),
        )
        assert overlaps == []


def test_names_of_regions_cover_no_mark(browser, demo):
    path, evidence = demo
    covered = []
    for node in evidence.nodes[[0, 40, 90, 140, 200, 260, 340, 500]]:
        browser.open(path, f"#node={node}&hide=none", PHONE)
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


def test_nearly_all_is_not_all(browser, tmp_path):
    """1,999 of 2,000 are not 100.0 %, and one of them is not 0.0 %."""
    exposure, _ = make_exposure(nodes=2000, classes=3)
    y = exposure.frozen_logits[0].argmax(1)
    y[7] = (y[7] + 1) % 3
    browser.open(report(exposure, y, tmp_path / "r.html"))
    tiles = browser.run(
        "return [...document.querySelectorAll('#key-figures b')].map(big => big.textContent)"
    )
    assert tiles[0] == ">99.9 %"
    assert browser.text("#story-sentence").startswith("One of 2,000 nodes is wrong; ")


def test_predictions_are_read_without_scrolling(browser, demo):
    path, evidence = demo
    for width in (PHONE, 1101, 1280):
        browser.open(path, f"#node={evidence.nodes[0]}", width)
        room = browser.run(
            "const box = document.getElementById('readout');"
            "return [box.scrollWidth, box.clientWidth]"
        )
        assert room[0] <= room[1], width
