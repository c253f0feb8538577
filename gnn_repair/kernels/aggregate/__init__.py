"""Sparse operations with gradients, the same on every device.

One :class:`Pattern` (who reads whom), four operations over its entries. All numbers an entry
carries are laid out [T, G]; a table row holds K = G·D channels, D for each of the G coefficients,
so members and attention heads are just more groups. On the CPU numba kernels do the work, on a
GPU Triton kernels, elsewhere plain PyTorch; all three agree.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from gnn_repair.kernels.pattern import Pattern
from gnn_repair.kernels.sizes import check_groups, check_sizes
from gnn_repair.startup import collection_paused


@cache
def backend(device: str) -> ModuleType:
    """The module that implements the operations on this kind of device."""
    if device == "cpu":
        name = "cpu"
    elif device == "cuda" and importlib.util.find_spec("triton") is not None:
        name = "gpu"
    else:
        name = "plain"
    with collection_paused():
        return importlib.import_module(f"gnn_repair.kernels.aggregate.{name}")


def mix(pattern: Pattern, coefficients: Tensor, table: Tensor) -> Tensor:
    """Weighted sums of table rows: out_v = Σ_t coefficients_t · table[indices_t].

    Args:
        pattern: N rows, T entries over M columns.
        coefficients: [T], or [T, G] with one coefficient for every D = K / G channels.
        table: [M, K].

    Returns:
        [N, K]; differentiable in both coefficients and table.
    """
    if coefficients.dim() == 1:
        coefficients = coefficients.unsqueeze(1)
    check_sizes("coefficients", coefficients, pattern.indices.numel(), None)
    check_sizes("table", table, pattern.num_columns, None)
    check_groups("table", table.shape[1], coefficients.shape[1])
    out: Tensor = _Mix.apply(pattern, coefficients, table)  # type: ignore[no-untyped-call]
    return out


def segment_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Softmax of ``scores`` [T, G] over the entries of each row."""
    check_sizes("scores", scores, pattern.indices.numel(), None)
    out: Tensor = _SegmentSoftmax.apply(pattern, scores)  # type: ignore[no-untyped-call]
    return out


def pair_scores(
    pattern: Pattern,
    attention: Tensor,
    source: Tensor,
    recipient: Tensor,
    groups: int,
    slope: float,
) -> Tensor:
    """Scores a · leaky_relu(source_a + recipient_v) of every entry, [T, G].

    Args:
        pattern: N rows, T entries over M columns.
        attention: [K], K = G·D.
        source: [M, K].
        recipient: [N, K].
        groups: G.
        slope: of the leaky ReLU.
    """
    check_sizes("attention", attention, None)
    check_groups("attention", attention.numel(), groups)
    check_sizes("source", source, pattern.num_columns, attention.numel())
    check_sizes("recipient", recipient, pattern.num_rows, attention.numel())
    out: Tensor = _PairScores.apply(  # type: ignore[no-untyped-call]
        pattern, attention, source, recipient, groups, slope
    )
    return out


def spread(pattern: Pattern, by_source: Tensor, by_recipient: Tensor) -> Tensor:
    """by_source[source] + by_recipient[recipient] for every entry, [T, G]."""
    check_sizes("by_source", by_source, pattern.num_columns, None)
    check_sizes("by_recipient", by_recipient, pattern.num_rows, by_source.shape[1])
    out: Tensor = _Spread.apply(pattern, by_source, by_recipient)  # type: ignore[no-untyped-call]
    return out


def _kernels(tensor: Tensor) -> Any:
    return backend(tensor.device.type)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: Pattern, coefficients: Tensor, table: Tensor) -> Tensor:
        coefficients, table = coefficients.contiguous(), table.contiguous()
        ctx.pattern = pattern
        ctx.save_for_backward(coefficients, table)
        out: Tensor = _kernels(table).mix(pattern, pattern.identity, coefficients, table)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        coefficients, table = ctx.saved_tensors
        gradient = gradient.contiguous()
        kernels = _kernels(table)
        by_coefficients = by_table = None
        if ctx.needs_input_grad[1]:
            by_coefficients = kernels.dot(ctx.pattern, gradient, table, coefficients.shape[1])
        if ctx.needs_input_grad[2]:
            transposed, order = ctx.pattern.transposed
            by_table = kernels.mix(transposed, order, coefficients, gradient)
        return None, by_coefficients, by_table


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: Pattern, scores: Tensor) -> Tensor:
        ctx.pattern = pattern
        shares: Tensor = _kernels(scores).segment_softmax(pattern, scores.contiguous())
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (shares,) = ctx.saved_tensors
        kernels = _kernels(shares)
        return None, kernels.segment_softmax_gradient(ctx.pattern, shares, gradient.contiguous())


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pattern: Pattern,
        attention: Tensor,
        source: Tensor,
        recipient: Tensor,
        groups: int,
        slope: float,
    ) -> Tensor:
        attention, source, recipient = (
            tensor.contiguous() for tensor in (attention, source, recipient)
        )
        ctx.pattern, ctx.slope = pattern, slope
        ctx.save_for_backward(attention, source, recipient)
        out: Tensor = _kernels(source).pair_scores(
            pattern, attention, source, recipient, slope, groups
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        attention, source, recipient = ctx.saved_tensors
        kernels, slope, gradient = _kernels(source), ctx.slope, gradient.contiguous()
        pattern: Pattern = ctx.pattern
        by_recipient, by_attention = kernels.pair_gradient(
            pattern, pattern.identity, attention, recipient, source, slope, gradient
        )
        transposed, order = pattern.transposed
        by_source, _ = kernels.pair_gradient(
            transposed, order, attention, source, recipient, slope, gradient
        )
        return None, by_attention, by_source, by_recipient, None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, pattern: Pattern, by_source: Tensor, by_recipient: Tensor
    ) -> Tensor:
        ctx.pattern = pattern  # type: ignore[attr-defined]
        return by_source[pattern.indices].add_(by_recipient[pattern.recipients])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        kernels, gradient = _kernels(gradient), gradient.contiguous()
        pattern: Pattern = ctx.pattern
        transposed, order = pattern.transposed
        by_source = kernels.segment_sum(transposed, order, gradient)
        return None, by_source, kernels.segment_sum(pattern, pattern.identity, gradient)
