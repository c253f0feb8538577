"""Named tensors and a header as one file, with a checksum over all of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnn_repair.atomic import as_path, replacing
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.files.headers import parse_json
from gnn_repair.files.layout import (
    DTYPES,
    Layout,
    raw_bytes,
    read_layout,
    read_tensor,
    write_layout,
)

INDEX = (torch.int32, torch.int64)
"""Types that numbers of nodes, rows and terms may have."""
REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types that a model's numbers may have."""


def save_tensors(
    path: str | Path, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write ``tensors`` and the JSON ``header`` as one safetensors file of this ``kind``."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in flat.items():
        if tensor.dtype not in DTYPES.values():
            raise InputError(f"{path} cannot be written: {name} is {tensor.dtype}")
    try:
        text = json.dumps(dict(header), allow_nan=False)
        parse_json(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be written: {error}") from error
    metadata = {"kind": kind, "header": text, "checksum": checksum(kind, text, flat)}
    with replacing(as_path(path)) as temporary, temporary.open("wb") as file:
        write_layout(file, metadata, flat)


def load_tensors(
    path: str | Path, kind: str, *, formerly: str = "", sealed: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read back what :func:`save_tensors` wrote: header and tensors (on the CPU).

    Files of earlier versions carry no checksum; with ``sealed`` they are refused. ``formerly`` is
    another kind that is read, too.
    """
    path = as_path(path)
    try:
        if not path.is_file():
            raise FileFormatError(f"{path} does not exist or is not a file")
        with path.open("rb") as file:
            layout = read_layout(file, os.fstat(file.fileno()).st_size)
            _check_kind(path, layout, kind, formerly)
            tensors = {entry.name: read_tensor(file, layout, entry) for entry in layout.entries}
        header = _opened(layout, tensors, sealed)
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(f"{path} is damaged or not a safetensors file: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise FileFormatError(f"{str(path)!r:.200} cannot be read: {reason}; check it") from error
    return header, tensors


def _check_kind(path: Path, layout: Layout, kind: str, formerly: str) -> None:
    found = layout.metadata.get("kind", "something else")
    if found not in (kind, formerly):
        raise FileFormatError(f"{path} holds {found[:80]}, not {kind}")


def _opened(layout: Layout, tensors: Mapping[str, Tensor], sealed: bool) -> dict[str, Any]:
    """The header, once the checksum is right."""
    metadata = layout.metadata
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
        digest.update(raw_bytes(tensors[name]))
    return f"sha256:{digest.hexdigest()}"


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
