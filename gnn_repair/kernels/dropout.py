"""Dropout that costs little on the CPU too, the same for a member in a stack and alone.

Members share their masks. Each is trained as if alone with the run's seed, so what it draws must
depend neither on its place in the stack nor on who else is there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_repair.kernels.dispatch import compiled

LEVELS = 1 << 16
"""The CPU draws 16 bits an element, so probabilities are multiples of 1/65536 there."""
LOW = 0xFFFFFFFF
"""32 bits."""


def drop(values: Tensor, probability: float) -> Tensor:
    """Zero elements of node values [N, S, …] with this probability and scale the rest.

    All S members have one mask. PyTorch's CPU dropout spends most of a training step in its
    Bernoulli draws (about 12 ns an element); raw 16-bit draws of a small fast generator, seeded
    from PyTorch's own, take one.
    """
    if probability == 0:
        return values
    shape = values.shape[0], 1, *values.shape[2:]
    if values.device.type != "cpu":
        return values * torch.nn.functional.dropout(values.new_ones(shape), probability)
    seed, count = int(torch.randint(1 << 62, ())), values[:, :1].numel()
    words = np.random.SFC64(seed).random_raw(-(-count // 4))
    draws = words.view(np.uint16)[:count].reshape(shape)
    kept = torch.from_numpy(draws >= round(probability * LEVELS))
    return values * (kept.to(values.dtype) / (1 - probability))


def mixed_hash(value: Tensor) -> Tensor:
    """A 32-bit mixing function on int64 tensors that hold 32-bit values."""
    value = value ^ (value >> 16)
    value = (value * 0x21F0AAAD) & LOW
    value = value ^ (value >> 15)
    value = (value * 0xD35A2D97) & LOW
    return value ^ (value >> 15)


def row_hash(seed: Tensor, row: Tensor) -> Tensor:
    """A 32-bit number for every row, int64 like ``row``; another seed, other numbers."""
    return mixed_hash(mixed_hash(seed & LOW) ^ ((row * 0x9E3779B1) & LOW))


def kept(seed: Tensor, share: float, row: Tensor, channels: int) -> Tensor:
    """Which channels of which rows survive when ``share`` is dropped, bool [rows, channels]."""
    channel = torch.arange(channels, device=row.device)
    value = mixed_hash((row_hash(seed, row).unsqueeze(1) + channel * 0x9E3779B9) & LOW)
    return value >= round(share * 2**32)


def drop_rows(values: Tensor, share: float, seed: Tensor) -> Tensor:
    """Dropout of member-major values [S, L, H]; a hash of (seed, row, channel) decides.

    Row l has the same mask whatever L is, so padding does not change what a member draws.
    """
    if compiled("sets", values) is None:
        return drop_rows_plainly(values, share, seed)
    out: Tensor = _DropRows.apply(values, share, seed)  # type: ignore[no-untyped-call]
    return out


def _kernels(tensor: Tensor) -> Any:
    return compiled("sets", tensor)


class _DropRows(torch.autograd.Function):
    """The mask is drawn again for the gradient, never stored."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, share: float, seed: Tensor) -> Tensor:
        ctx.share = share
        ctx.save_for_backward(seed)
        return _kernels(values).drop_rows(values.detach().contiguous(), seed, share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (seed,) = ctx.saved_tensors
        return _kernels(upstream).drop_rows(upstream.contiguous(), seed, ctx.share), None, None


def drop_rows_plainly(values: Tensor, share: float, seed: Tensor) -> Tensor:
    """The same in PyTorch's own operations: the reference."""
    rows = torch.arange(values.shape[1], device=values.device)
    mask = kept(seed, share, rows, values.shape[2]).to(values.dtype)
    return values * (mask / (1 - share))
