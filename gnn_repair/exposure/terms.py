"""Terms and tables as they lie in memory: sums, those of some recipients, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

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


NUMBERS = 1 << 22
"""Numbers of a table that are looked at together: 32 MB in double precision, where a graph of a
million nodes has tables ten times as large and a comparison holds five of them."""


def slices(rows: int, width: int) -> Iterator[slice]:
    """The rows of a table so wide, in order; at least one slice, which may be empty."""
    step = max(1, NUMBERS // max(1, width))
    for start in range(0, max(1, rows), step):
        yield slice(start, min(start + step, rows))
