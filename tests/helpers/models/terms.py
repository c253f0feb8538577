"""The terms of an exposure as dense matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.exposure import Exposure


def dense(exposure: Exposure, coefficients: Tensor | None = None, member: int = 0) -> Tensor:
    """[G, recipients, senders]: λ, or the member's α, summed up where a sender has several."""
    own = exposure.coefficients[member % len(exposure.coefficients)]
    values = own if coefficients is None else coefficients
    count = exposure.num_groups
    place = torch.repeat_interleave(exposure.segments.diff())
    senders = exposure.sources[exposure.rows.long()].long()
    out = torch.zeros(count, exposure.num_recipients, exposure.num_sources, dtype=torch.float64)
    where = place % count, place // count, senders
    return out.index_put(where, values.detach().double(), accumulate=True)


def signed(exposure: Exposure, coefficients: Tensor | None = None) -> Tensor:
    """[recipients, senders]: all groups' coefficients with their signs as one matrix."""
    signs = [-1.0 if group.name.endswith("−") else 1.0 for group in exposure.groups]
    return torch.einsum("g,gvu->vu", torch.tensor(signs).double(), dense(exposure, coefficients))
