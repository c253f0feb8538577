"""Baselines: saved, compared, damaged, and their proofs tried on another model."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gnn_repair.errors import FileFormatError, GnnRepairError, InputError
from gnn_repair.oracle import solve, source_ranking
from gnn_repair.oracle.baseline import BaselineComparison, compare, load_baseline, save_baseline
from tests.helpers.oracle.oracle_cases import as_members, behind_identity, small_exposure

TRUE = torch.tensor([0, 0, 1])


def exposed(table, alpha=(0.25, 0.75, 1.0, 0.5, 0.5)):
    return small_exposure([[2], [1], [2]], alpha, table)


BEFORE = [[3, 0, 0], [0, 3, 0], [0, 0, 2], [0, 4, 0], [0, 0, 1]]
"""Node 0 can be of class 0, node 1 cannot, node 2 can be of class 1."""
AFTER = [[-3, 0, 0], [0, 3, 0], [2, 0, 0], [0, 4, 0], [0, 0, 1]]
"""Node 0 no longer can, node 1 can."""


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "baseline.json"
    save_baseline(solve(exposed(BEFORE), TRUE), path)
    return path


def test_nothing_changes_for_the_same_model(saved):
    exposure = exposed(BEFORE)
    found = compare(solve(exposure, TRUE), saved, exposure)
    assert found.ok() and found.changes.empty and found.broken.empty
    assert (found.compared, found.missing, found.new) == (3, 0, 0)
    assert compare(solve(exposure, "all"), saved).ok()  # what is new is no loss
    assert found.reach_before == found.reach_after == pytest.approx(2 / 3)


def test_lost_and_gained_answers_are_named(saved):
    exposure = exposed(AFTER)
    found = compare(solve(exposure, TRUE), saved, exposure)
    assert found.lost["node"].tolist() == [0] and found.gained["node"].tolist() == [1]
    assert found.drop == 0 and found.ok()
    # Node 0's witness loses now, and node 1's rivals exclude nothing any more.
    assert found.broken["node"].tolist() == [0, 1]
    assert "1 lost, 1 gained" in str(found) and "2 of the baseline's own proofs" in str(found)


def test_half_a_witness_would_not_win(tmp_path):
    """A fixed logit of 1.5 for the rival: λ of mass 1 loses where today's mass 2 wins."""

    def heard(alpha):
        return small_exposure([[1]], [alpha], [[1, 0]], [[0, 1.5]])

    before = heard(3.0)
    save_baseline(solve(before, torch.tensor([0])), tmp_path / "b.json")
    for alpha, broken in ((2.0, 0), (1.0, 1)):
        exposure = heard(alpha)
        found = compare(solve(exposure, torch.tensor([0])), tmp_path / "b.json", exposure)
        assert len(found.broken) == broken


def test_a_drop_of_just_the_tolerance_is_ok():
    """83.0 % to 82.5 % of two hundred is half a point, though 0.83 − 0.825 exceeds 0.005."""
    shares = BaselineComparison(pd.DataFrame(), 200, 0, 0, 166 / 200, 165 / 200)
    assert shares.drop > 0.5 / 100 and shares.ok(0.5 / 100)
    assert not replace(shares, reach_after=164 / 200).ok(0.5 / 100)


def sampled(n_id):
    return replace(exposed(BEFORE), n_id=torch.tensor(n_id))


def test_answers_of_a_sample_are_kept_by_the_graphs_own_numbers(tmp_path):
    path = tmp_path / "b.json"
    save_baseline(solve(sampled([40, 7, 22]), TRUE), path)
    kept = load_baseline(path)
    assert kept["node"].tolist() == [40, 7, 22]
    sources = {triple[1] for row in kept["witness"] for triple in row}
    assert sources <= {40, 7, 22}
    order = [2, 0, 1]  # the same nodes, sampled in another order
    shuffled = exposed(BEFORE)
    found = compare(solve(sampled([40, 7, 22]), TRUE), path, sampled([40, 7, 22]))
    assert found.ok() and found.broken.empty and found.compared == 3
    other = replace(shuffled, n_id=torch.tensor([40, 7, 22])[order])
    assert not compare(solve(other, TRUE), path, other).broken.empty
    with pytest.raises(InputError, match="node 7 is answered for several times"):
        save_baseline(solve(sampled([7, 7, 22]), torch.tensor([0, 0, 1])), path)


def tried(exposure, verdict="can", witness=(), rivals=(), **about):
    """Whether a proof, about node 0 and class 0 unless told otherwise, still holds."""
    row = {"member": 0, "node": 0, "class": 0, "verdict": verdict, "margin": 1.0} | about
    proofs = {"witness": [list(map(list, witness))], "rivals": [list(map(list, rivals))]}
    before = pd.DataFrame({**{name: [value] for name, value in row.items()}, **proofs})
    solution = solve(exposure, torch.zeros(exposure.num_nodes, dtype=torch.long))
    return compare(solution, before, exposure).broken.empty


def test_a_witness_must_beat_every_rival_and_fill_every_group():
    """Two groups of one message each; the first beats class 1 alone, both beat class 2 too."""
    table = np.array([[2.0, 0.0, 3.0], [2.0, 0.0, 0.0]])
    two = small_exposure([[1, 1]], [1, 1], table)
    whole = [(0, 0, 1.0), (1, 0, 1.0)]
    assert tried(two, witness=whole) and not tried(two, witness=whole[:1])
    assert not tried(two, witness=whole[1:])
    for name, number in (("member", 1), ("node", 1), ("class", 3)):  # that are no more
        assert not tried(two, witness=whole, **{name: number})
    # Each group is brought to its own mass of today: with three times the first's, class 2 wins.
    assert not tried(small_exposure([[1, 1]], [3, 1], table), witness=whole)
    table[1, 0] = 0.5  # beats class 1 by 2.5 and loses to class 2 by 0.5
    assert not tried(small_exposure([[1, 1]], [1, 1], table), witness=whole)


def test_a_mixture_of_rivals_excludes_where_neither_does_alone():
    torn = small_exposure([[2]], [0.5, 0.5], [[0, 1, -1], [0, -1, 1]], [[-0.1, 0, 0]])
    assert tried(torn, "cannot", rivals=[(1, 0.5), (2, 0.5)])
    assert not tried(torn, "cannot", rivals=[(1, 1.0)])
    for nonsense in ([(1, 0.5), (3, 0.5)], [(1, 1.5), (2, -0.5)], []):
        assert not tried(torn, "cannot", rivals=nonsense)


def test_other_answers_and_frames_are_one_sentence():
    solution = solve(exposed(BEFORE), TRUE)
    with pytest.raises(InputError, match="no column 'witness'"):
        compare(solution, solution.to_frame())
    with pytest.raises(InputError, match="exposure is"):
        compare(solution, solution, "x")
    with pytest.raises(InputError, match=r"nonlinear head; .* leave it out$"):
        compare(solution, solution, behind_identity(exposed(BEFORE)))
    labels = replace(exposed(BEFORE), outputs="labels")
    with pytest.raises(InputError, match="about labels, and this is about classes"):
        compare(solve(labels, torch.ones(3, 3)), solution)


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.pop("kind"),
        lambda c: c.update(version=2),
        lambda c: c["answers"].pop("node"),
        lambda c: c["answers"]["node"].pop(),
        lambda c: c["answers"].update(node=[0, 0.5, 2]),
        lambda c: c["answers"].update(node=[0, True, 2]),
        lambda c: c["answers"].update(node=[0, 0, 2]),
        lambda c: c["answers"].update(verdict=["can", "maybe", "can"]),
        lambda c: c["answers"].update(witness=[[], [[0]], []]),
        lambda c: c["answers"].update(margin=[1, 2, None]),
        lambda c: c["answers"].update(dict.fromkeys(c["answers"], 3)),
    ],
)
def test_a_damaged_baseline_is_one_sentence(saved, damage):
    content = json.loads(saved.read_text())
    damage(content)
    for text in (json.dumps(content), "nothing"):
        saved.write_text(text)
        with pytest.raises(FileFormatError, match="baseline"):
            load_baseline(saved)
    saved.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_baseline(saved)


@pytest.mark.parametrize("kind", ["baseline", "frame"])
def test_a_write_that_breaks_off_leaves_the_old_file(kind, saved, monkeypatch):
    before = saved.read_bytes()
    exposure = exposed(BEFORE)
    solution = solve(exposure, TRUE)

    def full(path, *_, **__):
        with Path(path).open("w") as file:
            file.write("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(pd.DataFrame, "to_csv", lambda _, path, **__: full(path))
    with pytest.raises(GnnRepairError, match="room"):
        if kind == "baseline":
            save_baseline(solution, saved)
        else:
            source_ranking(solution, exposure, csv=saved)
    assert saved.read_bytes() == before and [*saved.parent.iterdir()] == [saved]


# The command: what it prints is recorded (tests/golden).

FACTORY = """
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv, Sequential, SGConv, global_mean_pool

import gnn_repair as gr

class Bent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = SGConv(4, 6), torch.nn.Linear(6, 3)

    def forward(self, x, edge_index):
        return self.head(torch.nn.functional.softplus(self.conv(x, edge_index), threshold=19))

def bent():
    torch.manual_seed(0)
    ring = torch.arange(12)
    edges = torch.stack([ring, (ring + 1) % 12])
    data = Data(x=torch.randn(12, 4), edge_index=torch.cat([edges, edges.flip(0)], 1))
    data.y = torch.arange(12) % 3
    return Bent(), data

def tested():
    model, data = bent()
    data.test_mask = torch.arange(12) > 7
    return model, data

def few():
    return *bent(), [3, 1]

def one_column():
    model, data = tested()
    data.y = data.y.unsqueeze(1)
    return model, data

def exposed():
    model, data = tested()
    return gr.expose(model, data), data

def by_name():
    model, data = bent()
    return model, {"x": data.x, "edge_index": data.edge_index, "y": data.y}

def typed():
    _, data = bent()
    typed = HeteroData()
    typed["paper"].x, typed["paper"].y = data.x, data.y
    typed["paper", "cites", "paper"].edge_index = data.edge_index
    net = HeteroConv({("paper", "cites", "paper"): SAGEConv(4, 3)})
    called = lambda net, data: net(data.x_dict, data.edge_index_dict)["paper"]
    return gr.expose(net, typed, forward=called), typed, [2, 5]

def listed():
    _, data = bent()
    net = Sequential("x, edge_index, batch", [(SGConv(4, 3), "x, edge_index -> x"),
                                              (global_mean_pool, "x, batch -> x")])
    graphs = [data.clone(), data.subgraph(torch.arange(7)), data.subgraph(torch.arange(5))]
    for number, graph in enumerate(graphs):
        graph.y = torch.tensor([number])
    return net, graphs

def wrong():
    return 7

def broken():
    raise RuntimeError("no weights")

def leaving():
    raise SystemExit(0)

def clearing():
    import os, sys
    sys.path[:] = [folder for folder in sys.path if folder != os.getcwd()]
    return bent()
"""


@pytest.fixture
def check(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "factory_of_check.py").write_text(FACTORY)
    return lambda name, *more: run("check", name, "--baseline", "b.json", *more)


def test_one_answer_is_no_plural():
    nothing = pd.DataFrame({"before": [], "after": []})
    said = str(BaselineComparison(nothing, 1, 1, 1, 0.0, 0.0))
    assert "of 1 answer:" in said and "answers" not in said


def test_the_command_says_which_kind_of_answers_a_head_gives(check, tmp_path):
    name = "factory_of_check:clearing"  # which may change the path
    assert check(name)[0] == 2
    code, out, _ = check(name, "--save")
    assert code == 0 and "followed by affine, softplus, affine" in out
    low, high = re.search(r"reach ([\d.]+) to ([\d.]+) %", out).groups()
    left = int(re.search(r"(\d+) answers are undecided", out).group(1))
    assert float(high) - float(low) == pytest.approx(100 * left / 12, abs=0.02) and left > 0
    code, out, err = check(name, "--format", "json")
    assert code == 0 and json.loads(out) and "answers are undecided" in err
    assert check(name, "--tolerance", "nan")[0] == 2
    content = json.loads((tmp_path / "b.json").read_text())
    (tmp_path / "b.json").write_text(json.dumps(content | {"chance": 2}))
    assert check(name)[0] == 2
    del content["chance"]  # as version 0.2 wrote it
    (tmp_path / "b.json").write_text(json.dumps(content))
    code, out, _ = check(name)
    assert code == 0 and "chance – → " in out


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("bent", range(12)), ("tested", range(8, 12)), ("one_column", range(8, 12)),
        ("exposed", range(8, 12)), ("by_name", range(12)), ("typed", [2, 5]), ("listed", range(3)),
    ],
)  # fmt: skip
def test_the_command_asks_what_a_diagnosis_asks(check, run, name, asked):
    name = f"factory_of_check:{name}"
    code, _, err = check(name, "--save")
    assert code == 0, err
    told = json.loads(run("diagnose", name, "--format", "json")[1])["rows"]
    kept = load_baseline("b.json")
    assert kept["node"].tolist() == list(asked)
    assert kept["class"].tolist() == [row["true"] for row in told]
    assert check(name)[0] == 0


def test_chance_is_said_to_be_of_other_answers(check):
    """Reach is of the answers of both; chance of all that were asked for."""
    check("factory_of_check:bent", "--save")
    before = re.search(r"chance (\S+ %)", check("factory_of_check:bent")[1]).group(1)
    code, out, _ = check("factory_of_check:tested")
    after = re.search(r"chance (\S+ %)", check("factory_of_check:tested", "--save")[1]).group(1)
    assert code == 1 and "of 4 answers" in out and f"chance {before} of 12 → {after} of 4\n" in out
    code, out, _ = check("factory_of_check:few")
    assert code == 1 and out.startswith("nothing to compare") and "reach" not in out


@pytest.mark.parametrize("name", ["leaving", "wrong", "broken", "absent", "nowhere:at_all", "none"])
def test_a_bad_factory_is_one_sentence(check, tmp_path, name):
    own = name in ("leaving", "wrong", "broken", "absent")
    code, _, err = check(f"factory_of_check:{name}" if own else name, "--save")
    assert code == 2 and len(err.splitlines()) == 1 and not (tmp_path / "b.json").exists()


def test_proofs_of_a_member_are_tried_on_that_member(tmp_path):
    """Two members beside each other are what each is alone, whatever is broken."""

    def broken(*tables):
        """By pairs of one member's table before and after."""
        before, after = (
            as_members([exposed(table) for table in members])
            for members in zip(*tables, strict=True)
        )
        save_baseline(solve(before, TRUE), tmp_path / "kept")
        found = compare(solve(after, TRUE), tmp_path / "kept", after).broken
        return found.drop(columns="member").to_dict("records")

    pairs = list(itertools.product((BEFORE, AFTER), repeat=2))
    alone = [broken(pair) for pair in pairs]
    assert [len(rows) for rows in alone] == [0, 2, 2, 0]
    for k in range(4):  # each beside the next, broken or not
        assert broken(pairs[k], pairs[k - 1]) == alone[k] + alone[k - 1]


@pytest.mark.parametrize("masses", [(0.5, 0.5), (0.25, 0.75), (1.0, 2.0)])
@pytest.mark.parametrize("first", [[3, 3.5, 0], [3, 0, 0], [0, 3, 0]])
@pytest.mark.parametrize("turned", [False, True])
def test_messages_of_one_sender_are_told_apart(masses, first, turned):
    """Two edges from one node to another, which say different things; a class may need both."""

    def parallel(first, second):
        rows = [second, first] if turned else [first, second]
        exposure = exposed([*rows, *BEFORE[2:]], (*masses, 1.0, 0.5, 0.5))
        return replace(exposure, sources=torch.zeros_like(exposure.sources))

    same, other = parallel(first, [3, 0, 3.2]), parallel(first, [0, 1, 3.2])
    found = solve(same, TRUE)
    assert found.reachable[0] == (first[1] != 3) and compare(found, found, same).broken.empty
    lost = found.reachable[0] and not solve(other, TRUE).reachable[0]
    assert compare(found, found, other).broken["node"].tolist() == [0] * bool(lost)
