"""Filters of several hops that users write themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from tests.helpers.models.convolutions import graph

K = 4


def plain() -> Data:
    return Data(x=graph().x, edge_index=graph().edge_index)


class Propagation(pyg.MessagePassing):
    """Weight × source, several times; ``steps`` is what the user does with it."""

    def __init__(self, steps: Any) -> None:
        super().__init__(aggr="add")
        self.steps = steps
        draws = torch.rand(K + 1, generator=torch.Generator().manual_seed(4))
        self.gamma = nn.Parameter(draws - 0.3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, norm = gcn_norm(edge_index, None, x.shape[0], dtype=x.dtype)
        return self.steps(self, x, lambda h: self.propagate(edge_index, h=h, norm=norm))

    def message(self, h_j: Tensor, norm: Tensor) -> Tensor:
        return norm.view(-1, 1) * h_j


Hop = Callable[[Tensor], Tensor]


def pagerank(conv: Any, x: Tensor, once: Hop) -> Tensor:
    """GPRGNN: Σ γ_k Â^k x."""
    out = conv.gamma[0] * x
    for k in range(1, K + 1):
        x = once(x)
        out = out + conv.gamma[k] * x
    return out


def restarting(conv: Any, x: Tensor, once: Hop) -> Tensor:
    """APPNP by hand."""
    first = x
    for _ in range(K):
        x = 0.8 * once(x) + 0.2 * first
    return x


def repeated(conv: Any, x: Tensor, once: Hop) -> Tensor:
    for _ in range(K):
        x = once(x)
    return x


def chebyshev(conv: Any, x: Tensor, once: Hop) -> Tensor:
    """ChebNetII: Σ γ_k T_k(−Â) x."""
    before, now = x, -once(x)
    out = conv.gamma[0] * before + conv.gamma[1] * now
    for k in range(2, K + 1):
        before, now = now, -2 * once(now) - before
        out = out + conv.gamma[k] * now
    return out


def bernstein(conv: Any, x: Tensor, once: Hop) -> Tensor:
    """BernNet, degree 2: Σ_k γ_k C(2, k) L^k (2I − L)^(2−k) x, with L = I − Â."""
    above = [x]
    for _ in range(2):
        above.append(above[-1] + once(above[-1]))
    out = conv.gamma[0] * above[2]
    low = above[1] - once(above[1])
    out = out + 2 * conv.gamma[1] * low
    low = above[0] - once(above[0])
    return out + conv.gamma[2] * (low - once(low))


STEPS = {
    "pagerank": pagerank,
    "restarting": restarting,
    "repeated": repeated,
    "chebyshev": chebyshev,
    "bernstein": bernstein,
}


class Filtered(nn.Module):
    def __init__(self, steps: Any, head: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(5, 6 if head else 4)
        self.prop = Propagation(steps)
        self.head = nn.Linear(6, 4) if head else nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.prop(self.lin(x).relu(), edge_index))
