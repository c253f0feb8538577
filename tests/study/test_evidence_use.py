"""Counts of errors fixed and of shifts inside D_v, on planted predictions and planted shifts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.backbones import train_backbone
from gnn_repair.backbones.architectures import GCN
from gnn_repair.backbones.base import Shape
from gnn_repair.exposure import expose
from gnn_repair.methods import FROZEN, RUNGS
from gnn_repair.repair import Reweighting, SetTranslation
from gnn_repair.repair.adapters import FittedTranslation
from gnn_repair.study import PAPER, override
from gnn_repair.study.measures import (
    errors_fixed,
    further_scores,
    shifts_inside,
    solve_displacements,
)
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.repair.planted_graphs import climbed, planted, planted_exposure
from tests.helpers.study.tiny import TINY, tiny_graph

SETTINGS = override(PAPER, TINY)


def test_only_reachable_errors_of_test_nodes_count():
    y = torch.tensor([0, 1, 2, 0, 1])
    #                             fixed     fixed     not reachable, not test, still wrong
    predicted = torch.tensor([[0, 1, 2, 0, 0], [0, 0, 0, 0, 0]])
    wrong = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 0, 1]]).bool()
    test = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1]]).bool().t()
    counted = errors_fixed(predicted, y, wrong, test)
    assert counted == [{"reachable_errors_fixed": 2}, {"reachable_errors_fixed": 1}]
    assert errors_fixed(predicted, y, None, test) == [{}, {}]


@pytest.fixture(scope="module")
def exposure():
    frozen = train_backbone(
        GCN(Shape(8, 2, 0.5)), tiny_graph(), (0, 1), device="cpu",
        budget=SETTINGS.backbones.short,
    )  # fmt: skip
    return expose(frozen)


def fitted(repair, exposure):
    data = tiny_graph()
    masks = data.train_mask[:, :2], data.val_mask[:, :2]
    return repair.fit(exposure, data.y, *masks, device="cpu")


def test_planted_shifts(exposure, monkeypatch):
    """Zero is inside, a shift beyond all contributions outside; the frozen rule has no shift."""
    repair = SetTranslation(budget=SETTINGS.repairs.set_translation, hidden=8)
    found = replace(fitted(repair, exposure), best_epoch=torch.tensor([3, 3]))
    far = torch.tensor([2e3, -1e3, -1e3])
    shift = torch.zeros(2, exposure.num_recipients, 3)
    shift[0, ::2] = far
    shift[1, 10:] = far
    shift[1, 0] = torch.nan
    monkeypatch.setattr(FittedTranslation, "shift", lambda self, exposure: shift.clone())
    test = torch.zeros(60, 2, dtype=torch.bool)
    test[:10, 0] = True
    test[:16, 1] = True
    counts = {"shifts_undecided": 0}
    assert shifts_inside(found, exposure, test) == [
        {"shifts": 10, "shifts_inside": 5, **counts},
        {"shifts": 15, "shifts_inside": 9, **counts},
    ]
    kept = replace(found, best_epoch=torch.tensor([0, 3]))
    assert shifts_inside(kept, exposure, test)[0] == {}
    assert shifts_inside(kept, exposure, test)[1]["shifts"] == 15
    nothing = replace(found, best_epoch=torch.tensor([0, 0]))
    assert shifts_inside(nothing, exposure, test) == [{}, {}]


def test_shifts_are_judged_at_their_own_member_s_scale(monkeypatch):
    """One message per node moves nothing, so a shift is as far away as it is long."""
    table = np.array([[1.0, -1.0, 0.0]] * 4)
    one = exposure_of(Numbers(np.ones((4, 1), np.int64), np.ones(4), table, np.zeros((4, 3))))
    large = {"coefficients": 1000, "frozen_logits": 1000, "contributions": 1, "fixed_logits": 1}
    both = {n: torch.cat([getattr(one, n), k * getattr(one, n)]) for n, k in large.items()}
    pair, shift = replace(one, **both), torch.tensor([5.0, -5.0, 0.0]).expand(2, 4, 3)
    monkeypatch.setattr("gnn_repair.study.measures.REALIZABLE", 1e-2)
    everyone = torch.ones(4, 2, dtype=torch.bool)
    found = solve_displacements(pair, shift, everyone)
    assert found.inside.tolist() == [False] * 4 + [True] * 4
    for s in range(2):
        alone = solve_displacements(pair.member(s), shift[:1], everyone[:, :1])
        assert (alone.inside == found.inside[found.member == s]).all()


def test_other_methods_have_no_shifts(exposure):
    repair = Reweighting(budget=SETTINGS.repairs.reweighting, hidden=8)
    everyone = torch.ones(60, 2, dtype=torch.bool)
    assert shifts_inside(fitted(repair, exposure), exposure, everyone) == [{}, {}]


def test_without_similar_is_without_every_candidate_that_reads_similar_nodes():
    """All weight on one candidate after another: what is left to judge without similar nodes."""
    data, held = planted("labels")[1], planted_exposure("labels")
    fitted = climbed("labels")
    assert "smoothed" in fitted.candidates  # a combination of those before it
    for place, name in enumerate(fitted.candidates):
        weights = torch.zeros_like(fitted.weights)
        weights[:, place] = 1
        one = replace(fitted, constants={**fitted.constants, "weights": weights})
        (found,) = further_scores(one, held, data.y, data.test_mask)
        if name == "smoothed" or (name != FROZEN and "similar" in RUNGS[name].blocks):
            assert "test without similar" not in found
        else:
            assert found["test without similar"] == found[f"test {name}"]
