"""What is exposed: how the model is run, and whose logits it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.hetero.calling import typed_call
from gnn_repair.exposure.hetero.graph import TypedGraph, is_typed, listed, typed_tensors
from gnn_repair.exposure.hetero.mixtures import with_shared_contexts, with_unique_names
from gnn_repair.exposure.hetero.placing import Placing
from gnn_repair.exposure.mixtures import Mixture
from gnn_repair.exposure.model_arguments import field, field_names
from gnn_repair.exposure.model_call import Forward, Invocation, invocation
from gnn_repair.exposure.model_output import count_classes, count_nodes, refuse_node_types
from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.exposure.products import is_feature_map
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.rules import FILTERS


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

    def watch(self, run: Callable[[], Tensor], nodes: int) -> Watch:
        """A watch on the model's run; products with the data's own features are feature maps."""
        held, graph = self.fields, self.graph
        names = field_names(held)
        features = [field(held, name) for name in names if name == "x" or name.endswith(".x")]
        others = [field(held, name) for name in names if not name.endswith("x")]

        def maps_features(product: Any) -> bool:
            return any(is_feature_map(product, one, others) for one in features or [None])

        placing = None if graph is None else Placing(self.model, graph)
        sizes = frozenset() if graph is None else frozenset(graph.counts.values())
        return Watch(self.model, run, tuple(FILTERS), nodes, maps_features, placing, sizes)

    def keep_relations(self, trace: Trace) -> None:
        """Forget the propagates into other types: what they gave is behind the messages."""
        if self.graph is None or not trace.calls:
            return
        placed = [call for call in trace.calls if call.placement and call.placement.parts]
        into = [call for call in placed if call.entries[0].numel()]
        if not into:
            others = {c.placement.recipient_type for c in trace.calls if c.placement} - {""}
            where = f"; they go to {listed(sorted(others))}" if others else ""
            raise ExposureRefused(
                f"no convolution of {type(self.model).__name__} sends messages to "
                f"{self.graph.node_type!r} nodes{where}"
            )
        trace.calls = into

    def finished(self, mixtures: list[Mixture]) -> list[Mixture]:
        """Groups with names of their own and contexts over the same columns."""
        if self.graph is None or not mixtures:
            return mixtures
        return with_shared_contexts(with_unique_names(mixtures))


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
