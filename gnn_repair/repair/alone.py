"""What a graph's logits would be if its pools heard one of its nodes alone.

Nodes of a graph that is classified as a whole have no logits of their own. This stands in their
place where repairs describe a message by its sender's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.exposure import Exposed, Exposure, TailedExposure
from gnn_repair.exposure.terms import mixture_of
from gnn_repair.kernels import Pattern

CHUNK = 1 << 22
"""Numbers that go through a tail at once: 32 MB, and a few times that for values in between."""


def alone_logits(exposure: Exposed, sender: Tensor, count: int) -> Tensor:
    """z of a graph if it heard one sender alone, [1, count, C] float64.

    The whole mass of every group that hears the sender is on it; the other groups stay frozen.
    Senders that no graph hears are zero.

    Args:
        exposure: its recipients are graphs.
        sender: [R], from 0 to count − 1: who stands behind a table row; the same one in several
            pools.
        count: how many senders there are.
    """
    tail = exposure.tail if isinstance(exposure, TailedExposure) else None
    mixture = exposure.aggregate if isinstance(exposure, TailedExposure) else exposure
    by_term = sender.long()[mixture.rows.long()]
    slot = torch.repeat_interleave(mixture.segments.diff())
    graph = slot.new_full((count,), -1)
    graph[by_term] = mixture.recipients[slot // mixture.num_groups]
    moved = _moved(mixture, slot, by_term, count)
    out = exposure.frozen_logits.new_zeros(1, count, exposure.num_classes)
    step = max(1, CHUNK // max(1, mixture.num_classes))
    for heard in (graph >= 0).nonzero().view(-1).split(step):
        value = mixture.frozen_logits[0, graph[heard]] + moved[heard]
        out[0, heard] = value if tail is None else tail(value, graph[heard])
    return out


def _moved(mixture: Exposure, slot: Tensor, by_term: Tensor, count: int) -> Tensor:
    """What the sums change by when senders are heard alone, [count, C]: Σ_g (m_g ℓ − Σ α ℓ)."""
    slots = Pattern(mixture.segments, mixture.rows, mixture.contributions.shape[1])
    by_group = mixture_of(slots, mixture.coefficients, mixture.contributions)[0]
    mass = mixture.mass[0].reshape(-1, 1)
    out = by_group.new_zeros(count, by_group.shape[1])
    step = max(1, CHUNK // max(1, by_group.shape[1]))
    for part in torch.arange(len(slot), device=slot.device).split(step):
        own = mixture.contributions[0, mixture.rows[part].long()]
        out.index_add_(0, by_term[part], mass[slot[part]] * own - by_group[slot[part]])
    return out
