"""What a repaired model is called with, and the form of what it gives."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data.data import BaseData

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.exposure.hetero.graph import is_typed, typed_arguments_as_data
from gnn_repair.exposure.model_output import TWO_CLASSES
from gnn_repair.exposure.tails.logit_form import TAKEN_OFF

NORMALISED = 1e-5
"""How far from 1 the probabilities of a row may sum up where a model gives their logarithms: a
hundred roundings of float32."""


def as_data(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the model is called with, under the names of its parameters."""
    try:
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        name = type(model).__name__
        raise InputError(f"{name} cannot be called like that: {error}") from error
    whole = next((v for v in given.values() if hasattr(v, "edge_index") or is_typed(v)), None)
    if whole is not None:
        return whole
    if (typed := typed_arguments_as_data(given)) is not None:
        return typed
    tensors = {k: v for k, v in given.items() if isinstance(v, Tensor) and v.dim()}
    floats = (v for v in tensors.values() if v.is_floating_point() and v.layout == torch.strided)
    features = next(floats, None)
    return SimpleNamespace(**given, **({} if "x" in given or features is None else {"x": features}))


def wants_gradient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether something that the model is given asks for a gradient."""
    return any(tensor.requires_grad for tensor in _tensors([*args, *kwargs.values()]))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in what a model may be given: a graph, dicts by node type, lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, BaseData):
        yield from _tensors([dict(store) for store in value.stores])
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "edge_index") and hasattr(value, "__dict__"):
        yield from _tensors(vars(value))


def in_own_form(logits: Tensor, exposure: Exposed) -> Tensor:
    """Repaired logits [n, C] as the exposed model gives its own.

    Of one logit z a node the classes are (0, z), and z is what the repair moves them apart to. A
    sigmoid that was taken off is put on again, and log-probabilities are normalised.
    """
    if TWO_CLASSES in exposure.called:
        logits = logits[:, 1] - logits[:, 0]
    if TAKEN_OFF in exposure.called:
        return logits.sigmoid()
    frozen = exposure.frozen_logits[0]
    if exposure.outputs == "classes" and logits.dim() == 2 and _normalised(frozen):
        return logits.log_softmax(1)
    return logits


def _normalised(logits: Tensor) -> bool:
    """Whether rows are logarithms of probabilities."""
    return bool((logits.detach().logsumexp(1).abs() <= NORMALISED).all())
