"""Naming the module at fault when a model cannot be exposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import ExposureRefused, GnnRepairError
from gnn_repair.exposure.probes import (
    AFFINE_SLACK,
    EXACT,
    WORST_ROUNDING,
    deviation,
    perturbation,
    residual_limit,
)
from gnn_repair.exposure.products import ProductCall
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.sites import Call, Site, alive
from gnn_repair.exposure.steps import Rounded, Step, first_bend, first_decision, first_mixing


def reason(watch: Watch, trace: Trace) -> str:
    """What keeps the last propagate of the run from being followed by a node-wise map."""
    call = trace.calls[-1]
    value = trace.values[call.site]
    moved = torch.arange(value.shape[0], device=value.device) % 2 == 0
    change = perturbation(value, seed=1)
    if text := _in_batches(watch, trace, value + change):
        return text
    change[~moved] = 0
    base, other = (watch.steps({call.site: v}, len(moved)) for v in (value.clone(), value + change))
    limit = AFFINE_SLACK * EXACT[trace.output.dtype]
    step, decision = first_mixing(base, other, moved, limit), first_decision(base, other)
    if decision is not None and (step is None or step.pointwise):
        # A number that was read off all nodes, and came back in without a trace.
        return f"after {call.last} {decided(watch.model, decision)}"
    if step is None:
        return f"what follows {call.last} is no map of each node by itself"
    own = step.module == call.site.name and (step.module or not isinstance(call, ProductCall))
    behind = "applies to its own aggregate what" if own else f"after {call.last}"
    place = call.title if own else step.place(watch.model)
    return f"{place} {behind} mixes the values of different nodes (by `{step.operation}`)"


def decided(model: nn.Module, step: Step) -> str:
    """What to say of a number or a choice of entries that depends on messages."""
    how = f"picks entries by `{step.operation}`" if step.gave is None else "takes a Python number"
    return (
        f"{step.place(model)} {how} from values that messages reach, as boolean masks, `if` and "
        ".item() do (write that with torch.where)"
    )


def refuse_residual(
    watch: Watch,
    trace: Trace,
    sites: Sequence[Site],
    what: str,
    residual: float,
    tolerance: float | None,
) -> None:
    """Raise where the model run on reweighted messages is too far from what was read off it."""
    limit = residual_limit(tolerance, trace.output.dtype)
    if residual <= limit:
        return
    names = ", ".join(f"`{name}`" if name else "its forward" for name in {s.name: 0 for s in sites})
    told = f"with reweighted messages in {names} the model differs from {what} by {residual:.1e} "
    told += f"(relative), more than {limit:.0e}; "
    values = {site: trace.values[site] for site in sites}
    rows, dtype = trace.output.shape[0], trace.output.dtype
    amplified = _rounding(watch, values, trace.output)
    if residual <= AMPLIFIED * amplified:
        raise ExposureRefused(told + excused(residual, dtype))
    for runs in _far_runs(watch, values, rows):
        step = first_decision(runs[0], runs[1]) or first_decision(runs[0], runs[2])
        if step is not None:
            raise ExposureRefused(told + decided(watch.model, step))
    raise ExposureRefused(
        f"{told}that is no rounding ({amplified:.0e} here): what follows does something else with "
        "other messages, such as keeping values between runs; take that out of the forward"
    )


def _far_runs(
    watch: Watch, values: Mapping[Site, Tensor], rows: int
) -> Iterator[tuple[list[Step], list[Step], list[Step]]]:
    """Runs as they are, and up and down from there by as much as values are large, and further."""
    for scale in (1.0, 8.0):
        changes = {site: scale * perturbation(value, seed=8) for site, value in values.items()}
        base, up, down = (
            watch.steps({site: v + sign * changes[site] for site, v in values.items()}, rows)
            for sign in (0, 1, -1)
        )
        yield base, up, down


def bends(watch: Watch, trace: Trace, sites: Sequence[Site]) -> bool:
    """Whether some operation behind the sites is not affine, for messages as large or larger."""
    values = {site: trace.values[site] for site in sites}
    rows, limit = trace.output.shape[0], AFFINE_SLACK * EXACT[trace.output.dtype]
    return any(first_bend(*runs, limit) is not None for runs in _far_runs(watch, values, rows))


AMPLIFIED = 30.0
"""Roundings that a sum over messages, and the model behind it, may add up to."""


def _rounding(watch: Watch, values: Mapping[Site, Tensor], logits: Tensor) -> float:
    """How far the logits move where every operation behind some sites rounds once more."""
    runs = []
    for seed in range(2):
        with suppress(GnnRepairError), Rounded(seed):
            # Copies, since what follows may change them in place.
            runs.append(watch.run({site: value.clone() for site, value in values.items()}))
    return max((float(deviation(run, logits).max()) for run in runs), default=0.0)


def excused(residual: float, dtype: torch.dtype) -> str:
    """What to do about a residual that rounding explains."""
    double = "pass model.double() and double data"
    if dtype == torch.float64:
        double = "scale its features, or take out what divides by small numbers"
    told = f"that is how {dtype} rounds in this model: {double}"
    enough = min(2 * residual, WORST_ROUNDING * EXACT[dtype])
    return told + f", or tolerance={enough:.0e} to accept it" * (residual <= enough)


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
    watch = Watch(model, lambda: _tensors(run())[0])
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


def _tensors(value: Any) -> list[Tensor]:
    """The floating tensors in a value."""
    if isinstance(value, Tensor):
        usable = value.is_floating_point() and value.layout == torch.strided and alive(value)
        return [value] if usable else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
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
