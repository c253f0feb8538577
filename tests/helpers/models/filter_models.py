"""Filters of several hops, and products with a matrix, that users write themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from tests.helpers.models.convolutions import dense, graph

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


# Products with a matrix ---------------------------------------------------------------------------


def weighed(signed: bool = False) -> Tensor:
    """A [recipient, source], with weights of its own."""
    data = graph()
    return dense(data, data.signed_weight if signed else data.edge_weight)


Times = Callable[[Tensor, Tensor], Tensor]


class Graphs(nn.Module):
    """Two graph convolutions in the style of those who write them by hand."""

    def __init__(self, times: Times, end: Any = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 8)
        self.lin, self.times = nn.Linear(8, 4), times
        self.end = end or nn.Identity()

    def hidden(self, x: Tensor, adj: Tensor) -> Tensor:
        return self.times(adj, self.first(x)).relu()

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return self.end(self.lin(self.times(adj, self.second(self.hidden(x, adj)))))


def coo(matrix: Tensor) -> Tensor:
    return matrix.to_sparse_coo()


def uncoalesced(matrix: Tensor) -> Tensor:
    """Every entry as two halves, in another order."""
    half = matrix.to_sparse_coo() / 2
    index, values = half.indices().flip(1), half.values().flip(0)
    return torch.sparse_coo_tensor(torch.cat([half.indices(), index], 1),
                                   torch.cat([half.values(), values]), matrix.shape)  # fmt: skip


WAYS: dict[str, tuple[Callable[[Tensor], Tensor], Times]] = {
    "torch.spmm": (coo, torch.spmm),
    "torch.sparse.mm": (coo, torch.sparse.mm),
    "uncoalesced": (uncoalesced, torch.sparse.mm),
    "torch.mm, CSR": (Tensor.to_sparse_csr, torch.mm),
    "matmul, CSC": (Tensor.to_sparse_csc, lambda a, h: a @ h),
    "@, dense": (torch.clone, lambda a, h: a @ h),
    "torch.matmul, dense": (torch.clone, torch.matmul),
    "Tensor.mm, dense": (torch.clone, lambda a, h: a.mm(h)),
    "einsum": (torch.clone, lambda a, h: torch.einsum("vu, uc -> vc", a, h)),
    "addmm": (torch.clone, lambda a, h: torch.addmm(h, a, h, beta=0.5, alpha=2)),
    "torch.sparse.addmm": (coo, lambda a, h: torch.sparse.addmm(h, a, h)),
    "column by column": (
        torch.clone,
        lambda a, h: torch.stack([torch.mv(a, column) for column in h.unbind(1)], 1),
    ),
}
