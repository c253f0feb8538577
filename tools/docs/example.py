"""The trained model that pages of the documentation speak of.

It is small and in float64, so that what the pages print is the same on every processor but for
residuals, which are rounding errors.
"""

from __future__ import annotations

import matplotlib
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import gnn_repair as gr

__all__ = ["MyModel", "data", "gr", "model", "nn", "test", "torch", "train", "val"]

matplotlib.use("Agg")
data = gr.load_dataset("builtin").subgraph(torch.arange(1000))
data.x = data.x.double()
train, val, test = (mask[:, 0].clone() for mask in (data.train_mask, data.val_mask, data.test_mask))


class MyModel(nn.Module):
    """Two graph convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GCNConv(64, 32)
        self.conv2 = GCNConv(32, 18)
        self.double()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [N, C]."""
        logits: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return logits


torch.manual_seed(0)
model = MyModel()
_optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
for _ in range(40):
    _optimizer.zero_grad()
    _logits = model(data.x, data.edge_index)
    nn.functional.cross_entropy(_logits[train], data.y[train]).backward()
    _optimizer.step()
