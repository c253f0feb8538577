"""The contract of repairs for what is fitted in folds, and for what reads the graph.

Folds are dealt by node number, so other numbers give other folds: that part of the contract does
not hold for them. Controls that need more than an exposure have tests of their own.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from contract_exposures import reordered_members, shuffled_terms, world

from gnn_repair.budget import LADDER
from gnn_repair.repair import CorrectAndSmooth, CrossFitted, EvidenceLadder, FittedRepair
from gnn_repair.repair.adapters import SetTranslation
from gnn_repair.repair.controls import LabelPropagation

BRIEF = replace(LADDER, epochs=2, learning_rate=0.03, epoch_zero=False)
METHODS = {
    "ladder": EvidenceLadder(hidden=5, folds=2, budget=BRIEF),
    # Dropout is drawn by term, so terms in another order would drop others.
    "set-translation-in-folds": CrossFitted(SetTranslation(BRIEF, 0.0, hidden=5), folds=2),
    "smoothing-in-folds": CrossFitted(CorrectAndSmooth(layers=3), folds=2),
    "label-propagation": LabelPropagation(layers=4),
}
EVERY = pytest.mark.parametrize("name", METHODS)
ON_SOME = pytest.mark.parametrize("kind", ["by-hand", "gat", "h2gcn", "users-model"])
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
"""Kept predictions are single precision."""
pytestmark = pytest.mark.filterwarnings("ignore:member . is repaired without")


@cache
def fitted(name: str, kind: str):
    return METHODS[name].fit(*world(kind), device="cpu")


@EVERY
@ON_SOME
def test_a_member_alone_is_that_member_of_the_stack(name, kind):
    exposure, y, train, val = world(kind)
    together = fitted(name, kind)
    s = exposure.num_members - 1
    one = exposure.member(s)
    alone = METHODS[name].fit(one, y, train[:, s], val[:, s], device="cpu")
    torch.testing.assert_close(
        together.member_logits(exposure)[s], alone.member_logits(one)[0], **CLOSE
    )
    torch.testing.assert_close(
        together.member(s).member_logits(one), alone.member_logits(one), **CLOSE
    )


@EVERY
def test_members_in_another_order(name):
    exposure, y, train, val = world("gat")
    order = list(reversed(range(exposure.num_members)))
    moved = reordered_members(exposure, order)
    again = METHODS[name].fit(moved, y, train[:, order], val[:, order], device="cpu")
    expected = fitted(name, "gat").member_logits(exposure)[order]
    torch.testing.assert_close(again.member_logits(moved), expected, **CLOSE)


@EVERY
@ON_SOME
def test_logits_are_finite_and_decide_the_class(name, kind):
    exposure, repair = world(kind).exposure, fitted(name, kind)
    logits = repair.member_logits(exposure)
    shape = exposure.num_members, exposure.num_recipients, exposure.num_classes
    assert (tuple(logits.shape), logits.dtype) == (shape, torch.float64)
    assert bool(logits.isfinite().all())
    # Of one model there is no axis of members.
    shown = logits[0] if exposure.num_members == 1 else logits
    assert torch.equal(repair.logits(exposure), shown)
    assert torch.equal(repair.predict(exposure), shown.argmax(-1))
    change = logits - exposure.frozen_logits[:, exposure.recipients]
    assert bool((change.abs().amax((1, 2)) > 1e-6).all())


@EVERY
@ON_SOME
def test_copies_predict_the_same_bits(name, kind, tmp_path):
    exposure, repair = world(kind).exposure, fitted(name, kind)
    repair.save(tmp_path / "repair.safetensors")
    saved = FittedRepair.load(tmp_path / "repair.safetensors")
    for again in (saved, pickle.loads(pickle.dumps(repair)), copy.deepcopy(repair)):
        assert (again.repair, again.fingerprint) == (repair.repair, repair.fingerprint)
        assert torch.equal(again.member_logits(exposure), repair.member_logits(exposure))
        assert repr(again) == repr(repair)


@EVERY
@ON_SOME
def test_a_restricted_exposure_gives_the_restricted_rows(name, kind):
    exposure, repair = world(kind).exposure, fitted(name, kind)
    positions = torch.tensor([9, 3, 17, 4, 0])
    part = exposure.restrict(exposure.recipients[positions])
    if name == "smoothing-in-folds":
        pytest.skip("it spreads over the recipients that there are")
    expected = repair.member_logits(exposure)[:, positions]
    torch.testing.assert_close(repair.member_logits(part), expected, **CLOSE)


@EVERY
def test_the_order_of_terms_and_tables_does_not_matter(name):
    exposure, y, train, val = world("gat")
    moved, _ = shuffled_terms(exposure)
    expected = fitted(name, "gat").member_logits(exposure)
    torch.testing.assert_close(fitted(name, "gat").member_logits(moved), expected, **CLOSE)
    again = METHODS[name].fit(moved, y, train, val, device="cpu")
    torch.testing.assert_close(again.member_logits(moved), expected, rtol=1e-4, atol=1e-4)


@EVERY
@pytest.mark.parametrize("kind", ["by-hand", "gat"])
def test_no_label_outside_a_member_s_masks_is_read(name, kind):
    exposure, y, train, val = world(kind)
    usual = fitted(name, kind).member_logits(exposure)
    garbage = torch.where(torch.arange(y.numel()) % 2 == 0, 1_000_003, -1)
    planted = torch.where((train | val).any(1), y, garbage)
    again = METHODS[name].fit(exposure, planted, train, val, device="cpu")
    assert torch.equal(again.member_logits(exposure), usual)
    mine, other = (train | val)[:, 0], (train | val)[:, 1]
    swapped = torch.where(other & ~mine, (y + 1) % exposure.num_classes, y)
    again = METHODS[name].fit(exposure, swapped, train, val, device="cpu")
    assert torch.equal(again.member_logits(exposure)[0], usual[0])
    # Frozen may stay for the other member; its rungs have learned something else.
    told = [
        repair.rung_log_probs(exposure)["labels"]
        if name == "ladder"
        else repair.member_logits(exposure)
        for repair in (again, fitted(name, kind))
    ]
    assert not torch.equal(told[0][1], told[1][1])
