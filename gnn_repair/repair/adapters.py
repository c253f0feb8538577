"""The paper's adapters on a frozen model: reweighting, translations, and a refitted head.

Reweighting gives every message a new coefficient and keeps each group's mass. A translation moves
a node's logits by a centred, bounded shift. The refitted head asks whether another boundary would
do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gnn_repair.budget import CONTROL, REFIT, REWEIGHTING, TRANSLATION, Budget
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.pieces import centre
from gnn_repair.kernels.sets import BOUND, Layer, Scorer, TermSets, tilt
from gnn_repair.repair.base import FittedRepair, TrainedRepair
from gnn_repair.repair.inputs import (
    ContextWeights,
    MessageTable,
    Noise,
    PairWeights,
    RepairInputs,
    affine,
    encode,
    encoder_reads,
    pair_width,
    perceptron,
    split_context,
    split_pair,
)
from gnn_repair.repair.targets import Targets
from gnn_repair.training import Parameters

SCORED = 1 << 24
"""Numbers of one block when all terms are scored."""
RECIPIENTS = 1 << 16
"""Recipients whose shifts are worked out at once: 32 MB a hidden layer, of which there are several;
for a million recipients at once they would be gigabytes."""
FLAT = 1e-6
"""Coordinates with a smaller standard deviation are not divided by it: they are constant up to
rounding."""

# Reweighting -------------------------------------------------------------------------------------


Tables = tuple[PairWeights, PairWeights, ContextWeights, MessageTable, MessageTable]
"""Reweighting's weights taken apart, ψ's, the scorer's and the scorer's on c_v; then [h_a, z_a]
times ψ's source part and times the scorer's, [S, P, H] each."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedReweighting(FittedRepair["Reweighting"]):
    """z = β + Σ λ ℓ."""

    one_by_one = True

    def coefficients(self, exposure: Exposure) -> Tensor:
        """λ = m_g α e^s / Σ α e^s, [S, T] float64: nonnegative, same support, same masses."""
        with self.gradients(exposure):
            p, inputs = self._matching(exposure), RepairInputs(exposure)
            tables = self.repair.tables(p, inputs)
            layer = self.repair.scorer_layer(p, inputs, tables, inputs.everyone, None)
            scores = term_scores(inputs.sets, layer, scorer_of(p))
            tilted = exposure.coefficients.double() * scores.double().exp()
            masses = exposure.masses(tilted).clamp(min=torch.finfo(torch.float64).tiny)
            ratio = (exposure.mass / masses).flatten(1)
            return tilted * torch.repeat_interleave(ratio, exposure.segments.diff(), dim=1)

    def member_logits(self, exposure: Exposure) -> Tensor:
        """β + Σ λ ℓ at the recipients, [S, n, C] float64; z⁰ where nothing is adjustable."""
        return exposure.logits(self.coefficients(exposure))


@dataclass(frozen=True)
class Reweighting(TrainedRepair[FittedReweighting], method="reweighting"):
    """λ_{v,a} ∝ α_{v,a} e^s within each group, s = 4 tanh(MLP([x_{v,a}, c_v]))."""

    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedReweighting
    takes_labels: ClassVar[bool] = True
    budget: Budget = REWEIGHTING
    hidden: int = 128
    """H, also the width of p_v."""

    def network(self, width: int, classes: int) -> nn.Module:
        """ψ and the scorer."""
        pair, own, hidden = pair_width(width, classes), width + classes, self.hidden
        encoder = perceptron(pair, hidden, hidden)
        scorer = perceptron(pair + own + hidden + 1, hidden, 1, zero=True)
        return nn.ModuleDict({"encoder": encoder, "scorer": scorer})

    def tables(self, p: Parameters, inputs: RepairInputs) -> Tables:
        """What does not depend on the targets."""
        size = inputs.width, inputs.num_classes
        encoder = split_pair(p["encoder.0.weight"], *size)
        start = pair_width(*size)
        weight = p["scorer.0.weight"]
        before, after = weight.split([start, weight.shape[1] - start], dim=1)
        scorer = split_pair(before, *size)
        messages = MessageTable(inputs, encoder.source), MessageTable(inputs, scorer.source)
        return encoder, scorer, split_context(after, sum(size)), *messages

    def scorer_layer(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Layer:
        """The scorer's first affine layer on [x_{v,a}, c_v]; c_v joins the recipient's part."""
        encoder, scorer, context, encoded, scored = tables
        reads = [scorer.recipient + context.own, *encoder_reads(inputs, encoder)]
        own, *by_pair = inputs.times_at(targets, *reads)
        pooled = encode(p, inputs, targets, encoder, by_pair, encoded.read_by(targets), noise)
        total = inputs.total.gather(1, targets)
        recipient = context.times(own + p["scorer.0.bias"].unsqueeze(1), pooled, total)
        return Layer(recipient, scored.read_by(targets), scorer.cosine, scorer.distance)

    def corrected(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """β + Σ λ ℓ, or T(o + Σ λ h)."""
        layer = self.scorer_layer(p, inputs, tables, targets, noise)
        dropout = noise.scorer if noise else None
        mixed = tilt(inputs.sets, targets, layer, scorer_of(p), inputs.contributions, dropout)
        totals = mixed[..., -1:]
        # A group that a recipient does not have adds nothing.
        present = (totals > 0).to(totals.dtype)
        ratio = inputs.at(inputs.mass, targets).unsqueeze(3) * present / (totals + (1 - present))
        total = inputs.at(inputs.fixed_logits, targets) + (ratio * mixed[..., :-1]).sum(2)
        return inputs.after_head(total, targets)


def scorer_of(p: Parameters) -> Scorer:
    """The scorer's last layer."""
    return Scorer(p["scorer.2.weight"].squeeze(2), p["scorer.2.bias"].squeeze(1))


def term_scores(sets: TermSets, layer: Layer, scorer: Scorer) -> Tensor:
    """s of every term, [S, T], in blocks of terms."""
    owner = torch.repeat_interleave(sets.segments[:: sets.groups].diff())
    members, _, channels = layer.source.shape
    out = layer.source.new_empty(members, owner.numel())
    step = max(1, SCORED // (members * channels))
    for first in range(0, owner.numel(), step):
        part = slice(first, first + step)
        pre = layer.recipient[:, owner[part]] + layer.source[:, sets.columns[part].long()]
        pre += sets.cosine[:, part, None] * layer.cosine.unsqueeze(1)
        pre += sets.distance[:, part, None] * layer.distance.unsqueeze(1)
        raw = torch.bmm(pre.relu_(), scorer.output.unsqueeze(2)).squeeze(2)
        out[:, part] = BOUND * (raw + scorer.bias.unsqueeze(1)).tanh()
    return out


# Translations ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedTranslation(FittedRepair["_Translation"]):
    """z = z⁰ + q."""

    one_by_one = True

    def shift(self, exposure: Exposure) -> Tensor:
        """q, [S, n, C] in the model's precision; sums to zero over classes."""
        with self.gradients(exposure):
            p, inputs = self._matching(exposure), RepairInputs(exposure)
            parts = inputs.everyone.split(RECIPIENTS, dim=1)
            # Where every node is asked for, nearly every message is read: no need to look which.
            whole = len(parts) > 1 or inputs.in_order
            tables = self.repair.tables(p, inputs, whole=whole)
            return torch.cat([self.repair.shift(p, inputs, tables, t, None) for t in parts], dim=1)

    def member_logits(self, exposure: Exposure) -> Tensor:
        """z⁰ + q at the recipients, [S, n, C] float64."""
        shift = self.shift(exposure)  # which looks whether this is an exposure
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
        return centre(shift) if inputs.outputs == "classes" else shift

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
class SetTranslation(_Translation, method="set_translation"):
    """q_v = P · 4 tanh(ρ([h_v, z⁰_v, p_v, m̄_v])), p_v pooled over the whole message set."""

    budget: Budget = TRANSLATION
    hidden: int = 128
    """H, also the width of p_v."""

    def network(self, width: int, classes: int) -> nn.Module:
        """ψ and ρ."""
        hidden = self.hidden
        encoder = perceptron(pair_width(width, classes), hidden, hidden)
        head = perceptron(width + classes + hidden + 1, hidden, classes, zero=True)
        return nn.ModuleDict({"encoder": encoder, "head": head})

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
class NodeTranslation(_Translation, method="node_translation"):
    """q_v = P · 4 tanh(ρ([h_v, z⁰_v])): the control that does not see the message set."""

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
    """N_T, the trained numbers of set translation."""
    return SetTranslation(hidden=hidden).num_parameters(state, classes)


def matched_width(parameters: int, state: int, classes: int) -> int:
    """The width h ≥ 1 that brings h (d + 2C + 1) + C nearest to ``parameters``."""
    step = state + 2 * classes + 1
    lower = max(1, (parameters - classes) // step)
    return min((lower, lower + 1), key=lambda h: abs(h * step + classes - parameters))


# The refitted head -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedHead(FittedRepair["RefitHead"]):
    """z = W (r − mean) / scale + b."""

    one_by_one = True

    @property
    def input_width(self) -> int:
        """How wide the embedding is."""
        return self.constants["mean"].shape[1]

    def member_logits(self, exposure: Exposure) -> Tensor:
        """The new head's logits at the recipients, [S, n, C] float64."""
        p, inputs = self._matching(exposure), RepairInputs(exposure)
        if (width := _embedding(inputs).shape[2]) != self.input_width:
            raise InputError(
                f"the head was fitted on embeddings of width {self.input_width} but the exposure's "
                f"are {width} wide; use an exposure of the same model"
            )
        with self.gradients(exposure):
            return self.repair.corrected(p, inputs, None, inputs.everyone, None).double()


@dataclass(frozen=True)
class RefitHead(TrainedRepair[FittedHead], method="refit_head"):
    """A new affine classifier on the frozen embedding r, standardised over training nodes."""

    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedHead
    takes_labels: ClassVar[bool] = True
    budget: Budget = REFIT
    dropout: float = 0.0

    def network(self, width: int, classes: int) -> nn.Module:
        """The new classifier."""
        return nn.ModuleDict({"head": nn.Linear(width, classes)})

    def input_width(self, inputs: RepairInputs) -> int:
        """How wide the embedding is."""
        return _embedding(inputs).shape[2]

    def constants(self, inputs: RepairInputs, train: Targets) -> dict[str, Tensor]:
        """Mean and population standard deviation over training nodes, each [S, k]."""
        means, scales = [], []
        for member, size in enumerate(train.sizes.tolist()):
            nodes = inputs.nodes[train.positions[member, :size]]
            rows = _embedding(inputs)[member, nodes].double()
            deviation = rows.std(0, correction=0)
            means.append(rows.mean(0))
            scales.append(torch.where(deviation < FLAT, 1.0, deviation))
        both = {"mean": torch.stack(means), "scale": torch.stack(scales)}
        return {name: value.to(inputs.dtype) for name, value in both.items()}

    def corrected(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """W (r − mean) / scale + b."""
        embedding = _embedding(inputs)
        index = inputs.nodes[targets].unsqueeze(2).expand(-1, -1, embedding.shape[2])
        rows = embedding.gather(1, index).to(inputs.dtype)
        return affine(p, "head", (rows - p["mean"].unsqueeze(1)) / p["scale"].unsqueeze(1))

    def check_constants(self, fitted: FittedHead) -> None:
        """Mean and a positive scale, each [S, k]."""
        shapes = {name: value.shape for name, value in fitted.constants.items()}
        if shapes.keys() != {"mean", "scale"} or shapes["mean"] != shapes["scale"]:
            raise InputError("a refitted head needs a mean and a scale of one shape")
        if len(shapes["mean"]) != 2 or not bool((fitted.constants["scale"] > 0).all()):
            raise InputError("a refitted head's scale must be positive, one for every coordinate")


def _embedding(inputs: RepairInputs) -> Tensor:
    if inputs.embedding is None:
        raise InputError(
            "this exposure has no embedding for a refitted head to read; expose one of the "
            "package's backbones, or pass dataclasses.replace(exposure, embedding=…) with what "
            "your classifier reads, [S, N, k]"
        )
    return inputs.embedding
