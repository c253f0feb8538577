"""Free logit correction: a centred, bounded shift of each node's logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gnn_repair.budget import CONTROL, TRANSLATION, Budget, check_whole
from gnn_repair.exposure import Exposure
from gnn_repair.kernels.sets import BOUND
from gnn_repair.methods import METHODS
from gnn_repair.repair.base import FittedRepair, TrainedRepair
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
from gnn_repair.repair.layers import (
    MessageTable,
    Noise,
    PairWeights,
    Parameters,
    affine,
    centred,
    encode,
    encoder_reads,
    pair_width,
    perceptron,
    perceptron_size,
    split_context,
    split_pair,
)

CHUNK = 1 << 16
"""Recipients whose shifts are worked out at once: 32 MB a hidden layer, of which there are several;
for a million recipients at once they would be gigabytes."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedTranslation(FittedRepair["_Translation"]):
    """z = z⁰ + q."""

    one_by_one = True

    def shift(self, exposure: Exposure) -> Tensor:
        """q, [S, n, C] in the model's precision; sums to zero over classes."""
        with self.gradients(exposure):
            return self._shift(exposure)

    def _shift(self, exposure: Exposure) -> Tensor:
        p, inputs = self._matching(exposure), repair_inputs(exposure)
        parts = inputs.everyone.split(CHUNK, dim=1)
        # Where every node is asked for, nearly every message is read: no need to look which.
        whole = len(parts) > 1 or inputs.in_order
        tables = self.repair.tables(p, inputs, whole=whole)
        return torch.cat([self.repair.shift(p, inputs, tables, t, None) for t in parts], dim=1)

    def logits(self, exposure: Exposure) -> Tensor:
        """z⁰ + q at the recipients, [S, n, C] float64."""
        shift = self.shift(exposure)
        return exposure.frozen_logits[:, exposure.recipients] + shift


@dataclass(frozen=True)
class _Translation(TrainedRepair[FittedTranslation]):
    """What set and node translation share."""

    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedTranslation
    takes_labels: ClassVar[bool] = True

    def tables(self, p: Parameters, inputs: RepairInputs, whole: bool = False) -> Any:
        """What all targets read; ``whole``: all of it is going to be read."""
        return None

    def shift(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """q = P · 4 tanh(ρ(·)) of targets [S, L], [S, L, C]; of labels, whose logits stand for
        themselves, without the projection P."""
        hidden = self.hidden_layer(p, inputs, tables, targets, noise).relu()
        raw = affine(p, "head.2", noise.head(hidden) if noise else hidden)
        shift = BOUND * raw.tanh()
        return centred(shift) if inputs.outputs == "classes" else shift

    def hidden_layer(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """The head's first affine layer, [S, L, H]."""
        raise NotImplementedError

    def corrected(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """z⁰ + q."""
        return inputs.frozen_at(targets) + self.shift(p, inputs, tables, targets, noise)


@dataclass(frozen=True)
class SetTranslation(_Translation):
    """q_v = P · 4 tanh(ρ([h_v, z⁰_v, p_v, m̄_v])), p_v pooled over the whole message set."""

    title: ClassVar[str] = METHODS["set_translation"].title
    budget_setting: ClassVar[str] = "set_translation"
    budget: Budget = TRANSLATION
    hidden: int = 128
    """H, also the width of p_v."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("SetTranslation", "hidden", self.hidden, 1)

    def network(self, width: int, classes: int) -> nn.Module:
        """ψ and ρ."""
        hidden = self.hidden
        return nn.ModuleDict(
            {
                "encoder": perceptron(pair_width(width, classes), hidden, hidden),
                "head": perceptron(width + classes + hidden + 1, hidden, classes, zero=True),
            }
        )

    def tables(
        self, p: Parameters, inputs: RepairInputs, whole: bool = False
    ) -> tuple[PairWeights, MessageTable]:
        """ψ's first weight taken apart, and [h_a, z_a] times its source part, [S, P, H]."""
        pair = split_pair(p["encoder.0.weight"], inputs.width, inputs.num_classes)
        return pair, MessageTable(inputs, pair.source, whole)

    def hidden_layer(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """c_v W + b."""
        pair, messages = tables
        head = split_context(p["head.0.weight"], inputs.width + inputs.num_classes)
        own, *by_pair = inputs.times_at(targets, head.own, *encoder_reads(inputs, pair))
        pooled = encode(p, inputs, targets, pair, by_pair, messages.read_by(targets), noise)
        total = inputs.total.gather(1, targets)
        return head.times(own + p["head.0.bias"].unsqueeze(1), pooled, total)


@dataclass(frozen=True)
class NodeTranslation(_Translation):
    """q_v = P · 4 tanh(ρ([h_v, z⁰_v])): the control that does not see the message set."""

    title: ClassVar[str] = METHODS["node_translation"].title
    budget_setting: ClassVar[str] = "node_translation"
    budget: Budget = CONTROL
    hidden: int | None = None
    """H_N; None: as wide as makes it match set translation's parameter count."""

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """As wide as matches the protocol's set translation in parameters."""
        state, classes = exposure.state.shape[2], exposure.num_classes
        capacity = set_translation_size(state, classes, settings.hidden)
        width = matched_width(capacity, state, classes)
        return replace(super().from_protocol(settings, exposure), hidden=width)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden is not None:
            check_whole("NodeTranslation", "hidden", self.hidden, 1)

    def network(self, width: int, classes: int) -> nn.Module:
        """ρ."""
        hidden = self.hidden or matched_width(set_translation_size(width, classes), width, classes)
        return nn.ModuleDict({"head": perceptron(width + classes, hidden, classes, zero=True)})

    def hidden_layer(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """[h_v, z_v] W + b."""
        (own,) = inputs.times_at(targets, p["head.0.weight"])
        return own + p["head.0.bias"].unsqueeze(1)


def set_translation_size(state: int, classes: int, hidden: int = 128) -> int:
    """N_T = F(d_x, H) + F(d + C + H + 1, C)."""
    encoder = perceptron_size(pair_width(state, classes), hidden, hidden)
    return encoder + perceptron_size(state + classes + hidden + 1, classes, hidden)


def matched_width(parameters: int, state: int, classes: int) -> int:
    """The width h ≥ 1 that brings h (d + 2C + 1) + C nearest to ``parameters``."""
    step = state + 2 * classes + 1
    lower = max(1, (parameters - classes) // step)
    return min((lower, lower + 1), key=lambda h: abs(h * step + classes - parameters))
