"""Exposing one model on many graphs: certified on the first, then recorded and read off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.exposure.fingerprint import dense_parts
from gnn_repair.exposure.model_call import Forward
from gnn_repair.exposure.model_on_data import ModelOnData, on_data
from gnn_repair.exposure.model_state import refuse_compiled, resting
from gnn_repair.exposure.outputs import Outputs
from gnn_repair.exposure.record.exposing import Wanted, expose_subject
from gnn_repair.exposure.value import Exposure


class ExposurePlan:
    """How a model is exposed. On the first graph it is certified as by ``expose``.

    On further graphs it is only read off what the model does there, until its weights change.
    """

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
        self._wanted = Wanted(hops, outputs=outputs)
        self._weights: list[Tensor] | None = None

    def __call__(self, data: Any, forward: Forward, gradients: bool = False) -> Exposure:
        """The exposure of the model on data, called by ``forward(model, data)``.

        Args:
            data: what the model is given.
            forward: calls it.
            gradients: whether the exposure's numbers carry gradients for what the model is given;
                its own weights stay frozen.
        """
        certified = not self._is_known()
        wanted = replace(self._wanted, certified=certified, gradients=gradients)
        with resting(self.model), torch.no_grad():
            exposure = expose_subject(self._subject(data, forward), wanted).exposure
        if certified:
            self._weights = [tensor.detach().clone() for tensor in self._held()]
        return exposure

    def _subject(self, data: Any, forward: Forward) -> ModelOnData:
        subject = on_data(self.model, data, forward, self.node_type)
        return replace(subject, classes=subject.classes or self.classes)

    def _held(self) -> list[Tensor]:
        """Everything that the model has learned."""
        held = [*self.model.parameters(), *self.model.buffers()]
        return [tensor for tensor in held if not nn.parameter.is_lazy(tensor)]

    def _is_known(self) -> bool:
        """Whether the model is the one that was certified.

        By value: nothing counts what is written through ``weight.data``, and weights are small
        beside a graph.
        """
        now, known = self._held(), self._weights
        return known is not None and len(now) == len(known) and all(map(_same, now, known))


def _same(left: Tensor, right: Tensor) -> bool:
    kinds = [(one.device, one.dtype, one.layout, one.shape) for one in (left, right)]
    return kinds[0] == kinds[1] and all(map(torch.equal, dense_parts(left), dense_parts(right)))
