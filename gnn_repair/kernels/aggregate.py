"""Sparse operations with gradients, the same on every device.

One :class:`Pattern` (who reads whom), four operations over its entries. All numbers an entry
carries are laid out [T, G]; a table row holds K = G·D channels, D for each of the G coefficients,
so members and attention heads are just more groups. On the CPU numba kernels do the work, on a
GPU Triton kernels; elsewhere the plain forms, a few lines of PyTorch that the kernels are held
against.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_repair.errors import InputError
from gnn_repair.startup import collection_paused

ON_CPU = ("aggregate", "sets")
"""Operations that numba compiles; products are PyTorch's own on the CPU."""
LEVELS = 1 << 16
"""The CPU draws 16 bits an element, so probabilities are multiples of 1/65536 there."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which columns (sources) each row (recipient) reads: a CSR matrix without its values."""

    indptr: Tensor
    """[N + 1] int64: entries of row v are ``indptr[v] : indptr[v + 1]``."""
    indices: Tensor
    """[T] int32: the column of each entry."""
    num_columns: int
    """M."""

    @classmethod
    def from_entries(cls, edge_index: Tensor, num_nodes: int) -> tuple[Pattern, Tensor]:
        """The pattern of a PyG ``edge_index`` [2, T] (source, recipient), rows sorted.

        Returns the pattern and ``order`` [T]: entry t of the pattern is column ``order[t]`` of
        ``edge_index``. Duplicate entries stay separate terms.
        """
        source, recipient = edge_index
        order = torch.argsort(recipient * num_nodes + source, stable=True)
        indptr = _row_ends(recipient, num_nodes)
        return cls(indptr, source[order].int().contiguous(), num_nodes), order

    @classmethod
    def from_dense(cls, matrix: Tensor) -> tuple[Pattern, Tensor]:
        """The nonzeros of a matrix [N, M]: where they are, and their values [T]."""
        row, column = matrix.nonzero().unbind(1)
        indptr = _row_ends(row, matrix.shape[0])
        return cls(indptr, column.int(), matrix.shape[1]), matrix[row, column]

    @property
    def num_rows(self) -> int:
        """N."""
        return self.indptr.numel() - 1

    @cached_property
    def recipients(self) -> Tensor:
        """[T] int32: the row of each entry."""
        rows = torch.arange(self.num_rows, dtype=torch.int32, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff())

    @cached_property
    def identity(self) -> Tensor:
        """[T] int32: 0, 1, 2, … — the place of each entry's coefficient."""
        return torch.arange(self.indices.numel(), dtype=torch.int32, device=self.indices.device)

    @cached_property
    def transposed(self) -> tuple[Pattern, Tensor]:
        """The pattern by columns, and ``order`` [T] int32: where its entries stand in this one."""
        order = torch.argsort(self.indices, stable=True)
        indptr = _row_ends(self.indices, self.num_columns)
        return Pattern(indptr, self.recipients[order], self.num_rows), order.int()

    def to(self, device: str | torch.device) -> Pattern:
        """The same pattern on another device."""
        return Pattern(self.indptr.to(device), self.indices.to(device), self.num_columns)


def _row_ends(rows: Tensor, count: int) -> Tensor:
    """Where the entries of each of ``count`` rows begin and the last one's end, [count + 1]."""
    counts = torch.bincount(rows, minlength=count)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


# Which compiled kernels work on a tensor, and the sizes of what they are given -------------------


def kernel_module(operations: str, tensor: Tensor) -> Any:
    """The module of kernels for such tensors; None: plain PyTorch does the work."""
    kind, dtype = tensor.device.type, tensor.dtype
    if kind == "cpu" and operations in ON_CPU and dtype in (torch.float32, torch.float64):
        return _loaded("cpu")
    if kind == "cuda" and dtype == torch.float32 and importlib.util.find_spec("triton"):
        return _loaded(f"{operations}_gpu")
    return None


@cache
def _loaded(name: str) -> ModuleType:
    with collection_paused():
        return importlib.import_module(f"gnn_repair.kernels.{name}")


def check_sizes(name: str, tensor: Tensor, *sizes: int | None) -> None:
    """Raise unless the tensor's axes have these sizes (None: any): kernels read unchecked."""
    shape = tensor.shape
    fits = len(shape) == len(sizes) and all(
        size is None or size == have for size, have in zip(sizes, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise InputError(f"{name} has shape {list(shape)} instead of [{wanted}]")


def check_groups(name: str, channels: int, groups: int) -> None:
    """Raise unless the channels divide evenly among the groups."""
    if groups < 1 or channels % groups:
        raise InputError(f"{name} has {channels} channels, which {groups} groups cannot share")


# The operations -----------------------------------------------------------------------------------


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
    if kernel_module("aggregate", table) is None:
        return plain_mix(pattern, coefficients, table)
    return _Mix.apply(pattern, coefficients, table)  # type: ignore[no-untyped-call]


def segment_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Softmax of ``scores`` [T, G] over the entries of each row."""
    check_sizes("scores", scores, pattern.indices.numel(), None)
    if kernel_module("aggregate", scores) is None:
        return plain_softmax(pattern, scores)
    return _SegmentSoftmax.apply(pattern, scores)  # type: ignore[no-untyped-call]


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
    if kernel_module("aggregate", source) is None:
        return plain_pair_scores(pattern, attention, source, recipient, groups, slope)
    return _PairScores.apply(  # type: ignore[no-untyped-call]
        pattern, attention, source, recipient, groups, slope
    )


def pair_sums(pattern: Pattern, by_source: Tensor, by_recipient: Tensor) -> Tensor:
    """by_source[source] + by_recipient[recipient] for every entry, [T, G]."""
    check_sizes("by_source", by_source, pattern.num_columns, None)
    check_sizes("by_recipient", by_recipient, pattern.num_rows, by_source.shape[1])
    if kernel_module("aggregate", by_source) is None:
        return by_source[pattern.indices] + by_recipient[pattern.recipients]
    return _Spread.apply(pattern, by_source, by_recipient)  # type: ignore[no-untyped-call]


# Dropout of node values --------------------------------------------------------------------------


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


# The plain forms ----------------------------------------------------------------------------------


def plain_mix(pattern: Pattern, coefficients: Tensor, table: Tensor) -> Tensor:
    """:func:`mix` with a row per entry."""
    messages = table[pattern.indices].unflatten(1, (coefficients.shape[1], -1))
    weighted = (coefficients.unsqueeze(-1) * messages).flatten(1)
    return _row_sums(pattern, weighted)


def plain_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """:func:`segment_softmax`."""
    index = pattern.recipients.long().unsqueeze(1).expand_as(scores)
    top = scores.detach().new_zeros(pattern.num_rows, scores.shape[1])
    top = top.scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
    powers = (scores - top[pattern.recipients]).exp()
    return powers / _row_sums(pattern, powers)[pattern.recipients]


def plain_pair_scores(
    pattern: Pattern,
    attention: Tensor,
    source: Tensor,
    recipient: Tensor,
    groups: int,
    slope: float,
) -> Tensor:
    """:func:`pair_scores`."""
    pairs = source[pattern.indices] + recipient[pattern.recipients]
    activated = torch.nn.functional.leaky_relu(pairs, slope)
    return (attention * activated).unflatten(1, (groups, -1)).sum(-1)


def _row_sums(pattern: Pattern, values: Tensor) -> Tensor:
    """Sums of values [T, k] over each row's entries, [N, k]."""
    out = values.new_zeros(pattern.num_rows, values.shape[1])
    return out.index_add(0, pattern.recipients.long(), values)


# The compiled forms with their gradients ----------------------------------------------------------


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: Pattern, coefficients: Tensor, table: Tensor) -> Tensor:
        coefficients, table = coefficients.contiguous(), table.contiguous()
        ctx.pattern = pattern
        ctx.save_for_backward(coefficients, table)
        return kernel_module("aggregate", table).mix(pattern, pattern.identity, coefficients, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        coefficients, table = ctx.saved_tensors
        gradient = gradient.contiguous()
        kernels = kernel_module("aggregate", table)
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
        shares: Tensor = kernel_module("aggregate", scores).segment_softmax(
            pattern, scores.contiguous()
        )
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (shares,) = ctx.saved_tensors
        kernels = kernel_module("aggregate", shares)
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
        return kernel_module("aggregate", source).pair_scores(
            pattern, attention, source, recipient, slope, groups
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        attention, source, recipient = ctx.saved_tensors
        kernels, slope, gradient = (
            kernel_module("aggregate", source),
            ctx.slope,
            gradient.contiguous(),
        )
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
    def forward(ctx: Any, pattern: Pattern, by_source: Tensor, by_recipient: Tensor) -> Tensor:
        ctx.pattern = pattern
        return by_source[pattern.indices].add_(by_recipient[pattern.recipients])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        kernels, gradient = kernel_module("aggregate", gradient), gradient.contiguous()
        pattern: Pattern = ctx.pattern
        transposed, order = pattern.transposed
        by_source = kernels.segment_sum(transposed, order, gradient)
        return None, by_source, kernels.segment_sum(pattern, pattern.identity, gradient)
