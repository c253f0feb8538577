"""Cross-fitting of any repair: copies as if trained one by one, averages, files, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv
from toy_exposures import toy_exposure, toy_graph

import gnn_repair as gr
from gnn_repair.errors import InputError, SplitError
from gnn_repair.repair import CorrectAndSmooth, CrossFitted, TemperatureScaling, load_repair
from gnn_repair.repair.base import prepare
from gnn_repair.repair.controls import FeaturePerceptron
from gnn_repair.repair.cross_fitting import RoleTrainee, initial_copies, stacked, train_stack
from gnn_repair.repair.folds import Folding, Roles

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


@pytest.mark.parametrize("repair", TRAINED, ids=lambda r: type(r).__name__)
def test_a_copy_learns_what_it_would_alone(repair):
    """Each copy against a stack of one member and one copy with that copy's roles and seed."""
    exposure = toy_exposure("sage")
    method = brief(repair, dropout=0.0)
    task = prepare(exposure, DATA.y, DATA.train_mask, DATA.val_mask, None, "cpu")
    roles = Folding(folds=3).roles(task)
    together, _ = train_stack(method, task, roles)
    for s in range(2):
        for k in range(3):
            m = 3 * s + k
            one = Roles(roles.weights[m : m + 1], roles.judged[m : m + 1], 1)
            own = replace(task, exposure=exposure.member(s))
            alone, _ = train_stack(replace(method, seed=k), own, one)
            for name, value in alone.parameters.items():
                torch.testing.assert_close(
                    together.parameters[name][m], value[0], rtol=1e-7, atol=1e-9
                )
            assert together.best_epoch[m] == alone.best_epoch[0]


def test_the_loss_has_the_asked_for_shares():
    """One step of plain gradient descent written out: 20 % training nodes, 80 % the other folds."""
    exposure = toy_exposure("gcn")
    method = brief(gr.NodeTranslation(hidden=6), dropout=0.0)
    task = prepare(exposure, DATA.y, DATA.train_mask, DATA.val_mask, None, "cpu")
    roles = Folding(folds=3).roles(task)
    inputs = stacked(task.inputs, 3, None)
    p = initial_copies(method, inputs, 3)
    p["head.2.weight"] += 0.1
    logits = method.corrected(p, inputs, None, inputs.everyone, None)
    losses = -logits.log_softmax(2).gather(2, DATA.y.expand(6, -1).unsqueeze(2)).squeeze(2)
    found = (losses * roles.weights).sum(1)
    folds = Folding(folds=3).deal(task)[0]
    for s in range(2):
        for k in range(3):
            others = (folds[s] >= 0) & (folds[s] != k)
            own = losses[3 * s + k]
            expected = 0.2 * own[DATA.train_mask[:, s]].mean() + 0.8 * own[others].mean()
            torch.testing.assert_close(found[3 * s + k], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("batch", [4, 64])
def test_minibatches_carry_the_shares_with_their_nodes(batch):
    """Summed over an epoch without learning, the losses of the batches are the full batch's."""
    exposure = toy_exposure("gcn")
    task = prepare(exposure, DATA.y, DATA.train_mask, DATA.val_mask, None, "cpu")
    roles = Folding(folds=3).roles(task)
    logits = torch.randn(6, 30, 3, dtype=torch.float64)

    def predict(p, tables, targets, noise):
        return logits.gather(1, targets.unsqueeze(2).expand(-1, -1, 3))

    def total(size):
        trainee = RoleTrainee(
            {"w": torch.zeros(6, 1)}, lambda p: None, predict, predict, roles, task.labels,
            begin_step=lambda stream: None, dropout=0.0, batch_size=size, seed=0,
        )  # fmt: skip
        trainee.begin_epoch()
        steps = [trainee.losses(None) for _ in range(trainee.steps_per_epoch)]
        return torch.stack(steps).sum(0) / trainee.own_steps.view(-1)

    torch.testing.assert_close(total(batch), total(None))


@pytest.mark.parametrize(
    "repair",
    [*TRAINED, CorrectAndSmooth(layers=3), TemperatureScaling()],
    ids=lambda r: type(r).__name__,
)
def test_log_probabilities_are_averaged_and_files_come_back(repair, tmp_path):
    method = brief(repair) if hasattr(repair, "budget") else repair
    found, exposure = fitted(method), toy_exposure("sage")
    each = torch.stack([found.copy(k).logits(exposure).log_softmax(2) for k in range(3)])
    torch.testing.assert_close(found.logits(exposure), each.mean(0).log_softmax(2))
    found.save(tmp_path / "repair.safetensors")
    again = load_repair(tmp_path / "repair.safetensors")
    assert torch.equal(again.logits(exposure), found.logits(exposure))
    assert again.repair == found.repair
    # Out of fold, each validation node is told by the copy that did not learn from it.
    task = prepare(exposure, DATA.y, DATA.train_mask, DATA.val_mask, None, "cpu")
    folds = Folding(folds=3).deal(task)[0]
    for s in range(2):
        for node in DATA.val_mask[:, s].nonzero().view(-1).tolist():
            told = each[folds[s, node], s, node]
            torch.testing.assert_close(found.out_of_fold()[s, node], told, rtol=1e-3, atol=1e-3)


def test_what_reads_features_is_cross_fitted_and_holds_for_its_graph_only(tmp_path):
    found = fitted(brief(FeaturePerceptron(hidden=6)), data=DATA)
    exposure = toy_exposure("sage")
    assert found.transductive
    found.save(tmp_path / "rung.safetensors")
    again = load_repair(tmp_path / "rung.safetensors")
    assert torch.equal(again.logits(exposure), found.logits(exposure))
    moved = replace(
        exposure,
        frozen_logits=exposure.frozen_logits + 1,
        fixed_logits=exposure.fixed_logits + 1,
    )
    with pytest.raises(InputError, match="reads known labels of the graph it was fitted on"):
        found.logits(moved)
    with pytest.raises(InputError, match="no copy for other graphs"):
        found.copy(0)


def test_what_reads_features_asks_for_them():
    with pytest.raises(InputError, match=r"pass data=… with x"):
        fitted(brief(FeaturePerceptron(hidden=6)))


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
    assert not torch.equal(found.predict(exposure), exposure.frozen_logits.argmax(2))
    ladder = gr.EvidenceLadder(folds=3, hidden=6)
    ladder = replace(ladder, budget=replace(ladder.budget, epochs=2))
    told = ladder.fit(exposure, DATA.y, *masks, data=DATA, device="cpu")
    assert bool(told.logits(exposure).isfinite().all())


def test_what_cannot_be_cross_fitted_is_refused():
    with pytest.raises(InputError, match="CrossFitted takes a repair"):
        CrossFitted(3)
    with pytest.raises(InputError, match="CrossFitted takes a repair"):
        CrossFitted(CrossFitted())
    few = DATA.val_mask & (torch.arange(30) < 8).unsqueeze(1)
    with pytest.raises(SplitError, match="too few for 5 folds"):
        CrossFitted().fit(toy_exposure("sage"), DATA.y, DATA.train_mask, few, device="cpu")
