"""Some recipients of an exposure with nothing but what their terms read.

``Exposure.restrict`` keeps the graph's nodes and all tables, which costs as much as the graph is
large; here nodes and table rows are numbered anew, so that cost and memory follow the terms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_repair.exposure.terms import cut_terms
from gnn_repair.exposure.value import Exposure


class Focus(NamedTuple):
    """A part of an exposure, and where its nodes and terms stand in the whole."""

    exposure: Exposure
    """Nodes and table rows numbered anew; recipients in the order that they were asked for."""
    nodes: Tensor
    """[k] int64: the whole exposure's node behind each of its own."""
    terms: Tensor
    """[t] int64: likewise for its terms."""


def focused(exposure: Exposure, positions: Tensor) -> Focus:
    """The part about the recipients at ``positions`` [n] int64, each once."""
    segments, terms = cut_terms(exposure.segments, exposure.num_groups, positions)
    rows, row_of = _kept(exposure.rows[terms], exposure.contributions.shape[1])
    messages, message_of = _kept(exposure.message_rows[rows], exposure.messages.shape[1])
    senders, chosen = exposure.sources[rows], exposure.recipients[positions]
    nodes = torch.arange(exposure.num_nodes, device=chosen.device)
    node_of, sources = nodes.int(), senders
    if sends_to_itself(exposure):
        nodes, node_of = _kept(torch.cat([senders[senders >= 0].long(), chosen]), len(nodes))
        sources = torch.where(senders < 0, senders, node_of[senders.long().clamp(min=0)])
    by_node = ("fixed_logits", "frozen_logits", "state")
    part = replace(
        exposure,
        recipients=node_of[chosen].long(),
        segments=segments,
        rows=row_of[exposure.rows[terms]],
        coefficients=exposure.coefficients[:, terms],
        contributions=exposure.contributions[:, rows],
        messages=exposure.messages[:, messages],
        message_rows=message_of[exposure.message_rows[rows]],
        sources=sources,
        embedding=None if exposure.embedding is None else exposure.embedding[:, nodes],
        n_id=None if exposure.n_id is None else exposure.n_id[nodes],
        **{name: getattr(exposure, name)[:, nodes] for name in by_node},
    )
    return Focus(part, nodes, terms)


def sends_to_itself(exposure: Exposure) -> bool:
    """Whether sources are numbers of the exposure's own nodes.

    Where graphs are classified, or senders are of other kinds, nodes are not numbered anew.
    """
    return exposure.graph_starts is None and not exposure.names.typed


def _kept(index: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The numbers below ``size`` that occur in ``index``, ascending; and the new number of each."""
    used = torch.zeros(size, dtype=torch.bool, device=index.device)
    used[index.long()] = True
    return used.nonzero().view(-1), (used.cumsum(0, dtype=torch.int32) - 1)
