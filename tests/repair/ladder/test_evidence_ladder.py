"""The ladder finds the evidence that was planted, says so, and reads no label it must not."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

from gnn_repair.backbones import BACKBONES, Shape, train_backbone
from gnn_repair.budget import LADDER as BUDGET
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure import expose
from gnn_repair.methods import NOTHING, RUNGS, rung_title
from gnn_repair.repair import EvidenceLadder, FittedRepair
from gnn_repair.repair.base import repair_of
from tests.helpers.repair.planted_graphs import (
    CLASSES,
    LADDER,
    climbed,
    fit,
    planted,
    planted_exposure,
    test_accuracy,
)

BRIEF = replace(LADDER, budget=replace(LADDER.budget, epochs=5))


def test_where_the_graph_hurts_features_alone_are_chosen_and_said():
    fitted, data = climbed("features"), planted("features")[1]
    exposure = planted_exposure("features")
    assert test_accuracy(exposure.frozen_logits, data) < 0.6
    assert test_accuracy(fitted.member_logits(exposure), data) > 0.9
    assert "features" in RUNGS[fitted.chosen[0]].blocks
    finding = fitted.findings().of("features")
    assert finding.clear and finding.gain > 25 and finding.above == "frozen"
    line = next(line for line in fitted.findings().advice() if "the graph hurts" in line)
    assert f"are worth {finding.gain:.1f} points more" in line and "MLP" in line
    assert f"→ {line}" in str(fitted)


def test_labels_of_neighbours_are_found_and_the_graph_is_not_blamed():
    fitted, data = climbed("labels"), planted("labels")[1]
    exposure = planted_exposure("labels")
    said = fitted.rung_log_probs(exposure)
    assert test_accuracy(said["labels"], data) > test_accuracy(said["features"], data) + 0.3
    assert test_accuracy(fitted.member_logits(exposure), data) > 0.9
    assert not any("the graph hurts" in line for line in fitted.findings().advice())


def test_frozen_stays_where_there_is_nothing_to_gain():
    fitted, exposure = climbed("nothing"), planted_exposure("nothing")
    assert fitted.chosen == ("frozen",) and fitted.unchanged.all()
    assert fitted.weights.tolist() == [[1.0] + [0.0] * len(RUNGS)]
    scaled = exposure.frozen_logits.log_softmax(2) / fitted.temperature.view(-1, 1, 1)
    torch.testing.assert_close(fitted.member_logits(exposure), scaled.log_softmax(2))
    assert fitted.findings().advice() == (NOTHING,)
    assert "Frozen stays for 1 of 1" in str(fitted)


def test_on_noise_estimates_are_honest_and_frozen_stays():
    """Six graphs without any evidence: 150 validation nodes, three classes.

    The frozen models are trained in full, so each one's epoch was chosen by its validation labels.
    """
    rungs = ("messages", "similar", "features-labels", "smoothed")
    ladder = EvidenceLadder(rungs, hidden=8, budget=replace(BUDGET, epochs=25, patience=10))
    stays, told, true = [], [], []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        y = torch.randint(3, (450,), generator=generator)
        ends = torch.randint(450, (2, 900), generator=generator)
        masks = torch.zeros(3, 450, dtype=torch.bool)
        for mask, part in zip(
            masks, torch.randperm(450, generator=generator).split(150), strict=True
        ):
            mask[part] = True
        data = Data(
            x=torch.randn(450, 8, generator=generator),
            edge_index=torch.cat([ends, ends.flip(0)], 1).unique(dim=1),
            y=y, classes=3, train_mask=masks[0], val_mask=masks[1], test_mask=masks[2],
        )  # fmt: skip
        frozen = train_backbone(BACKBONES["gcn"](Shape(hidden=8)), data, device="cpu")
        exposure = expose(frozen)
        fitted = ladder.fit(exposure, y, masks[0], masks[1], data=data, device="cpu")
        stays.append(bool(fitted.unchanged.all()))
        assert stays[-1] == (fitted.chosen == ("frozen",))
        assert stays[-1] == (fitted.findings().advice() == (NOTHING,))
        said = fitted.rung_log_probs(exposure)
        for name in fitted.candidates[1:-1]:
            told.append(float(fitted.out_of_fold[name]))
            true.append(test_accuracy(said[name], data_of(data)))
    assert sum(stays) >= 5
    # Six graphs of 150 nodes each; rungs share them, so no more than six are independent.
    error = (1 / 3 * 2 / 3 / 900) ** 0.5
    assert abs(sum(told) / len(told) - sum(true) / len(true)) < 2 * 2**0.5 * error


def data_of(data: Data) -> Data:
    """With a column of masks, as splits have them."""
    other = copy(data)
    other.test_mask = data.test_mask.unsqueeze(1)
    return other


def many_features(seed: int = 0):
    """Forty weak features and few labels: each further one teaches something."""
    generator = torch.Generator().manual_seed(seed)
    nodes = 900
    y = torch.randint(2, (nodes,), generator=generator)
    x = torch.randn(nodes, 60, generator=generator)
    x += 0.2 * (2 * y.unsqueeze(1) - 1) * torch.randn(60, generator=generator)
    masks = torch.zeros(3, nodes, dtype=torch.bool)
    order = torch.randperm(nodes, generator=generator)
    for mask, part in zip(masks, order.split([20, 300, 580]), strict=True):
        mask[part] = True
    entries = torch.arange(nodes).expand(2, -1)
    data = Data(
        x=x, edge_index=entries, y=y, classes=2,
        train_mask=masks[0], val_mask=masks[1], test_mask=masks[2],
    )  # fmt: skip
    model = BACKBONES["gcn"](Shape(hidden=8))
    blind = copy(data)
    blind.x = torch.randn(nodes, 5, generator=generator)
    frozen = train_backbone(model, blind, device="cpu", budget=replace(model.budget, epochs=3))
    return expose(frozen), data


def test_where_more_labels_help_the_best_rung_is_fitted_on_all_of_them():
    exposure, data = many_features()
    ladder = EvidenceLadder(rungs=("messages", "features"), hidden=8, folds=3, budget=LADDER.budget)
    masks = data.train_mask, data.val_mask
    fitted = ladder.fit(exposure, data.y, *masks, data=data, device="cpu")
    assert fitted.refitted.tolist() == [True] and "More labels help" in str(fitted)
    # What it learned from is all of validation: it knows the nodes of every fold.
    known = fitted.rung_log_probs(exposure)["features"].argmax(2)[0] == data.y
    known = float(known[data.val_mask].double().mean())
    assert known > float(fitted.out_of_fold["features"]) + 0.03


@pytest.mark.parametrize("told_by", ["features", "labels"])
def test_no_label_of_a_test_node_is_read(told_by):
    """Other labels of test nodes, and labels that do not exist, change no bit."""
    data, exposure = planted(told_by)[1], planted_exposure(told_by)
    usual = fit(BRIEF, told_by)
    for planted_label in (data.y.flip(0), torch.tensor(CLASSES - 1), torch.tensor(-1)):
        y = torch.where(data.test_mask[:, 0], planted_label, data.y)
        other = fit(BRIEF, told_by, y=y)
        assert torch.equal(other.member_logits(exposure), usual.member_logits(exposure))
        assert torch.equal(other.weights, usual.weights) and str(other) == str(usual)


def test_a_label_of_a_training_node_does_matter():
    data, exposure = planted("labels")[1], planted_exposure("labels")
    y = torch.where(data.train_mask[:, 0], (data.y + 1) % CLASSES, data.y)
    told = [fit(BRIEF, "labels", y=labels).rung_log_probs(exposure) for labels in (data.y, y)]
    for name in ("labels", "features-labels", "smoothed"):
        assert not torch.allclose(told[0][name], told[1][name])


def test_a_member_of_a_stack_is_what_it_would_be_alone():
    data, exposure = planted("labels", 2)[1], planted_exposure("labels", 2)
    both = fit(BRIEF, "labels", 2)
    for s in range(2):
        masks = data.train_mask[:, s], data.val_mask[:, s]
        alone = BRIEF.fit(exposure.member(s), data.y, *masks, data=data, device="cpu")
        told = alone.rung_log_probs(exposure.member(s))
        for name, values in both.rung_log_probs(exposure).items():
            torch.testing.assert_close(values[s], told[name][0], rtol=1e-3, atol=1e-3)
        assert both.chosen[s] == alone.chosen[0]


def test_a_rung_is_what_it_would_be_alone():
    """Rungs share products and labels, and nothing that is learned."""
    exposure = planted_exposure("labels")
    together = fit(BRIEF, "labels").rung_log_probs(exposure)
    for name in ("similar", "features-labels"):
        alone = fit(replace(BRIEF, rungs=(name,)), "labels")
        if not bool(alone.refitted):
            torch.testing.assert_close(
                alone.rung_log_probs(exposure)[name], together[name], rtol=1e-3, atol=1e-3
            )
        mine, other = (f.constants["out_of_fold"] for f in (alone, fit(BRIEF, "labels")))
        place = fit(BRIEF, "labels").candidates.index(name)
        torch.testing.assert_close(mine[:, 1], other[:, place], rtol=1e-3, atol=1e-3)


# Files --------------------------------------------------------------------------------------------


def test_what_is_loaded_says_and_predicts_the_same(tmp_path):
    fitted, exposure = climbed("features"), planted_exposure("features")
    fitted.save(tmp_path / "ladder.safetensors")
    again = FittedRepair.load(tmp_path / "ladder.safetensors")
    assert torch.equal(again.member_logits(exposure), fitted.member_logits(exposure))
    assert (again.repair, str(again)) == (fitted.repair, str(fitted))
    assert again.findings() == fitted.findings()
    assert again.fingerprint == fitted.fingerprint == exposure.fingerprint != ()
    assert again.num_parameters == fitted.num_parameters > 0
    wrong = {**fitted.constants, "weights": fitted.weights + 1}
    replace(fitted, constants=wrong).save(tmp_path / "wrong.safetensors")
    with pytest.raises(FileFormatError, match="shares that sum to 1"):
        FittedRepair.load(tmp_path / "wrong.safetensors")


def test_ladders_of_version_0_2_are_to_be_fitted_again():
    old = {"rungs": ["summary"], "combine": "weighted", "clearly": 1.0, "repeats": 1}
    for name, settings in (("EvidenceLadder", old), ("SummaryKin", {})):
        with pytest.raises(InputError, match=r"version 0\.2.*fit EvidenceLadder again"):
            repair_of(name, settings)


def test_other_recipients_of_the_same_graph():
    fitted, exposure = climbed("labels"), planted_exposure("labels")
    nodes = torch.tensor([7, 3, 200])
    torch.testing.assert_close(
        fitted.member_logits(exposure.restrict(nodes)), fitted.member_logits(exposure)[:, nodes]
    )


def test_another_graph_falls_back_to_what_needs_no_labels():
    fitted, exposure = climbed("labels"), planted_exposure("labels")
    elsewhere = planted_exposure("nothing")
    with pytest.raises(InputError, match="fitted on a model with other weights"):
        fitted.member_logits(elsewhere)
    alone = fitted._inductive("messages", exposure)
    here = fitted.rung_log_probs(exposure)["messages"]
    if "messages" not in fitted.chosen:
        torch.testing.assert_close(alone, here, rtol=1e-4, atol=1e-4)
    frozen = elsewhere.frozen_logits.log_softmax(2)
    there = fitted._inductive("messages", elsewhere)
    rest = [0.0] * (len(RUNGS) - 1)
    for row, share in (([0.3, 0.1], 0.25), ([0.0, 0.0], 0.5), ([1.0, 0.0], 0.0)):
        weights = torch.tensor([[*row, *rest]], dtype=torch.float64)
        weights[0, 2] = 1 - weights.sum()
        loose = replace(fitted, constants={**fitted.constants, "weights": weights}).unbound()
        with pytest.warns(UserWarning, match="only frozen, messages can speak here"):
            found = loose.member_logits(elsewhere)
        mixture = ((1 - share) * frozen + share * there).log_softmax(2)
        expected = (mixture / fitted.temperature.view(-1, 1, 1)).log_softmax(2)
        torch.testing.assert_close(found, expected)
    with pytest.raises(InputError, match="hold for the graph they were fitted on"):
        fitted.rung_log_probs(elsewhere)


def test_nobody_is_answered_for_who_was_no_recipient():
    data, exposure = planted("labels")[1], planted_exposure("labels")
    known = (data.train_mask | data.val_mask)[:, 0].nonzero().view(-1)
    part = exposure.restrict(known)
    kept = BRIEF.fit(part, data.y, data.train_mask, data.val_mask, device="cpu", data=data)
    torch.testing.assert_close(
        kept.member_logits(exposure.restrict(known[:5])), kept.member_logits(part)[:, :5]
    )
    with pytest.raises(InputError, match="some of these recipients were not exposed"):
        kept.member_logits(exposure)


def test_without_features_what_reads_them_is_left_out_with_a_word():
    data, exposure = planted("features")[1], planted_exposure("features")
    masks = data.train_mask, data.val_mask
    fitted = BRIEF.fit(exposure, data.y, *masks, device="cpu")
    assert fitted.candidates == ("frozen", "messages", "labels", "similar", "smoothed")
    assert f"Left out, since no raw features were given (data=…): {rung_title('skip')}" in str(
        fitted
    )
    with pytest.raises(InputError, match=r"pass data=… with x"):
        replace(BRIEF, rungs=("features",)).fit(exposure, data.y, *masks, device="cpu")


def test_sparse_features_are_read_as_dense_ones():
    data, exposure = planted("labels")[1], planted_exposure("labels")
    dense = fit(BRIEF, "labels")
    sparse = copy(data)
    sparse.x = data.x.to_sparse()
    masks = data.train_mask, data.val_mask
    found = BRIEF.fit(exposure, data.y, *masks, device="cpu", data=sparse)
    assert torch.equal(found.member_logits(exposure), dense.member_logits(exposure))
    assert sparse.x.layout == torch.sparse_coo  # and left as it was


def test_settings_that_cannot_be_are_refused():
    for wrong, said in (
        ({"rungs": ("labels", "stairs")}, "'stairs'"),
        ({"rungs": ()}, "no rung"),
        ({"rungs": ("smoothed",)}, "no rung"),
        ({"rungs": "labels"}, "rungs is 'labels'"),
        ({"rungs": ("labels", "labels")}, "twice"),
        ({"folds": 1}, "folds is 1"),
        ({"folds": 2.5}, "folds is 2.5"),
        ({"hidden": 0}, "hidden is 0"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"budget": None}, "give a Budget"),
    ):
        with pytest.raises(InputError, match=said):
            EvidenceLadder(**wrong)


def test_data_of_another_graph_is_refused():
    data, exposure = planted("features")[1], planted_exposure("features")
    smaller, broken, empty = data.clone(), data.clone(), data.clone()
    smaller.x = data.x[:-1]
    broken.x = torch.full_like(data.x, float("nan"))
    empty.edge_index = None
    for wrong, said in ((smaller, "239 nodes"), (broken, "NaN"), (empty, "no edge_index")):
        with pytest.raises(InputError, match=said):
            LADDER.fit(exposure, data.y, data.train_mask, data.val_mask, data=wrong, device="cpu")


def test_the_table_of_rungs_hangs_together():
    for name, rung in RUNGS.items():
        assert rung.above in {"frozen", "together", *RUNGS} and rung.above != name
        assert set(rung.rivals) <= set(RUNGS)
    assert list(RUNGS)[-1] == "smoothed"  # what combines others stands behind them
    assert len({rung.title for rung in RUNGS.values()}) == len(RUNGS)
