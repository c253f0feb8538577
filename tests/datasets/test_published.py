"""The real datasets against the published statistics, where their files are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from gnn_repair.catalog import DATASETS, missing_files
from gnn_repair.datasets import load_dataset
from gnn_repair.datasets.loading import check_dataset
from gnn_repair.published import published

REAL = [name for name, spec in DATASETS.items() if spec.files]


def root_with(name: str) -> Path:
    value = os.environ.get("GNN_REPAIR_DATA")
    if not value:
        pytest.skip("GNN_REPAIR_DATA is not set, so the real datasets are not at hand")
    if missing_files(DATASETS[name], Path(value)):
        pytest.skip(f"the raw files of {name} are not below GNN_REPAIR_DATA")
    return Path(value)


@pytest.mark.parametrize("name", REAL)
def test_statistics_are_the_published_ones(name: str) -> None:
    root = root_with(name)
    before = sorted(path for path in root.rglob("*"))
    finding = check_dataset(DATASETS[name], root)
    assert finding.status == "ok"
    row = published()["datasets"].get(name, {})
    for field in row.keys() & finding.figures.keys() - {"splits"}:
        assert finding.figures[field] == row[field]
    assert finding.figures["splits"] == 10
    assert sorted(path for path in root.rglob("*")) == before


@pytest.mark.parametrize(("name", "nodes"), [("actor", 93), ("chameleon", 50)])
def test_nodes_with_a_loop_of_their_own_have_two(name: str, nodes: int) -> None:
    data = load_dataset(name, root_with(name))
    loops = data.edge_index[0][data.edge_index[0] == data.edge_index[1]]
    counts = torch.bincount(loops, minlength=data.num_nodes)
    assert torch.bincount(counts).tolist() == [0, data.num_nodes - nodes, nodes]


def test_cora_is_split_class_by_class() -> None:
    data = load_dataset("cora", root_with("cora"))
    for label, count in enumerate(torch.bincount(data.y).tolist()):
        members = data.y == label
        for mask, share in zip(
            (data.train_mask, data.val_mask, data.test_mask), (0.6, 0.2, 0.2), strict=True
        ):
            assert ((mask[members].sum(dim=0) - share * count).abs() < 1).all()
    assert (data.train_mask | data.val_mask | data.test_mask).all()


def test_every_dataset_of_the_paper_is_in_the_registry() -> None:
    assert set(published()["datasets"]) <= set(DATASETS)
    assert all(name == spec.name for name, spec in DATASETS.items())
