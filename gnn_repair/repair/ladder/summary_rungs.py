"""Rungs on a frozen description of the message set: a small head, and nothing else, is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnn_repair.errors import InputError
from gnn_repair.repair.evidence.summary import statistics, summary_times, summary_width
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.repair.ladder.rungs import Rung, need_evidence
from gnn_repair.repair.layers import Noise, Parameters, perceptron
from gnn_repair.repair.targets import Targets
from gnn_repair.repair.translation import FittedTranslation


@dataclass(frozen=True)
class Summary(Rung):
    """z⁰ + P · 4 tanh(ρ([summary of v and its messages, what else is read]))."""

    name: ClassVar[str] = "summary"
    reads_kin: ClassVar[bool] = False
    title: ClassVar[str] = "Summary of the messages, cross-fitted"

    @property
    def needs_evidence(self) -> bool:
        """Whether it reads more than the exposure."""
        return super().needs_evidence or self.reads_kin

    def network(self, width: int, classes: int) -> nn.Module:
        """ρ."""
        size = summary_width(width, classes)
        return nn.ModuleDict({"head": perceptron(size, self.hidden, classes, zero=True)})

    def modules(self, inputs: RepairInputs) -> nn.Module:
        """One member's parameters, initialised."""
        parts = dict(super().modules(inputs).items())  # type: ignore[operator]
        if self.reads_kin:
            width = need_evidence(inputs).evidence.labels.kin_width
            parts["kin"] = nn.Linear(width, self.hidden, bias=False)
        return nn.ModuleDict(parts)

    def constants(self, inputs: RepairInputs, train: Targets) -> dict[str, Tensor]:
        """Mean and scale of the summary's numbers over the recipients."""
        return statistics(inputs)

    def tables(self, p: Parameters, inputs: RepairInputs) -> Any:
        """The summary's part of the hidden layer, which learning and judging share, [S, n, H]."""
        return summary_times(inputs, p["head.0.weight"], p["mean"], p["scale"])

    def hidden_layer(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """Standardised summary times W, and what the evidence adds to it."""
        index = targets.unsqueeze(2).expand(-1, -1, tables.shape[2])
        hidden = tables.gather(1, index)
        hidden = self.with_evidence(hidden + p["head.0.bias"].unsqueeze(1), p, inputs, targets)
        if self.reads_kin:
            shown = need_evidence(inputs).kin_at(targets)
            hidden = torch.baddbmm(hidden, shown, p["kin.weight"])
        return hidden

    def shapes(self, fitted: FittedTranslation) -> dict[str, tuple[int, ...]]:
        """What one member's parameters must look like, where the constants lie among them."""
        size = (summary_width(fitted.width, fitted.num_classes),)
        kept = {name: size for name in ("mean", "scale") if name not in fitted.constants}
        return {**super().shapes(fitted), **kept}

    def check_constants(self, fitted: FittedTranslation) -> None:
        """A mean and a positive scale for every number of the summary."""
        size = (summary_width(fitted.width, fitted.num_classes),)
        if {name: tuple(v.shape[1:]) for name, v in fitted.constants.items()} != {
            "mean": size,
            "scale": size,
        }:
            raise InputError(f"{self.title} needs a mean and a scale of {size[0]} numbers")
        if not bool((fitted.constants["scale"] > 0).all()):
            raise InputError(f"the scale of {self.title} must be positive")


@dataclass(frozen=True)
class SummaryLabels(Summary):
    """… and the labels that a node's neighbours are known to have."""

    name: ClassVar[str] = "summary-labels"
    reads_labels: ClassVar[bool] = True
    title: ClassVar[str] = "… with neighbours' labels"


@dataclass(frozen=True)
class SummaryFeatures(SummaryLabels):
    """… and the node's raw features."""

    name: ClassVar[str] = "summary-features"
    reads_features: ClassVar[bool] = True
    title: ClassVar[str] = "… with neighbours' labels and raw features"


@dataclass(frozen=True)
class SummaryKin(SummaryLabels):
    """… and the labels of the nodes most alike, near or far."""

    name: ClassVar[str] = "summary-kin"
    reads_kin: ClassVar[bool] = True
    title: ClassVar[str] = "… with labels of neighbours and of similar nodes"


@dataclass(frozen=True)
class SummaryAll(SummaryFeatures):
    """… everything at once."""

    name: ClassVar[str] = "summary-all"
    reads_kin: ClassVar[bool] = True
    title: ClassVar[str] = "… with all of it"
