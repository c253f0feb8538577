"""How each convolution's messages split into coefficient α and state h.

A rule reads one recorded propagate and returns a :class:`~gnn_repair.exposure.mixtures.Split`; a
filter describes a convolution that propagates several times. A tenth convolution is one line
here. Convolutions without a line are seen to send weight × source, or else exposed by their whole
messages (``whole_message``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_geometric import nn as pyg

from gnn_repair.exposure.mixtures import Split
from gnn_repair.exposure.products import MatrixProduct
from gnn_repair.exposure.rules import entries, hops, nodes, relations
from gnn_repair.exposure.sites import Call

Rule = Callable[[Call], Split]

RULES: dict[type, Rule] = {
    MatrixProduct: nodes.matrix,
    pyg.AGNNConv: nodes.cosine_attention,
    pyg.APPNP: nodes.weighted,
    pyg.ARMAConv: nodes.weighted,
    pyg.ChebConv: nodes.weighted,
    pyg.ClusterGCNConv: nodes.weighted,
    pyg.FAConv: nodes.frequency_attention,
    pyg.FastRGCNConv: entries.by_relation,
    pyg.GATConv: nodes.attention,
    pyg.GATv2Conv: nodes.attention,
    pyg.GCN2Conv: nodes.weighted,
    pyg.GCNConv: nodes.weighted,
    pyg.GINConv: nodes.unit,
    pyg.GINEConv: entries.whole_message,
    pyg.GraphConv: nodes.weighted,
    pyg.HANConv: relations.path_attention,
    pyg.HGTConv: relations.typed_attention,
    pyg.LEConv: entries.local_extremum,
    pyg.LGConv: nodes.weighted,
    pyg.MFConv: nodes.unit,
    pyg.MixHopConv: nodes.weighted,
    pyg.PDNConv: nodes.weighted,
    pyg.RGCNConv: nodes.unit,
    pyg.SAGEConv: nodes.unit,
    pyg.SGConv: nodes.weighted,
    pyg.SSGConv: nodes.weighted,
    pyg.SimpleConv: nodes.weighted,
    pyg.SuperGATConv: nodes.self_supervised_attention,
    pyg.TAGConv: nodes.weighted,
    pyg.TransformerConv: entries.dot_product_attention,
}
"""Rules for one propagate, by convolution."""

FILTERS: dict[type, hops.Filter] = {
    pyg.APPNP: hops.personalised,
    pyg.ChebConv: hops.chebyshev,
    pyg.MixHopConv: hops.mixed,
    pyg.SGConv: hops.simple,
    pyg.SSGConv: hops.simple_spectral,
    pyg.TAGConv: hops.adaptive,
}
"""Filters of convolutions that propagate several times, used unless the last hop is asked for."""


def rules_for(call: Call) -> tuple[Rule, ...]:
    """What to try on a propagate: its class's rule or its nearest ancestor's, then no rule."""
    of_class = next((RULES[kind] for kind in type(call.conv).__mro__ if kind in RULES), unruled)
    return tuple(dict.fromkeys((of_class, unruled, entries.whole_message, nodes.stored)))


def split_by(rule: Rule, call: Call) -> Split | None:
    """What a rule says of a propagate; None where the propagate is not what the rule expects."""
    try:
        return rule(call)
    except (KeyError, AttributeError, AssertionError, IndexError, TypeError):
        return None  # a subclass that propagates in its own way


def unruled(call: Call) -> Split:
    """The rule of convolutions that have none: weight × source where that is what they send."""
    return nodes.found_weight(call) or entries.whole_message(call)


def filter_for(conv: Any) -> hops.Filter | None:
    """The filter of a convolution that propagates several times, if it is one."""
    return next((FILTERS[kind] for kind in type(conv).__mro__ if kind in FILTERS), None)
