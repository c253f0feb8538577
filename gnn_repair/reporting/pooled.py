"""Graphs and their nodes as the one numbered set that a page knows.

A page names everything by one number: the graphs come first, then the nodes of all of them. A node
has no class; in place of a prediction stands the class that its graph would get from it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.inputs import alone_logits

if TYPE_CHECKING:
    from gnn_repair.reporting.evidence import Evidence

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PooledGraphs:
    """Where the nodes of each graph start, [B + 1], counted from the first node."""

    starts: Integers


def with_nodes(evidence: Evidence, part: Exposure) -> Evidence:
    """The evidence of graphs with their nodes numbered behind them."""
    assert part.graph_starts is not None
    starts = part.graph_starts.numpy()
    graphs, nodes = len(starts) - 1, int(starts[-1])
    votes = np.full(nodes, -1)
    heard = torch.unique(part.sources[part.rows.long()].long())
    alone = alone_logits(part, part.sources, nodes)[0]
    votes[heard.numpy()] = alone[heard].argmax(1).numpy()
    unlabelled = np.full(nodes, -1)
    return replace(
        evidence,
        labels=np.concatenate([evidence.labels, unlabelled]),
        predictions=np.concatenate([evidence.predictions, votes]),
        degree=np.diff(starts)[evidence.nodes],
        homophily=np.full(len(evidence.nodes), np.nan),
        sources=evidence.sources + graphs,
        edges=None if evidence.edges is None else evidence.edges + graphs,
        pooled=PooledGraphs(starts),
    )


def own_edges(edge_index: Tensor | None, part: Exposure) -> Integers | None:
    """Edges of the chosen graphs' nodes, each once, [2, E]; None where they are not known."""
    if edge_index is None:
        return None
    assert part.graph_starts is not None
    ends = edge_index.cpu().numpy()
    low, high = ends.min(0), ends.max(0)
    starts = part.graph_starts.numpy()
    chosen = np.zeros(len(starts), bool)
    chosen[part.recipients.numpy()] = True
    graph = np.searchsorted(starts, low, side="right") - 1
    if (high >= starts[np.minimum(graph + 1, len(starts) - 1)]).any():
        raise InputError(
            "edge_index ties nodes of different graphs; give that of the batch, as "
            "Batch.from_data_list(graphs).edge_index"
        )
    kept = chosen[graph] & (low != high)
    pairs = np.unique(np.stack([low, high])[:, kept], axis=1)
    return pairs.astype(np.int64)
