"""The same operations in a few lines of PyTorch each: the reference, on any device.

They materialise one row per entry; tests hold the compiled kernels against them, and they serve
where neither numba (CPU) nor Triton (GPU) applies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.kernels.pattern import Pattern


def _rows(pattern: Pattern) -> Tensor:
    return pattern.recipients.long()


def mix(pattern: Pattern, order: Tensor, coefficients: Tensor, table: Tensor) -> Tensor:
    """Σ_t coefficients · table over each row's entries."""
    messages = table[pattern.indices].unflatten(1, (coefficients.shape[1], -1))
    weighted = (coefficients[order].unsqueeze(-1) * messages).flatten(1)
    return table.new_zeros(pattern.num_rows, table.shape[1]).index_add(0, _rows(pattern), weighted)


def dot(pattern: Pattern, gradient: Tensor, table: Tensor, groups: int) -> Tensor:
    """⟨gradient of the row, table row⟩ per entry and group, [T, G]."""
    product = gradient[pattern.recipients] * table[pattern.indices]
    return product.unflatten(1, (groups, -1)).sum(-1)


def segment_sum(pattern: Pattern, order: Tensor, values: Tensor) -> Tensor:
    """Σ of ``values`` [T, G] over each row's entries, [N, G]."""
    out = values.new_zeros(pattern.num_rows, values.shape[1])
    return out.index_add(0, _rows(pattern), values[order])


def segment_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Softmax of ``scores`` [T, G] over each row's entries."""
    index = _rows(pattern).unsqueeze(1).expand_as(scores)
    top = scores.new_zeros(pattern.num_rows, scores.shape[1])
    top = top.scatter_reduce(0, index, scores, "amax", include_self=False)
    powers = (scores - top[pattern.recipients]).exp()
    return powers / segment_sum(pattern, pattern.identity, powers)[pattern.recipients]


def segment_softmax_gradient(pattern: Pattern, shares: Tensor, gradient: Tensor) -> Tensor:
    """α (∂α − Σ α ∂α), [T, G]."""
    weighted = shares * gradient
    return weighted - shares * segment_sum(pattern, pattern.identity, weighted)[pattern.recipients]


def pair_scores(
    pattern: Pattern,
    attention: Tensor,
    source: Tensor,
    recipient: Tensor,
    slope: float,
    groups: int,
) -> Tensor:
    """a · leaky(source_a + recipient_v) per entry and group, [T, G]."""
    pairs = source[pattern.indices] + recipient[pattern.recipients]
    activated = torch.nn.functional.leaky_relu(pairs, slope)
    return (attention * activated).unflatten(1, (groups, -1)).sum(-1)


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
    pairs = here[pattern.recipients] + there[pattern.indices]
    factor = torch.where(pairs > 0, 1.0, slope).to(pairs.dtype)
    width = here.shape[1] // gradient.shape[1]
    weight = gradient[order].repeat_interleave(width, dim=1)
    out = torch.zeros_like(here).index_add(0, _rows(pattern), weight * attention * factor)
    return out, (weight * factor * pairs).sum(0)
