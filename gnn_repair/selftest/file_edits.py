"""Ways in which a saved file can be altered: bytes, its description, its header, its numbers.

The format is read and sealed here on its own, not with the code that is tried.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

TYPES = {"F64": "float64", "F32": "float32", "I64": "int64", "I32": "int32", "I8": "int8"}
"""The types that our files hold, as torch and NumPy call them; truth values apart."""
NASTY: tuple[Any, ...] = (
    -1, 0, 1, 2, 7, 1.5, -0.0, 1e-320, 1e308, 2**31, 2**62, 2**64, 10**30, 20_000_000, True, False,
    None, "", "x", "GCN", "NaN", "\ud800", "\0", [], [1], {}, {"a": 1}, [[]], float("nan"),
    float("inf"),
)  # fmt: skip
"""What a field of a header may be turned into."""


@dataclass(frozen=True)
class Parts:
    """A file taken apart."""

    entries: dict[str, Any]
    """Tensor name to dtype, shape and offsets."""
    metadata: dict[str, Any]
    body: bytes

    @staticmethod
    def of(content: bytes) -> Parts:
        """Take a sound file apart."""
        (length,) = struct.unpack("<Q", content[:8])
        entries = json.loads(content[8 : 8 + length])
        return Parts(entries, entries.pop("__metadata__"), content[8 + length :])

    def whole(self) -> bytes:
        """The file of these parts."""
        text = json.dumps({"__metadata__": self.metadata, **self.entries}).encode()
        return struct.pack("<Q", len(text)) + text + self.body

    def sealed(self) -> Parts:
        """The same with the checksum that belongs to it, where one can be had."""
        try:
            described = sorted([n, self._type(n), e["shape"]] for n, e in self.entries.items())
            told = [self.metadata["kind"], self.metadata["header"], described]
            digest = hashlib.sha256(json.dumps(told).encode())
            for name, _, _ in described:
                first, last = self.entries[name]["data_offsets"]
                digest.update(self.body[first:last])
        except (KeyError, TypeError, ValueError):
            return self
        return replace(self, metadata={**self.metadata, "checksum": f"sha256:{digest.hexdigest()}"})

    def _type(self, name: str) -> str:
        dtype = self.entries[name]["dtype"]
        others = {"BOOL": "bool", "U8": "uint8", "BF16": "bfloat16", "F16": "float16"}
        return f"torch.{(TYPES | others).get(dtype, dtype)}"


# Bytes --------------------------------------------------------------------------------------------


def edit_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, cut, double or lengthen some of the bytes."""
    data = bytearray(content)
    # Half of the places lie in the description, which is a small part of a file.
    (length,) = struct.unpack("<Q", content[:8])
    place = rng.randrange(8 + length) if rng.random() < 0.5 else rng.randrange(len(data))
    size = rng.choice((1, 1, 2, 8, 64))
    how = rng.randrange(8)
    if how <= 1:
        data[place] ^= 1 << rng.randrange(8)
    elif how == 2:
        data[place : place + size] = rng.randbytes(size)
    elif how == 3:
        del data[place:]
    elif how == 4:
        del data[place : place + size]
    elif how == 5:
        data[place:place] = rng.randbytes(size)
    elif how == 6:
        data += rng.randbytes(size)
    else:
        data[:8] = struct.pack("<Q", rng.choice((0, 1, len(data), 2**31, 2**63, 2**64 - 1)))
    return bytes(data)


# The description of the tensors -------------------------------------------------------------------


def edit_description(parts: Parts, rng: random.Random) -> Parts:
    """Another type, shape, place or name of one tensor; valid JSON all the same."""
    entries = json.loads(json.dumps(parts.entries))
    name, other = rng.choice(sorted(entries)), rng.choice(sorted(entries))
    entry = entries[name]
    how = rng.randrange(8)
    if how == 0:
        entry["dtype"] = rng.choice((*TYPES, "BOOL", "U8", "U64", "F16", "BF16", "F8_E4M3", "?", 3))
    elif how == 1:
        entry["shape"] = _reshaped(entry["shape"], rng)
    elif how == 2:
        entry["data_offsets"] = [rng.choice((-1, 0, 8, 2**40, 2**63)), entry["data_offsets"][1]]
    elif how == 3:
        entry["data_offsets"], entries[other]["data_offsets"] = (
            entries[other]["data_offsets"], entry["data_offsets"],
        )  # fmt: skip
    elif how == 4:
        entries[rng.choice(("x", "", "rows", "parameters/x", "constants/mean"))] = entries.pop(name)
    elif how == 5:
        entries[name], entries[other] = entries[other], entries[name]
    elif how == 6:
        del entries[name]
    else:
        entry[rng.choice(sorted(entry))] = rng.choice(NASTY)
    return replace(parts, entries=entries)


def _reshaped(shape: list[int], rng: random.Random) -> list[Any]:
    """The same count in another arrangement, or a shape that is no match."""
    flat = int(np.prod(shape))
    return rng.choice(
        ([flat], [1, *shape], [*shape, 1], shape[::-1], [2**32, 2**32], [flat, 0], [-1, -flat], [])
    )


# The header ---------------------------------------------------------------------------------------


def edit_header(parts: Parts, rng: random.Random) -> Parts:
    """One value of the JSON header changed, removed or added; or its text made no plain JSON."""
    header = json.loads(parts.metadata["header"])
    place, key = _somewhere(header, rng)
    how = rng.randrange(6)
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(place, dict):
        place[rng.choice(("x", "", "seed", "hidden", "__class__"))] = rng.choice(NASTY)
    elif how == 2 and isinstance(place[key], int | float):
        place[key] = rng.choice((place[key] + 1, -place[key], place[key] * 2, place[key] // 1))
    else:
        place[key] = rng.choice(NASTY)
    text = json.dumps(header)
    if rng.random() < 0.1:
        depth = rng.choice((10, 2000, 100_000))
        text = rng.choice(
            ("[" * depth, '{"a":' * depth, "[]", "3", "", text[:-1] + ',"root":1,"root":2}')
        )
    return replace(parts, metadata={**parts.metadata, "header": text})


def _somewhere(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A random container within ``value`` that is not empty, and one of its keys."""
    while True:
        key = rng.choice(sorted(value)) if isinstance(value, dict) else rng.randrange(len(value))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            return value, key
        value = inner


def edit_metadata(parts: Parts, rng: random.Random) -> Parts:
    """A field of the metadata changed, removed or added."""
    metadata: dict[str, Any] = dict(parts.metadata)
    key = rng.choice((*sorted(metadata), "extra"))
    if rng.random() < 0.4 and key in metadata:
        del metadata[key]
    else:
        metadata[key] = rng.choice(("", "x", "gnn-repair repair", "gnn-repair exposure", 3, None))
    return replace(parts, metadata=metadata)


# The numbers --------------------------------------------------------------------------------------


def edit_numbers(parts: Parts, rng: random.Random) -> Parts:
    """Some numbers of one tensor replaced by others that fit its type."""
    name = rng.choice(sorted(parts.entries))
    entry, body = parts.entries[name], bytearray(parts.body)
    first, last = entry["data_offsets"]
    dtype = np.dtype(TYPES.get(entry["dtype"], "uint8"))
    values = np.frombuffer(body, dtype, (last - first) // dtype.itemsize, first).copy()
    if not len(values):
        return parts
    chosen = rng.randrange(len(values)) if rng.random() < 0.8 else slice(None)
    values[chosen] = _number(values[0], dtype, rng)
    body[first:last] = values.tobytes()
    return replace(parts, body=bytes(body))


def _number(value: Any, dtype: np.dtype[Any], rng: random.Random) -> Any:
    if dtype.kind == "f":
        wild = (np.nan, np.inf, -1.0, 0.0, 1e-300, 1e30, -value, value + 1e-9, value * (1 + 1e-6))
        with np.errstate(all="ignore"):
            return np.asarray(rng.choice(wild)).astype(dtype)
    edges = np.iinfo(dtype)
    wild = (edges.min, edges.max, -1 if edges.min else 2, 0, 1, 2, 3, 5, 100)
    return dtype.type(rng.choice(wild))


EDITS: dict[str, Callable[[Parts, random.Random], Parts]] = {
    "description": edit_description,
    "header": edit_header,
    "metadata": edit_metadata,
    "numbers": edit_numbers,
}
"""Edits that leave a file well-formed enough to be sealed again."""
