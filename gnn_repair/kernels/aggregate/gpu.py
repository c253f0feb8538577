"""GPU implementations: launches of the Triton kernels (float32; other types go the plain way)."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from gnn_repair.budget import Budget
from gnn_repair.kernels.aggregate import plain
from gnn_repair.kernels.aggregate import triton_kernels as kernels
from gnn_repair.kernels.pattern import Pattern

TILE = 2048
"""Elements one program holds at a time."""


def _tile(width: int, widest: int) -> int:
    return int(min(triton.next_power_of_2(width), widest))


def _rows(pattern: Pattern, width: int, widest: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and block sizes of a kernel with one program per row and block of columns."""
    block = _tile(width, widest)
    mean = max(1, pattern.indices.numel() // max(1, pattern.num_rows))
    deep = _tile(4 * mean, max(2, TILE // block))
    return (pattern.num_rows, triton.cdiv(width, block)), {"BLOCK_T": deep, "wide": block}


def _entries(total: int, groups: int, width: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and block sizes of a kernel with one program per block of entries."""
    channels = _tile(width, 128)
    chosen = _tile(groups, max(1, 128 // channels))
    blocks = {"BLOCK_T": TILE // (channels * chosen), "BLOCK_G": chosen, "BLOCK_D": channels}
    return (triton.cdiv(total, blocks["BLOCK_T"]), triton.cdiv(groups, chosen)), blocks


def mix(pattern: Pattern, order: Tensor, coefficients: Tensor, table: Tensor) -> Tensor:
    """Σ_t coefficients · table over each row's entries."""
    if table.dtype != torch.float32:
        return plain.mix(pattern, order, coefficients, table)
    width, groups = table.shape[1], coefficients.shape[1]
    out = table.new_empty(pattern.num_rows, width)
    grid, blocks = _rows(pattern, width, 128)
    blocks["BLOCK_K"] = blocks.pop("wide")
    operands = (pattern.indptr, pattern.indices, order, coefficients, table, out)
    kernels.mix_rows[grid](*operands, width, groups, width // groups, **blocks)
    return out


def dot(pattern: Pattern, gradient: Tensor, table: Tensor, groups: int) -> Tensor:
    """⟨gradient of the row, table row⟩ per entry and group, [T, G]."""
    if table.dtype != torch.float32:
        return plain.dot(pattern, gradient, table, groups)
    total, width = pattern.indices.numel(), table.shape[1] // groups
    out = table.new_empty(total, groups)
    grid, blocks = _entries(total, groups, width)
    operands = (pattern.recipients, pattern.indices, gradient, table, out)
    kernels.dot_entries[grid](*operands, total, groups, width, **blocks)
    return out


def segment_sum(pattern: Pattern, order: Tensor, values: Tensor) -> Tensor:
    """Σ of ``values`` [T, G] over each row's entries, [N, G]."""
    if values.dtype != torch.float32:
        return plain.segment_sum(pattern, order, values)
    out = values.new_empty(pattern.num_rows, values.shape[1])
    _launch_groups(kernels.sum_rows, pattern, (order, values, out), values.shape[1])
    return out


def segment_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Softmax of ``scores`` [T, G] over each row's entries."""
    if scores.dtype != torch.float32:
        return plain.segment_softmax(pattern, scores)
    out = torch.empty_like(scores)
    _launch_groups(kernels.softmax_rows, pattern, (scores, out), scores.shape[1])
    return out


def segment_softmax_gradient(pattern: Pattern, shares: Tensor, gradient: Tensor) -> Tensor:
    """α (∂α − Σ α ∂α), [T, G]."""
    if shares.dtype != torch.float32:
        return plain.segment_softmax_gradient(pattern, shares, gradient)
    out = torch.empty_like(shares)
    operands = (shares, gradient, out)
    _launch_groups(kernels.softmax_gradient_rows, pattern, operands, shares.shape[1])
    return out


def _launch_groups(
    kernel: Any, pattern: Pattern, operands: tuple[Tensor, ...], groups: int
) -> None:
    grid, blocks = _rows(pattern, groups, 32)
    blocks["BLOCK_G"] = blocks.pop("wide")
    kernel[grid](pattern.indptr, *operands, groups, **blocks)


def pair_scores(
    pattern: Pattern,
    attention: Tensor,
    source: Tensor,
    recipient: Tensor,
    slope: float,
    groups: int,
) -> Tensor:
    """a · leaky(source_a + recipient_v) per entry and group, [T, G]."""
    if source.dtype != torch.float32:
        return plain.pair_scores(pattern, attention, source, recipient, slope, groups)
    total, width = pattern.indices.numel(), source.shape[1] // groups
    out = source.new_empty(total, groups)
    grid, blocks = _entries(total, groups, width)
    operands = (pattern.recipients, pattern.indices, attention, source, recipient, out)
    kernels.pair_scores_entries[grid](*operands, total, groups, width, slope, **blocks)
    return out


def pair_gradient(
    pattern: Pattern,
    order: Tensor,
    attention: Tensor,
    here: Tensor,
    there: Tensor,
    slope: float,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`pair_scores` for the row side and for the attention vector."""
    if here.dtype != torch.float32:
        return plain.pair_gradient(pattern, order, attention, here, there, slope, gradient)
    width, groups = here.shape[1], gradient.shape[1]
    out, by_row = torch.empty_like(here), torch.empty_like(here)
    grid, blocks = _rows(pattern, width, 128)
    blocks["BLOCK_K"] = blocks.pop("wide")
    operands = (pattern.indptr, pattern.indices, order, attention, here, there, gradient)
    sizes = (width, groups, width // groups, slope)
    kernels.pair_gradient_rows[grid](*operands, out, by_row, *sizes, **blocks)
    return out, by_row.sum(0)


def adam(
    matrix: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    steps: Tensor,
    scale: Tensor,
    learning: Tensor,
    budget: Budget,
) -> None:
    """Update rows of ``matrix`` [S, Q] by their gradient times ``scale`` [S].

    ``learning`` [S] says which; ``steps`` [S] counts this update too.
    """
    members, count = matrix.shape
    block = TILE // 2
    kernels.adam[triton.cdiv(count, block), members](
        matrix, gradient.contiguous(), *moments, steps, scale, learning.view(torch.uint8), count,
        budget.learning_rate, budget.weight_decay, DECOUPLED=budget.decoupled, BLOCK=block,
    )  # fmt: skip
