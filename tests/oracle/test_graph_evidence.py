"""Could some reweighting of its nodes make the graph right? Planted, and learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool, global_mean_pool

import gnn_repair as gr
from gnn_repair.datasets import motif_graphs


class Planted(nn.Module):
    """Every node says what its features say; the graph takes sum or mean."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.say = nn.Linear(4, 3, bias=False).double()
        with torch.no_grad():
            # Class 0 by the first feature, 1 by the second; the third favours class 2.
            self.say.weight.copy_(torch.tensor([[3.0, 0, 0, 0], [0, 2, 0, 1], [0, 0, 1, 0]]))
        self.pool = global_mean_pool if mean else global_add_pool

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.say(self.pool(x, batch))


def planted_graphs() -> tuple[list[Data], list[int]]:
    """Graphs of class 0 or 1 in which one node alone knows it; the last has no such node."""
    generator = torch.Generator().manual_seed(4)
    graphs, motif = [], []
    for number in range(9):
        size = 5 + number % 3
        x = torch.zeros(size, 4, dtype=torch.float64)
        x[:, 2] = 1 + torch.rand(size, generator=generator, dtype=torch.float64)
        label, place = number % 2, (2 * number) % size
        if number < 8:
            x[place] = 0
            x[place, label] = 1
        links = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        graphs.append(Data(x=x, edge_index=links, y=torch.tensor([label])))
        motif.append(place)
    return graphs, motif


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_the_witness_is_the_node_that_knows(mean: bool) -> None:
    graphs, motif = planted_graphs()
    y = torch.cat([graph.y for graph in graphs])
    exposure = gr.expose(Planted(mean), graphs)
    assert bool((exposure.frozen_logits[0].argmax(1) == 2).all())
    solution = gr.solve(exposure, y)
    assert solution.reachable.tolist() == [True] * 8 + [False]
    assert str(solution.check(exposure)).startswith("9 certificates, all hold")
    for number, graph in enumerate(graphs[:8]):
        witness = solution[number]
        mass = 1.0 if mean else float(graph.num_nodes)
        assert exposure.graph_starts is not None
        assert (witness.sources - int(exposure.graph_starts[number])).tolist() == [motif[number]]
        assert witness.coefficients.tolist() == [pytest.approx(mass)]
        assert witness.margin == pytest.approx(mass * (3 if number % 2 == 0 else 2))
    found = gr.reach(exposure, y)
    assert (found.true_class, found.error) == (pytest.approx(8 / 9), pytest.approx(8 / 9))


def by_general_solver(said: np.ndarray, mass: float, label: int) -> float:
    """max over λ ≥ 0, Σ λ = mass of min_r (z_label − z_r), by scipy."""
    rivals = [c for c in range(said.shape[1]) if c != label]
    gaps = said[:, [label]] - said[:, rivals]
    cost = np.r_[np.zeros(len(said)), -1.0]
    above = np.c_[-gaps.T, np.ones(len(rivals))]
    total = np.r_[np.ones(len(said)), 0.0][None]
    bounds = [(0, None)] * len(said) + [(None, None)]
    found = linprog(cost, above, np.zeros(len(rivals)), total, [mass], bounds)
    return float(-found.fun)


def test_margins_are_those_of_a_general_solver() -> None:
    graphs, _ = planted_graphs()
    generator = torch.Generator().manual_seed(9)
    for graph in graphs:
        graph.x = torch.randn(graph.x.shape, generator=generator, dtype=torch.float64)
    model = Planted(mean=False)
    exposure = gr.expose(model, graphs)
    margins = gr.solve(exposure, "all").by_class(1, len(graphs))[0]
    for number, graph in enumerate(graphs):
        with torch.no_grad():
            said = model.say(graph.x).numpy()
        for label in range(3):
            wanted = by_general_solver(said, float(graph.num_nodes), label)
            assert margins[number, label] == pytest.approx(wanted, abs=1e-9)


class GIN(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [(8, width), (width, width)]
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))) for a, b in sizes
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.head(global_mean_pool(x, batch))


def test_learned_evidence_lies_on_the_motif() -> None:
    graphs = motif_graphs(300, 20, noise=0.3)
    batch, y = Batch.from_data_list(graphs), torch.cat([graph.y for graph in graphs])
    torch.manual_seed(0)
    model = GIN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(120):
        optimizer.zero_grad()
        told = model(batch.x, batch.edge_index, batch.batch)
        nn.functional.cross_entropy(told, y).backward()
        optimizer.step()
    solution = gr.solve(gr.expose(model, graphs), y)
    owner = np.repeat(np.arange(len(solution)), np.diff(solution.indptr))
    on_motif = batch.motif.numpy()[solution.sources] * solution.coefficients
    share = np.bincount(owner, on_motif, len(solution)) / np.bincount(owner, solution.coefficients)
    base = float(batch.motif.float().mean())
    assert base < 0.35
    assert share[solution.reachable].mean() > 0.85
