"""What a graph's logits would be if a pool heard one of its nodes alone.

Nodes of a graph that is classified as a whole have no logits of their own. This stands in their
place where repairs describe a message by its sender's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.exposure import Exposed, TailedExposure
from gnn_repair.exposure.value import mixture_of
from gnn_repair.kernels import Pattern

CHUNK = 1 << 22
"""Numbers that go through a tail at once: 32 MB, and a few times that for values in between."""


def alone_logits(exposure: Exposed) -> Tensor:
    """z of every table row, [1, R, C] float64: its group's whole mass on it, other groups frozen.

    Rows without a term are zero: no graph hears them.
    """
    tail = exposure.tail if isinstance(exposure, TailedExposure) else None
    mixture = exposure.aggregate if isinstance(exposure, TailedExposure) else exposure
    groups, rows = mixture.num_groups, mixture.rows.long()
    slots = Pattern(mixture.segments, mixture.rows, mixture.contributions.shape[1])
    by_group = mixture_of(slots, mixture.coefficients, mixture.contributions)[0]
    slot = torch.repeat_interleave(mixture.segments.diff())
    recipient = mixture.recipients[slot // groups]
    out = exposure.frozen_logits.new_zeros(1, mixture.contributions.shape[1], exposure.num_classes)
    mass = mixture.mass[0].reshape(-1)
    step = max(1, CHUNK // max(1, mixture.num_classes))
    for part in torch.arange(len(rows), device=rows.device).split(step):
        where, here = slot[part], recipient[part]
        value = mixture.frozen_logits[0, here] - by_group[where]
        value += mass[where].unsqueeze(1) * mixture.contributions[0, rows[part]]
        out[0, rows[part]] = value if tail is None else tail(value, here)
    return out
