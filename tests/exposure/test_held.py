"""What lets other nodes' numbers in beside the messages is held, and named."""

from __future__ import annotations

import torch
from convolutions import graph
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from gnn_repair.exposure import Exposure, expose


class Beside(nn.Module):
    """A convolution, a maximum over all nodes and an earlier convolution beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(5, 8), pyg.SAGEConv(8, 8, root_weight=False)
        self.lin = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv1(x, edge_index).relu()
        return self.lin(self.conv2(h, edge_index) + h + h.amax(0))


def test_what_mixes_nodes_beside_the_final_sums_is_named() -> None:
    torch.manual_seed(0)
    source = graph()
    exposure = expose(Beside().double(), Data(x=source.x, edge_index=source.edge_index))
    assert isinstance(exposure, Exposure) and [g.name for g in exposure.groups] == ["conv2"]
    assert [(str(part), part.beside) for part in exposure.held] == [
        ("`conv1` (GCNConv) (scatter_add)", False), ("the forward of Beside (amax)", True),
    ]  # fmt: skip
    assert exposure.scope == "model with the forward of Beside held"
    assert str(exposure).count("held as it is: the forward of Beside (amax)") == 1
