"""The eight architectures as plain PyG networks.

They define parameter names and initialisation, serve as the peer in benchmarks and tests, and are
what :meth:`Frozen.network` hands to a user. Self-loops are entries of the graph already; a
convolution that normalises or attends makes them one a node, or keeps all that are listed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import remove_self_loops


class TwoLayerNetwork(nn.Module):
    """Convolution, ReLU, dropout, convolution, affine classifier."""

    def __init__(
        self,
        conv1: MessagePassing,
        conv2: MessagePassing,
        hidden: int,
        classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv1, conv2
        self.classifier = nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [N, C]."""
        hidden = self.dropout(torch.relu(self.conv1(x, edge_index)))
        out: Tensor = self.classifier(self.conv2(hidden, edge_index))
        return out


class OneLayerNetwork(nn.Module):
    """One convolution over the features, affine classifier."""

    def __init__(self, conv: nn.Module, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv = conv
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [N, C]."""
        out: Tensor = self.classifier(self.conv(x, edge_index))
        return out


class MeanStreams(MessagePassing):
    """Root, one-hop mean and two-hop mean of the features, each with its own transform.

    out = [x W₀ + b₀, P x W₁ + b₁, P² x W₂ + b₂], with P the mean over a node's entries other
    than self-loops.
    """

    def __init__(self, features: int, hidden: int, zero_biases: bool, **kwargs: Any) -> None:
        super().__init__(aggr="mean", **kwargs)
        self.lins = nn.ModuleList(
            nn.Linear(features, hidden, bias=not zero_biases) for _ in range(3)
        )
        if zero_biases:  # without a draw of their own, so that the weights' draws are the paper's
            for lin in self.lins:
                lin.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The three streams side by side, [N, 3 · hidden]."""
        others, _ = remove_self_loops(edge_index)
        streams = [self.lins[0](x)]
        for lin in self.lins[1:]:
            x = self.propagate(others, x=x)
            streams.append(lin(x))
        return torch.cat(streams, dim=1)
