"""Only the messages that are read are multiplied, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.budget import Budget
from gnn_repair.kernels.sets import rows_read
from gnn_repair.repair import Reweighting, SetTranslation
from gnn_repair.repair import inputs as tables
from gnn_repair.repair.inputs import Description, RepairInputs
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
