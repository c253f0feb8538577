"""Running a model on a graph of several node types, and which type it classifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Batch, HeteroData

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.hetero.arguments import typed_arguments
from gnn_repair.exposure.hetero.graph import (
    TypedGraph,
    check_type,
    counts_of,
    edges_of,
    listed,
    typed_field,
)
from gnn_repair.exposure.model_call import Forward, Invocation, own_copy
from gnn_repair.exposure.model_output import count_classes_of


@dataclass(frozen=True, eq=False)
class TypedCall:
    """How a model is run, and the graph with the type that it classifies."""

    call: Invocation
    """Gives what the model says of that type."""
    graph: TypedGraph
    classes: int | None
    """How many classes that type's labels have, if known."""


def typed_call(
    model: nn.Module, data: Any, forward: Forward | None, node_type: str | None
) -> TypedCall:
    """How a model is run on data of several node types."""
    counts = counts_of(data)
    if node_type is not None:
        check_type(node_type, counts)
    known = node_type or _only(_labelled(data, counts))
    plain = _whole_call(model, data, forward, known)
    whole = replace(plain, run=lambda: _of_nodes(plain(), data, counts))
    chosen = known or _by_output(whole(), counts, _labelled(data, counts))
    labels = (typed_field(data, "y") or {}).get(chosen)
    classes = count_classes_of(labels, counts[chosen])
    call = replace(
        whole,
        run=lambda: _of_type(whole(), chosen, counts, classes),
        text=f"{whole.text}; logits of {chosen!r}",
    )
    return TypedCall(call, TypedGraph(counts, edges_of(data), chosen), classes)


def _whole_call(
    model: nn.Module, data: Any, forward: Forward | None, node_type: str | None
) -> Invocation:
    if forward is not None:
        return Invocation(lambda: forward(model, own_copy(data)), "given by forward=")
    arguments, text = typed_arguments(model, data, node_type)
    return Invocation(lambda: model(**{n: own_copy(v) for n, v in arguments().items()}), text)


def _of_nodes(output: Any, data: Any, counts: Mapping[str, int]) -> Any:
    """The output, unless it has a row for every graph of a batch."""
    graphs = getattr(data, "num_graphs", None) if isinstance(data, Batch) else None
    first = _first_tensor(output) if _said(output, counts) is None else None
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
    labels = typed_field(data, "y") or {}
    if not isinstance(data, HeteroData):
        labels = {kind: y for kind, y in labels.items() if kind in counts}
    return [kind for kind, y in labels.items() if isinstance(y, Tensor) and kind in counts]


def _only(kinds: Sequence[str]) -> str | None:
    return kinds[0] if len(kinds) == 1 else None


def _by_output(output: Any, counts: Mapping[str, int], labelled: Sequence[str]) -> str:
    """The type that a model classifies, by what it returns."""
    said = _said(output, counts)
    if said is not None:
        kinds = [kind for kind, value in said.items() if isinstance(value, Tensor)]
    else:
        first = _first_tensor(output)
        rows = first.shape[0] if first is not None and first.dim() else -1
        kinds = [kind for kind, count in counts.items() if count == rows]
    both = [kind for kind in kinds if kind in labelled]
    chosen = _only(both) or _only(kinds)
    if chosen is None:
        choices = both or kinds or list(counts)
        raise InputError(
            f"data has {len(counts)} types of nodes, and {listed(choices)} could be the one that "
            f"is classified; say which with node_type={choices[0]!r}"
        )
    return chosen


def _said(output: Any, counts: Mapping[str, int]) -> Mapping[str, Any] | None:
    """What a model returns by node type, if it does."""
    for one in output if isinstance(output, tuple | list) else (output,):
        if isinstance(one, Mapping) and any(kind in counts for kind in one):
            return one
    return None


def _first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Mapping):
        output = list(output.values())
    several = output if isinstance(output, tuple | list) else (output,)
    return next((one for one in several if isinstance(one, Tensor)), None)


def _of_type(output: Any, node_type: str, counts: Mapping[str, int], classes: int | None) -> Any:
    """What a model's output says of one type; what is not by type is left as it is.

    Of several things in a tuple, such as logits beside embeddings of every type, the one with a
    column a class, else the first.
    """
    said = _said(output, counts)
    if said is None:
        return output
    if isinstance(output, tuple | list):
        told = [_about(one, node_type, counts) for one in output]
        known = [one for one in told if one is not None]
        wide = [one for one in known if one.dim() == 2 and one.shape[1] == classes]
        if known:
            return (wide or known)[0]
    if said.get(node_type) is None:
        spoken = [kind for kind, value in said.items() if value is not None]
        raise InputError(
            f"the model returns nothing for {node_type!r}, only for {listed(spoken)}; choose "
            "another node_type=, or pass data in which messages reach that type"
        )
    return said[node_type]


def _about(one: Any, node_type: str, counts: Mapping[str, int]) -> Tensor | None:
    """What one part of an output says of a type's nodes, a row each."""
    value = one.get(node_type) if isinstance(one, Mapping) else one
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.dim():
        return None
    return value if len(value) == counts[node_type] else None
