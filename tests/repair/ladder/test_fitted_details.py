"""A fitted ladder's numbers and words, by hand."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest
import torch
from planted_graphs import LADDER, planted, planted_exposure
from toy_exposures import toy_exposure, toy_graph

from gnn_repair.errors import InputError, SplitError
from gnn_repair.repair import CrossFitted, EvidenceLadder, NodeTranslation
from gnn_repair.repair.controls import LabelPropagation, RetrainedBackbone, retrained
from gnn_repair.repair.evidence import EvidenceInputs, gather_evidence
from gnn_repair.repair.folds import deal_folds
from gnn_repair.repair.inputs import repair_inputs
from gnn_repair.repair.ladder.catalogue import RUNGS
from gnn_repair.repair.ladder.combination import BINS, RIDGE, RULES, calibration_error, stack
from gnn_repair.repair.ladder.decision import decide
from gnn_repair.repair.ladder.findings import Finding, Findings, find

SMALL = replace(
    LADDER, rungs=("summary", "summary-labels"), folds=2, budget=replace(LADDER.budget, epochs=3)
)


@pytest.fixture(scope="module")
def fitted():
    data, exposure = planted("labels", 2)[1], planted_exposure("labels", 2)
    masks = data.train_mask, data.val_mask
    return SMALL.fit(exposure, data.y, *masks, device="cpu", data=data)


def with_weights(fitted, rows):
    weights = torch.tensor(rows, dtype=torch.float64)
    return replace(fitted, constants={**fitted.constants, "weights": weights})


def test_elsewhere_the_rungs_that_can_speak_share_the_weight(fitted):
    """On another graph frozen and the summary alone speak; the others read labels of their own."""
    other = planted_exposure("nothing", 2)
    loose = fitted.unbound()
    frozen = other.frozen_logits[:, other.recipients].log_softmax(2)
    alone = loose._inductive("summary", other)
    for rows, shares in [
        ([[0.3, 0.1, 0.6], [0.2, 0.6, 0.2]], [[0.75, 0.25], [0.25, 0.75]]),
        ([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]),
    ]:
        weighed = with_weights(loose, rows)
        with pytest.warns(UserWarning, match="only frozen, summary can speak here"):
            found = weighed.logits(other)
        share = torch.tensor(shares, dtype=torch.float64).view(2, 2, 1, 1)
        mixture = (share[:, 0] * frozen + share[:, 1] * alone).log_softmax(2)
        scaled = mixture / weighed.temperature.view(-1, 1, 1)
        torch.testing.assert_close(found, scaled.log_softmax(2))


def test_its_logits_are_log_probabilities_at_its_temperature(fitted):
    exposure = planted_exposure("labels", 2)
    warm = {**fitted.constants, "temperature": torch.full((2,), 3.0, dtype=torch.float64)}
    found = replace(fitted, constants=warm).logits(exposure)
    torch.testing.assert_close(found.exp().sum(2), torch.ones_like(found[:, :, 0]))
    cold = {**warm, "temperature": torch.ones(2, dtype=torch.float64)}
    at_one = replace(fitted, constants=cold).logits(exposure)
    torch.testing.assert_close(found, (at_one / 3).log_softmax(2))


KEPT = {
    "ladder": lambda: SMALL,
    "propagation": lambda: LabelPropagation(layers=3),
    "labels in folds": lambda: CrossFitted(SMALL.rung("summary-labels"), folds=2),
}


@pytest.mark.parametrize("name", KEPT)
def test_nobody_is_answered_for_who_was_no_recipient(name):
    data, exposure = planted("labels", 1)[1], planted_exposure("labels", 1)
    known = (data.train_mask | data.val_mask)[:, 0].nonzero().view(-1)
    part = exposure.restrict(known)
    kept = KEPT[name]().fit(part, data.y, data.train_mask, data.val_mask, device="cpu", data=data)
    few = exposure.restrict(known[:5])
    torch.testing.assert_close(kept.logits(few), kept.logits(part)[:, :5])
    with pytest.raises(InputError, match="some of these recipients were not exposed"):
        kept.logits(exposure)


def test_sparse_features_are_read_as_dense_ones():
    data, exposure = planted("labels", 1)[1], planted_exposure("labels", 1)
    ladder = replace(SMALL, rungs=("summary-features",))
    masks = data.train_mask, data.val_mask
    dense = ladder.fit(exposure, data.y, *masks, device="cpu", data=data)
    sparse = copy(data)
    sparse.x = data.x.to_sparse()
    found = ladder.fit(exposure, data.y, *masks, device="cpu", data=sparse)
    assert torch.equal(found.logits(exposure), dense.logits(exposure))
    assert sparse.x.layout == torch.sparse_coo  # and left as it was


def test_it_belongs_to_its_model(fitted):
    with pytest.raises(InputError, match="other weights"):
        fitted.logits(planted_exposure("nothing", 2))


def test_who_was_right_out_of_fold(fitted):
    told, labels = fitted.constants["out_of_fold"], fitted.constants["labels"]
    right, judged = fitted.right_out_of_fold()
    data = planted("labels", 2)[1]
    assert torch.equal(judged, data.val_mask.t())
    for s in range(2):
        seen = data.val_mask[:, s]
        assert torch.equal(labels[s][seen], data.y[seen])
        for number, name in enumerate(fitted.candidates):
            said = told[s, number].argmax(1) == data.y
            assert torch.equal(right[s, number], said & seen)
            share = float((said & seen).sum() / seen.sum())
            assert float(fitted.out_of_fold[name][s]) == pytest.approx(share)


def test_its_words(fitted):
    weighed = with_weights(fitted, [[1.0, 0.0, 0.0], [0.2, 0.5, 0.3]])
    text = str(weighed).splitlines()
    assert text[0] == "Evidence ladder of 2 members, 2 folds, combined by 'weighted'"
    for line, name, weight in zip(text[2:5], weighed.candidates, (0.6, 0.25, 0.15), strict=True):
        share = 100 * float(weighed.out_of_fold[name].mean())
        best = sum(chosen == name for chosen in weighed.chosen)
        expected = [name, f"{share:.1f}", "%", f"{weight:.2f}", str(best), "of", "2"]
        assert line.split() == expected
    assert "Frozen stays as it is for 1 of 2: nothing clearly beats it." in text
    for row in weighed.findings().overall():
        sentence = str(row)
        assert sentence[0].upper() + sentence[1:] + "." in text
    assert "Frozen stays" not in str(with_weights(fitted, [[0.5, 0.5, 0]] * 2))


def test_the_stacked_weights_are_at_the_optimum_of_their_loss():
    generator = torch.Generator().manual_seed(2)
    told = torch.randn(3, 60, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (60,), generator=generator)
    told[1, torch.arange(60), labels] += 1.0
    told = told.log_softmax(2)
    weights = stack(told, labels)
    assert float(weights.sum()) == pytest.approx(1.0)

    def loss(raw):
        mixture = torch.einsum("r,rmc->mc", raw.exp() / 3, told).log_softmax(1)
        likely = mixture[torch.arange(60), labels].mean()
        return RIDGE * ((raw - raw.mean()) ** 2).mean() - likely

    # Weights are known up to a factor, which a line search finds.
    best = min(
        (weights.log() + c for c in torch.linspace(-3, 6, 9001, dtype=torch.float64)), key=loss
    )
    value = float(loss(best))
    for place in range(3):
        for step in (-0.02, 0.02):
            moved = best.clone()
            moved[place] += step
            assert float(loss(moved)) > value
    best = best.requires_grad_()
    (slope,) = torch.autograd.grad(loss(best), best)
    assert float((slope - slope.mean()).abs().max()) < 1e-4


def test_a_decision_s_nested_accuracy_counts_what_is_right():
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(3, (40,), generator=generator)
    told = torch.zeros(1, 2, 40, 3, dtype=torch.float64)
    told[0, :, torch.arange(40), labels] = 2.0
    wrong = torch.arange(40) % 4 == 0
    told[0, :, wrong] = told[0, :, wrong].roll(1, 2)
    folds = (torch.arange(40) % 5).view(1, -1)
    decision = decide(told.log_softmax(3), labels, folds, "mean", 1.0)
    assert decision[3].tolist() == [pytest.approx([0.75] * len(RULES))]


def test_errors_of_findings_are_percent():
    """Two members of four nodes, gains known by hand."""
    labels = torch.tensor([[0, 0, 1, 1]] * 2)
    told = torch.full((2, 2, 4, 2), -1.0)
    told[:, 0, :, 0] = 0.0  # Frozen says 0 of everyone
    told[:, 1, :2, 0] = 0.0
    told[0, 1, 2:, 1] = 0.0  # the rung is right about all of member 0
    told[1, 1, 2, 1] = told[1, 1, 3, 0] = 0.0
    row = find(["frozen", "summary"], told.log_softmax(3), labels, 2).of("summary")
    gains = [torch.tensor([0.0, 0, 1, 1]), torch.tensor([0.0, 0, 1, 0])]
    errors = [float((g.var(correction=0) / 4).sqrt()) for g in gains]
    assert row.gain == pytest.approx(100 * 0.375) == row.over_frozen
    assert row.error == pytest.approx(100 * sum(errors) / 2)
    assert row.deviation == pytest.approx(100 * 0.25 / 2**0.5)


def test_a_ladder_refuses_what_no_rung_can_be_built_from():
    for wrong in ({"hidden": 0}, {"dropout": 1.5}, {"budget": None}):
        with pytest.raises(InputError):
            EvidenceLadder(**wrong)


def test_which_rungs_are_fitted_in_folds():
    assert [name for name, rung in RUNGS.items() if not rung.crossed] == ["paper"]


def test_the_summary_s_first_layer_by_hand():
    graph, exposure = toy_graph(), toy_exposure("gcn")
    known = (graph.train_mask[:, :2] | graph.val_mask[:, :2]).t()
    inputs = EvidenceInputs(
        repair_inputs(exposure), 1, gather_evidence(exposure, graph.y, known, graph)
    )
    rung = RUNGS["summary-kin"](SMALL.budget, hidden=4)
    p = {**rung.initial(inputs), **rung.constants(inputs, None)}
    assert "kin.bias" not in p and "kin.weight" in p
    p["head.0.bias"] = torch.linspace(1, 2, 8, dtype=torch.float64).view(2, 4)
    tables = rung.tables(p, inputs)
    targets = torch.tensor([[3, 8], [0, 29]])
    found = rung.hidden_layer(p, inputs, tables, targets, None)
    for s in range(2):
        expected = tables[s, targets[s]] + p["head.0.bias"][s]
        expected = expected + inputs.labels_at(targets)[s] @ p["labels.weight"][s]
        expected = expected + inputs.kin_at(targets)[s] @ p["kin.weight"][s]
        torch.testing.assert_close(found[s], expected)


def test_a_rung_is_compared_with_the_one_below_it_that_was_fitted():
    labels = torch.tensor([[0, 1, 1]])
    told = torch.zeros(1, 3, 3, 2).log_softmax(3)
    both = find(["frozen", "summary", "summary-labels"], told, labels, 2)
    assert [row.above for row in both.overall()] == ["frozen", "summary"]
    alone = find(["frozen", "summary-labels"], told[:, :2], labels, 2)
    assert [row.above for row in alone.overall()] == ["frozen"]


def test_half_a_point_is_worth_advice_where_it_is_clear():
    row = Finding("summary", "frozen", None, 0.5, 0.1, 0.0, 0.2, 0.05, 0.5, 10.0)
    assert Findings((row,)).to_frame()["advice"].tolist() != [""]
    assert Findings((replace(row, gain=-0.5, nats=-0.2),)).to_frame()["advice"].tolist() == [""]


def test_a_control_diverged_where_one_of_its_models_did(monkeypatch):
    frozen, exposure = planted("labels")[0], planted_exposure("labels")
    genuine = retrained.train_backbone

    def train(*args, **kwargs):
        trained = genuine(*args, **kwargs)
        return replace(trained, diverged=torch.tensor([False, True, False]))

    monkeypatch.setattr(retrained, "train_backbone", train)
    masks = frozen.data.train_mask, frozen.data.val_mask
    found = RetrainedBackbone(folds=3).fit(
        exposure, frozen.data.y, *masks, frozen=frozen, device="cpu"
    )
    assert found.diverged.tolist() == [True]


def test_who_keeps_the_frozen_model(fitted):
    weighed = with_weights(fitted, [[1.0, 0.0, 0.0], [0.9, 0.1, 0.0]])
    assert weighed.unchanged.tolist() == [True, False]


def test_what_was_left_out_is_named():
    data, exposure = planted("labels")[1], planted_exposure("labels")
    small = replace(SMALL, rungs=("summary", "summary-features"))
    bare = data.clone()
    del bare["x"]
    masks = data.train_mask, data.val_mask
    without = small.fit(exposure, data.y, *masks, device="cpu", data=bare)
    assert "Left out, since no raw features were given (data=…): summary-features." in str(without)
    whole = small.fit(exposure, data.y, *masks, device="cpu", data=data)
    assert "Left out" not in str(whole)


def test_the_calibration_error_of_two_bins():
    """0.54 and 0.59 share one of fifteen bins, 0.54 and 0.61 do not."""
    sure = torch.tensor([[0.54, 0.46], [0.59, 0.41]], dtype=torch.float64)
    assert BINS == 15
    found = calibration_error(sure.log(), torch.tensor([0, 1]))
    assert found == pytest.approx(abs((0.54 - 1) + (0.59 - 0)) / 2)
    apart = torch.tensor([[0.54, 0.46], [0.61, 0.39]], dtype=torch.float64)
    found = calibration_error(apart.log(), torch.tensor([0, 1]))
    assert found == pytest.approx((abs(0.54 - 1) + 0.61) / 2)


def test_as_many_nodes_as_folds_are_enough():
    val = torch.zeros(1, 9, dtype=torch.bool)
    val[0, :3] = True
    assert sorted(deal_folds(val, torch.zeros(9, dtype=torch.long), 3, 0)[0][:3].tolist()) == [
        0,
        1,
        2,
    ]
    with pytest.raises(SplitError, match="has 3 nodes, too few for 4 folds"):
        deal_folds(val, torch.zeros(9, dtype=torch.long), 4, 0)


def test_one_copy_is_a_cross_fit_and_its_epochs_are_bounded():
    data, exposure = planted("labels")[1], planted_exposure("labels")
    own = NodeTranslation(hidden=4, budget=replace(SMALL.budget, epochs=2))
    fitted = CrossFitted(own, folds=2).fit(
        exposure, data.y, data.train_mask, data.val_mask, device="cpu"
    )
    repair, kept = fitted.repair, fitted.constants
    repair.check_constants(fitted)
    for epochs, fine in ((0, True), (2, True), (3, False), (-1, False)):
        held = replace(
            fitted, constants={**kept, "best_epochs": torch.full_like(kept["best_epochs"], epochs)}
        )
        if fine:
            repair.check_constants(held)
        else:
            with pytest.raises(InputError, match=r"best_epochs must lie in 0\.\.2"):
                repair.check_constants(held)


def test_which_rungs_hold_for_this_graph_only(fitted):
    text = str(fitted)
    assert "Transductive, for they read labels or features of this graph: summary-labels. " in text
    assert "falls back to frozen, summary, with a warning" in text


def test_nodes_without_any_news_get_even_shares():
    shown = torch.zeros(4, 1, 3, dtype=torch.float64)
    shown[1, 0, 2] = 1
    operator = torch.zeros(4, 4, dtype=torch.float64)
    operator[2, 1] = 1.0
    found = LabelPropagation(layers=1)._spread(operator, shown, torch.tensor([0.5]).double())
    torch.testing.assert_close(found[0, 0], torch.full((3,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(found[0, 2], torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
