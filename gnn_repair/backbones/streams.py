"""Backbones that are one affine map of propagated features: SGC, MixHop and the H2GCN style.

Their state h is the raw feature vector. Powers of an operator are applied hop by hop while
training and multiplied out only for exposure.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch_geometric.nn import MixHopConv, SGConv

from gnn_repair.backbones.base import Backbone, Parameters, Readout, Stream
from gnn_repair.backbones.graph import Graph, Operator, State
from gnn_repair.backbones.networks import MeanStreams, OneLayerNetwork
from gnn_repair.backbones.titles import TITLES
from gnn_repair.training import LONG

SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"


class StreamBackbone(Backbone):
    """r = concat over powers p of A^p x W_p, plus a bias."""

    budget = LONG
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2)
    symbol: ClassVar[str] = "Â"
    fixed = "concatenated-stream and classifier biases"

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

    title = TITLES["sgc"]
    powers = (2,)
    rule = "α = Â²"
    fixed = "linear and classifier biases"

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

    title = TITLES["mixhop"]
    rule = "α = Âᵖ"

    def network(self, features: int, classes: int) -> nn.Module:
        hidden = self.shape.hidden
        conv = MixHopConv(features, hidden, powers=list(self.powers), add_self_loops=self.one_loop)
        return OneLayerNetwork(conv, len(self.powers) * hidden, classes)


class H2GCN(StreamBackbone):
    """In the style of Zhu et al.: root, one-hop mean and two-hop mean side by side."""

    title = TITLES["h2gcn"]
    symbol = "P"
    rule = "α = Pᵖ, the mean without self-loops"

    def network(self, features: int, classes: int) -> nn.Module:
        hidden = self.shape.hidden
        return OneLayerNetwork(
            MeanStreams(features, hidden, self.shape.zero_stream_biases), 3 * hidden, classes
        )

    def operator(self, graph: Graph) -> Operator:
        return graph.mean_without_self

    def bias(self, p: Parameters) -> torch.Tensor:
        return torch.cat([p[f"conv.lins.{power}.bias"] for power in self.powers], dim=1)
