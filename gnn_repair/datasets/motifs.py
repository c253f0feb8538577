"""Generated graphs to classify: a ring somewhere in each decides its class, and nothing else does.

A graph is a random tree with some more links. Its nodes are of a few types, seen through noise. One
ring of six nodes is tied to it by a single link, and the order of the types along that ring is the
class. Every ring holds the same six types, and the types outside are drawn independently of the
class (now and then one of a ring's), so that no node outside the ring, and no count of types, says
anything of it. ``motif`` marks the ring: a reweighting that makes the true class win for the right
reason gives its mass there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from gnn_repair.budget import check_real, check_whole

RINGS = ((0, 0, 1, 1, 2, 2), (0, 1, 2, 0, 1, 2), (0, 0, 1, 2, 2, 1))
"""The types along the ring of each class: the same six, in an order that no turning makes equal."""
TYPES = 3
"""Of the nodes of a ring; those outside have as many of their own."""
FEATURES = 8
SEED = 7
"""Of the generated graphs; tests and examples quote their numbers, so it stays."""
_DISGUISED = 0.1  # share of the nodes outside that are of a ring's types
_LINKED = 0.2  # further links of the tree, as a share of its nodes
_STEP = 32  # features are rounded to 1/32, so that no platform's last bit matters


def motif_graphs(
    count: int = 600, nodes: int = 30, *, noise: float = 0.5, seed: int = SEED
) -> list[Data]:
    """Graphs whose class is decided by one motif; the same ones for the same arguments.

    Args:
        count: how many graphs.
        nodes: nodes of each graph on average, at least 12; they differ by up to a quarter.
        noise: standard deviation of the features around those of a node's type.
        seed: of everything random.

    Returns:
        A ``Data`` a graph: ``x`` float32 [n, 8], ``edge_index`` [2, E] both ways, ``y`` [1] the
        class and ``motif`` bool [n], the nodes that decide it.
    """
    check_whole("motif_graphs", "count", count, 1)
    check_whole("motif_graphs", "nodes", nodes, 12)
    check_whole("motif_graphs", "seed", seed, 0)
    check_real("motif_graphs", "noise", noise, 0, 100)
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((2 * TYPES, FEATURES))
    classes = generator.permutation(np.arange(count) % len(RINGS))
    return [_graph(generator, centres, int(c), nodes, noise) for c in classes]


def _graph(
    generator: np.random.Generator, centres: np.ndarray, label: int, nodes: int, noise: float
) -> Data:
    ring = np.array(RINGS[label])
    size = int(generator.integers(nodes - nodes // 4, nodes + nodes // 4 + 1))
    outside = size - len(ring)
    other = generator.integers(TYPES, size=outside)
    other[generator.random(outside) >= _DISGUISED] += TYPES
    types = np.concatenate([ring, other])
    features = centres[types] + noise * generator.standard_normal((size, FEATURES))
    # Nodes are shuffled, so that a place in the list says nothing.
    place = generator.permutation(size)
    x = np.empty_like(features, dtype=np.float32)
    x[place] = np.round(features * _STEP) / _STEP
    motif = torch.zeros(size, dtype=torch.bool)
    motif[torch.from_numpy(place[: len(ring)])] = True
    links = torch.from_numpy(place[_links(generator, len(ring), outside)])
    both = torch.cat([links, links.flip(0)], dim=1)
    return Data(x=torch.from_numpy(x), edge_index=both, y=torch.tensor([label]), motif=motif)


def _links(generator: np.random.Generator, ring: int, outside: int) -> np.ndarray:
    """The ring, a random tree behind it, one link between them and some more; [2, links]."""
    around = np.stack([np.arange(ring), (np.arange(ring) + 1) % ring])
    children = np.arange(1, outside)
    parents = (generator.random(outside - 1) * children).astype(np.int64)
    tree = np.stack([children, parents]) + ring
    tie = np.array([[int(generator.integers(ring))], [ring + int(generator.integers(outside))]])
    more = generator.integers(outside, size=(2, int(_LINKED * outside))) + ring
    more = more[:, more[0] != more[1]]
    links = np.sort(np.concatenate([around, tree, tie, more], axis=1), axis=0)
    return np.unique(links, axis=1)
