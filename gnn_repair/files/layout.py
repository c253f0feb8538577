"""What a safetensors file says about itself, believed only as far as the file is long.

A file is eight bytes with the header's length, a JSON header, and the tensors' bytes without gaps.
The library that writes it reads it as well; reading it here means that every size is compared with
the file before anything is allocated, and that every fault is one sentence.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
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
    file.seek(layout.start + entry.first)
    raw = np.fromfile(file, np.uint8, entry.last - entry.first)
    if len(raw) != entry.last - entry.first:
        raise InputError(f"it ended within the tensor {entry.name[:80]!r}")
    if entry.dtype is torch.bool and raw.max(initial=0) > 1:
        raise InputError(f"its tensor {entry.name[:80]!r} holds neither true nor false")
    return torch.from_numpy(raw).view(entry.dtype).reshape(entry.shape)
