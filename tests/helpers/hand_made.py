"""Exposures from their numbers: frozen logits and whatever a test does not name follow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure import Exposure, Group


def hand_made(
    segments: Tensor,
    rows: Tensor,
    coefficients: Tensor,
    contributions: Tensor,
    fixed_logits: Tensor,
    groups: int = 1,
    **fields: Any,
) -> Exposure:
    """β, α and ℓ as an exposure keeps them; ``fields`` are named as there.

    Every node is a recipient; unless given, states and messages are zero and table row i is the
    message of node i.
    """
    nodes, table = fixed_logits.shape[1], contributions.shape[1]
    owner = torch.repeat_interleave(segments[::groups].diff())
    terms = coefficients.unsqueeze(2) * contributions[:, rows.long()]
    mixed = torch.zeros_like(fixed_logits).index_add(1, owner, terms)
    index = torch.arange(table, dtype=torch.int32)
    usual = {
        "groups": tuple(Group(f"group {g}", "by hand", "by hand") for g in range(groups)),
        "recipients": torch.arange(nodes),
        "frozen_logits": fixed_logits + mixed,
        "state": torch.zeros(1, nodes, 1),
        "messages": torch.zeros(1, max(table, 1), 1),
        "message_rows": index,
        "sources": index % nodes,
    }
    return Exposure(
        segments=segments,
        rows=rows.int(),
        coefficients=coefficients,
        contributions=contributions,
        fixed_logits=fixed_logits,
        **(usual | fields),
    )
