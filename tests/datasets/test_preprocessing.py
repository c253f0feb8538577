"""The entries of a small graph, written out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from gnn_repair.datasets.loading import entries
from gnn_repair.errors import DatasetError


def test_entries_are_symmetric_coalesced_and_looped_on_top() -> None:
    # 0→1 one way, 1→2 both ways and twice, a self-loop at 2, node 3 isolated.
    edges = torch.tensor([[0, 1, 2, 1, 2], [1, 2, 1, 2, 2]])
    found = Counter(map(tuple, entries(edges, num_nodes=4).t().tolist()))
    both_ways = [(0, 1), (1, 0), (1, 2), (2, 1)]
    loops = [(0, 0), (1, 1), (2, 2), (2, 2), (3, 3)]
    assert found == Counter(both_ways + loops)


def test_a_graph_without_edges_keeps_its_loops() -> None:
    none = torch.empty(2, 0, dtype=torch.long)
    torch.testing.assert_close(entries(none, num_nodes=3), torch.tensor([[0, 1, 2], [0, 1, 2]]))


def test_an_edge_to_nowhere_is_refused() -> None:
    with pytest.raises(DatasetError, match="names node 4, but the nodes are 0 to 3"):
        entries(torch.tensor([[0], [4]]), num_nodes=4)
