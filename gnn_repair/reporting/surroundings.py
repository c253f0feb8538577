"""A node's neighbours: how many there are, and how many have its class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure import Exposure

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def undirected(edge_index: Tensor) -> Integers:
    """Each edge between two different nodes once, [2, E]."""
    ends = edge_index.cpu().numpy()
    low, high = ends.min(0), ends.max(0)
    pairs = np.unique(np.stack([low, high])[:, low != high], axis=1)
    return pairs.astype(np.int64)


def surroundings(part: Exposure, y: Tensor, edges: Integers | None) -> tuple[Integers, Floats]:
    """Degree and local homophily of the recipients, from the graph or from the terms."""
    nodes = part.recipients.numpy()
    if edges is not None:
        ends = np.concatenate([edges, edges[::-1]], axis=1)
    else:
        counts = np.diff(part.segments[:: part.num_groups].numpy())
        owner = np.repeat(nodes, counts)
        source = part.sources.numpy()[part.rows.numpy()].astype(np.int64)
        ends = np.unique(np.stack([source, owner])[:, source != owner], axis=1)
    others = part.names.count(len(y)) - len(y)  # senders of other kinds, which have no class
    labels = np.concatenate([y.numpy(), np.full(others, -1)])
    known = labels[ends[0]] >= 0
    same = known & (labels[ends[0]] == labels[ends[1]])
    degree = np.bincount(ends[1], minlength=len(labels))
    labelled = np.bincount(ends[1][known], minlength=len(labels))
    alike = np.bincount(ends[1][same], minlength=len(labels))
    share = np.where(labelled > 0, alike / np.maximum(labelled, 1), np.nan)
    return degree[nodes].astype(np.int64), share[nodes]
