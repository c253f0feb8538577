"""Saving and loading values: safetensors with a JSON header and a checksum, whole or not at all.

A file's sizes are compared with its length by the format's own library before anything is
allocated; what it holds is believed once the checksum is right, and then checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, get_args, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gnn_repair.atomic import as_path, replacing
from gnn_repair.errors import FileFormatError, InputError

INDEX = (torch.int32, torch.int64)
"""Types that numbers of nodes, rows and terms may have."""
REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types that a model's numbers may have."""
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""What safetensors calls the types that are saved."""


def save_tensors(
    path: str | Path, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write ``tensors`` and the JSON ``header`` as one safetensors file of this ``kind``."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in flat.items():
        if tensor.dtype not in _NAMES:
            raise InputError(f"{path} cannot be written: {name} is {tensor.dtype}")
    try:
        text = json.dumps(dict(header), allow_nan=False)
        parse_json(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be written: {error}") from error
    metadata = {"kind": kind, "header": text, "checksum": checksum(kind, text, flat)}
    with replacing(as_path(path)) as temporary, temporary.open("wb") as file:
        _write(file, metadata, flat)


def _write(file: BinaryIO, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """The format itself: the header's length, the header, the tensors, wide types first.

    Its own library would copy tensors that share memory, and write to a temporary file of its own.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    names, last = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)), 0
    for name in names:
        tensor, first = tensors[name], last
        last += tensor.nbytes
        described = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**described, "data_offsets": [first, last]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        file.write(_raw_bytes(tensors[name]))


def load_tensors(
    path: str | Path, kind: str | None, *, formerly: Collection[str] = (), sealed: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read back what :func:`save_tensors` wrote: header and tensors (on the CPU).

    Files of earlier versions carry no checksum; with ``sealed`` they are rejected. ``formerly`` are
    other kinds that are read, too; where ``kind`` is None, every kind is.
    """
    path = as_path(path)
    try:
        if not path.is_file():
            raise FileFormatError(f"{path} does not exist or is not a file")
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            stored = metadata.get("kind", "something else")
            if kind not in (None, stored) and stored not in formerly:
                raise FileFormatError(f"{path} holds {stored[:80]}, not {kind}")
            tensors = {name: _copied(name, file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        header = _opened(metadata, tensors, sealed)
    except FileFormatError:
        raise
    except (InputError, SafetensorError, ValueError) as error:
        raise FileFormatError(
            f"{path} is damaged or not a safetensors file: {' '.join(str(error).split())[:200]}"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise FileFormatError(f"{str(path)!r:.200} cannot be read: {reason}; check it") from error
    return header, tensors


def _copied(name: str, mapped: Tensor) -> Tensor:
    """A tensor that does not change with its file; truth values are true or false."""
    if mapped.dtype is torch.bool and bool((mapped.view(torch.uint8) > 1).any()):
        raise InputError(f"its tensor {name[:80]!r} holds neither true nor false")
    return mapped.clone()


def _opened(
    metadata: Mapping[str, str], tensors: Mapping[str, Tensor], sealed: bool
) -> dict[str, Any]:
    """The header, once the checksum is right."""
    if not {"kind", "header"} <= metadata.keys() <= {"kind", "header", "checksum"}:
        raise InputError("its metadata are not those of a saved value")
    if "checksum" not in metadata and sealed:
        raise InputError("it has no checksum")
    expected = metadata.get("checksum")
    if expected not in (None, checksum(metadata["kind"], metadata["header"], tensors)):
        raise InputError("its checksum does not match its content")
    header = parse_json(metadata["header"])
    if not isinstance(header, dict):
        raise InputError("its header is not a set of named values")
    return header


def checksum(kind: str, header: str, tensors: Mapping[str, Tensor]) -> str:
    """A digest of everything in a file: kind, header, and each tensor's name, type, shape, bytes.

    Args:
        kind: what the file holds.
        header: its JSON text.
        tensors: contiguous tensors on the CPU.
    """
    names = sorted(tensors)
    described = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([kind, header, described]).encode())
    for name in names:
        digest.update(_raw_bytes(tensors[name]))
    return f"sha256:{digest.hexdigest()}"


def _raw_bytes(tensor: Tensor) -> memoryview:
    """A contiguous tensor's bytes, not copied."""
    # One number counts as contiguous whatever its stride, but is viewed as bytes only with 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


# Checks of what was read --------------------------------------------------------------------------


@contextmanager
def contents_of(path: str | Path) -> Iterator[None]:
    """Refusals of a value inside become sentences about its file."""
    try:
        yield
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(f"{path} is inconsistent: {error}") from error


def check_tensor(name: str, tensor: Tensor, dims: int, dtypes: Collection[torch.dtype]) -> None:
    """Raise where a tensor has not ``dims`` axes, one of ``dtypes`` and finite values."""
    if tensor.dtype not in dtypes or tensor.dim() != dims:
        raise InputError(f"{name} is {tensor.dtype} of shape {list(tensor.shape)}")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{name} holds NaN or infinite values")


def check_fields(values: Any, hints: Mapping[str, Any], what: str) -> dict[str, Any]:
    """``values`` once it holds exactly these names with values of these types.

    Args:
        values: what was read.
        hints: name to type: JSON's own, unions with None, or a dataclass of such.
        what: what the values are, in words.
    """
    if not isinstance(values, dict):
        raise InputError(f"its {what} is {reprlib.repr(values)}, not a set of named values")
    if missing := sorted(hints.keys() - values.keys()):
        raise InputError(f"its {what} lacks {missing[0]}")
    if unknown := sorted(values.keys() - hints.keys()):
        raise InputError(f"its {what} holds {reprlib.repr(unknown[0])}, which nothing here reads")
    for name, hint in hints.items():
        if not _fits(values[name], hint, name):
            text = reprlib.repr(values[name])
            raise InputError(f"its {name} is {text}, not {_words(hint)}")
    return values


def dataclass_hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: Any, hint: Any, name: str) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, option, name) for option in get_args(hint))
    if is_dataclass(hint):
        return bool(check_fields(value, dataclass_hints(hint), name))  # type: ignore[arg-type]
    # A whole number is a float that JSON wrote short; True is no number.
    return type(value) is hint or (hint is float and type(value) is int)


def _words(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    names |= {list: "a list", dict: "a set of named values", type(None): "nothing"}
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return " or ".join(names.get(option, getattr(option, "__name__", "")) for option in options)


# JSON, read strictly ------------------------------------------------------------------------------


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; doubled names, NaN, infinities and bad text are rejected."""
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite
        )
        # Half of a surrogate pair can be written as an escape but never printed.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise InputError("its JSON is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"its JSON cannot be read ({error})") from error
    return value


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"{reprlib.repr(name)} occurs twice")
        entries[name] = value
    return entries


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{reprlib.repr(text)} is too large")
    return value
