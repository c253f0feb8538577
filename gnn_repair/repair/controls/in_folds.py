"""Controls that are other repairs in folds: the same labels as the ladder, other evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from gnn_repair.exposure import Exposure
from gnn_repair.repair.base import Repair
from gnn_repair.repair.baselines import CorrectAndSmooth
from gnn_repair.repair.controls.perceptron import FeaturePerceptron
from gnn_repair.repair.cross_fitting import CrossFitted


@dataclass(frozen=True)
class CrossFittedSmoothing(CrossFitted):
    """Correct-and-Smooth that knows four fifths of the validation labels too."""

    repair: Repair[Any] = field(default_factory=CorrectAndSmooth)
    title: ClassVar[str] = "Correct and smooth, cross-fitted"

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """With the protocol's steps."""
        return cls(CorrectAndSmooth.from_protocol(settings, exposure), seed=settings.seed)


@dataclass(frozen=True)
class CrossFittedPerceptron(CrossFitted):
    """A perceptron on the raw features alone."""

    repair: Repair[Any] = field(default_factory=FeaturePerceptron)
    title: ClassVar[str] = "Perceptron on features"

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """With the protocol's width and seed."""
        own = FeaturePerceptron(hidden=settings.hidden, seed=settings.seed)
        return cls(own, seed=settings.seed)
