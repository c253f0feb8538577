"""Which of the data's tensors a model's forward is given, found by the names of its parameters.

An exposure must speak of the model as its user runs it. A tensor that was dropped in silence
gives another model, so whatever data could fill is filled where there is one candidate, and
asked about where there are several (:func:`gnn_repair.exposure.model_call.settle`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, Sequential

from gnn_repair.errors import InputError

WHOLE = ("data", "batch", "graph", "g", "batch_data", "sample")
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
class Given:
    """One argument: its value, and where it is from in words."""

    value: Any
    source: str
    """Such as ``data.edge_attr``."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model's forward."""

    name: str
    required: bool


CallPlan = dict[str, Given]
"""What a model is called with, by parameter, in the order of the signature."""


def in_words(plan: CallPlan) -> str:
    """Such as ``forward(x, edge_index, edge_weight=data.edge_attr)``."""
    parts = [
        name if given.source in (name, f"data.{name}") else f"{name}={given.source}"
        for name, given in plan.items()
    ]
    return f"forward({', '.join(parts)})"


def parameters_of(model: nn.Module) -> list[Parameter]:
    """The parameters of the model's forward that take a single value each."""
    if isinstance(model, Sequential):
        return [Parameter(name, True) for name in model.signature.param_dict]
    found = list(inspect.signature(model.forward).parameters.values())
    open_ended = [p for p in found if p.kind is p.VAR_POSITIONAL]
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if open_ended and not named:
        raise InputError(
            f"the model's forward takes *{open_ended[0].name}, which says not what to pass; "
            "pass forward=lambda model, data: ..."
        )
    return [Parameter(p.name, p.default is p.empty) for p in named]


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


def is_adjacency(value: Any) -> bool:
    """Whether a graph is given as a matrix, which carries its weights itself."""
    if not isinstance(value, Tensor):
        return hasattr(value, "sparse_sizes") or hasattr(value, "coo")
    return value.layout != torch.strided or (value.is_floating_point() and value.dim() == 2)


class ArgumentFinder:
    """Looks for a model's arguments in data."""

    def __init__(self, model: nn.Module, data: Any) -> None:
        self.model, self.data = model, data
        self.parameters = parameters_of(model)
        self.names = [parameter.name for parameter in self.parameters]
        self.graph = next((n for n in ADJACENCIES if field(data, n) is not None), None)
        edges = field(data, "edge_index")
        flat = isinstance(edges, Tensor) and edges.dim() == 2 and edges.shape[0] == 2
        self.num_edges = int(edges.shape[1]) if flat else None

    def plan(self) -> CallPlan:
        """What is certain: names that data has, features, graph, and data itself."""
        found: CallPlan = {}
        if self._takes_data():
            found[self.names[0]] = Given(self.data, "data")
        for place, parameter in enumerate(self.parameters):
            given = found.get(parameter.name) or self._certain(place, parameter)
            if given is not None:
                found[parameter.name] = given
        return found

    def _takes_data(self) -> bool:
        if not self.names:
            return False
        first, needed = self.names[0], [p.name for p in self.parameters if p.required]
        alone = needed == [first] or self.names == [first]
        known = field(self.data, first) is not None or first in (*FEATURES, *GRAPHS)
        return first in ("data", "batch") or (alone and (first in WHOLE or not known))

    def _certain(self, place: int, parameter: Parameter) -> Given | None:
        name = parameter.name
        if name in LABELS and not parameter.required:
            return None
        own = field(self.data, name)
        if own is not None:
            return Given(own, f"data.{name}")
        if name in FEATURES:
            return self._given("x")
        if name in GRAPHS or (place == 1 and parameter.required and not self._has_graph(name)):
            return self._layers() if name in LAYERWISE else self._given(self.graph)
        if name in LAYERWISE:
            return self._layers()
        if name in BATCHES:
            return self._given("batch")
        if place == 0 and parameter.required and "x" not in self.names:
            return self._given("x")
        return None

    def _has_graph(self, besides: str) -> bool:
        known = (*GRAPHS, *LAYERWISE)
        return any(name in known for name in self.names if name != besides)

    def _given(self, name: str | None) -> Given | None:
        value = None if name is None else field(self.data, name)
        return None if value is None else Given(value, f"data.{name}")

    def _layers(self) -> Given | None:
        """The whole graph at every layer, in the form a neighbour sampler hands it out."""
        if self.num_edges is None:
            return None
        size = int(field(self.data, "num_nodes") or field(self.data, "x").shape[0])
        convs = sum(isinstance(module, MessagePassing) for module in self.model.modules())
        layer = (field(self.data, "edge_index"), None, (size, size))
        return Given([layer] * convs, f"the whole graph at each of {convs} layers")

    def candidates(self, name: str, plan: CallPlan) -> list[Given]:
        """What of the data's edge-level tensors could fill a parameter of this name."""
        graph = next((plan[n].value for n in self.names if n in GRAPHS and n in plan), None)
        if self.num_edges is None or is_adjacency(graph):
            return []
        kind = next((k for k in (WEIGHTS, TYPES, VECTORS) if name in k), None)
        if kind is None:
            return []
        found = [(key, field(self.data, key)) for key in field_names(self.data)]
        return [
            self._shaped(key, value, kind is WEIGHTS)
            for key, value in found
            if self._edge_like(key, value) and _fits(key, value, kind)
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

    @staticmethod
    def _shaped(key: str, value: Tensor, flat: bool) -> Given:
        # A column would be broadcast against a row of degrees to a square matrix.
        if flat and value.dim() == 2:
            return Given(value.squeeze(1), f"data.{key}.squeeze(1)")
        return Given(value, f"data.{key}")


def _fits(key: str, value: Tensor, kind: tuple[str, ...]) -> bool:
    single = value.numel() == value.shape[0]
    if kind is TYPES:
        return single and not value.is_floating_point()
    if kind is WEIGHTS:
        return single and "type" not in key and "rel" not in key
    return value.is_floating_point() or key in VECTORS
