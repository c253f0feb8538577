"""The results store: one small JSON file a run, written whole or not at all.

::

    STORE/<protocol digest>/protocol.json
    STORE/<protocol digest>/<dataset>/<backbone>/split-<k>.json          a result
    STORE/<protocol digest>/<dataset>/<backbone>/split-<k>.failed.json   why there is none

Stores merge by copying one folder over another. Reading changes nothing: a file that is truncated,
or whose content does not belong at its address, is named in a warning and left out. When a result
takes its place it is kept beside it as ``*.damaged``.

Folders of earlier versions are named after the whole tree of settings instead of its differences
from the paper; they are read as what they hold.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnn_repair.atomic import cannot_write, replacing
from gnn_repair.errors import InputError
from gnn_repair.study.cases import NAME, Run, check_name
from gnn_repair.study.protocol import Protocol, differences, digest_of
from gnn_repair.study.records import (
    FORMAT,
    VERSION,
    Record,
    StoreWarning,
    address_fault,
    is_newer,
    leave_out,
    read_object,
    record_fault,
)
from gnn_repair.study.results_source import ResultsSource

__all__ = ["FORMAT", "VERSION", "Record", "Store", "StoreWarning"]

PROTOCOL_FORMAT = "gnn-repair protocol"
_DIGEST = re.compile(r"[0-9a-f]{12}")
_RECORD = re.compile(r"split-(\d{1,6})\.json")
_FAILED = re.compile(r"split-(\d{1,6})\.failed\.json")


class Store(ResultsSource):
    """A folder of results. Reading never changes it and never needs write access."""

    def __init__(self, root: str | Path) -> None:
        try:
            self.root = Path(root)
            if "\0" in str(root):
                raise ValueError("embedded null byte")
            is_file = self.root.exists() and not self.root.is_dir()
        except (OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{str(root)[:80]!r} cannot be a store: {reason}") from error
        if is_file:
            raise InputError(f"the store {self.root} is a file; name a folder")
        self._meanings: dict[str, str] | None = None

    # Addresses --------------------------------------------------------------------------------

    def path(self, digest: str, run: Run) -> Path:
        """Where a run's result lies, or is to lie."""
        return self._place(self.root / digest, run)

    @staticmethod
    def _place(folder: Path, run: Run) -> Path:
        dataset, backbone = check_name(run.dataset, "dataset"), check_name(run.backbone, "backbone")
        return folder / dataset / backbone / f"split-{run.split}.json"

    def _folders(self, digest: str) -> list[Path]:
        """Folders that hold a protocol's results, its own before those of earlier versions."""
        names = [name for name, meaning in self._meaning().items() if meaning == digest]
        return [self.root / name for name in sorted(names, key=lambda name: name != digest)]

    def _meaning(self) -> dict[str, str]:
        """By the name of each folder, the digest of the protocol it holds."""
        if self._meanings is None:
            found = [name for name in _listed(self.root) if _DIGEST.fullmatch(name)]
            self._meanings = {name: self._meaning_of(name) for name in sorted(found)}
        return self._meanings

    def _meaning_of(self, name: str) -> str:
        settings = self._settings_in(self.root / name)
        return name if settings is None else digest_of(differences(settings))

    def digests(self) -> list[str]:
        """The protocols that have a folder here."""
        return sorted(set(self._meaning().values()))

    def resolve(self, digest: str) -> str:
        """A protocol's digest, also from the name that its folder has of earlier versions."""
        name = self._meaning().get(digest, digest) if isinstance(digest, str) else digest
        return super().resolve(name)

    # Writing ----------------------------------------------------------------------------------

    def begin(self, protocol: Protocol) -> None:
        """Write the protocol beside its results; shows early whether the store can be written."""
        folder = self.root / protocol.digest
        path = folder / "protocol.json"
        self._meanings = None
        if self._settings_in(folder) is None:
            with _writing(path):
                _keep_aside(path)
            content = {"format": PROTOCOL_FORMAT, "version": 1}
            content |= {"differences": protocol.differences(), "settings": protocol.settings()}
            _write(path, content)
        elif not os.access(folder, os.W_OK):
            raise InputError(f"cannot write to the store {self.root}; choose another folder")

    def put(self, record: Record) -> None:
        """Store a result in the place of an earlier one or of a recorded failure."""
        run = Run(record["dataset"], record["backbone"], record["split"])
        path = self.path(record["protocol"], run)
        self.refuse_newer(record["protocol"], run)
        with _writing(path):
            if os.path.lexists(path) and _checked(path, record["protocol"], run)[1]:
                _keep_aside(path)
            _write(path, {"format": FORMAT, "version": VERSION, **record})
            self._failure_path(path.parent, run).unlink(missing_ok=True)

    def put_failure(self, digest: str, run: Run, error: str, trace: str) -> None:
        """Record why a run has no result."""
        path = self._failure_path(self.path(digest, run).parent, run)
        _write(path, {"error": error, "traceback": trace})

    def refuse_newer(self, digest: str, run: Run) -> None:
        """Refuse to take the place of what a later version of this package wrote."""
        path = self.path(digest, run)
        if is_newer(read_object(path)[0]):
            raise InputError(
                f"{path} was written by a later version of gnn-repair; update it or choose another "
                "store"
            )

    @staticmethod
    def _failure_path(folder: Path, run: Run) -> Path:
        return folder / f"split-{run.split}.failed.json"

    # Reading ----------------------------------------------------------------------------------

    def settings(self, digest: str) -> dict[str, Any] | None:
        """The protocol's settings, None where they are not here or do not match the digest."""
        for folder in self._folders(digest):
            settings = self._settings_in(folder)
            if settings is not None:
                return settings
        return None

    def _settings_in(self, folder: Path) -> dict[str, Any] | None:
        path = folder / "protocol.json"
        if not os.path.lexists(path):
            return None
        content, fault = read_object(path)
        settings = content.get("settings") if content.get("format") == PROTOCOL_FORMAT else content
        if not fault:
            fair = isinstance(settings, dict) and folder.name in _names_of(content, settings)
            fault = "" if fair else "it is not the protocol its folder is named after"
        if fault:
            leave_out(path, fault)
            return None
        return settings

    def get(self, digest: str, run: Run) -> Record | None:
        """A run's result, if it is here."""
        for folder in self._folders(digest) or [self.root / digest]:
            path = self._place(folder, run)
            if not os.path.lexists(path):
                continue
            record, fault = _checked(path, folder.name, run)
            if not fault:
                return {**record, "protocol": digest}
            leave_out(path, fault)
        return None

    def failure(self, digest: str, run: Run) -> str | None:
        """Why a run has no result, if that is recorded."""
        path = self._failure_path(self.path(digest, run).parent, run)
        if not os.path.lexists(path):
            return None
        recorded = read_object(path)[0]
        return str(recorded.get("error") or f"unknown; {path} is damaged")[:2000]

    def runs(self, digest: str) -> list[Run]:
        """What seems to be stored of a protocol, unread; foreign names are said and left out."""
        found: set[Run] = set()
        for folder in self._folders(digest):
            for dataset in _subfolders(folder, besides=("protocol.json",)):
                for backbone in _subfolders(folder / dataset):
                    found.update(_runs_in(folder, dataset, backbone))
        return sorted(found)


def _names_of(content: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """What a folder with this protocol may be called; earlier versions hashed the whole tree."""
    if content.get("format") == PROTOCOL_FORMAT:
        return (digest_of(differences(settings)),)
    return (digest_of(settings),)


def _listed(folder: Path) -> Iterator[str]:
    """Names in a folder; one that cannot be read is said and counts as empty."""
    try:
        yield from sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        leave_out(folder, f"it cannot be read ({error.strerror})")


def _subfolders(folder: Path, besides: tuple[str, ...] = ()) -> Iterator[str]:
    for name in _listed(folder):
        if name in besides or name.startswith(".") or name.endswith(".damaged"):
            continue
        if NAME.fullmatch(name) and (folder / name).is_dir():
            yield name
        else:
            leave_out(folder / name, "it is not a folder of results")


def _runs_in(folder: Path, dataset: str, backbone: str) -> Iterator[Run]:
    place = folder / dataset / backbone
    for name in _listed(place):
        match = _RECORD.fullmatch(name)
        if match and name == f"split-{int(match[1])}.json":
            yield Run(dataset, backbone, int(match[1]))
        elif match or not (_FAILED.fullmatch(name) or _passed_over(name)):
            leave_out(place / name, "it is not the name of a result")


def _passed_over(name: str) -> bool:
    """Unfinished files and what was kept aside."""
    return name.startswith(".") or name.endswith(".damaged")


def _checked(path: Path, digest: str, run: Run) -> tuple[Record, str]:
    """A record and what is wrong with it."""
    record, fault = read_object(path)
    return record, fault or record_fault(record) or address_fault(record, digest, run)


def _keep_aside(path: Path) -> None:
    """Rename what is in the way of something to be written."""
    if os.path.lexists(path):
        path.replace(path.with_name(path.name + ".damaged"))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What goes wrong with writing, as one sentence."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON to a temporary name, flush it to disk, and rename."""
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name} cannot be written as JSON: {error}") from error
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
