"""What single messages add to an aggregate that is no plain sum or mean of them.

Aggregators side by side (PNA, ``aggr=["mean", "sum"]``), an ``aggregate`` of a convolution's own,
softmax aggregation: wherever a part of the aggregate is linear in the messages, each message adds
something of its own to it, and that can be reweighted. A message has one coefficient for all
aggregators that add it up. What is no weighted sum (a maximum, a standard deviation) is held as the
model has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import SoftmaxAggregation
from torch_geometric.utils import softmax

from gnn_repair.exposure.mixtures import (
    Mixture,
    Split,
    Terms,
    context_of,
    mixtures_of,
    parts_of_aggregator,
)
from gnn_repair.exposure.probes import EXACT, perturbation
from gnn_repair.exposure.sites import Call, in_blocks, merged_heads
from gnn_repair.exposure.value import Group

SLACK = 100.0
"""Other messages than the model's own are as large as these but cancel less: their sums may round
this much more than an exposure may."""


@dataclass(frozen=True, eq=False)
class Contributions:
    """An aggregate taken apart: value[v] = held[v] + Σ states of v's messages."""

    states: Tensor
    """[T, B, D] what each message adds, as blocks of the aggregate."""
    held: Tensor
    """[N, B, D] what is left: the parts that are no weighted sums."""
    rule: str


def contributed(call: Call, names: Sequence[str]) -> list[Mixture]:
    """The groups of a propagate by what its messages add; none where nothing is linear."""
    if call.placement is not None or not call.num_entries:
        return []
    found = contributions_of(call)
    if found is None:
        return []
    sources, recipients, _ = call.entries
    messages = call.messages()
    ones = torch.ones(len(sources), dtype=messages.dtype, device=messages.device)
    context = context_of(call, Split(ones, messages, "", "", by_entry=True))
    mixtures: list[Mixture] = []
    for block, name in enumerate(names):
        group = Group(name, f"{call.kind}: {found.rule}", "the aggregator: 1")
        states = found.states[:, block]
        terms = Terms(recipients, sources, ones, states, context, by_entry=True)
        if bool(states.any()):  # else the block holds nothing that is added up
            mixtures += mixtures_of(call.site, block, group, terms)
    held = (found.held, *[None] * len(mixtures))
    return [
        replace(one, by_value=True, held=rest) for one, rest in zip(mixtures, held, strict=False)
    ]


def contributions_of(call: Call) -> Contributions | None:
    """What every message adds to the aggregate; None where it has no linear part."""
    messages, module = call.messages(), call.conv.aggr_module
    if isinstance(module, SoftmaxAggregation):
        return _softmax(call, messages, module)
    try:
        with torch.enable_grad():
            leaf = messages.detach().clone().requires_grad_()
            parts = _in_parts(call, call.aggregated(leaf * 1), messages)
            slopes = [] if parts is None else _slopes(parts, leaf)
    except (RuntimeError, ValueError):
        return None  # an aggregate that cannot be differentiated, or not on these messages
    if not slopes:
        return None
    linear = _which_are_linear(call, messages, slopes)
    if not any(linear):
        return None
    added = [
        slope * messages if good else torch.zeros_like(messages)
        for slope, good in zip(slopes, linear, strict=True)
    ]
    states = torch.stack(added, dim=2).reshape(len(messages), *call.blocks.shape[1:])
    return Contributions(states, _left(call, states), _rule(call, linear))


def _softmax(call: Call, messages: Tensor, module: Any) -> Contributions:
    """Softmax over the messages, channel by channel: its weights stay inside h."""
    heat = module.t if isinstance(module.t, float | int) else module.t.detach()
    weights = softmax(messages * heat, call.entries[1], num_nodes=call.num_nodes)
    states = (weights * messages).reshape(len(messages), *call.blocks.shape[1:])
    rule = "α = 1 per entry, h = the message times its softmax weights, which are held"
    return Contributions(states, _left(call, states), rule)


def _left(call: Call, states: Tensor) -> Tensor:
    """The aggregate without what its messages add."""
    made = torch.zeros_like(call.blocks)
    left = call.blocks - made.index_add_(0, call.entries[1], states)
    # Where all of it is added up, rounding is left, which is no part of the model.
    size = call.blocks.abs().max().clamp(min=torch.finfo(left.dtype).tiny)
    exact = EXACT.get(left.dtype, 0.0)
    channels = left.abs().amax(0, keepdim=True) <= exact * size
    return left.masked_fill(channels, 0.0)


def _in_parts(call: Call, value: Tensor, messages: Tensor) -> Tensor | None:
    """The aggregate [N, B, P, D]: P parts, each of the messages' own shape [B, D]."""
    blocks = in_blocks(value, call.conv.node_dim, merged_heads(call.conv))
    count, width = messages.shape[1:]
    same = blocks.shape[1] == count and blocks.shape[2] % width == 0
    if not same and (count > 1 or blocks[0].numel() % width):
        return None
    return blocks.reshape(blocks.shape[0], count, -1, width)


def _slopes(parts: Tensor, leaf: Tensor) -> list[Tensor]:
    """By part, how much of each message it holds, [T, B, D]."""
    return [torch.autograd.grad(part.sum(), leaf, retain_graph=True)[0] for part in parts.unbind(2)]


def _which_are_linear(call: Call, messages: Tensor, slopes: Sequence[Tensor]) -> list[bool]:
    """Whether a part is the sum of slope × message for other messages too."""
    noise = perturbation(messages, seed=4)
    seen = _in_parts(call, call.aggregated(noise), messages)
    assert seen is not None
    limit = EXACT[messages.dtype] * SLACK
    good = []
    for slope, value in zip(slopes, seen.unbind(2), strict=True):
        made = torch.zeros_like(value).index_add_(0, call.entries[1], slope * noise)
        size = value.abs().max().clamp(min=1.0)
        good.append(bool(((made - value).abs().max() <= limit * size).item()))
    return good


def _rule(call: Call, linear: Sequence[bool]) -> str:
    rule = "α = 1 per entry, h = what a message adds to the aggregate"
    if all(linear):
        return rule
    names = [name for name, _ in parts_of_aggregator(call.conv.aggr_module)]
    own = type(call.conv).aggregate is not MessagePassing.aggregate
    if own or len(linear) % len(names):
        return f"{rule}; the parts of it that are no weighted sums are held"
    bad = dict.fromkeys(names[k % len(names)] for k, good in enumerate(linear) if not good)
    verb = "are no weighted sums and are" if len(bad) > 1 else "is no weighted sum and is"
    return f"{rule}; {' and '.join(bad)} {verb} held"
