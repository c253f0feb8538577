"""What a model of several node types is called with: one tensor for each type or relation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from gnn_repair.errors import InputError
from gnn_repair.exposure.hetero.graph import copied, edges_of, typed_field, untyped_field
from gnn_repair.exposure.model_arguments import (
    FEATURES,
    GRAPHS,
    LABELS,
    TYPES,
    VECTORS,
    WEIGHTS,
    WHOLE,
    Parameter,
    parameters_of,
)

CATEGORY = ("node_type", "target_type", "target_node_type", "target_ntype", "ntype", "out_type",
            "output_type", "predict_type", "category", "target")  # fmt: skip
"""Parameters that say which type of node is classified."""
EDGE_FIELDS = ("edge_weight", "edge_attr", "edge_type")
ASK = "pass forward=lambda model, data: ... to say how the model is called"


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
    finder = _Finder(data, node_type, asked)
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


class _Finder:
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
