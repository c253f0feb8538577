"""The results store: one small JSON file a run, written whole or not at all.

::

    STORE/<protocol digest>/protocol.json
    STORE/<protocol digest>/<dataset>/<backbone>/split-<k>.json          a result
    STORE/<protocol digest>/<dataset>/<backbone>/split-<k>.failed.json   why there is none

Stores merge by copying one folder over another. A file that is truncated, or whose content does
not belong at its address, is renamed to ``*.damaged`` and named in a warning; it is never read as
a result and never ends a study.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnn_repair.errors import InputError
from gnn_repair.study.cases import Run, check_name
from gnn_repair.study.protocol import Protocol, digest_of

FORMAT = "gnn-repair run"
VERSION = 1

Record = dict[str, Any]
"""One run's result; see ``docs/study.md``."""

_DIGEST = re.compile(r"[0-9a-f]{12}")
_RECORD = re.compile(r"split-(\d{1,6})\.json")


class StoreWarning(UserWarning):
    """A file in a store was set aside."""


class Store:
    """A folder of results. Reading never needs write access."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"the store {self.root} is a file; name a folder")

    # Addresses --------------------------------------------------------------------------------

    def path(self, digest: str, run: Run) -> Path:
        """Where a run's result lies."""
        dataset, backbone = check_name(run.dataset, "dataset"), check_name(run.backbone, "backbone")
        return self.root / digest / dataset / backbone / f"split-{run.split}.json"

    def _failure_path(self, digest: str, run: Run) -> Path:
        return self.path(digest, run).with_suffix(".failed.json")

    def digests(self) -> list[str]:
        """The protocols that have a folder here."""
        if not self.root.is_dir():
            return []
        return sorted(p.name for p in self.root.iterdir() if _DIGEST.fullmatch(p.name))

    # Writing ----------------------------------------------------------------------------------

    def begin(self, protocol: Protocol) -> None:
        """Write the protocol beside its results; shows early whether the store can be written."""
        path = self.root / protocol.digest / "protocol.json"
        if self.settings(protocol.digest) is None:
            _write(path, protocol.settings())
        elif not os.access(path.parent, os.W_OK):
            raise InputError(f"cannot write to the store {self.root}; choose another folder")

    def put(self, record: Record) -> None:
        """Store a result in the place of an earlier one or of a recorded failure."""
        run = Run(record["dataset"], record["backbone"], record["split"])
        path = self.path(record["protocol"], run)
        _write(path, {"format": FORMAT, "version": VERSION, **record})
        self._failure_path(record["protocol"], run).unlink(missing_ok=True)

    def put_failure(self, digest: str, run: Run, error: str, trace: str) -> None:
        """Record why a run has no result."""
        _write(self._failure_path(digest, run), {"error": error, "traceback": trace})

    # Reading ----------------------------------------------------------------------------------

    def settings(self, digest: str) -> dict[str, Any] | None:
        """The protocol's settings, None where they are not here or do not match the digest."""
        path = self.root / digest / "protocol.json"
        if not path.is_file():
            return None
        settings = _read(path)
        if settings is None or digest_of(settings) != digest:
            _set_aside(path, "it is not the protocol its folder is named after")
            return None
        return settings

    def get(self, digest: str, run: Run) -> Record | None:
        """A run's result, if it is here."""
        path = self.path(digest, run)
        if not path.is_file():
            return None
        record = _read(path)
        fault = "it is truncated or not JSON" if record is None else _fault(record, digest, run)
        if fault:
            _set_aside(path, fault)
            return None
        return record

    def failure(self, digest: str, run: Run) -> str | None:
        """Why a run has no result, if that is recorded."""
        path = self._failure_path(digest, run)
        if not path.is_file():
            return None
        recorded = _read(path) or {}
        return str(recorded.get("error") or f"unknown; {path} is damaged")

    def records(self, digest: str) -> Iterator[Record]:
        """All results of a protocol, in the order of their addresses."""
        for run in self.runs(digest):
            record = self.get(digest, run)
            if record is not None:
                yield record

    def runs(self, digest: str) -> list[Run]:
        """What seems to be stored of a protocol, unread."""
        found = []
        for path in (self.root / digest).glob("*/*/split-*.json"):
            match = _RECORD.fullmatch(path.name)
            if match:
                found.append(Run(path.parent.parent.name, path.parent.name, int(match[1])))
        return sorted(found)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON to a temporary name, flush it to disk, and rename."""
    # Imported here because it loads torch, which reading a store does not need.
    from gnn_repair.files import replacing

    try:
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"cannot write {path}: {reason}; make room or choose another store, then run again: "
            "what is stored is kept"
        ) from error


def _read(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None where it holds none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    return content if isinstance(content, dict) else None


def _fault(record: Record, digest: str, run: Run) -> str:
    """Why a record does not belong at its address; empty where it does."""
    if record.get("format") != FORMAT:
        return "it is not a result of this package"
    if record.get("version") != VERSION:
        return f"its format version is {record.get('version')!r}, not {VERSION}"
    expected = {
        "protocol": digest,
        "dataset": run.dataset,
        "backbone": run.backbone,
        "split": run.split,
    }
    for name, value in expected.items():
        if record.get(name) != value:
            return f"its {name} is {record.get(name)!r}, not {value!r}"
    for part in ("frozen", "methods", "graph", "environment"):
        if not isinstance(record.get(part), dict):
            return f"it has no {part}"
    return ""


def _set_aside(path: Path, fault: str) -> None:
    aside = path.with_name(path.name + ".damaged")
    try:
        path.replace(aside)
        where = f"set aside as {aside.name}"
    except OSError:
        where = "ignored"
    warnings.warn(f"{path}: {fault}; {where}", StoreWarning, stacklevel=4)
