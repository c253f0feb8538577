"""Which of the data's tensors a model's forward is given, found by the names of its parameters.

An exposure must speak of the model as its user runs it. A tensor that was dropped in silence
gives another model, so whatever data could fill is filled where there is one candidate, and
asked about where there are several (:func:`gnn_repair.exposure.calling.settle`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, Sequential

from gnn_repair.errors import InputError
from gnn_repair.exposure.data import (
    copied,
    edges_of,
    field,
    field_names,
    typed_field,
    untyped_field,
)
from gnn_repair.exposure.state import preserved

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


# Where names leave doubt -------------------------------------------------------------------------


ASK = "pass forward=lambda model, data: ... to say how the model is called"
SAME_RUN = 1e-5
"""Logits closer than this beside the largest differ by rounding: the runs are the same model's."""

RunOutputs = list[Tensor] | None
"""The floating tensors that a run gave; None: it raised."""


def choose_arguments(model: nn.Module, data: Any) -> tuple[CallPlan, str]:
    """What to call the model's forward with, and that call in words."""
    choice = _Choice(model, data)
    choice.settle()
    return choice.plan, in_words(choice.plan) + choice.remark()


class _Choice:
    def __init__(self, model: nn.Module, data: Any) -> None:
        self.model, self.data = model, data
        self.finder = ArgumentFinder(model, data)
        self.plan = self.finder.plan()

    def settle(self) -> None:
        open_ones = [p for p in self.finder.parameters if p.name not in self.plan]
        for parameter in sorted(open_ones, key=lambda p: not p.required):
            found = self.finder.candidates(parameter.name, self.plan)
            if parameter.required:
                self._fill_required(parameter.name, found)
            elif found:
                self._fill_optional(parameter.name, found)
        self._ask_about_graphs()
        self._ask_about_labels()
        order = {name: place for place, name in enumerate(self.finder.names)}
        self.plan = dict(sorted(self.plan.items(), key=lambda item: order[item[0]]))

    def remark(self) -> str:
        """Which arguments for edges stayed at their defaults though data has values for edges."""
        if not self._edge_values():
            return ""
        kinds = (*WEIGHTS, *TYPES, *VECTORS)
        left = [n for n in self.finder.names if n in kinds and n not in self.plan]
        return f"; {', '.join(left)} left at default" if left else ""

    def _edge_values(self) -> bool:
        return any(self.finder.candidates(kind, self.plan) for kind in ("edge_weight", "edge_attr"))

    # One parameter ------------------------------------------------------------------------------

    def _fill_required(self, name: str, found: Sequence[Given]) -> None:
        if not found:
            kept = ", ".join(field_names(self.data)) or "nothing"
            raise InputError(
                f"the model's forward needs `{name}`, which data does not have (it has {kept}); "
                "add it to data or pass forward=lambda model, data: ..."
            )
        if len(found) > 1:
            raise InputError(f"the model's forward needs `{name}`, {_could(found)}; {ASK}")
        self.plan[name] = found[0]

    def _fill_optional(self, name: str, found: Sequence[Given]) -> None:
        if len(found) == 1 and not self._passed_elsewhere(found[0]):
            if self._outcome({**self.plan, name: found[0]}) is not None:
                self.plan[name] = found[0]
            return
        base = self._outcome(self.plan)
        tried = [(given, self._outcome({**self.plan, name: given})) for given in found]
        telling = [(given, out) for given, out in tried if _rivals(out, base)]
        if not telling or (len(found) == 1 and self._matters(found[0])):
            return
        if any(_rivals(out, telling[0][1]) for _, out in telling):
            options = [given for given, _ in telling]
            raise InputError(f"the model's forward takes `{name}`, {_could(options)}; {ASK}")
        self.plan[name] = telling[0][0]

    def _passed_elsewhere(self, given: Given) -> bool:
        return any(_field_of(other) == _field_of(given) for other in self.plan.values())

    def _matters(self, given: Given) -> bool:
        """Whether the logits change when this is passed where its own name asks for it."""
        without = {
            n: other for n, other in self.plan.items() if _field_of(other) != _field_of(given)
        }
        return _rivals(self._outcome(without), self._outcome(self.plan))

    # Several of a kind --------------------------------------------------------------------------

    def _ask_about_graphs(self) -> None:
        graphs = [name for name in ADJACENCIES if field(self.data, name) is not None]
        for name, given in list(self.plan.items()):
            if name not in GRAPHS or given.source == f"data.{name}" or len(graphs) < 2:
                continue
            options = [Given(field(self.data, other), f"data.{other}") for other in graphs]
            runs = [(option, self._outcome({**self.plan, name: option})) for option in options]
            runs = [(option, out) for option, out in runs if out is not None]
            if any(_rivals(out, runs[0][1]) for _, out in runs):
                could = _could([option for option, _ in runs])
                raise InputError(f"the model's forward takes `{name}`, {could}; {ASK}")
            self.plan[name] = runs[0][0] if runs else given

    def _ask_about_labels(self) -> None:
        for name in (n for n in self.finder.names if n in LABELS and n not in self.plan):
            value = field(self.data, name)
            if value is None:
                continue
            shown = self._outcome({**self.plan, name: Given(value, f"data.{name}")})
            if _rivals(shown, self._outcome(self.plan)):
                raise InputError(
                    f"the model's forward takes `{name}`, which data has and which changes the "
                    f"logits; {ASK}"
                )

    def _outcome(self, plan: CallPlan) -> RunOutputs:
        try:
            with preserved(self.model):
                out = self.model(**{name: given.value for name, given in plan.items()})
        except Exception:
            return None  # not how anybody runs this model
        return _floating(out)


def _field_of(given: Given) -> str:
    """``data.edge_attr`` of ``data.edge_attr.squeeze(1)``."""
    return ".".join(given.source.split(".")[:2])


def _could(options: Sequence[Given]) -> str:
    *most, last = [option.source for option in options]
    text = f"{', '.join(most)} or {last}" if most else last
    return f"which {text} could fill"


def _floating(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _floating(item)]
    return []


def _rivals(left: RunOutputs, right: RunOutputs) -> bool:
    """Whether two runs gave outputs of the same shapes that differ in value."""
    if left is None or right is None or [t.shape for t in left] != [t.shape for t in right]:
        return False
    return any(not _agree(one, other) for one, other in zip(left, right, strict=True))


def _agree(one: Tensor, other: Tensor) -> bool:
    if one.numel() == 0:
        return True
    size = float(torch.maximum(one.abs().max(), other.abs().max()))
    return bool(torch.allclose(one, other, rtol=SAME_RUN, atol=SAME_RUN * size, equal_nan=True))


# Node types --------------------------------------------------------------------------------------


CATEGORY = ("node_type", "target_type", "target_node_type", "target_ntype", "ntype", "out_type",
            "output_type", "predict_type", "category", "target")  # fmt: skip
"""Parameters that say which type of node is classified."""
EDGE_FIELDS = ("edge_weight", "edge_attr", "edge_type")


def typed_arguments(
    model: nn.Module, data: Any, node_type: str | None, leave: Sequence[str] = ()
) -> tuple[Callable[[], dict[str, Any]], str]:
    """The arguments of every run, made anew since models write into what they get, and in words.

    Args:
        model: the model.
        data: the graph.
        node_type: the type that is classified, if known.
        leave: parameters that the caller has values for.
    """
    asked = [p for p in parameters_of(model) if p.name not in leave]
    finder = _TypedFinder(data, node_type, asked)
    found = {p.name: finder.find(place, p) for place, p in enumerate(finder.parameters)}
    missing = [p.name for p in finder.parameters if p.required and found[p.name] is None]
    if missing:
        raise InputError(
            f"{type(model).__name__}'s forward needs {missing[0]!r}, which data does not have for "
            f"its types of nodes or edges; {ASK}"
        )
    given = {name: value for name, value in found.items() if value is not None}
    parts = [_shown(name, source) for name, (source, _) in given.items()]

    def fresh() -> dict[str, Any]:
        return {name: copied(value) for name, (_, value) in given.items()}

    return fresh, f"forward({', '.join(parts)})"


def _shown(name: str, source: str) -> str:
    return name if source in (name, f"{name}_dict") else f"{name}={source}"


class _TypedFinder:
    def __init__(self, data: Any, node_type: str | None, parameters: list[Parameter]) -> None:
        self.data, self.node_type, self.parameters = data, node_type, parameters

    def find(self, place: int, parameter: Parameter) -> tuple[str, Any] | None:
        """Where a parameter's value is from, and the value; None: data has nothing for it."""
        name, needed = parameter.name, parameter.required
        plain = name.removesuffix("_dict")
        if plain in LABELS and not needed:
            return None
        if place == 0 and self._is_whole(plain):
            return "data", self.data
        if plain in CATEGORY and self.node_type is not None:
            return repr(self.node_type), self.node_type
        if plain == "metadata":
            return "data.metadata()", self.data.metadata()
        if plain in GRAPHS or plain in FEATURES:
            return self._of_role(plain)
        own = typed_field(self.data, plain)
        if own is not None:
            return f"{plain}_dict", own
        kept = untyped_field(self.data, name)
        if kept is not None:
            return name, kept
        if plain in (*WEIGHTS, *VECTORS, *TYPES):
            return self._of_edges()
        return self._by_place(place) if needed else None

    def _is_whole(self, name: str) -> bool:
        others = [p for p in self.parameters[1:] if p.required and p.name not in CATEGORY]
        return name in ("data", "batch", "hetero_data") or (name in WHOLE and not others)

    def _of_role(self, name: str) -> tuple[str, Any] | None:
        if name in FEATURES:
            features = typed_field(self.data, name) or typed_field(self.data, "x")
            return None if features is None else ("x_dict", features)
        edges = typed_field(self.data, name) or edges_of(self.data)
        held = "adj_t" if typed_field(self.data, "edge_index") is None else "edge_index"
        return f"{held}_dict", edges

    def _of_edges(self) -> tuple[str, Any] | None:
        found = [(f"{name}_dict", typed_field(self.data, name)) for name in EDGE_FIELDS]
        found = [(name, value) for name, value in found if value is not None]
        return found[0] if len(found) == 1 else None

    def _by_place(self, place: int) -> tuple[str, Any] | None:
        """Of the first two the role that no other has by its name: features, then edges."""
        names = {parameter.name.removesuffix("_dict") for parameter in self.parameters}
        roles = [("x", FEATURES), ("edge_index", GRAPHS)]
        free = [role for role, known in roles if not names & set(known)]
        if place > 1 or not free:
            return None
        return self._of_role(free[min(place, len(free) - 1)])
