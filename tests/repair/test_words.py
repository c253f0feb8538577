"""What fitted values say of themselves, and whether anything was learned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.repair import REPAIRS, NodeTranslation, RefitHead, TemperatureScaling
from gnn_repair.repair.base import TRY, FittedRepair, TrainedRepair
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()


def planted_hopeless() -> FittedRepair:
    """Member 0's frozen model is perfect on validation, so nothing can be strictly better."""
    exposure = toy_exposure("gcn")
    logits = exposure.frozen_logits.clone()
    logits[0] = 0
    logits[0, torch.arange(30), DATA.y] = 5
    logits[1, torch.arange(30), (DATA.y + 1) % 3] = 1.5
    logits[1, torch.arange(30), DATA.y] = 1.4
    shifted = replace(
        exposure,
        frozen_logits=logits,
        fixed_logits=exposure.fixed_logits + logits - exposure.frozen_logits,
    )
    method = NodeTranslation(hidden=16, budget=replace(NodeTranslation().budget, epochs=60))
    method = replace(method, budget=replace(method.budget, learning_rate=0.05))
    return method.fit(shifted, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")


def test_a_repair_that_brings_nothing_says_so_by_member():
    fitted = planted_hopeless()
    assert fitted.unchanged.tolist() == [True, False]
    assert fitted.best_epoch[1] > 0
    assert "member 0" in repr(fitted) and TRY in repr(fitted) and "evidence ladder" in TRY
    assert "member 0" in fitted.advice and fitted.advice.endswith(TRY)
    assert fitted.member(1).advice == ""
    assert fitted.member(1).unchanged.tolist() == [False]
    assert "nothing learned" not in repr(fitted.member(1))
    assert str(fitted) == repr(fitted)


def test_what_has_no_epoch_zero_is_never_unchanged():
    masks = (DATA.y, DATA.train_mask, DATA.val_mask)
    temperature = TemperatureScaling().fit(toy_exposure("gcn"), *masks, device="cpu")
    assert temperature.best_epoch.tolist() == [0, 0]
    assert temperature.unchanged.tolist() == [False, False]
    head = RefitHead(budget=replace(RefitHead().budget, epochs=2))
    fitted = head.fit(toy_exposure("gcn"), *masks, device="cpu")
    assert fitted.unchanged.tolist() == [False, False]


def test_divergence_is_said():
    fitted = planted_hopeless()
    wild = replace(fitted, diverged=torch.tensor([False, True]))
    assert "member 0 (frozen prediction kept); member 1 diverged; try the" in repr(wild)


@pytest.mark.parametrize("name", REPAIRS)
def test_no_value_prints_its_tensors(name):
    repair = REPAIRS[name]()
    if isinstance(repair, TrainedRepair):
        repair = replace(repair, budget=replace(repair.budget, epochs=1))
    fitted = repair.fit(toy_exposure("gcn"), DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")
    for value in (repair, fitted):
        assert len(repr(value).splitlines()) <= 3
        assert "tensor" not in repr(value)
    assert repr(fitted).startswith(repair.title)
