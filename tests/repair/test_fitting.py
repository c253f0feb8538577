"""Fitting: what is learned, from which nodes, in which batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair.targets import RepairTrainee, prepare
from tests.helpers.hand_made import hand_made
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
EXPERTS = 12


def brief(repair, epochs: int = 6, **changes):
    budget = replace(repair.budget, epochs=epochs, learning_rate=0.01, epoch_zero=False)
    settings = {"budget": budget, "dropout": 0.0, **changes}
    if not isinstance(repair, RefitHead):
        settings["hidden"] = 16
    return replace(repair, **settings)


def planted() -> tuple[Exposure, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each recipient hears four loud distractors and one quiet expert, whose state is marked.

    The expert's contribution favours the true class; the distractors favour classes at random.
    Neither h_v nor z⁰_v tells the class, so only who looks at the set can find it.
    """
    nodes, classes, width = 400, 3, 4
    generator = torch.Generator().manual_seed(0)
    speaks = torch.randint(classes, (nodes,), generator=generator)
    contributions = torch.eye(classes, dtype=torch.float64)[speaks] * 3
    state = 0.1 * torch.randn(nodes, width, generator=generator, dtype=torch.float64)
    state[:EXPERTS, 0] += 2
    expert = torch.randint(EXPERTS, (nodes, 1), generator=generator)
    others = torch.randint(EXPERTS, nodes, (nodes, 4), generator=generator)
    rows = torch.cat([expert, others], dim=1).view(-1)
    coefficients = torch.tensor([0.08, 0.23, 0.23, 0.23, 0.23]).double().repeat(nodes)
    exposure = hand_made(
        torch.arange(nodes + 1) * 5,
        rows,
        coefficients.unsqueeze(0),
        contributions.unsqueeze(0),
        torch.zeros(1, nodes, classes, dtype=torch.float64),
        state=state.unsqueeze(0),
        messages=state.unsqueeze(0),
    )
    place = torch.arange(nodes)
    return exposure, speaks[expert.squeeze(1)], place % 4 < 2, place % 4 == 2


def test_reweighting_finds_the_planted_expert():
    exposure, y, train, val = planted()
    test = ~(train | val)
    repair = replace(
        Reweighting(hidden=32), budget=replace(Reweighting().budget, learning_rate=5e-3)
    )
    fitted = repair.fit(exposure, y, train, val, device="cpu")
    before = (exposure.frozen_logits[0].argmax(1) == y)[test].double().mean()
    after = (fitted.predict(exposure) == y)[test].double().mean()
    assert before < 0.65
    assert after > 0.95
    shares = fitted.coefficients(exposure)[0].view(-1, 5)
    assert float(shares[:, 0].mean()) > 0.5


def test_the_head_learns_a_planted_boundary():
    exposure, _, train, val = planted()
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(1, 400, 6, generator=generator, dtype=torch.float64) * 50 + 7
    y = (embedding[0, :, :3] - 7).argmax(1)
    repair = RefitHead(budget=replace(RefitHead().budget, learning_rate=0.05))
    fitted = repair.fit(replace(exposure, embedding=embedding), y, train, val, device="cpu")
    test = ~(train | val)
    predicted = fitted.predict(replace(exposure, embedding=embedding))
    assert float((predicted == y)[test].double().mean()) > 0.93
    assert fitted.num_parameters == 3 * 7


@pytest.mark.parametrize(
    "repair", [Reweighting(), SetTranslation(), NodeTranslation(), RefitHead()]
)
def test_nodes_never_seen_in_training(repair):
    """Fitted on the masks' nodes alone, a repair is the same and works on all the others."""
    exposure = toy_exposure("h2gcn")
    seen = exposure.restrict((DATA.train_mask | DATA.val_mask).any(1))
    everywhere = brief(repair).fit(exposure, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")
    fitted = brief(repair).fit(seen, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")
    torch.testing.assert_close(fitted.member_logits(exposure), everywhere.member_logits(exposure))


@pytest.mark.parametrize("repair", [Reweighting(), SetTranslation(), NodeTranslation()])
def test_one_batch_of_everything_is_the_full_batch(repair):
    exposure = toy_exposure("sgc")
    arguments = (exposure, DATA.y, DATA.train_mask, DATA.val_mask)
    full = brief(repair).fit(*arguments, device="cpu")
    one = brief(repair).fit(*arguments, device="cpu", batch_size=1000)
    torch.testing.assert_close(
        full.member_logits(exposure), one.member_logits(exposure), rtol=0, atol=0
    )


@pytest.mark.parametrize("repair", [Reweighting(), SetTranslation(), NodeTranslation()])
def test_minibatches_repeat_with_the_seed_and_train(repair):
    exposure = toy_exposure("mixhop")
    arguments = (exposure, DATA.y, DATA.train_mask, DATA.val_mask)
    first, again = (
        brief(repair, dropout=0.2).fit(*arguments, device="cpu", batch_size=4) for _ in range(2)
    )
    assert torch.equal(first.member_logits(exposure), again.member_logits(exposure))
    full = brief(repair, dropout=0.2).fit(*arguments, device="cpu")
    assert not torch.allclose(first.member_logits(exposure), full.member_logits(exposure))


def test_a_minibatch_gradient_is_that_of_its_targets():
    """Two steps of four targets against the definition, with the shuffled order read off."""
    exposure, repair = toy_exposure("h2gcn"), brief(SetTranslation())
    from gnn_repair.repair.inputs import RepairInputs

    inputs = RepairInputs(exposure)
    task = prepare(exposure, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")
    p = repair.initial(inputs)
    for value in p.values():
        value.add_(0.1).requires_grad_()
    made = RepairTrainee(
        p,
        lambda q: repair.tables(q, inputs),
        lambda q, tables, targets, noise: repair.corrected(q, inputs, tables, targets, noise),
        task.train_targets,
        task.val_targets,
        dropout=0.0,
        batch_size=4,
        seed=0,
    )
    made.begin_epoch()
    for step in range(2):
        found = made.losses(made.trunk())
        logits = repair.corrected(p, inputs, repair.tables(p, inputs), inputs.everyone, None)
        for s in range(2):
            chosen = made.positions[s, 4 * step : 4 * step + 4]
            expected = torch.nn.functional.cross_entropy(logits[s, chosen], DATA.y[chosen])
            torch.testing.assert_close(found[s], expected)


def test_an_exposure_without_embedding_cannot_refit_a_head():
    exposure = replace(toy_exposure("gcn"), embedding=None)
    with pytest.raises(InputError, match="no embedding"):
        RefitHead().fit(exposure, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")


def test_states_that_are_not_finite_are_refused():
    exposure = toy_exposure("gcn")
    state = exposure.state.clone()
    state[0, 3, 1] = torch.nan
    with pytest.raises(InputError, match="NaN"):
        SetTranslation().fit(
            replace(exposure, state=state), DATA.y, DATA.train_mask, DATA.val_mask, device="cpu"
        )
