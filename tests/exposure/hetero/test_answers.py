"""Answers, files, repairs and pages about several node types: senders by type and number."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv

import gnn_repair as gr
from gnn_repair import Exposure, expose, solve
from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import ONE_KIND, NodeNames
from gnn_repair.oracle import source_ranking
from gnn_repair.oracle.explainer import exposed_layers
from gnn_repair.repair.baselines import sources_to_recipients
from gnn_repair.repair.evidence import summary
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.repair.targets import check_graph_data
from gnn_repair.reporting.evidence import gather
from tests.helpers.models.made import Made
from tests.helpers.models.typed_models import CLASSES, SIZES, WIDTHS, build, first_run, graph
from tests.helpers.report.pages import payload_of

SENDER = re.compile(r"(paper|author|venue) (\d+) \(λ ([\d.e+-]+), (\w+ \w+ \w+)\)")
World = tuple[nn.Module, HeteroData, Exposure]


def world(name: str) -> World:
    model, data = build(name)
    return model, data, expose(model, data)


@pytest.fixture(scope="module")
def affine() -> World:
    return world("HeteroConv by sum")


@pytest.fixture(scope="module")
def bent() -> World:
    return world("HeteroConv then ReLU")


# Names --------------------------------------------------------------------------------------------


def test_names() -> None:
    names = NodeNames("paper", tuple(SIZES.items()), ("a writes b",))
    told = ["paper 0", "paper 29", "author 0", "author 17", "venue 0", "venue 6", "no message"]
    assert [names.sender(k) for k in (0, 29, 30, 47, 48, 54, -1)] == told
    assert (names.count(30), names.own(30), names.node(3)) == (55, 30, "paper 3")
    assert names.group(0) == "a writes b" and ONE_KIND.group(2) == "group 2"
    assert ONE_KIND.sender(4) == "node 4" and ONE_KIND.own(9) == ONE_KIND.count(9) == 9
    assert NodeNames("graph", (("node", 5),)).own(2) == 0
    assert NodeNames.of_header(json.loads(json.dumps(names.header()))) == names
    assert NodeNames.of_header(None) == ONE_KIND


@pytest.mark.parametrize(
    "wrong",
    [{"recipient": 1}, {"senders": 3}, {"groups": None}]
    + [{"senders": [senders]} for senders in (["b", -1], ["b", 1.5], ["b"])],
)
def test_names_that_nobody_wrote(wrong: dict[str, Any]) -> None:
    header = {"recipient": "a", "senders": [], "groups": []}
    assert NodeNames.of_header(header).recipient == "a"
    with pytest.raises(InputError, match="names of nodes"):
        NodeNames.of_header(header | wrong)


def test_sources_beyond_the_last_sender(affine: World) -> None:
    with pytest.raises(InputError, match=r"sources must lie in -1\.\.54"):
        replace(affine[2], sources=affine[2].sources + 30)


# Answers ------------------------------------------------------------------------------------------


def test_answers_name_type_relation_and_number(affine: World, bent: World, tmp_path: Path) -> None:
    for number, (_, data, exposure) in enumerate((affine, bent)):
        y, nodes, told = data["paper"].y, torch.arange(12), 0
        solution = solve(exposure, y, nodes)
        assert solution.check(exposure).ok
        solution.save(tmp_path / str(number))
        again = type(solution).load(tmp_path / str(number))
        assert again.names == solution.names == exposure.term_names
        assert list(map(str, again)) == list(map(str, solution))
        answers = [*solution, *gr.nearest_reweighting(exposure, y, nodes)]
        for answer in (*answers, *gr.stable_evidence(exposure, y, nodes)):
            assert str(answer).startswith(f"paper {answer.node}, ") and "node " not in str(answer)
            for kind, sender, share, relation in SENDER.findall(str(answer)):
                ends = data[tuple(relation.split())].edge_index.t().tolist()
                assert relation.split()[0] == kind and [int(sender), answer.node] in ends
                assert 0 < float(share) <= 1.0001
                told += 1
        assert told > 5
    ranked = source_ranking(solve(affine[2], affine[1]["paper"].y), affine[2])
    assert set(ranked["source_type"]) == {"paper", "author", "venue"}
    assert (ranked["source"] < ranked["source_type"].map(SIZES)).all()


def test_senders_of_another_type_can_share_a_weight() -> None:
    data, kind = graph(), ("author", "writes", "paper")

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> torch.Tensor:
        pair = x_dict["author"], x_dict["paper"]
        return self.a(pair, edge_index_dict[kind]) + self.b(pair, edge_index_dict[kind])

    widths = WIDTHS["author"], WIDTHS["paper"]
    convs = {
        name: SAGEConv(widths, CLASSES, aggr=how) for name, how in (("a", "sum"), ("b", "mean"))
    }
    exposure = expose(Made(forward, **convs).double(), data)
    tied, edges = exposure.tied(), data[kind].edge_index
    assert (exposure.num_groups, tied.num_groups) == (2, 1)
    assert tied.num_terms == edges.shape[1]
    torch.testing.assert_close(tied.logits(), exposure.logits(), rtol=0, atol=1e-12)


def test_a_file_is_bound_by_its_type(bent: World, tmp_path: Path) -> None:
    model, data, exposure = bent
    exposure.save(tmp_path / "exposure")
    bound = Exposure.load(tmp_path / "exposure").bind(model, data, node_type="paper")
    torch.testing.assert_close(bound.replay(bound.coefficients[0]), exposure.frozen_logits[0])  # type: ignore[misc]


def test_explainers_and_ladders_say_what_they_need(affine: World) -> None:
    model, data, exposure = affine
    with pytest.raises(InputError, match="several kinds; use solve"):
        exposed_layers(model, exposure)
    with pytest.raises(InputError, match="pass a Data of the 'paper' nodes"):
        check_graph_data(exposure, data)
    edges = data["paper", "cites", "paper"].edge_index
    check_graph_data(exposure, Data(x=data["paper"].x, edge_index=edges))


# Repairs ------------------------------------------------------------------------------------------


def test_what_repairs_read_of_senders(affine: World) -> None:
    """Their state and, of the classified type alone, their logits; of others even chances."""
    _, data, exposure = affine
    inputs, width = RepairInputs(exposure), exposure.state.shape[2]
    described = inputs.messages.at(torch.arange(inputs.messages.rows.shape[1]).unsqueeze(0))[0]
    rows = exposure.rows.long()
    senders, frozen = exposure.sources[rows].long(), exposure.frozen_logits[0]
    foreign = senders >= len(frozen)
    assert bool(foreign.any()) and described.shape[1] == width + CLASSES
    seen = described[inputs.sets.columns.long()]
    behind = exposure.messages[0, exposure.message_rows[rows].long()]
    torch.testing.assert_close(seen[:, :width], behind)
    logits = frozen[senders.masked_fill(foreign, 0)].masked_fill(foreign[:, None], 0.0)
    torch.testing.assert_close(seen[:, width:], logits)
    first, groups = 2 * width + 2 * CLASSES + 3, exposure.num_groups
    found = summary(RepairInputs(exposure))[0, :, first : first + CLASSES].double()
    for place, (start, stop) in enumerate(pairwise(exposure.segments[::groups].tolist())):
        alpha = exposure.coefficients[0, start:stop].abs().double()
        said = logits[start:stop].softmax(1)  # of zeros: even chances
        if stop > start:
            torch.testing.assert_close(found[place], alpha / alpha.sum() @ said)
    ends = data["paper", "cites", "paper"].edge_index
    among = sources_to_recipients(exposure)
    assert sorted(map(tuple, among.t().tolist())) == sorted(map(tuple, ends.t().tolist()))


def of_paper(output: Any) -> Any:
    """What a model says of papers, whatever it returns."""
    said = output[0] if isinstance(output, tuple) else output
    return said["paper"] if isinstance(said, dict) else said


@pytest.mark.parametrize("name", ["own wrapper", "HGT", "logits for every type"])
def test_a_repaired_model_stands_in_for_the_model(name: str, tmp_path: Path) -> None:
    model, data, exposure = world(name)
    y, given = data["paper"].y, "data" if name == "logits for every type" else "dicts"

    def call(one: Any, graph: HeteroData) -> Any:
        return one(graph) if given == "data" else one(graph.x_dict, graph.edge_index_dict)

    train = torch.arange(len(y)) < 20
    fitted = gr.NodeTranslation(epochs=8, lr=0.05, hidden=8).fit(exposure, y, train, ~train)
    module = gr.repaired(model, fitted)
    for one in (data, graph(seed=5), data):
        expected = fitted.member_logits(expose(model, one))[0]
        seen = call(module, one)
        assert type(seen) is type(first_run(model, one))
        torch.testing.assert_close(of_paper(seen), expected, rtol=0, atol=1e-8)
    module.save(tmp_path / "repaired")
    again = gr.RepairedModel.load(tmp_path / "repaired", model)
    torch.testing.assert_close(of_paper(call(again, data)), of_paper(call(module, data)))


# The page -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [30, 4])
def test_a_page_counts_and_names_the_senders_that_it_shows(
    affine: World, shown: int, tmp_path: Path
) -> None:
    _, data, exposure = affine
    evidence = gather(exposure, data["paper"].y, torch.arange(shown))
    seen = exposure.to_frame(list(range(shown)))
    seen = seen[(seen["source_type"] != "paper") | (seen["source"] != seen["node"])]
    pairs = seen.drop_duplicates(["node", "source_type", "source"])
    counted = pairs.groupby("node").size().reindex(evidence.nodes, fill_value=0)
    assert evidence.degree.tolist() == counted.tolist()
    foreign = seen[seen["source_type"] != "paper"]
    names = foreign["source_type"] + " " + foreign["source"].astype(str)
    sources = evidence.sources[evidence.rows]
    assert set(evidence.senders) == {evidence.senders[k - 30] for k in sources if k >= 30}
    assert set(evidence.senders) == set(names)
    assert len(evidence.labels) == len(evidence.predictions) == 30 + len(evidence.senders)
    assert (evidence.labels[30:] == -1).all()
    if shown == 30:
        run = payload_of(gr.report(exposure, data["paper"].y, tmp_path / "page.html"))["run"]
        assert run["names"] == [*map(str, range(30)), *evidence.senders]
        assert run["groups"] == [group.name for group in exposure.groups]
