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
    return Split(ones, states, "α = 1 per entry, h = the source's vector", "the aggregator: 1")


def weighted(call: Call) -> Split:
    """α = the ``edge_weight`` (or ``norm``) the convolution propagates with; 1 without one."""
    name = "norm" if "norm" in call.arguments else "edge_weight"
    weight = call.arguments.get(name)
    if weight is None:
        weight = call.entries[2]
    if weight is None:
        return unit(call)
    rule = f"α = {name} of propagate, h = the source's vector"
    return Split(weight.view(-1), _states(call), rule, f"{name} (normalised adjacency or given)")


def matrix(call: Call) -> Split:
    """A product A h: α = the entry of A, h = the row of the other operand."""
    values = call.entries[2]
    assert values is not None
    rule = "α = the matrix's entry, h = the source's row"
    return Split(values, _states(call), rule, "the matrix itself")


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
