"""Rules for convolutions that attend to the messages of several relations."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch.nn.functional import leaky_relu
from torch_geometric.utils import softmax

from gnn_repair.exposure.mixtures import Split
from gnn_repair.exposure.sites import Call
from gnn_repair.exposure.value import HELD


def typed_attention(call: Call) -> Split:
    """HGTConv: α = softmax over all relations' messages to a node, formed inside its message."""
    sources, recipients, stored = call.entries
    key, query, value = (call.arguments[name] for name in ("k", "q", "v"))
    prior = call.arguments.get("edge_attr")
    prior = stored if prior is None else prior
    scores = (query[recipients] * key[sources]).sum(-1) * prior / math.sqrt(query.shape[-1])
    coefficients = softmax(scores, recipients, num_nodes=call.num_nodes)
    rule = "α = attention, h = the relation's value of the source"
    return Split(coefficients, value, rule, "softmax attention over all relations, recomputed")


def path_attention(call: Call) -> Split:
    """HANConv: α = softmax over one relation's messages; between relations see :data:`HELD`."""
    sources, recipients, _ = call.entries
    ahead, behind = call.arguments["alpha"]
    scores = leaky_relu(ahead[sources] + behind[recipients], call.conv.negative_slope)
    coefficients = softmax(scores, recipients, num_nodes=call.num_nodes)
    rule = "α = attention within the relation, h = the source's vector"
    rule += f"; {HELD}, as a mean over all nodes gave it" if _relations_into(call) > 1 else ""
    states = call.arguments["x"][0]
    return Split(coefficients, states, rule, "softmax attention, recomputed")


def _relations_into(call: Call) -> int:
    """How many relations a HANConv weighs against each other at the recipients."""
    if not isinstance(call.graph, Mapping) or call.placement is None:
        return 2
    kind = call.placement.recipient_type
    return sum(recipient == kind for _, _, recipient in call.graph)
