"""What must hold of every repair on every exposure, before and after training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.backbones import BACKBONES
from gnn_repair.exposure import Exposure
from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.training import Budget
from tests.helpers.repair.displacement_judge import displacement_distance, realizable
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
EVERY = pytest.mark.parametrize("backbone", list(BACKBONES))


def fit(repair, exposure: Exposure, epochs: int):
    return run(repair, exposure, replace(repair.budget, epochs=epochs, learning_rate=0.02))


def train(repair, exposure: Exposure):
    """Like fit, but a trained state is kept even where the frozen one validates better."""
    return run(
        repair, exposure, replace(repair.budget, epochs=12, learning_rate=0.02, epoch_zero=False)
    )


def run(repair, exposure: Exposure, budget: Budget):
    method = replace(repair, budget=budget)
    if not isinstance(repair, RefitHead):
        method = replace(method, hidden=16)
    return method.fit(exposure, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")


def accuracy(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return ((logits.argmax(2) == DATA.y) & mask.t()).sum(1)


@EVERY
@pytest.mark.parametrize("repair", [SetTranslation(), NodeTranslation()])
def test_shifts_are_centred_and_bounded(backbone, repair):
    exposure = toy_exposure(backbone)
    q = train(repair, exposure).shift(exposure)
    torch.testing.assert_close(q.sum(2), torch.zeros_like(q.sum(2)), rtol=0, atol=1e-12)
    assert 1e-3 < float(q.abs().max()) <= 8


@EVERY
@pytest.mark.parametrize("repair", [Reweighting(), SetTranslation(), NodeTranslation()])
def test_validation_accuracy_never_falls_below_frozen(backbone, repair):
    exposure = toy_exposure(backbone)
    fitted = fit(repair, exposure, 12)
    before = accuracy(exposure.frozen_logits, DATA.val_mask)
    assert bool((accuracy(fitted.member_logits(exposure), DATA.val_mask) >= before).all())


@EVERY
def test_a_reweighting_is_a_translation_that_is_realizable(backbone):
    """Proposition 2, one way: q = P(z(λ) − z⁰) gives the same softmax and lies in D_v."""
    exposure = toy_exposure(backbone).restrict(torch.tensor([0, 1, 2, 9]))
    generator = torch.Generator().manual_seed(4)
    tilted = (
        exposure.coefficients
        * torch.rand(2, exposure.num_terms, generator=generator, dtype=torch.float64).square()
    )
    ratio = exposure.mass / exposure.masses(tilted)
    lengths = exposure.segments.diff()
    found = tilted * torch.repeat_interleave(ratio.flatten(1).nan_to_num(), lengths, dim=1)
    frozen, moved = exposure.frozen_logits[:, exposure.recipients], exposure.logits(found)
    shift = moved - frozen
    shift = shift - shift.mean(2, keepdim=True)
    torch.testing.assert_close((frozen + shift).softmax(2), moved.softmax(2))
    assert bool(realizable(exposure, shift).all())
    torch.testing.assert_close(
        displacement_distance(exposure, shift), torch.zeros(2, 4, dtype=torch.float64)
    )


@EVERY
def test_a_translation_beyond_the_polytope_is_not_realizable(backbone):
    """Proposition 2, the other way: past a vertex in a direction where the vertex is extreme."""
    exposure = toy_exposure(backbone).restrict(torch.tensor([1, 2, 9]))
    table = exposure.contributions - exposure.contributions.mean(2, keepdim=True)
    direction = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
    values = (table @ direction)[:, exposure.rows.long()]
    shift = torch.zeros(2, 3, 3, dtype=torch.float64)
    frozen = exposure.frozen_logits - exposure.fixed_logits
    for s in range(2):
        for i in range(3):
            best = (-frozen[s, exposure.recipients[i]]).clone()
            best -= best.mean()
            for g in range(exposure.num_groups):
                start, stop = exposure.segments[i * exposure.num_groups + g :][:2].tolist()
                if stop > start:
                    row = exposure.rows[start + int(values[s, start:stop].argmax())].long()
                    best += exposure.mass.expand(2, -1, -1)[s, i, g] * table[s, row]
            shift[s, i] = best
    assert bool(realizable(exposure, shift).all())
    beyond = shift + 0.01 * direction
    assert not bool(realizable(exposure, beyond).any())
    # A supporting hyperplane is crossed by 0.01 |d|²; the largest entry must move accordingly.
    least = 0.01 * float(direction @ direction) / float(direction.abs().sum())
    assert bool((displacement_distance(exposure, beyond) >= least - 1e-7).all())


def test_a_node_with_nothing_adjustable_stays_frozen_under_reweighting():
    whole = toy_exposure("gcn")
    lengths = whole.segments.diff()
    kept = torch.repeat_interleave(torch.arange(30) != 9, lengths)
    lengths[9] = 0
    fixed = whole.fixed_logits.clone()
    fixed[:, 9] = whole.frozen_logits[:, 9]
    exposure = replace(
        whole,
        segments=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        rows=whole.rows[kept],
        coefficients=whole.coefficients[:, kept],
        fixed_logits=fixed,
    )
    fitted = train(Reweighting(), exposure)
    assert torch.equal(fitted.member_logits(exposure)[:, 9], exposure.frozen_logits[:, 9])
    q = train(SetTranslation(), exposure).shift(exposure)
    assert bool(q.isfinite().all())


@EVERY
def test_the_head_is_refitted_on_standardised_embeddings(backbone):
    exposure = toy_exposure(backbone)
    fitted = fit(RefitHead(), exposure, 9)
    assert bool((fitted.best_epoch > 0).all())
    for s in range(2):
        rows = exposure.embedding[s, DATA.train_mask[:, s]]
        deviation = rows.std(0, correction=0)
        scale = torch.where(deviation < 1e-6, 1.0, deviation)
        standard = (exposure.embedding[s] - rows.mean(0)) / scale
        expected = (
            standard @ fitted.parameters["head.weight"][s] + fitted.parameters["head.bias"][s]
        )
        torch.testing.assert_close(fitted.member_logits(exposure)[s], expected)
