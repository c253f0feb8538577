"""The sharded oracle gives the very same answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnn_repair.backbones import train_backbone
from gnn_repair.budget import Budget
from gnn_repair.errors import GnnRepairError
from gnn_repair.exposure import expose
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve
from gnn_repair.study import LocalEngine, solve_oracle_sharded
from gnn_repair.study.engine import Failure
from tests.helpers.study.tiny import tiny_graph

ARRAYS = [name for name, kind in Solution.__annotations__.items() if kind != "int"]
ARRAYS = [name for name in ARRAYS if name not in ("skipped", "method", "reasons")]


@pytest.fixture(scope="module")
def graph():
    return tiny_graph()


@pytest.fixture(scope="module")
def exposure(graph):
    budget = Budget(epochs=10, patience=None, learning_rate=1e-2, weight_decay=0.0)
    return expose(train_backbone("h2gcn", graph, [0, 1], device="cpu", budget=budget))


def same(found: Solution, expected: Solution) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert found.skipped == expected.skipped


@pytest.mark.parametrize("shards", [1, 2, 7, 200])
def test_masks_by_member(exposure, graph, shards):
    nodes = graph.test_mask[:, :2]
    found = solve_oracle_sharded(exposure, graph.y, nodes, shards=shards)
    same(found, solve(exposure, graph.y, nodes))
    assert found.check(exposure).ok


def test_all_nodes_and_all_classes(exposure):
    same(solve_oracle_sharded(exposure, "all", shards=3), solve(exposure, "all"))


def test_unlabelled_nodes_are_skipped_and_counted(exposure, graph):
    y = graph.y.clone()
    y[:30] = -1
    for nodes in (None, graph.test_mask[:, 0], graph.val_mask[:, :2]):
        found = solve_oracle_sharded(exposure, y, nodes, shards=4)
        same(found, solve(exposure, y, nodes))


def test_a_restricted_exposure(exposure, graph):
    part = exposure.restrict(torch.tensor([50, 3, 17, 20, 4]))
    same(solve_oracle_sharded(part, graph.y, shards=2), solve(part, graph.y))


def test_a_failed_shard_is_an_error(exposure, graph):
    class Broken(LocalEngine):
        def map(self, work, tasks, shared=None, tell=None):
            for task in tasks:
                yield task, Failure("lost", "")

    with pytest.raises(GnnRepairError, match="a shard of the oracle failed: lost"):
        solve_oracle_sharded(exposure, graph.y, shards=2, engine=Broken())
