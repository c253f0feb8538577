"""Two-layer attention backbones: GAT and GATv2.

Eight heads side by side in the first layer, one head of full width in the last. Heads and members
are both just groups of the sparse kernels: a coefficient [T, S·H] for every entry.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing

from gnn_repair.backbones.base import Backbone, Parameters, Readout, Shape, Stream
from gnn_repair.backbones.graph import Graph, Operator, State, times
from gnn_repair.backbones.networks import TwoLayerNetwork
from gnn_repair.backbones.titles import TITLES
from gnn_repair.errors import InputError
from gnn_repair.kernels import drop, mix, pair_scores, segment_softmax, spread
from gnn_repair.training import LONG, SHORT

SLOPE = 0.2
"""Of the leaky ReLU inside the attention scores: PyG's own."""


class Attended(NamedTuple):
    """What a first attention layer mixes."""

    messages: Tensor
    """[N, S·K]."""
    attention: Tensor
    """[T, S·H]."""


class AttentionBackbone(Backbone):
    """h = dropout(relu(α₁ (x W₁) + b₁)), r = α₂ (h W₂) + b₂, with dropout on α."""

    conv: ClassVar[type[MessagePassing]]
    source: ClassVar[str]
    """Name of the transform whose output is the message."""
    fixed = "layer bias and classifier bias"
    rule = "α = final attention"

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        if self.shape.hidden % self.shape.heads:
            raise InputError(
                f"{self.title}: hidden is {self.shape.hidden}, which {self.shape.heads} heads do "
                "not divide; choose a multiple"
            )

    def network(self, features: int, classes: int) -> nn.Module:
        hidden, heads, dropout = self.shape.hidden, self.shape.heads, self.shape.dropout
        options = {"add_self_loops": self.one_loop, "dropout": dropout}
        first = self.conv(features, hidden // heads, heads=heads, **options)
        last = self.conv(hidden, hidden, heads=1, concat=False, **options)
        return TwoLayerNetwork(first, last, hidden, classes, dropout)

    @abstractmethod
    def attention(self, p: Parameters, layer: str, graph: Graph, state: State) -> Attended:
        """Messages and attention coefficients of one layer."""

    @abstractmethod
    def final_attention(self, p: Parameters, graph: Graph, state: State) -> Tensor:
        """Attention coefficients [T, S] of the last layer alone."""

    def trunk(self, p: Parameters, graph: Graph) -> Attended:
        return self.attention(p, "conv1", graph, graph.features)

    def state(self, p: Parameters, graph: Graph, trunk: Attended, dropout: float) -> State:
        bias = p["conv1.bias"]
        by_head = trunk.attention.unflatten(1, (bias.shape[0], -1))
        attention = drop(by_head, dropout).flatten(1)
        mixed = mix(self.entries(graph), attention, trunk.messages)
        hidden = torch.relu(mixed.view(-1, *bias.shape) + bias)
        return drop(hidden, dropout)

    def readout(self, p: Parameters, graph: Graph, state: State, dropout: float) -> Readout:
        attention = drop(self.final_attention(p, graph, state), dropout)
        weight, bias = p[f"conv2.{self.source}.weight"], p.get(f"conv2.{self.source}.bias")
        stream = Stream("attention", Operator(self.entries(graph), attention), weight, bias)
        classifier = p["classifier.weight"], p["classifier.bias"]
        return Readout((stream,), None, p["conv2.bias"], *classifier)


class GAT(AttentionBackbone):
    """Veličković et al.: α = softmax of leaky(a_s · W h_a + a_t · W h_v)."""

    title, budget = TITLES["gat"], SHORT
    conv, source = GATConv, "lin"

    def attention(self, p: Parameters, layer: str, graph: Graph, state: State) -> Attended:
        messages = times(state, p[f"{layer}.lin.weight"])
        by_head = messages.unflatten(2, p[f"{layer}.att_src"].shape[2:])
        source = (by_head * p[f"{layer}.att_src"].squeeze(1)).sum(-1).flatten(1)
        recipient = (by_head * p[f"{layer}.att_dst"].squeeze(1)).sum(-1).flatten(1)
        scores = leaky_relu(spread(self.entries(graph), source, recipient), SLOPE)
        return Attended(messages.flatten(1), segment_softmax(self.entries(graph), scores))

    def final_attention(self, p: Parameters, graph: Graph, state: State) -> Tensor:
        vectors = torch.cat([p["conv2.att_src"], p["conv2.att_dst"]], dim=1).squeeze(2)
        folded = torch.bmm(p["conv2.lin.weight"], vectors.transpose(1, 2))
        source, recipient = times(state, folded).unbind(2)
        scores = leaky_relu(spread(self.entries(graph), source, recipient), SLOPE)
        return segment_softmax(self.entries(graph), scores)


class GATv2(AttentionBackbone):
    """Brody et al.: α = softmax of a · leaky(W_l h_a + W_r h_v)."""

    title, budget = TITLES["gatv2"], LONG
    conv, source = GATv2Conv, "lin_l"

    def attention(self, p: Parameters, layer: str, graph: Graph, state: State) -> Attended:
        left, right = p[f"{layer}.lin_l.weight"], p[f"{layer}.lin_r.weight"]
        both = times(state, torch.cat([left, right], dim=2))
        source, recipient = both.split(left.shape[2], dim=2)
        source = (source + p[f"{layer}.lin_l.bias"]).flatten(1)
        recipient = (recipient + p[f"{layer}.lin_r.bias"]).flatten(1)
        vector = p[f"{layer}.att"]
        groups = vector.shape[0] * vector.shape[2]
        scores = pair_scores(
            self.entries(graph), vector.flatten(), source, recipient, groups, SLOPE
        )
        return Attended(source, segment_softmax(self.entries(graph), scores))

    def final_attention(self, p: Parameters, graph: Graph, state: State) -> Tensor:
        return self.attention(p, "conv2", graph, state).attention
