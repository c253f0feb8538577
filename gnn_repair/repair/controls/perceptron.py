"""A perceptron on raw features: what they say without any graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from gnn_repair.backbones.base import stack_parameters
from gnn_repair.budget import Budget, check_whole
from gnn_repair.devices import seeded
from gnn_repair.errors import InputError
from gnn_repair.repair.base import TrainedRepair
from gnn_repair.repair.cross_fitting import FeatureInputs
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.repair.layers import Noise, Parameters, affine

PERCEPTRON = Budget(500, 80, 1e-2, 5e-4)
"""A backbone's rate and decay, a translation's patience."""


@dataclass(frozen=True)
class FeaturePerceptron(TrainedRepair[Any]):
    """One hidden layer on the raw features alone: no graph, no frozen model."""

    budget: Budget = PERCEPTRON
    dropout: float = 0.0
    hidden: int = 128
    needs_evidence: ClassVar[bool] = True
    shared_settings: ClassVar[tuple[str, ...]] = ("hidden",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("FeaturePerceptron", "hidden", self.hidden, 1)

    def network(self, width: int, classes: int) -> nn.Module:
        """Features to classes."""
        layers = {
            "features": nn.Linear(width, self.hidden),
            "head": nn.Linear(self.hidden, classes),
        }
        return nn.ModuleDict(layers)

    def initial(self, inputs: RepairInputs) -> dict[str, Tensor]:
        """The untrained parameters, [S, …]."""
        evidence = _with_features(inputs)
        with seeded(self.seed):
            network = self.network(evidence.features.width, inputs.num_classes)
        stacked = stack_parameters(network.to(inputs.dtype), inputs.num_members)
        return {name: value.to(inputs.device) for name, value in stacked.items()}

    def corrected(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """W relu(x_v V + b) + c; features are dropped while training."""
        hidden = _with_features(inputs).features_times(targets, p["features.weight"])
        return affine(p, "head", (hidden + p["features.bias"].unsqueeze(1)).relu())

    def fitted(self, **values: Any) -> Any:
        """It is fitted in folds only."""
        raise InputError(f"{self.title} is fitted as CrossFitted(FeaturePerceptron())")


def _with_features(inputs: RepairInputs) -> FeatureInputs:
    if not isinstance(inputs, FeatureInputs):
        raise InputError("a perceptron on features is fitted as CrossFitted(FeaturePerceptron())")
    return inputs
