"""Generated graphs whose class one ring decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch

from gnn_repair.datasets import motif_graphs
from gnn_repair.datasets.motifs import RINGS
from gnn_repair.errors import InputError


def turned(types: list[int]) -> set[tuple[int, ...]]:
    """A ring read from every start, both ways round."""
    ways = [types, types[::-1]]
    return {tuple(way[k:] + way[:k]) for way in ways for k in range(len(types))}


def test_rings_differ_by_their_order_alone() -> None:
    assert {tuple(sorted(ring)) for ring in RINGS} == {(0, 0, 1, 1, 2, 2)}
    for number, ring in enumerate(RINGS):
        assert all(tuple(other) not in turned(list(ring)) for other in RINGS[number + 1 :])


def test_the_same_graphs_every_time() -> None:
    first, again = motif_graphs(5), motif_graphs(5)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.edge_index, other.edge_index)
    assert not torch.equal(first[0].x, motif_graphs(5, seed=8)[0].x)


def test_the_ring_is_there_and_is_the_class() -> None:
    """Read back from features without noise: the types along the marked cycle."""
    graphs = motif_graphs(30, 20, noise=0.0)
    rows = torch.cat([graph.x[graph.motif] for graph in graphs])
    kinds = torch.unique(rows, dim=0)
    assert len(kinds) == 3
    read = []
    for graph in graphs:
        assert int(graph.motif.sum()) == 6
        types = (graph.x.unsqueeze(1) == kinds).all(2).int().argmax(1).tolist()
        ends = graph.edge_index[:, graph.motif[graph.edge_index].all(0)].t().tolist()
        around = {a: sorted(b for c, b in ends if c == a) for a, _ in ends}
        assert all(len(others) == 2 for others in around.values())
        walk = [min(around)]
        walk.append(around[walk[0]][0])
        while len(walk) < 6:
            walk.append(next(b for b in around[walk[-1]] if b != walk[-2]))
        read.append((turned([types[node] for node in walk]), int(graph.y)))
    # Which of the three centres is which type is not known: some naming explains all graphs.
    explains = [
        all(tuple(order[t] for t in RINGS[label]) in seen for seen, label in read)
        for order in ([a, b, c] for a in range(3) for b in range(3) for c in range(3))
        if len({*order}) == 3
    ]
    assert any(explains)


def test_graphs_are_whole_and_nothing_outside_the_ring_tells() -> None:
    graphs = motif_graphs(300, 30)
    batch = Batch.from_data_list(graphs)
    assert batch.is_undirected() and not batch.has_self_loops()
    assert abs(batch.num_nodes / 300 - 30) < 1
    assert torch.bincount(batch.y).tolist() == [100, 100, 100]
    y = batch.y[batch.batch]
    means = torch.stack([batch.x[(y == c) & ~batch.motif].mean(0) for c in range(3)])
    spread = batch.x[~batch.motif].std(0) / (len(batch.x) / 3) ** 0.5
    assert bool(((means - means.mean(0)).abs() < 4 * spread).all())
    sizes = [np.mean([g.num_nodes for g in graphs if int(g.y) == c]) for c in range(3)]
    assert max(sizes) - min(sizes) < 2


@pytest.mark.parametrize("wrong", [{"count": 0}, {"nodes": 5}, {"noise": -1}, {"seed": "a"}])
def test_bad_sizes_are_named(wrong: dict) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        motif_graphs(**wrong)
