"""Settings outside their range, and mistyped names: answered when they are built, by name."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import gnn_repair as gr
from gnn_repair.backbones import BACKBONES, Shape
from gnn_repair.errors import InputError, closest, suggestion
from gnn_repair.repair import CorrectAndSmooth
from gnn_repair.results.protocol import changed
from gnn_repair.study import PAPER
from gnn_repair.training import SHORT

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


def test_smoothing_needs_a_step():
    for value in WHOLE:
        with pytest.raises(InputError, match="CorrectAndSmooth: layers is"):
            CorrectAndSmooth(layers=value)


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_heads_divide_the_width(name):
    with pytest.raises(InputError, match="hidden is 10, which 4 heads do not divide"):
        BACKBONES[name](Shape(hidden=10, heads=4))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("gnc", "gcn"), ("GCN", "gcn"), ("scg", "sgc"), ("gatv", "gatv2"), ("mixhopp", "mixhop")],
)
def test_letters_that_changed_places_count_as_the_nearest(typed, meant):
    assert closest(typed, gr.BACKBONES) == meant


def test_nothing_near_lists_all():
    assert closest("transformer", ["gcn", "gat"]) is None
    assert suggestion("transformer", ["gcn", "gat"]) == "choose from gcn, gat"


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"heads": 2}, "did you mean backbones.heads?"),
        ({"hidden": 64}, "did you mean backbones.hidden or repairs.hidden?"),
        ({"backbones": {"hiden": 64}}, "did you mean backbones.hidden?"),
        ({"backbones": {"epochs": 3}}, "did you mean backbones.short.epochs"),
        ({"backbone": {"hidden": 3}}, "did you mean backbones?"),
    ],
)
def test_settings_are_found_inside_their_group(changes, meant):
    with pytest.raises(InputError) as caught:
        changed(PAPER, changes)
    assert meant in str(caught.value)


def test_a_mistyped_public_name_lets_python_suggest():
    with pytest.raises(AttributeError) as caught:
        gr.solve_orcale  # noqa: B018
    assert caught.value.name == "solve_orcale" and caught.value.obj is gr
