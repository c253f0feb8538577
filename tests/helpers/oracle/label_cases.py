"""Random exposures of several outputs, and what exhaustive search says of them."""

from __future__ import annotations

from itertools import product

import torch

from gnn_repair.exposure import Exposure, Group
from gnn_repair.exposure.pieces import mixture_of
from gnn_repair.kernels import Pattern


def random_exposure(seed: int, nodes=7, groups=2, outputs=3, members=2, kind="labels") -> Exposure:
    """Groups of 0 to 4 terms; members have contributions of their own."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (nodes * groups,), generator=draw)
    lengths[0] = 3
    segments = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    terms, rows = int(segments[-1]), 11
    pick = torch.randint(0, rows, (terms,), generator=draw).int()
    alpha = torch.rand(1, terms, generator=draw, dtype=torch.float64) + 0.1
    table = torch.randn(members, rows, outputs, generator=draw, dtype=torch.float64)
    fixed = torch.randn(members, nodes, outputs, generator=draw, dtype=torch.float64)
    mixed = mixture_of(Pattern(segments[::groups], pick, rows), alpha, table)
    return Exposure(
        groups=tuple(Group(f"g{g}", "by hand", "by hand") for g in range(groups)),
        recipients=torch.arange(nodes),
        segments=segments,
        rows=pick,
        coefficients=alpha,
        contributions=table,
        fixed_logits=fixed,
        frozen_logits=fixed + mixed,
        state=torch.zeros(1, nodes, 2, dtype=torch.float64),
        messages=torch.zeros(1, rows, 2, dtype=torch.float64),
        message_rows=torch.arange(rows, dtype=torch.int32),
        sources=(torch.arange(rows) % nodes).int(),
        outputs=kind,
    )


def corners(exposure: Exposure, node: int) -> torch.Tensor:
    """Outputs [S, corners, K] of a node at every corner of its polytope, one term a group."""
    groups = exposure.num_groups
    parts = []
    for g in range(groups):
        first, last = exposure.segments[node * groups + g : node * groups + g + 2].tolist()
        parts.append(range(first, last) if last > first else [None])
    found = []
    for choice in product(*parts):
        coefficients = exposure.coefficients.clone()
        first, last = exposure.segments[[node * groups, (node + 1) * groups]].tolist()
        coefficients[:, first:last] = 0
        for g, term in enumerate(choice):
            if term is not None:
                low, high = exposure.segments[node * groups + g : node * groups + g + 2].tolist()
                coefficients[0, term] = exposure.coefficients[0, low:high].sum()
        found.append(exposure.logits(coefficients)[:, node])
    return torch.stack(found, 1)
