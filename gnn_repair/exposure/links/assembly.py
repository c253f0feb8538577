"""From the mixture of nodes' embeddings to the mixture of links' logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.heads.operations import HeadGraph, Opaque, Operation
from gnn_repair.exposure.terms import cut_terms
from gnn_repair.exposure.value import Exposure


def link_mixture(nodes: Exposure, ends: Tensor) -> tuple[Exposure, Tensor]:
    """The mixture of each link's varied end, beside the nodes, and the node's term behind each.

    The N nodes of the graph keep their numbers, so that senders do, and have no terms; link i is
    number N + i. What stands behind the nodes' own rows is the first link's, which nobody reads.

    Args:
        nodes: the mixture of all nodes, in the channels of the embedding (or before a head).
        ends: [L] the varied end of every link.
    """
    segments, terms = cut_terms(nodes.segments.view(-1), nodes.num_groups, ends)
    behind = rows_behind(nodes.num_nodes, ends)
    places = torch.arange(ends.numel(), device=ends.device) + nodes.num_nodes
    changed: dict[str, Any] = {
        "recipients": places,
        "segments": segments,
        "rows": nodes.rows[terms],
        "coefficients": nodes.coefficients[:, terms],
        "fixed_logits": nodes.fixed_logits[:, behind],
        "frozen_logits": nodes.frozen_logits[:, behind],
        "state": nodes.state[:, behind],
        "messages": nodes.messages,
        "embedding": None,
        "outputs": "labels",
    }
    return replace(nodes, **changed), terms


def rows_behind(count: int, ends: Tensor) -> Tensor:
    """[N + L]: the node whose embedding stands in each row: the first link's, then each link's."""
    return torch.cat([ends[:1].expand(count), ends])


def by_link(head: HeadGraph, behind: Tensor) -> HeadGraph:
    """A head with the constants of other rows: that of row behind[i] for row i."""
    return HeadGraph(head.width, tuple(_by_link(op, behind) for op in head.operations))


def _by_link(operation: Operation, behind: Tensor) -> Operation:
    if isinstance(operation, Opaque):
        return replace(operation, fixed=tuple(rows[behind] for rows in operation.fixed))
    moved: dict[str, Any] = {
        name: value[behind]
        for name, value in operation.constants()
        if value.dim() == 2 and name != "weight"  # weights are shared, and so are vectors
    }
    return replace(operation, **moved) if moved else operation


def links_after_nodes(first: HeadGraph, then: HeadGraph) -> HeadGraph:
    """One head after the other."""
    shift = len(first.operations)
    later = [replace(op, inputs=tuple(i + shift for i in op.inputs)) for op in then.operations]
    return HeadGraph(first.width, (*first.operations, *later))
