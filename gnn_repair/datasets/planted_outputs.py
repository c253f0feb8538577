"""Generated graphs with planted truths: several labels per node, values, and links.

In each the evidence lies in single messages, so that it is known beforehand what a reweighting of
them can do to a model that listens to its neighbours evenly, and what it cannot.
"""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

SEED = 7
"""Of the generated graphs; tests and examples quote their numbers, so it stays."""
SPEAKS, MUTTERS = 2.0, -1.0
"""What a message says for a label that its sender speaks for, and against any other: one speaker
among three or more neighbours is overheard by an even mean."""
_TALKS = 0.06  # share of pairs of node and label that are spoken for
_LOST = 0.1  # share of pairs whose label is there though nobody speaks for it
_OUTSIDE = 0.2  # share of nodes whose value no mixture of its neighbours' gives
_SAME, _OTHER = 1.0, -0.5
"""A node's coordinate in its own community and in the others: two nodes of one community agree
(a positive product), two of different ones disagree."""


def _neighbours(generator: np.random.Generator, nodes: int, count: int) -> torch.Tensor:
    """``count`` different senders for every node, none of them itself; [2, nodes · count]."""
    steps = np.argsort(generator.random((nodes, nodes - 1)), axis=1)[:, :count] + 1
    senders = (np.arange(nodes)[:, None] + steps) % nodes
    edges = np.stack([senders.ravel(), np.repeat(np.arange(nodes), count)])
    return torch.from_numpy(edges)


def _splits(generator: np.random.Generator, nodes: int) -> dict[str, torch.Tensor]:
    part = torch.from_numpy(generator.permutation(nodes))
    names = ("train_mask", "val_mask", "test_mask")
    return {
        name: part % 4 == k if k else part % 4 < 2 for name, k in zip(names, (0, 2, 3), strict=True)
    }


def planted_labels(nodes: int = 800, labels: int = 6, neighbours: int = 5) -> Data:
    """Several labels per node, each of which one neighbour's message speaks for.

    Returns:
        ``x`` [N, K]: 2 where a node speaks for a label, about −1 elsewhere; ``y`` bool [N, K];
        ``evidence`` bool [N, K]: some neighbour speaks for the label, so that a weighing of the
        neighbours' features exists whose sum is positive. Of the labels that are there a tenth
        has no evidence. One split 50/25/25.
    """
    generator = np.random.default_rng(SEED)
    speaks = generator.random((nodes, labels)) < _TALKS
    mutter = MUTTERS + 0.2 * generator.random((nodes, labels))
    features = np.where(speaks, SPEAKS, mutter).astype(np.float32)
    edges = _neighbours(generator, nodes, neighbours)
    evidence = np.zeros((nodes, labels), dtype=bool)
    np.logical_or.at(evidence, edges[1].numpy(), speaks[edges[0].numpy()])
    lost = ~evidence & (generator.random((nodes, labels)) < _LOST * evidence.mean())
    return Data(
        x=torch.from_numpy(features),
        edge_index=edges,
        y=torch.from_numpy(evidence | lost),
        evidence=torch.from_numpy(evidence),
        **_splits(generator, nodes),
    )


def planted_values(nodes: int = 400, neighbours: int = 4) -> Data:
    """A value a node: that of one of its neighbours, whose readings are weighed by edges.

    Returns:
        ``x`` [N, 1] readings, ``edge_weight`` positive, ``y`` [N] float; ``low`` and ``high`` [N]:
        what the sum of weighed readings can be when the same total weight is spread anew;
        ``outside`` bool [N]: y was planted beyond them. One split.
    """
    generator = np.random.default_rng(SEED)
    readings = generator.normal(size=nodes)
    edges = _neighbours(generator, nodes, neighbours)
    weight = generator.random(edges.shape[1]) + 0.2
    heard = readings[edges[0].numpy()].reshape(nodes, neighbours)
    mass = weight.reshape(nodes, neighbours).sum(1)
    low, high = mass * heard.min(1), mass * heard.max(1)
    outside = generator.random(nodes) < _OUTSIDE
    inside = mass * heard[np.arange(nodes), generator.integers(neighbours, size=nodes)]
    y = np.where(outside, high + 0.1 + generator.random(nodes), inside)
    planted = {"y": y, "low": low, "high": high, "edge_weight": weight}
    return Data(
        x=torch.from_numpy(readings).unsqueeze(1),
        edge_index=edges,
        outside=torch.from_numpy(outside),
        **{name: torch.from_numpy(value) for name, value in planted.items()},
        **_splits(generator, nodes),
    )


def planted_links(nodes: int = 300, communities: int = 3, neighbours: int = 4) -> Data:
    """Links between nodes of one community, some of which one neighbour still shows.

    The targets of the links hear only their own community; the sources hear strangers, and some
    of them one friend.

    Returns:
        ``x`` [N, C] coordinates of a node's community; ``edge_label_index`` [2, L] and
        ``edge_label`` bool [L]: whether the ends are of one community; ``friend`` bool [L]: some
        neighbour of the source is of the target's community, so that a weighing of the source's
        messages exists whose product with the target is positive.
    """
    generator = np.random.default_rng(SEED)
    community = np.arange(nodes) % communities
    half = nodes // 2
    senders = np.empty((nodes, neighbours), dtype=np.int64)
    for node in range(nodes):
        own = community == community[node]
        pool = np.flatnonzero(own if node >= half else ~own)
        senders[node] = generator.choice(pool[pool != node], neighbours, replace=False)
        if node < half and generator.random() < 0.5:
            others = np.flatnonzero(own & (np.arange(nodes) != node))
            senders[node, 0] = generator.choice(others)
    ends = np.stack([np.repeat(np.arange(half), 2), generator.integers(half, nodes, 2 * half)])
    friend = (community[senders[ends[0]]] == community[ends[1]][:, None]).any(1)
    features = np.where(np.eye(communities)[community] > 0, _SAME, _OTHER)
    return Data(
        x=torch.from_numpy(features.astype(np.float32)),
        edge_index=torch.from_numpy(
            np.stack([senders.ravel(), np.repeat(np.arange(nodes), neighbours)])
        ),
        edge_label_index=torch.from_numpy(ends),
        edge_label=torch.from_numpy(community[ends[0]] == community[ends[1]]),
        friend=torch.from_numpy(friend),
    )
