"""Only the messages that are read are multiplied, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.budget import Budget
from gnn_repair.kernels.sets import TermSets, rows_read
from gnn_repair.repair import Reweighting, SetTranslation
from gnn_repair.repair import inputs as tables
from gnn_repair.repair.inputs import Description, MessageTable, RepairInputs, expected_terms
from tests.helpers.device_places import DEVICES
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph


def read_one_by_one(sets, targets):
    """The columns of each member's terms, walked over in plain Python."""
    ends = sets.segments[:: sets.groups].tolist()
    return [
        sorted({int(sets.columns[t]) for v in row for t in range(ends[v], ends[v + 1])})
        for row in targets.tolist()
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backbone", ["sgc", "mixhop", "gcn", "sage"])
def test_the_rows_are_those_of_the_targets_terms(backbone, device):
    inputs = RepairInputs(toy_exposure(backbone, torch.float32).to(device))
    for targets in ([[3, 5], [0, 0]], [[1, 4], [2, 9]]):
        chosen = torch.tensor(targets, device=device)
        read = rows_read(inputs.sets, chosen, inputs.messages.rows.shape[1])
        for s, expected in enumerate(read_one_by_one(inputs.sets, chosen)):
            assert int(read.counts[s]) == len(expected)
            assert sorted(read.numbers[s, : len(expected)].tolist()) == expected


def test_many_rows_are_not_picked(monkeypatch):
    inputs = RepairInputs(toy_exposure("sgc"))
    size = 2, inputs.width + inputs.num_classes, 5
    weight = torch.ones(size, dtype=torch.float64)
    few = torch.tensor([[0], [0]])

    def is_whole(targets):
        table = MessageTable(inputs, weight)
        table.read_by(targets)
        return "all" in table.__dict__

    assert is_whole(inputs.everyone)
    assert not is_whole(few)
    monkeypatch.setattr(tables, "FEW", 0.0)
    assert is_whole(few)


def test_how_many_terms_are_expected():
    """Two of ten recipients with 31 terms in all read 6.2."""
    segments = torch.tensor([0, 3, 3, 9, 12, 13, 20, 22, 25, 30, 31])
    sets = TermSets(segments, 1, torch.zeros(31, dtype=torch.int32), *[torch.zeros(31)] * 4)
    assert expected_terms(sets, torch.zeros(4, 2)) == pytest.approx(6.2)
    halves = replace(sets, groups=2)
    assert expected_terms(halves, torch.zeros(4, 2)) == pytest.approx(12.4)


@pytest.mark.parametrize("backbone", ["sgc", "gcn"])
def test_rows_and_gradients_are_those_of_the_whole_table(backbone, monkeypatch):
    monkeypatch.setattr(tables, "FEW", 1.0)
    inputs = RepairInputs(toy_exposure(backbone))
    generator = torch.Generator().manual_seed(0)
    size = 2, inputs.width + inputs.num_classes, 5
    weight = torch.randn(size, generator=generator, dtype=torch.float64)
    targets = torch.tensor([[3, 5, 3], [0, 7, 9]])
    read = read_one_by_one(inputs.sets, targets)
    found = []
    for whole in (False, True):
        own = weight.clone().requires_grad_()
        table = MessageTable(inputs, own)
        made = table.all if whole else table.read_by(targets)
        picked = torch.cat([made[s, rows] for s, rows in enumerate(read)])
        picked.square().sum().backward()
        found.append((picked.detach(), own.grad))
    for few, all_rows in zip(*found, strict=True):
        torch.testing.assert_close(few, all_rows)
    # The same numbers are picked again once the whole table is there.
    table = MessageTable(inputs, weight)
    assert table.all is table.read_by(targets)


def test_what_sparse_rows_are_multiplied_with_is_the_whole_table():
    inputs = RepairInputs(toy_exposure("gcn"))
    assert inputs.messages.picks_cheaply
    inputs.messages.shared = type("Shared", (), {"sparse": object()})()
    try:
        assert not inputs.messages.picks_cheaply
    finally:
        inputs.messages.shared = None


@pytest.mark.parametrize("backbone", ["sgc", "h2gcn", "sage"])
@pytest.mark.parametrize("repair", [SetTranslation, Reweighting])
def test_training_is_the_same_to_rounding(backbone, repair, monkeypatch):
    """Batches of two: the picked rows and the whole table lead to the same repair."""
    monkeypatch.setattr(tables, "FEW", 1.0)
    exposure, data = toy_exposure(backbone), toy_graph()
    calls = []
    real = tables.rows_read

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(tables, "rows_read", counted)
    budget = Budget(3, None, 1e-2, 1e-4, decoupled=True, epoch_zero=False)

    def train():
        fitted = repair(budget=budget, hidden=8).fit(
            exposure, data.y, data.train_mask, data.val_mask, device="cpu", batch_size=2
        )
        return fitted.member_logits(exposure)

    few = train()
    assert calls
    calls.clear()
    monkeypatch.setattr(Description, "picks_cheaply", False)
    whole = train()
    assert not calls
    torch.testing.assert_close(few, whole, rtol=1e-9, atol=1e-9)
