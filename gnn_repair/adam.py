"""Adam and AdamW for stacked members, each clipped by its own gradient norm.

All parameters of S members lie in one matrix [S, Q], so an update is two passes over it however
many tensors a model has: the norms (4·S·Q bytes), then clipping and update together (28·S·Q).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gnn_repair.budget import Budget
from gnn_repair.kernels import backend


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
        if self.fused:
            self.moments = torch.zeros_like(matrix), torch.zeros_like(matrix)
            self.steps = torch.zeros((), dtype=torch.long, device=matrix.device)
        else:
            method = torch.optim.AdamW if budget.decoupled else torch.optim.Adam
            self.optimizer = method(
                [matrix],
                lr=budget.learning_rate,
                weight_decay=budget.weight_decay,
                fused=True,
                capturable=matrix.device.type == "cuda",
            )

    @torch.no_grad()
    def step(self) -> None:
        """Clip every member's gradient to the budget's norm, then update."""
        gradient = self.matrix.grad
        assert gradient is not None
        norm = torch.linalg.vector_norm(gradient, dim=1)
        scale = (self.budget.clip / (norm + 1e-6)).clamp(max=1.0)
        if self.fused:
            self.steps.add_(1)
            self.kernels.adam(self.matrix, gradient, self.moments, self.steps, scale, self.budget)
        else:
            gradient.mul_(scale.unsqueeze(1))
            self.optimizer.step()

    def forget(self) -> None:
        """Drop the gradient."""
        self.matrix.grad = None
