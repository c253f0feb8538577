"""Where results can be read from: a folder of them, or one packed file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnn_repair.errors import InputError
from gnn_repair.study.cases import Run
from gnn_repair.study.records import Record


class ResultsSource(ABC):
    """Results by protocol and run. Reading never changes anything."""

    root: Path

    @abstractmethod
    def digests(self) -> list[str]:
        """The protocols that have results here."""

    @abstractmethod
    def settings(self, digest: str) -> dict[str, Any] | None:
        """A protocol's settings, if they are here."""

    @abstractmethod
    def get(self, digest: str, run: Run) -> Record | None:
        """A run's result, if it is here."""

    @abstractmethod
    def failure(self, digest: str, run: Run) -> str | None:
        """Why a run has no result, if that is recorded."""

    @abstractmethod
    def runs(self, digest: str) -> list[Run]:
        """What seems to be here of a protocol, unread."""

    def records(self, digest: str) -> Iterator[Record]:
        """All results of a protocol, in the order of their addresses."""
        for run in self.runs(digest):
            record = self.get(digest, run)
            if record is not None:
                yield record

    def resolve(self, digest: str) -> str:
        """``digest`` if there is something of it here."""
        found = self.digests()
        if digest in found:
            return digest
        there = f"it has {', '.join(found[:5])}" if found else "run a study first"
        raise InputError(f"{self.root} holds no result of protocol {digest!s:.80}; {there}")


def open_results(path: str | Path) -> ResultsSource:
    """The store in a folder, or the results packed in a file."""
    from gnn_repair.study.packed import Packed
    from gnn_repair.study.store import Store

    try:
        packed = Path(path).is_file()
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)[:80]!r} cannot be read: {reason}") from error
    if packed:
        return Packed(path)
    held = Store(path)
    if not held.root.is_dir():
        raise InputError(f"there is no store at {held.root}; run a study first")
    return held
