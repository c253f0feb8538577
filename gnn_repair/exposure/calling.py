"""Running a model on data: how it is called, whose logits it gives, what its user expects."""

from __future__ import annotations

import copy
import inspect
import operator
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, Dataset, HeteroData
from torch_geometric.data.data import BaseData

from gnn_repair.errors import ExposureRefused, GnnRepairError, InputError
from gnn_repair.exposure.call_arguments import (
    BATCHES,
    choose_arguments,
    parameters_of,
    typed_arguments,
)
from gnn_repair.exposure.checks import EXACT
from gnn_repair.exposure.data import (
    TypedGraph,
    check_type,
    count_classes,
    count_classes_of,
    count_nodes,
    counts_of,
    edges_of,
    field,
    field_names,
    is_typed,
    listed,
    refuse_node_types,
    typed_field,
    typed_tensors,
)
from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.exposure.value import Exposure

Forward = Callable[[nn.Module, Any], Any]


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
            said = " ".join(str(error).split())[:300] or _raising_line(error)
            raise InputError(
                f"the model, called as {self.text}, raised {type(error).__name__}: {said}; "
                + self.advice
            ) from error


def one_graph(data: Any, model: nn.Module, forward: Forward | None) -> Any:
    """The graph itself: out of a dataset of one, or None for models that hold their own."""
    if data is None and forward is None and parameters_of(model):
        raise InputError(
            "data is missing; call expose(model, data) with the graph the model runs on"
        )
    if isinstance(data, Dataset):
        if len(data) != 1:
            raise InputError(
                f"data is a dataset of {len(data)} graphs; pass the one the model runs on, "
                "such as dataset[0]"
            )
        return data[0]
    unreadable = isinstance(data, Tensor | str | bytes | int | float | tuple | list | type)
    if forward is None and unreadable and parameters_of(model):
        raise InputError(
            f"data is a {type(data).__name__}; pass a PyG Data (or any object with x and "
            "edge_index), or forward=lambda model, data: ..."
        )
    return data


def invocation(model: nn.Module, data: Any, forward: Forward | None) -> Invocation:
    """How the model is run on the data."""
    if forward is not None:
        return Invocation(lambda: forward(model, own_copy(data)), "given by forward=")
    if not parameters_of(model):
        return Invocation(model, "forward()")
    plan, text = choose_arguments(model, data)
    arguments = {name: given.value for name, given in plan.items()}
    names = _unpacked(model, next(iter(arguments))) if len(arguments) == 1 else ()
    fields = ("edge_index", "x") if _is_graph(names) else ("x", "edge_index")
    pair = tuple(field(data, name) for name in fields)
    if names and all(isinstance(one, Tensor) for one in pair):
        return Invocation(lambda: model(pair), f"forward(({', '.join(fields)}))")
    return Invocation(lambda: model(**{n: own_copy(v) for n, v in arguments.items()}), text)


def own_copy(value: Any) -> Any:
    """A graph whose fields a forward may set unnoticed; its tensors are shared."""
    return copy.copy(value) if isinstance(value, BaseData) else value


def _unpacked(model: nn.Module, parameter: str) -> tuple[str, ...]:
    """The two names that forward unpacks its only argument into, as in ``x, edges = data``."""
    try:
        source = inspect.getsource(type(model).forward)
    except (OSError, TypeError):
        return ()  # written where no source is kept
    line = rf"^\s*\(?(\w+)\s*,\s*(\w+)\)?\s*=\s*{re.escape(parameter)}\s*(?:#.*)?$"
    found = re.search(line, source, re.MULTILINE)
    return found.groups() if found else ()


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
        # Where a row is next to nothing beside the others, roundings are those of the others.
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
            f"expected is a {type(value).__name__}; pass the model's logits or predictions"
        ) from None


def _raising_line(error: BaseException) -> str:
    """The line of code that raised, for errors that say nothing themselves, as assertions do."""
    return traceback.extract_tb(error.__traceback__)[-1].line or ""


# Node types --------------------------------------------------------------------------------------


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


def as_batch(data: Any, model: nn.Module) -> Any:
    """A graph alone as a batch of one, where the model's forward asks for a batch vector."""
    asked = any(p.name in BATCHES and p.required for p in parameters_of(model))
    alone = batch_of_one(data) if asked else None
    return data if alone is None else alone


def batch_of_one(data: Any) -> Any | None:
    """A graph alone as a batch of one; None where it is no graph, or a batch already."""
    if not isinstance(data, Data) or isinstance(data, Batch) or data.get("batch") is not None:
        return None
    return Batch.from_data_list([data])


def of_subgraph(exposure: Exposure, data: Any) -> Exposure:
    """The exposure with the graph's own node numbers where data is a sampled subgraph.

    ``data.n_id`` names the nodes. Where there is ``data.batch_size`` as well, as in the batches of
    a NeighborLoader, the first so many nodes are those that were asked for: only these have their
    neighbours about them, and only these are recipients.
    """
    names = field_names(data)
    if "n_id" not in names or exposure.graph_starts is not None or exposure.names.typed:
        return exposure
    whole, seeds = field(data, "n_id"), field(data, "batch_size") if "batch_size" in names else None
    if not isinstance(whole, Tensor) or whole.shape != (exposure.num_nodes,):
        return exposure  # another thing by that name
    if whole.is_floating_point() or whole.is_complex() or whole.dtype == torch.bool:
        return exposure
    numbered = named(exposure, whole.long().to(exposure.recipients.device))
    if seeds is None:
        return numbered
    count = _seeds(seeds, exposure.num_nodes)
    return numbered.restrict(torch.arange(count, device=exposure.recipients.device))


def _seeds(given: Any, nodes: int) -> int:
    """How many nodes were asked for; raises where that cannot be, so that nobody is taken for one
    who lacks neighbours."""
    try:
        count = -1 if isinstance(given, bool) else operator.index(given)
    except (TypeError, ValueError, RuntimeError):
        count = -1
    if not 0 < count <= nodes:
        raise InputError(
            f"data.batch_size is {given!r:.60} beside n_id; give how many of the {nodes} nodes, "
            "the first of them, were asked for, or leave it out if all were"
        )
    return count


def named(exposure: Any, n_id: Tensor) -> Any:
    """The same exposure with the graph's node numbers."""
    return replace(exposure, n_id=n_id)
