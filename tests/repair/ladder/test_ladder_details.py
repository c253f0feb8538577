"""Findings, comparisons, evidence and saved tables of a ladder, by hand and from both sides."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data
from toy_exposures import toy_exposure, toy_graph

from gnn_repair.errors import InputError
from gnn_repair.repair.evidence import LabelEvidence, check_graph_data
from gnn_repair.repair.fold_task import prepare
from gnn_repair.repair.ladder.catalogue import RUNGS
from gnn_repair.repair.ladder.checks import check_ladder
from gnn_repair.repair.ladder.combination import (
    RULES,
    PairedGain,
    compare,
    likelihoods,
    nested,
    temperature,
)
from gnn_repair.repair.ladder.findings import Finding, Findings, find, mean_gain

NODES, CLASSES, MEMBERS = 6, 3, 2
NAMES = ["frozen", *list(RUNGS)[:2]]


def tables():
    """A sound set of a ladder's constants."""
    labels = torch.tensor([[0, 1, 2, -1, -1, 0], [2, -1, 1, 0, -1, -1]])
    folds = torch.where(labels >= 0, torch.tensor([0, 1, 0, 1, 0, 1]), -1)
    return {
        "weights": torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]], dtype=torch.float64),
        "signature": torch.zeros(MEMBERS, NODES),
        "log_probs": torch.zeros(MEMBERS, 2, NODES, CLASSES),
        "out_of_fold": torch.zeros(MEMBERS, 3, NODES, CLASSES),
        "folds": folds,
        "labels": labels,
        "chosen": torch.tensor([2, 0]),
        "count": torch.tensor([4, 3]),
        "temperature": torch.ones(MEMBERS, dtype=torch.float64),
        "nested_accuracy": torch.full((MEMBERS, len(RULES)), 0.5, dtype=torch.float64),
    }


def held(**changes):
    constants = {k: v for k, v in {**tables(), **changes}.items() if v is not None}
    return SimpleNamespace(
        constants=constants, candidates=NAMES, num_classes=CLASSES, num_members=MEMBERS,
        temperature=constants.get("temperature"), ladder=SimpleNamespace(folds=2),
    )  # fmt: skip


def at(name, place, value):
    changed = tables()[name].clone()
    changed[place] = value
    return {name: changed}


def test_sound_tables_are_accepted():
    check_ladder(held())
    check_ladder(held(**at("chosen", 1, 2)))
    check_ladder(held(**at("nested_accuracy", (0, 0), 0.0)))
    check_ladder(held(**at("nested_accuracy", (0, 0), 1.0)))
    check_ladder(held(**at("weights", (1, 0), 1.0 + 5e-10)))
    check_ladder(held(**at("count", 0, 0)))


@pytest.mark.parametrize("name", list(tables()))
def test_every_table_is_needed_in_its_shape_and_type(name):
    value = tables()[name]
    other = value.float() if value.dtype != torch.float32 else value.double()
    for wrong in (None, other, value[:1], value.unsqueeze(-1)):
        with pytest.raises(InputError):
            check_ladder(held(**{name: wrong}))
    with pytest.raises(InputError, match="a ladder has no constant 'more'"):
        check_ladder(held(more=value))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (at("weights", (1, 0), 1.0 + 2e-9), "sum to 1"),
        (at("weights", 1, torch.tensor([1.5, -0.5, 0.0])), "sum to 1"),
        ({"weights": tables()["weights"][:, :2]}, "weights stand for 2 candidates, not 3"),
        (at("temperature", 1, 0.0), "a temperature must be positive"),
        (at("chosen", 1, 3), "chosen of a ladder must lie in 0..2"),
        (at("chosen", 1, -1), "chosen of a ladder must lie in 0..2"),
        (at("folds", (1, 0), 2), "folds of a ladder must lie in -1..1"),
        (at("folds", (1, 0), -2), "folds of a ladder must lie in -1..1"),
        (at("labels", (1, 0), 3), "labels of a ladder must lie in -1..2"),
        (at("count", 1, -1), "count of a ladder must lie in 0.."),
        (at("nested_accuracy", (1, 0), 1.01), "must be shares"),
        (at("nested_accuracy", (1, 0), -0.01), "must be shares"),
        (at("labels", (1, 1), 0), "folds and labels are of other nodes"),
        ({"labels": torch.full((2, 6), -1), "folds": torch.full((2, 6), -1)}, "of other nodes"),
    ],
)
def test_what_no_ladder_could_hold_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        check_ladder(held(**change))


def test_gains_by_hand():
    differences = torch.tensor([[1.0, -1.0, 0.5, 9.0], [0.25, 9.0, 0.75, 9.0]], dtype=torch.float64)
    judged = torch.tensor([[True, True, True, False], [True, False, True, False]])
    mean, error, deviation = mean_gain(differences, judged)
    gains = [torch.tensor([1.0, -1.0, 0.5]), torch.tensor([0.25, 0.75])]
    assert mean == pytest.approx(sum(float(g.mean()) for g in gains) / 2)
    errors = [float((g.var(correction=0) / len(g)).sqrt()) for g in gains]
    assert error == pytest.approx(sum(errors) / 2)
    assert deviation == pytest.approx(float(torch.stack([g.mean() for g in gains]).std()))
    judged[0] = False
    assert mean_gain(differences, judged) == (0.5, pytest.approx(0.25 / 2**0.5), 0.0)


def test_findings_by_hand():
    """Of two members, told and labels such that every number can be counted."""
    generator = torch.Generator().manual_seed(1)
    told = torch.randn(2, 3, 8, CLASSES, generator=generator).log_softmax(3)
    labels = torch.tensor([[0, 1, 2, 0, 1, 2, -1, -1], [1, 1, 0, 0, -1, -1, -1, -1]])
    found = find(NAMES, told, labels, CLASSES)
    right = (told.argmax(3) == labels.unsqueeze(1)).double()
    for row in found.rows:
        judged = labels >= 0 if row.label is None else labels == row.label
        number, other = NAMES.index(row.rung), NAMES.index(row.above)
        members = [s for s in range(2) if bool(judged[s].any())]
        for base, value in ((other, row.gain), (0, row.over_frozen)):
            gains = [float((right[s, number] - right[s, base])[judged[s]].mean()) for s in members]
            assert value == pytest.approx(100 * sum(gains) / len(members))
        assert row.nodes == sum(int(judged[s].sum()) for s in members) / len(members)
        likely = []
        for s in members:
            seen = labels[s] >= 0
            own = [likelihoods(told[s, r][seen], labels[s][seen]) for r in (number, other)]
            likely.append(float((own[0] - own[1])[judged[s][seen]].mean()))
        assert row.nats == pytest.approx(sum(likely) / len(members), abs=1e-12)
    assert [row.label for row in found.rows] == [None] * 2 + [0] * 2 + [1] * 2 + [2] * 2
    assert len(found.overall()) == 2 and found.of(NAMES[1], 1).label == 1
    none = find(NAMES, told, torch.where(labels == 2, -1, labels), CLASSES)
    assert {row.label for row in none.rows} == {None, 0, 1}


def finding(gain, nats, rung=NAMES[1], label=None):
    return Finding(rung, "frozen", label, gain, 1.0, 0.0, nats, 0.5, gain, 10.0)


@pytest.mark.parametrize(
    ("gain", "nats", "clear"),
    [
        (1.5, 0.75, True), (1.0, 0.75, False), (1.5, 0.5, False), (-1.5, -0.75, True),
        (-1.0, -0.75, False), (-1.5, -0.5, False), (1.5, -0.75, False), (0.0, 0.0, False),
    ],
)  # fmt: skip
def test_a_finding_is_clear_where_both_measures_are(gain, nats, clear):
    row = finding(gain, nats)
    assert row.clear is clear
    assert ("stands out" in str(row)) is not clear
    rows = Findings((row, replace(row, label=1)))
    assert (rows.to_frame()["advice"] != "").tolist() == [clear and gain > 0] * 2
    assert rows.advice()[0].startswith("nothing to gain") is not (clear and gain > 0)


def test_advice_names_the_largest_gain_first():
    rows = Findings((finding(2.0, 1.0), finding(3.0, 1.0, NAMES[2]), finding(9.0, 1.0, label=0)))
    assert [line.rsplit(" (", 1)[1] for line in rows.advice()] == ["+3.0 points)", "+2.0 points)"]
    assert "are worth 2.0 ± 1.0 points" in str(rows.rows[0])
    assert "cost 2.0 ± 1.0 points on class 1" in str(finding(-2.0, -1.0, label=1))


def test_comparisons():
    found = compare(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 2.5, 1.0]))
    difference = torch.tensor([0.5, -0.5, 3.0], dtype=torch.float64)
    assert found.gain == pytest.approx(1.0)
    assert found.error == pytest.approx(float((difference.var(correction=0) / 3).sqrt()))
    assert compare(torch.empty(0), torch.empty(0)) == (0.0, 0.0)
    assert PairedGain(2.1, 1.0).clear(2.0) and not PairedGain(2.0, 1.0).clear(2.0)
    assert not PairedGain(1e-9, 0.0).clear(1.0) and PairedGain(2e-9, 0.0).clear(1.0)


def test_a_node_has_no_part_in_what_is_said_of_it():
    generator = torch.Generator().manual_seed(4)
    told = torch.randn(2, 9, CLASSES, generator=generator, dtype=torch.float64).log_softmax(2)
    labels, folds = torch.arange(9) % CLASSES, torch.tensor([0, 2, 0, 2, 5, 5, 0, 2, 5])
    asked = []

    def rule(some, own):
        asked.append((some.shape[1], own.tolist()))
        return torch.tensor([0.25, 0.75])

    found = nested(rule, told, labels, folds)
    assert asked == [(6, labels[folds != k].tolist()) for k in (0, 2, 5)]
    torch.testing.assert_close(found, (0.25 * told[0] + 0.75 * told[1]).log_softmax(1))


def test_temperatures_are_looked_for_in_their_range():
    sure = torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    assert temperature(sure, torch.tensor([0, 1])) == pytest.approx(10**-1.3)
    assert temperature(sure, torch.tensor([1, 0])) == pytest.approx(10**1.3)


def test_the_graph_that_is_given_must_be_the_exposed_one():
    exposure, graph = toy_exposure("gcn"), toy_graph()
    check_graph_data(exposure, graph)
    check_graph_data(exposure, Data(edge_index=graph.edge_index))
    check_graph_data(exposure, Data(edge_index=torch.empty(2, 0, dtype=torch.long)))
    odd = graph.x.clone()
    odd[3, 1] = float("inf")
    for data, words in [
        (Data(x=graph.x), "no edge_index"),
        (Data(edge_index=graph.edge_index.double()), "no edge_index"),
        (Data(edge_index=graph.edge_index[0]), "no edge_index"),
        (Data(edge_index=graph.edge_index[[0, 1, 0]]), "no edge_index"),
        (Data(edge_index=graph.edge_index - 1), "holds -1; nodes are counted from 0"),
        (Data(edge_index=graph.edge_index + 1), "data has 31 nodes but the exposure has 30"),
        (Data(x=graph.x[:29], edge_index=graph.edge_index[:, :1]), "data has 29 nodes"),
        (Data(x=graph.x[:, 0], edge_index=graph.edge_index), "not a table"),
        (Data(x=odd, edge_index=graph.edge_index), "NaN or infinite"),
    ]:
        with pytest.raises(InputError, match=words):
            check_graph_data(exposure, data)


def test_neighbours_labels_by_plain_loops():
    """P and P² without the way back, as dense matrices."""
    entries = torch.tensor([[0, 1, 1, 2, 3, 3, 4, 2], [1, 0, 2, 1, 3, 1, 3, 4]])
    known = torch.tensor([[0, 2, 1, 2, 2], [2, 1, 2, 0, 1]])
    found = LabelEvidence(entries, known, 2, torch.float64).histograms(known)
    adjacency = torch.zeros(5, 5, dtype=torch.float64)
    for source, recipient in entries.t().tolist():
        if source != recipient:
            adjacency[recipient, source] += 1
    walk = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    twice = walk @ walk
    back = twice.diagonal()
    away = (twice - back.diag()) / torch.where(back < 1, 1 - back, 1.0).unsqueeze(1)
    for s in range(2):
        shown = torch.nn.functional.one_hot(known[s], 3).double()
        torch.testing.assert_close(found[s], torch.cat([walk @ shown, away @ shown], 1))


def test_evidence_is_of_training_and_validation_nodes():
    graph, exposure = toy_graph(), toy_exposure("gcn")
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    task = prepare(exposure, graph.y, *masks, None, "cpu")
    expected = torch.where((masks[0] | masks[1]).t(), graph.y, exposure.num_classes)
    assert torch.equal(task.evidence().labels.known, expected)
    assert task.evidence().features is None
    told = prepare(exposure, graph.y, *masks, graph, "cpu").evidence()
    assert told.features.width == graph.x.shape[1] and told.labels.width == 8
