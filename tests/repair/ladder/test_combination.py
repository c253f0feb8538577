"""Weights, nested estimates, comparisons and calibration on planted log-probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from gnn_repair.repair.ladder.combination import (
    BINS,
    RULES,
    accuracies,
    calibration_error,
    choose,
    compare,
    likelihoods,
    mixed,
    nested,
    stack,
    temperature,
    weigh,
)
from gnn_repair.repair.ladder.decision import decide

NODES, CLASSES = 600, 4
GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(CLASSES, (NODES,), generator=GENERATOR)


def teller(strength: float, seed: int) -> torch.Tensor:
    """Log-probabilities that favour the label by ``strength``, up to noise; [m, C]."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(NODES, CLASSES, generator=generator, dtype=torch.float64)
    logits[torch.arange(NODES), LABELS] += strength
    return logits.log_softmax(1)


TOLD = torch.stack([teller(0.3, 1), teller(1.5, 2), teller(1.5, 3), teller(0.0, 4)])


def test_choosing_and_weighing_follow_the_accuracies():
    found = accuracies(TOLD, LABELS)
    for place, told in enumerate(TOLD):
        expected = sum(int(t.argmax()) == int(y) for t, y in zip(told, LABELS, strict=True))
        assert float(found[place]) == expected / NODES
    assert choose(TOLD, LABELS).tolist() == [float(i == int(found.argmax())) for i in range(4)]
    weights = weigh(TOLD, LABELS)
    ratio = math.exp(100 * float(found[1] - found[2]))
    assert float(weights[1] / weights[2]) == pytest.approx(ratio)
    assert float(weights.sum()) == pytest.approx(1)


def test_of_equally_good_candidates_the_one_that_reads_least_is_chosen():
    assert choose(torch.stack([TOLD[1], TOLD[1], TOLD[0]]), LABELS).tolist() == [1, 0, 0]


def test_stacking_finds_the_tellers_and_leaves_out_noise():
    weights = stack(TOLD, LABELS)
    assert float(weights.sum()) == pytest.approx(1)
    assert float(weights[1]) > 0.3 and float(weights[2]) > 0.3
    assert float(weights[3]) < 0.1
    # Two independent tellers together beat each of them.
    together = likelihoods(mixed(TOLD, weights), LABELS).mean()
    assert all(float(together) > float(likelihoods(told, LABELS).mean()) for told in TOLD)


@pytest.mark.parametrize("rule", list(RULES))
def test_a_nested_estimate_does_not_see_the_label_it_is_asked_about(rule):
    folds = torch.arange(NODES) % 5
    usual = nested(RULES[rule], TOLD, LABELS, folds)
    for fold in range(5):
        changed = torch.where(folds == fold, (LABELS + 1) % CLASSES, LABELS)
        other = nested(RULES[rule], TOLD, changed, folds)
        assert torch.equal(other[folds == fold], usual[folds == fold])


def test_comparisons_are_paired():
    mine, other = torch.tensor([1.0, 1, 0, 1, 1]), torch.tensor([1.0, 0, 0, 0, 1])
    found = compare(mine, other)
    assert found.gain == pytest.approx(0.4)
    assert found.error == pytest.approx(math.sqrt((2 / 5 - 0.16) / 5))
    assert found.clear(1.0) and not found.clear(2.0)
    assert not compare(mine, mine).clear(0.0)
    assert not compare(other, mine).clear(0.0)


def test_the_temperature_is_recovered():
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(4000, CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    for planted in (0.4, 1.0, 3.0):
        assert temperature(logits * planted, labels) == pytest.approx(planted, rel=0.12)
    # Scaling is undone before likelihoods are compared.
    torch.testing.assert_close(
        likelihoods(logits * 3, labels), likelihoods(logits, labels), rtol=0.1, atol=0.1
    )


def test_the_calibration_error_by_hand():
    sure = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    # Bin of 0.9: confidence 0.9, accuracy 2/3, three nodes; bin of 0.6: 0.6 and 1.
    expected = (3 * abs(0.9 - 2 / 3) + abs(0.6 - 1)) / 4
    assert int(0.9 * BINS) != int(0.6 * BINS)
    assert calibration_error(sure.log(), labels) == pytest.approx(expected)


def folds_of(members: int) -> torch.Tensor:
    return (torch.arange(NODES) % 5).expand(members, -1)


def test_frozen_keeps_the_weight_unless_it_is_clearly_beaten():
    good, bad = torch.stack([TOLD[0], TOLD[1]]), torch.stack([TOLD[1], TOLD[0]])
    same = torch.stack([TOLD[1], TOLD[1]])
    for rule in RULES:
        found = decide(torch.stack([good, bad, same]), LABELS, folds_of(3), rule, 1.0)
        assert found.chosen.tolist() == [1, 0, 0]
        assert found.weights[2].tolist() == [1, 0]
        assert float(found.weights[0, 1]) >= 0.5
        if rule in ("chosen", "weighted"):
            assert found.weights[1].tolist() == [1, 0]


def test_nodes_outside_the_folds_do_not_count():
    some = torch.where(torch.arange(NODES) < 300, folds_of(1), -1)
    told = torch.stack([TOLD[0], TOLD[1]]).unsqueeze(0)
    changed = told.clone()
    changed[:, :, 300:] = changed[:, :, 300:].flip(3)
    first, second = (decide(values, LABELS, some, "stacked", 1.0) for values in (told, changed))
    for mine, other in zip(first, second, strict=True):
        assert torch.equal(mine, other)
