"""Naming the module at fault when a model cannot be exposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.exposure.module_names import names_of, place
from gnn_repair.exposure.probes import AFFINE_SLACK, EXACT, perturbation
from gnn_repair.exposure.products import ProductCall
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.sites import Call, alive

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
    if text := _in_batches(watch, trace, value + perturbation(value, seed=1)):
        return text
    runs = [_events(watch, call, value + sign * change) for sign in (0, 1, -1)]
    last = call.last
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
        if call.site.name == name and (name or not isinstance(call, ProductCall)):
            return f"{FUNCTION} that {call.title} applies to its own aggregate {wrong}"
        if inside and not name:
            break
        return f"the {title} after {last} {wrong}"
    return f"{FUNCTION} after {last} {_whole_fault(watch, call, value, change, moved)}"


def _in_batches(watch: Watch, trace: Trace, other: Tensor) -> str:
    """Whether the nodes pass the last convolution in parts, in words; empty: they do not."""
    call, nodes = trace.calls[-1], trace.output.shape[0]
    parts = sum(c.conv is call.conv for c in trace.calls)
    reached = int((watch.run({call.site: other}) != trace.output).any(1).sum())
    if value_rows(trace, call) == nodes and (parts == 1 or reached == nodes):
        return ""
    if parts == 1:
        return (
            f"{call.last} receives at {call.num_nodes} nodes and the "
            f"logits are about {nodes} (give all nodes to it at once with forward=)"
        )
    return (
        f"{call.last} runs {parts} times, each on a part of the nodes, as "
        "layer-wise or sampled inference does (pass a forward= that runs the whole graph at once)"
    )


def value_rows(trace: Trace, call: Call) -> int:
    """How many recipients a propagate's aggregate has here."""
    return int(trace.values[call.site].shape[0])


def why_rows(model: nn.Module, run: Callable[[], Any], output: Tensor, nodes: int) -> str:
    """Why an output may have another number of rows than there are nodes, and what to do."""
    needed = "an exposure needs one row of logits per node"
    rows = output.shape[0] if output.dim() else 0
    watch = Watch(model, lambda: _tensors(run(), copy=False)[0])
    with watch.installed():
        trace = watch.trace()
        call = trace.calls[-1] if trace.calls else None
        if call is None or output.dim() != 2:
            return needed
        if call.num_nodes == rows:
            return (
                f"{needed}, but {call.last} receives at {rows} nodes only, "
                "as sampled batches do; pass the whole graph"
            )
        reads = _nodes_read(watch, trace, call)
    if reads == rows < nodes:
        return (
            f"{needed}, but its forward keeps {rows} of them (such as out[:batch_size] or "
            "out[mask]); pass a forward= that returns all rows"
        )
    return f"{needed}, or one row per graph, pooled from the nodes by a sum, mean or attention"


def _nodes_read(watch: Watch, trace: Trace, call: Call) -> int:
    """How many nodes' aggregates the output depends on."""
    leaf = trace.values[call.site].detach().clone().requires_grad_()
    with torch.enable_grad():
        out = watch.run({call.site: leaf * 1})
        if not out.requires_grad:
            return -1
        noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
        (gradient,) = torch.autograd.grad((out * noise).sum(), leaf)
    return int((gradient.flatten(1) != 0).any(1).sum())


def _whole_fault(watch: Watch, call: Call, value: Tensor, change: Tensor, moved: Tensor) -> str:
    outputs = [[watch.run({call.site: value + sign * change})] for sign in (0, 1, -1)]
    return _fault(outputs, moved) or "is no map of each node by itself"


def _fault(three: list[list[Tensor]], moved: Tensor) -> str:
    """What is wrong with tensors seen at a value, above it and below it; empty: nothing."""
    for middle, up, down in zip(*three, strict=False):
        if not middle.dim() or not (middle.shape == up.shape == down.shape):
            continue
        # Half precision has three decimals.
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
    names = names_of(watch.model)
    running: list[str] = []

    def on_propagate(number: int) -> None:
        passed[0] = passed[0] or number == order

    def enter(module: nn.Module, args: Any) -> None:
        running.append(place(names[module], running))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        name = running.pop()
        if passed[0]:
            events.append(Event(name, module, _tensors(args), _tensors(output)))

    handles = [module.register_forward_pre_hook(enter) for module in names]
    handles += [module.register_forward_hook(leave) for module in names]
    watch.on_propagate = on_propagate
    try:
        yield
    finally:
        watch.on_propagate = None
        for handle in handles:
            handle.remove()


def _tensors(value: Any, copy: bool = True) -> list[Tensor]:
    """The floating tensors in a value, copied: what follows may change them in place."""
    if isinstance(value, Tensor):
        usable = value.is_floating_point() and value.layout == torch.strided and alive(value)
        return [value.detach().clone() if copy else value] if usable else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item, copy)]
    return []


def unruly(call: Call) -> str:
    """What to say of a propagate whose aggregate is no sum of its messages."""
    own = f"{call.title} aggregates in a way of its own"
    messages = call.messages()
    noise = perturbation(messages, seed=4)
    size = float(messages.abs().max()) or 1.0
    parts = [call.aggregated(value) for value in (messages, noise, messages + noise)]
    gap = float((parts[0] + parts[1] - parts[2]).abs().max())
    if not gap <= 1e-3 * size:  # far above rounding, far below what a median or maximum does
        return f"{own}, which is not a weighted sum of messages"
    return f"{own}, which no rule describes; add a rule to gnn_repair.exposure.rules.RULES"
