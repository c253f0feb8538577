"""The two operations of a set-conditioned repair, with gradients, the same on every device.

A repair's first affine layer acts on a pair (recipient v, message a), and splits into a table by
recipient, a table by message and two frozen numbers a term (see :class:`Layer`), so

    hidden_{v,a} = drop(relu(recipient_v + source_a + cos_{v,a} · cosine + dist_{v,a} · distance))

is formed on the fly and never stored. :func:`pool` sums it over a recipient's terms, :func:`tilt`
scores each term with it and mixes contributions by the tilted coefficients. Both work on targets
[S, L]: each of S members has its own L recipients, each with its complete set of terms.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_repair.kernels.aggregate import backend
from gnn_repair.kernels.sizes import check_sizes

BOUND = 4.0
"""Scores and shifts are BOUND · tanh(·)."""


@dataclass(frozen=True, eq=False)
class TermSets:
    """The terms of n recipients in G groups, and what is frozen about them."""

    segments: Tensor
    """[n·G + 1] int64: where the terms of recipient i and group g begin is ``segments[i·G+g]``."""
    groups: int
    """G."""
    columns: Tensor
    """[T] int32: the row of ``Layer.source`` a term reads."""
    rows: Tensor
    """[T] int32: the row of the contributions a term reads."""
    coefficients: Tensor
    """[S or 1, T]: α, which also weights the pooled set."""
    cosine: Tensor
    """[S or 1, T]: cos(h_v, h_a)."""
    distance: Tensor
    """[S or 1, T]: ‖h_a − h_v‖."""

    @cached_property
    def longest(self) -> int:
        """Terms of the largest set."""
        ends = self.segments[:: self.groups]
        return int(ends.diff().max()) if ends.numel() > 1 else 0


class Layer(NamedTuple):
    """The first affine layer on pairs, split into its parts (H channels)."""

    recipient: Tensor
    """[S, L, H]: by target."""
    source: Tensor
    """[S, P, H]: by message."""
    cosine: Tensor
    """[S, H]."""
    distance: Tensor
    """[S, H]."""


class ReadRows(NamedTuple):
    """The rows of ``Layer.source`` that each member's targets read."""

    numbers: Tensor
    """[S, P]: those that are read first, each once, in any order; the rest means nothing."""
    counts: Tensor
    """[S]: how many are read."""


class Dropout(NamedTuple):
    """Which hidden channels are dropped: a hash of (seed, term, channel) decides."""

    share: float
    seed: Tensor
    """int64 scalar on the device: a captured CUDA graph reads its present value."""

    @property
    def threshold(self) -> int:
        """A channel is dropped when its 32-bit hash is below this."""
        return round(self.share * 2**32)

    @property
    def scale(self) -> float:
        """What kept channels are multiplied by."""
        return 1.0 / (1.0 - self.share)


@cache
def _implementation(device: str) -> ModuleType:
    name = backend(device).__name__.rpartition(".")[2]
    return importlib.import_module(f"gnn_repair.kernels.sets.{name}")


_FORCED: list[ModuleType] = []


@contextmanager
def plainly() -> Iterator[None]:
    """Inside, the plain PyTorch form does the work on every device (for comparisons)."""
    _FORCED.append(importlib.import_module("gnn_repair.kernels.sets.plain"))
    try:
        yield
    finally:
        _FORCED.pop()


def _kernels(tensor: Tensor) -> Any:
    return _FORCED[-1] if _FORCED else _implementation(tensor.device.type)


def _plain() -> Any:
    return importlib.import_module("gnn_repair.kernels.sets.plain")


def _varies(*frozen: Tensor) -> bool:
    """Whether gradients are wanted of what is frozen while a repair learns: the kernels give none
    there, the plain form does."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in frozen)


def no_dropout(like: Tensor) -> Dropout:
    """Nothing is dropped."""
    return Dropout(0.0, torch.zeros((), dtype=torch.long, device=like.device))


def pool(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout | None = None) -> Tensor:
    """Σ_a α_{v,a} hidden_{v,a} over each target's terms, [S, L, H].

    Args:
        sets: the terms.
        targets: [S, L] int64, positions among the recipients.
        layer: the tables; gradients flow to all four.
        dropout: none unless given.
    """
    _check_layer(sets, targets, layer)
    if _varies(sets.coefficients, sets.cosine, sets.distance):
        return _plain().pool_reference(sets, targets, layer, dropout or no_dropout(targets))
    out: Tensor = _Pool.apply(sets, targets, dropout or no_dropout(targets), *layer)  # type: ignore[no-untyped-call]
    return out


def tilt(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    output: Tensor,
    bias: Tensor,
    contributions: Tensor,
    dropout: Dropout | None = None,
) -> Tensor:
    """Σ_a α e^s [ℓ_a, 1] over each target's groups, s = 4 tanh(hidden · output + bias).

    Args:
        sets: the terms.
        targets: [S, L] int64, positions among the recipients.
        layer: the tables.
        output: [S, H], the scorer's last weight.
        bias: [S], its bias.
        contributions: ℓ, [S, R, C] (no gradient).
        dropout: none unless given.

    Returns:
        [S, L, G, C + 1]: the mixture, then the total α e^s; zero where a group is absent.
    """
    _check_layer(sets, targets, layer)
    check_sizes("output", output, *layer.cosine.shape)
    check_sizes("bias", bias, targets.shape[0])
    check_sizes("contributions", contributions, targets.shape[0], None, None)
    out: Tensor = _Tilt.apply(  # type: ignore[no-untyped-call]
        sets, targets, contributions, dropout or no_dropout(targets), output, bias, *layer
    )
    return out


def rows_read(sets: TermSets, targets: Tensor, rows: int) -> ReadRows:
    """Which of ``rows`` rows the terms of targets [S, L] read."""
    check_sizes("targets", targets, None, None)
    read: ReadRows = _kernels(targets).rows_read(sets, targets, rows)
    return read


def _check_layer(sets: TermSets, targets: Tensor, layer: Layer) -> None:
    check_sizes("targets", targets, None, None)
    members, count = targets.shape
    channels = layer.recipient.shape[-1]
    check_sizes("layer.recipient", layer.recipient, members, count, channels)
    check_sizes("layer.source", layer.source, members, None, channels)
    check_sizes("layer.cosine", layer.cosine, members, channels)
    check_sizes("layer.distance", layer.distance, members, channels)
    check_sizes("sets.rows", sets.rows, sets.columns.numel())
    for name in ("coefficients", "cosine", "distance"):
        check_sizes(f"sets.{name}", getattr(sets, name), None, sets.columns.numel())


def compare(
    segments: Tensor, columns: Tensor, recipients: Tensor, sources: Tensor
) -> tuple[Tensor, Tensor]:
    """h_v · h_a and ‖h_a − h_v‖² of every term, each [S, T].

    Args:
        segments: [n + 1] int64, the terms of each recipient.
        columns: [T] int32, the source row of each term.
        recipients: h_v, [S, n, d].
        sources: h_a, [S, P, d].
    """
    check_sizes("recipients", recipients, None, segments.numel() - 1, None)
    check_sizes("sources", sources, recipients.shape[0], None, recipients.shape[2])
    kernels = _plain() if _varies(recipients, sources) else _kernels(recipients)
    products, squares = kernels.compare(segments, columns, recipients, sources)
    return products, squares


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sets: TermSets, targets: Tensor, dropout: Dropout, *tables: Tensor
    ) -> Tensor:
        layer = Layer(*(table.contiguous() for table in tables))
        ctx.sets, ctx.dropout = sets, dropout
        ctx.save_for_backward(targets, *layer)
        out: Tensor = _kernels(targets).pool(sets, targets, layer, dropout)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        targets, *tables = ctx.saved_tensors
        gradients = _kernels(targets).pool_gradient(
            ctx.sets, targets, Layer(*tables), ctx.dropout, gradient.contiguous()
        )
        return None, None, None, *gradients


class _Tilt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sets: TermSets,
        targets: Tensor,
        contributions: Tensor,
        dropout: Dropout,
        output: Tensor,
        bias: Tensor,
        *tables: Tensor,
    ) -> Tensor:
        layer = Layer(*(table.contiguous() for table in tables))
        output, bias = output.contiguous(), bias.contiguous()
        ctx.sets, ctx.dropout = sets, dropout
        out, kept = _kernels(targets).tilt(
            sets, targets, layer, output, bias, contributions, dropout
        )
        ctx.save_for_backward(targets, contributions, output, bias, kept, *layer)
        mixed: Tensor = out
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        targets, contributions, output, bias, kept, *tables = ctx.saved_tensors
        gradients = _kernels(targets).tilt_gradient(
            ctx.sets,
            targets,
            Layer(*tables),
            output,
            bias,
            contributions,
            ctx.dropout,
            kept,
            gradient.contiguous(),
        )
        return None, None, None, None, *gradients
