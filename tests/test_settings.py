"""Settings outside their range are refused when they are built, by name."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gnn_repair.backbones import BACKBONES, Shape
from gnn_repair.errors import InputError
from gnn_repair.repair import REPAIRS, CorrectAndSmooth
from gnn_repair.repair.base import TrainedRepair
from gnn_repair.training import SHORT

TRAINED = [name for name, repair in REPAIRS.items() if issubclass(repair, TrainedRepair)]
WHOLE = [0, -1, 1.5, math.nan, "3", True]
RATES = [0, -1e-3, math.nan, math.inf, "0.1", True]
SHARES = [-1, -1e-9, 1, 2, math.nan, "0.2", None]


@pytest.mark.parametrize(
    "name,values",
    [
        ("epochs", [*WHOLE, None]),
        ("patience", WHOLE),
        ("learning_rate", RATES),
        ("weight_decay", [-1e-9, math.nan, math.inf, None]),
        ("clip", RATES),
        ("decoupled", [1, None, "yes"]),
        ("epoch_zero", [0, None]),
    ],
)
def test_budgets(name, values):
    for value in values:
        with pytest.raises(InputError, match=f"Budget: {name} is"):
            replace(SHORT, **{name: value})


def test_what_is_at_the_edge_of_a_range_is_accepted():
    kept = replace(SHORT, epochs=np.int64(1), patience=1, weight_decay=0, learning_rate=1e-300)
    assert kept.epochs == 1
    assert replace(SHORT, patience=None).patience is None
    assert Shape(hidden=1, heads=1, dropout=0).dropout == 0
    assert Shape(dropout=0.999).dropout == 0.999


def test_shapes():
    for name, values in {"hidden": WHOLE, "heads": WHOLE, "dropout": SHARES}.items():
        for value in values:
            with pytest.raises(InputError, match=f"Shape: {name} is"):
                Shape(**{name: value})


@pytest.mark.parametrize("name", TRAINED)
def test_repairs(name):
    repair = REPAIRS[name]
    settings = {"dropout": SHARES, "seed": [-1, 0.5, None], "budget": [None, {"epochs": 3}]}
    if "hidden" in repair.__dataclass_fields__:
        settings["hidden"] = WHOLE
    for setting, values in settings.items():
        for value in values:
            with pytest.raises(InputError, match=f"{repair.__name__}: {setting} is"):
                repair(**{setting: value})


def test_smoothing_needs_a_step():
    for value in WHOLE:
        with pytest.raises(InputError, match="CorrectAndSmooth: layers is"):
            CorrectAndSmooth(layers=value)


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_heads_divide_the_width(name):
    with pytest.raises(InputError, match="hidden is 10, which 4 heads do not divide"):
        BACKBONES[name](Shape(hidden=10, heads=4))


def test_the_range_is_part_of_the_sentence():
    with pytest.raises(InputError, match=r"give a finite number of at least 0 and below 1$"):
        Shape(dropout=2)
    with pytest.raises(InputError, match=r"give a finite number above 0$"):
        replace(SHORT, clip=0)
    with pytest.raises(InputError, match=r"give a whole number from 1 to"):
        replace(SHORT, epochs=0)
