"""The safetensors format: what a file says about itself, believed as far as the file is long.

A file is eight bytes with the header's length, a JSON header, and the tensors' bytes without gaps.
The format's own library reads our files (a test does). Written here, tensors may share memory, need
no copy and never land in a file of another name; read here, every size is compared with the file
before anything is allocated, and every fault is one sentence.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.files.headers import check_fields, parse_json

LARGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor: its type, its shape and where its bytes are, counted from the header's end."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """A file's parts."""

    metadata: dict[str, str]
    entries: tuple[Entry, ...]
    start: int
    """Where the tensors' bytes begin."""


def write_layout(
    file: BinaryIO, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> None:
    """Write contiguous tensors on the CPU, wide types first so that all of them stay aligned."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    last = 0
    for name in names:
        tensor, first = tensors[name], last
        last += tensor.nbytes
        described = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**described, "data_offsets": [first, last]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        file.write(raw_bytes(tensors[name]))


def raw_bytes(tensor: Tensor) -> memoryview:
    """A contiguous tensor's bytes, not copied."""
    # One number counts as contiguous whatever its stride, but is viewed as bytes only with 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def read_layout(file: BinaryIO, size: int) -> Layout:
    """The parts of a file of ``size`` bytes; raises where they do not fill it exactly."""
    prefix = file.read(8)
    if len(prefix) < 8:
        raise InputError(f"it has {size} bytes")
    (length,) = struct.unpack("<Q", prefix)
    if length > min(size - 8, LARGEST_HEADER):
        raise InputError(f"its header claims {length} bytes in a file of {size}")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise InputError("its header is not a set of named values")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InputError("its metadata are not texts")
    entries = sorted((_entry(*item) for item in header.items()), key=lambda e: (e.first, e.last))
    ends = [0, *(entry.last for entry in entries), size - 8 - length]
    starts = [entry.first for entry in entries]
    if starts != ends[:-2] or ends[-2] != ends[-1] or any(a > b for a, b in pairwise(ends)):
        raise InputError("its tensors do not fill the file")
    return Layout(metadata, tuple(entries), 8 + length)


def _entry(name: str, described: Any) -> Entry:
    hints = {"dtype": str, "shape": list, "data_offsets": list}
    check_fields(described, hints, f"tensor {name[:80]!r}")
    shape, place = described["shape"], described["data_offsets"]
    whole = all(type(number) is int and number >= 0 for number in (*shape, *place))
    if described["dtype"] not in DTYPES or not whole or len(place) != 2:
        raise InputError(f"its tensor {name[:80]!r} has an unknown type, shape or place")
    dtype = DTYPES[described["dtype"]]
    if math.prod(shape) * dtype.itemsize != place[1] - place[0]:
        raise InputError(f"its tensor {name[:80]!r} has another size than its shape says")
    return Entry(name, dtype, tuple(shape), *place)


def read_tensor(file: BinaryIO, layout: Layout, entry: Entry) -> Tensor:
    """One tensor's values."""
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    raw = raw_bytes(tensor)
    file.seek(layout.start + entry.first)
    if file.readinto(raw) != len(raw):  # type: ignore[attr-defined]
        raise InputError(f"it ended within the tensor {entry.name[:80]!r}")
    if entry.dtype is torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
        raise InputError(f"its tensor {entry.name[:80]!r} holds neither true nor false")
    return tensor
