"""Models that cannot be exposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models


class Net(nn.Module):
    """``after`` follows the last convolution, ``end`` the linear head."""

    def __init__(
        self, conv: Any = None, after: Any = None, end: Any = None, width: int = 8
    ) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(5, 6)
        self.conv2 = conv or pyg.GCNConv(6, 8)
        self.after = after or nn.Identity()
        self.lin = nn.Linear(width, 4)
        self.end = end or nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.end(self.lin(self.after(self.conv2(x, edge_index))))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(5, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return pyg.global_max_pool(self.conv(x, edge_index), None)


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "max aggregator": lambda: Net(pyg.SAGEConv(6, 8, aggr="max")),
    "LSTM aggregator": lambda: Net(pyg.SAGEConv(6, 8, aggr="lstm")),
    "LSTM aggregator alone": lambda: pyg.SAGEConv(5, 4, aggr="lstm"),
    "models.EdgeCNN": lambda: models.EdgeCNN(5, 8, 2, 4),
    "max pooling": Pooled,
    "no messages": lambda: models.MLP([5, 8, 4]),
    "random in evaluation": lambda: Net(after=nn.functional.dropout),
    "not connected": lambda: Net(after=lambda x: x * 0),
}
"""What is said of each stands in the golden record."""
