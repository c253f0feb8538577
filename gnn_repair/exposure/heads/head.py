"""Heads as wholes: checked, in files and in words."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.functions import FUNCTIONS
from gnn_repair.exposure.heads.opaque import Opaque
from gnn_repair.exposure.heads.operations import (
    KINDS,
    Activation,
    Constant,
    HeadGraph,
    Operation,
    Select,
    Softmax,
)
from gnn_repair.files import check_fields, check_tensor

FAULTS = (RuntimeError, LookupError, TypeError, ValueError, AttributeError)
"""What PyTorch raises when operations and their constants do not fit together."""
BY_NAME: dict[str, type[Operation]] = {kind.__name__: kind for kind in KINDS}
BY_NAME[Opaque.__name__] = Opaque
ANSWERS = {
    "piecewise linear": "piecewise linear head: whether a class can win is decided exactly, up to "
    "the time given",
    "bounded": "smooth head: reweightings that let a class win are replayed on the model; that "
    "none does is proved by bounds where they suffice",
    "opaque": "a head that is not understood completely: reweightings that let a class win are "
    "replayed on the model; that none does cannot be proved",
}
SHOWN = 12
"""Operations named before the rest is counted."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def check_head(head: HeadGraph, num_nodes: int, device: torch.device) -> int:
    """Check every operation on what those before it make of one node; how wide the last is.

    Raises :class:`InputError` naming the first operation that does not fit.
    """
    values = [torch.zeros(1, head.width, dtype=torch.float64, device=device)]
    node = torch.zeros(1, dtype=torch.long, device=device)
    for place, operation in enumerate(head.operations):
        title = f"operation {place} ({operation.title}) of the head"
        known = all(0 <= i <= place for i in operation.inputs)
        _require(known, f"{title} reads values {list(operation.inputs)} that come later")
        if isinstance(operation, Activation):
            words = f"an activation of the head is none of {', '.join(FUNCTIONS)}"
            _require(operation.name in FUNCTIONS, words)
        for name, constant in operation.constants():
            _check_constant(name, f"{name} of {title}", constant, num_nodes)
        read = [values[i] for i in operation.inputs]
        try:
            fitting = operation.fits([value.shape[1] for value in read])
            made = operation.evaluate(read, node) if fitting else None
        except FAULTS as error:
            first = str(error).partition("\n")[0]
            raise InputError(f"{title} does not fit what it reads: {first}") from error
        usable = made is not None and made.shape[:1] == (1,) and made.dim() == 2
        _require(usable, f"{title} does not fit what it reads")
        values.append(made)  # type: ignore[arg-type]
    return values[-1].shape[1]


def _check_constant(name: str, title: str, constant: Tensor, num_nodes: int) -> None:
    if not constant.is_floating_point():
        return
    _require(constant.dtype == torch.float64, f"{title} is {constant.dtype}, not float64")
    _require(bool(torch.isfinite(constant).all()), f"{title} holds NaN or infinite values")
    rows = constant.shape[0] if constant.dim() == 2 and name != "weight" else num_nodes
    _require(rows == num_nodes, f"{title} has {rows} rows for {num_nodes} nodes")


# In files -----------------------------------------------------------------------------------------


def write_head(head: HeadGraph, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A head as JSON can hold it; its constants go into ``tensors``."""
    written = []
    for place, operation in enumerate(head.operations):
        entry: dict[str, Any] = {"kind": type(operation).__name__, "inputs": list(operation.inputs)}
        for name, form in operation.FORM.items():
            if isinstance(form, tuple):
                tensors[f"head/{place}/{name}"] = getattr(operation, name)
            else:
                entry[name] = operation.setting(name, f"head/{place}/", tensors)
        written.append(entry)
    return {"width": head.width, "operations": written}


def read_head(entry: Any, tensors: dict[str, Tensor]) -> HeadGraph:
    """What :func:`write_head` wrote; its constants are taken out of ``tensors``."""
    check_fields(entry, {"width": int, "operations": list}, "head")
    operations = [
        _read(operation, f"head/{place}/", tensors)
        for place, operation in enumerate(entry["operations"])
    ]
    return HeadGraph(entry["width"], tuple(operations))


def _read(entry: Any, prefix: str, tensors: dict[str, Tensor]) -> Operation:
    kind = BY_NAME.get(str(entry.get("kind"))) if isinstance(entry, dict) else None
    if kind is None:
        raise InputError(f"an operation of its head is {str(entry)[:60]!r}, which is none known")
    settings = {name: form for name, form in kind.FORM.items() if not isinstance(form, tuple)}
    plain = {name: list if isinstance(form, list) else form for name, form in settings.items()}
    check_fields(entry, {"kind": str, "inputs": list, **plain}, "operation")
    values: dict[str, Any] = {name: entry[name] for name in settings}
    for name, form in settings.items():
        if isinstance(form, list):
            numbered = {str(k): item for k, item in enumerate(entry[name])}
            check_fields(numbered, dict.fromkeys(numbered, form[0]), name)
    values["inputs"] = tuple(_whole(number) for number in entry["inputs"])
    for name, form in kind.FORM.items():
        if isinstance(form, tuple):
            values[name] = _taken(prefix + name, tensors, form)
    return kind.of_settings(values, tensors)


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


# In words -----------------------------------------------------------------------------------------


def kind_of(head: HeadGraph) -> str:
    """Which answers to expect: ``piecewise linear``, ``bounded`` or ``opaque``."""
    if any(isinstance(operation, Opaque) for operation in head.operations):
        return "opaque"
    # A softmax at the very end keeps the order of the classes.
    last = head.operations[-1:]
    body = head.operations[:-1] if last and isinstance(last[0], Softmax) else head.operations
    return "bounded" if any(operation.smooth for operation in body) else "piecewise linear"


def followed_by(head: HeadGraph) -> str:
    """The head's operations in a line, such as ``layer_norm, relu, affine``."""
    titles = [op.title for op in head.operations if not isinstance(op, Select | Constant)]
    counted = [(title, len(list(same))) for title, same in groupby(titles)]
    named = [title if count == 1 else f"{title} × {count}" for title, count in counted]
    more = len(named) - SHOWN
    return ", ".join(named[:SHOWN]) + (f" and {more} more steps" if more > 0 else "")
