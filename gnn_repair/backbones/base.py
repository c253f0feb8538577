"""What a backbone is: a PyG network, and the same computation for S members at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gnn_repair.backbones.graph import Graph, Operator, State, times
from gnn_repair.budget import Budget, check_real, check_whole
from gnn_repair.errors import InputError
from gnn_repair.kernels import Pattern
from gnn_repair.training import Parameters


@dataclass(frozen=True)
class Stream:
    """One stream of the final aggregation: A_g (h W + b), written to one slot of the embedding."""

    name: str
    operator: Operator
    weight: Tensor
    """[S, d, k]."""
    bias: Tensor | None = None
    """[S, k]: part of every message (only where the architecture adds it before mixing)."""
    slot: int = 0


@dataclass(frozen=True)
class Readout:
    """The affine end of a backbone, from its state h to embedding r and logits z:

    r = concat over slots (Σ_g A_g (h W_g + b_g) + root) + bias,      z = r W_c + b_c.

    Nothing between h and z is nonlinear, so logits are computed with the classifier folded into
    the streams, A_g (h (W_g W_c)): the final aggregation moves C channels instead of k.
    """

    streams: tuple[Stream, ...]
    root: Tensor | None
    """[S, d, k]: the root transform, added to slot 0."""
    bias: Tensor
    """[S, slots · k]."""
    classifier: Tensor
    """[S, slots · k, C]."""
    classifier_bias: Tensor
    """[S, C]."""

    def class_weight(self, stream: Stream) -> Tensor:
        """The paper's W_g as [S, d, C]: the stream's transform followed by the classifier."""
        return torch.bmm(stream.weight, self._slot(stream))

    def _slot(self, stream: Stream) -> Tensor:
        width = stream.weight.shape[2]
        return self.classifier[:, stream.slot * width : (stream.slot + 1) * width]

    def contributions(self, state: State) -> tuple[Tensor, ...]:
        """h W_g of every stream, each [N, S, C]."""
        weights = [self.class_weight(stream) for stream in self.streams]
        return times(state, torch.cat(weights, dim=2)).split(self.classifier.shape[2], dim=2)

    def logits(self, state: State) -> Tensor:
        """z, [N, S, C]."""
        weights = [self.class_weight(stream) for stream in self.streams]
        if self.root is not None:
            weights.append(torch.bmm(self.root, self.classifier[:, : self.root.shape[2]]))
        parts = times(state, torch.cat(weights, dim=2)).split(self.classifier.shape[2], dim=2)
        fixed = torch.bmm(self.bias.unsqueeze(1), self.classifier).squeeze(1)
        out = fixed + self.classifier_bias
        for stream, part in zip(self.streams, parts, strict=False):
            if stream.bias is not None:
                part = part + torch.bmm(stream.bias.unsqueeze(1), self._slot(stream)).squeeze(1)
            out = out + stream.operator(part)
        return out if self.root is None else out + parts[-1]

    def embedding(self, state: State) -> Tensor:
        """r, [N, S, slots · k]: what the classifier reads."""
        slots: dict[int, Tensor] = {}
        for stream in self.streams:
            message = times(state, stream.weight)
            message = message if stream.bias is None else message + stream.bias
            mixed = stream.operator(message)
            slots[stream.slot] = slots[stream.slot] + mixed if stream.slot in slots else mixed
        if self.root is not None:
            slots[0] = slots[0] + times(state, self.root)
        return torch.cat([slots[slot] for slot in sorted(slots)], dim=2) + self.bias


SelfLoops = Literal["one", "listed"]


@dataclass(frozen=True)
class Shape:
    """The sizes of an architecture, and what its name leaves open."""

    hidden: int = 128
    heads: int = 8
    dropout: float = 0.5
    self_loops: SelfLoops = "one"
    """Entries of a node with a self-loop of its own, where a convolution normalises or attends:
    one, as PyG's convolutions make it, or both that the graph lists."""
    zero_stream_biases: bool = True
    """Whether the biases of H2GCN's streams start at zero instead of PyTorch's random start."""

    def __post_init__(self) -> None:
        check_whole("Shape", "hidden", self.hidden, 1)
        check_whole("Shape", "heads", self.heads, 1)
        check_real("Shape", "dropout", self.dropout, 0, 1)
        if self.self_loops not in ("one", "listed"):
            raise InputError(f"self_loops is {self.self_loops!r}; choose 'one' or 'listed'")


class Backbone(ABC):
    """One architecture. Everything specific to it lives in its class.

    A forward pass is ``trunk`` (up to the first dropout, so that a training step and the
    evaluation before it share it), ``state`` (h, the input of the final aggregation) and
    ``readout`` (the affine rest).
    """

    title: ClassVar[str]
    """The name in tables."""
    budget: ClassVar[Budget]
    """How it is trained."""
    fixed: ClassVar[str] = "convolution and classifier biases"
    """What its fixed logits hold, in words."""
    rule: ClassVar[str]
    """Where its coefficients come from, in words."""

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape or Shape()

    def entries(self, graph: Graph) -> Pattern:
        """The entries that a normalising or attending convolution sees."""
        return graph.pattern(self.one_loop)

    @property
    def one_loop(self) -> bool:
        """Whether normalising and attending convolutions see one self-loop a node."""
        return self.shape.self_loops == "one"

    @abstractmethod
    def network(self, features: int, classes: int) -> nn.Module:
        """The same network in plain PyG: the architecture, its initialisation and its names."""

    @abstractmethod
    def state(self, p: Parameters, graph: Graph, trunk: Any, dropout: float) -> State:
        """h."""

    @abstractmethod
    def readout(self, p: Parameters, graph: Graph, state: State, dropout: float) -> Readout:
        """The affine end, with this state's coefficients."""

    def trunk(self, p: Parameters, graph: Graph) -> Any:
        """What training and evaluation have in common."""
        return None

    def logits(self, p: Parameters, graph: Graph, trunk: Any, dropout: float = 0.0) -> Tensor:
        """z, [N, S, C]."""
        state = self.state(p, graph, trunk, dropout)
        return self.readout(p, graph, state, dropout).logits(state)
