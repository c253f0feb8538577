"""Folds, roles and cross-fitting: who learns from what, and who is judged on what."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv

import gnn_repair as gr
from gnn_repair.errors import InputError, SplitError
from gnn_repair.repair import (
    CorrectAndSmooth,
    CrossFitted,
    FittedRepair,
    NodeTranslation,
    TemperatureScaling,
)
from gnn_repair.repair.folds import cross_roles, deal_folds, kept_rows, middle_copy
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


# Folds, averages and saved constants of cross-fitted repairs: by plain loops, from both sides.

DATA = toy_graph()
S, K, NODES_COPIES, CLASSES = 2, 3, 5, 4


def fitted(inner, folds=3):
    exposure = toy_exposure("gcn")
    masks = DATA.train_mask[:, :2], DATA.val_mask[:, :2]
    return CrossFitted(inner, folds=folds).fit(exposure, DATA.y, *masks, device="cpu")


@pytest.mark.parametrize(("name", "wrong"), [("folds", (1, 0, 2.5, True)), ("seed", (-1, 0.5))])
def test_settings_of_folds(name, wrong):
    for value in wrong:
        with pytest.raises(InputError, match=name):
            CrossFitted(TemperatureScaling(), **{name: value})


def altered(held, name, value):
    constants = {**held.constants, name: value}
    return replace(held, constants={k: v for k, v in constants.items() if v is not None})


def test_constants_of_copies_in_files():
    held = fitted(TemperatureScaling())
    held.repair.check_constants(held)
    epochs, said = held.constants["best_epochs"], held.constants["out_of_fold"]
    one = epochs.clone()
    one[1, 2] = 1
    wrong = {
        "best_epochs": [
            ("best_epochs", one),
            ("best_epochs", epochs.int()),
            ("best_epochs", epochs[:, 0]),
            ("best_epochs", None),
        ],
        "out_of_fold": [("out_of_fold", None), ("out_of_fold", said[:1])],
        "has no constant 'more'": [("more", said)],
        "own/mean is not there for each of 3 copies": [("own/mean", epochs[:, :2])],
    }
    for words, cases in wrong.items():
        for name, value in cases:
            with pytest.raises(InputError, match=words):
                held.repair.check_constants(altered(held, name, value))
    few = replace(held, parameters={n: v[:, :2] for n, v in held.parameters.items()})
    with pytest.raises(InputError, match="is not there for each of 3 copies"):
        held.repair.check_constants(few)


def test_unchanged_is_what_every_copy_left_as_it_was():
    method = NodeTranslation(hidden=2)
    budget = replace(method.budget, epochs=1)
    held = fitted(replace(method, budget=budget))
    epochs = torch.tensor([[0, 0, 0], [0, 1, 0]])
    assert altered(held, "best_epochs", epochs).unchanged.tolist() == [True, False]
    never = replace(method, budget=replace(budget, epoch_zero=False))
    other = replace(held, repair=CrossFitted(never, folds=3))
    assert altered(other, "best_epochs", epochs).unchanged.tolist() == [False, False]
    assert fitted(TemperatureScaling()).unchanged.tolist() == [False, False]


# Cross-fitting of any repair: what a copy learns from, averages, files, refusals.
BRIEF = {"epochs": 5, "learning_rate": 0.02, "epoch_zero": False}
TRAINED = [
    gr.SetTranslation(hidden=6),
    gr.Reweighting(hidden=6),
    gr.NodeTranslation(hidden=6),
    gr.RefitHead(),
]


def brief(repair, **changes):
    return replace(repair, budget=replace(repair.budget, **BRIEF), **changes)


def fitted_crossed(repair, backbone: str = "sage", **options):
    method = CrossFitted(repair, folds=3)
    return method.fit(
        toy_exposure(backbone), DATA.y, DATA.train_mask, DATA.val_mask, device="cpu", **options
    )


def dealt(seed: int = 0) -> torch.Tensor:
    return deal_folds(DATA.val_mask.t(), DATA.y, 3, seed)


@pytest.mark.parametrize("repair", TRAINED, ids=lambda r: type(r).__name__)
def test_a_copy_learns_from_all_folds_but_its_own(repair):
    """One epoch, so that there is none to choose: labels of fold k move every copy but the k-th."""
    method = replace(repair, budget=replace(repair.budget, epochs=1, epoch_zero=False))
    usual = fitted_crossed(method)
    for k in range(3):
        own = dealt()[0] == k
        moved = torch.where(own, (DATA.y + 1) % 3, DATA.y)
        exposure, masks = toy_exposure("sage").member(0), (DATA.train_mask, DATA.val_mask)
        # Folds are dealt by class: other labels in a fold would deal other folds.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "gnn_repair.repair.folds.deal_folds", lambda val, *rest: dealt()[: len(val)]
            )
            found = CrossFitted(method, folds=3).fit(
                exposure, moved, *(mask[:, 0] for mask in masks), device="cpu"
            )
        for copy in range(3):
            same = [
                torch.equal(value[0, copy], usual.parameters[name][0, copy])
                for name, value in found.parameters.items()
            ]
            assert all(same) == (copy == k)


@pytest.mark.parametrize(
    "repair",
    [*TRAINED, CorrectAndSmooth(layers=3), TemperatureScaling()],
    ids=lambda r: type(r).__name__,
)
def test_log_probabilities_are_averaged_and_files_come_back(repair, tmp_path):
    method = brief(repair) if hasattr(repair, "budget") else repair
    found, exposure = fitted_crossed(method), toy_exposure("sage")
    each = torch.stack([found.copy(k).member_logits(exposure).log_softmax(2) for k in range(3)])
    torch.testing.assert_close(found.member_logits(exposure), each.mean(0).log_softmax(2))
    found.save(tmp_path / "repair.safetensors")
    again = FittedRepair.load(tmp_path / "repair.safetensors")
    assert torch.equal(again.member_logits(exposure), found.member_logits(exposure))
    assert again.repair == found.repair
    # Out of fold, each validation node is told by the copy that did not learn from it.
    folds = dealt()
    for s in range(2):
        for node in DATA.val_mask[:, s].nonzero().view(-1).tolist():
            told = each[folds[s, node], s, node]
            torch.testing.assert_close(found.out_of_fold()[s, node], told, rtol=1e-3, atol=1e-3)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GCNConv(9, 8), GCNConv(8, 3)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


def test_a_model_of_one_s_own_is_cross_fitted_and_climbed():
    torch.manual_seed(0)
    exposure = gr.expose(Own().double(), DATA)
    masks = DATA.train_mask[:, 0], DATA.val_mask[:, 0]
    repair = CrossFitted(brief(gr.SetTranslation(hidden=6)), folds=3)
    found = repair.fit(exposure, DATA.y, *masks, device="cpu")
    assert not torch.equal(found.predict(exposure), exposure.frozen_logits[0].argmax(1))
    ladder = gr.EvidenceLadder(folds=3, hidden=6)
    ladder = replace(ladder, budget=replace(ladder.budget, epochs=2))
    told = ladder.fit(exposure, DATA.y, *masks, data=DATA, device="cpu")
    assert bool(told.member_logits(exposure).isfinite().all())


def test_what_cannot_be_cross_fitted_is_refused():
    with pytest.raises(InputError, match="CrossFitted takes a repair"):
        CrossFitted(3)
    with pytest.raises(InputError, match="CrossFitted takes a repair"):
        CrossFitted(CrossFitted())
    few = DATA.val_mask & (torch.arange(30) < 8).unsqueeze(1)
    with pytest.raises(SplitError, match="too few for 5 folds"):
        CrossFitted().fit(toy_exposure("sage"), DATA.y, DATA.train_mask, few, device="cpu")


def test_a_member_diverged_where_any_of_its_copies_did():
    gone = torch.tensor(list(itertools.product([False, True], repeat=K)))
    epochs = torch.stack([torch.randperm(K) for _ in gone])
    stack = {"best_epoch": epochs, "epochs_run": epochs + 7, "diverged": gone}
    found = middle_copy({name: value.flatten() for name, value in stack.items()}, K)
    assert found["diverged"].tolist() == [any(row) for row in gone.tolist()]
    assert found["best_epoch"].tolist() == [1] * len(gone)
    assert found["epochs_run"].tolist() == [8] * len(gone)


@pytest.mark.parametrize("classes", range(2, 6))
def test_rows_of_nodes_that_were_not_exposed_are_nobody_s_probabilities(classes):
    told = torch.randn(S, NODES_COPIES, classes).log_softmax(2)
    told[1, 3] = 0
    for nodes in itertools.combinations(range(NODES_COPIES), 2):
        exposure = SimpleNamespace(recipients=torch.tensor(nodes))
        if 3 in nodes:
            with pytest.raises(InputError, match="were not exposed when it was fitted"):
                kept_rows(told, exposure, "it")
        else:
            found = kept_rows(told, exposure, "it")
            torch.testing.assert_close(found, told[:, list(nodes)].double())


def test_copies_learn_the_same_from_the_part_of_a_large_graph(monkeypatch):
    """Shares of the loss stand by recipient: they must be those of the same targets."""
    repair = brief(gr.SetTranslation(hidden=6, dropout=0.0))
    usual = fitted_crossed(repair)
    monkeypatch.setattr("gnn_repair.repair.targets.LARGE", 0)
    monkeypatch.setattr("gnn_repair.repair.targets.SHARE", 1.0)
    found, exposure = fitted_crossed(repair), toy_exposure("sage")
    torch.testing.assert_close(found.member_logits(exposure), usual.member_logits(exposure))
    torch.testing.assert_close(found.out_of_fold(), usual.out_of_fold())
