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


# A repair worked out range by range gives the same bits, however it is spread.

BUDGET = Budget(epochs=8, patience=None, learning_rate=1e-2, weight_decay=0.0)


@pytest.fixture(scope="module")
def exposure_sharded_repair(graph):
    return gr.expose(train_backbone("sage", graph, [0, 1], device="cpu", budget=BUDGET))


@pytest.mark.parametrize("kind", ["SetTranslation", "Reweighting", "RefitHead", "NodeTranslation"])
def test_the_same_bits_for_any_number_of_shards(exposure_sharded_repair, graph, kind):
    repair = getattr(gr, kind)(BUDGET)
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    fitted = pickle.loads(pickle.dumps(repair.fit(exposure_sharded_repair, graph.y, *masks)))
    whole = fitted.member_logits(exposure_sharded_repair)
    one = repaired_logits_sharded(fitted, exposure_sharded_repair, shards=1, size=7)
    assert one.dtype == torch.float64
    torch.testing.assert_close(one, whole, rtol=1e-5, atol=1e-5)
    assert not torch.equal(one, exposure_sharded_repair.frozen_logits)
    for shards in (2, 3, 50):
        assert torch.equal(
            repaired_logits_sharded(fitted, exposure_sharded_repair, shards=shards, size=7), one
        )


def test_ranges_follow_the_recipients_not_the_nodes(exposure_sharded_repair, graph):
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    fitted = gr.SetTranslation(BUDGET).fit(exposure_sharded_repair, graph.y, *masks)
    part = exposure_sharded_repair.restrict(torch.tensor([30, 2, 11, 45, 3]))
    found = repaired_logits_sharded(fitted, part, shards=2, size=2)
    whole = fitted.member_logits(exposure_sharded_repair)[:, part.recipients]
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)  # learned in float32


def test_bad_requests(exposure_sharded_repair, graph):
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    smooth = CorrectAndSmooth().fit(exposure_sharded_repair, graph.y, *masks)
    with pytest.raises(InputError, match="one by one"):
        repaired_logits_sharded(smooth, exposure_sharded_repair, shards=2)


def test_a_failed_shard_is_said(exposure_sharded_repair, graph, monkeypatch):
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    fitted = gr.RefitHead(BUDGET).fit(exposure_sharded_repair, graph.y, *masks)

    def broken(self, exposure_sharded_repair):
        raise ValueError("no more memory")

    monkeypatch.setattr(type(fitted), "member_logits", broken)
    with pytest.raises(GnnRepairError, match="no more memory"):
        repaired_logits_sharded(fitted, exposure_sharded_repair, shards=2, engine=LocalEngine())
