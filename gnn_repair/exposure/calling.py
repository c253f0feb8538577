"""A model on data: what data says, how the model is called on it, what of its output are logits.

An exposure must speak of the model as its user runs it. A tensor that was dropped in silence
gives another model, so whatever data could fill is filled where there is one candidate, and
asked about where there are several.
"""

from __future__ import annotations

import copy
import inspect
import operator
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.nn import Linear, MessagePassing, Sequential
from torch_geometric.utils import is_sparse, to_edge_index

from gnn_repair.checks import check_edges
from gnn_repair.errors import ExposureRefused, GnnRepairError, InputError, kind_of
from gnn_repair.exposure.pieces import EXACT, ONE_KIND, NodeNames, Outputs
from gnn_repair.exposure.state import caches_preserved, is_finite
from gnn_repair.exposure.value import Exposure

Forward = Callable[[nn.Module, Any], Any]


def field(data: Any, name: str) -> Any:
    """What data holds under a name, its methods excepted."""
    if isinstance(data, Mapping):
        return data.get(name)
    value = getattr(data, name, None)
    if not callable(value) or isinstance(value, Tensor):
        return value
    # A method hides what data holds under its name, as ``items``.
    return data[name] if isinstance(data, BaseData) and name in field_names(data) else None


def field_names(data: Any) -> list[str]:
    """The names under which data holds something, sorted."""
    keys = getattr(data, "keys", None)
    names = keys() if callable(keys) else vars(data) if hasattr(data, "__dict__") else ()
    return sorted(str(name) for name in names)


def count_nodes(data: Any) -> int | None:
    """How many nodes data has; None where it does not say."""
    names = field_names(data)
    if "num_nodes" in names or field(data, "node_types"):
        return None if (number := field(data, "num_nodes")) is None else int(number)
    rows = (field(data, name) for name in ("x", "pos", "z", "batch") if name in names)
    return next((v.shape[0] for v in rows if isinstance(v, Tensor) and v.dim()), None)


def count_classes(y: Any, nodes: int | None) -> int | None:
    """How many classes or labels there are, if nodes have one number each, or a column a label."""
    if isinstance(y, Tensor) and y.dim() == 2 and len(y) == nodes and y.shape[1] > 1:
        return y.shape[1]
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.shape != (nodes,) or not nodes:
        return None
    return int(y.max()) + 1


def refuse_node_types(data: Any, model: nn.Module, called: bool) -> None:
    """A model of several node types needs a graph that has them, unless its user calls it."""
    taken = [] if called else list(inspect.signature(model.forward).parameters)
    typed = [name for name in taken if name.endswith("_dict") and field(data, name) is None]
    if typed:
        raise InputError(
            f"{type(model).__name__}'s forward takes {' and '.join(typed)}, one tensor for each of "
            f"several node types, and data is {kind_of(data)}; pass a HeteroData"
        )


# Node types --------------------------------------------------------------------------------------


Relation = tuple[str, str, str]
"""Such as ``("author", "writes", "paper")``."""


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


def is_typed(data: Any) -> bool:
    """Whether data has node types: a HeteroData, or fields x_dict and edge_index_dict."""
    return isinstance(data, HeteroData) or isinstance(field(data, "edge_index_dict"), Mapping)


def edges_of(data: Any) -> dict[Relation, Any]:
    """The edges of every relation."""
    return (typed_field(data, "adj_t") or {}) | (typed_field(data, "edge_index") or {})


def typed_field(data: Any, name: str) -> dict[Any, Any] | None:
    """What the types (or relations) of data hold under a name, by type; None: nothing."""
    if not isinstance(data, HeteroData):
        value = field(data, f"{name}_dict")
        return dict(value) if isinstance(value, Mapping) else None
    stores = [*data.node_items(), *data.edge_items()]
    values = {kind: store[name] for kind, store in stores if name in store}
    return values or None


def untyped_field(data: Any, name: str) -> Any:
    """What data holds under a name for the whole graph; None: nothing."""
    if isinstance(data, HeteroData):  # which raises where none of its types has the name
        return data._global_store.get(name)
    return field(data, name)


def counts_of(data: Any) -> dict[str, int]:
    """How many nodes each type has: what data says, else as many as its edges name."""
    edges, features = edges_of(data), typed_field(data, "x") or {}
    rows = {kind: int(x.shape[0]) for kind, x in features.items() if isinstance(x, Tensor)}
    kinds = list(data.node_types) if isinstance(data, HeteroData) else list(rows)
    kinds += [end for source, _, recipient in edges for end in (source, recipient)]
    counts = {kind: rows.get(kind) for kind in kinds}
    counts |= {kind: _count(data, kind, edges) for kind in counts if kind not in rows}
    return {kind: count for kind, count in counts.items() if count is not None}


def _count(data: Any, kind: str, edges: Mapping[Relation, Any]) -> int | None:
    """How many nodes a type without features has, if data says so at all."""
    if isinstance(data, HeteroData) and kind in data.node_types:
        with warnings.catch_warnings():  # PyG warns where it has to infer the number
            warnings.simplefilter("ignore")
            number = data[kind].num_nodes
        if number is not None:
            return int(number)
    numbers = untyped_field(data, "num_nodes_dict")
    if isinstance(numbers, Mapping) and kind in numbers:
        return int(numbers[kind])
    ends = [
        end
        for (source, _, recipient), index in edges.items()
        for end, named in zip(endpoints(index), (source, recipient), strict=True)
        if named == kind and end.numel()
    ]
    return max((int(end.max()) + 1 for end in ends), default=None)


def quoted_names(kinds: Any) -> str:
    """Such as ``'paper', 'author'``."""
    return ", ".join(repr(kind) for kind in kinds)


def typed_tensors(data: Any) -> dict[str, Tensor]:
    """Every tensor of a typed graph by name, such as ``paper.x``."""
    if isinstance(data, HeteroData):
        stores = [*data.node_items(), *data.edge_items()]
        named = [(kind, name, v) for kind, store in stores for name, v in store.items()]
    else:
        names = [n.removesuffix("_dict") for n in field_names(data) if n.endswith("_dict")]
        by_name = {name: typed_field(data, name) or {} for name in names}
        named = [(kind, name, v) for name, by in by_name.items() for kind, v in by.items()]
    return {
        f"{kind if isinstance(kind, str) else ' '.join(kind)}.{name}": v
        for kind, name, v in named
        if isinstance(v, Tensor)
    }


def arguments_as_typed_data(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a model was called with, as a graph: dicts by node type and by relation; None: none."""
    dicts = [value for value in arguments.values() if isinstance(value, Mapping) and value]
    edges = next((d for d in dicts if all(isinstance(k, tuple) for k in d)), None)
    features = next((d for d in dicts if all(isinstance(k, str) for k in d)), None)
    if edges is None:
        return None
    return {"x_dict": dict(features or {}), "edge_index_dict": dict(edges)}


def shallow_copy(value: Any) -> Any:
    """A graph or dict that a forward may change unnoticed; its tensors are shared."""
    return copy.copy(value) if isinstance(value, BaseData | dict) else value


def endpoints(index: Any) -> tuple[Tensor, Tensor]:
    """Sources and recipients of a graph's edges, whatever form it has."""
    if is_sparse(index):
        recipient, source = to_edge_index(index)[0]
        return source, recipient
    plain = index.as_subclass(Tensor)
    return plain[0], plain[1]


# Lists of graphs ---------------------------------------------------------------------------------


RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
LARGEST_BATCH = 1 << 19
"""Nodes of one batch: their vectors, 64 wide, fill 128 MB a layer."""
LOADER_OPTIONS = ("follow_batch", "exclude_keys")
"""What a loader of PyG hands on to its batches."""


def listed_graphs(data: Any) -> Any:
    """What a dataset or a generator holds, of one graph the graph; anything else as it is."""
    if isinstance(data, IterableDataset | Iterator):
        data = list(data)
    if isinstance(data, Dataset):
        data = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
        data = data[0] if len(data) == 1 else data
    if isinstance(data, list | tuple) and not data:
        raise InputError("data holds no graphs; pass at least one")
    return data


def batches_of(data: Any) -> list[Any] | None:
    """The batches behind a list of graphs or a loader; None: data is none."""
    if isinstance(data, DataLoader):
        return _batches_of_loader(data)
    if isinstance(data, list | tuple) and data and all(isinstance(d, Data) for d in data):
        return _batched(data, {})
    return None


def _batches_of_loader(loader: DataLoader[Any]) -> list[Any]:
    """Its graphs in order, in batches of our own size; of a sampler of your own, its batches."""
    if isinstance(loader.sampler, RANDOM):
        raise InputError(
            "the loader shuffles its graphs, so that an exposure's graphs could not be told; pass "
            "its dataset, or a loader with shuffle=False"
        )
    batches = loader.batch_sampler  # one of your own leaves the sampler as it is by default
    in_order = type(loader.sampler) is SequentialSampler and type(batches) is BatchSampler
    if isinstance(loader, GraphLoader) and in_order and not loader.drop_last:
        graphs = [loader.dataset[i] for i in range(len(loader.dataset))]
        if graphs and all(isinstance(graph, Data) for graph in graphs):
            options = {name: getattr(loader, name, None) for name in LOADER_OPTIONS}
            return _batched(graphs, {name: value for name, value in options.items() if value})
    if not (listed := list(loader)):
        raise InputError("the loader holds no graphs; pass one with at least one batch")
    return listed


def _batched(graphs: Sequence[Data], options: dict[str, Any]) -> list[Any]:
    """Graphs in order, as many in a batch as it may have nodes; batches as they are."""
    groups: list[list[Data]] = []
    names, room = field_names(graphs[0]) if graphs else [], 0
    for number, graph in enumerate(graphs):
        lacking = [name for name in names if name not in field_names(graph)]
        if lacking:
            raise InputError(
                f"graph {number} has no {lacking[0]}, which graph 0 has; give it to all or to none"
            )
        whole = isinstance(graph, Batch)
        if whole or room <= 0:
            groups.append([])
            room = LARGEST_BATCH
        groups[-1].append(graph)
        room = 0 if whole else room - (graph.num_nodes or 0)
    return [
        group[0] if isinstance(group[0], Batch) else Batch.from_data_list(group, **options)
        for group in groups
    ]


# Arguments by name -------------------------------------------------------------------------------


WHOLE = ("data", "batch", "graph", "g", "batch_data", "sample")
HOLDERS = ("g", "graph", "data")
"""Names of a parameter that may stand for data itself beside one for the features."""
FEATURES = ("x", "X", "features", "feature", "feat", "feats", "h", "inputs", "input", "in_feat",
            "node_features", "node_feat", "node_feats", "node_attr", "fea", "xs")  # fmt: skip
ADJACENCIES = ("edge_index", "adj_t", "adj")
GRAPHS = (*ADJACENCIES, "edges", "edge_list", "edge_indices", "ei", "graph", "adjacency", "A",
          "adj_matrix", "a_hat", "support", "laplacian")  # fmt: skip
LAYERWISE = ("adjs", "adj_list", "edge_indexes", "blocks")
WEIGHTS = ("edge_weight", "edge_weights", "weight", "weights", "w", "ew", "e_w", "norm",
           "edge_norm", "edge_value", "edge_values", "edge_scores")  # fmt: skip
TYPES = ("edge_type", "edge_types", "rel", "rels", "relation", "relations", "rel_type", "etype",
         "edge_rel")  # fmt: skip
VECTORS = ("edge_attr", "edge_attrs", "edge_attribute", "edge_attributes", "edge_feature",
           "edge_features", "edge_feat", "edge_feats", "e_attr", "edge_emb", "e")  # fmt: skip
BATCHES = ("batch", "batch_index", "batch_idx", "batch_vec", "batch_vector", "graph_ids",
           "graph_index", "graph_idx", "node2graph")  # fmt: skip
"""The graph of every node."""
LABELS = ("y", "label", "labels", "target", "targets", "train_mask", "val_mask", "test_mask")
"""A default here may be meant: a model that is shown labels is another model."""

EDGE_LIKE = re.compile(r"edge|weight|attr|feat|norm|rel|type|^w$|^ew$|^e$")
NOT_EDGE_LIKE = re.compile(r"label|mask|_id$|^e_id|index|time|year|num_")


@dataclass(frozen=True)
class Argument:
    """One argument: its value, and where it is from in words."""

    value: Any
    source: str
    """Such as ``data.edge_attr``."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model's forward."""

    name: str
    required: bool


CallPlan = dict[str, Argument]
"""What a model is called with, by parameter, in the order of the signature."""


def named_parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a function that take a single value each; of an unreadable one none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [Parameter(p.name, p.default is p.empty) for p in parameters if p.kind not in several]


def parameters_of(model: nn.Module) -> list[Parameter]:
    """The parameters of the model's forward."""
    if isinstance(model, Sequential):
        return [Parameter(name, True) for name in model.signature.param_dict]
    named, every = named_parameters(model.forward), inspect.signature(model.forward).parameters
    anything = [p.name for p in every.values() if p.kind is p.VAR_POSITIONAL]
    if not anything or named:
        return named
    if hasattr(model, "encode") and hasattr(model, "decode"):
        raise InputError(
            "the model has encode and decode, as models of links have; use expose_links, whose "
            "result diagnose takes"
        )
    raise InputError(
        f"the model's forward takes *{anything[0]}, which says not what to pass; "
        "pass forward=lambda model, data: ..."
    )


def is_adjacency(value: Any) -> bool:
    """Whether a graph is given as a matrix, which carries its weights itself."""
    if not isinstance(value, Tensor):
        return hasattr(value, "sparse_sizes") or hasattr(value, "coo")
    return value.layout != torch.strided or (value.is_floating_point() and value.dim() == 2)


BY_FORWARD = "given by forward="
"""How a model was called, where the user said how."""
ASK = "pass forward=lambda model, data: ... to say how the model is called"
SAME_RUN = 1e-5
"""Logits closer than this beside the largest differ by rounding: the runs are the same model's."""
RunOutputs = list[Tensor] | None
"""The floating tensors that a run gave; None: it raised."""


def choose_arguments(
    model: nn.Module, data: Any, node_type: str | None = None, preset: CallPlan | None = None
) -> tuple[Callable[[], dict[str, Any]], str]:
    """What to call the model's forward with, made anew for every run, and that call in words.

    Such as ``forward(x, edge_index, edge_weight=data.edge_attr)``. Models write into what they get.

    Args:
        model: the model.
        data: where arguments are looked for.
        node_type: of several, the one that is classified.
        preset: what the caller has values for.
    """
    if is_typed(data):
        plan, remark = _TypedFinder(data, node_type, preset or {}).plan(model), ""
    else:
        finder = _ArgumentFinder(model, data, preset or {})
        finder.settle()
        plan, remark = finder.plan, finder.remark()
    usual = "{}_dict" if is_typed(data) else "data.{}"
    parts = [
        name if argument.source in (name, usual.format(name)) else f"{name}={argument.source}"
        for name, argument in plan.items()
    ]

    def fresh() -> dict[str, Any]:
        return {name: shallow_copy(argument.value) for name, argument in plan.items()}

    return fresh, f"forward({', '.join(parts)})" + remark


class _ArgumentFinder:
    """Looks for the arguments of a model's forward in data, by the names of its parameters.

    What a name makes certain is settled at once; ``settle`` then tries what leaves doubt by running
    the model, and raises where two ways give other logits.
    """

    def __init__(self, model: nn.Module, data: Any, preset: CallPlan) -> None:
        self.model, self.data = model, data
        self.parameters = parameters_of(model)
        self.names = [parameter.name for parameter in self.parameters]
        self.graphs = [name for name in ADJACENCIES if field(data, name) is not None]
        edges = field(data, "edge_index")
        flat = isinstance(edges, Tensor) and edges.dim() == 2 and edges.shape[0] == 2
        self.num_edges = int(edges.shape[1]) if flat else None
        self.plan: CallPlan = dict(preset)
        """What is certain: names that data has, features, graph, and data itself."""
        self.holder = None if (whole := self._takes_data()) else self._holder()
        """What may be given data itself, or its graph."""
        if whole or self.holder:
            self.plan[self.holder or self.names[0]] = Argument(data, "data")
        for place, parameter in enumerate(self.parameters):
            argument = self.plan.get(parameter.name) or self._certain(place, parameter)
            if argument is not None:
                self.plan[parameter.name] = argument

    def _takes_data(self) -> bool:
        if not self.names:
            return False
        first, needed = self.names[0], [p.name for p in self.parameters if p.required]
        alone = needed == [first] or self.names == [first]
        is_part = field(self.data, first) is not None or first in (*FEATURES, *GRAPHS)
        return first in ("data", "batch") or (alone and (first in WHOLE or not is_part))

    def _holder(self) -> str | None:
        free = [name for name in self.names if name in HOLDERS and field(self.data, name) is None]
        fed = any(name in FEATURES for name in self.names)
        return free[0] if len(free) == 1 and fed and not self._has_graph(free[0]) else None

    def _certain(self, place: int, parameter: Parameter) -> Argument | None:
        name = parameter.name
        if name in LABELS and not parameter.required:
            return None
        namesake = self._of_field(name)
        if namesake is not None:
            return namesake
        if name in LAYERWISE:
            return self._layers()
        second = place == 1 and parameter.required and not self._has_graph(name)
        if name in FEATURES:
            return self._of_field("x")
        if name in GRAPHS or second:
            return self._of_field(self.graphs[0]) if self.graphs else None
        if name in BATCHES:
            return self._of_field("batch")
        if place == 0 and parameter.required and "x" not in self.names:
            return self._of_field("x")
        return None

    def _has_graph(self, besides: str) -> bool:
        return any(name in (*GRAPHS, *LAYERWISE) for name in self.names if name != besides)

    def _of_field(self, name: str) -> Argument | None:
        value = field(self.data, name)
        return None if value is None else Argument(value, f"data.{name}")

    def _layers(self) -> Argument | None:
        """The whole graph at every layer, in the form a neighbour sampler hands it out."""
        if self.num_edges is None:
            return None
        size = int(field(self.data, "num_nodes") or field(self.data, "x").shape[0])
        convs = sum(isinstance(module, MessagePassing) for module in self.model.modules())
        layer = (field(self.data, "edge_index"), None, (size, size))
        return Argument([layer] * convs, f"the whole graph at each of {convs} layers")

    # Where names leave doubt --------------------------------------------------------------------

    def settle(self) -> None:
        """Fill what is open, and ask about what could be meant otherwise."""
        open_ones = [p for p in self.parameters if p.name not in self.plan]
        for parameter in sorted(open_ones, key=lambda p: not p.required):
            candidates = self._candidates(parameter.name)
            if parameter.required:
                self._fill_required(parameter.name, candidates)
            elif candidates:
                self._fill_optional(parameter.name, candidates)
        self._ask_about_graphs()
        self._ask_about_labels()
        order = {name: place for place, name in enumerate(self.names)}
        self.plan = dict(sorted(self.plan.items(), key=lambda item: order[item[0]]))

    def remark(self) -> str:
        """Which arguments for edges stayed at their defaults though data has values for edges."""
        if not any(self._candidates(kind) for kind in ("edge_weight", "edge_attr")):
            return ""
        kinds = (*WEIGHTS, *TYPES, *VECTORS)
        left = [n for n in self.names if n in kinds and n not in self.plan]
        return f"; {', '.join(left)} left at default" if left else ""

    def _candidates(self, name: str) -> list[Argument]:
        """What of the data's edge-level tensors could fill a parameter of this name."""
        graphs = [self.plan[n].value for n in self.names if n in GRAPHS and n in self.plan]
        kind = next((k for k in (WEIGHTS, TYPES, VECTORS) if name in k), None)
        if self.num_edges is None or kind is None or any(map(is_adjacency, graphs[:1])):
            return []
        fields = [(key, field(self.data, key)) for key in field_names(self.data)]
        fitting = [(k, v) for k, v in fields if self._edge_like(k, v) and _fits(k, v, kind)]
        return [
            # A column would be broadcast against a row of degrees to a square matrix.
            Argument(value.squeeze(1), f"data.{key}.squeeze(1)")
            if kind is WEIGHTS and value.dim() == 2
            else Argument(value, f"data.{key}")
            for key, value in fitting
        ]

    def _edge_like(self, key: str, value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.layout == torch.strided
            and value.dim() >= 1
            and value.shape[0] == self.num_edges
            and value.dtype != torch.bool
            and EDGE_LIKE.search(key) is not None
            and NOT_EDGE_LIKE.search(key) is None
        )

    def _fill_required(self, name: str, candidates: Sequence[Argument]) -> None:
        if not candidates:
            kept = ", ".join(field_names(self.data)) or "nothing"
            raise InputError(
                f"the model's forward needs `{name}`, which data does not have (it has {kept}); "
                "add it to data or pass forward=lambda model, data: ..."
            )
        if len(candidates) > 1:
            raise InputError(f"the model's forward needs `{name}`, {_could(candidates)}; {ASK}")
        self.plan[name] = candidates[0]

    def _fill_optional(self, name: str, candidates: Sequence[Argument]) -> None:
        passed = {_field_of(other) for other in self.plan.values()}
        if len(candidates) == 1 and _field_of(candidates[0]) not in passed:
            if self._outcome(name, candidates[0]) is not None:
                self.plan[name] = candidates[0]
            return
        base = self._outcome()
        tried = [(option, self._outcome(name, option)) for option in candidates]
        telling = [(option, out) for option, out in tried if _rivals(out, base)]
        if not telling or (len(candidates) == 1 and self._matters(candidates[0], base)):
            return
        if any(_rivals(out, telling[0][1]) for _, out in telling):
            options = [option for option, _ in telling]
            raise InputError(f"the model's forward takes `{name}`, {_could(options)}; {ASK}")
        self.plan[name] = telling[0][0]

    def _matters(self, argument: Argument, base: RunOutputs) -> bool:
        """Whether the logits change when this is passed where its own name asks for it."""
        same = [n for n, other in self.plan.items() if _field_of(other) == _field_of(argument)]
        return _rivals(self._outcome(without=same), base)

    def _ask_about_graphs(self) -> None:
        for name, chosen in list(self.plan.items()):
            renamed = name in GRAPHS and chosen.source != f"data.{name}"
            if name != self.holder and not (renamed and len(self.graphs) > 1):
                continue
            options = [Argument(field(self.data, other), f"data.{other}") for other in self.graphs]
            options = [chosen, *options] if name == self.holder else options
            runs = [(option, self._outcome(name, option)) for option in options]
            runs = [(option, out) for option, out in runs if out is not None]
            if any(_rivals(out, runs[0][1]) for _, out in runs):
                could = _could([option for option, _ in runs])
                raise InputError(f"the model's forward takes `{name}`, {could}; {ASK}")
            self.plan[name] = runs[0][0] if runs else chosen

    def _ask_about_labels(self) -> None:
        for name in (n for n in self.names if n in LABELS and n not in self.plan):
            labels = self._of_field(name)
            if labels is not None and _rivals(self._outcome(name, labels), self._outcome()):
                raise InputError(
                    f"the model's forward takes `{name}`, which data has and which changes the "
                    f"logits; {ASK}"
                )

    def _outcome(
        self, name: str = "", option: Argument | None = None, without: Sequence[str] = ()
    ) -> RunOutputs:
        """What the plan gives, with another argument or without some."""
        plan = self.plan if option is None else {**self.plan, name: option}
        try:
            with caches_preserved(self.model):
                taken = {n: each for n, each in plan.items() if n not in without}
                out = self.model(**{n: shallow_copy(each.value) for n, each in taken.items()})
        except Exception:
            return None  # not how anybody runs this model
        return [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.is_floating_point()]


def _fits(key: str, value: Tensor, kind: tuple[str, ...]) -> bool:
    single = value.numel() == value.shape[0]
    if kind is TYPES:
        return single and not value.is_floating_point()
    if kind is WEIGHTS:
        return single and "type" not in key and "rel" not in key
    return value.is_floating_point() or key in VECTORS


def _field_of(argument: Argument) -> str:
    """``data.edge_attr`` of ``data.edge_attr.squeeze(1)``."""
    return ".".join(argument.source.split(".")[:2])


def _could(options: Sequence[Argument]) -> str:
    *most, last = [option.source for option in options]
    text = f"{', '.join(most)} or {last}" if most else last
    return f"which {text} could fill"


def _rivals(left: RunOutputs, right: RunOutputs) -> bool:
    """Whether two runs gave outputs of the same shapes that differ in value."""
    if left is None or right is None or [t.shape for t in left] != [t.shape for t in right]:
        return False
    return any(not agree(one, other) for one, other in zip(left, right, strict=True))


def agree(left: Tensor, right: Tensor) -> bool:
    """Whether two outputs of one shape differ by rounding alone."""
    if left.numel() == 0:
        return True
    size = float(torch.maximum(left.abs().max(), right.abs().max()))
    return bool(torch.allclose(left, right, rtol=SAME_RUN, atol=SAME_RUN * size, equal_nan=True))


# Node types --------------------------------------------------------------------------------------


CATEGORY = ("node_type", "target_type", "target_node_type", "target_ntype", "ntype", "out_type",
            "output_type", "predict_type", "category", "target")  # fmt: skip
"""Parameters that say which type of node is classified."""
EDGE_FIELDS = ("edge_weight", "edge_attr", "edge_type")


class _TypedFinder:
    """Looks for the arguments of a model's forward in a graph of several node types."""

    def __init__(self, data: Any, node_type: str | None, preset: CallPlan) -> None:
        self.data, self.node_type, self.preset = data, node_type, preset
        self.parameters: list[Parameter] = []

    def plan(self, model: nn.Module) -> CallPlan:
        """What is preset, and what data has for the other parameters."""
        signature = parameters_of(model)
        self.parameters = [p for p in signature if p.name not in self.preset]
        arguments = {p.name: self.find(place, p) for place, p in enumerate(self.parameters)}
        missing = [p.name for p in self.parameters if p.required and arguments[p.name] is None]
        if missing:
            raise InputError(
                f"{type(model).__name__}'s forward needs {missing[0]!r}, which data does not have "
                f"for its types of nodes or edges; {ASK}"
            )
        plan = {p.name: self.preset.get(p.name) or arguments[p.name] for p in signature}
        return {name: argument for name, argument in plan.items() if argument is not None}

    def find(self, place: int, parameter: Parameter) -> Argument | None:
        """The argument of one parameter; None: data has nothing for it."""
        name, needed = parameter.name, parameter.required
        plain = name.removesuffix("_dict")
        if plain in LABELS and not needed:
            return None
        if place == 0 and self._is_whole(plain):
            return Argument(self.data, "data")
        if plain in CATEGORY and self.node_type is not None:
            return Argument(self.node_type, repr(self.node_type))
        if plain == "metadata":
            return Argument(self.data.metadata(), "data.metadata()")
        if plain in GRAPHS or plain in FEATURES:
            return self._of_role(plain)
        by_type = typed_field(self.data, plain)
        if by_type is not None:
            return Argument(by_type, f"{plain}_dict")
        of_graph = untyped_field(self.data, name)
        if of_graph is not None:
            return Argument(of_graph, name)
        if plain in (*WEIGHTS, *VECTORS, *TYPES):
            return self._of_edges()
        return self._by_place(place) if needed else None

    def _is_whole(self, name: str) -> bool:
        others = [p for p in self.parameters[1:] if p.required and p.name not in CATEGORY]
        return name in ("data", "batch", "hetero_data") or (name in WHOLE and not others)

    def _of_role(self, name: str) -> Argument | None:
        if name in FEATURES:
            features = typed_field(self.data, name) or typed_field(self.data, "x")
            return None if features is None else Argument(features, "x_dict")
        edges = typed_field(self.data, name) or edges_of(self.data)
        held = "adj_t" if typed_field(self.data, "edge_index") is None else "edge_index"
        return Argument(edges, f"{held}_dict")

    def _of_edges(self) -> Argument | None:
        fields = [(name, typed_field(self.data, name)) for name in EDGE_FIELDS]
        options = [Argument(v, f"{name}_dict") for name, v in fields if v is not None]
        return options[0] if len(options) == 1 else None

    def _by_place(self, place: int) -> Argument | None:
        """Of the first two the role that no other has by its name: features, then edges."""
        names = {parameter.name.removesuffix("_dict") for parameter in self.parameters}
        roles = [("x", FEATURES), ("edge_index", GRAPHS)]
        free = [role for role, synonyms in roles if not names & set(synonyms)]
        if place > 1 or not free:
            return None
        return self._of_role(free[min(place, len(free) - 1)])


# Calls -------------------------------------------------------------------------------------------


@contextmanager
def explaining_misfits(model: nn.Module, data: Any) -> Iterator[None]:
    """Where a run raises and data shows why, say this instead."""
    try:
        yield
    except InputError as error:
        raised = error.__cause__
        if raised is not None and (reason := _misfit(model, data, raised)):
            raise InputError(reason) from raised
        raise


def _misfit(model: nn.Module, data: Any, raised: BaseException) -> str | None:
    """What of data does not fit the model that raised this."""
    edges, x, nodes = field(data, "edge_index"), field(data, "x"), count_nodes(data)
    strided = isinstance(edges, Tensor) and edges.layout == torch.strided
    if strided and nodes and edges.shape != (nodes, nodes):
        try:
            check_edges(edges, nodes)
        except InputError as error:
            return str(error)
    weights = next((p for p in model.parameters() if p.is_floating_point()), None)
    for name in field_names(data):
        value = field(data, name)
        if isinstance(value, np.ndarray) and name not in LABELS:
            return f"data.{name} is a NumPy array; pass data.{name} = torch.from_numpy(data.{name})"
        if weights is None or not isinstance(value, Tensor) or name in LABELS:
            continue
        sentence = f"data.{name} is {{}} and the model's weights are {{}}; "
        if "device" in str(raised) and value.device != weights.device:
            places = sentence.format(f"on {value.device}", f"on {weights.device}")
            return places + "bring both to one device, as model.to(...) and data.to(...) do"
        numbers = value.is_floating_point() or name == "x"
        if (
            numbers
            and re.search("dtype|scalar type|desired output type", str(raised))
            and value.dtype != weights.dtype
        ):
            kinds = sentence.format(value.dtype, weights.dtype)
            return (
                f"{kinds}pass data.{name} = data.{name}.to({weights.dtype}), or convert the model"
            )
    for frame, _ in traceback.walk_tb(raised.__traceback__):
        variables = frame.f_locals
        layer, inputs = variables.get("self"), variables.get("input", variables.get("x"))
        if not isinstance(layer, nn.Linear | Linear) or not isinstance(inputs, Tensor):
            continue
        asked, width = layer.weight.shape[1], inputs.shape[-1]
        if isinstance(x, Tensor) and asked != width == x.shape[-1]:
            title = next((name for name, one in model.named_modules() if one is layer), "a layer")
            return (
                f"data.x has {width} features per node and `{title}` takes {asked}; pass the "
                "features that the model was trained on"
            )
    return None


@dataclass(frozen=True)
class Invocation:
    """One way of running a model."""

    run: Callable[[], Any]
    text: str
    """Such as ``forward(x, edge_index)``."""
    advice: str = "pass forward=lambda model, data: ... to call it as you do"

    def __call__(self) -> Any:
        """Run the model; whatever it raises is told with the call that raised it."""
        try:
            return self.run()
        except (GnnRepairError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or _raising_line(error)
            raise InputError(
                f"the model, called as {self.text}, raised {type(error).__name__}: {reason}; "
                + self.advice
            ) from error


def one_graph(data: Any, model: nn.Module, forward: Forward | None) -> Any:
    """The graph itself, or None for models that hold their own."""
    if forward is not None and not callable(forward):
        raise InputError(f"forward is {kind_of(forward)}; give a function of the model and data")
    if data is None and forward is None and parameters_of(model):
        raise InputError(
            "data is missing; call expose(model, data) with the graph the model runs on"
        )
    if isinstance(data, list | tuple) and all(isinstance(one, BaseData) for one in data):
        raise InputError(f"data is {len(data)} graphs, which are exposed one at a time; pass one")
    unreadable = isinstance(data, Tensor | str | bytes | int | float | tuple | list | type)
    if forward is None and unreadable and parameters_of(model):
        raise InputError(
            f"data is {kind_of(data)}; pass a PyG Data (or any object with x and "
            "edge_index), or forward=lambda model, data: ..."
        )
    return data


def invocation(
    model: nn.Module, data: Any, forward: Forward | None, node_type: str | None = None
) -> Invocation:
    """How the model is run on the data."""
    if forward is not None:
        advice = "mend what forward= does with the model and data"
        return Invocation(lambda: forward(model, shallow_copy(data)), BY_FORWARD, advice)
    fresh, text = choose_arguments(model, data, node_type)
    names = _unpacked(model, *fresh()) if len(fresh()) == 1 else ()
    fields = ("edge_index", "x") if _is_graph(names) else ("x", "edge_index")
    pair = tuple(field(data, name) for name in fields)
    if names and all(isinstance(tensor, Tensor) for tensor in pair):
        return Invocation(lambda: model(pair), f"forward(({', '.join(fields)}))")
    return Invocation(lambda: model(**fresh()), text)


def _unpacked(model: nn.Module, parameter: str) -> tuple[str, ...]:
    """The two names that forward unpacks its only argument into, as in ``x, edges = data``."""
    try:
        source = inspect.getsource(type(model).forward)
    except (OSError, TypeError):
        return ()  # written where no source is kept
    line = rf"^\s*\(?(\w+)\s*,\s*(\w+)\)?\s*=\s*{re.escape(parameter)}\s*(?:#.*)?$"
    match = re.search(line, source, re.MULTILINE)
    return match.groups() if match else ()


def _is_graph(names: tuple[str, ...]) -> bool:
    return any(word in name for name in names[:1] for word in ("edge", "adj", "graph"))


EXPECTED_SLACK = 100.0
"""The user's logits may come from another device or batch, and so round this much more."""


def check_expected(
    expected: Any, logits: Tensor, binary: bool, called: str, noun: str = "node"
) -> None:
    """Compare with what the user says the model gives: logits [N, C] or predictions [N]."""
    theirs = _as_tensor(expected).detach().to(logits.device)
    if logits.shape[1] == 1 and theirs.numel() == logits.shape[0]:  # one value or label a row
        theirs = theirs.reshape(-1, 1)
    elif binary and theirs.is_floating_point() and theirs.numel() == logits.shape[0]:
        theirs = torch.stack([torch.zeros_like(theirs.view(-1)), theirs.view(-1)], dim=1)
    if theirs.is_floating_point() and theirs.shape == logits.shape:
        precision = max(EXACT[logits.dtype], 4 * torch.finfo(theirs.dtype).eps)
        gap = (theirs.double() - logits.double()).abs().amax(1)
        size = torch.maximum(theirs.double().abs(), logits.double().abs()).amax(1)
        # Where a row is next to nothing beside the others, roundings are those of the others; what
        # is no number excuses none.
        size = size.nan_to_num(nan=0.0, posinf=0.0)
        wrong = ~(gap <= EXPECTED_SLACK * precision * size.clamp(min=float(size.mean())))
        what = "gives other logits than expected="
    elif not theirs.is_floating_point() and theirs.shape == logits.shape[:1]:
        wrong = theirs.long() != logits.argmax(1)
        what = "predicts otherwise than expected="
    else:
        raise InputError(
            f"expected has shape {list(theirs.shape)} and holds {theirs.dtype}; pass logits "
            f"{list(logits.shape)} or predicted classes [{logits.shape[0]}]"
        )
    if count := int(wrong.sum()):
        first = int(wrong.nonzero()[0])
        raise InputError(
            f"the model called as {called} {what} at {count} of {logits.shape[0]} {noun}s "
            f"(the first is {noun} {first}); pass forward=lambda model, data: ... to call it "
            "as you do"
        )


def _as_tensor(value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"expected is {kind_of(value)}; pass the model's logits or predictions"
        ) from None


def _raising_line(error: BaseException) -> str:
    """The line of code that raised, for errors that say nothing themselves, as assertions do."""
    return traceback.extract_tb(error.__traceback__)[-1].line or ""


# Node types --------------------------------------------------------------------------------------


def _of_nodes(output: Any, data: Any, counts: Mapping[str, int]) -> Any:
    """The output, unless it has a row for every graph of a batch."""
    graphs = getattr(data, "num_graphs", None) if isinstance(data, Batch) else None
    first = _first_tensor(output) if _by_type(output, counts) is None else None
    rows = len(first) if first is not None and first.dim() else None
    if rows is not None and rows == graphs and rows not in counts.values():
        raise ExposureRefused(
            f"the model gives a row for each of the {graphs} graphs of a batch with several node "
            "types, and only graphs of one node type are exposed as a whole; bring all types to "
            "one width and classify data.to_homogeneous()"
        )
    return output


def _labelled(data: Any, counts: Mapping[str, int]) -> list[str]:
    """The types with a label for every node."""
    labels = (typed_field(data, "y") or {}).items()
    return [kind for kind, y in labels if isinstance(y, Tensor) and kind in counts]


def _only(kinds: Sequence[str]) -> str | None:
    return kinds[0] if len(kinds) == 1 else None


def _by_output(output: Any, counts: Mapping[str, int], labelled: Sequence[str]) -> str:
    """The type that a model classifies, by what it returns."""
    by_type = _by_type(output, counts)
    if by_type is not None:
        kinds = [kind for kind, value in by_type.items() if isinstance(value, Tensor)]
    else:
        first = _first_tensor(output)
        rows = first.shape[0] if first is not None and first.dim() else -1
        kinds = [kind for kind, count in counts.items() if count == rows]
    both = [kind for kind in kinds if kind in labelled]
    chosen = _only(both) or _only(kinds)
    if chosen is None:
        choices = both or kinds or list(counts)
        raise InputError(
            f"data has {len(counts)} types of nodes, and {quoted_names(choices)} could be the one "
            f"that is classified; say which with node_type={choices[0]!r}"
        )
    return chosen


def _parts(output: Any) -> Sequence[Any]:
    return output if isinstance(output, tuple | list) else (output,)


def _by_type(output: Any, counts: Mapping[str, int]) -> Mapping[str, Any] | None:
    """What a model returns by node type, if it does."""
    dicts = [part for part in _parts(output) if isinstance(part, Mapping)]
    return next((by for by in dicts if any(kind in counts for kind in by)), None)


def _first_tensor(output: Any) -> Tensor | None:
    parts = output.values() if isinstance(output, Mapping) else _parts(output)
    return next((part for part in parts if isinstance(part, Tensor)), None)


def _of_type(output: Any, node_type: str, counts: Mapping[str, int]) -> Any:
    """What a model's output says of one type; what is not by type is left as it is."""
    by_type = _by_type(output, counts)
    if by_type is None:
        return output
    if isinstance(output, tuple | list):
        outputs = [_rows_of_type(part, node_type, counts[node_type]) for part in output]
        if any(rows is not None for rows in outputs):
            return outputs
    if by_type.get(node_type) is None:
        spoken = [kind for kind, value in by_type.items() if value is not None]
        raise InputError(
            f"the model returns nothing for {node_type!r}, only for {quoted_names(spoken)}; choose "
            "another node_type=, or pass data in which messages reach that type"
        )
    return by_type[node_type]


def _rows_of_type(part: Any, node_type: str, count: int) -> Tensor | None:
    """What one part of an output says of a type's nodes, a row each."""
    value = part.get(node_type) if isinstance(part, Mapping) else part
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.dim():
        return None
    return value if len(value) == count else None


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

    def __post_init__(self) -> None:
        if self.nodes == 0:
            noun = self.names.recipient
            raise InputError(f"data has no {noun} to classify; pass a graph with at least one")

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


def model_on_data(
    model: nn.Module,
    data: Any,
    forward: Forward | None,
    node_type: str | None,
    classes: int | None = None,
) -> ModelOnData:
    """The model on data, with the node type that is classified where there are several.

    ``classes`` says how many there are where data has no labels to tell.
    """
    if is_typed(data):
        return _on_typed(model, data, forward, node_type, classes)
    if node_type is not None:
        raise InputError(
            f"node_type is {node_type!r:.60}, but data is {kind_of(data)} without types "
            "of nodes; leave it out, or pass a HeteroData"
        )
    refuse_node_types(data, model, forward is not None)
    nodes = count_nodes(data)
    call = invocation(model, data, forward)
    return ModelOnData(model, data, call, nodes, count_classes(field(data, "y"), nodes) or classes)


def _on_typed(
    model: nn.Module,
    data: Any,
    forward: Forward | None,
    node_type: str | None,
    classes: int | None,
) -> ModelOnData:
    counts = counts_of(data)
    if node_type is not None and (not isinstance(node_type, str) or node_type not in counts):
        raise InputError(f"node_type is {node_type!r:.60}; choose one of {quoted_names(counts)}")
    labelled = _labelled(data, counts)
    likely = node_type or _only(labelled)
    plain = invocation(model, data, forward, likely)
    whole = replace(plain, run=lambda: _of_nodes(plain(), data, counts))
    chosen = likely or _by_output(whole(), counts, labelled)
    classes = count_classes((typed_field(data, "y") or {}).get(chosen), counts[chosen]) or classes
    call = replace(
        whole,
        run=lambda: _of_type(whole(), chosen, counts),
        text=f"{whole.text}; logits of {chosen!r}",
    )
    graph = TypedGraph(counts, edges_of(data), chosen)
    return ModelOnData(model, data, call, counts[chosen], classes, graph)


def batch_if_required(data: Any, model: nn.Module) -> Any:
    """A graph alone as a batch of one, where the model's forward asks for a batch vector."""
    asked = any(p.name in BATCHES and p.required for p in parameters_of(model)[1:])
    alone = batch_of_one(data) if asked else None
    return data if alone is None else alone


def batch_of_one(data: Any) -> Any | None:
    """A graph alone as a batch of one; None where it is no graph, or a batch already."""
    if not isinstance(data, Data) or isinstance(data, Batch) or data.get("batch") is not None:
        return None
    return Batch.from_data_list([data])


def name_sampled_nodes(exposure: Exposure, data: Any) -> Exposure:
    """The exposure with the graph's own node numbers where data is a sampled subgraph.

    ``data.n_id`` names the nodes. Where there is ``data.batch_size`` as well, as in the batches of
    a NeighborLoader, the first so many nodes are those that were asked for: only these have their
    neighbours about them, and only these are recipients.
    """
    names = field_names(data)
    if "n_id" not in names or exposure.graph_starts is not None or exposure.names.typed:
        return exposure
    n_id, seeds = field(data, "n_id"), field(data, "batch_size") if "batch_size" in names else None
    if not _are_numbers(n_id, exposure.num_nodes):
        if seeds is None:
            return exposure  # another thing by that name
        raise InputError(
            f"data.n_id holds no whole number for each of the {exposure.num_nodes} nodes, beside "
            "batch_size; give every node's number in the graph, or leave both out"
        )
    numbered = replace(exposure, n_id=n_id.long().to(exposure.recipients.device))
    if seeds is None:
        return numbered
    count = _seeds(seeds, exposure.num_nodes)
    return numbered.restrict(torch.arange(count, device=exposure.recipients.device))


def _are_numbers(n_id: Any, nodes: int) -> bool:
    if not isinstance(n_id, Tensor) or n_id.shape != (nodes,):
        return False
    return not (n_id.is_floating_point() or n_id.is_complex() or n_id.dtype == torch.bool)


def _seeds(batch_size: Any, nodes: int) -> int:
    """How many nodes were asked for; raises where that cannot be, so that nobody is taken for one
    who lacks neighbours."""
    try:
        count = -1 if isinstance(batch_size, bool) else operator.index(batch_size)
    except (TypeError, ValueError, RuntimeError):
        count = -1
    if not 0 < count <= nodes:
        raise InputError(
            f"data.batch_size is {batch_size!r:.60} beside n_id; give how many of the {nodes} "
            "nodes, the first of them, were asked for, or leave it out if all were"
        )
    return count


# What of the output are logits -------------------------------------------------------------------


LOGITS = ("logits", "logit", "y_pred", "scores")
"""Names of an output that say what it is."""
TWO_CLASSES = "as the two classes (0, z)"
"""Said of a model's call where it gives one logit per row."""
NAMED = "pass forward=lambda model, data: ... that returns the logits"


@dataclass(frozen=True)
class Reading:
    """Where in a model's output the logits are, and in which form."""

    place: Any = None
    """The key of the output in a tuple or dict; None: the output itself."""
    binary: bool = False
    """Whether one logit z per node stands for the two classes (0, z), of which softmax gives the
    sigmoid of z."""
    outputs: Outputs = "classes"
    single: bool = False
    """Whether the numbers of the only row come without an axis for rows."""
    text: str = ""
    """What was read, in words that follow the call."""

    def __call__(self, output: Any) -> Tensor:
        """The logits [N, C], of two classes z alone."""
        tensor: Tensor = output if self.place is None else _fields(output)[self.place]
        if self.single:
            return tensor.reshape(1, -1)
        return tensor.unsqueeze(1) if tensor.dim() == 1 else tensor


def count_output_graphs(data: Any, output: Any, nodes: int | None) -> int | None:
    """How many graphs an output has rows for; None where it speaks of nodes.

    Where it speaks of both (logits of graphs beside embeddings of nodes), labels decide, and
    without labels the graphs that data says it has.
    """
    rows = [
        len(value)
        for _, value in tensors_of(output)
        if value.is_floating_point() and value.dim() in (1, 2)
    ]
    graphs, y = _graphs_of(data), field(data, "y")
    labelled = len(y) if isinstance(y, Tensor) and y.dim() else graphs
    if nodes is None:
        return None
    if isinstance(output, Tensor) and output.dim() < 2 and graphs in (None, 1):
        links = field(data, "edge_label_index")
        others = {0, nodes, links.shape[-1] if isinstance(links, Tensor) else 0}
        if not labelled == nodes > 1 and output.numel() not in others:
            return 1  # its numbers without an axis for graphs
    if nodes in rows:
        decided = labelled if labelled in rows and labelled in (graphs, 1) else None
        return None if decided == nodes else decided
    if not isinstance(data, Batch) and field(data, "batch_size") in rows:
        return None  # the nodes that a sampler was asked for
    possible = (labelled, 1) if graphs is None else (graphs,)
    return next((count for count in possible if count in rows), None)


def _graphs_of(data: Any) -> int | None:
    """How many graphs data says it has."""
    number, batch = field(data, "num_graphs"), field(data, "batch")
    if isinstance(number, int):
        return number
    return int(batch.max()) + 1 if isinstance(batch, Tensor) and batch.numel() else None


def read_output(
    output: Any,
    nodes: int | None,
    classes: int | None = None,
    outputs: Outputs | None = None,
    data: Any = None,
    noun: str = "node",
) -> Reading:
    """Find the logits in a model's output.

    Of several tensors with a row per ``noun`` they are the one that is called so, else the only one
    with a column per class. Where ``outputs`` is None the labels of ``data`` say what they are.
    """
    tensors = [(key, value) for key, value in tensors_of(output) if value.is_floating_point()]
    if not tensors:
        raise InputError(
            f"the model returns {_kind(output)} instead of a tensor of logits; {NAMED}"
        )
    nodes = nodes or (tensors[0][1].shape[0] if tensors[0][1].dim() else 0)
    single = nodes == 1 and isinstance(output, Tensor) and output.dim() < 2
    if single:
        tensors = [(None, tensors[0][1].reshape(1, -1))]
    rows = [(k, v) for k, v in tensors if v.dim() in (1, 2) and v.shape[0] == nodes]
    if not rows:
        shape = list(tensors[0][1].shape)
        raise ExposureRefused(
            f"the model returns a tensor of shape {shape} for {nodes} {noun}s, and an exposure "
            f"needs one row of logits per node, or one per graph; {_instead(shape, nodes, data)}"
        )
    wide = [(k, v) for k, v in rows if v.dim() == 2 and v.shape[1] > 1]
    chosen = [(k, v) for k, v in wide if k in LOGITS] or wide or rows
    if len(chosen) > 1 and classes is not None:
        chosen = [(k, v) for k, v in chosen if v.shape[-1] == classes] or chosen
    chosen = _without_softmaxes(chosen)
    if len(chosen) > 1:
        listed = ", ".join(f"{_named(k)} {list(v.shape)}" for k, v in chosen)
        raise InputError(
            f"the model returns several tensors with a row per {noun}: {listed}; "
            "pass forward=lambda model, data: ... that returns the logits among them"
        )
    key, logits = chosen[0]
    columns = logits.shape[1] if logits.dim() == 2 else 1
    kind = outputs or infer_outputs(data, columns, nodes)
    binary = not wide and kind == "classes"
    words = _words(output, key, kind, outputs is None, f"a {noun}" * binary)
    return Reading(key, binary, kind, single, words)


def _instead(shape: list[int], nodes: int, data: Any) -> str:
    """What to do about an output without a row per node or graph."""
    links, graphs = field(data, "edge_label_index"), _graphs_of(data) or 1
    turn = "squeeze(0)" if shape[:2] == [1, nodes] else "t()" if shape[1:] == [nodes] else ""
    if turn:
        return f"pass forward=lambda model, data: model(...).{turn}, with its own arguments"
    if isinstance(links, Tensor) and shape[:1] == [links.shape[-1]]:
        return "it has one per link of edge_label_index: use expose_links"
    if graphs > 1 and (shape[:1] == [1] or len(shape) == 1):
        return f"it takes the {graphs} graphs of data for one: expose one graph at a time"
    if not shape:
        return NAMED
    return (
        f"it gives logits for {shape[0]} of {nodes}, as out[:batch_size] or out[mask] would: pass "
        "a forward= that returns all rows or, if they are of graphs, set data.num_graphs"
    )


SAME = 1e-4
"""How far a (log-)softmax may be from that of the logits beside it: above what float32 rounds,
below any other output by chance."""


def _without_softmaxes(outputs: list[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    """Of logits and their own softmax or log_softmax, which say the same, the logits alone."""
    for key, logits in outputs:
        if logits.dim() != 2 or not bool(torch.isfinite(logits).all()):
            continue
        softmaxes = (logits.log_softmax(1), logits.softmax(1))
        others = [(k, v) for k, v in outputs if k != key]
        if others and all(any(_close(v, same) for same in softmaxes) for _, v in others):
            return [(key, logits)]
    return outputs


def _close(left: Tensor, right: Tensor) -> bool:
    same = left.shape == right.shape
    return same and torch.allclose(left.to(right.dtype), right, rtol=SAME, atol=SAME)


def tensors_of(output: Any) -> Iterator[tuple[Any, Tensor]]:
    """The tensors at the top of an output and their keys."""
    if isinstance(output, Tensor):
        yield None, output
    else:
        yield from ((k, v) for k, v in _fields(output).items() if isinstance(v, Tensor))


def _fields(output: Any) -> Mapping[Any, Any]:
    """What a mapping, a dataclass or a tuple holds by name or number; empty for anything else."""
    if isinstance(output, Mapping):
        return output
    if isinstance(output, tuple | list):
        return output._asdict() if hasattr(output, "_asdict") else dict(enumerate(output))
    if is_dataclass(output) and not isinstance(output, type):
        return {one.name: getattr(output, one.name) for one in fields(output)}
    return {}


def _kind(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"{output.dtype} (predictions have no margins)"
    return type(output).__name__


def _named(key: Any) -> str:
    return f"output {key!r}"


def _words(output: Any, key: Any, kind: str, inferred: bool, per_row: str) -> str:
    """What was read; ``per_row``: such as "a node", where one logit stands for two classes."""
    text = "" if key is None else f"; logits are {_named(key)} of its {len(_fields(output))}"
    if kind != "classes":
        return f"{text}; its outputs are {kind}" + ", as data.y says" * inferred
    return text + (f"; its one logit z {per_row} {TWO_CLASSES}" if per_row else "")


def check_numbers(logits: Tensor, model: nn.Module, data: Any) -> None:
    """Raise unless there are logits, finite and precise; the message names what is not."""
    if not logits.shape[-1]:
        raise InputError(
            f"the model's output has shape {list(logits.shape)}, with no logit; build it with at "
            "least one output"
        )
    if logits.dtype not in (torch.float32, torch.float64):
        held = {one.dtype for one in model.parameters() if one.is_floating_point()}
        if held <= {torch.float32, torch.float64} and held:
            dtypes = " and ".join(sorted(map(str, held)))
            raise InputError(
                f"the model's weights are {dtypes} but its logits {logits.dtype}, as under "
                "torch.autocast; take the autocast out of its forward to have it exposed"
            )
        raise InputError(
            f"the model computes in {logits.dtype}; convert it with model.float(), and its data "
            "with data.x = data.x.float()"
        )
    if bool(torch.isfinite(logits).all()):
        return
    what = "the model's logits hold NaN or infinite values"
    weights = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in weights:
        if not is_finite(tensor):
            raise InputError(f"{what}, and so does its weight `{name}`; train or load it again")
    for name in field_names(data):
        value = field(data, name)
        if isinstance(value, Tensor) and not is_finite(value):
            raise InputError(f"{what}, and so does data.{name}; mend the data")
    raise InputError(
        f"{what} though its weights and data are finite: it overflows {logits.dtype}, "
        "divides by zero, or masks classes by infinity; try model.double() on double data, scale "
        "the features, or mask by -1e9"
    )


def infer_outputs(data: Any, columns: int, nodes: int) -> Outputs:
    """What the labels of data say that the outputs are; classes where they say nothing.

    Zeros and ones (and −1 for unknown), one column per output and not one of them per row, are
    labels; other real numbers are values.
    """
    y = field(data, "y")
    if not isinstance(y, Tensor) or y.is_complex() or y.shape[:1] != (nodes,) or not nodes:
        return "classes"
    labels = y[~torch.isnan(y)] if y.is_floating_point() else y
    if y.dim() <= 2 and y.numel() == nodes:
        return _inferred_of_one(labels, columns)
    if y.dim() != 2 or y.numel() != nodes * columns:
        return "classes"
    flags = bool(((labels == 0) | (labels == 1)).all())
    if not flags and bool((labels == 0).any()) and bool((labels == 1).any()):
        flags = bool(((labels == 0) | (labels == 1) | (labels == -1)).all())  # −1: unknown
    if not flags:
        return "values" if y.is_floating_point() else "classes"
    return "classes" if bool((y.sum(1) == 1).all()) else "labels"


def _inferred_of_one(labels: Tensor, columns: int) -> Outputs:
    """What one number per node says, of a model with so many outputs."""
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        return "values"  # no class is called so
    # Whole numbers in a whole type are classes, even of a single logit: one against the rest.
    classes = columns > 1 or not labels.is_floating_point()
    return "classes" if classes or bool(((labels == 0) | (labels == 1)).all()) else "values"
