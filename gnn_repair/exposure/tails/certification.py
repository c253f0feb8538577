"""Comparing a tail with the real model run on reweighted messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gnn_repair.exposure.certification import DRAWS, LARGE, random_admissible
from gnn_repair.exposure.probes import deviation
from gnn_repair.exposure.tails.operations import TailGraph
from gnn_repair.exposure.value import Exposure


def certify_tail(
    aggregate: Exposure, tail: TailGraph, frozen: Tensor, replay: Callable[[Tensor], Tensor]
) -> float:
    """Largest |model(λ) − T(a(λ))| / max(1, |z|) over nodes, random λ and random vertices.

    Args:
        aggregate: the mixture before the tail.
        tail: T.
        frozen: [N, C] the model's own logits.
        replay: the model itself.
    """
    worst = 0.0
    for coefficients in _draws(aggregate):
        # The model sees λ in its own precision, and so must the prediction.
        coefficients = coefficients.to(aggregate.coefficients.dtype)
        expected = tail(aggregate.logits(coefficients.unsqueeze(0))[0], aggregate.recipients)
        seen = replay(coefficients)
        gap = deviation(seen, expected, frozen.double())
        worst = max(worst, float(gap.nan_to_num(nan=torch.inf).max()))
    return worst


def _draws(aggregate: Exposure) -> Iterator[Tensor]:
    """Inside the polytope, and at its corners, where every kink of the tail lies between."""
    small = aggregate.num_terms < LARGE
    for draw in range(DRAWS if small else 1):
        yield random_admissible(aggregate, seed=draw)
    if small:
        yield random_vertex(aggregate, seed=DRAWS)


def random_vertex(exposure: Exposure, seed: int) -> Tensor:
    """λ [T] that gives a group's whole mass to one of its terms, drawn for every group."""
    lengths = exposure.segments.diff()
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(lengths.numel(), generator=generator, dtype=torch.float64)
    offset = (shares.to(lengths.device) * lengths).long().clamp(max=lengths - 1)
    present = lengths > 0
    out = exposure.coefficients.new_zeros(exposure.num_terms, dtype=torch.float64)
    out[(exposure.segments[:-1] + offset)[present]] = exposure.mass.view(-1)[present]
    return out
