"""All reweightings within a distance, as an exposure of its own.

λ with ½ Σ_{a∈g} |λ_a − α_a| ≤ d in a group is α + p − n with p, n ≥ 0 and Σp = Σn = d. So the
aggregates within the distance d are mixtures of two groups of exact mass d, messages h and −h,
around the frozen aggregate: the oracle's own bounds say whether a class can win there. That λ
stays nonnegative is left out, which only makes the set larger and the answer safer.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.value import Exposure, Group


def ball(exposure: Exposure, distance: Tensor) -> Exposure:
    """The exposure whose admissible mixtures are those of ``exposure`` within a distance.

    Args:
        exposure: on the CPU.
        distance: [n] d > 0: the mass that may move in each group of a recipient, of which no more
            can move than it has.
    """
    aggregate = exposure.aggregate
    frozen = aggregate.logits()
    everywhere = aggregate.frozen_logits.clone()
    everywhere[:, aggregate.recipients] = frozen
    table = aggregate.contributions
    pieces = Exposure(
        groups=_groups(aggregate),
        recipients=aggregate.recipients,
        segments=_segments(aggregate.segments),
        rows=_rows(aggregate),
        coefficients=_shares(aggregate, distance),
        contributions=torch.cat([table, -table], dim=1),
        fixed_logits=everywhere,
        frozen_logits=everywhere,
        state=aggregate.state.new_zeros(1, aggregate.num_nodes, 1),
        messages=aggregate.state.new_zeros(1, 1, 1),
        message_rows=torch.zeros(2 * table.shape[1], dtype=torch.int32),
        sources=aggregate.sources.repeat(2),
        origin=aggregate.origin,
        names=aggregate.names,
    )
    assert exposure.head is not None
    return pieces.with_head(exposure.head, exposure.frozen_logits, exposure.residual)


def _groups(aggregate: Exposure) -> tuple[Group, ...]:
    return tuple(
        Group(f"{group.name} ({side})", group.rule, group.coefficients_from)
        for group in aggregate.groups
        for side in ("more", "less")
    )


def _segments(segments: Tensor) -> Tensor:
    """Every segment twice, one after the other."""
    lengths = segments.diff().repeat_interleave(2)
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _twice(aggregate: Exposure) -> tuple[Tensor, Tensor]:
    """[2T]: the old term behind each new one, and whether it takes mass away."""
    lengths = aggregate.segments.diff().repeat_interleave(2)
    begins = aggregate.segments[:-1].repeat_interleave(2)
    ends = lengths.cumsum(0)
    place = torch.arange(int(lengths.sum())) - (ends - lengths).repeat_interleave(lengths)
    side = torch.arange(len(lengths)) % 2
    return begins.repeat_interleave(lengths) + place, side.repeat_interleave(lengths).bool()


def _rows(aggregate: Exposure) -> Tensor:
    term, less = _twice(aggregate)
    return aggregate.rows[term] + less.int() * aggregate.contributions.shape[1]


def _shares(aggregate: Exposure, distance: Tensor) -> Tensor:
    """[1, 2T]: the same on both sides, so that it starts at the frozen aggregate."""
    term, _ = _twice(aggregate)
    mass = aggregate.mass[0]
    scale = torch.minimum(distance.unsqueeze(1), mass) / mass.clamp(min=1e-300)
    lengths = aggregate.segments.diff()
    each = scale.reshape(-1).repeat_interleave(lengths) * aggregate.coefficients[0].double()
    return each[term].unsqueeze(0)


def change_of(exposure: Exposure, coefficients: Tensor) -> list[NDArray[np.float64]]:
    """α + p − n [K] of every recipient, for coefficients [1, 2T] of :func:`ball`."""
    mixture = exposure.aggregate
    term, less = _twice(mixture)
    signed = torch.where(less, -coefficients[0], coefficients[0])
    whole = mixture.coefficients[0].double().index_add(0, term, signed)
    ends = mixture.segments[:: mixture.num_groups].tolist()
    return [whole[a:b].numpy() for a, b in pairwise(ends)]
