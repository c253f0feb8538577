"""Rules for messages that are a coefficient times something of the source node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import softmax

from gnn_repair.exposure.mixtures import Split
from gnn_repair.exposure.sites import Call, in_blocks


def sender(value: Any) -> Tensor:
    """The sending side of a propagate's argument, which may be a (source, recipient) pair."""
    side: Tensor = value[0] if isinstance(value, tuple | list) else value
    return side


def _states(call: Call, name: str = "x") -> Tensor:
    return in_blocks(sender(call.arguments[name]), call.conv.node_dim)


def unit(call: Call) -> Split:
    """α = 1: the convolution adds up (or averages) its neighbours' vectors."""
    sources, _, _ = call.entries
    states = _states(call)
    ones = torch.ones(sources.numel(), dtype=states.dtype, device=states.device)
    rule = "α = 1 per entry, h = the source's vector"
    return Split(ones, states, rule, "the aggregator: 1", argument="x")


def weighted(call: Call) -> Split:
    """α = the ``edge_weight`` (or ``norm``) the convolution propagates with; 1 without one."""
    name = "norm" if "norm" in call.arguments else "edge_weight"
    weight = call.arguments.get(name)
    if weight is None:
        weight = call.entries[2]
    if weight is None:
        return unit(call)
    rule = f"α = {name} of propagate, h = the source's vector"
    origin = f"{name} (normalised adjacency or given)"
    return Split(weight.view(-1), _states(call), rule, origin, argument="x")


def stored(call: Call) -> Split:
    """α = the values that a sparse graph holds: a product with it reads them, messages do not."""
    values = call.entries[2]
    assert values is not None
    states = _states(call)
    rule = "α = the sparse graph's own value, h = the source's vector"
    return Split(values.to(states.dtype), states, rule, "the sparse graph's values", argument="x")


def matrix(call: Call) -> Split:
    """A product A h: α = the entry of A, h = the row of the other operand."""
    values = call.entries[2]
    assert values is not None
    product = call.arguments["product"]
    rule, origin = product.rule, product.coefficients_from
    if product.by_entry:
        return Split(values, product.table.unsqueeze(1), rule, origin, by_entry=True)
    return Split(values, _states(call), rule, origin, argument="x")


def found_weight(call: Call) -> Split | None:
    """For convolutions without a rule: α = the argument that messages are, times the source."""
    messages, (sources, _, stored) = call.messages(), call.entries
    if messages.shape[1] != 1:
        return None
    sides = [(name, sender(value)) for name, value in call.arguments.items() if _is_side(value)]
    flat = {n: v for n, v in call.arguments.items() if _by_entry(v, sources.numel())}
    weights: dict[str, Any] = {**flat, "the graph's own values": stored, "": None}
    limit = 8 * torch.finfo(messages.dtype).eps * float(messages.abs().max())
    for name, states in sides:
        if states.shape[1] != messages.shape[2] or not _reaches(states, sources):
            continue
        for origin, weight in weights.items():
            if weight is None and origin:
                continue
            made = states[sources] if weight is None else weight.view(-1, 1) * states[sources]
            if bool(((made - messages[:, 0]).abs() <= limit).all()):
                return _found(weight, states, name, origin, sources.numel())
    return None


def _reaches(states: Tensor, sources: Tensor) -> bool:
    """Whether there is a state for every source."""
    return sources.numel() == 0 or int(sources.max()) < states.shape[0]


def _is_side(value: Any) -> bool:
    side = value[0] if isinstance(value, tuple | list) and value else value
    return isinstance(side, Tensor) and side.dim() == 2 and side.is_floating_point()


def _by_entry(value: Any, entries: int) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() == entries


def _found(weight: Tensor | None, states: Tensor, name: str, origin: str, entries: int) -> Split:
    blocks, source = states.unsqueeze(1), "the source's vector (seen in its messages)"
    if weight is None:
        ones = torch.ones(entries, dtype=states.dtype, device=states.device)
        return Split(ones, blocks, f"α = 1 per entry, h = {source}", "1", argument=name)
    rule = f"α = {origin}, h = {source}"
    return Split(weight.view(-1), blocks, rule, origin, argument=name)


def attention(call: Call) -> Split:
    """GATConv, GATv2Conv: α = the softmax handed to propagate."""
    return _attended(call, call.arguments["alpha"], "softmax attention, as propagated")


def cosine_attention(call: Call) -> Split:
    """AGNNConv: α = softmax(β cos(x_i, x_j)), formed inside its message function."""
    sources, recipients, _ = call.entries
    unit_states = call.arguments["x_norm"]
    scores = call.conv.beta * (unit_states[recipients] * unit_states[sources]).sum(-1)
    coefficients = softmax(scores, recipients, num_nodes=call.num_nodes)
    return _attended(call, coefficients, "softmax of cosine similarity, recomputed")


def self_supervised_attention(call: Call) -> Split:
    """SuperGATConv: α from its own ``get_attention``."""
    sources, recipients, _ = call.entries
    x = call.arguments["x"]
    coefficients = call.conv.get_attention(
        recipients, x[recipients], x[sources], num_nodes=call.num_nodes
    )
    return _attended(call, coefficients, "softmax attention, from get_attention")


def frequency_attention(call: Call) -> Split:
    """FAConv: α = tanh(attention) · edge weight, either sign."""
    weight = call.arguments.get("edge_weight")
    weight = call.entries[2] if weight is None else weight
    assert call.attention is not None and weight is not None
    return _attended(call, call.attention * weight, "tanh attention × normalised adjacency")


def _attended(call: Call, coefficients: Tensor, origin: str) -> Split:
    return Split(coefficients, _states(call), "α = attention, h = the source's vector", origin)
