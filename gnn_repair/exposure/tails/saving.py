"""Heads in files: operations by kind, settings in the header, constants as tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails import operations as kinds
from gnn_repair.exposure.tails.opaque import Opaque, find_target, restorable
from gnn_repair.exposure.tails.opaque_saving import decoded, encoded, written_name
from gnn_repair.exposure.tails.operations import Operation, TailGraph
from gnn_repair.files import check_fields, check_tensor

DOUBLE, WHOLE = (torch.float64,), (torch.int64,)
Form = dict[str, Any]
"""Fields by name: axes and types of a tensor, or the type of a setting."""
FORMS: dict[type[Operation], Form] = {
    kinds.Affine: {"weight": ((2,), DOUBLE), "bias": ((1, 2), DOUBLE)},
    kinds.Scale: {"factor": ((1, 2), DOUBLE), "shift": ((1, 2), DOUBLE)},
    kinds.Select: {"index": ((1,), WHOLE)},
    kinds.Constant: {"value": ((1, 2), DOUBLE)},
    kinds.Add: {"factors": list},
    kinds.Concatenate: {},
    kinds.Multiply: {},
    kinds.Maximum: {},
    kinds.Activation: {"name": str, "parameter": ((0, 1), DOUBLE)},
    kinds.LayerNorm: {
        "size": int, "weight": ((1,), DOUBLE), "bias": ((1,), DOUBLE), "eps": float,
    },
    kinds.Normalize: {"size": int, "eps": float},
    kinds.Softmax: {"size": int, "log": bool},
    Opaque: {
        "target": str, "arguments": list, "keywords": dict, "fixed": list,
        "output": int | None, "axis": int,
    },
}  # fmt: skip
"""What every kind of operation holds beside its inputs."""
BY_NAME = {kind.__name__: kind for kind in FORMS}


def write_head(head: TailGraph, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A head as JSON can hold it; its constants go into ``tensors``."""
    written = [
        _written(operation, f"head/{place}/", tensors)
        for place, operation in enumerate(head.operations)
    ]
    return {"width": head.width, "operations": written}


def read_head(entry: Any, tensors: dict[str, Tensor]) -> TailGraph:
    """What :func:`write_head` wrote; its constants are taken out of ``tensors``."""
    check_fields(entry, {"width": int, "operations": list}, "head")
    operations = [
        _read(operation, f"head/{place}/", tensors)
        for place, operation in enumerate(entry["operations"])
    ]
    return TailGraph(entry["width"], tuple(operations))


def _written(operation: Operation, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """An operation as JSON can hold it; its tensors go into ``tensors`` under the prefix."""
    if isinstance(operation, Opaque) and not restorable(operation.target):
        raise InputError(
            f"the head holds {operation.title}, which has no form in files; keep the model and "
            "expose it again instead"
        )
    entry: dict[str, Any] = {"kind": type(operation).__name__, "inputs": list(operation.inputs)}
    for name, form in FORMS[type(operation)].items():
        value = getattr(operation, name)
        if isinstance(form, tuple):
            tensors[prefix + name] = value
        elif isinstance(operation, Opaque) and name == "target":
            entry[name] = written_name(value)
        else:
            entry[name] = encoded(value, prefix + name, tensors)
    return entry


def _read(entry: Any, prefix: str, tensors: dict[str, Tensor]) -> Operation:
    kind = BY_NAME.get(str(entry.get("kind"))) if isinstance(entry, dict) else None
    if kind is None:
        raise InputError(f"an operation of its head is {str(entry)[:60]!r}, which is none known")
    form = FORMS[kind]
    settings = {name: hint for name, hint in form.items() if not isinstance(hint, tuple)}
    check_fields(entry, {"kind": str, "inputs": list, **settings}, "operation")
    values: dict[str, Any] = {name: entry[name] for name in settings}
    values["inputs"] = tuple(_whole(number) for number in entry["inputs"])
    for name, hint in form.items():
        if isinstance(hint, tuple):
            values[name] = _taken(prefix + name, tensors, hint)
    if kind is Opaque:
        values["target"] = find_target(entry["target"])
        for name in ("arguments", "keywords", "fixed"):
            values[name] = decoded(entry[name], tensors)
    if kind is kinds.Add:
        named = {str(k): factor for k, factor in enumerate(entry["factors"])}
        check_fields(named, dict.fromkeys(named, float), "factors")
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    return kind(**values)


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise InputError(f"an operation of its head reads value {str(number)[:40]!r}")
    return number


def _taken(name: str, tensors: dict[str, Tensor], form: Any) -> Tensor:
    """A tensor taken out of those that were read, once it is what it must be."""
    if name not in tensors:
        raise InputError(f"it lacks {name}")
    axes, types = form
    tensor = tensors.pop(name)
    check_tensor(name, tensor, tensor.dim() if tensor.dim() in axes else axes[0], types)
    return tensor
