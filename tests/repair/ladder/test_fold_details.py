"""Folds, averages and saved constants of cross-fitted repairs: by plain loops, from both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.repair import CrossFitted, NodeTranslation, TemperatureScaling
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
