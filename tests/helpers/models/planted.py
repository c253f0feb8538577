"""An exposure planted entry by entry from dense matrices, several members that differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure import Group

MEMBERS, NODES, GROUPS, CLASSES, WIDTH = 2, 7, 2, 3, 5


def matrices() -> Tensor:
    """Coefficients as [S, G, N, N]; node 4 lacks the second group."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(MEMBERS, GROUPS, NODES, NODES, generator=generator, dtype=torch.float64)
    present = torch.rand(GROUPS, NODES, NODES, generator=generator) < 0.5
    present[:, torch.arange(NODES), torch.arange(NODES)] = True
    present[1, 4] = False
    return draws * present


def tables() -> Tensor:
    """Contributions as [S, G, N, C]."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(MEMBERS, GROUPS, NODES, CLASSES, generator=generator, dtype=torch.float64)


def pieces() -> dict[str, Any]:
    """The exposure of these matrices, built entry by entry."""
    alpha, table = matrices(), tables()
    segments, rows, values = [0], [], []
    for node in range(NODES):
        for group in range(GROUPS):
            for source in alpha[0, group, node].nonzero().view(-1).tolist():
                rows.append(group * NODES + source)
                values.append(alpha[:, group, node, source])
            segments.append(len(rows))
    generator = torch.Generator().manual_seed(2)
    frozen = torch.randn(MEMBERS, NODES, CLASSES, generator=generator, dtype=torch.float64)
    state = torch.randn(1, NODES, WIDTH, generator=generator)
    mixed = torch.einsum("sgvu,sguc->svc", alpha, table)
    return {
        "groups": (Group("first", "planted", "a draw"), Group("second", "planted", "a draw")),
        "recipients": torch.arange(NODES),
        "segments": torch.tensor(segments),
        "rows": torch.tensor(rows, dtype=torch.int32),
        "coefficients": torch.stack(values, 1),
        "contributions": table.reshape(MEMBERS, GROUPS * NODES, CLASSES),
        "fixed_logits": frozen - mixed,
        "frozen_logits": frozen,
        "state": state,
        "messages": state,
        "message_rows": torch.arange(NODES, dtype=torch.int32).repeat(GROUPS),
        "sources": torch.arange(NODES, dtype=torch.int32).repeat(GROUPS),
    }
