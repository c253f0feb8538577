"""The page of models that end in a nonlinear head: what it gathers, and what a browser shows."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

from gnn_repair.exposure import expose
from gnn_repair.oracle import reach, solve
from gnn_repair.reporting import gather, plots, report
from gnn_repair.reporting.figures import hull, plane_of
from gnn_repair.reporting.payload import run_payload
from tests.helpers.report.browser import DESKTOP, PHONE, missing

CLASSES, NODES = 4, 60
WIDTHS = [DESKTOP, 1440, PHONE]


class Tailed(nn.Module):
    """A convolution of two heads or none, an activation, a linear head."""

    def __init__(self, activation: nn.Module, heads: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = GCNConv(6, 12)
        self.last = GATConv(12, 6, heads=2) if heads else GCNConv(12, 12)
        self.activation, self.head = activation, nn.Linear(12, CLASSES)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        return self.head(self.activation(self.last(x, edge_index)))


@pytest.fixture(scope="module")
def graph() -> Data:
    torch.manual_seed(0)
    y = torch.randint(0, CLASSES, (NODES,))
    ends = torch.randint(0, NODES, (2, 3 * NODES))
    ends = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    x = torch.randn(NODES, 6) + nn.functional.one_hot(y, 6)
    return Data(x=x, edge_index=ends, y=y)


@pytest.fixture(scope="module", params=["relu", "softplus", "heads"])
def world(request, graph, tmp_path_factory):
    """An exposure, its labels and solution, and the page's path."""
    activation = nn.Softplus(threshold=19) if request.param == "softplus" else nn.ReLU()
    exposure = expose(Tailed(activation, request.param == "heads"), graph)
    assert exposure.head is not None
    solution = solve(exposure, graph.y)
    path = tmp_path_factory.mktemp("tail") / "report.html"
    repairs = {"mine": torch.randn(NODES, CLASSES)}
    report(exposure, graph.y, path, repairs=repairs, edge_index=graph.edge_index)
    return request.param, exposure, solution, path


def test_gathered_logits_are_those_of_the_model_really_run(world, graph):
    kind, exposure, solution, _ = world
    evidence = gather(exposure, graph.y)
    behind = evidence.head
    counts = {word: int((solution.verdict == word).sum()) for word in ("can", "cannot")}
    assert int(behind.proved.sum()) == counts["can"]
    assert int((behind.decided & ~behind.proved).sum()) == counts["cannot"]
    assert (kind == "softplus") == bool((~behind.decided).any())
    dense = solution.dense(exposure)[0]
    run = exposure.replay(dense).double().detach().numpy()
    np.testing.assert_allclose(behind.oracle_logits, run[evidence.nodes], rtol=1e-5, atol=1e-5)
    # Every message alone in its group, for a few nodes: the model itself, run that way.
    part = exposure.restrict(torch.from_numpy(evidence.nodes))
    ends, alpha = part.segments.tolist(), part.coefficients[0].double()
    for slot in range(0, len(ends) - 1, 7):
        for term in range(ends[slot], ends[slot + 1]):
            lam = alpha.clone()
            lam[ends[slot] : ends[slot + 1]] = 0.0
            lam[term] = alpha[ends[slot] : ends[slot + 1]].sum()
            node = evidence.nodes[slot // exposure.num_groups]
            said = part.replay(lam)[node].double().detach().numpy()
            np.testing.assert_allclose(behind.alone_logits[term], said, rtol=1e-5, atol=1e-5)
    assert hull(evidence, 0, plane_of(evidence, 0)).shape == (0, 2)
    proved = reach(exposure, graph.y).members[0].true_class
    assert (evidence.reach.reachable, evidence.reach.nodes) == (proved.hits, proved.total)


def test_single_plots_of_a_nonlinear_head(world, graph):
    _, exposure, solution, _ = world
    node = int(solution.node[solution.reachable][-1])
    axes = plots.node(exposure, node, graph.y, ax=Figure().add_subplot())
    drawn = axes.lines[0].get_xydata()
    evidence = gather(exposure, graph.y, torch.tensor([node]))
    plane = plane_of(evidence, 0)
    np.testing.assert_allclose(drawn, plane.place(evidence.head.alone_logits))
    axes = plots.reach(exposure, graph.y, ax=Figure().add_subplot())
    assert "best margin found" in axes.get_xlabel()


needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_the_overview_shows_reach_as_an_interval(browser, world, graph, width):
    kind, exposure, _, path = world
    browser.open(path, width=width)
    words = browser.driver.find_element("id", "key-figures").text
    found = reach(exposure, graph.y)
    (own,) = found.members
    for rate, text in ((own.true_class, "true class within"), (own.error, "of errors")):
        low, high = 100 * rate.value, 100 * rate.possible
        shown = f"{low:.1f}–{high:.1f} %" if rate.undecided else f"{low:.1f} %"
        assert re.search(re.escape(shown) + r"\s+" + text, words), words
    assert (kind == "softplus") == ("–" in words)
    assert "followed by" in browser.driver.find_element("id", "subtitle").text
    wide = browser.driver.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width and not browser.messages()


@needs_browser
def test_a_node_is_told_in_words_and_drawn_without_a_polygon(browser, world, graph):
    kind, exposure, solution, path = world
    told = set()
    for i in range(len(solution)):
        word = str(solution.verdict[i])
        if word in told or not len(solution[i].terms):
            continue
        told.add(word)
        node = int(solution.node[i])
        browser.open(path, f"#node={node}", width=PHONE if word == "can" else 1440)
        words = browser.text("#certificate")
        name = f"class {int(graph.y[node])}"
        if word == "can":
            assert f"{name} " in words and "the model itself, run with these weights" in words
        if word == "cannot":
            assert f"{name} cannot win: every reweighting" in words and "prove" in words
        if word == "undecided":
            assert "It is undecided whether" in words and solution.reasons[i] in words
        margin = browser.driver.find_element("css selector", "[data-margin=oracle]").text
        assert float(margin.replace("−", "-").replace("+", "")) == pytest.approx(
            float(solution.margin[i]), abs=6e-4
        )
        drawn = browser.driver.find_elements("css selector", "#plane circle.vertex")
        ends = exposure.segments[:: exposure.num_groups]
        assert len(drawn) == int(ends[node + 1] - ends[node])
        assert not browser.driver.find_elements("css selector", "#plane .hull, #terms input")
        assert "no polygon" in browser.driver.find_element("id", "plane-caption").text
        assert "is not linear" in browser.driver.find_element("id", "what-if-line").text
        assert not browser.messages()
    assert "can" in told and ("undecided" if kind == "softplus" else "cannot") in told


@pytest.mark.parametrize("limit", [None, 12_000])
def test_every_opened_node_has_its_own_reason(graph, limit):
    torch.manual_seed(0)
    evidence = gather(expose(Tailed(nn.Softplus(threshold=19)), graph), graph.y)
    count = len(evidence.nodes)
    # Reasons that tell the nodes apart.
    reasons = np.array([f"node {node}" if node % 3 else "" for node in evidence.nodes])
    evidence = replace(evidence, head=replace(evidence.head, reasons=reasons))
    words, arrays = run_payload(evidence, limit=limit)
    opened = arrays["nodes"][: words["explored"]]
    assert (len(opened) == count) == (limit is None) and len(opened) > 3
    told = {str(i): f"node {node}" for i, node in enumerate(opened) if node % 3}
    assert words["head"]["reasons"] == told
