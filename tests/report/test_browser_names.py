"""Names of every kind: what recipients are called, and names that are hard to tell apart."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

import gnn_repair as gr
from gnn_repair.reporting import PageContext, gather, report
from tests.helpers.report.browser import PHONE, missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

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


def test_recipients_are_called_what_they_are(browser, papers):
    path, evidence = papers
    browser.open(path)
    assert browser.text("#tab-nodes") == "Papers"
    assert browser.text("#subtitle").startswith("25 papers, ")
    wrong = int((~evidence.right).sum())
    assert browser.text("#story-sentence").startswith(f"{wrong} of 25 chosen papers are wrong")
    assert " node" not in browser.run("return document.getElementById('overview').innerText")
    browser.open(path, f"#node={evidence.nodes[0]}")
    assert browser.text("#node-head h2") == f"Paper {evidence.nodes[0]}"
    assert browser.text("#count") == "25 of 25 papers"
    words = browser.run("return document.getElementById('nodes').innerText")
    assert " node" not in words and "Node" not in words
    senders = browser.run(
        "return [...document.querySelectorAll('#terms tr[data-term]')].map(row =>"
        " [...row.querySelectorAll('td.text')].map(cell => cell.textContent))"
    )
    kinds = {name.split()[0] for name, *_ in senders}
    assert kinds <= {"author", "paper"}
    # A sender of another kind has no class, which is not a class that is unknown.
    assert {cells[2] for cells in senders if cells[0].startswith("author")} <= {"–"}
    browser.choose("#search", "nothing like this")
    assert browser.text("#nothing") == "No paper passes these filters."
    for node, words in ((27, "Paper 27 is not on this page"), (31, "There is no paper 31")):
        browser.open(path, f"#node={node}")
        assert browser.text("#notice-text").startswith(words)
    assert browser.messages() == []


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
    saved = waited(browser, tmp_path / "nodes.csv")
    with saved.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["node"]) for row in rows] == sorted(evidence.nodes)
    labels = evidence.labels
    assert {row["true class"] for row in rows if labels[int(row["node"])] == 3} == {TURNED[1:]}
    assert {row["true class"] for row in rows if labels[int(row["node"])] == 1} == {"dup (1)"}


def waited(browser, path: Path) -> Path:
    for _ in range(100):
        if path.is_file():
            return path
        browser.settle()
    raise AssertionError(f"{path.name} was not saved")
