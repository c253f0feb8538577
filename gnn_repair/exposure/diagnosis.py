"""Naming the module at fault when a model cannot be exposed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.exposure.probes import AFFINE_SLACK, EXACT, perturbation
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.sites import Call

FUNCTION = "a function (such as F.relu, F.normalize or softmax)"
"""Functions leave no trace that could be named."""


@dataclass(frozen=True, eq=False)
class Event:
    """One module that finished after the last aggregation: what it read and what it gave."""

    name: str
    module: nn.Module
    read: list[Tensor]
    gave: list[Tensor]


def reason(watch: Watch, trace: Trace) -> str:
    """What keeps the last propagate of the run from being followed by a node-wise map."""
    call = trace.calls[-1]
    value = trace.values[call.site]
    moved = torch.arange(value.shape[0], device=value.device) % 2 == 0
    change = perturbation(value, seed=1) * moved.view(-1, 1, 1)
    runs = [_events(watch, call, value + sign * change) for sign in (0, 1, -1)]
    last = f"the last convolution {call.title}"
    for events in zip(*runs, strict=False):
        name, module = events[0].name, events[0].module
        title = f"{type(module).__name__} `{name}`" if name else "the model"
        inside = call.site.name == name or call.site.name.startswith(f"{name}.") or not name
        wrong = None if inside else _fault([event.read for event in events], moved)
        if wrong:
            return f"{FUNCTION} between {last} and the {title} {wrong}"
        wrong = _fault([event.gave for event in events], moved)
        if not wrong:
            continue
        if call.site.name == name:
            return f"{FUNCTION} that {call.title} applies to its own aggregate {wrong}"
        if inside and not name:
            break
        return f"the {title} after {last} {wrong}"
    return f"{FUNCTION} after {last} {_whole_fault(watch, call, value, change, moved)}"


def _whole_fault(watch: Watch, call: Call, value: Tensor, change: Tensor, moved: Tensor) -> str:
    outputs = [[watch.run({call.site: value + sign * change})] for sign in (0, 1, -1)]
    return _fault(outputs, moved) or "is no map of each node by itself"


def _fault(three: list[list[Tensor]], moved: Tensor) -> str:
    """What is wrong with tensors seen at a value, above it and below it; empty: nothing."""
    for middle, up, down in zip(*three, strict=False):
        if not (middle.shape == up.shape == down.shape):
            continue
        limit = EXACT[middle.dtype] * AFFINE_SLACK if middle.dtype in EXACT else 1e-3
        size = max(1.0, float(torch.stack([middle, up, down]).abs().max()))
        by_node = middle.shape[0] == moved.numel()
        if by_node and float((up - middle)[~moved].abs().max()) > limit * size:
            return "mixes the values of different nodes"
    return ""


def _events(watch: Watch, call: Call, value: Tensor) -> list[Event]:
    events: list[Event] = []
    with _listening(watch, call.site.order, events):
        watch.run({call.site: value})
    return events


@contextmanager
def _listening(watch: Watch, order: int, events: list[Event]) -> Iterator[None]:
    """Collect the modules that finish after propagate number ``order``."""
    passed = [False]

    def on_propagate(number: int) -> None:
        passed[0] = passed[0] or number == order

    def listen(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if passed[0]:
                events.append(Event(name, module, _tensors(args), _tensors(output)))

        return hook

    handles = [m.register_forward_hook(listen(n)) for n, m in watch.model.named_modules()]
    watch.on_propagate = on_propagate
    try:
        yield
    finally:
        watch.on_propagate = None
        for handle in handles:
            handle.remove()


def _tensors(value: Any) -> list[Tensor]:
    """The floating tensors in a value, copied: what follows may change them in place."""
    if isinstance(value, Tensor):
        return [value.detach().clone()] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
