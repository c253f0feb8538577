"""Folds, averages and saved constants of cross-fitted repairs: by plain loops, from both sides."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.repair import CrossFitted, NodeTranslation, TemperatureScaling
from gnn_repair.repair.folds import kept_rows, middle_copy
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
S, K, NODES, CLASSES = 2, 3, 5, 4


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
    told = torch.randn(S, NODES, classes).log_softmax(2)
    told[1, 3] = 0
    for nodes in itertools.combinations(range(NODES), 2):
        exposure = SimpleNamespace(recipients=torch.tensor(nodes))
        if 3 in nodes:
            with pytest.raises(InputError, match="were not exposed when it was fitted"):
                kept_rows(told, exposure, "it")
        else:
            found = kept_rows(told, exposure, "it")
            torch.testing.assert_close(found, told[:, list(nodes)].double())
