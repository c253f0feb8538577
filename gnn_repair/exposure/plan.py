"""Exposing one model on many graphs: probed and certified once, then one run a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import InputError
from gnn_repair.exposure.assembly import assemble
from gnn_repair.exposure.diagnosis import why_rows
from gnn_repair.exposure.embedding import last_linear
from gnn_repair.exposure.final_aggregation import FinalAggregation
from gnn_repair.exposure.fingerprint import dense_parts
from gnn_repair.exposure.from_model import expose_probing, words_of
from gnn_repair.exposure.known_aggregation import UnplannedError, find_known
from gnn_repair.exposure.model_call import Forward
from gnn_repair.exposure.model_on_data import ModelOnData, on_data
from gnn_repair.exposure.model_output import Reading, check_numbers, read_output
from gnn_repair.exposure.model_state import forget_propagations, refuse_compiled, resting
from gnn_repair.exposure.outputs import Outputs
from gnn_repair.exposure.pooling.from_model import Wanted, expose_again
from gnn_repair.exposure.tails.from_model import expose_tailed
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure


class ExposurePlan:
    """How a model is exposed. The first graph is probed and certified as by ``expose``.

    Further graphs are run once and taken apart at the same places. Where the weights have changed,
    or a run does not go through the same propagates, everything is found anew.
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
        self.model, self.hops, self.node_type, self.outputs = model, hops, node_type, outputs
        self.classes = classes
        self._finding: FinalAggregation | None = None
        self._pooled = False
        self._fingerprint: tuple[str, ...] = ()
        self._weights: list[Tensor] = []

    def with_gradients(self, data: Any, forward: Forward) -> Exposure:
        """The same with gradients for what the model is given; its own weights stay frozen."""
        if not self._is_known():
            self(data, forward)
        for last in (False, True):
            try:
                return self._followed(data, forward)
            except (UnplannedError, RuntimeError) as error:
                if last:
                    raise InputError(
                        f"no gradient can be followed through {type(self.model).__name__}: it ends "
                        "in something nonlinear, or in several hops whose weights are multiplied "
                        "out; call it under torch.no_grad()"
                    ) from error
                self(data, forward)  # finds this graph's own map, or raises what the model raises
        raise AssertionError

    def _followed(self, data: Any, forward: Forward) -> Exposure:
        assert self._finding is not None
        with resting(self.model), torch.enable_grad():
            subject = self._subject(data, forward)
            exposure = self._again(subject, self._finding, tailed=False)
        assert isinstance(exposure, Exposure)
        return exposure

    @property
    def tail_by_node(self) -> bool:
        """Whether the map after the last aggregation differs by node, and so with the input."""
        return self._finding is not None and any(t.by_node for t in self._finding.tails.values())

    def __call__(self, data: Any, forward: Forward) -> Exposure | TailedExposure:
        """The exposure of the model on data, called by ``forward(model, data)``."""
        known = self._finding if self._is_known() else None
        with resting(self.model), torch.no_grad():
            subject = self._subject(data, forward)
            if known is not None:
                try:
                    return self._again(subject, known)
                except UnplannedError:
                    pass
            exposure, finding = expose_probing(subject, self.hops, outputs=self.outputs)
        for mixtures in (finding.mixtures, finding.nodewise):
            mixtures.clear()  # of this graph, and large
        self._finding, self._fingerprint = finding, exposure.fingerprint
        self._weights = [tensor.detach().clone() for tensor in self._held()]
        self._pooled = exposure.graph_starts is not None
        return exposure

    def _subject(self, data: Any, forward: Forward) -> ModelOnData:
        subject = on_data(self.model, data, forward, self.node_type)
        return replace(subject, classes=subject.classes or self.classes)

    def _held(self) -> list[Tensor]:
        """Everything that the model has learned."""
        held = [*self.model.parameters(), *self.model.buffers()]
        return [tensor for tensor in held if not nn.parameter.is_lazy(tensor)]

    def _is_known(self) -> bool:
        """Whether the model is the one that was probed.

        By value: nothing counts what is written through ``weight.data``, and weights are small
        beside a graph.
        """
        now = self._held()
        return (
            self._finding is not None
            and len(now) == len(self._weights)
            and all(map(_same, now, self._weights))
        )

    def _again(
        self, subject: ModelOnData, known: FinalAggregation, tailed: bool = True
    ) -> Exposure | TailedExposure:
        if self._pooled:
            if not tailed:
                raise UnplannedError
            wanted = Wanted(self.hops, known=known, certified=False, outputs=self.outputs)
            return expose_again(subject, wanted)
        call = subject.call
        readings: list[Reading] = []

        def run() -> Tensor:
            output = call()
            if not readings:
                why: Callable[[Tensor, int], str] = partial(why_rows, self.model, call)
                classes = subject.classes
                readings.append(read_output(output, subject.nodes, why, classes, self.outputs))
            return readings[0](output)

        forget_propagations(self.model)
        watch = subject.watch(run, subject.nodes or -1)
        with watch.installed():
            with last_linear(self.model) as head:
                trace = watch.trace()
            check_numbers(trace.output, self.model, subject.fields)
            subject.keep_relations(trace)
            finding = find_known(watch, trace, self.hops, known)
            embedding = head.embedding(trace.output, readings[0].binary)
            words = words_of(subject, finding, embedding, call.text, self._fingerprint)
            finding.mixtures = subject.finished(finding.mixtures)
            finding.nodewise = subject.finished(finding.nodewise)
            found: Exposure | TailedExposure
            if finding.mixtures:
                found = assemble(finding.mixtures, finding.tails, trace.output, words)[0]
            elif not finding.nodewise or not tailed:
                raise UnplannedError
            else:
                nodewise = finding.nodewise
                found = expose_tailed(watch, trace, nodewise, words, None, certified=False)
        return readings[0].finished(found)


def _same(left: Tensor, right: Tensor) -> bool:
    kinds = [(one.device, one.dtype, one.layout, one.shape) for one in (left, right)]
    return kinds[0] == kinds[1] and all(map(torch.equal, dense_parts(left), dense_parts(right)))
