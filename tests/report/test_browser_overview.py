"""The first screen and its pictures, pages at the ends, and what is saved from a page."""

from __future__ import annotations

import csv
import io
import re
import statistics
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnn_repair
import gnn_repair as gr
from gnn_repair.reporting import PageContext, gather, report, report_results
from tests.helpers.report.browser import PHONE, missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# The first screen, the glossary, and pictures that lead to their nodes.

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

WORDS = ("γ", "α", "λ", "β", "term", "group", "witness", "reach")


def test_the_story_is_told_in_the_page_s_numbers(browser, demo):
    path, evidence = demo
    wrong, reachable = ~evidence.right, evidence.margin > 1e-7
    now = [item.predictions == evidence.true_class for item in evidence.corrections]
    browser.open(path)
    sentence = browser.text("#story-sentence")
    # The best one is chosen on validation nodes, of which this page shows none.
    best = next(j for j, item in enumerate(evidence.corrections) if f", {item.title}," in sentence)
    title = evidence.corrections[best].title
    assert sentence == (
        f"{wrong.sum()} of {len(wrong)} test nodes are wrong; for {(wrong & reachable).sum()} of "
        f"them the evidence was there; the repair that is best on validation nodes, {title}, fixes "
        f"{(wrong & now[best]).sum()} and breaks {(~wrong & ~now[best]).sum()} others."
    )
    share = re.search(r"at these errors in (\d+\.\d %) \[", browser.text("#chance"))[1]
    assert f"chance {share}" in browser.text("#key-figures").replace("\xa0", " ")
    assert "builtin × gcn · split 0 · 748 test nodes" in browser.text("#scope")
    start = browser.driver.find_element("css selector", "#story .starts button")
    node = int(re.search(r"node (\d+)", start.text)[1])
    start.click()
    assert browser.selected() == node
    i = int(np.flatnonzero(evidence.nodes == node)[0])
    assert wrong[i] and reachable[i] and now[best][i]
    assert evidence.support[i] > 1
    browser.driver.back()
    browser.driver.find_elements("css selector", "#story .starts button")[1].click()
    assert browser.shown() == (wrong & reachable).sum()
    assert browser.messages() == []


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


def test_a_nonlinear_head_s_story_names_the_undecided(browser, nonlinear):
    browser.open(nonlinear)
    sentence = browser.text("#story-sentence")
    wrong = int(sentence.split()[0])
    # What is undecided may be there, so that nobody is told "none of them".
    open_ = int(re.search(r"for (\d+) of them it is undecided whether the", sentence)[1])
    browser.run(
        "[...document.querySelectorAll('#story button')].find(b =>"
        " b.textContent.includes('undecided')).click()"
    )
    assert browser.shown() == open_ > 0
    for status, expected in (("wrong", wrong), ("reachable", 0)):
        browser.choose("#filter-status", status)
        assert browser.shown() == expected
    total = 0
    for verdict in ("can", "cannot", "open"):
        browser.choose("#filter-status", verdict)
        total += browser.shown()
    assert total == 30


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    exposure, y = make_exposure(nodes=80, seed=6)
    repairs = {"reweighting": Tilted(), "set_translation": Moved()}
    # One error's γ is brought to a billionth: positive, and yet no win.
    evidence = gather(exposure, y)
    i = int(np.flatnonzero(~evidence.right & evidence.reachable)[0])
    node, c = int(evidence.nodes[i]), int(evidence.true_class[i])
    fixed, frozen = exposure.fixed_logits.clone(), exposure.frozen_logits.clone()
    for logits in (fixed, frozen):
        logits[0, node, c] -= evidence.margin[i] - 1e-9
    exposure = replace(exposure, fixed_logits=fixed, frozen_logits=frozen)
    path = tmp_path_factory.mktemp("clicks") / "r.html"
    report(exposure, y, path, repairs=repairs)
    return path, gather(exposure, y, repairs=repairs)


def chosen(evidence, go: dict[str, str]) -> np.ndarray:
    """Which nodes a mark's filters mean, counted without the page."""
    wrong, reachable, y = ~evidence.right, evidence.margin > 1e-7, evidence.true_class
    kept = np.ones(len(evidence.nodes), bool)
    status = {
        "": kept, "right": ~wrong, "wrong": wrong, "reachable": wrong & reachable,
        "unreachable": wrong & ~reachable, "beyond": wrong & ~reachable, "can": reachable,
    }  # fmt: skip
    kept = kept & status[go.get("status", "")]
    if "label" in go:
        kept &= y == int(go["label"])
    if "predicted" in go:
        kept &= evidence.predictions[evidence.nodes] == int(go["predicted"])
    if "from" in go:
        kept &= evidence.degree >= int(go["from"])
    if go.get("to"):
        kept &= evidence.degree <= int(go["to"])
    if "repair" in go:
        j, outcome = go["repair"].split()
        now = evidence.corrections[int(j)].predictions == y
        kept &= {"corrected": wrong & now, "broken": ~wrong & ~now, "wrong": ~now}[outcome]
    for key, values in (("gamma", evidence.margin), ("homophily", evidence.homophily)):
        if key in go:
            low, high = (float(v) if v else s * np.inf for v, s in
                         zip(go[key].split("~"), (-1, 1), strict=True))  # fmt: skip
            if key == "gamma":
                kept &= (values > 1e-7 if low == 0 else values >= low) & (
                    values <= 1e-7 if high == 0 else values < high
                )
            else:
                kept &= (values > low + 1e-6) & (values <= high + 1e-6)
    if "support" in go:
        kept &= reachable & (evidence.support == int(go["support"].split("~")[0]))
    return kept


def test_every_mark_leads_to_the_nodes_it_counts(browser, world):
    path, evidence = world
    assert ((evidence.margin > 0) & (evidence.margin < 1e-7)).sum() == 1
    browser.open(path)
    browser.unfold()
    marks = browser.run(
        "return [...document.querySelectorAll('#overview .go')].map(m => [m.go,"
        " (m.closest('.chart') || m.closest('section')).getAttribute('aria-label'),"
        " (Array.isArray(m.tip) ? m.tip : []).join('; ')])"
    )
    assert len(marks) > 40
    kinds = {name for _, name, _ in marks}
    assert kinds >= {
        "In short", "Key figures", "Accuracy", "What each repair did", "Reach by degree",
        "Best margin γ of the true class", "Reach by local homophily", "Size of the witness",
        "Reach by class", "Which classes are taken for which",
    }  # fmt: skip
    for go, name, tip in marks:
        counted = re.search(r": (\d+)(?: corrected| broken| right|;)", tip)
        if counted and name != "Key figures":
            assert int(counted[1]) == chosen(evidence, go).sum(), (name, tip)
    # A few marks of every card are clicked.
    seen: dict[str, int] = {}
    places = []
    for k, (go, name, _) in enumerate(marks):
        seen[name] = seen.get(name, 0) + 1
        if "node" not in go and seen[name] <= 4:
            places.append(k)
    counts = browser.run(
        "const marks = [...document.querySelectorAll('#overview .go')];"
        "return arguments[0].map(k => {"
        "  marks[k].dispatchEvent(new MouseEvent('click', {bubbles: true}));"
        "  const text = document.getElementById('count').textContent;"
        "  document.getElementById('tab-overview').click(); return parseInt(text); })",
        places,
    )
    for k, listed in zip(places, counts, strict=True):
        go, name, _ = marks[k]
        assert listed == chosen(evidence, go).sum(), (name, go)
    # So many steps in a second are the test's; the page goes on where the browser refuses one.
    assert [line for line in browser.messages() if "Throttling" not in line] == []


def test_what_was_picked_can_be_taken_away(browser, world):
    path, evidence = world
    browser.open(path, "#nodes&gamma=0~1&status=reachable")
    inside = (evidence.margin > 1e-7) & (evidence.margin < 1) & ~evidence.right
    assert browser.shown() == inside.sum() > 0
    assert browser.text("[data-pick=gamma]") == "γ 0 to 1 ✕"
    browser.driver.find_element("css selector", "[data-pick=gamma]").click()
    assert browser.shown() == (~evidence.right & evidence.reachable).sum()
    browser.driver.find_element("id", "clear").click()
    assert browser.shown() == len(evidence.nodes)
    assert not browser.driver.find_element("id", "clear").is_displayed()
    browser.open(path, "#nodes&gamma=nonsense&status=nonsense&label=77")
    assert browser.shown() == len(evidence.nodes)
    assert browser.messages() == []


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


def test_tables_of_the_overview_are_saved_as_they_are(browser, folder, tmp_path):
    import pandas as pd

    columns = ["dataset", "backbone", "split", "method", "part", "metric", "value"]
    shares = (0.78, 0.8, 0.83)
    rows = [["cora", "gcn", k, "frozen", "test", "accuracy", v] for k, v in enumerate(shares)]
    mean, spread = 100 * statistics.fmean(shares), 100 * statistics.stdev(shares)
    path = report_results(pd.DataFrame(rows, columns=columns), tmp_path / "r.html")
    browser.open(path)
    press(browser, "Save Beside the published numbers as CSV")
    text = fetched(browser, folder, "beside-the-published-numbers.csv").decode("utf-8-sig")
    assert text.splitlines()[:2] == [
        "Quantity,Here,Deviation,Published,Difference",
        f'"Frozen, accuracy (%)",{mean:.2f},{spread:.2f},88.1,{mean - 88.1:.2f}',
    ]


def rows(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))


def test_the_listed_nodes_as_csv(browser, world_export, folder):
    path, evidence, names = world_export
    browser.open(path, "#nodes&status=wrong&order=node")
    press(browser, "Save the listed nodes as CSV")
    found = rows(fetched(browser, folder, "nodes.csv"))
    wrong = np.flatnonzero(~evidence.right)
    order = wrong[np.argsort(evidence.nodes[wrong])]
    assert [int(row["node"]) for row in found] == evidence.nodes[order].tolist()
    for row, i in zip(found, order, strict=True):
        assert float(row["gamma"]) == pytest.approx(evidence.margin[i], abs=1e-9)
        assert int(row["degree"]) == evidence.degree[i]
        name = names[evidence.true_class[i]]
        # A spreadsheet must not take a name for a formula.
        assert row["true class"] == (f"'{name}" if name == FORMULA else name)
        moved = evidence.corrections[1].logits[i]
        c = evidence.true_class[i]
        lead = moved[c] - np.delete(moved, c).max()
        assert float(row["margin Set translation"]) == pytest.approx(lead, abs=1e-5)


def test_all_terms_of_a_node_as_csv(browser, world_export, folder):
    path, evidence, names = world_export
    i = int(np.flatnonzero(evidence.nodes == 2)[0])  # terms from everybody
    browser.open(path, "#node=2")
    press(browser, "Save all terms as CSV")
    found = rows(fetched(browser, folder, "terms-node-2.csv"))
    terms = slice(evidence.starts[i], evidence.starts[i + 1])
    assert len(found) == terms.stop - terms.start > 25
    alpha = np.array([float(row["alpha"]) for row in found])
    np.testing.assert_allclose(alpha, evidence.coefficients[terms], rtol=1e-6)
    witness = np.array([float(row["lambda Oracle"]) for row in found])
    np.testing.assert_allclose(witness, evidence.witness[terms], rtol=1e-5, atol=1e-9)
    c, rival = evidence.true_class[i], (evidence.true_class[i] + 1) % 4
    over = np.array([float(row[f"frozen, over {names[rival]}"]) for row in found])
    table = evidence.contributions[evidence.rows[terms]]
    np.testing.assert_allclose(over, alpha * (table[:, c] - table[:, rival]), rtol=1e-4, atol=1e-6)


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


def test_the_footer_says_how_the_page_was_made(browser, world_export):
    path, *_ = world_export
    browser.open(path)
    words = browser.text("#made")
    assert f"made by gnn-repair {gnn_repair.__version__}" in words
    assert "protocol abc123" in words and "seed 7" in words
    assert "command gnn-repair report --store <b>x</b>" in words
    assert browser.run("return document.querySelector('#made b b, #made code b')") is None


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
