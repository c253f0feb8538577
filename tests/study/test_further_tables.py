"""The best in bold, the exposure table's words, what can be left out of tables."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from gnn_repair.backbones import BACKBONES, Shape, train_backbone
from gnn_repair.budget import Budget
from gnn_repair.exposure import expose
from gnn_repair.published import BACKBONE_WORDS
from gnn_repair.results.averages import (
    Figure,
    mark_best,
    without_published,
    without_spread,
)
from gnn_repair.results.rendering import facts
from gnn_repair.study import RENDERERS, make_tables
from tests.helpers.study.planted_records import make_record

PLACE = ("gcn", "cora")


@pytest.mark.parametrize(
    ("frozen", "reweighting", "translation", "best"),
    [
        (80.0, 81.0, 82.0, "set_translation"),
        (80.0, 82.0, 81.0, "reweighting"),
        (80.0, 80.04, 80.01, "reweighting"),  # the paper's rounded ties are bold too
        (80.0, 80.0, 79.0, None),
        (80.0, 79.0, 79.5, None),
        (80.0, 81.0, 81.0, "reweighting"),  # the first of equals
    ],
)
def test_the_best_repair_is_marked_where_it_improves(frozen, reweighting, translation, best):
    repairs = {
        "reweighting": {PLACE: Figure(reweighting)},
        "set_translation": {PLACE: Figure(translation)},
    }
    marked = mark_best(repairs, {PLACE: Figure(frozen)})
    assert [name for name, cells in marked.items() if cells[PLACE].best] == ([best] if best else [])


@pytest.fixture(scope="module")
def tiny():
    generator = torch.Generator().manual_seed(0)
    ends = torch.arange(6)
    edges = torch.stack([ends, (ends + 1) % 6])
    part = [(ends // 2 == k).unsqueeze(1) for k in range(3)]
    return Data(
        x=torch.randn(6, 5, generator=generator),
        edge_index=torch.cat([edges, edges.flip(0), torch.stack([ends, ends])], dim=1),
        y=ends % 2,
        train_mask=part[0],
        val_mask=part[1],
        test_mask=part[2],
    )


@pytest.mark.parametrize("name", list(BACKBONES))
def test_the_exposure_tables_words_are_those_of_the_architecture(name, tiny):
    backbone = BACKBONES[name](Shape(hidden=8, heads=2))
    frozen = train_backbone(backbone, tiny, [0], device="cpu", budget=Budget(1, None, 1e-2, 0.0))
    exposure, words = expose(frozen), BACKBONE_WORDS[name]
    assert exposure.num_groups == words.groups
    assert exposure.fixed == words.fixed
    assert words.coefficient == type(backbone).rule
    assert exposure.root is ("root" in words.fixed)
    both = [make_record("cora", backbone, 0) for backbone in (name, "mine")]
    told = {(f["row"], f["column"]): f for f in facts(make_tables(both, ["readout-exposure"]))}
    assert told[name, "groups"]["text"] == str(exposure.num_groups)
    assert told["mine", "groups"]["text"] == "–"


def test_published_values_and_deviations_can_be_left_out():
    records = [make_record("cora", "gcn", k, test) for k, test in enumerate((0.5, 0.6))]
    tables = make_tables(records)
    own = RENDERERS["markdown"](without_published(table) for table in tables)
    assert "published" not in own
    assert "88.1" not in own
    assert "!" not in own
    assert "| GCN | 55.0 ± 7.1 |" in own
    bare = RENDERERS["markdown"](without_spread(without_published(table)) for table in tables)
    assert "±" not in bare
    assert "| GCN | 55.0 |" in bare
