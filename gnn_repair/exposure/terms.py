"""Terms as they lie in memory: their sums, and those of some recipients."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.kernels import Pattern, mix


def mixture_of(terms: Pattern, coefficients: Tensor, contributions: Tensor) -> Tensor:
    """Σ λ ℓ of every recipient, [S, n, C].

    Args:
        terms: recipients × rows of the table.
        coefficients: λ, [S or 1, T].
        contributions: ℓ, the table [S, R, C].
    """
    members, rows, classes = contributions.shape
    table = contributions.transpose(0, 1).reshape(rows, members * classes)
    mixed = mix(terms, coefficients.to(table.dtype).t().contiguous(), table)
    return mixed.view(-1, members, classes).transpose(0, 1)


def cut_terms(segments: Tensor, groups: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Segments and term numbers of the recipients at ``positions``."""
    index = (positions.unsqueeze(1) * groups + torch.arange(groups, device=positions.device)).view(
        -1
    )
    lengths = segments.diff()[index]
    cut = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shift = torch.repeat_interleave(segments[index] - cut[:-1], lengths)
    return cut, torch.arange(int(cut[-1]), device=cut.device) + shift
