"""Tailed exposures in files: operations by kind, settings in the header, constants as tensors."""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.names import NodeNames
from gnn_repair.exposure.saving import ABSENT, OPTIONAL, check_pieces
from gnn_repair.exposure.tails import operations as kinds
from gnn_repair.exposure.tails.opaque import Opaque, find_target, restorable
from gnn_repair.exposure.tails.opaque_saving import decoded, encoded, written_name
from gnn_repair.exposure.tails.operations import Operation, TailGraph
from gnn_repair.exposure.value import Exposure, Group, held_header, held_of_header
from gnn_repair.files import check_fields, check_tensor, contents_of, load_tensors, save_tensors

if TYPE_CHECKING:
    from gnn_repair.exposure.tails.tailed import TailedExposure

KIND = "gnn-repair tailed exposure"
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
    with contents_of(path):
        check_fields(header, {"aggregate": dict, "tail": dict, "residual": float | None}, "header")
        tail = check_fields(header["tail"], {"width": int, "operations": list}, "tail")
        if header["residual"] is not None and header["residual"] < 0:
            raise InputError(f"residual is {header['residual']}, which is negative")
        frozen = _taken("frozen_logits", tensors, ((3,), DOUBLE))
        operations = tuple(
            _read(entry, f"tail/{place}/", tensors)
            for place, entry in enumerate(tail["operations"])
        )
        aggregate = _aggregate(header["aggregate"], tensors)
        graph = TailGraph(tail["width"], operations)
        return TailedExposure(aggregate, graph, frozen, header["residual"])


def _pieces(aggregate: Exposure) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What an exposure holds: plain values by name, tensors by prefixed name."""
    held = {field.name: getattr(aggregate, field.name) for field in fields(aggregate)}
    tensors = {f"aggregate/{name}": v for name, v in held.items() if isinstance(v, Tensor)}
    header = {n: list(v) if isinstance(v, tuple) else v for n, v in held.items()}
    header = {n: v for n, v in header.items() if not isinstance(v, Tensor) and n not in OPTIONAL}
    header["groups"] = [list(astuple(group)) for group in aggregate.groups]
    header["held"] = held_header(aggregate.held)
    header["names"] = aggregate.names.header() if aggregate.names.typed else None
    if aggregate.messages.data_ptr() == aggregate.state.data_ptr():  # one matrix, written once
        del tensors["aggregate/messages"]
    return header, tensors


def _aggregate(header: dict[str, Any], tensors: dict[str, Tensor]) -> Exposure:
    """The mixture out of what is left of the tensors."""
    start = "aggregate/"
    if unread := sorted(name for name in tensors if not name.startswith(start)):
        raise InputError(f"it holds {unread[0][:80]!r}, which nothing here reads")
    parts = {name.removeprefix(start): tensor for name, tensor in tensors.items()}
    header = {**ABSENT, **header}
    check_pieces(header, parts)
    plain = {n: tuple(v) if isinstance(v, list) else v for n, v in header.items()}
    plain["groups"] = tuple(Group(*texts) for texts in header["groups"])
    plain["names"] = NodeNames.of_header(header["names"])
    plain["held"] = held_of_header(header["held"])
    pieces: dict[str, Any] = {"messages": parts["state"], **plain, **parts}
    return Exposure(**pieces)


def _written(operation: Operation, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """An operation as JSON can hold it; its tensors go into ``tensors`` under the prefix."""
    if isinstance(operation, Opaque) and not restorable(operation.target):
        raise InputError(
            f"the tail holds {operation.title}, which has no form in files; keep the model and "
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
        raise InputError(f"an operation of its tail is {str(entry)[:60]!r}, which is none known")
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
        raise InputError(f"an operation of its tail reads value {str(number)[:40]!r}")
    return number


def _taken(name: str, tensors: dict[str, Tensor], form: Any) -> Tensor:
    """A tensor taken out of those that were read, once it is what it must be."""
    if name not in tensors:
        raise InputError(f"it lacks {name}")
    axes, types = form
    tensor = tensors.pop(name)
    check_tensor(name, tensor, tensor.dim() if tensor.dim() in axes else axes[0], types)
    return tensor
