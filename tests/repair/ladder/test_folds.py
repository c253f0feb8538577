"""Folds and roles: who learns from what, and who is judged on what."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.errors import InputError, SplitError
from gnn_repair.repair.folds import cross_roles, deal_folds

NODES = 400
LABELS = torch.arange(NODES) % 7 % 4
PLACE = torch.arange(NODES)
TRAIN = torch.stack([PLACE % 5 < 2, PLACE % 5 > 2])
VAL = torch.stack([PLACE % 5 > 2, PLACE % 5 < 1])


def test_folds_are_even_overall_and_in_every_class():
    folds = deal_folds(VAL, LABELS, 5, seed=3)
    for s in range(2):
        assert set(folds[s][~VAL[s]].tolist()) == {-1}
        assert folds[s][VAL[s]].bincount().tolist() == [int(VAL[s].sum()) // 5] * 5
        for label in range(4):
            counts = folds[s][VAL[s] & (label == LABELS)].bincount(minlength=5)
            assert int(counts.max() - counts.min()) <= 1


def test_folds_depend_on_the_seed_and_on_nothing_of_the_other_members():
    both, alone = deal_folds(VAL, LABELS, 5, 3), deal_folds(VAL[1:], LABELS, 5, 3)
    assert torch.equal(both[1:], alone)
    assert not torch.equal(both, deal_folds(VAL, LABELS, 5, 4))


def test_labels_outside_validation_do_not_move_a_fold():
    other = torch.where(VAL.any(0), LABELS, 10**6 - LABELS)
    assert torch.equal(deal_folds(VAL, LABELS, 5, 3), deal_folds(VAL, other, 5, 3))


def test_a_copy_learns_from_all_but_its_fold_in_the_asked_for_shares():
    folds = deal_folds(VAL, LABELS, 4, 0)
    roles = cross_roles(TRAIN, folds, 4)
    for s in range(2):
        for k in range(4):
            weights, judged = roles.weights[4 * s + k], roles.judged[4 * s + k]
            assert torch.equal(judged, folds[s] == k)
            others = VAL[s] & (folds[s] != k)
            assert torch.equal(weights > 0, TRAIN[s] | others)
            torch.testing.assert_close(float(weights[TRAIN[s]].sum()), 0.2, rtol=1e-5, atol=0)
            torch.testing.assert_close(float(weights[others].sum()), 0.8, rtol=1e-5, atol=0)
            assert weights[TRAIN[s]].unique().numel() == weights[others].unique().numel() == 1


def test_a_copy_may_leave_two_folds_or_none():
    folds = deal_folds(VAL, LABELS, 4, 0)
    for leave in (0, 2):
        roles = cross_roles(TRAIN, folds, 4, leave)
        for k in range(4):
            left = {(k + step) % 4 for step in range(leave)}
            expected = torch.tensor([int(f) >= 0 and int(f) not in left for f in folds[1]])
            assert torch.equal(roles.weights[4 + k] > 0, TRAIN[1] | expected)
            assert torch.equal(roles.judged[4 + k], (folds[1] == k) & (leave > 0))


def test_folds_that_cannot_be_are_refused():
    with pytest.raises(SplitError, match="80 nodes, too few for 81 folds"):
        deal_folds(VAL, LABELS, 81, 0)
    with pytest.raises(InputError, match="folds is 1"):
        deal_folds(VAL, LABELS, 1, 0)
