"""What tests share: a graph, and the command run in this process."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import Sequential
from torch_geometric.utils import add_self_loops, coalesce, to_undirected

from gnn_repair.datasets import stratified_splits

FORWARD = Sequential.forward


def pytest_runtest_setup() -> None:
    """Building a Sequential of PyG may replace the forward of the class, and so of later ones."""
    Sequential.forward = FORWARD


def make_graph(
    nodes: int = 36, features: int = 12, classes: int = 3, dtype: torch.dtype = torch.float64
) -> Data:
    """A random graph with everything awkward in it.

    Node 0 is isolated but for its self-loop, node 1 has two self-loop entries, node 2 is a hub;
    the features are sparse and class-informative; three splits.
    """
    generator = torch.Generator().manual_seed(11)
    source = torch.randint(1, nodes, (3 * nodes,), generator=generator)
    recipient = torch.randint(1, nodes, (3 * nodes,), generator=generator)
    hub = torch.stack([torch.arange(3, nodes), torch.full((nodes - 3,), 2)])
    own = torch.tensor([[1], [1]])
    entries = torch.cat([torch.stack([source, recipient]), hub], dim=1)
    entries = entries[:, entries[0] != entries[1]]
    entries = to_undirected(coalesce(torch.cat([entries, own], dim=1)), num_nodes=nodes)
    y = torch.arange(nodes) % classes
    x = torch.rand(nodes, features, dtype=dtype, generator=generator)
    x = x * (torch.rand(nodes, features, generator=generator) < 0.15)
    x[torch.arange(nodes), y] += 1
    train, val, test = stratified_splits(y, (50, 25, 25), range(3))
    return Data(
        x=x,
        edge_index=add_self_loops(entries, num_nodes=nodes)[0],
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        name="toy",
    )


@pytest.fixture
def graph() -> Data:
    return make_graph()


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process; gives exit code, stdout and stderr."""
    from gnn_repair.cli import main

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gnn-repair", *arguments])
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return int(caught.value.code or 0), output.out, output.err

    return call
