"""A repair worked out range by range gives the same bits, however it is spread."""

from __future__ import annotations

import pickle

import pytest
import torch

import gnn_repair as gr
from gnn_repair.backbones import train_backbone
from gnn_repair.budget import Budget
from gnn_repair.errors import GnnRepairError, InputError
from gnn_repair.repair import CorrectAndSmooth
from gnn_repair.study import LocalEngine, repaired_logits_sharded
from tests.helpers.study.tiny import tiny_graph

BUDGET = Budget(epochs=8, patience=None, learning_rate=1e-2, weight_decay=0.0)


@pytest.fixture(scope="module")
def graph():
    return tiny_graph()


@pytest.fixture(scope="module")
def exposure(graph):
    return gr.expose(train_backbone("sage", graph, [0, 1], device="cpu", budget=BUDGET))


@pytest.mark.parametrize("kind", ["SetTranslation", "Reweighting", "RefitHead", "NodeTranslation"])
def test_the_same_bits_for_any_number_of_shards(exposure, graph, kind):
    repair = getattr(gr, kind)(BUDGET)
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    fitted = pickle.loads(pickle.dumps(repair.fit(exposure, graph.y, *masks)))
    whole = fitted.member_logits(exposure)
    one = repaired_logits_sharded(fitted, exposure, shards=1, size=7)
    assert one.dtype == torch.float64
    torch.testing.assert_close(one, whole, rtol=1e-5, atol=1e-5)
    assert not torch.equal(one, exposure.frozen_logits)
    for shards in (2, 3, 50):
        assert torch.equal(repaired_logits_sharded(fitted, exposure, shards=shards, size=7), one)


def test_ranges_follow_the_recipients_not_the_nodes(exposure, graph):
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    fitted = gr.SetTranslation(BUDGET).fit(exposure, graph.y, *masks)
    part = exposure.restrict(torch.tensor([30, 2, 11, 45, 3]))
    found = repaired_logits_sharded(fitted, part, shards=2, size=2)
    whole = fitted.member_logits(exposure)[:, part.recipients]
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)  # learned in float32


def test_bad_requests(exposure, graph):
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    smooth = CorrectAndSmooth().fit(exposure, graph.y, *masks)
    with pytest.raises(InputError, match="one by one"):
        repaired_logits_sharded(smooth, exposure, shards=2)


def test_a_failed_shard_is_said(exposure, graph, monkeypatch):
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    fitted = gr.RefitHead(BUDGET).fit(exposure, graph.y, *masks)

    def broken(self, exposure):
        raise ValueError("no more memory")

    monkeypatch.setattr(type(fitted), "member_logits", broken)
    with pytest.raises(GnnRepairError, match="no more memory"):
        repaired_logits_sharded(fitted, exposure, shards=2, engine=LocalEngine())
