"""Bounds of repairs from both sides: settings, saved constants, sizes of tables, durations."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

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
    labels, strengths = fitted.constants["labels"], fitted.constants["strengths"]
    entries = fitted.constants["entries"]

    def with_(name, place, value):
        changed = fitted.constants[name].clone()
        changed[place] = value
        return {**fitted.constants, name: changed}

    nodes = labels.shape[1]
    fine = [
        with_("labels", (1, 0), -1),
        with_("labels", (1, 0), exposure.num_classes - 1),
        with_("entries", (0, 1, 0), nodes - 1),
        with_("entries", (0, 1, 0), 0),
        with_("strengths", 1, torch.tensor([0.95, 0.5, 0.0], dtype=torch.float64)),
    ]
    for constants in fine:
        method.check_constants(replace(fitted, constants=constants))
    wrong = {
        "labels must lie in": [
            with_("labels", (1, 0), -2),
            with_("labels", (1, 0), exposure.num_classes),
            {**fitted.constants, "labels": labels.int()},
            {**fitted.constants, "labels": labels.unsqueeze(2)},
        ],
        "strengths must be among": [
            with_("strengths", (1, 0), 0.6),
            {**fitted.constants, "strengths": strengths.float()},
            {**fitted.constants, "strengths": strengths[:, :2]},
        ],
        "entries must be pairs": [
            with_("entries", (0, 1, 0), nodes),
            with_("entries", (0, 0, 0), -1),
            {**fitted.constants, "entries": entries.int()},
            {**fitted.constants, "entries": entries[0]},
            {**fitted.constants, "entries": entries[:, :1]},
        ],
        "nothing else": [
            {"labels": labels, "strengths": strengths},
            {**fitted.constants, "more": labels},
        ],
    }
    for words, cases in wrong.items():
        for constants in cases:
            with pytest.raises(InputError, match=words):
                method.check_constants(replace(fitted, constants=constants))
