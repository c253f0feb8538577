"""The eight architectures, as plain PyG networks and for S members at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GraphConv,
    MessagePassing,
    MixHopConv,
    SAGEConv,
    SGConv,
)
from torch_geometric.utils import remove_self_loops

from gnn_repair.backbones.base import Backbone, Readout, Shape, Stream
from gnn_repair.backbones.graph import Graph, Operator, State, times
from gnn_repair.errors import InputError
from gnn_repair.kernels import drop, mix, pair_scores, pair_sums, segment_softmax
from gnn_repair.published import BACKBONE_WORDS
from gnn_repair.training import LONG, SHORT, Parameters

# As plain PyG networks ----------------------------------------------------------------------------
#
# They define parameter names and initialisation, serve as the peer in benchmarks and tests, and are
# what :meth:`Frozen.network` hands to a user. Self-loops are entries of the graph already; a
# convolution that normalises or attends makes them one per node, or keeps all that are listed.


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


# Two layers whose coefficients the graph fixes: GCN, GraphSAGE, GraphConv -------------------------


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

    title, rule, fixed = BACKBONE_WORDS["gcn"][:3]
    budget = SHORT
    weight, bias, group = "lin.weight", "bias", "Â"

    def conv(self, inputs: int, outputs: int) -> MessagePassing:
        return GCNConv(inputs, outputs, add_self_loops=self.one_loop)

    def operator(self, graph: Graph) -> Operator:
        return graph.normalised(self.one_loop)


class GraphSAGE(TwoLayer):
    """Hamilton et al.: the mean over entries beside a root transform."""

    title, rule, fixed = BACKBONE_WORDS["sage"][:3]
    budget = SHORT
    weight, bias, root, group = "lin_l.weight", "lin_l.bias", "lin_r.weight", "mean"

    def conv(self, inputs: int, outputs: int) -> MessagePassing:
        return SAGEConv(inputs, outputs)

    def operator(self, graph: Graph) -> Operator:
        return graph.mean


class GraphConvolution(TwoLayer):
    """Morris et al.: the plain sum over entries beside a root transform."""

    title, rule, fixed = BACKBONE_WORDS["graphconv"][:3]
    budget = LONG
    weight, bias, root, group = "lin_rel.weight", "lin_rel.bias", "lin_root.weight", "sum"

    def conv(self, inputs: int, outputs: int) -> MessagePassing:
        return GraphConv(inputs, outputs)

    def operator(self, graph: Graph) -> Operator:
        return graph.total


# Two layers of attention: GAT and GATv2 -----------------------------------------------------------
#
# Eight heads side by side in the first layer, one head of full width in the last. Heads and members
# are both just groups of the sparse kernels: a coefficient [T, S·H] for every entry.

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

    title, rule, fixed = BACKBONE_WORDS["gat"][:3]
    budget = SHORT
    conv, source = GATConv, "lin"

    def attention(self, p: Parameters, layer: str, graph: Graph, state: State) -> Attended:
        messages = times(state, p[f"{layer}.lin.weight"])
        by_head = messages.unflatten(2, p[f"{layer}.att_src"].shape[2:])
        source = (by_head * p[f"{layer}.att_src"].squeeze(1)).sum(-1).flatten(1)
        recipient = (by_head * p[f"{layer}.att_dst"].squeeze(1)).sum(-1).flatten(1)
        scores = leaky_relu(pair_sums(self.entries(graph), source, recipient), SLOPE)
        return Attended(messages.flatten(1), segment_softmax(self.entries(graph), scores))

    def final_attention(self, p: Parameters, graph: Graph, state: State) -> Tensor:
        vectors = torch.cat([p["conv2.att_src"], p["conv2.att_dst"]], dim=1).squeeze(2)
        folded = torch.bmm(p["conv2.lin.weight"], vectors.transpose(1, 2))
        source, recipient = times(state, folded).unbind(2)
        scores = leaky_relu(pair_sums(self.entries(graph), source, recipient), SLOPE)
        return segment_softmax(self.entries(graph), scores)


class GATv2(AttentionBackbone):
    """Brody et al.: α = softmax of a · leaky(W_l h_a + W_r h_v)."""

    title, rule, fixed = BACKBONE_WORDS["gatv2"][:3]
    budget = LONG
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


# One affine map of propagated features: SGC, MixHop and the H2GCN style ---------------------------
#
# Their state h is the raw feature vector. Powers of an operator are applied hop by hop while
# training and multiplied out only for exposure.

SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"


class StreamBackbone(Backbone):
    """r = concat over powers p of A^p x W_p, plus a bias."""

    budget = LONG
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2)
    symbol: ClassVar[str] = "Â"

    def operator(self, graph: Graph) -> Operator:
        """A."""
        return graph.normalised(self.one_loop)

    def bias(self, p: Parameters) -> torch.Tensor:
        """[S, streams · k]."""
        return p["conv.bias"]

    def weight(self, p: Parameters, power: int) -> torch.Tensor:
        """W_p, [S, F, k]."""
        return p[f"conv.lins.{power}.weight"]

    def state(self, p: Parameters, graph: Graph, trunk: Any, dropout: float) -> State:
        return graph.features

    def readout(self, p: Parameters, graph: Graph, state: State, dropout: float) -> Readout:
        operator = self.operator(graph)
        streams = tuple(
            Stream(
                self.symbol + (SUPERSCRIPTS[power] if power != 1 else ""),
                operator.raised(power),
                self.weight(p, power),
                slot=slot,
            )
            for slot, power in enumerate(self.powers)
        )
        classifier = p["classifier.weight"], p["classifier.bias"]
        return Readout(streams, None, self.bias(p), *classifier)


class SGC(StreamBackbone):
    """Wu et al.: one linear filter after two propagation steps, Â² x W."""

    title, rule, fixed = BACKBONE_WORDS["sgc"][:3]
    powers = (2,)

    def network(self, features: int, classes: int) -> nn.Module:
        hidden = self.shape.hidden
        conv = SGConv(features, hidden, K=2, add_self_loops=self.one_loop)
        return OneLayerNetwork(conv, hidden, classes)

    def weight(self, p: Parameters, power: int) -> torch.Tensor:
        return p["conv.lin.weight"]

    def bias(self, p: Parameters) -> torch.Tensor:
        return p["conv.lin.bias"]


class MixHop(StreamBackbone):
    """Abu-El-Haija et al.: the powers 0, 1 and 2 of Â side by side."""

    title, rule, fixed = BACKBONE_WORDS["mixhop"][:3]

    def network(self, features: int, classes: int) -> nn.Module:
        hidden = self.shape.hidden
        conv = MixHopConv(features, hidden, powers=list(self.powers), add_self_loops=self.one_loop)
        return OneLayerNetwork(conv, len(self.powers) * hidden, classes)


class H2GCN(StreamBackbone):
    """In the style of Zhu et al.: root, one-hop mean and two-hop mean side by side."""

    title, rule, fixed = BACKBONE_WORDS["h2gcn"][:3]
    symbol = "P"

    def network(self, features: int, classes: int) -> nn.Module:
        hidden = self.shape.hidden
        return OneLayerNetwork(
            MeanStreams(features, hidden, self.shape.zero_stream_biases), 3 * hidden, classes
        )

    def operator(self, graph: Graph) -> Operator:
        return graph.mean_without_self

    def bias(self, p: Parameters) -> torch.Tensor:
        return torch.cat([p[f"conv.lins.{power}.bias"] for power in self.powers], dim=1)


# By name ------------------------------------------------------------------------------------------

BACKBONES: dict[str, type[Backbone]] = {
    "gcn": GCN,
    "gat": GAT,
    "sage": GraphSAGE,
    "gatv2": GATv2,
    "graphconv": GraphConvolution,
    "sgc": SGC,
    "mixhop": MixHop,
    "h2gcn": H2GCN,
}
