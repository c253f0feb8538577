"""Exposing one model again and again, as a repaired model does with every graph it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.model_call import Forward
from gnn_repair.exposure.model_on_data import ModelOnData, on_data
from gnn_repair.exposure.model_state import refuse_compiled, resting
from gnn_repair.exposure.outputs import Outputs
from gnn_repair.exposure.record.exposing import (
    UndifferentiableError,
    Wanted,
    expose_subject,
    expose_with_gradients,
)
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure


class ExposurePlan:
    """How a model is exposed: certified on the first graph, read off its run on further ones."""

    def __init__(
        self,
        model: nn.Module,
        hops: str = "paths",
        node_type: str | None = None,
        outputs: Outputs = "classes",
        classes: int | None = None,
    ) -> None:
        """Plan how a model is exposed.

        Args:
            model: the model.
            hops: as for ``expose``.
            node_type: as for ``expose``.
            outputs: what the model gives.
            classes: how many outputs, where data has no labels to tell them from other tensors.
        """
        refuse_compiled(model)
        self.model, self.node_type, self.classes = model, node_type, classes
        self.wanted = Wanted(hops, outputs=outputs)
        self._certified = False

    def __call__(self, data: Any, forward: Forward) -> Exposure | TailedExposure:
        """The exposure of the model on data, called by ``forward(model, data)``."""
        wanted = replace(self.wanted, certified=not self._certified)
        with resting(self.model), torch.no_grad():
            exposed = expose_subject(self._subject(data, forward), wanted)
        self._certified = True
        return exposed.exposure

    def with_gradients(self, data: Any, forward: Forward) -> Exposure:
        """The same with gradients for what the model is given; its own weights stay frozen."""
        wanted = replace(self.wanted, certified=False)
        try:
            with resting(self.model), torch.enable_grad():
                return expose_with_gradients(self._subject(data, forward), wanted)
        except (UndifferentiableError, RuntimeError) as error:
            raise InputError(
                f"no gradient can be followed through {type(self.model).__name__}: it ends in "
                "something nonlinear, or in several hops whose weights are multiplied out; call it "
                "under torch.no_grad()"
            ) from error

    def _subject(self, data: Any, forward: Forward) -> ModelOnData:
        subject = on_data(self.model, data, forward, self.node_type)
        return replace(subject, classes=subject.classes or self.classes)
