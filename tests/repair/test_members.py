"""A member learns what it would learn alone, whoever is stacked beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair.targets import RepairTrainee, Targets
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
PLACE = torch.arange(30)
TRAIN = torch.stack([(PLACE % 10 < 1) & (PLACE > 0), PLACE % 10 < 5], dim=1)
"""Two targets beside fifteen: with batches of four, one update an epoch beside four."""
VAL = torch.stack([PLACE % 10 > 4, PLACE % 10 > 7], dim=1)
TRAINED = [Reweighting(hidden=8), SetTranslation(hidden=8), NodeTranslation(hidden=8), RefitHead()]


def brief(repair, dropout: float, patience: int | None = None):
    budget = replace(
        repair.budget, epochs=6, patience=patience, learning_rate=0.02, epoch_zero=False
    )
    return replace(repair, budget=replace(budget, weight_decay=0.1), dropout=dropout)


@pytest.mark.filterwarnings("ignore:member . is repaired without")
@pytest.mark.parametrize("repair", TRAINED[:3], ids=lambda r: type(r).__name__)
def test_one_member_stopping_early_leaves_the_other_alone(repair):
    method, exposure = brief(repair, 0.3, patience=3), toy_exposure("graphconv")
    method = replace(method, budget=replace(method.budget, epochs=25))
    together = method.fit(exposure, DATA.y, TRAIN, VAL, device="cpu", batch_size=4)
    for s in range(2):
        alone = method.fit(
            exposure.member(s), DATA.y, TRAIN[:, s], VAL[:, s], device="cpu", batch_size=4
        )
        assert together.epochs_run[s] == alone.epochs_run[0]
        assert together.best_epoch[s] == alone.best_epoch[0]
    assert together.epochs_run[0] != together.epochs_run[1]


def targets(sizes: tuple[int, ...]) -> Targets:
    index = torch.zeros(len(sizes), max(sizes), dtype=torch.long)
    for s, size in enumerate(sizes):
        index[s, :size] = torch.arange(size)
    return Targets(index, index % 3, torch.tensor(sizes))


def made(*sizes: int, seed: int = 0) -> RepairTrainee:
    own = targets(sizes)
    parameters = {"w": torch.zeros(len(sizes), 1)}
    return RepairTrainee(
        parameters, lambda p: None, lambda *_: torch.zeros(len(sizes), 4, 3), own, own,
        dropout=0.0, batch_size=4, seed=seed,
    )  # fmt: skip


def test_shuffles_do_not_depend_on_the_others_and_differ_by_epoch_and_seed():
    together, alone, other = made(6, 11, 3), made(6), made(6, seed=1)
    orders = []
    for _ in range(3):
        for trainee in (together, alone, other):
            trainee.begin_epoch()
        assert torch.equal(together.positions[0, :6], alone.positions[0, :6])
        # What fits into one batch is not shuffled: alone it would not be either.
        assert together.positions[2, :3].tolist() == [0, 1, 2]
        orders.append(tuple(alone.positions[0, :6].tolist()))
        assert sorted(orders[-1]) == list(range(6))
        assert orders[-1] != tuple(other.positions[0, :6].tolist())
    assert len(set(orders)) == 3


def test_a_member_learns_only_where_it_has_a_target():
    trainee = made(6, 11, 3)
    trainee.begin_epoch()
    seen = []
    for _ in range(trainee.steps_per_epoch):
        trainee.losses(None)
        seen.append(trainee.learning().tolist())
    assert seen == [[True, True, True], [True, True, False], [False, True, False]]
