"""A compiled operation beside its plain form: values, gradients, numbers of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def agree(
    operation: Callable[..., Tensor], reference: Callable[..., Tensor], tensors: Any, device: str
) -> None:
    """Values and gradients on ``device``, in its kernels' precision, and plainly in float64.

    Both are called with where they are to work, then with the tensors.
    """
    results = []
    precision = torch.float64 if device == "cpu" else torch.float32
    for function, place, dtype in (
        (operation, device, precision),
        (reference, "cpu", torch.float64),
    ):
        # Copies, or the gradients of both would add up in one place and always be equal.
        leaves = [tensor.to(place, dtype, copy=True).requires_grad_() for tensor in tensors]
        out = function(place, *leaves)
        out.backward(torch.cos(torch.arange(out.numel(), device=place).view_as(out)).to(out))
        results.append([t.detach().cpu().double() for t in (out, *(leaf.grad for leaf in leaves))])
    tolerance = 1e-11 if device == "cpu" else 1e-4
    for found, expected in zip(*results, strict=True):
        scale = expected.abs().max().clamp(min=1)
        torch.testing.assert_close(found / scale, expected / scale, rtol=tolerance, atol=tolerance)


def gradients_by_threads(work: Callable[..., Tensor], tensors: Any) -> list[list[Tensor]]:
    """What a number worked out of these tensors changes by in each, with one thread and three."""
    threads, results = torch.get_num_threads(), []
    for count in (1, 3):
        torch.set_num_threads(count)
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        results.append([*torch.autograd.grad(work(*leaves), leaves)])
    torch.set_num_threads(threads)
    return results
