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
from typer.testing import CliRunner

import gnn_repair as gr
from gnn_repair.cli.main import app
from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import NodeNames
from gnn_repair.oracle.heads.solve import MOST, EffortLimit, budget_of, solve_head
from gnn_repair.oracle.questions.ranges import ValueRange
from tests.golden import shown
from tests.helpers.oracle.oracle_cases import small_exposure
from tests.helpers.study.tiny import tiny_graph


@pytest.fixture(scope="module")
def planted():
    """Node 0, all mass on class 1: 60 % on its other message make class 0 win by all, 1/3 by a tie.
    Node 1 hears class 2 alone. Node 2 is right."""
    table = [[2, 0, 0], [0, 1, 0], [0, 0, 5], [4, 0, 0]]
    return small_exposure([[2], [1], [1]], [0, 1, 1, 1], table)


def test_planted_rows(planted):
    found = gr.diagnose(planted, y=torch.tensor([0, 0, 0]))
    frame, gaps = found.to_frame(), {"nan_ok": True}
    assert frame["verdict"].tolist() == ["can", "cannot", "right"]
    assert frame["frozen_margin"].tolist() == pytest.approx([-1, -5, 4])
    assert frame["gamma"].tolist() == pytest.approx([2, -5, 4])
    # 2 λ > 1 − λ: a third of the mass.
    assert frame["mass_moved"].tolist() == pytest.approx([1 / 3, np.nan, np.nan], **gaps)
    assert frame["chance"].tolist() == [0, 0, 0] and frame["classes_in_reach"].tolist() == [2, 1, 1]
    assert frame["rank_by_change"].tolist() == pytest.approx([1, 1.5, np.nan], **gaps)
    assert (
        "giving 33 % of the weight" in frame["smallest_change"][0]
        and "λ 1" in frame["key_messages"][0]
    )
    texts = [found.explain(node) for node in range(3)]
    assert "33 % of the mass" in texts[0] and "2 of 3 classes" in texts[0]
    assert "at least 5" in texts[1] and "right" in texts[2]
    story = str(found).split("\n")
    for line, number in enumerate(("2 of 3", "50.0 %", "chance 0.0 %", "33 %", "node 0")):
        assert number in story[line]
    assert "0 of 2 errors need at most 10 %" in story[3]
    lines = found.plot().get_lines()
    # Two errors: none at 0, half of them from a third on; of the others, one each, none.
    assert lines[0].get_ydata().tolist() == [0, 50, 50]
    assert lines[0].get_xdata().tolist() == pytest.approx([0, 100 / 3, 100])
    assert max(lines[1].get_ydata()) == 0
    with pytest.raises(TypeError, match="foo"):
        gr.diagnose(planted, foo=1)


def test_figures_of_several_members_are_the_means_of_theirs(planted):
    """Member 0 is wrong about two nodes, member 1 about one: no figure pools the three."""
    alpha = torch.tensor([[0.0, 1, 1, 1], [1, 0, 1, 1]], dtype=torch.float64)
    logits = torch.tensor([[[0.0, 1, 0], [0, 0, 5], [4, 0, 0]], [[2, 0, 0], [0, 0, 5], [4, 0, 0]]])
    twice = {
        name: getattr(planted, name).repeat(2, 1, 1)
        for name in ("contributions", "fixed_logits", "state", "messages")
    }
    both = replace(planted, coefficients=alpha, frozen_logits=logits.double(), **twice)
    found = gr.diagnose(both, y=torch.tensor([0, 0, 0]))
    frame, told = found.to_frame(), found.summary()
    wrong = frame[frame["verdict"] != "right"]
    assert wrong.groupby("member").size().tolist() == [2, 1]
    shares = [(own["verdict"] == "can").mean() for _, own in wrong.groupby("member")]
    chances = [own["chance"].mean() for _, own in wrong.groupby("member")]
    reach, chance, excess = (told[name]["value"] for name in ("reach", "chance", "excess"))
    assert reach == pytest.approx(np.mean(shares)) == found.reach.error == 0.25
    assert chance == pytest.approx(np.mean(chances)) and excess == pytest.approx(reach - chance)
    assert (told["reach"]["hits"], told["reach"]["total"]) == (1, 3)
    assert f"error reach {100 * reach:.1f} %, mean over 2 members (1 of 3 in all)" in str(found)
    assert told["reach"]["low"] <= reach <= told["reach"]["high"]


def test_one_error_has_no_interval_of_its_mean_and_two_classes_no_rank(planted):
    one = gr.diagnose(planted, y=torch.tensor([0, 0, 0]), nodes=[0, 2])
    assert "chance 0.0 %, excess +100.0 points.\n" in str(one)
    assert one.summary()["excess"] == {"value": 1, "possible": 1, "low": None, "high": None}
    two = shown.diagnosed("two classes")
    assert two.reach.wrong.sum() > 1 and "of the mass moved" in str(two)
    said = [str(two), str(two.changes), *map(two.explain, two.to_frame()["node"])]
    assert not any("rank" in text or "least change" in text for text in said)


def test_effort_reaches_every_question_behind_a_head(monkeypatch):
    heard = []
    for place in ("solver", "questions.nearest"):

        def ask(*given, **more):
            heard.append(more["effort"])
            return solve_head(*given, **more)

        monkeypatch.setattr(f"gnn_repair.oracle.{place}.solve_head", ask)
    exposure, y = shown.diagnosed("head").exposure, shown.diagnosed("head").y
    for effort, (leaves, seconds) in (("fast", (1, 0.1)), (0.25, (MOST, 0.25))):
        heard.clear()
        steps = []
        found = gr.diagnose(exposure, y=y, effort=effort, tell=steps.append)
        first, change, *balls = map(budget_of, heard)
        assert first == change == EffortLimit(leaves, seconds)
        assert [ball.seconds for ball in balls] == pytest.approx([seconds / 5] * len(balls))
        assert max(ball.leaves for ball in balls) == leaves
    with pytest.raises(InputError, match="effort must be one of"):
        gr.diagnose(exposure, y=y, effort="soon")
    right = torch.from_numpy(found.reach.predicted[:1]).expand(len(y))
    steps.clear()
    gr.diagnose(exposure, y=right, nodes=found.reach.classes.node[:1].tolist(), tell=steps.append)
    assert not any("error" in step for step in steps)


def test_which_nodes_and_labels_are_taken(planted):
    data = SimpleNamespace
    y, mask = torch.tensor([0, 0, 0]), torch.tensor([True, False, True])
    found = gr.diagnose(planted, data(y=y.view(3, 1), test_mask=mask.view(3, 1)))
    assert found.selection == "test nodes" and found.to_frame()["node"].tolist() == [0, 2]
    for same in (mask, mask.numpy(), mask.tolist(), [2, 0]):
        found = gr.diagnose(planted, data(y=y, test_mask=same))
        assert found.selection == "test nodes" and set(found.to_frame()["node"]) == {0, 2}
    assert gr.diagnose(planted, data(y=y, test_mask=mask), nodes=[1]).selection == "chosen nodes"
    assert "no errors" not in str(gr.diagnose(planted, data(y=y), nodes=[2]))
    for wrong, message in (
        (data(y=None), "data has no y"),
        (data(y=y[:2]), r"y has shape \[2\] instead of \[3\]: one class for every node"),
        (data(y=y + 3), "y is 3 at node 0"),
        (data(y=y, test_mask=mask.view(3, 1).repeat(1, 2)), "has 2 splits"),
        (data(y=y, test_mask=mask[:2]), "data.test_mask has 2 entries for 3 nodes"),
        (data(y=y, test_mask=mask & False), "data.test_mask selects none of the nodes.*pass nodes"),
        (data(y=y, test_mask=mask.long()), r"zeros and ones for all 3 nodes; .*mask.bool\(\)"),
        (data(y=y, test_mask=mask.long().view(3, 1)), "data.test_mask is torch.int64 of 3 rows"),
        (data(y=y, test_mask=mask[:2].view(2, 1)), "data.test_mask is torch.bool of 2 rows for 3"),
    ):
        with pytest.raises(InputError, match=message):
            gr.diagnose(planted, wrong)
    with pytest.raises(InputError, match=r"nodes holds a number too large.*node numbers"):
        gr.diagnose(planted, data(y=y), nodes=[2**70])
    with pytest.raises(InputError, match=r"nodes is torch.int64 of shape .* boolean mask"):
        gr.diagnose(planted, y=y, nodes=mask.long().view(3, 1))


@pytest.mark.parametrize("kind", shown.DIAGNOSED)
def test_figures_are_those_of_the_rows(kind, tmp_path):
    """Of every kind of model: what is summed up and written is counted again from the frame."""
    found = shown.diagnosed(kind)
    frame, told = found.to_frame(), found.summary()
    pd.testing.assert_frame_equal(
        pd.read_csv(found.to_csv(tmp_path / "rows.csv"), keep_default_na=True),
        frame.replace("", None).infer_objects(),
        check_dtype=False,
    )
    known = frame[frame["verdict"] != ""] if kind == "values" else frame
    wrong = known[known["verdict"] != "right"]
    assert told["asked"] == len(frame) and told["selection"] in str(found)
    assert told["reach"]["hits"] == (wrong["verdict"] == "can").sum()
    assert told["reach"]["total"] == len(wrong)
    assert told["reach"]["value"] == pytest.approx((wrong["verdict"] == "can").mean())
    assert told["reach"]["possible"] == pytest.approx((wrong["verdict"] != "cannot").mean())
    if kind in ("labels", "values", "links"):
        with pytest.raises(InputError, match="classes"):
            found.report(tmp_path / "page.html")
    else:
        assert found.report(tmp_path / "page.html").is_file()
        assert (found.to_frame()["true"] == found.to_frame()["predicted"]).equals(
            frame["verdict"] == "right"
        )
    if told["chance"]["value"] is not None:
        least = told["reach"]["value"] - told["chance"]["possible"]
        assert told["excess"]["value"] == pytest.approx(least)
        assert told["chance"]["low"] <= told["chance"]["value"] <= told["chance"]["high"]
    with pytest.raises(InputError, match="999"):
        found.explain(999)
    for several in ("0", [0, 1], None):
        with pytest.raises(InputError, match="a whole number, not"):
            found.explain(several)
    subject = next(name for name in ("node", "graph", "link") if name in frame)
    first = torch.tensor(int(frame[subject].iloc[0]))
    assert found.explain(first) == found.explain(int(first))


@pytest.fixture(scope="module")
def two_outputs():
    """Node 0 weighs +3 and −1 (of output 0) half and half; node 1 hears 2 alone, node 2 −4 alone;
    output 1 is the opposite of output 0."""
    table = [[x, -x] for x in (3, -1, 2, -4)]
    whole = small_exposure([[2], [1], [1]], [0.5, 0.5, 1, 1], table)
    return replace(whole, outputs="labels")


def test_labels_are_rows_of_node_and_label(two_outputs):
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
    assert all(part in str(found) for part in ("3 of 5 labels", "(1 of 3)", "(1 of 2)"))
    chance = found.summary()["chance"]
    assert (chance["hits"], chance["total"]) == (1, 2)
    heights = [bar.get_height() for bar in found.plot().patches]
    assert heights == pytest.approx([50, 0, 0, 100])


def test_values_are_intervals_beside_chance(two_outputs):
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
    for part in ("(2 of 5)", "chance 50.0 %", "excess -10.0"):
        assert part in str(found)
    assert "True: 2.5" in found.explain(0)
    assert found.range.sentence(-1) == found.range.sentence(5)
    for call, words in (
        (lambda: found.range.sentence(6), "output 6 .* there are 6"),
        (lambda: found.range.mixture_for(-7, 0.0), "output -7 .* there are 6"),
        (lambda: found.range.distance("a"), "y is a str; give a tensor"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    assert sum(len(lines.get_segments()) for lines in found.plot().collections) == 5
    graphs = replace(found, exposure=replace(values, names=NodeNames("graph")))
    assert "Another graph's true value" in str(graphs)
    with pytest.raises(InputError, match="no y; pass y, the truth of every graph"):
        gr.diagnose(graphs.exposure, {})
    with pytest.raises(InputError, match=r"y has shape \[3\] instead of \[3, 2\]: .*='classes'"):
        gr.diagnose(values, y=y[:, 0])
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


@pytest.mark.parametrize("splits", [[3], [2, 0], [3, 1, 0, 2]])
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
    assert ("2 members" in str(found)) is (found.reach.num_members == 2)
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
from tests.helpers.repair.toy_exposures import net, toy_graph

print("imported")
graph = toy_graph()

class Chatty(type(net())):
    def forward(self, x, edge_index):
        print("called")
        return super().forward(x, edge_index)

def chatty():
    model = net()
    model.__class__ = Chatty
    return model, graph, graph.test_mask[:, 0]

def broken():
    raise OSError("no such disk")
"""


def test_the_commands(tmp_path, monkeypatch):
    """A model that prints spoils no JSON, and what goes wrong in a file is said."""
    (tmp_path / "own_model_file.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    run, name = CliRunner(), "own_model_file.py:chatty"
    answer = run.invoke(app, ["diagnose", name, "--format", "json", "--csv", "rows.csv"])
    assert "imported" in answer.stderr and "called" in answer.stderr
    told, rows = (json.loads(answer.stdout)[part] for part in ("summary", "rows"))
    assert told["asked"] == len(rows) == len(pd.read_csv("rows.csv"))
    assert told["reach"]["hits"] == sum(row["verdict"] == "can" for row in rows)
    assert run.invoke(app, ["report", name, "--out", "own.html"]).exit_code == 0
    assert (tmp_path / "own.html").is_file()
    monkeypatch.setattr("gnn_repair.reporting.writing.SINGLE_BYTES", 0)
    for parts in (False, True):  # beside the page, where it is large
        assert run.invoke(app, ["report", name, *["--parts"] * parts]).exit_code == 0
        assert (tmp_path / "report.parts").is_dir() is parts
    for words, said in (
        (["diagnose", "own_model_file.py:broken"], "no such disk"),
        (["diagnose", "own_model_file.py:absent"], "absent"),
        (["diagnose", "own_model_file.py:"], "FILE.py:NAME"),
        (["report", name, "--dataset", "cora"], "--dataset has no effect with a model of your own"),
    ):
        with pytest.raises(InputError, match=said):
            run.invoke(app, words, catch_exceptions=False)
