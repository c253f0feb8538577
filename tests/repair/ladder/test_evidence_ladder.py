"""The ladder finds the evidence that was planted, says so, and reads no label it must not."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.methods import NOTHING, RUNGS, rung_title
from gnn_repair.repair import EvidenceLadder
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
    val, y = planted("nothing")[1].val_mask[:, 0], planted("nothing")[1].y
    for name, told in zip(fitted.candidates, fitted.constants["out_of_fold"][0], strict=True):
        right = (told.argmax(1) == y)[val].double().mean()
        torch.testing.assert_close(fitted.out_of_fold[name], right.view(1), check_dtype=False)


def test_labels_of_training_nodes_are_read_and_of_test_nodes_none():
    """Other labels of test nodes, and labels that do not exist, change no bit."""
    data, exposure = planted("labels")[1], planted_exposure("labels")
    usual = fit(BRIEF, "labels")
    for planted_label in (data.y.flip(0), torch.tensor(-1)):
        y = torch.where(data.test_mask[:, 0], planted_label, data.y)
        other = fit(BRIEF, "labels", y=y)
        assert torch.equal(other.member_logits(exposure), usual.member_logits(exposure))
        assert torch.equal(other.weights, usual.weights) and str(other) == str(usual)
    y = torch.where(data.train_mask[:, 0], (data.y + 1) % CLASSES, data.y)
    told = [one.rung_log_probs(exposure) for one in (usual, fit(BRIEF, "labels", y=y))]
    for name in ("labels", "features-labels", "smoothed"):
        assert not torch.allclose(told[0][name], told[1][name])


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


def test_another_graph_falls_back_to_what_needs_no_labels():
    fitted, exposure = climbed("labels"), planted_exposure("labels")
    elsewhere, messages = planted_exposure("nothing"), ("messages",)
    # Fitted on messages alone, nothing but the inductive rung speaks on either graph.
    alone = replace(LADDER, rungs=messages, budget=BRIEF.budget)
    alone = fit(alone, "labels").unbound()
    weights = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    alone = replace(alone, constants={**alone.constants, "weights": weights})
    here = alone.rung_log_probs(exposure)["messages"]
    if not bool(alone.refitted):
        away = replace(
            alone, constants={**alone.constants, "signature": -alone.constants["signature"]}
        )
        with pytest.warns(UserWarning, match="only frozen, messages"):
            found = away.member_logits(exposure) * alone.temperature
        torch.testing.assert_close(found.log_softmax(2), here, rtol=1e-4, atol=1e-4)
    rest, told = [0.0] * (len(RUNGS) - 1), []
    for row in ([0.0, 1.0], [0.3, 0.1], [0.0, 0.0], [1.0, 0.0]):
        weights = torch.tensor([[*row, *rest]], dtype=torch.float64)
        weights[0, 2] = 1 - weights.sum()
        loose = replace(fitted, constants={**fitted.constants, "weights": weights}).unbound()
        with pytest.warns(UserWarning, match="only frozen, messages"):
            told.append((loose.member_logits(elsewhere) * fitted.temperature).log_softmax(2))
    frozen, there = elsewhere.frozen_logits.log_softmax(2), told[0]
    for share, found in zip((0.25, 0.5, 0.0), told[1:], strict=True):
        mixture = ((1 - share) * frozen + share * there).log_softmax(2)
        torch.testing.assert_close(found, mixture)
    with pytest.raises(InputError, match="graph they were fitted on"):
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


BAD_SETTINGS = [
    ({"rungs": ("labels", "stairs")}, "'stairs'"), ({"rungs": ()}, "no rung"),
    ({"rungs": ("smoothed",)}, "no rung"), ({"rungs": "labels"}, "rungs is 'labels'"),
    ({"rungs": ("labels", "labels")}, "twice"), ({"folds": 1}, "folds is 1"),
    ({"folds": 2.5}, "folds is 2.5"), ({"hidden": 0}, "hidden is 0"),
    ({"dropout": 1.5}, "dropout is 1.5"), ({"budget": None}, "give a Budget"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "said"), BAD_SETTINGS)
def test_settings_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        EvidenceLadder(**wrong)


def test_data_of_another_graph_is_refused():
    data, exposure = planted("features")[1], planted_exposure("features")
    smaller, larger, broken, empty, beyond = (data.clone() for _ in range(5))
    smaller.x, larger.x = data.x[:-1], torch.cat([data.x, data.x[:1]])
    broken.x = torch.full_like(data.x, float("nan"))
    empty.edge_index = None
    beyond.edge_index = torch.cat([data.edge_index, torch.tensor([[0], [240]])], 1)
    bare = copy(beyond)
    bare.x = None
    for wrong, said in (
        (smaller, "239 nodes"),
        (larger, "241 nodes"),
        (broken, "NaN"),
        (empty, "no edge_index"),
        (beyond, "241 nodes"),
        (bare, "241 nodes"),
    ):
        with pytest.raises(InputError, match=said):
            LADDER.fit(exposure, data.y, data.train_mask, data.val_mask, data=wrong, device="cpu")


def test_the_table_of_rungs_hangs_together():
    for name, rung in RUNGS.items():
        assert rung.above in {"frozen", "together", *RUNGS} and rung.above != name
        assert set(rung.rivals) <= set(RUNGS)
    assert list(RUNGS)[-1] == "smoothed"  # what combines others stands behind them
    assert len({rung.title for rung in RUNGS.values()}) == len(RUNGS)
