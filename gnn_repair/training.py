"""The one loop that trains everything: backbones, repairs and controls.

What is trained has a leading member axis S on every parameter, and the S members (one per split)
learn side by side without influencing each other: losses are summed, so gradients separate; Adam
is elementwise; clipping, selection, patience and divergence are decided per member. On a GPU one
epoch is captured as a CUDA graph and replayed; all decisions stay on the device and the host looks
only every ``CHECK_EVERY`` epochs.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_repair.budget import LONG as LONG
from gnn_repair.budget import SHORT as SHORT
from gnn_repair.budget import Budget as Budget

CHECK_EVERY = 10
"""Epochs between two looks of the host. Later epochs of a stopped member change nothing, so this
number does not influence results."""

WARM_UP = 3
"""Epochs run before a CUDA graph is captured (they count as training like any other)."""


class Trainee(ABC):
    """Something that can be trained: parameters, a loss and a validation score per member."""

    parameters: dict[str, Tensor]
    """Leaf tensors [S, …]."""
    steps_per_epoch: int = 1

    def trunk(self) -> Any:
        """What the evaluation and the first update of an epoch share (with gradients)."""
        return None

    @abstractmethod
    def losses(self, trunk: Any, step: int) -> Tensor:
        """Training loss of every member, [S]."""

    @abstractmethod
    def scores(self, trunk: Any) -> Tensor:
        """What selects checkpoints: correct validation predictions of every member, [S]."""


@dataclass(frozen=True)
class Progress:
    """Where training stands."""

    epoch: int
    epochs: int
    active: int
    """Members still training."""
    best: float
    """Mean over members of the best score so far."""


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Fitted:
    """The selected checkpoints and how they came about."""

    parameters: Mapping[str, Tensor]
    """[S, …]: each member's best state."""
    best_epoch: Tensor
    """[S]: the epoch it was taken at (0: untrained)."""
    best_score: Tensor
    """[S]."""
    epochs_run: Tensor
    """[S]: epochs until the member stopped."""
    diverged: Tensor
    """[S] bool: stopped because its loss was not finite."""


def fit(trainee: Trainee, budget: Budget, on_progress: ProgressCallback | None = None) -> Fitted:
    """Train every member of ``trainee`` within ``budget`` and keep its best state."""
    run = _Run(trainee, budget)
    advance = run.epoch
    for epoch in range(budget.epochs):
        if epoch == WARM_UP and run.device.type == "cuda":
            advance = _captured(run)
        if epoch % CHECK_EVERY == 0 and not run.look(epoch, on_progress):
            break
        advance()
    else:
        run.last_look()
    run.look(budget.epochs, on_progress)
    return run.result()


class _Run:
    """The state of one call of :func:`fit`; every tensor is updated in place."""

    def __init__(self, trainee: Trainee, budget: Budget) -> None:
        self.trainee, self.budget = trainee, budget
        self.parameters = list(trainee.parameters.values())
        self.device = self.parameters[0].device
        for parameter in self.parameters:
            parameter.requires_grad_()
        members = self.parameters[0].shape[0]
        self.best = [parameter.detach().clone() for parameter in self.parameters]
        self.best_score = torch.full((members,), -1.0, device=self.device)
        self.best_epoch = torch.zeros(members, dtype=torch.long, device=self.device)
        self.epochs_run = torch.zeros_like(self.best_epoch)
        self.active = torch.ones(members, dtype=torch.bool, device=self.device)
        self.diverged = torch.zeros_like(self.active)
        self.now = torch.zeros((), dtype=torch.long, device=self.device)
        self.optimizer = _optimizer(self.parameters, budget)

    def epoch(self) -> None:
        """Evaluate the current state, then train it for one epoch."""
        for step in range(self.trainee.steps_per_epoch):
            trunk = self.trainee.trunk()
            losses = self._finite(self.trainee.losses(trunk, step))
            if step == 0:
                self._evaluate(trunk)
            self.optimizer.zero_grad(set_to_none=True)
            losses.sum().backward()
            self._clip()
            self.optimizer.step()
        self.now.add_(1)
        self.epochs_run.add_(self.active)

    @torch.no_grad()
    def last_look(self) -> None:
        """Evaluate the state after the last epoch."""
        trunk = self.trainee.trunk()
        self._finite(self.trainee.losses(trunk, 0))
        self._evaluate(trunk)

    def _finite(self, losses: Tensor) -> Tensor:
        """Stop members whose loss is not finite, before their state can be kept."""
        finite = losses.isfinite()
        self.diverged.logical_or_(self.active & ~finite)
        self.active.logical_and_(finite)
        return losses

    @torch.no_grad()
    def _evaluate(self, trunk: Any) -> None:
        """Score the current state; keep it where it is a member's best."""
        scores = self.trainee.scores(trunk).to(self.best_score.dtype)
        better = self.active & (scores > self.best_score)
        if not self.budget.epoch_zero:
            better &= self.now > 0
        self.best_score.copy_(torch.where(better, scores, self.best_score))
        self.best_epoch.copy_(torch.where(better, self.now, self.best_epoch))
        self._keep(better)
        if self.budget.patience is not None:
            self.active.logical_and_(self.now - self.best_epoch < self.budget.patience)

    def _keep(self, better: Tensor) -> None:
        if self.device.type == "cuda":
            for best, parameter in zip(self.best, self.parameters, strict=True):
                mask = better.view(-1, *[1] * (parameter.dim() - 1))
                best.copy_(torch.where(mask, parameter, best))
            return
        for member in better.nonzero().view(-1).tolist():
            for best, parameter in zip(self.best, self.parameters, strict=True):
                best[member] = parameter[member]

    @torch.no_grad()
    def _clip(self) -> None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        scale = (self.budget.clip / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))

    def look(self, epoch: int, on_progress: ProgressCallback | None) -> bool:
        """Report progress; tell whether any member is still training."""
        if on_progress is None and self.budget.patience is None:
            return True
        active = int(self.active.sum())
        if on_progress is not None:
            best = float(self.best_score.mean())
            on_progress(Progress(epoch, self.budget.epochs, active, best))
        return active > 0

    def result(self) -> Fitted:
        """The outcome, on the training device."""
        parameters = dict(zip(self.trainee.parameters, self.best, strict=True))
        return Fitted(parameters, self.best_epoch, self.best_score, self.epochs_run, self.diverged)


def _optimizer(parameters: list[Tensor], budget: Budget) -> torch.optim.Optimizer:
    method = torch.optim.AdamW if budget.decoupled else torch.optim.Adam
    return method(
        parameters,
        lr=budget.learning_rate,
        weight_decay=budget.weight_decay,
        fused=True,
        capturable=parameters[0].device.type == "cuda",
    )


def _captured(run: _Run) -> Callable[[], None]:
    """One epoch as a CUDA graph; eagerly, with a warning, where it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    run.optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize(run.device)
    try:
        with torch.cuda.graph(graph):
            run.epoch()
    except RuntimeError as error:
        _forget_capture(run.device)
        reason = str(error).splitlines()[0]
        warnings.warn(f"training without a CUDA graph: {reason}", stacklevel=3)
        return run.epoch
    return graph.replay


def _forget_capture(device: torch.device) -> None:
    """Give the device's generator a fresh state: after a failed capture it still awaits one."""
    torch.cuda.synchronize(device)
    generator = torch.cuda.default_generators[device.index or torch.cuda.current_device()]
    fresh = torch.Generator(device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def mask_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1/|mask| on the nodes of each member's mask [N, S], 0 elsewhere: weights of a mean."""
    return mask.to(dtype) / mask.sum(0).clamp(min=1)


def member_losses(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropy of every member, [S].

    Args:
        logits: [N, S, C].
        labels: [N], in 0..C−1 wherever a weight is positive.
        weights: [N, S], from :func:`mask_weights`.
    """
    index = labels.clamp(min=0).view(-1, 1, 1).expand(-1, logits.shape[1], 1)
    chosen = logits.log_softmax(2).gather(2, index).squeeze(2)
    return -(chosen * weights).sum(0)


def member_correct(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Correct predictions of every member within its mask [N, S], [S]."""
    return ((logits.argmax(2) == labels.unsqueeze(1)) & mask).sum(0)
