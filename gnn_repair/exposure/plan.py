"""Exposing one model on many graphs: probed and certified once, then one run a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.exposure.assembly import assemble
from gnn_repair.exposure.diagnosis import why_rows
from gnn_repair.exposure.embedding import last_linear
from gnn_repair.exposure.final_aggregation import FinalAggregation
from gnn_repair.exposure.from_model import expose_probing, watch_of, words_of
from gnn_repair.exposure.known_aggregation import UnplannedError, find_known
from gnn_repair.exposure.model_call import Forward, invocation
from gnn_repair.exposure.model_output import Reading, count_classes, count_nodes, read_output
from gnn_repair.exposure.model_state import forget_propagations, refuse_compiled, resting
from gnn_repair.exposure.outputs import Outputs, without_anchor
from gnn_repair.exposure.tails.from_model import expose_tailed
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure


class ExposurePlan:
    """How a model is exposed. The first graph is probed and certified as by ``expose``.

    Further graphs are run once and taken apart at the same places. Where the weights have changed,
    or a run does not go through the same propagates, everything is found anew.
    """

    def __init__(self, model: nn.Module, hops: str = "paths", outputs: Outputs = "classes") -> None:
        refuse_compiled(model)
        self.model, self.hops, self.outputs = model, hops, outputs
        self._finding: FinalAggregation | None = None
        self._fingerprint: tuple[str, ...] = ()
        self._weights: tuple[tuple[int, int], ...] = ()

    def __call__(self, data: Any, forward: Forward) -> Exposure | TailedExposure:
        """The exposure of the model on data, called by ``forward(model, data)``."""
        weights = self._versions()
        with resting(self.model), torch.no_grad():
            if self._finding is not None and weights == self._weights:
                try:
                    return self._again(data, forward, self._finding)
                except UnplannedError:
                    pass
            exposure, finding = expose_probing(
                self.model, data, self.hops, forward, outputs=self.outputs
            )
        for mixtures in (finding.mixtures, finding.nodewise):
            mixtures.clear()  # of this graph, and large
        self._finding, self._fingerprint = finding, exposure.fingerprint
        self._weights = weights
        return exposure

    def _versions(self) -> tuple[tuple[int, int], ...]:
        """Which tensors the weights are, and how often each was written to."""
        held = [*self.model.parameters(), *self.model.buffers()]
        return tuple((tensor.data_ptr(), tensor._version) for tensor in held)

    def _again(
        self, data: Any, forward: Forward, known: FinalAggregation
    ) -> Exposure | TailedExposure:
        call = invocation(self.model, data, forward)
        readings: list[Reading] = []

        def run() -> Tensor:
            output = call()
            if not readings:
                why: Callable[[Tensor, int], str] = partial(why_rows, self.model, call)
                nodes = count_nodes(data)
                classes = count_classes(data, nodes)
                readings.append(read_output(output, nodes, why, classes, self.outputs))
            return readings[0](output)

        forget_propagations(self.model)
        watch = watch_of(self.model, data, run, count_nodes(data) or -1)
        with watch.installed():
            with last_linear(self.model) as head:
                trace = watch.trace()
            finding = find_known(watch, trace, self.hops, known)
            embedding = head.embedding(trace.output, readings[0].binary)
            words = words_of(self.model, finding, embedding, call.text, self._fingerprint)
            found: Exposure | TailedExposure
            if finding.mixtures:
                found = assemble(finding.mixtures, finding.tails, trace.output, words)[0]
            elif not finding.nodewise:
                raise UnplannedError
            else:
                nodewise = finding.nodewise
                found = expose_tailed(watch, trace, nodewise, words, None, certified=False)
        return found if self.outputs == "classes" else without_anchor(found, self.outputs)
