"""Folds, roles and cross-fitting: who learns from what, and who is judged on what."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import gnn_repair as gr
from gnn_repair.errors import InputError, SplitError
from gnn_repair.repair import (
    CrossFitted,
    NodeTranslation,
    TemperatureScaling,
)
from gnn_repair.repair.folds import cross_roles, deal_folds, middle_copy
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

# Folds and roles: who learns from what, and who is judged on what.

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
    # Neither other members nor labels outside validation move a fold; the seed does.
    assert torch.equal(folds[1:], deal_folds(VAL[1:], LABELS, 5, 3))
    other = torch.where(VAL.any(0), LABELS, 10**6 - LABELS)
    assert torch.equal(folds, deal_folds(VAL, other, 5, 3))
    assert not torch.equal(folds, deal_folds(VAL, LABELS, 5, 4))


@pytest.mark.parametrize("leave", [0, 1, 2])
def test_a_copy_learns_from_all_but_the_folds_it_leaves_in_the_asked_for_shares(leave):
    folds = deal_folds(VAL, LABELS, 4, 0)
    roles = cross_roles(TRAIN, folds, 4, leave, times=2)
    assert roles.copies == 8
    for s, copy in itertools.product(range(2), range(8)):
        k, row = copy % 4, 8 * s + copy
        left = torch.tensor([(k + step) % 4 for step in range(leave)], dtype=torch.long)
        others = VAL[s] & ~torch.isin(folds[s], left)
        weights = roles.weights[row]
        assert torch.equal(roles.judged[row], (folds[s] == k) & (leave > 0))
        assert torch.equal(weights > 0, TRAIN[s] | others)
        for nodes, share in ((TRAIN[s], 0.2), (others, 0.8)):
            torch.testing.assert_close(float(weights[nodes].sum()), share, rtol=1e-5, atol=0)
            assert weights[nodes].unique().numel() == 1


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: deal_folds(VAL, LABELS, 81, 0), SplitError, "80 nodes, too few for 81"),
        (lambda: deal_folds(VAL, LABELS, 1, 0), InputError, "folds is 1"),
        (lambda: CrossFitted(TemperatureScaling(), folds=2.5), InputError, "folds"),
        (lambda: CrossFitted(TemperatureScaling(), folds=1), InputError, "folds"),
        (lambda: CrossFitted(TemperatureScaling(), seed=-1), InputError, "seed"),
        (lambda: CrossFitted(3), InputError, "takes a repair"),
        (lambda: CrossFitted(CrossFitted()), InputError, "takes a repair"),
        (lambda: CrossFitted(gr.EvidenceLadder()), InputError, "takes a repair"),
        (lambda: fitted_crossed(TemperatureScaling(), folds=12), SplitError, "too few for 12"),
    ],
)
def test_folds_that_cannot_be_are_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


# Folds, averages and saved constants of cross-fitted repairs: by plain loops, from both sides.

DATA = toy_graph()
MASKS = DATA.train_mask, DATA.val_mask
S, K, NODES_COPIES, CLASSES = 2, 3, 5, 4


def fitted_crossed(repair, folds: int = 3):
    method = CrossFitted(repair, folds=folds)
    return method.fit(toy_exposure("sage"), DATA.y, *MASKS, device="cpu")


def altered(held, name, value):
    constants = {**held.constants, name: value}
    return replace(held, constants={k: v for k, v in constants.items() if v is not None})


def test_unchanged_is_what_every_copy_left_as_it_was():
    method = NodeTranslation(hidden=2)
    budget = replace(method.budget, epochs=1)
    held = fitted_crossed(replace(method, budget=budget))
    epochs = torch.tensor([[0, 0, 0], [0, 1, 0]])
    assert altered(held, "best_epochs", epochs).unchanged.tolist() == [True, False]
    never = replace(method, budget=replace(budget, epoch_zero=False))
    other = replace(held, repair=CrossFitted(never, folds=3))
    assert altered(other, "best_epochs", epochs).unchanged.tolist() == [False, False]
    assert fitted_crossed(TemperatureScaling()).unchanged.tolist() == [False, False]


# Cross-fitting of any repair: what a copy learns from, averages, files, refusals.
BRIEF = {"epochs": 5, "learning_rate": 0.02, "epoch_zero": False}


def brief(repair, **changes):
    return replace(repair, budget=replace(repair.budget, **BRIEF), **changes)


def dealt(seed: int = 0) -> torch.Tensor:
    return deal_folds(DATA.val_mask.t(), DATA.y, 3, seed)


def test_a_copy_learns_from_all_folds_but_its_own(monkeypatch):
    """One epoch, so that there is none to choose: labels of fold k move every copy but the k-th."""
    method = gr.NodeTranslation(hidden=6)
    method = replace(method, budget=replace(method.budget, epochs=1, epoch_zero=False))
    usual, folds = fitted_crossed(method), dealt()
    # Folds are dealt by class: other labels in a fold would deal other folds.
    monkeypatch.setattr("gnn_repair.repair.folds.deal_folds", lambda val, *_: folds[: len(val)])
    exposure, masks = toy_exposure("sage").member(0), [mask[:, 0] for mask in MASKS]
    for k in range(3):
        moved = torch.where(folds[0] == k, (DATA.y + 1) % 3, DATA.y)
        found = CrossFitted(method, folds=3).fit(exposure, moved, *masks, device="cpu")
        for copy in range(3):
            same = [
                torch.equal(value[0, copy], usual.parameters[name][0, copy])
                for name, value in found.parameters.items()
            ]
            assert all(same) == (copy == k)


def test_a_member_diverged_where_any_of_its_copies_did():
    gone = torch.tensor(list(itertools.product([False, True], repeat=K)))
    epochs = torch.stack([torch.randperm(K) for _ in gone])
    stack = {"best_epoch": epochs, "epochs_run": epochs + 7, "diverged": gone}
    found = middle_copy({name: value.flatten() for name, value in stack.items()}, K)
    assert found["diverged"].tolist() == [any(row) for row in gone.tolist()]
    assert found["best_epoch"].tolist() == [1] * len(gone)
    assert found["epochs_run"].tolist() == [8] * len(gone)
