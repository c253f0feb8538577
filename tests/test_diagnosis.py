"""The front door: planted rows, which nodes are asked about, every kind of model, the commands."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GCNConv, HeteroConv, SAGEConv, global_mean_pool
from typer.testing import CliRunner

import gnn_repair as gr
from gnn_repair.cli.main import app
from gnn_repair.datasets import motif_graphs
from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import NodeNames
from gnn_repair.oracle.questions.ranges import ValueRange
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.study.tiny import tiny_graph


@pytest.fixture(scope="module")
def planted():
    """Node 0, all mass on class 1: 60 % on its other message make class 0 win by all, 1/3 by a tie.
    Node 1 hears class 2 alone. Node 2 is right."""
    table = np.array([[2.0, 0, 0], [0, 1, 0], [0, 0, 5], [4, 0, 0]])
    lengths = np.array([[2], [1], [1]], np.int64)
    alpha = np.array([0.0, 1.0, 1.0, 1.0])
    return exposure_of(Numbers(lengths, alpha, table, np.zeros((3, 3))))


def test_rows_sentences_and_files(planted, tmp_path):
    y = torch.tensor([0, 0, 0])
    found = gr.diagnose(planted, y=y)
    frame = found.to_frame()
    assert frame["verdict"].tolist() == ["can", "cannot", "right"]
    assert frame["frozen_margin"].tolist() == pytest.approx([-1, -5, 4])
    assert frame["gamma"].tolist() == pytest.approx([2, -5, 4])
    # 2 λ > 1 − λ: a third of the mass.
    assert frame["mass_moved"].tolist() == pytest.approx([1 / 3, np.nan, np.nan], nan_ok=True)
    assert frame["chance"].tolist() == [0, 0, 0] and frame["classes_in_reach"].tolist() == [2, 1, 1]
    assert frame["rank_by_change"].tolist() == pytest.approx([1, 1.5, np.nan], nan_ok=True)
    assert frame["smallest_change"][0] == "giving node 0 33 % of the weight (now 0 %)"
    assert frame["key_messages"][0] == "node 0 (λ 1)"
    text = found.explain(0)
    assert text.startswith(
        "node 0: predicted 1, true 0. Giving node 0 33 % of the weight (now 0 %)"
    )
    assert "33 % of the mass moves. 2 of 3 classes could win here; class 0 needs the least" in text
    assert "loses by at least 5" in found.explain(1) and "which is right" in found.explain(2)
    story = str(found).split("\n")
    assert len(story) == 5 and "wrong about 2 of 3 labelled nodes" in story[0]
    assert "50.0 %" in story[1] and "chance 0.0 %" in story[2] and "node 0" in story[4]
    assert "half need at most 33 %" in story[3] and "0 of 2 errors need at most 10 %" in story[3]
    pd.testing.assert_frame_equal(
        pd.read_csv(found.to_csv(tmp_path / "rows.csv"), keep_default_na=True).fillna(""),
        frame.fillna(""),
        check_dtype=False,
    )
    assert found.report(tmp_path / "page.html").is_file()
    lines = found.plot().get_lines()
    # Two errors: none at 0, half of them from a third on; of the others, one each, none.
    assert lines[0].get_ydata().tolist() == [0, 50, 50]
    assert lines[0].get_xdata().tolist() == pytest.approx([0, 100 / 3, 100])
    assert max(lines[1].get_ydata()) == 0
    with pytest.raises(TypeError, match=r"diagnose\(\) got an unexpected"):
        gr.diagnose(planted, y=y, foo=1)
    with pytest.raises(InputError, match="node 9 is not among"):
        found.explain(9)


def test_which_nodes_and_labels_are_taken(planted):
    def data(**fields):
        return SimpleNamespace(**fields)

    y, mask = torch.tensor([0, 0, 0]), torch.tensor([True, False, True])
    found = gr.diagnose(planted, data(y=y.view(3, 1), test_mask=mask.view(3, 1)))
    assert found.selection == "test nodes" and found.to_frame()["node"].tolist() == [0, 2]
    assert gr.diagnose(planted, data(y=y, test_mask=mask), nodes=[1]).selection == "chosen nodes"
    assert "no errors" not in str(gr.diagnose(planted, data(y=y), nodes=[2]))
    for wrong, message in (
        (data(y=None), "data has no y"),
        (data(y=y[:2]), r"y has shape \[2\] instead of \[3\]: one class for every node"),
        (data(y=y + 3), "y is 3 at node 0"),
        (data(y=y, test_mask=mask.view(3, 1).repeat(1, 2)), "has 2 splits"),
        (data(y=y, test_mask=mask[:2]), "2 entries for 3 nodes"),
    ):
        with pytest.raises(InputError, match=message):
            gr.diagnose(planted, wrong)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = GCNConv(8, 8), nn.Linear(8, 3)

    def forward(self, x, edge_index, batch):
        return self.head(global_mean_pool(self.conv(x, edge_index).relu(), batch))


class Tailed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = GCNConv(5, 6), nn.Linear(6, 3)

    def forward(self, x, edge_index):
        return self.head(self.conv(x, edge_index).relu())


class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        relations = {("author", "writes", "paper"): SAGEConv((4, 3), 3)}
        self.conv = HeteroConv(relations)

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)["paper"]


def ring(size=24, features=5):
    ends = torch.arange(size)
    edges = torch.cat([torch.stack([ends, (ends + k) % size]) for k in (1, 2, 5)], 1)
    from torch_geometric.data import Data

    fields = {"y": ends % 3, "test_mask": ends % 2 == 0}
    return Data(
        x=torch.randn(size, features), edge_index=torch.cat([edges, edges.flip(0)], 1), **fields
    )


def publications():
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(12, 3), torch.randn(9, 4)
    data["paper"].y, data["paper"].test_mask = torch.arange(12) % 3, torch.arange(12) < 8
    data["author", "writes", "paper"].edge_index = torch.stack(
        [torch.arange(36) % 9, torch.arange(36) % 12]
    )
    return data


@pytest.mark.parametrize(
    ("model", "data", "noun", "rows"),
    [
        (Pooled, lambda: motif_graphs(10, 12), "graphs", 10),
        (Tailed, ring, "nodes", 12),
        (Typed, publications, "papers", 8),
    ],
)
def test_every_kind_of_model(model, data, noun, rows, tmp_path):
    torch.manual_seed(1)
    found = gr.diagnose(model().eval(), data())
    assert noun in str(found) and len(found.to_frame()) == rows
    wrong = found.reach.wrong
    assert wrong.any() and not np.isnan(found.reach.chance.low)
    can = found.to_frame()["verdict"][wrong] == "can"
    assert found.reach.error == pytest.approx(can.mean())
    assert found.report(tmp_path / "page.html").is_file()


@pytest.fixture(scope="module")
def two_outputs():
    """Node 0 weighs +3 and −1 (of output 0) half and half; node 1 hears 2 alone, node 2 −4 alone;
    output 1 is the opposite of output 0."""
    table = np.array([[3.0], [-1], [2], [-4]])
    lengths = np.array([[2], [1], [1]], np.int64)
    alpha = np.array([0.5, 0.5, 1.0, 1.0])
    whole = Numbers(lengths, alpha, np.hstack([table, -table]), np.zeros((3, 2)))
    return replace(exposure_of(whole), outputs="labels")


def test_labels_are_rows_of_node_and_label(two_outputs, tmp_path):
    y = torch.tensor([[0, 0], [0, 1], [0, -1]])
    found = gr.diagnose(two_outputs, y=y)
    frame = found.to_frame()
    assert list(zip(frame["node"], frame["label"], strict=True)) == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0)
    ]  # fmt: skip
    assert frame["verdict"].tolist() == ["can", "right", "cannot", "cannot", "right"]
    assert frame["frozen_logit"].tolist() == pytest.approx([1, -1, 2, -2, -4])
    assert frame["gamma"].tolist() == pytest.approx([1, 3, -2, -2, 4])
    assert frame["could_turn"].tolist() == ["", "can", "", "", "cannot"]
    text = str(found)
    assert "wrong about 3 of 5 labels" in text
    assert "(1 of 3)" in text and "(1 of 2)" in text  # error reach, and chance beside it
    assert "wrongly" in found.explain(0) and "rightly" in found.explain(2)
    assert len(pd.read_csv(found.to_csv(tmp_path / "rows.csv"))) == 5
    told = found.summary()
    assert (told["reach"]["hits"], told["reach"]["total"], told["asked"]) == (1, 3, 5)
    assert (told["chance"]["hits"], told["chance"]["total"]) == (1, 2)
    heights = [bar.get_height() for bar in found.plot().patches]
    assert heights == pytest.approx([50, 0, 0, 100])
    with pytest.raises(InputError, match="classes"):
        found.report(tmp_path / "page.html")


def test_values_are_intervals_beside_chance(two_outputs, tmp_path):
    values = replace(two_outputs, outputs="values")
    y = torch.tensor([[2.5, 5.0], [2.0, -2.5], [float("nan"), -2.0]])
    found = gr.diagnose(values, y=y)
    frame = found.to_frame()
    assert frame["low"].tolist() == pytest.approx([-1, -3, 2, -2, -4, 4])
    assert frame["high"].tolist() == pytest.approx([3, 1, 2, -2, -4, 4])
    assert frame["verdict"].tolist() == ["can", "cannot", "can", "cannot", "", "cannot"]
    # Of output 0 two values are known, so each is the other's chance; of output 1 all three.
    expected = [1, 1, 0, 0.5, np.nan, 0]
    assert frame["chance"].tolist() == pytest.approx(expected, nan_ok=True)
    text = str(found)
    told = found.summary()
    assert (told["reach"]["hits"], told["chance"]["value"]) == (2, 0.5)
    assert told["excess"]["value"] == pytest.approx(-0.1)
    assert "(2 of 5)" in text and "chance 50.0 %" in text and "excess -10.0" in text
    assert "True: 2.5" in found.explain(0)
    assert sum(len(lines.get_segments()) for lines in found.plot().collections) == 5
    graphs = replace(found, exposure=replace(values, names=NodeNames("graph")))
    assert "Another graph's true value" in str(graphs)
    with pytest.raises(InputError, match="no y; pass y, the truth of every graph"):
        gr.diagnose(graphs.exposure, {})
    with pytest.raises(InputError, match="for 3 graphs; give it one for each"):
        gr.diagnose(graphs.exposure, y=y, nodes=torch.ones(2, dtype=torch.bool))
    lower, upper = (
        replace(end, bound=end.bound + 1) for end in (found.range.lower, found.range.upper)
    )
    loose = replace(found, range=ValueRange(lower, upper, found.range.frozen))
    verdicts = loose.to_frame()["verdict"].tolist()
    assert verdicts == ["can", "cannot", "can", "undecided", "", "cannot"]
    assert "2 proved, 1 undecided, of 5" in str(loose)
    middle, mean = np.median(found.range.width), np.mean(found.range.width)
    assert f"{middle:.4g}" != f"{mean:.4g}" and f"width {middle:.4g} in" in str(found.range)


def test_links_are_labels_of_their_own():
    torch.manual_seed(2)
    data = ring()
    conv = GCNConv(5, 4)
    links = data.edge_index[:, ::7]
    exposed = gr.expose_links(
        conv, data, links, decoder=lambda z, ends: (z[ends[0]] * z[ends[1]]).sum(1)
    )
    y = torch.arange(links.shape[1]) % 2
    found = gr.diagnose(exposed, y=y)
    frame = found.to_frame()
    assert frame["source"].tolist() == links[0].tolist() and len(frame) == links.shape[1]
    predicted = conv(data.x, data.edge_index)[links[0]] * conv(data.x, data.edge_index)[links[1]]
    assert frame["predicted"].tolist() == (predicted.sum(1) > 0).tolist()
    solved = gr.solve(exposed, y)
    wrong = frame["predicted"] != frame["true"]
    assert (frame["verdict"][wrong] == solved.verdict[wrong]).all()
    assert f"wrong about {wrong.sum()} of {len(frame)} links" in str(found)


def test_a_frozen_backbone_brings_its_own_data():
    data = tiny_graph()
    frozen = gr.train_backbone("sgc", data, [0, 2], budget=gr.Budget(3, None, 0.01, 0.0))
    found = gr.diagnose(frozen)
    assert found.reach.num_members == 2 and "2 members together" in str(found)
    rows = found.to_frame()[["member", "node"]].to_numpy().tolist()
    assert rows == data.test_mask[:, [0, 2]].t().nonzero().tolist()


@pytest.mark.parametrize("splits", [[3], [2, 0], [3, 1]])
def test_a_backbone_is_asked_about_the_test_nodes_of_its_own_splits(splits):
    """Every split has another number of test nodes; a mask of one column is that split's."""
    data = tiny_graph()
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(3)).tolist()
    masks = torch.zeros(3, data.num_nodes, 4, dtype=torch.bool)
    for split in range(4):
        own = order[split:] + order[:split]
        for part, chosen in enumerate((own[:20], own[20:30], own[30 : 34 + 2 * split])):
            masks[part, chosen, split] = True
    data.train_mask, data.val_mask, data.test_mask = masks
    frozen = gr.train_backbone("sgc", data, splits, budget=gr.Budget(2, None, 0.01, 0.0))
    found = gr.diagnose(frozen)
    asked = [[v for v in range(data.num_nodes) if masks[2, v, split]] for split in splits]
    solution = found.reach.witnesses
    for member, nodes in enumerate(asked):
        assert solution.node[solution.member == member].tolist() == nodes
    one = gr.expose(frozen).member(0)
    alone = gr.diagnose(one, data, nodes=masks[2, :, splits[0]]).to_frame()
    kept = data.clone()
    kept.test_mask = masks[2, :, splits[:1]]
    pd.testing.assert_frame_equal(gr.diagnose(one, kept).to_frame(), alone)
    kept.test_mask = masks[2, :, splits[0]]
    pd.testing.assert_frame_equal(gr.diagnose(one, kept).to_frame(), alone)


def test_a_sentence_counts_the_classes_that_can_win_and_those_that_may(planted):
    found = gr.diagnose(planted, y=torch.tensor([0, 0, 0]))
    for decided in itertools.product([True, False], repeat=3):
        classes = replace(found.reach.classes, decided=np.array([decided] * 3))
        can = classes.reachable & classes.decided
        classes = replace(classes, reachable=can)
        said = replace(found, reach=replace(found.reach, classes=classes)).explain(2)
        left = 3 - sum(decided)
        assert f"{can[2].sum()} of 3 classes could win here" in said
        assert (f"{left} more are undecided" in said) == (left > 0)


FACTORY = """
import torch
from tests.test_diagnosis import Tailed, ring

print("imported")

class Chatty(Tailed):
    def forward(self, x, edge_index):
        print("called")
        return super().forward(x, edge_index)

def made():
    torch.manual_seed(1)
    return Tailed().eval(), ring()

def chatty():
    return Chatty().eval(), ring()

def broken():
    raise OSError("no such disk")

pair = made()
"""


def test_the_commands(tmp_path, monkeypatch):
    (tmp_path / "own_model_file.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    run, name = CliRunner(), "own_model_file.py:made"
    first, done = (run.invoke(app, ["diagnose", name, "--csv", "rows.csv"]) for _ in range(2))
    assert done.exit_code == 0 and "exposing the final aggregation" in done.stderr
    assert "chance" in done.stdout and len(pd.read_csv("rows.csv")) == 12
    assert "imported" in first.stderr and "imported" not in first.stdout
    answer = run.invoke(app, ["diagnose", "own_model_file.py:chatty", "--format", "json"])
    assert "called" in answer.stderr
    told, rows = (json.loads(answer.stdout)[part] for part in ("summary", "rows"))
    assert told["asked"] == 12 and told["selection"] == "test nodes"
    assert told["reach"]["total"] == sum(row["true"] != row["predicted"] for row in rows)
    assert told["reach"]["hits"] == sum(row["verdict"] == "can" for row in rows)
    assert told["reach"]["value"] - told["chance"]["value"] == pytest.approx(
        told["excess"]["value"]
    )
    assert told["chance"]["low"] <= told["chance"]["value"] <= told["chance"]["high"]
    assert len(rows) == 12 and {"verdict", "chance", "mass_moved"} <= set(rows[0])
    assert run.invoke(app, ["report", name, "--out", "own.html"]).exit_code == 0
    assert (tmp_path / "own.html").is_file()
    for wrong, said in (("broken", "no such disk"), ("absent", "absent"), ("", "FILE.py:NAME")):
        with pytest.raises(InputError, match=said):
            run.invoke(app, ["diagnose", f"own_model_file.py:{wrong}"], catch_exceptions=False)
    with pytest.raises(InputError, match="--out alone"):
        run.invoke(app, ["report", name, "--dataset", "cora"], catch_exceptions=False)
