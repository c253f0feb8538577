"""Adam and AdamW for stacked members, each clipped by its own gradient norm.

All parameters of S members lie in one matrix [S, Q], so an update is two passes over it however
many tensors a model has: the norms (4·S·Q bytes), then clipping and update together (28·S·Q).
Every member counts its own updates: one that is not learning in a step stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gnn_repair.budget import Budget
from gnn_repair.kernels import backend

BETAS = (0.9, 0.999)  # as PyTorch
EPSILON = 1e-8
"""PyTorch's own defaults, as are the betas; the Triton kernel holds the same numbers."""


class FlatParameters:
    """Parameters [S, …] by name, kept in one matrix."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.shapes = {name: value.shape for name, value in parameters.items()}
        self.matrix = torch.cat([value.detach().flatten(1) for value in parameters.values()], dim=1)
        """[S, Q]: what is trained."""
        self.matrix.requires_grad_()

    def views(self, matrix: Tensor) -> dict[str, Tensor]:
        """The parameters within a matrix like ours; gradients flow back to it."""
        sizes = [shape[1:].numel() for shape in self.shapes.values()]
        parts = matrix.split(sizes, dim=1)
        return {
            name: part.view(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


class MemberAdam:
    """The optimiser of one matrix [S, Q]."""

    def __init__(self, matrix: Tensor, budget: Budget) -> None:
        self.matrix, self.budget = matrix, budget
        self.kernels = backend(matrix.device.type)
        self.fused = hasattr(self.kernels, "adam") and matrix.dtype == torch.float32
        self.rows = list(matrix.detach())
        if matrix.device.type == "cpu":
            method = torch.optim.AdamW if budget.decoupled else torch.optim.Adam
            rate, decay = budget.learning_rate, budget.weight_decay
            self.optimizer = method(
                self.rows, lr=rate, betas=BETAS, eps=EPSILON, weight_decay=decay, fused=True
            )
        else:
            self.moments = torch.zeros_like(matrix), torch.zeros_like(matrix)
            self.steps = torch.zeros(matrix.shape[0], dtype=torch.long, device=matrix.device)
            self.everyone = torch.ones_like(self.steps, dtype=torch.bool)

    @torch.no_grad()
    def step(self, learning: Tensor | None = None) -> None:
        """Clip every member's gradient to the budget's norm, then update.

        Args:
            learning: [S] bool, the members to update; all unless given.
        """
        gradient = self.matrix.grad
        assert gradient is not None
        norm = torch.linalg.vector_norm(gradient, dim=1)
        # As torch.nn.utils.clip_grad_norm_ has it, small number included.
        scale = (self.budget.clip / (norm + 1e-6)).clamp(max=1.0)
        if self.matrix.device.type == "cpu":
            self._step_rows(gradient.mul_(scale.unsqueeze(1)), learning)
            return
        learning = self.everyone if learning is None else learning
        self.steps.add_(learning)
        update = self.kernels.adam if self.fused else plain_adam
        update(self.matrix, gradient, self.moments, self.steps, scale, learning, self.budget)

    def _step_rows(self, gradient: Tensor, learning: Tensor | None) -> None:
        """PyTorch's own optimiser, which leaves a row without gradient alone."""
        chosen = [True] * len(self.rows) if learning is None else learning.tolist()
        for row, own, learns in zip(self.rows, gradient, chosen, strict=True):
            row.grad = own if learns else None
        self.optimizer.step()

    def forget(self) -> None:
        """Drop the gradient."""
        self.matrix.grad = None


def plain_adam(
    matrix: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    steps: Tensor,
    scale: Tensor,
    learning: Tensor,
    budget: Budget,
) -> None:
    """The same update written out, for precisions that the GPU's kernel does not take.

    Args:
        matrix: [S, Q], changed in place.
        gradient: [S, Q].
        moments: first and second, [S, Q] each, changed in place.
        steps: [S], updates of each member with this one.
        scale: [S], what clipping multiplies the gradient by.
        learning: [S] bool, the members to update.
        budget: rates.
    """
    chosen, rate = learning.unsqueeze(1), budget.learning_rate
    value, own = matrix.detach(), gradient * scale.unsqueeze(1)
    if budget.decoupled:
        value = value * (1 - rate * budget.weight_decay)
    else:
        own = own + budget.weight_decay * value
    corrections = [1 - beta ** steps.double().unsqueeze(1).clamp(min=1) for beta in BETAS]
    first, second = (
        beta * moment + (1 - beta) * power
        for beta, moment, power in zip(BETAS, moments, (own, own.square()), strict=True)
    )
    size = (second / corrections[1]).sqrt() + EPSILON
    moved = (value - rate * (first / corrections[0]) / size).to(matrix.dtype)
    for target, new in zip((matrix, *moments), (moved, first, second), strict=True):
        target.copy_(torch.where(chosen, new, target))
