"""The arguments of PyTorch's own operations as JSON and tensors, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.opaque import Slot
from gnn_repair.files import check_fields

DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64, torch.bool)}
SLOT = {"position": int, "rest": list, "axis": int, "dtype": str, "fixed": bool}


def written_name(target: Any) -> str:
    """An ATen operation as ``name.overload``."""
    return f"{target._schema.name.partition('::')[2]}.{target._overloadname or 'default'}"


def encoded(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON can hold it; tensors in it go into ``tensors`` under their name."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Slot):
        held = {"position": value.position, "rest": list(value.rest), "axis": value.axis}
        return {"slot": {**held, "dtype": str(value.dtype), "fixed": value.fixed}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, tuple | list):
        return [encoded(item, f"{name}.{k}", tensors) for k, item in enumerate(value)]
    if isinstance(value, dict):
        return {str(k): encoded(item, f"{name}.{k}", tensors) for k, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"the tail holds a {type(value).__name__}, which has no form in files")


def decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of :func:`encoded`; what it reads is taken out of ``tensors``."""
    if isinstance(value, list):
        return [decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        if value["tensor"] not in tensors:
            raise InputError(f"it lacks {str(value['tensor'])[:80]!r}")
        return tensors.pop(value["tensor"])
    if value.keys() == {"slot"}:
        return _slot(check_fields(value["slot"], SLOT, "slot"))
    if value.keys() == {"dtype"}:
        return _dtype(value["dtype"])
    return {name: decoded(item, tensors) for name, item in value.items()}


def _slot(held: dict[str, Any]) -> Slot:
    rest = held["rest"]
    if any(type(size) is not int or size < 0 for size in rest):
        raise InputError(f"a slot of its tail has shape {str(rest)[:60]}")
    return Slot(held["position"], tuple(rest), held["axis"], _dtype(held["dtype"]), held["fixed"])


def _dtype(name: Any) -> torch.dtype:
    if not isinstance(name, str) or name not in DTYPES:
        raise InputError(f"its tail names the type {str(name)[:40]!r}, which is none known here")
    return DTYPES[name]
