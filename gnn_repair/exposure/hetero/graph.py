"""A graph of several node types, in the form exposures need it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor, to_edge_index

from gnn_repair.errors import InputError
from gnn_repair.exposure.model_arguments import field
from gnn_repair.exposure.names import NodeNames

Relation = tuple[str, str, str]
"""Such as ``("author", "writes", "paper")``."""
GRAPH_FIELDS = ("edge_index", "adj_t")


@dataclass(frozen=True, eq=False)
class TypedGraph:
    """Node types and relations of a graph, and the type that is classified."""

    counts: Mapping[str, int]
    """How many nodes each type has."""
    edges: Mapping[Relation, Any]
    """The edges of every relation, as the model is given them."""
    node_type: str
    """The type that is classified."""

    @property
    def nodes(self) -> int:
        """How many nodes are classified."""
        return self.counts[self.node_type]

    @property
    def order(self) -> list[str]:
        """All types, the classified one first: the order in which senders are numbered."""
        return [self.node_type, *(kind for kind in self.counts if kind != self.node_type)]

    @property
    def names(self) -> NodeNames:
        """What recipients and senders are called."""
        senders = tuple((kind, self.counts[kind]) for kind in self.order)
        return NodeNames(self.node_type, senders)

    def first(self, kind: str) -> int:
        """The number of a type's first node among all senders."""
        before = self.order[: self.order.index(kind)]
        return sum(self.counts[other] for other in before)

    def kind_of(self, sender: int) -> str:
        """The type of a sender, by its number among all."""
        return max((k for k in self.order if self.first(k) <= sender), key=self.first)


def in_words(relation: Relation) -> str:
    """Such as ``author writes paper``."""
    return " ".join(relation)


def is_typed(data: Any) -> bool:
    """Whether data has node types: a HeteroData, or fields x_dict and edge_index_dict."""
    return isinstance(data, HeteroData) or isinstance(field(data, "edge_index_dict"), Mapping)


def edges_of(data: Any) -> dict[Relation, Any]:
    """The edges of every relation."""
    found: dict[Relation, Any] = {}
    for name in reversed(GRAPH_FIELDS):
        found |= typed_field(data, name) or {}
    return found


def typed_field(data: Any, name: str) -> dict[Any, Any] | None:
    """What the types (or relations) of data hold under a name, by type; None: nothing."""
    if not isinstance(data, HeteroData):
        value = field(data, f"{name}_dict")
        return dict(value) if isinstance(value, Mapping) else None
    stores = [*data.node_items(), *data.edge_items()]
    found = {kind: store[name] for kind, store in stores if name in store}
    return found or None


def untyped_field(data: Any, name: str) -> Any:
    """What data holds under a name for the whole graph; None: nothing."""
    if isinstance(data, HeteroData):  # which raises where none of its types has the name
        return data._global_store.get(name)
    return field(data, name)


def counts_of(data: Any) -> dict[str, int]:
    """How many nodes each type has: what data says, else as many as its edges name."""
    edges = edges_of(data)
    kinds = list(data.node_types) if isinstance(data, HeteroData) else list(_features(data))
    for source, _, recipient in edges:
        kinds += [kind for kind in (source, recipient) if kind not in kinds]
    counts = {kind: _count(data, kind, edges) for kind in kinds}
    return {kind: count for kind, count in counts.items() if count is not None}


def _features(data: Any) -> dict[str, Tensor]:
    found = typed_field(data, "x") or {}
    return {kind: x for kind, x in found.items() if isinstance(x, Tensor)}


def _count(data: Any, kind: str, edges: Mapping[Relation, Any]) -> int | None:
    if kind in (held := _features(data)):
        return int(held[kind].shape[0])
    if isinstance(data, HeteroData) and kind in data.node_types:
        with warnings.catch_warnings():  # PyG warns where it has to infer the number
            warnings.simplefilter("ignore")
            number = data[kind].num_nodes
        if number is not None:
            return int(number)
    given = untyped_field(data, "num_nodes_dict")
    if isinstance(given, Mapping) and kind in given:
        return int(given[kind])
    ends = [end for relation, index in edges.items() for end in _ends(relation, index, kind)]
    largest = [int(end.max()) + 1 for end in ends if end.numel()]
    return max(largest) if largest else None


def _ends(relation: Relation, index: Any, kind: str) -> list[Tensor]:
    sides = endpoints(index)
    return [side for side, named in zip(sides, (relation[0], relation[2]), strict=True)
            if named == kind]  # fmt: skip


def check_type(node_type: Any, counts: Mapping[str, int]) -> str:
    """The node type once it is one of the graph's."""
    if not isinstance(node_type, str) or node_type not in counts:
        raise InputError(f"node_type is {node_type!r:.60}; choose one of {listed(counts)}")
    return node_type


def listed(kinds: Any) -> str:
    """Such as ``'paper', 'author'``."""
    return ", ".join(repr(kind) for kind in kinds)


def typed_tensors(data: Any) -> dict[str, Tensor]:
    """Every tensor of a typed graph by name, such as ``paper.x``."""
    if not isinstance(data, HeteroData):
        names = [str(name) for name in data if str(name).endswith("_dict")]
        pairs = [(name.removesuffix("_dict"), data[name]) for name in names]
        held = [(kind, name, v) for name, by in pairs for kind, v in _items(by)]
    else:
        stores = [*data.node_items(), *data.edge_items()]
        held = [(kind, name, v) for kind, store in stores for name, v in store.items()]
    flat = {(k if isinstance(k, str) else in_words(k)): k for k, _, _ in held}
    words = {kind: text for text, kind in flat.items()}
    return {f"{words[kind]}.{name}": v for kind, name, v in held if isinstance(v, Tensor)}


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def typed_arguments_as_data(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a model was called with, as a graph: dicts by node type and by relation; None: none.

    Args:
        given: the arguments by name.
    """
    dicts = [value for value in given.values() if isinstance(value, Mapping) and value]
    edges = next((d for d in dicts if all(isinstance(k, tuple) for k in d)), None)
    features = next((d for d in dicts if all(isinstance(k, str) for k in d)), None)
    if edges is None:
        return None
    return {"x_dict": dict(features or {}), "edge_index_dict": dict(edges)}


def copied(value: Any) -> Any:
    """A dict of its own for each run; everything else as it is."""
    return dict(value) if isinstance(value, dict) else value


def endpoints(index: Any) -> tuple[Tensor, Tensor]:
    """Sources and recipients of a graph's edges, whatever form it has."""
    if isinstance(index, SparseTensor):
        recipient, source, _ = index.coo()
        return source, recipient
    if is_torch_sparse_tensor(index):
        recipient, source = to_edge_index(index)[0]
        return source, recipient
    plain = index.as_subclass(Tensor)
    return plain[0], plain[1]
