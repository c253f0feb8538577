"""What the data that a model runs on says: its fields, nodes and classes, node types, batches."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Batch, Data, Dataset, HeteroData
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor, to_edge_index

from gnn_repair.errors import InputError
from gnn_repair.exposure.checks import Outputs
from gnn_repair.exposure.names import NodeNames


def field(data: Any, name: str) -> Any:
    """What data holds under a name, its methods excepted."""
    if isinstance(data, Mapping):
        return data.get(name)
    value = getattr(data, name, None)
    return None if callable(value) and not isinstance(value, Tensor) else value


def field_names(data: Any) -> list[str]:
    """The names under which data holds something, sorted."""
    keys = getattr(data, "keys", None)
    names = keys() if callable(keys) else vars(data) if hasattr(data, "__dict__") else ()
    return sorted(str(name) for name in names)


def count_nodes(data: Any) -> int | None:
    """How many nodes data has; None where it does not say."""
    known = {"num_nodes", "x"} & set(field_names(data)) or field(data, "node_types")
    if not known:
        return None
    with warnings.catch_warnings():  # PyG warns where it has to infer the number
        warnings.simplefilter("ignore")
        number = field(data, "num_nodes")
    features = field(data, "x")
    if number is None and isinstance(features, Tensor):
        number = features.shape[0]
    return None if number is None else int(number)


def count_classes(data: Any, nodes: int | None) -> int | None:
    """How many classes the labels of data have; None where it does not say."""
    return count_classes_of(field(data, "y"), nodes)


def count_classes_of(y: Any, nodes: int | None) -> int | None:
    """How many classes or labels there are, if nodes have one number each, or a column a label."""
    if isinstance(y, Tensor) and y.dim() == 2 and len(y) == nodes and y.shape[1] > 1:
        return y.shape[1]
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.shape != (nodes,) or not nodes:
        return None
    return int(y.max()) + 1


def refuse_node_types(data: Any, model: nn.Module, called: bool) -> None:
    """A model of several node types needs a graph that has them.

    Args:
        data: the graph.
        model: the model.
        called: whether the user says how it is called.
    """
    taken = [] if called else list(inspect.signature(model.forward).parameters)
    typed = [name for name in taken if name.endswith("_dict") and field(data, name) is None]
    if typed:
        raise InputError(
            f"{type(model).__name__}'s forward takes {' and '.join(typed)}, one tensor for each of "
            f"several node types, and data is a {type(data).__name__}; pass a HeteroData"
        )


# Node types --------------------------------------------------------------------------------------


Relation = tuple[str, str, str]
"""Such as ``("author", "writes", "paper")``."""
EDGE_LISTS = ("edge_index", "adj_t")


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
    for name in reversed(EDGE_LISTS):
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


# Lists of graphs ---------------------------------------------------------------------------------


RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
LARGEST_BATCH = 1 << 19
"""Nodes of one batch: their vectors, 64 wide, fill 128 MB a layer."""


def batches_of(data: Any) -> list[Any] | None:
    """The batches behind a list, a dataset of several graphs or a loader; None: data is none."""
    if isinstance(data, DataLoader):
        return _batches_of_loader(data)
    if isinstance(data, Dataset) and len(data) > 1:
        return list(_batched([data[i] for i in range(len(data))], {}))
    if isinstance(data, list | tuple) and any(isinstance(d, HeteroData) for d in data):
        raise InputError(
            f"data is {len(data)} graphs of several node types, which are exposed one at a time; "
            "pass one of them"
        )
    if isinstance(data, list | tuple) and data and all(isinstance(d, Data) for d in data):
        return list(_batched(data, {}))
    return None


def _batches_of_loader(loader: DataLoader[Any]) -> list[Any]:
    """Its graphs in order, in batches of our own size; of a sampler of your own, its batches."""
    if isinstance(loader.sampler, RANDOM):
        raise InputError(
            "the loader shuffles its graphs, so that an exposure's graphs could not be told; pass "
            "its dataset, or a loader with shuffle=False"
        )
    found = _in_order(loader) if isinstance(loader, GraphLoader) else None
    batches = list(loader) if found is None else found
    if not batches:
        raise InputError("the loader holds no graphs; pass one with at least one batch")
    return batches


def _in_order(loader: GraphLoader) -> list[Any] | None:
    if type(loader.sampler) is not SequentialSampler or loader.batch_sampler is None:
        return None
    items = [loader.dataset[i] for i in range(len(loader.dataset))]
    if not all(isinstance(item, Data) for item in items):
        return None
    words = {name: getattr(loader, name, None) for name in ("follow_batch", "exclude_keys")}
    return list(_batched(items, {name: value for name, value in words.items() if value}))


def _batched(graphs: Sequence[Any], words: dict[str, Any]) -> Iterator[Any]:
    """Graphs in order, as many in a batch as it may have nodes; batches as they are."""
    waiting: list[Data] = []
    size = 0
    for graph in graphs:
        if isinstance(graph, Batch):
            if waiting:
                yield Batch.from_data_list(waiting, **words)
                waiting, size = [], 0
            yield graph
            continue
        waiting.append(graph)
        size += graph.num_nodes or 0
        if size >= LARGEST_BATCH:
            yield Batch.from_data_list(waiting, **words)
            waiting, size = [], 0
    if waiting:
        yield Batch.from_data_list(waiting, **words)


def infer_outputs(data: Any, columns: int, nodes: int) -> Outputs:
    """What the labels of data say that the outputs are; classes where they say nothing.

    Zeros and ones (and −1 for unknown), one column an output and not one of them a row, are labels;
    other real numbers are values.

    Args:
        data: the graph.
        columns: how many outputs the model has a node.
        nodes: N.
    """
    y = field(data, "y")
    if not isinstance(y, Tensor) or y.is_complex() or y.shape[:1] != (nodes,) or not nodes:
        return "classes"
    known = y[~torch.isnan(y)] if y.is_floating_point() else y
    if y.dim() <= 2 and y.numel() == nodes:
        return _inferred_of_one(known, columns)
    if y.dim() != 2 or y.numel() != nodes * columns:
        return "classes"
    flags = bool(((known == 0) | (known == 1)).all())
    if not flags and bool((known == 0).any()) and bool((known == 1).any()):
        flags = bool(((known == 0) | (known == 1) | (known == -1)).all())  # −1: unknown
    if not flags:
        return "values" if y.is_floating_point() else "classes"
    return "classes" if bool((y.sum(1) == 1).all()) else "labels"


def _inferred_of_one(known: Tensor, columns: int) -> Outputs:
    """What one number per node says, of a model with so many outputs."""
    if known.is_floating_point() and bool((known != known.round()).any()):
        return "values"  # no class is called so
    # Whole numbers in a whole type are classes, even of a single logit: one against the rest.
    classes = columns > 1 or not known.is_floating_point()
    return "classes" if classes or bool(((known == 0) | (known == 1)).all()) else "values"
