"""A study as one text file: JSON Lines, a header and then one record a line.

The running store keeps one file a run, which is what makes it safe to interrupt and to merge;
packed, the same records are one file to commit, send or keep.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gnn_repair.atomic import check_target, replacing
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.study.cases import NAME, Run
from gnn_repair.study.overrides import changed
from gnn_repair.study.protocol import PAPER, Protocol, differences, digest_of
from gnn_repair.study.records import (
    LARGEST,
    Record,
    StoreWarning,
    leave_out,
    parse_object,
    record_fault,
)
from gnn_repair.study.results_source import ResultsSource, open_results
from gnn_repair.study.store import Store
from gnn_repair.study.uniting import unite

PACKED_FORMAT = "gnn-repair study"
LARGEST_FILE = 2**29
"""Bytes of a packed file: two hundred thousand runs, more than any grid."""


class Packed(ResultsSource):
    """Results in one file, read once; a line that is no record is named and left out."""

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path)
        try:
            if self.root.stat().st_size > LARGEST_FILE:
                raise FileFormatError(
                    f"{path} has more than {LARGEST_FILE:,} bytes; it is no study"
                )
            with self.root.open("rb") as file:
                self._header = _header(file, self.root)
                self._records = dict(self._read(file))
        except OSError as error:
            raise InputError(f"cannot read {self.root}: {error.strerror}") from error
        missing = int(self._header["records"]) - len(self._records)
        if missing:
            text = f"{self.root}: it lacks {missing} of its {self._header['records']} records"
            warnings.warn(text, StoreWarning, stacklevel=2)

    def _read(self, file: BinaryIO) -> Iterator[tuple[tuple[str, Run], Record]]:
        seen: set[tuple[str, Run]] = set()
        for number, line in enumerate(_lines(file), start=2):
            record, fault = parse_object(line)
            fault = fault or record_fault(record) or _address_fault(record)
            key = _key(record) if not fault else ("", Run("", "", 0))
            if not fault and key in seen:
                fault = "it is there twice"
            if fault:
                leave_out(f"{self.root}, line {number}", fault)
                continue
            seen.add(key)
            yield key, record

    def digests(self) -> list[str]:
        """The protocols that have results here."""
        return sorted({digest for digest, _ in self._records})

    def settings(self, digest: str) -> dict[str, Any] | None:
        """A protocol's settings, None where they are not here or do not match the digest."""
        settings = self._header["protocols"].get(digest)
        fair = isinstance(settings, dict) and digest_of(differences(settings)) == digest
        return settings if fair else None

    def get(self, digest: str, run: Run) -> Record | None:
        """A run's result, if it is here."""
        return self._records.get((digest, run))

    def failure(self, digest: str, run: Run) -> str | None:
        """Failures are not packed."""
        return None

    def runs(self, digest: str) -> list[Run]:
        """What is here of a protocol."""
        return sorted(run for held, run in self._records if held == digest)


def _header(file: BinaryIO, path: Path) -> dict[str, Any]:
    line = file.readline(LARGEST + 1)
    header, fault = parse_object(line) if len(line) <= LARGEST else ({}, "its first line is long")
    if fault or header.get("format") != PACKED_FORMAT:
        raise FileFormatError(f"{path} is not a packed study; make one with 'study pack'")
    if header.get("version") != 1:
        raise FileFormatError(
            f"{path} is a packed study of version {header.get('version')!r:.60}, not 1; "
            "update gnn-repair"
        )
    if type(header.get("records")) is not int or not isinstance(header.get("protocols"), dict):
        raise FileFormatError(f"{path} has a damaged header; pack the study again")
    return header


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LARGEST + 1):
        yield line
        while len(line) > LARGEST and not line.endswith(b"\n"):
            line = file.readline(LARGEST + 1)


def _address_fault(record: Record) -> str:
    for name in ("protocol", "dataset", "backbone"):
        if not isinstance(record.get(name), str) or not NAME.fullmatch(record[name]):
            return f"its {name} is {record.get(name)!r:.60}"
    split = record.get("split")
    fair = type(split) is int and 0 <= split < 10**6
    return "" if fair else f"its split is {split!r:.60}"


def _key(record: Record) -> tuple[str, Run]:
    return record["protocol"], Run(record["dataset"], record["backbone"], record["split"])


def pack(source: str | Path, path: str | Path, digest: str | None = None) -> int:
    """Write the results of a store as one file; how many records it holds."""
    target, held = check_target(path), open_results(source)
    digests = held.digests() if digest is None else [held.resolve(digest)]
    records = [record for one in digests for record in held.records(one)]
    if not records:
        raise InputError(f"{source} holds no result to pack; run a study first")
    protocols = {one: held.settings(one) for one in digests}
    header = {"format": PACKED_FORMAT, "version": 1}
    header |= {"records": len(records), "protocols": protocols}
    with replacing(target) as temporary:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for line in (header, *records):
                file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        # Temporary files are private; results are to be shared.
        temporary.chmod(0o644)
    return len(records)


@dataclass(frozen=True)
class Merged:
    """What came of merging."""

    added: int
    same: int
    """Records that the store had already, just so."""
    kept: tuple[Run, ...]
    """Runs of which the store had another record, which stayed."""
    united: int = 0
    """Records of the same frozen model that got further methods."""


def merge(sources: Iterable[str | Path], store: str | Path) -> Merged:
    """Put the results of stores and packed files into a store; what it has already stays.

    Where both have a run of the same frozen model, its record gets the methods that it lacks.
    """
    if isinstance(sources, str | Path) or not isinstance(sources, Iterable):
        raise InputError(f"sources is {sources!r:.80}; give a list of stores and packed files")
    target, added, same, united = Store(store), 0, 0, 0
    kept: list[Run] = []
    for source in sources:
        held = open_results(source)
        for digest in held.digests():
            target.begin(protocol_of(held, digest))
            for record in held.records(digest):
                run = _key(record)[1]
                there = target.get(digest, run)
                if there is None:
                    target.put(record)
                    added += 1
                elif there == record or (whole := unite(there, record)) == there:
                    same += 1
                elif whole is not None:
                    target.put(whole)
                    united += 1
                else:
                    kept.append(run)
    return Merged(added, same, tuple(kept), united)


def protocol_of(source: ResultsSource, digest: str) -> Protocol:
    """The protocol whose results a store or file holds."""
    settings = source.settings(digest)
    if settings is None:
        raise InputError(f"{source.root} lacks the settings of protocol {digest}; copy them there")
    try:
        protocol = changed(PAPER, differences(settings))
    except InputError as error:
        raise InputError(f"protocol {digest} is of another version: {error}") from error
    if protocol.digest != digest:
        raise InputError(f"protocol {digest} is of another version; run the study again")
    return protocol
