"""Taking things away: pictures, tables, links, and how the page was made."""

from __future__ import annotations

import csv
import io
import statistics
from xml.etree import ElementTree

import numpy as np
import pytest

import gnn_repair
from gnn_repair.reporting import PageContext, gather, report, report_results
from tests.helpers.report.browser import missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

FORMULA = '=1+1,"quoted"'
MADE = {"protocol": "abc123", "seed": "7", "command": "gnn-repair report --store <b>x</b>"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
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


def test_pictures_are_files_of_their_own(browser, world, folder):
    path, evidence, _ = world
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


def test_the_listed_nodes_as_csv(browser, world, folder):
    path, evidence, names = world
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


def test_all_terms_of_a_node_as_csv(browser, world, folder):
    path, evidence, names = world
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


def test_a_link_holds_the_whole_view(browser, world):
    path, evidence, _ = world
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


def test_nonsense_in_a_link_harms_nothing(browser, world):
    path, evidence, _ = world
    node = evidence.nodes[3]
    for part in (
        "what=nobody,1:7,99999:0.5,x:y", "one=77&two=-1", "frame=1,2", "hide=9,x", "view=__proto__",
        "sort=up constructor", "fit=&weigh=nobody&colour=3", "order=gain 99", "a=7&b=zz",
        "%E0%A4%A", "from=x&to=1e999", "frame=0,0,0,0", "frame=1,-1,1,-1",
        "frame=-1e308,1e308,-5,5",
    ):  # fmt: skip
        browser.open(path, f"#node={node}&{part}")
        assert browser.selected() == node, part
        assert browser.run("return document.querySelectorAll('#plane svg .hull').length") == 1
        assert browser.messages() == [], part


def test_the_footer_says_how_the_page_was_made(browser, world):
    path, *_ = world
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
