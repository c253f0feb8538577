"""Rules for messages that depend on the entry and not on the source alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.utils import one_hot, scatter

from gnn_repair.exposure.mixtures import Split
from gnn_repair.exposure.rules.nodes import sender
from gnn_repair.exposure.sites import Call


def whole_message(call: Call) -> Split:
    """The rule for any sum or mean: the message as it is, with coefficient 1."""
    messages = call.messages()
    ones = torch.ones(messages.shape[0], dtype=messages.dtype, device=messages.device)
    rule = "generic rule: α = 1 per entry, h = the whole message"
    return Split(ones, messages, rule, "the aggregator: 1", by_entry=True)


def local_extremum(call: Call) -> Split:
    """LEConv: α = edge weight or 1, h = a_j − b_i."""
    sources, recipients, _ = call.entries
    ahead, behind = call.arguments["a"], call.arguments["b"]
    weight = call.arguments.get("edge_weight")
    states = (sender(ahead)[sources] - behind[recipients]).unsqueeze(1)
    if weight is None:
        weight = torch.ones(sources.numel(), dtype=states.dtype, device=states.device)
    own = (sender(ahead) - behind).unsqueeze(1) if call.within else None
    rule = "α = edge weight (1 without), h = a_j − b_i"
    return Split(weight.view(-1), states, rule, "edge_weight", by_entry=True, own_states=own)


def dot_product_attention(call: Call) -> Split:
    """TransformerConv: α = its softmax; h = value, plus the edge's own vector if there is one."""
    assert call.attention is not None
    origin, value = "softmax attention, as kept by the convolution", call.arguments["value"]
    vector = _edge_vector(call)
    if vector is None:
        return Split(call.attention, value, "α = attention, h = value of the source", origin)
    states = value[call.entries[0]] + vector
    rule = "α = attention, h = value of the source + edge vector"
    return Split(
        call.attention,
        states,
        rule,
        origin,
        by_entry=True,
        own_states=value if call.within else None,
    )


def _edge_vector(call: Call) -> Tensor | None:
    conv, attributes = call.conv, call.arguments.get("edge_attr")
    if attributes is None or conv.lin_edge is None:
        return None
    vector: Tensor = conv.lin_edge(attributes).view(-1, conv.heads, conv.out_channels)
    return vector


def by_relation(call: Call) -> Split:
    """FastRGCNConv: α = 1/deg_r (mean) or 1, one group per relation, h = W_r x_j."""
    _, recipients, _ = call.entries
    messages, kinds = call.messages(), call.arguments["edge_type"]
    coefficients = torch.ones(kinds.numel(), dtype=messages.dtype, device=messages.device)
    if call.conv.aggr == "mean":
        marks = one_hot(kinds, call.conv.num_relations, dtype=messages.dtype)
        degree = scatter(marks, recipients, dim=0, dim_size=call.num_nodes)
        # The aggregator's factor 1/deg is applied to every rule; here only 1/deg_r belongs.
        coefficients = degree.sum(1)[recipients] / degree[recipients, kinds]
    rule = "α = 1/degree within the relation, h = transformed source"
    return Split(coefficients, messages, rule, "relation degrees", by_entry=True, kinds=kinds)
