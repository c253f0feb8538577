"""The rungs: set translation whose head reads one kind of evidence more.

These learn an encoder of the message set in every copy. A further rung is one class that says
what it reads, one line in ``RUNGS`` (:mod:`gnn_repair.repair.ladder.catalogue`) and its words in
:mod:`gnn_repair.repair.rung_words`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnn_repair.backbones.base import stack_parameters
from gnn_repair.errors import InputError
from gnn_repair.kernels.sets import Layer
from gnn_repair.repair.evidence import EvidenceInputs
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.repair.layers import Noise, Parameters, encode, encoder_reads, split_context
from gnn_repair.repair.reweighting import Reweighting, ReweightingTables, reweighted
from gnn_repair.repair.translation import FittedTranslation, SetTranslation


@dataclass(frozen=True)
class Rung(SetTranslation):
    """z⁰ + P · 4 tanh(ρ([c_v, what else is read])): the exposure alone unless a subclass adds."""

    name: ClassVar[str] = "set"
    """In tables and records."""
    reads_labels: ClassVar[bool] = False
    reads_features: ClassVar[bool] = False
    crossed: ClassVar[bool] = True
    """Whether it is cross-fitted; the paper's own fit is not."""
    title: ClassVar[str] = "Set translation, cross-fitted"

    @property
    def needs_evidence(self) -> bool:
        """Whether it reads more than the exposure, and so holds for its own graph only."""
        return self.reads_labels or self.reads_features

    def modules(self, inputs: RepairInputs) -> nn.Module:
        """One member's parameters, initialised."""
        parts = dict(self.network(self.reads(inputs), inputs.num_classes).items())  # type: ignore[operator]
        if self.reads_labels:
            width = need_evidence(inputs).evidence.labels.width
            parts["labels"] = nn.Linear(width, self.hidden, bias=False)
        if self.reads_features:
            width = need_evidence(inputs).features.width
            parts["features"] = nn.Linear(width, self.hidden, bias=False)
        return nn.ModuleDict(parts)

    def initial(self, inputs: RepairInputs) -> dict[str, Tensor]:
        """The untrained parameters, [S, …]; the last layers are zero, so it starts as Frozen."""
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            network = self.modules(inputs)
        stacked = stack_parameters(network.to(inputs.dtype), inputs.num_members)
        return {name: value.to(inputs.device) for name, value in stacked.items()}

    def hidden_layer(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """c_v W + b, and what the evidence adds to it."""
        hidden = super().hidden_layer(p, inputs, tables, targets, noise)
        return self.with_evidence(hidden, p, inputs, targets)

    def with_evidence(
        self, hidden: Tensor, p: Parameters, inputs: RepairInputs, targets: Tensor
    ) -> Tensor:
        """The head's first layer [S, L, H] with its part on the evidence added."""
        if self.reads_labels:
            shown = need_evidence(inputs).labels_at(targets)
            hidden = torch.baddbmm(hidden, shown, p["labels.weight"])
        if self.reads_features:
            hidden = hidden + need_evidence(inputs).features_times(targets, p["features.weight"])
        return hidden


def need_evidence(inputs: RepairInputs) -> EvidenceInputs:
    """The inputs, which must hold evidence."""
    if not isinstance(inputs, EvidenceInputs):
        raise InputError(
            "a rung reads evidence beside the exposure; fit it as CrossFitted(rung) or as a part "
            "of an EvidenceLadder"
        )
    return inputs


@dataclass(frozen=True)
class PaperFit(Rung):
    """Set translation as the paper fits it: from training nodes, judged on all of validation."""

    name: ClassVar[str] = "paper"
    crossed: ClassVar[bool] = False
    title: ClassVar[str] = "Set translation, the paper's fit"


@dataclass(frozen=True)
class Labels(Rung):
    """… and the labels that a node's neighbours are known to have."""

    name: ClassVar[str] = "labels"
    reads_labels: ClassVar[bool] = True
    title: ClassVar[str] = "… with neighbours' labels"


@dataclass(frozen=True)
class LabelsFeatures(Labels):
    """… and the node's raw features."""

    name: ClassVar[str] = "labels-features"
    reads_features: ClassVar[bool] = True
    title: ClassVar[str] = "… with neighbours' labels and raw features"


@dataclass(frozen=True)
class LabelsReweighting(Labels):
    """… and the messages are reweighted, jointly with the shift."""

    name: ClassVar[str] = "labels-reweighting"
    title: ClassVar[str] = "… with neighbours' labels, reweighting"

    def network(self, width: int, classes: int) -> nn.Module:
        """ψ, ρ and the scorer; one ψ serves both."""
        both = dict(super().network(width, classes).items())  # type: ignore[operator]
        own = Reweighting(budget=self.budget, hidden=self.hidden).network(width, classes)
        return nn.ModuleDict({**both, "scorer": own["scorer"]})  # type: ignore[index]

    def tables(self, p: Parameters, inputs: RepairInputs) -> ReweightingTables:  # type: ignore[override]
        """What does not depend on the targets."""
        return Reweighting(budget=self.budget, hidden=self.hidden).tables(p, inputs)

    def corrected(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """β + Σ λ ℓ + q, with p_v computed once for both."""
        head = split_context(p["head.0.weight"], inputs.width + inputs.num_classes)
        scorer, context = tables.scorer, tables.context
        reads = [scorer.recipient + context.own, head.own, *encoder_reads(inputs, tables.encoder)]
        own, seen, *by_pair = inputs.times_at(targets, *reads)
        messages = tables.encoder_messages.read_by(targets)
        pooled = encode(p, inputs, targets, tables.encoder, by_pair, messages, noise)
        total = inputs.total.gather(1, targets)
        by_scorer = context.times(own + p["scorer.0.bias"].unsqueeze(1), pooled, total)
        layer = Layer(
            by_scorer, tables.scorer_messages.read_by(targets), scorer.cosine, scorer.distance
        )
        hidden = head.times(seen + p["head.0.bias"].unsqueeze(1), pooled, total)
        hidden = self.with_evidence(hidden, p, inputs, targets)
        shift = self.shift(p, inputs, hidden, targets, noise)
        return reweighted(p, inputs, layer, targets, noise) + shift

    def hidden_layer(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """The layer itself, which :meth:`corrected` computed beside the scorer's."""
        layer: Tensor = tables
        return layer

    def fitted(self, **values: Any) -> FittedTranslation:
        """Not a shift alone, so it has no fitted value of its own."""
        raise InputError(f"{self.title} is fitted as CrossFitted(rung) or in an EvidenceLadder")


@dataclass(frozen=True)
class LabelsFeaturesReweighting(LabelsReweighting):
    """… everything at once."""

    name: ClassVar[str] = "labels-features-reweighting"
    reads_features: ClassVar[bool] = True
    title: ClassVar[str] = "… with all of it"
