"""Tailed exposures in files: operations by kind, settings in the header, constants as tensors."""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure.tails import operations as kinds
from gnn_repair.exposure.tails.opaque import Opaque, Slot, find_target, restorable
from gnn_repair.exposure.tails.operations import Operation, TailGraph
from gnn_repair.exposure.value import Exposure, Group
from gnn_repair.files import load_tensors, save_tensors

if TYPE_CHECKING:
    from gnn_repair.exposure.tails.tailed import TailedExposure

KIND = "gnn-repair tailed exposure"
OPERATIONS: dict[str, type[Operation]] = {
    kind.__name__: kind
    for kind in (
        kinds.Affine,
        kinds.Scale,
        kinds.Select,
        kinds.Constant,
        kinds.Add,
        kinds.Concatenate,
        kinds.Multiply,
        kinds.Maximum,
        kinds.Activation,
        kinds.LayerNorm,
        kinds.Normalize,
        kinds.Softmax,
    )
}
"""Every kind but :class:`Opaque`, which is written in a form of its own."""
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64, torch.bool)}


def save_tailed(exposure: TailedExposure, path: str | Path) -> None:
    """Write an exposure as one safetensors file."""
    header, tensors = _pieces(exposure.aggregate)
    tensors["frozen_logits"] = exposure.frozen_logits
    written = [
        _written(operation, f"tail/{place}/", tensors)
        for place, operation in enumerate(exposure.tail.operations)
    ]
    tail = {"width": exposure.tail.width, "operations": written}
    whole = {"aggregate": header, "tail": tail, "residual": exposure.residual}
    save_tensors(path, KIND, whole, tensors)


def load_tailed(path: str | Path) -> TailedExposure:
    """Read what :func:`save_tailed` wrote."""
    from gnn_repair.exposure.tails.tailed import TailedExposure

    header, tensors = load_tensors(path, KIND)
    try:
        tail = header["tail"]
        operations = tuple(
            _read(entry, f"tail/{place}/", tensors)
            for place, entry in enumerate(tail["operations"])
        )
        return TailedExposure(
            _aggregate(header["aggregate"], tensors),
            TailGraph(int(tail["width"]), operations),
            tensors["frozen_logits"],
            header["residual"],
        )
    except FileFormatError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise FileFormatError(f"{path} is no whole tailed exposure: {error}") from error


def _pieces(aggregate: Exposure) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What an exposure holds: plain values by name, tensors by prefixed name."""
    held = {field.name: getattr(aggregate, field.name) for field in fields(aggregate)}
    tensors = {f"aggregate/{name}": v for name, v in held.items() if isinstance(v, Tensor)}
    header = {name: v for name, v in held.items() if not isinstance(v, Tensor)}
    header["groups"] = [list(astuple(group)) for group in aggregate.groups]
    if aggregate.messages.data_ptr() == aggregate.state.data_ptr():  # one matrix, written once
        del tensors["aggregate/messages"]
    return header, tensors


def _aggregate(header: dict[str, Any], tensors: dict[str, Tensor]) -> Exposure:
    start = "aggregate/"
    parts = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
    plain = {n: tuple(v) if isinstance(v, list) else v for n, v in header.items()}
    plain["groups"] = tuple(Group(*map(str, entry)) for entry in header["groups"])
    pieces: dict[str, Any] = {"messages": parts["state"], **plain, **parts}
    return Exposure(**pieces)


def _written(operation: Operation, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """An operation as JSON can hold it; its tensors go into ``tensors`` under the prefix."""
    if isinstance(operation, Opaque) and not restorable(operation.target):
        raise InputError(
            f"the tail holds {operation.title}, which has no form in files; keep the model and "
            "expose it again instead"
        )
    entry: dict[str, Any] = {"kind": type(operation).__name__}
    for field in fields(operation):
        entry[field.name] = _encoded(getattr(operation, field.name), prefix + field.name, tensors)
    return entry


def _encoded(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Slot):
        return {"slot": [value.position, value.rest, value.axis, str(value.dtype), value.fixed]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, tuple | list):
        return [_encoded(item, f"{name}.{k}", tensors) for k, item in enumerate(value)]
    if isinstance(value, dict):
        return {"keys": {k: _encoded(item, f"{name}.{k}", tensors) for k, item in value.items()}}
    if isinstance(value, torch._ops.OpOverload):
        return f"{value._schema.name.partition('::')[2]}.{value._overloadname}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"the tail holds a {type(value).__name__}, which has no form in files")


def _read(entry: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> Operation:
    values = {name: _decoded(value, tensors) for name, value in entry.items() if name != "kind"}
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    if entry["kind"] == Opaque.__name__:
        values["target"] = find_target(values["target"])
        return Opaque(**values)
    if entry["kind"] not in OPERATIONS:
        raise FileFormatError(f"the file names the operation {entry['kind']!r}, unknown here")
    return OPERATIONS[entry["kind"]](**values)


def _decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "slot" in value:
        position, rest, axis, dtype, fixed = value["slot"]
        return Slot(position, tuple(rest), axis, DTYPES[dtype], fixed)
    if "dtype" in value:
        return DTYPES[value["dtype"]]
    return {name: _decoded(item, tensors) for name, item in value["keys"].items()}
