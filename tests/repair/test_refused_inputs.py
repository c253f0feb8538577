"""What a fit cannot use is named in one sentence, whichever repair is asked."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError, SplitError
from gnn_repair.repair import REPAIRS, EvidenceLadder, RefitHead, SetTranslation
from gnn_repair.training import Budget
from tests.helpers.repair.toy_exposures import toy_exposure, toy_frozen, toy_graph

DATA = toy_graph()
TRAIN, VAL, Y = DATA.train_mask, DATA.val_mask, DATA.y
BAD = {
    "zeros and ones": ({"val": VAL[:, 0].long()}, "val is torch.int64, .* such as val > 0"),
    "wide": ({"val": VAL[:, [0, 1, 0]]}, "val has 3 splits but the exposure has 2"),
    "overlap": ({"val": VAL | TRAIN}, "is in train and in val"),
    "empty": ({"train": TRAIN & torch.tensor([True, False])}, "train of member 1 is empty"),
    "unlabelled": ({"y": torch.where(TRAIN[:, 1], -1, Y)}, r"node \d+ has label -1 but is in"),
    "column": ({"y": Y.unsqueeze(1)}, r"y has shape \[30, 1\]"),
    "frozen": ({"exposure": toy_frozen("gcn")}, "exposure is Frozen; give what expose"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", ["set-translation", "temperature-scaling"])
def test_what_cannot_be_used_is_named(name, case):
    change, message = BAD[case]
    given = SimpleNamespace(
        **{"exposure": toy_exposure("gcn"), "y": Y, "train": TRAIN, "val": VAL, "batch_size": None}
        | change
    )
    with pytest.raises(InputError, match=message) as caught:
        REPAIRS[name]().fit(
            given.exposure,
            given.y,
            given.train,
            given.val,
            batch_size=given.batch_size,
            device="cpu",
        )
    if case in ("overlap", "empty", "wide", "zeros and ones"):
        assert isinstance(caught.value, SplitError)


def brief(**settings):
    return SetTranslation(hidden=4, budget=Budget(2, None, 0.01, 0.0), **settings)


def test_labels_of_any_whole_type_will_do():
    exposure = toy_exposure("gcn")
    expected = brief().fit(exposure, Y, TRAIN, VAL, device="cpu").member_logits(exposure)
    for dtype in (torch.int32, torch.uint8, torch.int16):
        found = brief().fit(exposure, Y.to(dtype), TRAIN, VAL, device="cpu")
        assert torch.equal(found.member_logits(exposure), expected)
    found = brief().fit(exposure, Y, TRAIN, VAL, device="cpu", batch_size=np.int64(100))
    assert torch.equal(found.member_logits(exposure), expected)


def test_nodes_are_masks_or_numbers():
    exposure = toy_exposure("gcn").member(0)
    usual = brief().fit(exposure, Y, TRAIN[:, 0], VAL[:, 0], device="cpu").logits(exposure)
    assert usual.shape == (30, 3)
    train, val = (mask[:, 0].nonzero().view(-1) for mask in (TRAIN, VAL))
    for given in (
        (train, val),
        (train.tolist(), val.tolist()),
        (TRAIN[:, :1], val),
        (TRAIN[:, 0].numpy(), val.numpy()),
    ):
        found = brief().fit(exposure, Y, *given, device="cpu")
        assert torch.equal(found.logits(exposure), usual)
        assert torch.equal(found.predict(exposure), usual.argmax(1))
    with pytest.warns(DeprecationWarning, match=r"fit\(train=…\) now") as caught:
        found = brief().fit(exposure, Y, train_mask=TRAIN[:, 0], val=VAL[:, 0], device="cpu")
    assert caught[0].filename == __file__
    assert torch.equal(found.logits(exposure), usual)


def test_epochs_and_rates_are_settings():
    usual = SetTranslation().budget
    for repair in (SetTranslation, RefitHead, EvidenceLadder):
        found = repair(epochs=7, lr=0.5).budget
        assert found == replace(repair().budget, epochs=7, learning_rate=0.5)
        for wrong in ({"epochs": 0}, {"epochs": 2.5}, {"lr": 0}, {"lr": float("nan")}):
            with pytest.raises(InputError, match=f"{repair.__name__}: {next(iter(wrong))} is"):
                repair(**wrong)
    # Another setting leaves them as they are.
    assert replace(SetTranslation(epochs=7), seed=3).budget == replace(usual, epochs=7)


@pytest.mark.parametrize("name", REPAIRS)
def test_a_fitted_repair_asks_for_an_exposure(name):
    repair = REPAIRS[name]()
    if hasattr(repair, "budget"):
        repair = type(repair)(budget=Budget(1, None, 0.01, 0.0))
    fitted = repair.fit(toy_exposure("gcn"), Y, TRAIN, VAL, device="cpu")
    with pytest.raises(InputError, match="exposure is Frozen; give what expose"):
        fitted.member_logits(toy_frozen("gcn"))


def test_warnings_point_at_the_caller():
    train = TRAIN & (Y != 2).unsqueeze(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        brief().fit(toy_exposure("gcn"), Y, train, VAL, device="cpu")
        wild = RefitHead(budget=Budget(4, None, 1e300, 0.0))
        fitted = wild.fit(toy_exposure("gcn"), Y, TRAIN, VAL, device="cpu")
    texts = {str(item.message): item.filename for item in caught}
    epochs = fitted.best_epoch.tolist()
    assert fitted.diverged.tolist() == [True, True]
    assert set(texts) == {
        "member 0 is repaired without any training node of class 2",
        "member 1 is repaired without any training node of class 2",
        f"Refit head of member 0 diverged; its state of epoch {epochs[0]} was kept",
        f"Refit head of member 1 diverged; its state of epoch {epochs[1]} was kept",
    }
    assert set(texts.values()) == {__file__}
