"""Work that is spread range by range gives the very same answer."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import gnn_repair as gr
from gnn_repair.backbones import train_backbone
from gnn_repair.budget import Budget
from gnn_repair.errors import GnnRepairError, InputError
from gnn_repair.exposure import expose
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve
from gnn_repair.repair import CorrectAndSmooth
from gnn_repair.study import LocalEngine, repaired_logits_sharded, solve_oracle_sharded
from gnn_repair.study.engine import Failure
from tests.helpers.study.tiny import tiny_graph

# The sharded oracle gives the very same answer.

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


def test_all_classes_unlabelled_nodes_and_a_restricted_exposure(exposure, graph):
    """What is unlabelled is skipped and counted."""
    same(solve_oracle_sharded(exposure, "all", shards=3), solve(exposure, "all"))
    y = graph.y.clone()
    y[:30] = -1
    for nodes in (None, graph.test_mask[:, 0], graph.val_mask[:, :2]):
        same(solve_oracle_sharded(exposure, y, nodes, shards=4), solve(exposure, y, nodes))
    part = exposure.restrict(torch.tensor([50, 3, 17, 20, 4]))
    same(solve_oracle_sharded(part, graph.y, shards=2), solve(part, graph.y))


# A repair worked out range by range gives the same bits, however it is spread.

BUDGET = Budget(epochs=8, patience=None, learning_rate=1e-2, weight_decay=0.0)


@pytest.fixture(scope="module")
def sage(graph):
    return expose(train_backbone("sage", graph, [0, 1], device="cpu", budget=BUDGET))


def fitted(repair, exposure, graph):
    return repair.fit(exposure, graph.y, graph.train_mask[:, :2], graph.val_mask[:, :2])


@pytest.mark.parametrize("kind", ["SetTranslation", "Reweighting", "RefitHead", "NodeTranslation"])
def test_the_same_bits_for_any_number_of_shards(sage, graph, kind):
    repair = pickle.loads(pickle.dumps(fitted(getattr(gr, kind)(BUDGET), sage, graph)))
    one = repaired_logits_sharded(repair, sage, shards=1, size=7)
    assert one.dtype == torch.float64
    torch.testing.assert_close(one, repair.member_logits(sage), rtol=1e-5, atol=1e-5)
    assert not torch.equal(one, sage.frozen_logits)
    for shards in (2, 3, 50):
        assert torch.equal(repaired_logits_sharded(repair, sage, shards=shards, size=7), one)
    # Ranges follow the recipients, not the nodes.
    part = sage.restrict(torch.tensor([30, 2, 11, 45, 3]))
    found = repaired_logits_sharded(repair, part, shards=2, size=2)
    whole = repair.member_logits(sage)[:, part.recipients]
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)  # learned in float32


class Broken(LocalEngine):
    def map(self, work, tasks, shared=None, tell=None):
        for task in tasks:
            yield task, Failure("no more memory", "")


def test_a_failed_shard_is_an_error_and_what_looks_at_many_nodes_is_refused(sage, graph):
    with pytest.raises(GnnRepairError, match="no more memory"):
        solve_oracle_sharded(sage, graph.y, shards=2, engine=Broken())
    head = fitted(gr.RefitHead(BUDGET), sage, graph)
    with pytest.raises(GnnRepairError, match="no more memory"):
        repaired_logits_sharded(head, sage, shards=2, engine=Broken())
    smooth = fitted(CorrectAndSmooth(), sage, graph)
    with pytest.raises(InputError, match="one by one"):
        repaired_logits_sharded(smooth, sage, shards=2)
