"""Folds, averages and saved constants of cross-fitted repairs: by plain loops, from both sides."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.repair import CorrectAndSmooth, CrossFitted, NodeTranslation, TemperatureScaling
from gnn_repair.repair.folds import (
    Roles,
    averaged,
    check_table,
    held_out,
    middle_copy,
    same_graph,
    signature,
)
from gnn_repair.repair.targets import Task
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
S, K, NODES, CLASSES = 2, 3, 5, 4


def fitted(inner, folds=3):
    exposure = toy_exposure("gcn")
    masks = DATA.train_mask[:, :2], DATA.val_mask[:, :2]
    return CrossFitted(inner, folds=folds).fit(exposure, DATA.y, *masks, device="cpu")


def told():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(S * K, NODES, CLASSES, generator=generator)


def test_averages_over_copies():
    logits = told()
    found = averaged(logits, K)
    assert found.dtype == torch.float64
    for s in range(S):
        own = logits[s * K : (s + 1) * K].double()
        mean = sum(copy.log_softmax(1) for copy in own) / K
        torch.testing.assert_close(found[s], mean.log_softmax(1))


def test_a_node_is_told_of_by_those_that_did_not_learn_from_it():
    judged = torch.zeros(S * K, NODES, dtype=torch.bool)
    judged[0, 0] = judged[1, 1] = judged[4, 3] = True
    logits = told()
    found = held_out(logits, Roles(torch.zeros(S * K, NODES), judged, K))
    each = logits.double().log_softmax(2)
    expected = torch.zeros(S, NODES, CLASSES, dtype=torch.float64)
    expected[0, 0] = each[0, 0]
    expected[0, 1] = each[1, 1]
    expected[1, 3] = each[4, 3]
    torch.testing.assert_close(found, expected)


def test_statistics_are_the_middle_copys():
    stack = {
        "best_epoch": torch.tensor([5, 1, 9, 0, 0, 7]),
        "epochs_run": torch.tensor([6, 2, 10, 3, 8, 7]),
        "diverged": torch.tensor([False, False, True, False, False, False]),
    }
    found = middle_copy(stack, K)
    assert {name: value.tolist() for name, value in found.items()} == {
        "best_epoch": [5, 0], "epochs_run": [6, 7], "diverged": [True, False],
    }  # fmt: skip


def test_values_by_node():
    exposure = toy_exposure("gcn").restrict(torch.tensor([4, 2]))
    values = torch.tensor([[1.5, 2.5], [3.5, 4.5]], dtype=torch.float64)
    found = Task.by_node(SimpleNamespace(exposure=exposure), values)
    expected = torch.zeros(2, 30)
    expected[:, [4, 2]] = values.float()
    torch.testing.assert_close(found, expected)
    whole = Task.by_node(SimpleNamespace(exposure=exposure), torch.tensor([[1, 2], [3, 4]]))
    assert whole.dtype == torch.int64 and whole[1, 2] == 4


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
    less = epochs.clone()
    less[0, 0] = -1
    wrong = {
        "best_epochs must lie in 0..0": [("best_epochs", one), ("best_epochs", less)],
        "best_epochs has shape": [("best_epochs", epochs.int()), ("best_epochs", epochs[:, 0])],
        "it lacks best_epochs": [("best_epochs", None)],
        "it lacks out_of_fold": [("out_of_fold", None)],
        "out_of_fold has shape": [
            ("out_of_fold", said.double()),
            ("out_of_fold", said[:, :, :2]),
            ("out_of_fold", said[:1]),
        ],
        "has no constant 'more'": [("more", said)],
        "has no constant 'mean'": [("own/mean", epochs)],
        "own/mean is not there for each of 3 copies": [("own/mean", epochs[:, :2])],
    }
    for words, cases in wrong.items():
        for name, value in cases:
            with pytest.raises(InputError, match=words):
                held.repair.check_constants(altered(held, name, value))
    none = replace(
        held, constants={"best_epochs": epochs[:, :0], "out_of_fold": said}, parameters={}
    )
    with pytest.raises(InputError, match="one for every copy"):
        held.repair.check_constants(none)
    few = replace(held, parameters={n: v[:, :2] for n, v in held.parameters.items()})
    with pytest.raises(InputError, match="is not there for each of 3 copies"):
        held.repair.check_constants(few)


def test_every_copys_own_constants_are_checked():
    held = fitted(CorrectAndSmooth(layers=1))
    held.repair.check_constants(held)
    labels = held.constants["own/labels"].clone()
    labels[0, 2, 0] = 99
    with pytest.raises(InputError, match="labels must lie in"):
        held.repair.check_constants(altered(held, "own/labels", labels))


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


def test_tables_are_as_asked_for():
    value = torch.zeros(2, 5, 3)
    held = SimpleNamespace(constants={"t": value}, num_members=2)
    assert check_table(held, "t", torch.float32, None, 3) == (5, 3)
    assert check_table(held, "t", torch.float32, 5, 3) == (5, 3)
    for shape in ((5,), (5, 4), (4, 3), (5, 3, 1)):
        with pytest.raises(InputError, match="t has shape"):
            check_table(held, "t", torch.float32, *shape)
    with pytest.raises(InputError, match="t has shape"):
        check_table(held, "t", torch.float64, 5, 3)
    with pytest.raises(InputError, match="it lacks u"):
        check_table(held, "u", torch.float32)


def test_signatures_tell_graphs_apart():
    exposure = toy_exposure("gcn")
    expected = (exposure.frozen_logits * torch.linspace(1, 2, 3, dtype=torch.float64)).sum(2)
    torch.testing.assert_close(signature(exposure), expected.float())
    assert same_graph(signature(exposure), exposure)
    assert same_graph(signature(exposure) + 5e-4, exposure)
    moved = signature(exposure)
    moved[1, 7] += 0.1
    assert not same_graph(moved, exposure)
    assert not same_graph(signature(exposure)[:1], exposure)
    # A thousandth of the value and of one: at the largest value, and where it is small.
    size = signature(exposure).abs()
    for place, absolute, relative in ((size.argmax(), 1e-3, 1.5e-3), (size.argmin(), 1.5e-3, 1e-3)):
        own = float(size.view(-1)[place])
        for slack, same in ((0.5, True), (1.0, False)):
            moved = signature(exposure)
            moved.view(-1)[place] += slack * (absolute + relative * own)
            assert same_graph(moved, exposure) is same
