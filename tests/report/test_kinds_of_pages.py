"""Pages of nonlinear heads, of graph classifiers and of ladders; the overview counted again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.methods import rung_title
from gnn_repair.oracle import metrics, reach, solve
from gnn_repair.oracle.problems import FAILED
from gnn_repair.repair.ladder import EvidenceLadder
from gnn_repair.reporting import gather, plots, report
from gnn_repair.reporting.figures import hull, plane_of
from gnn_repair.reporting.payload import run_payload
from tests.helpers.report.browser import DESKTOP, PHONE, missing
from tests.helpers.report.pages import payload_of
from tests.helpers.report.report_worlds import Moved, make_exposure

# The page of models that end in a nonlinear head: what it gathers, and what a browser shows.

CLASSES, NODES = 4, 36


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
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
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


# The page of a model that classifies graphs: graphs are listed, their nodes drawn.


class Plain(nn.Module):
    """Nodes say their features, after a ReLU where it is asked for."""

    def __init__(self, nonlinear: bool) -> None:
        super().__init__()
        self.nonlinear = nonlinear
        self.say = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            self.say.weight.copy_(torch.eye(3))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        pooled = global_mean_pool(x, batch)
        return self.say(pooled.relu() if self.nonlinear else pooled)


def graphs() -> list[Data]:
    """Rings in which node 2 alone is for class 0 and all others for class 1."""
    made = []
    for number in range(4):
        size = 5 + number
        x = torch.zeros(size, 3)
        x[:, 1] = 1.0
        x[2] = torch.tensor([2.0, 0.0, 0.5])
        around = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
        both = torch.cat([around, around.flip(0)], 1)
        made.append(Data(x=x, edge_index=both, y=torch.tensor([0])))
    return made


@pytest.fixture(params=[False, True], ids=["linear", "tailed"])
def world_graph_page(request: pytest.FixtureRequest) -> Any:
    data = graphs()
    batch = Batch.from_data_list(data)
    return gr.expose(Plain(request.param), data), batch.y, batch


def test_graphs_and_their_nodes_are_one_numbered_set(world_graph_page: Any) -> None:
    exposure, y, batch = world_graph_page
    evidence = gather(exposure, y, torch.tensor([1, 3]), edge_index=batch.edge_index)
    assert sorted(evidence.nodes.tolist()) == [1, 3]
    assert evidence.labels.tolist() == [0] * 4 + [-1] * batch.num_nodes
    # A node alone gives its graph the class that it is for; nodes of other graphs are not shown.
    starts = [0, 5, 11, 18, 26]
    for graph in (1, 3):
        votes = evidence.predictions[4 + starts[graph] : 4 + starts[graph + 1]]
        assert votes.tolist() == [1, 1, 0] + [1] * (starts[graph + 1] - starts[graph] - 3)
    assert evidence.edges is not None
    ends = {tuple(pair) for pair in evidence.edges.T.tolist()}
    wanted = {(4 + 5 + a, 4 + 5 + b) for a, b in ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5))}
    assert {pair for pair in ends if pair[0] < 4 + 11} == wanted
    owner = np.repeat(evidence.nodes, np.diff(evidence.starts))
    used = evidence.sources[evidence.rows][evidence.witness > 1e-7] - 4
    assert (used - np.array(starts)[owner[evidence.witness > 1e-7]]).tolist() == [2, 2]
    words, arrays = run_payload(evidence, node_names=["a", "b", "c", "d"])
    assert words["names"] == ["a", "b", "c", "d"] and "graph_starts" in arrays


def test_edges_between_graphs_are_refused(world_graph_page: Any) -> None:
    exposure, y, _ = world_graph_page
    with pytest.raises(InputError, match="ties nodes of different graphs"):
        gather(exposure, y, edge_index=torch.tensor([[0], [7]]))
    with pytest.raises(InputError, match="names node 26, but the nodes are 0 to 25"):
        gather(exposure, y, edge_index=torch.tensor([[0], [26]]))


@pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")
def test_the_witness_is_what_is_coloured(
    browser: Any, world_graph_page: Any, tmp_path: Path
) -> None:
    exposure, y, batch = world_graph_page
    page = gr.report(exposure, y, tmp_path / "page.html", edge_index=batch.edge_index)
    browser.open(page, "#node=1")
    found = browser.driver.execute_script(
        "return [...document.querySelectorAll('#neighbourhood [data-lambda]')]"
        ".map((mark) => [Number(mark.dataset.lambda), mark.textContent])"
    )
    lines = browser.driver.execute_script(
        "return document.querySelectorAll('#neighbourhood line').length"
    )
    facts = browser.text("#node-head")
    tip = browser.run("return document.querySelector('#neighbourhood [data-lambda]').tip()")
    browser.open(page)
    story, words = browser.text("#story-sentence"), browser.text("#overview")
    heading, errors = browser.text("#subtitle"), browser.messages()
    assert sorted(found) == sorted([[float(k == 2), str(k)] for k in range(6)])
    assert lines == 6 and not errors
    assert story.startswith("4 of 4 graphs are wrong; for 4 of them the evidence was there")
    assert heading.startswith("4 graphs, 4 of them")
    assert "test nodes" not in words and "homophily" not in words
    assert facts.startswith("Graph 1") and "nodes 6" in facts
    assert not [line for line in tip if "unlabelled" in line]


# Where the evidence was lost, on the page: what the ladder found, and nothing without one.

BRIEF = Budget(4, 4, 0.02, 1e-4, decoupled=True, epoch_zero=True)
NAMES = ["<b>first</b>", "second", "third"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    data = gr.load_dataset("builtin")
    frozen = gr.train_backbone("gcn", data, splits=range(2), budget=Budget(20, None, 1e-2, 5e-4))
    exposure = gr.expose(frozen)
    rungs = ("messages", "labels")
    ladder = EvidenceLadder(rungs, hidden=8, folds=2, budget=BRIEF)
    masks = data.train_mask[:, :2], data.val_mask[:, :2]
    fitted = ladder.fit(exposure, data.y, *masks, data=data, device="cpu")
    names = (NAMES + [f"class {c}" for c in range(3, exposure.num_classes)])[: exposure.num_classes]
    path = tmp_path_factory.mktemp("lost") / "report.html"
    given = {"nodes": torch.arange(20), "member": 1, "class_names": names}
    gr.report(exposure, data.y, path, repairs={"evidence_ladder": fitted}, **given)
    return path, fitted, exposure, data


def test_the_page_holds_what_the_ladder_found_for_the_member_that_is_shown(written):
    path, fitted, *_ = written
    lost, findings = payload_of(path)["run"]["lost"], fitted.member(1).findings()
    titles = [rung_title(name) for name in fitted.candidates]
    assert [row["rung"] for row in lost["rows"]] == titles[1:]
    right, judged = fitted.right_out_of_fold()
    labels = fitted.constants["labels"][1]
    for number, row in enumerate(lost["rows"], 1):
        below = titles.index(row["above"])
        gained = right[1, number].double() - right[1, below].double()
        assert row["gain"] == pytest.approx(100 * float(gained[judged[1]].mean()), abs=1e-6)
        for label, gain in enumerate(row["classes"]):
            own = gained[labels == label]
            assert gain is None if not len(own) else abs(gain - 100 * float(own.mean())) < 1e-6
    assert lost["advice"] == list(findings.advice())
    assert lost["chosen"] == rung_title(fitted.chosen[1])
    assert lost["transductive"] == titles[2:]  # not the messages
    assert lost["nodes"] == int(judged[1].sum())


def test_without_a_ladder_there_is_no_such_section(written, tmp_path):
    _, _, exposure, data = written
    plain = torch.zeros(exposure.num_nodes, exposure.num_classes)
    gr.report(
        exposure, data.y, tmp_path / "plain.html", nodes=torch.arange(9), repairs={"mine": plain}
    )
    assert payload_of(tmp_path / "plain.html")["run"]["lost"] is None


@pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")
def test_a_browser_shows_it_and_names_are_no_markup(browser, written):
    path, fitted, *_ = written
    browser.open(path)
    assert "Where the evidence was lost" in browser.text("#charts")
    text = browser.text("#lost")
    for line in fitted.member(1).findings().advice():
        assert line in text
    assert "<b>first</b>" in text
    rows = browser.run("return document.querySelectorAll('#lost tbody tr').length")
    assert rows == len(fitted.candidates) - 1
    assert browser.messages() == []


# Every figure of the overview, recomputed from the rows of the nodes by code that shares nothing.

LINES = "return [...document.querySelectorAll(arguments[0])].map(mark => mark.tip)"
COLUMNS = ".chart[aria-label='Reach by class'] svg g > rect[fill=transparent]"


@pytest.fixture(scope="module", params=["programs", "head"])
def world_aggregates(request, tmp_path_factory, nonlinear_world):
    """A page, its rows (wrong, true, predicted, can, chance; ``can`` is None where nobody knows),
    and a repair's predictions."""
    if request.param == "head":
        path, exposure, y = nonlinear_world
        return path, rows_of(reach(exposure, y)), None
    exposure, y = make_exposure(nodes=60, seed=6)
    y[[4, 9]] = -1

    def unsure(*arguments, **options):
        solution = solved(*arguments, **options)
        status, margin = solution.status.copy(), solution.margin.copy()
        lost = (solution.node % 7 == 3) & (solution.target == y.numpy()[solution.node])
        status[lost], margin[lost] = FAILED, np.nan
        return replace(solution, status=status, margin=margin)

    solved = metrics.solve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "solve", unsure)
        path = tmp_path_factory.mktemp("rows") / "page.html"
        report(exposure, y, path, repairs={"mine": Moved()})
        rows = rows_of(reach(exposure, y))
    assert any(row["can"] is None for row in rows if row["wrong"])
    now = Moved().logits(exposure)[0].argmax(1)
    return path, rows, {row["node"]: int(now[row["node"]]) for row in rows}


def rows_of(found):
    rows = []
    for k, (true, predicted) in enumerate(zip(found.true, found.predicted, strict=True)):
        can, known = found.classes.reachable[k], found.classes.decided[k]
        others = [c for c in range(len(can)) if c not in (true, predicted)]
        rows.append(
            {
                "node": int(found.classes.node[k]),
                "true": int(true),
                "predicted": int(predicted),
                "wrong": bool(true != predicted),
                "can": bool(can[true]) if known[true] else None,
                "chance": float(np.mean([can[c] for c in others])),
            }
        )
    return rows


def per_cent(part, whole):
    return f"{100 * part / whole:.1f} %"


@needs_browser
def test_tiles_columns_cells_and_moves_are_counted_from_the_rows(browser, world_aggregates):
    path, rows, repaired = world_aggregates
    browser.open(path)
    errors = [row for row in rows if row["wrong"]]
    can, cannot, unknown = ([r for r in errors if r["can"] is v] for v in (True, False, None))
    tiles = [t.replace("\xa0", " ") for t in browser.run(
        "return [...document.querySelectorAll('.figure')].map(tile => tile.innerText)"
    )]  # fmt: skip
    assert tiles[0].startswith(per_cent(len(rows) - len(errors), len(rows)))
    if repaired is None:  # undecided makes an interval
        low, high = len(can) / len(errors), (len(can) + len(unknown)) / len(errors)
        share = f"{100 * low:.1f}–{100 * high:.1f} %" if unknown else per_cent(low, 1)
    else:  # what was not solved counts nowhere
        share = per_cent(len(can), len(can) + len(cannot))
    assert tiles[1].startswith(share)
    chance = 100 * np.mean([row["chance"] for row in errors])
    assert float(re.search(r"chance ([\d.]+)", tiles[1])[1]) == pytest.approx(chance, abs=0.051)
    for c, lines in enumerate(browser.run(LINES, COLUMNS)):
        own = [r for r in rows if r["true"] == c]
        if repaired is not None:
            own = [r for r in own if not (r["wrong"] and r["can"] is None)]
        wrong = [r for r in own if r["wrong"]]
        counts = [int(re.search(r": (\d+)", line)[1]) for line in lines[1:4]]
        reached = [sum(r["can"] is v for r in wrong) for v in (True, False)]
        assert (lines[0], counts) == (f"class {c}", [len(own) - len(wrong), *reached])
        said = re.search(r"chance <?([\d.]+)", " ".join(lines))
        assert bool(said) == bool(wrong)
        if wrong:
            share = 100 * np.mean([r["chance"] for r in wrong])
            assert float(said[1]) == pytest.approx(share, abs=0.51)
    for first, second, *_ in browser.run(LINES, "[data-cell]"):
        a, *b = map(int, re.findall(r"class (\d)", first))
        here = [r for r in rows if (r["true"], r["predicted"]) == (a, *(b or [a]))]
        assert int(first.split(": ")[1].split()[0]) == len(here) > 0
        if b:
            counts = [sum(r["can"] is v for r in here) for v in (True, False, None)]
            found = [int(number) for number in re.findall(r"(\d+) [ruw]", second)]
            assert found == counts[: 3 if counts[2] else 2]
    if repaired is not None:
        gone = [sum(r["wrong"] is w and (repaired[r["node"]] == r["true"]) is w for r in rows)
                for w in (True, False)]  # fmt: skip
        text = browser.text(".chart[aria-label='What each repair did'] svg")
        assert f"+{gone[0]}" in text and f"−{gone[1]}" in text
    assert browser.messages() == []


@pytest.mark.parametrize("groups", [1, 2])
def test_permuted_nodes_and_classes_permute_the_page_s_data(groups):
    """Nothing on a page depends on the order in which a graph numbers nodes and classes."""
    exposure, y = make_exposure(groups=groups)
    generator = torch.Generator().manual_seed(1)
    new, named = (torch.randperm(size, generator=generator) for size in (40, 4))  # old to new
    back, old_class = new.argsort(), named.argsort()
    turned = exposure.restrict(back)  # recipients in the order of their new numbers
    turned = replace(
        turned,
        recipients=torch.arange(40),
        sources=new[turned.sources.long()].to(turned.sources.dtype),
        contributions=turned.contributions[:, :, old_class],
        fixed_logits=turned.fixed_logits[:, back][:, :, old_class],
        frozen_logits=turned.frozen_logits[:, back][:, :, old_class],
        state=turned.state[:, back],
    )
    before = gather(exposure, y, others=True)
    after = gather(turned, named[y[back]], others=True)
    place = {int(node): i for i, node in enumerate(after.nodes)}
    rows = [place[int(new[node])] for node in before.nodes]
    plain, moved = (run_payload(one)[1] for one in (before, after))
    for name in ("margins", "degree", "homophily", "support", "chance", "asked"):
        np.testing.assert_allclose(moved[name][rows], plain[name], atol=1e-6, err_msg=name)
    for name in ("frozen_logits", "fixed_logits"):
        np.testing.assert_allclose(moved[name][rows][:, named], plain[name], atol=1e-5)
    np.testing.assert_allclose(after.classes.share[rows][:, named], before.classes.share, atol=1e-6)
    np.testing.assert_array_equal(moved["predictions"][new], named[plain["predictions"].tolist()])


@pytest.mark.parametrize("limit", [None, 6_000])
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


@needs_browser
@pytest.mark.parametrize("order", ["margin", "margin-high", "gain"])
def test_nodes_without_an_answer_come_last_in_orders_of_answers(browser, world_aggregates, order):
    path, rows, _ = world_aggregates
    unknown = {row["node"] for row in rows if row["can"] is None}
    assert 1 < len(unknown) < 20
    browser.open(path, "#nodes")
    browser.choose("#order", order)
    browser.run("const box = document.getElementById('list'); box.scrollTop = box.scrollHeight")
    browser.settle()
    listed = browser.run(
        "return [...document.querySelectorAll('.row')].map(row => Number(row.dataset.node))"
    )
    assert set(listed[-len(unknown) :]) == unknown


def test_chance_of_everyone_is_said_where_everyone_was_asked(world_aggregates):
    path, rows, repaired = world_aggregates
    found = payload_of(path)["run"]["chance_summary"]["everyone"]
    if repaired is None:  # behind a head errors alone are asked about
        assert found is None
    else:
        assert found == pytest.approx(100 * np.mean([row["chance"] for row in rows]))
