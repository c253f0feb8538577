"""Two-layer backbones whose coefficients are fixed by the graph: GCN, GraphSAGE, GraphConv."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GraphConv, MessagePassing, SAGEConv

from gnn_repair.backbones.base import Backbone, Parameters, Readout, Stream
from gnn_repair.backbones.graph import Graph, Operator, State
from gnn_repair.backbones.networks import TwoLayerNetwork
from gnn_repair.backbones.titles import TITLES
from gnn_repair.kernels import drop
from gnn_repair.training import LONG, SHORT


class TwoLayer(Backbone):
    """h = dropout(relu(A x W₁ + x R₁ + b₁)), r = A h W₂ + h R₂ + b₂."""

    weight: ClassVar[str]
    bias: ClassVar[str]
    root: ClassVar[str | None] = None
    group: ClassVar[str]

    @abstractmethod
    def conv(self, inputs: int, outputs: int) -> MessagePassing:
        """One convolution as PyG has it."""

    @abstractmethod
    def operator(self, graph: Graph) -> Operator:
        """A."""

    def network(self, features: int, classes: int) -> nn.Module:
        hidden = self.shape.hidden
        convs = self.conv(features, hidden), self.conv(hidden, hidden)
        return TwoLayerNetwork(*convs, hidden, classes, self.shape.dropout)

    def trunk(self, p: Parameters, graph: Graph) -> Tensor:
        weight = p[f"conv1.{self.weight}"]
        if self.root is not None:
            both = torch.cat([weight, p[f"conv1.{self.root}"]], dim=2)
            message, root = graph.features.times(both).split(weight.shape[2], dim=2)
            out = self.operator(graph)(message) + root
        else:
            out = self.operator(graph)(graph.features.times(weight))
        return torch.relu(out + p[f"conv1.{self.bias}"])

    def state(self, p: Parameters, graph: Graph, trunk: Tensor, dropout: float) -> State:
        return drop(trunk, dropout)

    def readout(self, p: Parameters, graph: Graph, state: State, dropout: float) -> Readout:
        stream = Stream(self.group, self.operator(graph), p[f"conv2.{self.weight}"])
        root = None if self.root is None else p[f"conv2.{self.root}"]
        classifier = p["classifier.weight"], p["classifier.bias"]
        return Readout((stream,), root, p[f"conv2.{self.bias}"], *classifier)


class GCN(TwoLayer):
    """Kipf & Welling: A = Â, the symmetrically normalised entries."""

    title, budget = TITLES["gcn"], SHORT
    weight, bias, group = "lin.weight", "bias", "Â"
    rule = "α = Â, the normalised adjacency"

    def conv(self, inputs: int, outputs: int) -> MessagePassing:
        return GCNConv(inputs, outputs, add_self_loops=self.one_loop)

    def operator(self, graph: Graph) -> Operator:
        return graph.normalised(self.one_loop)


class GraphSAGE(TwoLayer):
    """Hamilton et al.: the mean over entries beside a root transform."""

    title, budget = TITLES["sage"], SHORT
    weight, bias, root, group = "lin_l.weight", "lin_l.bias", "lin_r.weight", "mean"
    rule = "α = 1/deg"
    fixed = "root transform, neighbour-branch bias and classifier bias"

    def conv(self, inputs: int, outputs: int) -> MessagePassing:
        return SAGEConv(inputs, outputs)

    def operator(self, graph: Graph) -> Operator:
        return graph.mean


class GraphConvolution(TwoLayer):
    """Morris et al.: the plain sum over entries beside a root transform."""

    title, budget = TITLES["graphconv"], LONG
    weight, bias, root, group = "lin_rel.weight", "lin_rel.bias", "lin_root.weight", "sum"
    rule = "α = 1"
    fixed = "root transform, neighbour-branch bias and classifier bias"

    def conv(self, inputs: int, outputs: int) -> MessagePassing:
        return GraphConv(inputs, outputs)

    def operator(self, graph: Graph) -> Operator:
        return graph.total
