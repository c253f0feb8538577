"""What is exposed: how the model is run, and whose logits it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch_geometric.data import HeteroData

from gnn_repair.errors import InputError
from gnn_repair.exposure.hetero.calling import typed_call
from gnn_repair.exposure.hetero.graph import TypedGraph, is_typed, typed_tensors
from gnn_repair.exposure.model_call import Forward, Invocation, invocation
from gnn_repair.exposure.model_output import count_classes, count_nodes, refuse_node_types
from gnn_repair.exposure.names import ONE_KIND, NodeNames


@dataclass(frozen=True, eq=False)
class ModelOnData:
    """A model on data."""

    model: nn.Module
    data: Any
    call: Invocation
    nodes: int | None
    """How many nodes are classified, if data says so."""
    classes: int | None
    """How many classes their labels have, if data says so."""
    graph: TypedGraph | None = None
    """Node types and relations, where there are several."""

    @property
    def names(self) -> NodeNames:
        """What recipients and senders are called."""
        return ONE_KIND if self.graph is None else self.graph.names

    @property
    def fields(self) -> Any:
        """What holds the data's tensors by name."""
        return self.data if self.graph is None else typed_tensors(self.data)

    @property
    def labelled(self) -> Any:
        """What holds the labels of the nodes that are classified, as ``y``."""
        kind = None if self.graph is None else self.graph.node_type
        if kind is None or not isinstance(self.data, HeteroData):
            return self.data if kind is None else None
        return self.data[kind]


def on_data(
    model: nn.Module, data: Any, forward: Forward | None, node_type: str | None
) -> ModelOnData:
    """The model on data, with the node type that is classified where there are several."""
    if is_typed(data):
        found = typed_call(model, data, forward, node_type)
        return ModelOnData(model, data, found.call, found.graph.nodes, found.classes, found.graph)
    if node_type is not None:
        raise InputError(
            f"node_type is {node_type!r:.60}, but data is a {type(data).__name__} without types "
            "of nodes; leave it out, or pass a HeteroData"
        )
    refuse_node_types(data, model, forward is not None)
    nodes = count_nodes(data)
    call = invocation(model, data, forward)
    return ModelOnData(model, data, call, nodes, count_classes(data, nodes))
