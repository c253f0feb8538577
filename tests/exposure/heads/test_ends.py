"""What is claimed behind any end of a model is contradicted by no weights that are drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnn_repair as gr
from gnn_repair.exposure.record.replay import random_admissible

ORDER, WEIGHTS = torch.tensor([2, 0, 3, 1]), torch.tensor([1.0, 2.0, 0.5, 1.0]).double()
ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "in another order": lambda z: z.softmax(1)[:, ORDER],
    "weighed": lambda z: z.softmax(1) * WEIGHTS,
    "twice": lambda z: (5 * z.softmax(1)).softmax(1),
    "two blocks": lambda z: torch.cat([z[:, :2].softmax(1), z[:, 2:].softmax(1)], 1),
    "two blocks of logs": lambda z: z.view(-1, 2, 2).log_softmax(2).flatten(1),
    "two blocks of one softmax": lambda z: z.view(-1, 2, 2).softmax(2).flatten(1),
    "by columns": lambda z: z.view(-1, 2, 2).softmax(1).flatten(1),
    "beside a logit": lambda z: torch.cat([z[:, :3].softmax(1), z[:, 3:]], 1),
    "sum of two": lambda z: z.softmax(1) + z.relu().softmax(1),
    "tanh of half": lambda z: torch.cat([z[:, :2].tanh(), z[:, 2:]], 1),
    "layer norm of halves": lambda z: F.layer_norm(z.view(-1, 2, 2), (2,)).flatten(1),
    "product": lambda z: z * z[:, ORDER],
}
"""What the campaign of heads does not end in."""


class Model(nn.Module):
    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.lin, self.end = SAGEConv(5, 6), nn.Linear(6, 4), end

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.end(3 * self.lin(self.conv(x, edge_index).relu()))


@pytest.mark.parametrize("name", ENDS)
def test_no_drawn_weights_contradict_a_verdict(name: str) -> None:
    torch.manual_seed(3)
    edges = torch.cat([torch.randint(0, 7, (2, 22)), torch.arange(7).repeat(2, 1)], 1)
    data = Data(x=2 * torch.randn(7, 5).double(), edge_index=edges.unique(dim=1))
    exposure = gr.expose(Model(ENDS[name]).double(), data)
    assert exposure.head is not None
    solution = gr.solve(exposure, "all", effort="fast")
    assert solution.check(exposure).ok
    best = torch.full((7, 4), -torch.inf).double()
    for seed in range(90):
        lam = random_admissible(exposure.aggregate, seed, corners=(0.0, 0.5, 1.0)[seed % 3])
        told = [exposure.margins(torch.full((7,), label), lam)[0] for label in range(4)]
        best = torch.maximum(best, torch.stack(told, 1))
    seen = best[solution.node, solution.target].numpy()
    assert not (seen[solution.verdict == "cannot"] > 1e-6).any()
    assert (solution.margin[solution.verdict == "can"] > 0).all()
    assert (solution.bound[seen > 1e-6] > 0).all()
    assert np.isin(solution.verdict, ("can", "cannot", "undecided")).all()
