"""Bounds of repairs from both sides: settings, saved constants, sizes of tables, durations."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from gnn_repair.errors import InputError
from gnn_repair.repair import (
    CorrectAndSmooth,
    Reweighting,
)
from gnn_repair.repair.base import (
    repair_of,
)
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()


def masks():
    return DATA.train_mask[:, :2], DATA.val_mask[:, :2]


@pytest.mark.parametrize(
    ("name", "value"), [("hidden", 2**40), ("hidden", -1), ("dropout", 1.5), ("seed", -1)]
)
def test_settings_in_files_are_those_that_could_be_given(name, value):
    settings = asdict(Reweighting())
    assert repair_of("Reweighting", settings) == Reweighting()
    for wrong in (
        {**settings, name: value},
        {**settings, "budget": {**settings["budget"], "epochs": 0}},
    ):
        with pytest.raises(InputError, match=f"{name} is|epochs is"):
            repair_of("Reweighting", wrong)
    with pytest.raises(InputError, match="it holds a repair named 'Nothing'"):
        repair_of("Nothing", {})


def test_constants_of_smoothing_in_files():
    exposure = toy_exposure("gcn")
    method = CorrectAndSmooth(layers=2)
    fitted = method.fit(exposure, DATA.y, *masks(), device="cpu")
    method.check_constants(fitted)
    held = fitted.constants

    def with_(name, place, value):
        changed = held[name].clone()
        changed[place] = value
        return {**held, name: changed}

    nodes, classes = held["labels"].shape[1], exposure.num_classes
    for place, label in ((0, -1), (0, classes - 1)):
        method.check_constants(replace(fitted, constants=with_("labels", (1, place), label)))
    wrong = {
        "labels": [
            with_("labels", (1, 0), classes),
            with_("labels", (1, 0), -2),
            {**held, "labels": held["labels"].int()},
        ],
        "strengths": [
            with_("strengths", (1, 0), 0.6),
            {**held, "strengths": held["strengths"][:, :2]},
        ],
        "entries": [
            with_("entries", (0, 1, 0), nodes),
            with_("entries", (0, 0, 0), -1),
            {**held, "entries": held["entries"][:, :1]},
        ],
        "nothing else": [{**held, "more": held["labels"]}],
    }
    for words, cases in wrong.items():
        for constants in cases:
            with pytest.raises(InputError, match=words):
                method.check_constants(replace(fitted, constants=constants))
