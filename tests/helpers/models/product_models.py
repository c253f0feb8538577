"""Models that multiply with a matrix themselves, without MessagePassing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.helpers.models.convolutions import NODES, graph


def dense(signed: bool = False) -> Tensor:
    """A [recipient, source], with weights of its own."""
    data = graph()
    out = torch.zeros(NODES, NODES, dtype=torch.float64)
    out[data.edge_index[1], data.edge_index[0]] = data.signed_weight if signed else data.edge_weight
    return out


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
