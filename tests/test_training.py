"""The training loop and its optimiser of stacked members."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from gnn_repair import training
from gnn_repair.devices import seeded
from gnn_repair.training import (
    Budget,
    MemberAdam,
    Trainee,
    fit,
    mask_weights,
    member_correct,
    member_losses,
    plain_adam,
)
from tests.helpers.device_places import DEVICES

# Random numbers: the user's own stay where they are, however what is inside ends.


class Ended(BaseException):
    """Neither an error nor an exit."""


@pytest.mark.parametrize("end", [None, ValueError, Ended])
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


# The loop itself: selection, patience, divergence, with scripted scores.

STATISTICS = ("best_epoch", "best_score", "epochs_run", "diverged")
PLAIN = Budget(epochs=12, patience=None, learning_rate=0.1, weight_decay=0.0)


class Scripted(Trainee):
    """One number per member that grows by a tenth with every update; scores stand in a script.

    The losses of member m are no numbers at its update ``lost[m]``.
    """

    def __init__(self, script: list[list[int]], lost: list[float], steps: int = 1) -> None:
        self.parameters = {"value": torch.zeros(len(lost), 1)}
        self.script, self.lost, self.steps_per_epoch = script, torch.tensor(lost), steps
        self.epoch, self.updates = -1, -1

    def begin_epoch(self) -> None:
        self.epoch += 1

    def losses(self, trunk: None) -> torch.Tensor:
        self.updates += 1
        bad = torch.where(self.lost == self.updates, [torch.nan, torch.inf][self.epoch % 2], 1.0)
        return -self.parameters["value"].squeeze(1) * bad + bad

    def scores(self, trunk: None) -> torch.Tensor:
        return torch.tensor([scores[self.epoch] for scores in self.script])


def walked(scores: list[int], lost: float, budget: Budget) -> tuple[int, int, int, bool]:
    """Best epoch, its score, epochs run and whether it diverged, of one member epoch by epoch."""
    best, score = 0, -1
    for epoch in range(budget.epochs + 1):
        if epoch >= lost:
            return best, score, epoch, True
        if (epoch or budget.epoch_zero) and scores[epoch] > score:
            best, score = epoch, scores[epoch]
        if budget.patience is not None and epoch - best >= budget.patience:
            break
    return best, score, epoch, False


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("every", [1, 4, 10])
def test_a_member_keeps_its_best_state_whatever_becomes_of_the_others(every, steps, monkeypatch):
    """Ties, members that stop, that would improve or diverge later, and that diverge at any time.

    A loss that is no number shows at the next evaluation, before that state can be kept.
    """
    monkeypatch.setattr(training, "CHECK_EVERY", every)
    draw, kinds = torch.Generator().manual_seed(every * steps), set()
    for trial in range(60):
        epochs, patience = 1 + trial % 9, [None, 1, 2, 3, 4][trial % 5]
        budget = replace(PLAIN, epochs=epochs, patience=patience, epoch_zero=trial % 2 == 0)
        script = torch.randint(7, (4, epochs + 1), generator=draw).tolist()
        updates = torch.randint(2 * epochs * steps, (4,), generator=draw)
        lost = torch.where(updates > epochs * steps, math.inf, updates.float())
        fitted = fit(Scripted(script, lost.tolist(), steps), budget)
        shown = (lost / steps).ceil().tolist()
        expected = [walked(own, e, budget) for own, e in zip(script, shown, strict=True)]
        columns = (getattr(fitted, name).tolist() for name in STATISTICS)
        assert list(zip(*columns, strict=True)) == expected
        value = 0.1 * steps * fitted.best_epoch.float()
        torch.testing.assert_close(fitted.parameters["value"].squeeze(1), value)
        kinds |= {(run < epochs, gone, best == 0) for best, _, run, gone in expected}
    assert len(kinds) >= 6


def test_training_ends_when_nobody_is_left_and_progress_is_reported():
    seen: list[training.Progress] = []
    never = [math.inf] * 2
    trainee = Scripted([[0] + [1] * 1000] * 2, never)
    fit(trainee, replace(PLAIN, epochs=1000, patience=5), seen.append)
    assert trainee.epoch < 40 and [progress.active for progress in seen[:1] + seen[-1:]] == [2, 0]
    seen.clear()
    script = [[0] + [2] * 25, [0] + [4] * 25]
    fit(Scripted(script, never), replace(PLAIN, epochs=25), seen.append)
    assert [progress.epoch for progress in seen] == [0, 10, 20, 25]
    assert (seen[-1].best, seen[-1].active, seen[-1].epochs) == (3, 2, 25)


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


@pytest.mark.parametrize("device", DEVICES[1:])
def test_what_cannot_be_captured_is_trained_eagerly(device):
    class Syncing(Scripted):
        """Asks the device for a number in every loss, which no CUDA graph can hold."""

        def losses(self, trunk: None) -> torch.Tensor:
            value = torch.nn.functional.dropout(self.parameters["value"], 0.5)
            return -value.squeeze(1) * (1 + float(value.detach().sum() > 1e9))

        def scores(self, trunk: None) -> torch.Tensor:
            return super().scores(trunk).to(device)

    trainee = Syncing([[0] + [1] * 60], [math.inf])  # one more start without a graph
    trainee.parameters = {"value": torch.zeros(1, 1, device=device)}
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        fitted = fit(trainee, replace(PLAIN, epochs=30))
    assert bool(fitted.parameters["value"].isfinite().all())
    assert torch.rand(3, device=device).isfinite().all()


# The optimiser of stacked members against torch's own, one member at a time.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decoupled", [True, False])
def test_members_move_as_they_would_alone(device, dtype, decoupled):
    """Gradients from far below to far above the clipping norm; who sits out stays as it is.

    All learn in the first update; then member 1 in every second, member 2 from the third on, and
    member 3 never again. The update written out is the same.
    """
    generator = torch.Generator().manual_seed(1)
    budget = Budget(1, None, learning_rate=1e-2, weight_decay=0.1, decoupled=decoupled, clip=5.0)
    sizes = torch.tensor([1e-4, 1.0, 10.0, 0.1]).view(-1, 1)
    start = torch.randn(4, 300, generator=generator, dtype=dtype)
    stacked, plain = start.clone().to(device), start.clone()
    together = MemberAdam(stacked, budget)
    moments, steps = (torch.zeros_like(plain), torch.zeros_like(plain)), torch.zeros(4).long()
    method = torch.optim.AdamW if decoupled else torch.optim.Adam
    alone = [start[s].clone() for s in range(4)]
    optimizers = [method([value], lr=1e-2, weight_decay=0.1) for value in alone]
    for step in range(6):
        learning = torch.tensor([True, step % 2 == 0, step >= 3 or step == 0, step == 0])
        gradient = torch.randn(4, 300, generator=generator, dtype=dtype) * sizes
        stacked.grad = gradient.clone().to(device)
        together.step(learning.to(device) if step else None)
        steps += learning
        scale = (5 / (gradient.norm(dim=1) + 1e-6)).clamp(max=1)
        plain_adam(plain, gradient, moments, steps, scale, learning, budget)
        for value, optimizer, own, learns in zip(
            alone, optimizers, gradient, learning.tolist(), strict=True
        ):
            value.grad = own.clone()
            torch.nn.utils.clip_grad_norm_([value], 5.0)
            if learns:
                optimizer.step()
    for found in (stacked.cpu(), plain):
        torch.testing.assert_close(found, torch.stack(alone), rtol=1e-5, atol=1e-6)
