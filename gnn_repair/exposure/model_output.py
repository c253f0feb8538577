"""Reading one row of logits per node out of whatever a model returns."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.fingerprint import dense_parts
from gnn_repair.exposure.model_arguments import field, field_names
from gnn_repair.exposure.outputs import (
    Outputs,
    infer_outputs,
    two_classes_in_logits,
    without_anchor,
)

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure

LOGITS = ("logits", "logit", "y_pred", "scores")
"""Names of an output that say what it is."""
TWO_CLASSES = "as the two classes (0, z)"
"""Said of a model's call where it gives one logit a row."""
NAMED = "pass forward=lambda model, data: ... that returns the logits"


@dataclass(frozen=True)
class Reading:
    """Where in a model's output the logits are, and in which form."""

    place: Any = None
    """The key of the output in a tuple or dict; None: the output itself."""
    binary: bool = False
    """Whether a zero stands before the outputs: one logit z a node as the two classes (0, z), or
    labels and values beside their anchor (:mod:`gnn_repair.exposure.outputs`)."""
    outputs: Outputs = "classes"
    single: bool = False
    """Whether the numbers of the only row come without an axis for rows."""
    text: str = ""
    """What was read, in words that follow the call."""

    def __call__(self, output: Any) -> Tensor:
        """The logits [N, C]."""
        inner = output if isinstance(output, tuple | list) else _fields(output)
        tensor: Tensor = output if self.place is None else inner[self.place]
        tensor = tensor.reshape(1, -1) if self.single else tensor
        return two_classes(tensor) if self.binary else tensor

    def finished(self, exposure: Exposure) -> Exposure:
        """The exposure of what was read, from that of what this gives."""
        if self.outputs != "classes":
            return without_anchor(exposure, self.outputs)
        return two_classes_in_logits(exposure) if self.binary else exposure


def two_classes(logit: Tensor) -> Tensor:
    """(0, z) from z [N] or [N, K]: softmax of (0, z) gives the sigmoid of a single z."""
    columns = logit.reshape(len(logit), -1)
    return torch.cat([torch.zeros_like(columns[:, :1]), columns], dim=1)


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


def graphs_told(data: Any, output: Any, nodes: int | None) -> int | None:
    """How many graphs an output has rows for; None where it speaks of nodes.

    Where it speaks of both (logits of graphs beside embeddings of nodes), labels decide, and
    without labels the graphs that data says it has.
    """
    rows = [
        len(value)
        for _, value in tensors_of(output)
        if value.is_floating_point() and value.dim() in (1, 2)
    ]
    known, y = _graphs_of(data), field(data, "y")
    if nodes is not None and known in (None, 1) and _is_of_one(output, nodes):
        return 1
    if nodes is None or not rows:
        return None
    if nodes in rows:
        labelled = len(y) if isinstance(y, Tensor) and y.dim() else known
        told = labelled if labelled in rows and labelled in (known, 1) else None
        return None if told == nodes else told
    return known if known in rows else rows[0]


def _is_of_one(output: Any, nodes: int) -> bool:
    """Whether an output is the numbers of a single graph, without an axis for graphs."""
    numbers = isinstance(output, Tensor) and output.is_floating_point()
    return numbers and output.dim() < 2 and output.numel() not in (0, nodes)


def _graphs_of(data: Any) -> int | None:
    """How many graphs data says it has."""
    known, batch = field(data, "num_graphs"), field(data, "batch")
    if isinstance(known, int):
        return known
    return int(batch.max()) + 1 if isinstance(batch, Tensor) and batch.numel() else None


def read_output(
    output: Any,
    nodes: int | None,
    classes: int | None = None,
    outputs: Outputs | None = None,
    data: Any = None,
) -> Reading:
    """Find the logits in a model's output.

    Of several tensors with a row per node they are the one that is called so, else the only one
    with a column a class.

    Args:
        output: what the model returned.
        nodes: how many nodes there are, if known.
        classes: how many classes data has, if known.
        outputs: what they are; what the labels of ``data`` say where None.
        data: the graph.
    """
    found = [(key, value) for key, value in tensors_of(output) if value.is_floating_point()]
    if not found:
        raise InputError(
            f"the model returns {_kind(output)} instead of a tensor of logits; {NAMED}"
        )
    nodes = nodes or (found[0][1].shape[0] if found[0][1].dim() else 0)
    single = nodes == 1 and isinstance(output, Tensor) and output.dim() < 2
    if single:
        found = [(None, found[0][1].reshape(1, -1))]
    rows = [(k, v) for k, v in found if v.dim() in (1, 2) and v.shape[0] == nodes]
    if not rows:
        shape = list(found[0][1].shape)
        raise ExposureRefused(
            f"the model returns a tensor of shape {shape} for {nodes} nodes, and an exposure needs "
            "one row of logits per node, or one per graph; where its forward keeps some of them, "
            "such as out[:batch_size] or out[mask], pass a forward= that returns all rows"
        )
    wide = [(k, v) for k, v in rows if v.dim() == 2 and v.shape[1] > 1]
    chosen = [(k, v) for k, v in wide if k in LOGITS] or wide or rows
    if len(chosen) > 1 and classes is not None:
        chosen = [(k, v) for k, v in chosen if v.shape[-1] == classes] or chosen
    chosen = _without_softmaxes(chosen)
    if len(chosen) > 1:
        listed = ", ".join(f"{_named(k)} {list(v.shape)}" for k, v in chosen)
        raise InputError(
            f"the model returns several tensors with a row per node: {listed}; "
            "pass forward=lambda model, data: ... that returns the logits among them"
        )
    key, logits = chosen[0]
    columns = logits.shape[1] if logits.dim() == 2 else 1
    kind = outputs or infer_outputs(data, columns, nodes)
    anchored = not wide or kind != "classes"
    words = _words(output, key, not wide, kind, outputs is None)
    return Reading(key, anchored, kind, single, words)


SAME = 1e-4
"""How far a (log-)softmax may be from that of the logits beside it: above what float32 rounds,
below any other output by chance."""


def _without_softmaxes(found: list[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    """Of logits and their own softmax or log_softmax, which say the same, the logits alone."""
    for key, logits in found:
        if logits.dim() != 2 or not bool(torch.isfinite(logits).all()):
            continue
        made = (logits.log_softmax(1), logits.softmax(1))
        others = [(k, v) for k, v in found if k != key]
        if others and all(any(_close(v, one) for one in made) for _, v in others):
            return [(key, logits)]
    return found


def _close(left: Tensor, right: Tensor) -> bool:
    same = left.shape == right.shape
    return same and torch.allclose(left.to(right.dtype), right, rtol=SAME, atol=SAME)


def tensors_of(output: Any) -> Iterator[tuple[Any, Tensor]]:
    """The tensors at the top of an output and their keys."""
    if isinstance(output, Tensor):
        yield None, output
    elif isinstance(output, tuple | list):
        yield from ((k, v) for k, v in enumerate(output) if isinstance(v, Tensor))
    else:
        yield from ((k, v) for k, v in _fields(output).items() if isinstance(v, Tensor))


def _fields(output: Any) -> Mapping[Any, Any]:
    """What a mapping or a dataclass holds by name; empty for anything else."""
    if isinstance(output, Mapping):
        return output
    if is_dataclass(output) and not isinstance(output, type):
        return {one.name: getattr(output, one.name) for one in fields(output)}
    return {}


def _kind(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"{output.dtype} (predictions have no margins)"
    return type(output).__name__


def _named(key: Any) -> str:
    return f"output {key!r}"


def _words(output: Any, key: Any, binary: bool, kind: str, inferred: bool) -> str:
    count = len(output) if isinstance(output, tuple | list) else len(_fields(output))
    text = "" if key is None else f"; logits are {_named(key)} of its {count}"
    if kind != "classes":
        return f"{text}; its outputs are {kind}" + ", as data.y says" * inferred
    return text + (f"; its one logit z a node {TWO_CLASSES}" if binary else "")


def check_numbers(logits: Tensor, model: nn.Module, data: Any) -> None:
    """Raise unless the logits are finite and precise; the message names what is not."""
    if logits.dtype not in (torch.float32, torch.float64):
        held = {one.dtype for one in model.parameters() if one.is_floating_point()}
        if held <= {torch.float32, torch.float64} and held:
            raise InputError(
                f"the model's weights are {_dtypes(held)} but its logits {logits.dtype}, as under "
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
        if _broken(tensor):
            raise InputError(f"{what}, and so does its weight `{name}`; train or load it again")
    for name in field_names(data):
        value = field(data, name)
        if isinstance(value, Tensor) and _broken(value):
            raise InputError(f"{what}, and so does data.{name}; mend the data")
    raise InputError(
        f"{what} though its weights and data are finite: it overflows {logits.dtype}, or divides "
        "by zero; try model.double() on double data, or scale the features"
    )


def _dtypes(held: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(one) for one in held))


def _broken(tensor: Tensor) -> bool:
    values = dense_parts(tensor)[-1]
    return values.is_floating_point() and not bool(torch.isfinite(values).all())
