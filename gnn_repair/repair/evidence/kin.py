"""Which nodes are most alike: by whom they are linked to, or by their features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gnn_repair.backbones.graph import Features, Operator
from gnn_repair.kernels import Pattern, mix

KIN = 30
"""Nodes that are asked, of thousands: enough for a histogram of a handful of classes."""
POWER = 4
"""Weights are cos⁴: a node of the same neighbours counts 16 times one that shares half."""
TINY = 1e-30
"""Where nothing is alike, nobody is asked."""
BLOCK = 1 << 25
"""Numbers of one block of similarities."""


@torch.no_grad()
def alike_by_links(entries: Tensor, nodes: int, dtype: torch.dtype) -> Operator:
    """The mean over the nodes whose neighbours are most the same, self-loops left out."""
    listed = entries[1] * nodes + entries[0]
    distinct = listed[entries[0] != entries[1]].unique()
    row, column = distinct // nodes, distinct % nodes
    pattern, _ = Pattern.from_entries(torch.stack([column, row]), nodes)
    size = pattern.indptr.diff().clamp(min=1).to(dtype).rsqrt()[pattern.recipients.long()]

    def rows(part: Tensor) -> Tensor:
        """Unit rows of some nodes as columns, [N, B]."""
        inside = (row >= part[0]) & (row <= part[-1])
        block = torch.zeros(nodes, part.numel(), dtype=dtype, device=entries.device)
        block[column[inside], row[inside] - part[0]] = size[inside]
        return block

    return _nearest(nodes, entries.device, lambda part: mix(pattern, size, rows(part)))


@torch.no_grad()
def alike_by_features(x: Tensor) -> Operator:
    """The mean over the nodes whose features [N, F] point most the same way."""
    unit = Features(x / x.norm(dim=1, keepdim=True).clamp(min=TINY))

    def cosines(part: Tensor) -> Tensor:
        return unit.times(unit.dense[part].t().unsqueeze(0)).squeeze(1)

    return _nearest(x.shape[0], x.device, cosines)


def _nearest(nodes: int, device: torch.device, cosines: Callable[[Tensor], Tensor]) -> Operator:
    """Each node's KIN nearest with weights cos⁴, itself left out; ``cosines`` [N, B] of a block."""
    weights, chosen = [], []
    for part in torch.arange(nodes, device=device).split(max(1, BLOCK // nodes)):
        alike = cosines(part)
        alike[part, torch.arange(part.numel(), device=device)] = 0
        best = alike.topk(min(KIN, nodes), dim=0)
        weights.append(best.values.clamp(min=0).t() ** POWER)
        chosen.append(best.indices.t())
    weight, column = torch.cat(weights), torch.cat(chosen)
    share = weight / weight.sum(1, keepdim=True).clamp(min=TINY)
    ends = torch.arange(nodes + 1, device=device) * column.shape[1]
    pattern = Pattern(ends, column.int().flatten(), nodes)
    return Operator(pattern, share.flatten().contiguous())
