"""All labels of a node under one reweighting, against a linear program of another solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.oracle.questions.joint import jointly

NODES, LABELS = 18, 3


class Heads(nn.Module):
    def __init__(self, bent: bool = False) -> None:
        super().__init__()
        self.conv = GATConv(4, 5, heads=2, add_self_loops=False)
        self.head, self.bent = nn.Linear(10, LABELS), bent

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index)
        return self.head(x.relu() if self.bent else x)


def exposed(bent: bool = False):
    torch.manual_seed(7)
    edges = torch.randint(0, NODES, (2, 60))
    data = Data(x=torch.randn(NODES, 4).double(), edge_index=edges)
    y = (torch.rand(NODES, LABELS) > 0.5).double()
    return gr.expose(Heads(bent).double(), data, outputs="labels"), y


def best_by_linprog(exposure, y, node: int, limit: float = 0.0) -> float:
    """max t: ±(z_k(λ) − θ) ≥ t for all known k, λ ≥ 0 of the groups' masses."""
    place = int((exposure.recipients == node).nonzero())
    groups = exposure.num_groups
    cuts = exposure.segments[place * groups : (place + 1) * groups + 1].tolist()
    terms = range(cuts[0], cuts[-1])
    table = exposure.contributions[0, exposure.rows[list(terms)].long()].numpy()
    known = ~torch.isnan(y[node])
    sign = (2 * y[node][known] - 1).numpy()
    table, fixed = table[:, known.numpy()], exposure.fixed_logits[0, node][known].numpy()
    upper = np.hstack([-(table * sign).T, np.ones((len(sign), 1))])
    present = [g for g in range(groups) if cuts[g + 1] > cuts[g]]
    equal = np.zeros((len(present), len(terms) + 1))
    for i, g in enumerate(present):
        equal[i, cuts[g] - cuts[0] : cuts[g + 1] - cuts[0]] = 1
    mass = exposure.mass[0, place].numpy()[present]
    cost = np.append(np.zeros(len(terms)), -1.0)
    bounds = [(0, None)] * len(terms) + [(None, None)]
    found = linprog(cost, upper, sign * (fixed - limit), equal, mass, bounds=bounds)
    return -found.fun


@pytest.mark.parametrize("limit", [0.0, 0.3])
@pytest.mark.parametrize("unknown", [False, True])
def test_the_joint_margin_is_that_of_another_solver(unknown: bool, limit: float) -> None:
    exposure, y = exposed()
    if unknown:
        y[torch.arange(NODES), torch.arange(NODES) % LABELS] = torch.nan
    together = jointly(exposure, y, threshold=limit)
    solution = gr.solve(together, torch.zeros(NODES, dtype=torch.long))
    assert solution.check(together).ok
    told = [best_by_linprog(exposure, y, int(node), limit) for node in solution.node]
    assert solution.margin == pytest.approx(told, abs=1e-9)
    assert (solution.margin > 0).any() and (solution.margin < 0).any()
    alone = gr.solve(exposure, y, threshold=limit)
    for i, node in enumerate(solution.node):  # no label does better with all than by itself
        assert solution.margin[i] <= alone.margin[alone.node == node].min() + 1e-9


def test_some_nodes_and_nodes_without_labels():
    exposure, y = exposed()
    y[4] = torch.nan
    chosen = torch.tensor([4, 2, 9])
    together = jointly(exposure, y, chosen)
    solution = gr.solve(together, torch.zeros(NODES, dtype=torch.long))
    assert sorted(solution.node.tolist()) == [2, 4, 9]
    found = dict(zip(solution.node.tolist(), solution.margin.tolist(), strict=True))
    assert found[4] == pytest.approx(1.0)
    for node in (2, 9):
        assert found[node] == pytest.approx(best_by_linprog(exposure, y, node), abs=1e-9)
    right = ((exposure.frozen_logits[0] > 0) == (y == 1)).all(1)
    wins = together.frozen_logits[0].argmax(1) == 0
    assert wins[[2, 9]].tolist() == right[[2, 9]].tolist()


def test_after_a_tail_all_labels_are_asked_in_three_values():
    exposure, y = exposed(bent=True)
    together = jointly(exposure, y)
    zeros = torch.zeros(NODES, dtype=torch.long)
    solution = gr.solve(together, zeros, torch.arange(8))
    assert solution.check(together).ok
    alone = gr.solve(exposure, y, torch.arange(8))
    for i, node in enumerate(solution.node):
        assert solution.margin[i] <= alone.bound[alone.node == node].min() + 1e-9
    again = together.replay(together.coefficients[0])
    torch.testing.assert_close(again, together.frozen_logits[0], rtol=1e-9, atol=1e-9)
    sign = 2 * y - 1
    told = (sign * exposure.frozen_logits[0]).amin(1)
    logits = together.frozen_logits[0]
    torch.testing.assert_close(-logits[:, 1:].amax(1), told, rtol=1e-12, atol=1e-12)


def test_after_a_tail_an_unknown_label_decides_nothing():
    exposure, y = exposed(bent=True)
    few = y.clone()
    few[:, 1] = torch.nan
    zeros, chosen = torch.zeros(NODES, dtype=torch.long), torch.arange(6)
    together = jointly(exposure, few, threshold=0.1)
    solution = gr.solve(together, zeros, chosen)
    assert solution.check(together).ok and (solution.margin <= 1).all()
    rest = ((2 * y - 1) * (exposure.frozen_logits[0] - 0.1))[:, [0, 2]].amin(1)
    wins = -together.frozen_logits[0, :, 1:].amax(1)
    torch.testing.assert_close(wins, rest.clamp(max=1.0), rtol=1e-12, atol=1e-12)


def test_what_has_no_labels_is_refused():
    exposure, y = exposed()
    with pytest.raises(InputError, match="the exposure's outputs are classes"):
        jointly(jointly(exposure, y), y)
    with pytest.raises(InputError, match="exposure is a list; give what expose"):
        jointly([], y)
