"""A mistyped name is answered with the one that was meant."""

from __future__ import annotations

import pytest

import gnn_repair as gr
from gnn_repair.errors import InputError, closest, suggestion
from gnn_repair.oracle.baseline import load_baseline
from gnn_repair.results.protocol import changed
from gnn_repair.results.records import chosen_methods
from gnn_repair.results.tables import make_tables
from gnn_repair.study import PAPER


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("gnc", "gcn"), ("GCN", "gcn"), ("scg", "sgc"), ("gatv", "gatv2"), ("mixhopp", "mixhop")],
)
def test_letters_that_changed_places_count_as_the_nearest(typed, meant):
    assert closest(typed, gr.BACKBONES) == meant


def test_nothing_near_lists_all():
    assert closest("transformer", ["gcn", "gat"]) is None
    assert suggestion("transformer", ["gcn", "gat"]) == "choose from gcn, gat"


@pytest.mark.parametrize("typed", ["rewieghting", "reweight", "Reweighting"])
def test_methods(typed):
    with pytest.raises(InputError, match="did you mean 'reweighting'"):
        chosen_methods([typed])


def test_tables():
    with pytest.raises(InputError, match="did you mean 'repair-accuracy'"):
        make_tables([], ["repair-acuracy"])


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


def test_a_missing_baseline_says_how_to_write_one(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read: .*gnn-repair check --save"):
        load_baseline(tmp_path / "none.json")


def test_a_mistyped_public_name_lets_python_suggest():
    with pytest.raises(AttributeError) as caught:
        gr.solve_orcale  # noqa: B018
    assert caught.value.name == "solve_orcale" and caught.value.obj is gr
