"""Fitting: what is learned, from which nodes, in which batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, Group
from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair.inputs import SEEDS_A_STEP
from gnn_repair.repair.targets import EPOCH_STRIDE, RepairTrainee, Targets, prepare
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
    rows = torch.cat([expert, others], dim=1).view(-1).int()
    coefficients = torch.tensor([0.08, 0.23, 0.23, 0.23, 0.23]).double().repeat(nodes)
    table = contributions[rows.long()].view(nodes, 5, classes)
    frozen = (coefficients.view(nodes, 5, 1) * table).sum(1)
    index = torch.arange(nodes).int()
    exposure = Exposure(
        groups=(Group("planted", "by hand", "by hand"),),
        recipients=torch.arange(nodes),
        segments=torch.arange(nodes + 1) * 5,
        rows=rows,
        coefficients=coefficients.unsqueeze(0),
        contributions=contributions.unsqueeze(0),
        fixed_logits=torch.zeros(1, nodes, classes, dtype=torch.float64),
        frozen_logits=frozen.unsqueeze(0),
        state=state.unsqueeze(0),
        messages=state.unsqueeze(0),
        message_rows=index,
        sources=index,
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


def trainee(batch: int, sizes: tuple[int, int]) -> RepairTrainee:
    index = torch.zeros(2, max(sizes), dtype=torch.long)
    for s, size in enumerate(sizes):
        index[s, :size] = torch.arange(size) + 100 * (s + 1)
    targets = Targets(index, index % 7, torch.tensor(sizes))
    weight = {"w": torch.zeros(2, 1)}
    return RepairTrainee(
        weight, lambda p: None, None, targets, targets, dropout=0.0, batch_size=batch, seed=0
    )  # type: ignore[arg-type]


def test_only_what_never_waits_is_captured():
    """The GPU's kernels take float32; the plain way of other precisions waits for the device."""
    made = trainee(4, (11, 3))
    assert made.captures
    double = {"w": torch.zeros(2, 1), "b": torch.zeros(2, 1, dtype=torch.float64)}
    again = RepairTrainee(
        double, lambda p: None, None, made.train, made.train, dropout=0.0, batch_size=4, seed=0
    )  # type: ignore[arg-type]
    assert not again.captures


@pytest.mark.parametrize("batch", [4, None])
def test_counters_counted_on_are_those_that_can_be_computed(batch):
    """A step's random numbers, its batch and who learns in it, from epoch and step alone."""
    made = trainee(batch, (11, 3))
    for epoch in (1, 2):
        made.begin_epoch()
        for step in range(made.steps_per_epoch):
            expected = made.start + epoch * EPOCH_STRIDE + step * SEEDS_A_STEP
            assert int(made._next_stream()) == expected
            positions, labels, weights = made._next_batch()
            part = slice(step * made.batch, (step + 1) * made.batch)
            assert torch.equal(positions, made.positions[:, part])
            assert torch.equal(labels, made.labels[:, part])
            assert torch.equal(weights, made.weights[:, part])
            learning = made.learning()
            if batch is None:
                assert learning is None
            else:
                assert learning.tolist() == [step * batch < size for size in (11, 3)]


def test_every_epoch_visits_every_target_once_in_a_new_order():
    made = trainee(4, (11, 9))
    orders = []
    for _ in range(2):
        made.begin_epoch()
        for s, size in ((0, 11), (1, 9)):
            visited = made.positions[s, :size]
            assert sorted(visited.tolist()) == [100 * (s + 1) + i for i in range(size)]
            assert torch.equal(made.labels[s, :size], visited % 7)
        orders.append(made.positions.clone())
    assert not torch.equal(*orders)
    assert made.steps_per_epoch == 3


def test_a_batch_loss_is_the_mean_over_its_real_targets():
    weights = trainee(4, (11, 9)).weights
    expected = torch.tensor(
        [[1 / 4] * 8 + [1 / 3] * 3 + [0], [1 / 4] * 8 + [1, 0, 0, 0]], dtype=weights.dtype
    )
    torch.testing.assert_close(weights, expected)


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


def test_a_class_absent_from_training_is_said():
    exposure = toy_exposure("gcn")
    train = DATA.train_mask & (DATA.y != 2).unsqueeze(1)
    with pytest.warns(UserWarning, match="without any training node of class 2"):
        fitted = brief(SetTranslation()).fit(exposure, DATA.y, train, DATA.val_mask, device="cpu")
    assert bool(fitted.member_logits(exposure).isfinite().all())


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


def test_a_flat_coordinate_is_centred_but_not_scaled():
    exposure = toy_exposure("gcn")
    embedding = exposure.embedding.clone()
    place = torch.arange(30, dtype=torch.float64)
    # Deviations over any nodes: none, about 1e-8, about 1e-4.
    embedding[..., 0], embedding[..., 1], embedding[..., 2] = 3.0, 1e-9 * place, 1e-5 * place
    fitted = RefitHead(budget=replace(RefitHead().budget, epochs=1)).fit(
        replace(exposure, embedding=embedding), DATA.y, DATA.train_mask, DATA.val_mask, device="cpu"
    )
    for s in range(2):
        rows = embedding[s, DATA.train_mask[:, s]]
        torch.testing.assert_close(fitted.constants["mean"][s], rows.mean(0))
        assert fitted.constants["scale"][s, :2].tolist() == [1.0, 1.0]
        expected = (rows[:, 2:] - rows[:, 2:].mean(0)).square().mean(0).sqrt()
        torch.testing.assert_close(fitted.constants["scale"][s, 2:], expected)
