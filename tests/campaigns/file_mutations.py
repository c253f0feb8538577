"""Altered files: each is refused in one sentence or loads as a sound value."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import random
import struct
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnn_repair.errors import FileFormatError, GnnRepairError
from tests.campaigns import CampaignResult
from tests.campaigns.file_subjects import Subject, fingerprint, make_subjects

SPARE_MEMORY = 64 << 20
"""Bytes a load of a file of a few kilobytes may take: far above what libraries allocate now and
then, far below what a size that was believed would take."""
KEPT_FAULTS = 50
"""Faults told in words; the rest are counted."""


def campaign(
    seed: int,
    seconds: float,
    on_progress: Callable[[str], None] | None = None,
    most: int | None = None,
) -> CampaignResult:
    """Alter saved exposures, frozen models, repairs and solutions, and load them.

    A fault is an exception other than :class:`FileFormatError`, a message of several lines, a value
    that differs from the saved one though its checksum was not made anew, a value that loads and
    does not hold what it must, and memory far beyond the file.

    Args:
        seed: the same seed tries the same files.
        seconds: when to stop.
        on_progress: told what was done every few seconds.
        most: files of each kind at most.
    """
    trial, begun, told = _Trial(random.Random(seed)), time.monotonic(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gnn-repair-") as name:
        subjects = make_subjects(Path(name))
        trial.originals = {s.name: _originals(s, Path(name) / "altered") for s in subjects}
        rounds = 0
        while time.monotonic() - begun < seconds and (most is None or rounds < most):
            for subject in subjects:
                trial.alter(subject, Path(name) / "altered")
            rounds += 1
            if on_progress and time.monotonic() - told > 2:
                told = time.monotonic()
                on_progress(f"{rounds} files of each kind, {trial.counts['faults']} faults")
    return CampaignResult(
        "altered files", rounds * len(subjects), tuple(trial.faults), dict(trial.counts)
    )


def _originals(subject: Subject, path: Path) -> list[str]:
    """What the sound files hold; loading them also compiles kernels, which takes memory once."""
    found = []
    for content in subject.files:
        path.write_bytes(content)
        found.append(fingerprint(subject.load(path)))
    return found


@dataclass
class _Trial:
    """What was tried and found."""

    rng: random.Random
    originals: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def alter(self, subject: Subject, path: Path) -> None:
        """Alter one file of this kind and load it."""
        which = self.rng.randrange(len(subject.files))
        content = subject.files[which]
        how = self.rng.choice(("bytes", *EDITS))
        # Sealed again, so that the checks behind the checksum are tried, too.
        sealed = how != "bytes" and self.rng.random() < 0.6
        if how == "bytes":
            altered = edit_bytes(content, self.rng)
        else:
            parts = EDITS[how](Parts.of(content), self.rng)
            altered = (parts.sealed() if sealed else parts).whole()
        path.write_bytes(altered)
        fault = self._outcome(subject, path, self.originals[subject.name][which], sealed)
        self.counts[f"{subject.name}: tried"] += 1
        if fault:
            self.counts["faults"] += 1
            if len(self.faults) < KEPT_FAULTS:
                told = f"{how}{', sealed again' if sealed else ''}"
                self.faults.append(f"{subject.name} ({told}): {fault}"[:500])

    def _outcome(self, subject: Subject, path: Path, original: str, sealed: bool) -> str:
        """What is wrong with how a load ended; empty where nothing is."""
        memory = _Memory()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = subject.load(path)
        except FileFormatError as error:
            self.counts[f"{subject.name}: refused"] += 1
            return "a message of several lines" if "\n" in str(error) else memory.fault()
        except Exception as error:
            self.counts[f"{subject.name}: foreign exceptions"] += 1
            return f"{type(error).__name__}: {error}"
        if fingerprint(value) == original:
            self.counts[f"{subject.name}: unchanged"] += 1
            return memory.fault()
        if not sealed:
            self.counts[f"{subject.name}: silent changes"] += 1
            return "loaded with another content"
        self.counts[f"{subject.name}: other sound values"] += 1
        return memory.fault() or _unsound(subject, value)


def _unsound(subject: Subject, value: object) -> str:
    """What is wrong with a value; one so broken that it cannot even be judged is, too."""
    doing = "when judged"
    try:
        if said := subject.judge(value):
            return said
        doing = "in use"
        with warnings.catch_warnings(), contextlib.suppress(GnnRepairError):
            warnings.simplefilter("ignore")
            subject.use(value)
    except Exception as error:
        return f"loaded, and {doing} {type(error).__name__}: {error}"
    return ""


class _Memory:
    """The most memory this process had since this object was made, where the system tells it."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak
            self.before: int | None = self._peak()
        except OSError:
            self.before = None

    @staticmethod
    def _peak() -> int:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
        raise OSError("no peak is told")

    def fault(self) -> str:
        """Whether far more memory was taken than the file has bytes."""
        grown = 0 if self.before is None else self._peak() - self.before
        return f"took {grown >> 20} MiB" if grown > SPARE_MEMORY else ""


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


# What is written in JSON: the description of the tensors, the header, the metadata ----------------


def edit_tree(tree: Any, rng: random.Random) -> None:
    """One place of a tree removed, renamed, changed, or given what stands at another place."""
    (place, key), (other, name) = _somewhere(tree, rng), _somewhere(tree, rng)
    how = rng.randrange(6)
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(place, dict):
        place[rng.choice(("x", "", "seed", "hidden", "rows", "__class__"))] = place.pop(key)
    elif how == 2 and isinstance(place[key], int | float):
        place[key] = rng.choice((place[key] + 1, -place[key], place[key] * 2, place[key] // 1))
    elif how in (3, 4):
        held = copy.deepcopy(place[key])
        place[key] = copy.deepcopy(other[name])
        if how == 4:
            other[name] = held
    else:
        place[key] = rng.choice(NASTY)


def _somewhere(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A random container within ``value`` that is not empty, and one of its keys."""
    while True:
        key = rng.choice(sorted(value)) if isinstance(value, dict) else rng.randrange(len(value))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            return value, key
        value = inner


def edit_description(parts: Parts, rng: random.Random) -> Parts:
    """Another type, shape, place or name of one tensor; valid JSON all the same."""
    entries = json.loads(json.dumps(parts.entries))
    entry = entries[rng.choice(sorted(entries))]
    if rng.random() < 0.7:
        edit_tree(entries, rng)
    else:  # the same numbers, or more of them, in another arrangement
        shape = entry["shape"]
        shapes: Any = ([], [-1], [2**32, 2**32], [math.prod(shape)], shape[::-1])
        entry |= {"shape": rng.choice(shapes), "dtype": rng.choice((*TYPES, "U8", "F8_E4M3", 3))}
    return replace(parts, entries=entries)


def edit_header(parts: Parts, rng: random.Random) -> Parts:
    """One value of the JSON header changed, removed or added; or its text made no plain JSON."""
    header = json.loads(parts.metadata["header"])
    edit_tree(header, rng)
    text = json.dumps(header)
    if rng.random() < 0.1:
        depth = rng.choice((10, 2000, 100_000))
        text = rng.choice(
            ("[" * depth, '{"a":' * depth, "[]", "3", "", text[:-1] + ',"root":1,"root":2}')
        )
    return replace(parts, metadata={**parts.metadata, "header": text})


def edit_metadata(parts: Parts, rng: random.Random) -> Parts:
    """A field of the metadata changed, removed or added."""
    metadata = dict(parts.metadata)
    edit_tree(metadata, rng)
    if rng.random() < 0.3:
        metadata["kind"] = rng.choice(("gnn-repair repair", "gnn-repair exposure"))
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
