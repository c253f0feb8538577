"""The built-in graph: always the same, a chain, sequential, with features that tell something."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops

from gnn_repair.catalog import DATASETS
from gnn_repair.datasets import load_dataset
from gnn_repair.datasets.checking import compare


@pytest.fixture(scope="module")
def data() -> Data:
    return load_dataset("builtin")


def test_it_is_always_the_same(data: Data) -> None:
    digest = hashlib.sha256()
    for field in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask"):
        digest.update(data[field].numpy().tobytes())
    assert digest.hexdigest() == "8d174548b9b2ab823d3deee5aded89e3e9d1019480f057cc14bd384fb523fae9"


def test_it_has_the_size_it_claims(data: Data) -> None:
    assert compare(DATASETS["builtin"], data) == []
    assert (data.name, data.classes) == ("builtin", 18)
    assert set(data.y.tolist()) == set(range(18))


def test_tokens_stand_in_a_chain_with_skip_links(data: Data) -> None:
    links, _ = remove_self_loops(data.edge_index)
    span = (links[0] - links[1]).abs()
    assert int((span == 1).sum()) == 2 * (data.num_nodes - 1)
    assert int(span.max()) <= 8
    assert int((span > 1).sum()) > 1000


def test_neighbours_differ_and_yet_predict_each_other(data: Data) -> None:
    links, _ = remove_self_loops(data.edge_index)
    homophily = (data.y[links[0]] == data.y[links[1]]).float().mean()
    assert homophily < 0.05
    follows = torch.zeros(18, 18).index_put_(
        (data.y[:-1], data.y[1:]), torch.ones(data.num_nodes - 1), accumulate=True
    )
    likeliest = follows.max(dim=1).values.sum() / follows.sum()
    assert 0.6 < likeliest < 0.9


def test_features_tell_the_class_but_not_surely(data: Data) -> None:
    train, test = data.train_mask[:, 0], data.test_mask[:, 0]
    centres = torch.stack([data.x[train & (data.y == c)].mean(dim=0) for c in range(18)])
    nearest = torch.cdist(data.x, centres).argmin(dim=1)
    accuracy = (nearest == data.y)[test].float().mean()
    assert 0.5 < accuracy < 0.85
