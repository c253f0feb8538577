"""Repairs of several labels a node: their loss, what is selected, what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.nn import SAGEConv

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.datasets import planted_labels
from gnn_repair.errors import InputError
from gnn_repair.f1 import f1_of, micro_scores
from gnn_repair.repair.targets import label_likelihood

BUDGET = Budget(epochs=60, patience=None, learning_rate=1e-2, weight_decay=0.0)
FEW = Budget(epochs=3, patience=None, learning_rate=1e-2, weight_decay=0.0)
REPAIRS = [gr.Reweighting, gr.SetTranslation, gr.NodeTranslation, gr.RefitHead]


class Ear(nn.Module):
    """Listens to its neighbours evenly, then reads every label off with a linear head."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.conv = SAGEConv(labels, labels, root_weight=False, bias=False)
        self.head = nn.Linear(labels, labels)
        for weight in (self.conv.lin_l.weight, self.head.weight):
            nn.init.eye_(weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x, edge_index):
        return self.head(self.conv(x, edge_index))


@pytest.fixture(scope="module")
def data():
    return planted_labels(nodes=240, labels=4)


@pytest.fixture(scope="module")
def exposure(data):
    return gr.expose(Ear(4), data)


def test_the_planted_evidence_is_what_is_within_reach(data, exposure):
    solution = gr.solve(exposure, torch.ones(240, 4))
    assert (solution.reachable.reshape(240, 4) == data.evidence.numpy()).all()
    lost = data.y & ~data.evidence
    assert lost.any()
    assert not solution.reachable.reshape(240, 4)[lost.numpy()].any()


def test_reweighting_recovers_what_was_planted_and_stays_within_reach(data, exposure):
    fitted = gr.Reweighting(budget=BUDGET).fit(
        exposure, data.y, data.train_mask, data.val_mask, device="cpu"
    )
    logits = exposure.frozen_logits, fitted.member_logits(exposure)
    before, after = (f1_of(z[0, data.test_mask] > 0, data.y[data.test_mask]).micro for z in logits)
    assert before < 0.35
    assert after > before + 0.3
    reach = gr.solve(exposure, data.y)
    right = fitted.predict(exposure).numpy() == data.y.numpy()
    assert not (right & ~reach.reachable.reshape(240, 4)).any()


def test_the_loss_is_binary_cross_entropy_over_known_labels():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 3, generator=draw)
    truths = (torch.rand(2, 5, 3, generator=draw) > 0.5).double()
    told = nn.functional.binary_cross_entropy_with_logits(
        logits, truths.float(), reduction="none"
    ).mean(2)
    assert torch.allclose(-label_likelihood(logits, truths), told, atol=1e-6)
    truths[0, 0, 1] = float("nan")
    own = nn.functional.binary_cross_entropy_with_logits(
        logits[0, 0, [0, 2]], truths[0, 0, [0, 2]].float()
    )
    assert float(-label_likelihood(logits, truths)[0, 0]) == pytest.approx(float(own))
    truths[0, 0] = float("nan")
    assert float(label_likelihood(logits, truths)[0, 0]) == 0


def test_selection_is_by_micro_f1_of_each_members_own_targets():
    truths = torch.tensor([[[1.0, 0], [1, 1], [float("nan"), 0]]]).expand(2, -1, -1)
    predicted = torch.tensor([[[True, True], [True, False], [True, False]]]).expand(2, -1, -1)
    real = torch.tensor([[True, True, True], [True, False, False]])
    assert micro_scores(predicted, truths, real).tolist() == pytest.approx([4 / 6, 2 / 3])
    false = torch.tensor([[[True, False], [False, False]]])
    everyone = torch.ones(1, 2, dtype=torch.bool)
    assert micro_scores(false, torch.zeros(1, 2, 2), everyone).tolist() == [0.0]
    nothing = torch.zeros(1, 2, 2)
    assert micro_scores(nothing.bool(), nothing, everyone).tolist() == [1.0]


@pytest.mark.parametrize("kind", REPAIRS)
def test_every_repair_learns_keeps_and_serves(kind, data, exposure, tmp_path):
    fitted = kind(budget=FEW).fit(
        exposure, data.y, data.train_mask, data.val_mask, device="cpu", batch_size=50
    )
    assert fitted.outputs == "labels"
    assert "labels" in repr(fitted)
    assert "validation micro-F1" in repr(fitted)
    val = fitted.predict(exposure)[data.val_mask]
    score = f1_of(val, data.y[data.val_mask].double())
    assert fitted.f1[0] == pytest.approx((score.micro, score.macro), abs=1e-6)
    assert fitted.to_frame()["micro_f1"].tolist() == [fitted.f1[0][0]]
    fitted.save(tmp_path / "repair")
    again = gr.FittedRepair.load(tmp_path / "repair")
    assert again.f1 == fitted.f1
    assert torch.equal(again.member_logits(exposure), fitted.member_logits(exposure))
    module = gr.repaired(Ear(4), fitted)
    served = module(data.x, data.edge_index)
    assert torch.allclose(served.double(), fitted.member_logits(exposure)[0], atol=1e-5)
    changes = module.changes(data.x, data.edge_index)
    moved = (served > 0) != (exposure.frozen_logits[0] > 0)
    assert len(changes) == int(moved.sum())
    if len(changes):
        first = changes.iloc[0]
        assert bool(moved[first["node"], first["label"]])


def test_a_shift_of_labels_is_not_centred(data, exposure):
    fitted = gr.SetTranslation(budget=FEW).fit(
        exposure, data.y, data.train_mask, data.val_mask, device="cpu"
    )
    assert fitted.shift(exposure).sum(2).abs().max() > 1e-3


def test_one_label_alone_can_be_repaired(data):
    class First(Ear):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index)[:, 0]

    y = data.y[:, 0]
    exposure = gr.expose(First(4), data, outputs="labels")
    fitted = gr.SetTranslation(budget=BUDGET).fit(
        exposure, y, data.train_mask, data.val_mask, device="cpu"
    )
    logits, test = (exposure.frozen_logits, fitted.member_logits(exposure)), data.test_mask
    before, after = (f1_of(z[0, test] > 0, y[test, None]) for z in logits)
    assert after.micro > before.micro + 0.2
    assert after.micro == pytest.approx(after.macro)


def test_a_model_of_probabilities_is_served_with_probabilities(data, exposure):
    class Squashed(Ear):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index).sigmoid()

    squashed = gr.expose(Squashed(4), data)
    assert torch.allclose(squashed.frozen_logits, exposure.frozen_logits, atol=1e-5)
    masks = (data.train_mask, data.val_mask)
    plain = gr.RefitHead(budget=FEW).fit(exposure, data.y, *masks, device="cpu")
    fitted = gr.RefitHead(budget=FEW).fit(squashed, data.y, *masks, device="cpu")
    served = gr.repaired(Squashed(4), fitted)(data.x, data.edge_index)
    other = gr.repaired(Ear(4), plain)(data.x, data.edge_index)
    assert torch.allclose(served, other.sigmoid(), atol=1e-4)
    again = gr.repaired(Squashed(4), fitted)
    assert torch.equal(again(data.x, data.edge_index), again(data.x, data.edge_index))


def test_unknown_labels_are_not_learned_from(data, exposure):
    y = data.y.double()
    y[data.train_mask] = float("nan")
    with pytest.raises(InputError, match="no node of train of member 0 has a known label"):
        gr.SetTranslation(budget=FEW).fit(exposure, y, data.train_mask, data.val_mask, device="cpu")
    y = data.y.double()
    y[:, 2] = float("nan")
    fitted = gr.SetTranslation(budget=FEW)
    with pytest.warns(UserWarning, match="no training node has label 2"):
        fitted.fit(exposure, y, data.train_mask, data.val_mask, device="cpu")


def test_what_does_not_fit_is_refused_by_name(data, exposure):
    masks = (data.train_mask, data.val_mask)
    with pytest.raises(InputError, match="outputs are labels, which this repair cannot learn"):
        gr.EvidenceLadder().fit(exposure, data.y, *masks)
    with pytest.raises(InputError, match="outputs are labels, which this repair cannot learn"):
        gr.CrossFitted().fit(exposure, data.y, *masks)
    with pytest.raises(InputError, match="outputs are values"):
        gr.Reweighting().fit(replace(exposure, outputs="values"), data.y, *masks)
    with pytest.raises(InputError, match=r"y has shape \[240\] instead of \[240, 4\]"):
        gr.Reweighting().fit(exposure, data.y[:, 0], *masks)
    fitted = gr.SetTranslation(budget=FEW).fit(exposure, data.y, *masks, device="cpu")
    with pytest.raises(InputError, match="fitted with outputs that are labels"):
        fitted.member_logits(replace(exposure, outputs="classes"))


def test_the_likelihood_of_one_known_label_is_its_own():
    logits = torch.tensor([[[2.0, -1.0, 0.5]]], dtype=torch.float64)
    truths = torch.tensor([[[1.0, float("nan"), float("nan")]]], dtype=torch.float64)
    expected = torch.nn.functional.logsigmoid(logits[0, 0, 0])
    assert float(label_likelihood(logits, truths)) == pytest.approx(float(expected))
    assert float(label_likelihood(logits, truths * float("nan"))) == 0
