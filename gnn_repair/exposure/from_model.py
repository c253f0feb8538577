"""``expose``: a trained model as a nonnegative mixture of its final messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from gnn_repair.backbones import Frozen
from gnn_repair.errors import GnnRepairError, InputError
from gnn_repair.exposure.calling import (
    Forward,
    ModelOnData,
    as_batch,
    batch_of_one,
    batches_of,
    check_expected,
    of_subgraph,
    on_data,
    one_graph,
)
from gnn_repair.exposure.from_backbone import expose_frozen
from gnn_repair.exposure.heads.logit_form import TAKEN_OFF
from gnn_repair.exposure.parts import joined
from gnn_repair.exposure.pieces import Outputs, check_outputs
from gnn_repair.exposure.record.exposing import Wanted, expose_subject
from gnn_repair.exposure.state import (
    dense_parts,
    lazy_parameters,
    refuse_compiled,
    refuse_untrained,
    resting,
)
from gnn_repair.exposure.value import Exposure


@overload
def expose(model: Frozen) -> Exposure: ...
@overload
def expose(
    model: nn.Module,
    data: Any,
    *,
    hops: Literal["paths", "last"] = "paths",
    forward: Forward | None = None,
    tolerance: float | None = None,
    expected: Any = None,
    node_type: str | None = None,
    outputs: Outputs | None = None,
) -> Exposure: ...
def expose(
    model: Frozen | nn.Module,
    data: Any = None,
    *,
    hops: Literal["paths", "last"] = "paths",
    forward: Forward | None = None,
    tolerance: float | None = None,
    expected: Any = None,
    node_type: str | None = None,
    outputs: Outputs | None = None,
) -> Exposure:
    """Write a trained model's logits as z⁰ = β + Σ_g A_g L_g, or as z⁰ = T(o + Σ_g A_g H_g).

    Args:
        model: a frozen backbone, or any trained PyG model that classifies nodes, or graphs.
        data: the PyG data the model runs on, or any object with such fields; for a model that
            classifies graphs a batch, a list or dataset of graphs, or a loader that does not
            shuffle; not needed for a frozen backbone or a model whose forward takes nothing.
        hops: for convolutions that propagate several times (SGConv, TAGConv, APPNP, …):
            ``paths`` exposes all sources with their path sums (entries of Â^p), ``last`` only
            the last propagate.
        forward: how to call the model, ``forward(model, data) -> logits [N, C]``; by default the
            arguments are found in data by the names of the model's parameters.
        tolerance: the largest certified residual to accept; 1e-5 for float32 models and 1e-12
            for float64 unless given.
        expected: what you know the model to give, logits [N, C] or predicted classes [N]; where
            the model as it is called here differs from it, nothing is exposed.
        node_type: in a graph of several node types (HeteroData) the one that is classified; not
            needed where only one has labels, or only one has outputs.
        outputs: what the model gives: rival ``classes``, ``labels`` (each there where its own
            logit is positive) or plain ``values``. Unless given, data.y decides: several zeros
            and ones per node are labels, other real numbers are values, anything else classes.

    Returns:
        The exposure, certified by running the model on randomly reweighted messages. A model that
        does more than affine maps to a node after its last aggregation gives a
        :class:`Exposure`.

    Raises:
        ExposureRefused: the model does not end in such a mixture; the message names what is in
            the way.
        InputError: the model cannot be called as it is meant to be; the message says what to pass.
    """
    if hops not in ("paths", "last"):
        raise InputError(f"hops is {hops!r}; choose 'paths' or 'last'")
    check_outputs(outputs)
    if isinstance(model, Frozen):
        if outputs not in (None, "classes"):
            raise InputError(f"a frozen backbone's outputs are classes, not {outputs}")
        exposure = expose_frozen(model)
        if expected is not None:
            _check_members(expected, exposure)
        return exposure
    if isinstance(model, type):
        raise InputError(f"model is the class {model.__name__}; pass a trained instance of it")
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; pass a torch module or a Frozen")
    model = _unwrapped(model)
    refuse_compiled(model)
    wanted = Wanted(hops, tolerance, expected, outputs)
    batches = batches_of(data)
    if batches is not None and len(batches) > 1:
        return _expose_batches(model, batches, (forward, node_type), wanted)
    data = one_graph(batches[0] if batches else data, model, forward)
    lazy = lazy_parameters(model)
    exposed = partial(_expose_graph, model, lazy=lazy, calling=(forward, node_type), wanted=wanted)
    try:
        return exposed(data if forward is not None else as_batch(data, model))
    except InputError as error:
        raised = error.__cause__ is not None and forward is None
        alone = batch_of_one(data) if raised else None
        if alone is None:
            raise
        try:  # a graph alone, and the model reads its batch vector
            return exposed(alone)
        except GnnRepairError:
            raise error from error.__cause__


def _expose_graph(
    model: nn.Module,
    data: Any,
    *,
    lazy: list[str],
    calling: tuple[Forward | None, str | None],
    wanted: Wanted,
) -> Exposure:
    with resting(model), torch.no_grad():
        subject = on_data(model, data, *calling)
        if lazy:
            subject.call()
            refuse_untrained(model, lazy)
        found = expose_subject(subject, wanted)
    return of_subgraph(found, data)


def _expose_batches(
    model: nn.Module,
    batches: Sequence[Any],
    calling: tuple[Forward | None, str | None],
    wanted: Wanted,
) -> Exposure:
    """Each batch exposed and certified by itself; what is expected is of all their graphs."""
    parts: list[Exposure] = []
    each = replace(wanted, expected=None)
    with resting(model), torch.no_grad():
        for batch in batches:
            parts.append(expose_subject(on_data(model, batch, *calling), each))
            if parts[0].graph_starts is None:
                raise InputError(
                    f"{type(model).__name__} classifies nodes, and data is {len(batches)} batches "
                    "of graphs; pass one of them"
                )
            same: Any = parts[0].outputs
            each = replace(each, outputs=same)
    exposure = joined(parts)
    if wanted.expected is not None:
        told = exposure.frozen_logits[0].float()
        binary = told.shape[1] == 2 and not bool(told[:, 0].any())  # (0, z) of one logit z
        if TAKEN_OFF in exposure.called:  # and what is expected are the model's probabilities
            told = told.sigmoid() if not binary else told.sigmoid() * told.new_tensor([0.0, 1.0])
        check_expected(wanted.expected, told, binary, exposure.called, noun="graph")
    return exposure


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model itself where it stands in a wrapper that only spreads batches over devices."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model


def _check_members(expected: Any, exposure: Exposure) -> None:
    if exposure.num_members > 1:
        raise InputError(
            f"expected is for one model and the backbone has {exposure.num_members} members; "
            "train one split or leave it out"
        )
    check_expected(expected, exposure.frozen_logits[0].float(), False, "a frozen backbone")


# The same model on many graphs -------------------------------------------------------------------


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
            exposure = expose_subject(self._subject(data, forward), wanted)
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
