"""The training loop and its optimiser of stacked members."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from gnn_repair import training
from gnn_repair.devices import seeded
from gnn_repair.training import (
    Budget,
    FlatParameters,
    MemberAdam,
    Trainee,
    fit,
    mask_weights,
    member_correct,
    member_losses,
    plain_adam,
)

# Random numbers: the user's own stay where they are, however what is inside ends.


class Ended(BaseException):
    """Neither an error nor an exit."""


@pytest.mark.parametrize("end", [None, ValueError, KeyboardInterrupt, SystemExit, Ended])
def test_generators_stand_afterwards_where_they_stood(end):
    torch.manual_seed(5)
    expected, before = torch.rand(3), torch.manual_seed(5).get_state()
    inside = []
    for seed in (7, 8, 7):
        with suppress(*[end] * bool(end)), seeded(seed):
            inside.append(torch.rand(3))
            with seeded(seed + 1):
                torch.rand(2)
            inside.append(torch.rand(3))
            if end is not None:
                raise end
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.stack(inside[:2]), torch.stack(inside[4:]))
    assert not torch.equal(inside[0], inside[2])
    whole = torch.Generator().manual_seed(7)  # what was seeded inside moved nothing outside of it
    assert torch.equal(torch.cat(inside[:2]), torch.rand(6, generator=whole))


def test_threads_take_turns_with_the_generator():
    def draw(seed):
        with seeded(seed):
            return [torch.rand(1).item() for _ in range(200)]

    alone = [draw(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(draw, range(8))) == alone


# The loop itself: selection, patience, clipping, divergence, with scripted scores.

PLAIN = Budget(epochs=12, patience=None, learning_rate=0.1, weight_decay=0.0)


class Scripted(Trainee):
    """One number per member that grows by its gradient; scores are read from a script."""

    def __init__(self, script: list[list[int]], slopes: list[float]) -> None:
        self.parameters = {"value": torch.zeros(len(slopes), 1)}
        self.script, self.slopes = script, torch.tensor(slopes)
        self.epoch = -1
        self.seen: list[torch.Tensor] = []

    def trunk(self) -> None:
        self.epoch += 1
        self.seen.append(self.parameters["value"].detach().clone())

    def losses(self, trunk: None) -> torch.Tensor:
        return -self.slopes * self.parameters["value"].squeeze(1)

    def scores(self, trunk: None) -> torch.Tensor:
        script = self.script[min(self.epoch, len(self.script) - 1)]
        return torch.tensor(script)


def test_the_best_strict_improvement_is_kept_per_member():
    script = [[9, 9], [1, 5], [3, 5], [3, 6], [2, 1], [3, 6]]
    trainee = Scripted(script, [1.0, 2.0])
    fitted = fit(trainee, replace(PLAIN, epochs=5))
    assert fitted.best_epoch.tolist() == [2, 3]
    assert fitted.best_score.tolist() == [3, 6]
    expected = torch.stack([trainee.seen[2][0], trainee.seen[3][1]])
    assert torch.equal(fitted.parameters["value"], expected)


def test_the_untrained_state_counts_only_where_the_budget_says_so():
    script = [[9], [1], [2]]
    kept = fit(Scripted(script, [1.0]), replace(PLAIN, epochs=2, epoch_zero=True))
    assert kept.best_epoch.tolist() == [0]
    assert kept.parameters["value"].item() == 0
    trained = fit(Scripted(script, [1.0]), replace(PLAIN, epochs=2))
    assert trained.best_epoch.tolist() == [2]


@pytest.mark.parametrize("every", [1, 4, 10])
def test_patience_stops_a_member_and_never_another(every, monkeypatch):
    """Member 0 would improve again after its patience has run out; it must not be heard."""
    monkeypatch.setattr(training, "CHECK_EVERY", every)
    script = [[0, 0], [5, 1], [4, 2], [4, 3], [4, 4], [9, 5], [9, 6], [9, 7], [9, 8]]
    fitted = fit(Scripted(script, [1.0, 1.0]), replace(PLAIN, epochs=8, patience=3))
    assert fitted.best_epoch.tolist() == [1, 8]
    assert fitted.best_score.tolist() == [5, 8]
    assert fitted.epochs_run.tolist() == [4, 8]


def test_training_ends_when_nobody_is_left():
    trainee = Scripted([[0], [1], [1]], [1.0])
    fit(trainee, replace(PLAIN, epochs=1000, patience=5))
    assert trainee.epoch < 40


@pytest.mark.parametrize("lost", [torch.nan, torch.inf])
def test_a_diverging_member_stops_with_its_best_state_and_harms_nobody(lost):
    class Diverging(Scripted):
        def losses(self, trunk: None) -> torch.Tensor:
            bad = torch.tensor([lost if self.epoch == 3 else 1.0, 1.0])
            return super().losses(trunk) * bad

    script = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 5]]
    fitted = fit(Diverging(script, [1.0, 1.0]), replace(PLAIN, epochs=5))
    healthy = fit(Scripted(script, [1.0, 1.0]), replace(PLAIN, epochs=5))
    assert fitted.diverged.tolist() == [True, False]
    assert fitted.best_epoch.tolist() == [2, 5]
    assert bool(fitted.parameters["value"].isfinite().all())
    assert torch.equal(fitted.parameters["value"][1], healthy.parameters["value"][1])


def test_clipping_is_by_member_and_equals_torch():
    slopes = [0.5, 40.0, 3.0]
    found = fit(Scripted([[0] * 3, [1] * 3], slopes), replace(PLAIN, epochs=1, clip=1.0))
    for member, slope in enumerate(slopes):
        value = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.Adam([value], lr=0.1)
        (-slope * value).sum().backward()
        torch.nn.utils.clip_grad_norm_([value], 1.0)
        optimizer.step()
        torch.testing.assert_close(found.parameters["value"][member], value.detach())


def test_several_updates_an_epoch():
    class Batched(Scripted):
        steps_per_epoch = 4

        def trunk(self) -> None:
            self.calls = getattr(self, "calls", 0) + 1

        def scores(self, trunk: None) -> torch.Tensor:
            return torch.tensor([self.calls])

    trainee = Batched([[0]], [1.0])
    fitted = fit(trainee, replace(PLAIN, epochs=3))
    # Adam with a constant gradient moves by the learning rate at every update.
    torch.testing.assert_close(fitted.parameters["value"], torch.tensor([[1.2]]))


def test_progress_is_reported():
    seen: list[training.Progress] = []
    fit(Scripted([[0, 0], [2, 4]], [1.0, 1.0]), replace(PLAIN, epochs=25), seen.append)
    assert [progress.epoch for progress in seen] == [0, 10, 20, 25]
    assert seen[-1].best == 3
    assert seen[-1].active == 2


def test_losses_and_scores_against_torch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 2, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, -1])
    mask = torch.rand(9, 2, generator=generator) < 0.5
    mask[8] = False
    weights = mask_weights(mask, torch.float64)
    for member in range(2):
        chosen = mask[:, member]
        expected = torch.nn.functional.cross_entropy(logits[chosen, member], labels[chosen])
        torch.testing.assert_close(member_losses(logits, labels, weights)[member], expected)
        right = (logits[chosen, member].argmax(1) == labels[chosen]).sum()
        assert member_correct(logits, labels, mask)[member] == right


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_cannot_be_captured_is_trained_eagerly():
    class Syncing(Scripted):
        """Asks the device for a number in every loss, which no CUDA graph can hold."""

        def __init__(self) -> None:
            super().__init__([[0], [1], [2]], [1.0])
            self.parameters = {"value": torch.zeros(1, 1, device="cuda")}

        def losses(self, trunk: None) -> torch.Tensor:
            value = torch.nn.functional.dropout(self.parameters["value"], 0.5)
            return -value.squeeze(1) * (1 + float(value.detach().sum() > 1e9))

        def scores(self, trunk: None) -> torch.Tensor:
            return super().scores(trunk).cuda()

    with pytest.warns(UserWarning, match="without a CUDA graph"):
        fitted = fit(Syncing(), replace(PLAIN, epochs=30))
    assert bool(fitted.parameters["value"].isfinite().all())
    assert torch.rand(3, device="cuda").isfinite().all()


# The optimiser of stacked members against torch's own, one member at a time.

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decoupled", [True, False])
def test_members_move_as_they_would_alone(device, dtype, decoupled):
    """Gradients from far below to far above the clipping norm, over several updates."""
    generator = torch.Generator().manual_seed(0)
    budget = Budget(1, None, learning_rate=1e-2, weight_decay=0.1, decoupled=decoupled, clip=5.0)
    sizes = torch.tensor([1e-4, 1.0, 10.0]).view(-1, 1)
    start = torch.randn(3, 5000, generator=generator, dtype=dtype)
    stacked = start.clone().to(device)
    together = MemberAdam(stacked, budget)
    method = torch.optim.AdamW if decoupled else torch.optim.Adam
    alone = [start[s].clone() for s in range(3)]
    optimizers = [method([value], lr=1e-2, weight_decay=0.1) for value in alone]
    for _ in range(5):
        gradient = torch.randn(3, 5000, generator=generator, dtype=dtype) * sizes
        stacked.grad = gradient.clone().to(device)
        together.step()
        for value, optimizer, own in zip(alone, optimizers, gradient, strict=True):
            value.grad = own.clone()
            torch.nn.utils.clip_grad_norm_([value], 5.0)
            optimizer.step()
    torch.testing.assert_close(stacked.cpu(), torch.stack(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decoupled", [True, False])
def test_members_that_sit_out_stay_as_they_are_and_count_their_own_steps(device, dtype, decoupled):
    """Member 1 learns in every second step, member 2 from the third on; one more never does."""
    generator = torch.Generator().manual_seed(1)
    budget = Budget(1, None, learning_rate=1e-2, weight_decay=0.1, decoupled=decoupled)
    start = torch.randn(4, 300, generator=generator, dtype=dtype)
    stacked = start.clone().to(device)
    together = MemberAdam(stacked, budget)
    method = torch.optim.AdamW if decoupled else torch.optim.Adam
    alone = [start[s].clone() for s in range(4)]
    optimizers = [method([value], lr=1e-2, weight_decay=0.1) for value in alone]
    for step in range(6):
        learning = [True, step % 2 == 0, step >= 3, False]
        gradient = torch.randn(4, 300, generator=generator, dtype=dtype)
        stacked.grad = gradient.clone().to(device)
        together.step(torch.tensor(learning, device=device))
        for value, optimizer, own, learns in zip(
            alone, optimizers, gradient, learning, strict=True
        ):
            value.grad = own.clone()
            torch.nn.utils.clip_grad_norm_([value], 5.0)
            if learns:
                optimizer.step()
    torch.testing.assert_close(stacked.cpu(), torch.stack(alone), rtol=1e-5, atol=1e-6)
    assert torch.equal(stacked[3].cpu(), start[3])


@pytest.mark.parametrize("decoupled", [True, False])
def test_the_written_out_update_is_torchs(decoupled):
    generator = torch.Generator().manual_seed(2)
    budget = Budget(1, None, learning_rate=1e-2, weight_decay=0.1, decoupled=decoupled)
    found = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    expected = MemberAdam(found.clone(), budget)
    moments = torch.zeros_like(found), torch.zeros_like(found)
    steps = torch.zeros(2, dtype=torch.long)
    for step in range(4):
        learning = torch.tensor([True, step != 1])
        gradient = torch.randn(2, 50, generator=generator, dtype=torch.float64) * 3
        expected.matrix.grad = gradient.clone()
        expected.step(learning)
        steps += learning
        scale = (5 / (gradient.norm(dim=1) + 1e-6)).clamp(max=1)
        plain_adam(found, gradient, moments, steps, scale, learning, budget)
    torch.testing.assert_close(found, expected.matrix, rtol=1e-12, atol=1e-12)


def test_views_are_the_parameters_and_gradients_flow_through_them():
    parameters = {"weight": torch.arange(12.0).view(2, 2, 3), "bias": torch.arange(4.0).view(2, 2)}
    flat = FlatParameters(parameters)
    views = flat.views(flat.matrix)
    assert list(views) == ["weight", "bias"]
    for name, value in parameters.items():
        assert torch.equal(views[name], value)
    (views["weight"].square().sum() + 3 * views["bias"].sum()).backward()
    expected = torch.cat([2 * parameters["weight"].flatten(1), torch.full((2, 2), 3.0)], dim=1)
    assert torch.equal(flat.matrix.grad, expected)


@pytest.mark.parametrize("when", range(6))
def test_a_member_diverges_at_any_epoch_the_state_after_the_last_among_them(when):
    class Diverging(Scripted):
        def losses(self, trunk: None) -> torch.Tensor:
            return super().losses(trunk) * (torch.nan if self.epoch == when else 1.0)

    budget = replace(PLAIN, epochs=5, epoch_zero=True)
    fitted = fit(Diverging([[i] for i in range(6)], [1.0]), budget)
    assert fitted.diverged.tolist() == [True]
    assert fitted.best_epoch.tolist() == [max(when - 1, 0)]
    assert fitted.best_score.tolist() == [when - 1]


def test_what_becomes_of_a_member_after_it_has_stopped_is_not_told():
    """Member 0 runs out of patience in epoch 4; its losses are no numbers from epoch 6 on."""

    class Late(Scripted):
        def losses(self, trunk: None) -> torch.Tensor:
            bad = torch.tensor([torch.nan if self.epoch >= 6 else 1.0, 1.0])
            return super().losses(trunk) * bad

    script = [[0, 0], [5, 1], [4, 2], [4, 3], [4, 4], [9, 5], [9, 6], [9, 7], [9, 8]]
    fitted = fit(Late(script, [1.0, 1.0]), replace(PLAIN, epochs=8, patience=3))
    assert fitted.diverged.tolist() == [False, False]
    assert fitted.epochs_run.tolist() == [4, 8] and fitted.best_epoch.tolist() == [1, 8]
    assert bool(fitted.parameters["value"].isfinite().all())
