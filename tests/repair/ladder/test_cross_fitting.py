"""Cross-fitting of any repair: what a copy learns from, averages, files, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv

import gnn_repair as gr
from gnn_repair.errors import InputError, SplitError
from gnn_repair.repair import CorrectAndSmooth, CrossFitted, FittedRepair, TemperatureScaling
from gnn_repair.repair.folds import deal_folds
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
BRIEF = {"epochs": 5, "learning_rate": 0.02, "epoch_zero": False}
TRAINED = [
    gr.SetTranslation(hidden=6),
    gr.Reweighting(hidden=6),
    gr.NodeTranslation(hidden=6),
    gr.RefitHead(),
]


def brief(repair, **changes):
    return replace(repair, budget=replace(repair.budget, **BRIEF), **changes)


def fitted(repair, backbone: str = "sage", **options):
    method = CrossFitted(repair, folds=3)
    return method.fit(
        toy_exposure(backbone), DATA.y, DATA.train_mask, DATA.val_mask, device="cpu", **options
    )


def dealt(seed: int = 0) -> torch.Tensor:
    return deal_folds(DATA.val_mask.t(), DATA.y, 3, seed)


@pytest.mark.parametrize("repair", TRAINED, ids=lambda r: type(r).__name__)
def test_a_copy_learns_from_all_folds_but_its_own(repair):
    """One epoch, so that there is none to choose: labels of fold k move every copy but the k-th."""
    method = replace(repair, budget=replace(repair.budget, epochs=1, epoch_zero=False))
    usual = fitted(method)
    for k in range(3):
        own = dealt()[0] == k
        moved = torch.where(own, (DATA.y + 1) % 3, DATA.y)
        exposure, masks = toy_exposure("sage").member(0), (DATA.train_mask, DATA.val_mask)
        # Folds are dealt by class: other labels in a fold would deal other folds.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "gnn_repair.repair.folds.deal_folds", lambda val, *rest: dealt()[: len(val)]
            )
            found = CrossFitted(method, folds=3).fit(
                exposure, moved, *(mask[:, 0] for mask in masks), device="cpu"
            )
        for copy in range(3):
            same = [
                torch.equal(value[0, copy], usual.parameters[name][0, copy])
                for name, value in found.parameters.items()
            ]
            assert all(same) == (copy == k)


@pytest.mark.parametrize(
    "repair",
    [*TRAINED, CorrectAndSmooth(layers=3), TemperatureScaling()],
    ids=lambda r: type(r).__name__,
)
def test_log_probabilities_are_averaged_and_files_come_back(repair, tmp_path):
    method = brief(repair) if hasattr(repair, "budget") else repair
    found, exposure = fitted(method), toy_exposure("sage")
    each = torch.stack([found.copy(k).member_logits(exposure).log_softmax(2) for k in range(3)])
    torch.testing.assert_close(found.member_logits(exposure), each.mean(0).log_softmax(2))
    found.save(tmp_path / "repair.safetensors")
    again = FittedRepair.load(tmp_path / "repair.safetensors")
    assert torch.equal(again.member_logits(exposure), found.member_logits(exposure))
    assert again.repair == found.repair
    # Out of fold, each validation node is told by the copy that did not learn from it.
    folds = dealt()
    for s in range(2):
        for node in DATA.val_mask[:, s].nonzero().view(-1).tolist():
            told = each[folds[s, node], s, node]
            torch.testing.assert_close(found.out_of_fold()[s, node], told, rtol=1e-3, atol=1e-3)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GCNConv(9, 8), GCNConv(8, 3)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


def test_a_model_of_one_s_own_is_cross_fitted_and_climbed():
    torch.manual_seed(0)
    exposure = gr.expose(Own().double(), DATA)
    masks = DATA.train_mask[:, 0], DATA.val_mask[:, 0]
    repair = CrossFitted(brief(gr.SetTranslation(hidden=6)), folds=3)
    found = repair.fit(exposure, DATA.y, *masks, device="cpu")
    assert not torch.equal(found.predict(exposure), exposure.frozen_logits[0].argmax(1))
    ladder = gr.EvidenceLadder(folds=3, hidden=6)
    ladder = replace(ladder, budget=replace(ladder.budget, epochs=2))
    told = ladder.fit(exposure, DATA.y, *masks, data=DATA, device="cpu")
    assert bool(told.member_logits(exposure).isfinite().all())


def test_what_cannot_be_cross_fitted_is_refused():
    with pytest.raises(InputError, match="CrossFitted takes a repair"):
        CrossFitted(3)
    with pytest.raises(InputError, match="CrossFitted takes a repair"):
        CrossFitted(CrossFitted())
    few = DATA.val_mask & (torch.arange(30) < 8).unsqueeze(1)
    with pytest.raises(SplitError, match="too few for 5 folds"):
        CrossFitted().fit(toy_exposure("sage"), DATA.y, DATA.train_mask, few, device="cpu")
