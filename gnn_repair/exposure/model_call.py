"""The state a model is exposed in, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gnn_repair.errors import ExposureRefused, InputError

Forward = Callable[[nn.Module, Any], Tensor]


def refuse_compiled(model: nn.Module) -> None:
    """A compiled model runs fused code in which no message can be watched."""
    for name, module in model.named_modules():
        title = f"`{name}`" if name else "the model"
        if hasattr(module, "_orig_mod"):
            raise ExposureRefused(
                f"{title} is compiled by torch.compile and its messages cannot be watched; "
                "pass the module it was made from (model._orig_mod)"
            )
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise ExposureRefused(
                f"{title} was compiled in place by .compile() and its messages cannot be watched; "
                "pass a model that was not compiled"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ExposureRefused(
                f"{title} is a TorchScript module and its messages cannot be watched; "
                "pass the Python module it was made from"
            )


@contextmanager
def resting(model: nn.Module) -> Iterator[None]:
    """While open the model is in evaluation mode and its parameters want no gradients.

    Afterwards every module is as it was, caches included, also when something was raised.
    """
    modules = list(model.modules())
    training = [module.training for module in modules]
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    kept = [(m, k, v) for m in modules for k, v in vars(m).items() if _is_transient(m, k)]
    try:
        model.eval().requires_grad_(False)
        yield
    finally:
        for module, mode in zip(modules, training, strict=True):
            module.training = mode
        for parameter, want in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(want)
        for module, name, value in kept:
            vars(module)[name] = value


def _is_transient(module: nn.Module, name: str) -> bool:
    changing = name.startswith("_cached") or name in ("cached", "_alpha", "_decomposed_layers")
    return isinstance(module, MessagePassing) and changing


PROPAGATED = ("_cached_x", "_cached_h")
"""Where convolutions keep a whole propagation, so that their next run would send no message."""


def forget_propagations(model: nn.Module) -> bool:
    """Make every convolution propagate in every run (undone by :func:`resting`).

    Returns whether one had kept its propagation from an earlier run.
    """
    kept = False
    for module in model.modules():
        if not isinstance(module, MessagePassing):
            continue
        module._decomposed_layers = 1
        for name in PROPAGATED:
            if hasattr(module, name):
                kept = kept or getattr(module, name) is not None
                setattr(module, name, None)
                module.cached = False
    return kept


ADJACENCIES = ("edge_index", "adj_t", "adj")


def _field(data: Any, name: str) -> Any:
    """What data holds under a name, its methods excepted."""
    value = getattr(data, name, None)
    return None if callable(value) else value


def arguments_for(model: nn.Module, data: Any) -> tuple[list[Any], dict[str, Any]]:
    """What to pass to the model's forward, found by the names of its parameters."""
    parameters = [
        parameter
        for parameter in inspect.signature(model.forward).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    names = [parameter.name for parameter in parameters]
    first = names[0] if names else "data"
    if first in ("data", "batch") or (len(names) == 1 and _field(data, first) is None):
        return [data], {}
    adjacency = _field(data, "edge_index")
    adjacency = _field(data, "adj_t") if adjacency is None else adjacency
    known = {"x": _field(data, "x"), **dict.fromkeys(ADJACENCIES, adjacency)}
    # Under names of their own, features and graph are taken to come first and second.
    if "x" not in names:
        known.setdefault(names[0], known["x"])
    if len(names) > 1 and not set(names) & set(ADJACENCIES):
        known.setdefault(names[1], adjacency)
    by_name: dict[str, Any] = {}
    for parameter in parameters:
        value = known.get(parameter.name)
        value = _field(data, parameter.name) if value is None else value
        if value is not None:
            by_name[parameter.name] = value
        elif parameter.default is parameter.empty:
            raise InputError(
                f"the model's forward needs `{parameter.name}`, which data does not have; "
                "add it to data or pass forward=lambda model, data: ..."
            )
    return [], by_name


def caller(model: nn.Module, data: Any, forward: Forward | None) -> Callable[[], Tensor]:
    """A function that runs the model on the data."""
    if forward is not None:
        return lambda: forward(model, data)
    positional, named = arguments_for(model, data)
    return lambda: model(*positional, **named)


def check_output(output: Any, data: Any) -> None:
    """Raise unless the output is one row of logits per node."""
    if len(kinds := getattr(data, "node_types", ())) > 1:
        raise ExposureRefused(
            f"data has {len(kinds)} types of nodes; only messages within one node set "
            "can be exposed"
        )
    num_nodes = int(data.num_nodes)
    if not isinstance(output, Tensor):
        raise InputError(
            f"the model returns {type(output).__name__} instead of a tensor of logits; "
            "pass forward=lambda model, data: ... that returns the logits"
        )
    if output.dim() != 2 or output.shape[0] != num_nodes:
        raise ExposureRefused(
            f"the model returns a tensor of shape {list(output.shape)} for {num_nodes} nodes; "
            "an exposure needs one row of logits per node, so models that pool nodes into "
            "graph-level outputs cannot be exposed"
        )
    if output.shape[1] < 2:
        raise InputError(
            "the model returns one logit per node; an exposure needs at least two classes "
            "(stack the logit with a column of zeros in forward=)"
        )
    if output.dtype not in (torch.float32, torch.float64):
        raise InputError(f"the model computes in {output.dtype}; convert it with model.float()")
    if not bool(torch.isfinite(output).all()):
        raise InputError("the model's logits hold NaN or infinite values")
