"""The results store: one small JSON file a run, written whole or not at all.

::

    STORE/<protocol digest>/protocol.json
    STORE/<protocol digest>/<dataset>/<backbone>/split-<k>.json          a result
    STORE/<protocol digest>/<dataset>/<backbone>/split-<k>.failed.json   why there is none
    STORE/<protocol digest>/<dataset>/<backbone>/split-<k>.models/       its models, if kept

Stores merge by copying one folder over another. Reading changes nothing: a file that is truncated,
or whose content does not belong at its address, is named in a warning and left out. When a result
or protocol.json takes its place it is kept beside it as ``*.damaged``. Packed, the same records are
one file to commit, send or keep: JSON Lines, a header and then one record a line.

Folders of earlier versions are named after the whole tree of settings instead of its differences
from the paper; they are read as what they hold.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnn_repair.atomic import as_path, cannot_write, check_target, replacing
from gnn_repair.budget import as_list, check_type, check_whole
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.methods import METHODS
from gnn_repair.published import published_numbers
from gnn_repair.results.protocol import (
    PAPER,
    PROTOCOLS,
    Protocol,
    differences,
    digest_of,
    with_changes,
)
from gnn_repair.results.records import (
    FROZEN,
    NAME,
    ORACLE,
    PARTS,
    VERSIONS,
    Case,
    RecordError,
    Run,
    RunRecord,
    StoreWarning,
    check_address,
    check_methods,
    check_name,
    is_newer,
    leave_out,
    parse_object,
    parse_record,
    read_object,
    stage_keys,
    unite,
)

if TYPE_CHECKING:
    import pandas as pd

PROTOCOL_FORMAT = "gnn-repair protocol"
PACKED_FORMAT = "gnn-repair study"
LARGEST_FILE = 2**29
"""Bytes of a packed file: two hundred thousand runs, more than any grid."""
_DIGEST = re.compile(r"[0-9a-f]{12}")
_RECORD = re.compile(r"split-(0|[1-9]\d{0,5})\.json")
_RECORD_OR_FAILURE = re.compile(r"split-(0|[1-9]\d{0,5})(?:\.failed)?\.json")
_BESIDE = re.compile(r"protocol\.json|split-\d{1,6}\.(failed\.json|models)|\..*|.*\.damaged")
"""What lies beside results: settings, failures, models, unfinished files, what was kept aside."""


class ResultsSource(ABC):
    """Results by protocol and run. Reading never changes anything."""

    root: Path

    @abstractmethod
    def digests(self) -> list[str]:
        """The protocols that have results here."""

    @abstractmethod
    def settings(self, digest: str) -> dict[str, Any] | None:
        """A protocol's settings, None where they are not here or do not match the digest."""

    @abstractmethod
    def get(self, digest: str, run: Run) -> RunRecord | None:
        """A run's result, if it is here."""

    @abstractmethod
    def runs(self, digest: str) -> list[Run]:
        """What seems to be here of a protocol, unread."""

    def attempted(self, digest: str) -> list[Run]:
        """The same with runs whose failure is recorded; packed files hold results alone."""
        return self.runs(digest)

    def failure(self, digest: str, run: Run) -> str | None:
        """Why a run has no result, if that is recorded."""
        return None

    def models(self, digest: str, run: Run) -> dict[str, Path]:
        """Files of a run's models by name, ``frozen`` and the methods'; empty: none were kept."""
        return {}

    def records(self, digest: str) -> Iterator[RunRecord]:
        """All results of a protocol, in the order of their addresses."""
        for run in self.runs(digest):
            record = self.get(digest, run)
            if record is not None:
                yield record

    def resolve(self, digest: str | None = None) -> str:
        """``digest`` if results of it are here; unless given, the only one or the paper's."""
        held = self.digests()
        if digest is None:
            if len(held) > 1 and PAPER.digest not in held:
                sentence = f"{self.root} holds the protocols {', '.join(held)}; choose --digest"
                raise InputError(sentence)
            digest = held[0] if len(held) == 1 else PAPER.digest
        if digest in held:
            return digest
        holding = f"it has {', '.join(held[:5])}" if held else "run a study first"
        raise InputError(f"{self.root} holds no result of protocol {digest!s:.80}; {holding}")

    def protocol(self, digest: str | None = None) -> Protocol:
        """The protocol whose results are here; ``digest`` chooses among several."""
        digest = self.resolve(digest)
        settings = self.settings(digest)
        if settings is None:
            for protocol in PROTOCOLS.values():
                if protocol.digest == digest:
                    return protocol
            raise InputError(
                f"{self.root} lacks the settings of protocol {digest}; run its study again with "
                "the same --protocol and --set, which writes them, or copy its protocol.json there"
            )
        try:
            protocol = with_changes(PAPER, differences(settings))
        except InputError as error:
            raise InputError(f"protocol {digest} is of another version: {error}") from error
        if protocol.digest != digest:
            raise InputError(f"protocol {digest} is of another version; run the study again")
        return protocol


def open_results(path: str | Path) -> ResultsSource:
    """The store in a folder, or the results packed in a file."""
    if as_path(path).is_file():
        return PackedResults(path)
    held = Store(path)
    if not held.root.is_dir():
        raise InputError(f"there is no store at {held.root}; run a study first")
    return held


class Store(ResultsSource):
    """A folder of results. Reading never changes it and never needs write access."""

    def __init__(self, root: str | Path) -> None:
        self.root = as_path(root)
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"the store {self.root} is a file; name a folder")
        self._meanings: dict[str, str] | None = None

    # Addresses --------------------------------------------------------------------------------

    def path(self, digest: str, run: Run, ending: str = ".json") -> Path:
        """Where a run's result lies, or is to lie; with another ending, what lies beside it."""
        dataset, backbone = check_name(run.dataset, "dataset"), check_name(run.backbone, "backbone")
        return self.root / digest / dataset / backbone / f"split-{run.split}{ending}"

    def _names(self, digest: str) -> list[str]:
        """Folders that hold a protocol's results, its own before those of earlier versions."""
        names = [name for name, meaning in self._meaning().items() if meaning == digest]
        return sorted(names, key=lambda name: name != digest)

    def _meaning(self) -> dict[str, str]:
        """By the name of each folder, the digest of the protocol it holds."""
        if self._meanings is None:
            names = sorted(path.name for path in self.root.glob("?" * 12))
            held = {name: self._settings_in(name) for name in names if _DIGEST.fullmatch(name)}
            self._meanings = {
                name: name if settings is None else digest_of(differences(settings))
                for name, settings in held.items()
            }
        return self._meanings

    def digests(self) -> list[str]:
        return sorted(set(self._meaning().values()))

    def resolve(self, digest: str | None = None) -> str:
        """A protocol's digest, also from the name that its folder has of earlier versions."""
        if isinstance(digest, str):
            digest = self._meaning().get(digest, digest)
        return super().resolve(digest)

    # Writing ----------------------------------------------------------------------------------

    def begin(self, protocol: Protocol) -> None:
        """Write the protocol beside its results; shows early whether the store can be written."""
        path = self.root / protocol.digest / "protocol.json"
        self._meanings = None
        if self._settings_in(protocol.digest) is None:
            with _writing(path):
                _keep_aside(path)
            content = {"format": PROTOCOL_FORMAT, "version": 1}
            content |= {"differences": protocol.differences(), "settings": protocol.settings()}
            _write(path, content)
        check_target(path)

    def put(self, record: RunRecord) -> None:
        """Store a result in the place of an earlier one or of a recorded failure."""
        path = self.path(record.protocol, record.run)
        self.refuse_newer(record.protocol, record.run)
        with _writing(path):
            try:
                if os.path.lexists(path):
                    _checked(path, record.protocol, record.run)
            except RecordError:
                _keep_aside(path)
            folder = self.path(record.protocol, record.run, ".models")
            shutil.rmtree(folder, ignore_errors=True)  # of the record whose place this one takes
            _write(path, record.as_json())  # before its models: a killed process leaves it without
            for name, content in record.models.items():
                with replacing(folder / f"{name}.safetensors", folders=True) as temporary:
                    temporary.write_bytes(content)
            self.path(record.protocol, record.run, ".failed.json").unlink(missing_ok=True)

    def put_failure(self, digest: str, run: Run, error: str, trace: str) -> None:
        """Store why a run has no result."""
        _write(self.path(digest, run, ".failed.json"), {"error": error, "traceback": trace})

    def refuse_newer(self, digest: str, run: Run) -> None:
        """Refuse to take the place of what a later version of this package wrote."""
        path = self.path(digest, run)
        with suppress(RecordError):
            if is_newer(read_object(path)):
                raise InputError(
                    f"{path} was written by a later version of gnn-repair; update it or choose "
                    "another store"
                )

    # Reading ----------------------------------------------------------------------------------

    def settings(self, digest: str) -> dict[str, Any] | None:
        candidates = (self._settings_in(name) for name in self._names(digest))
        return next((settings for settings in candidates if settings is not None), None)

    def _settings_in(self, name: str) -> dict[str, Any] | None:
        path = self.root / name / "protocol.json"
        if not os.path.lexists(path):
            return None
        try:
            content = read_object(path)
            current = content.get("format") == PROTOCOL_FORMAT
            settings: Any = content.get("settings") if current else content
            # Earlier versions hashed the whole tree.
            if not isinstance(settings, dict) or name != digest_of(
                differences(settings) if current else settings
            ):
                raise RecordError("it is not the protocol its folder is named after")
        except RecordError as fault:
            leave_out(path, fault)
            return None
        return settings

    def get(self, digest: str, run: Run) -> RunRecord | None:
        for name in self._names(digest) or [digest]:
            path = self.path(name, run)
            if os.path.lexists(path):
                try:
                    return replace(_checked(path, name, run), protocol=digest)
                except RecordError as fault:
                    leave_out(path, fault)
        return None

    def models(self, digest: str, run: Run) -> dict[str, Path]:
        folders = [self.path(name, run, ".models") for name in self._names(digest)]
        kept = (sorted(folder.glob("*.safetensors")) for folder in folders)
        return {path.stem: path for path in next(filter(None, kept), [])}

    def failure(self, digest: str, run: Run) -> str | None:
        path = self.path(digest, run, ".failed.json")
        if not os.path.lexists(path):
            return None
        with suppress(RecordError):
            if error := read_object(path).get("error"):
                return str(error)[:2000]
        return f"unknown; {path} is damaged"[:2000]

    def runs(self, digest: str) -> list[Run]:
        """What seems to be stored of a protocol, unread; foreign names are said and left out."""
        return self._runs(digest, _RECORD)

    def attempted(self, digest: str) -> list[Run]:
        return self._runs(digest, _RECORD_OR_FAILURE)

    def _runs(self, digest: str, names: re.Pattern[str]) -> list[Run]:
        runs = {
            Run(dataset.name, backbone.name, int(path.name.split(".")[0].removeprefix("split-")))
            for name in self._names(digest)
            for dataset in _children(self.root / name, NAME)
            for backbone in _children(dataset, NAME)
            for path in _children(backbone, names)
        }
        return sorted(runs)


def _children(folder: Path, names: re.Pattern[str]) -> Iterator[Path]:
    """What lies in a folder under one of these names; others are said and left out."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        misplaced = isinstance(error, NotADirectoryError)
        fault = "is not a folder of results" if misplaced else f"cannot be read ({error.strerror})"
        leave_out(folder, f"it {fault}")
        return
    for path in paths:
        if names.fullmatch(path.name):
            yield path
        elif not _BESIDE.fullmatch(path.name):
            leave_out(path, "it is not the name of a result")


def _checked(path: Path, digest: str, run: Run) -> RunRecord:
    """The record at an address."""
    record = parse_record(read_object(path))
    check_address(record, digest, run)
    return record


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
    with replacing(path, folders=True) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


# One file -----------------------------------------------------------------------------------------


class PackedResults(ResultsSource):
    """Results in one file, read once; a line that is no record is named and left out."""

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path)
        self._records: dict[tuple[str, Run], RunRecord] = {}
        try:
            if self.root.stat().st_size > LARGEST_FILE:
                raise FileFormatError(
                    f"{path} has more than {LARGEST_FILE:,} bytes; it is no study"
                )
            with self.root.open("rb") as file:
                self._header = _header(file.readline(), self.root)
                for number, line in enumerate(file, start=2):
                    try:
                        self._add(line)
                    except RecordError as fault:
                        leave_out(f"{self.root}, line {number}", fault)
        except OSError as error:
            raise InputError(f"cannot read {self.root}: {error.strerror}") from error
        stated, count = int(self._header["records"]), len(self._records)
        if count != stated:
            said = f"it lacks {stated - count} of its {stated} records"
            if count > stated:
                said = f"it has {count} records where its header says {stated}"
            warnings.warn(f"{self.root}: {said}", StoreWarning, stacklevel=2)

    def _add(self, line: bytes) -> None:
        record = parse_record(parse_object(line))
        for name in ("protocol", "dataset", "backbone"):
            value = getattr(record, name)
            if not isinstance(value, str) or not NAME.fullmatch(value):
                raise RecordError(f"its {name} is {value!r:.60}")
        if type(record.split) is not int or not 0 <= record.split < 10**6:
            raise RecordError(f"its split is {record.split!r:.60}")
        if (record.protocol, record.run) in self._records:
            raise RecordError("it is there twice")
        self._records[record.protocol, record.run] = record

    def digests(self) -> list[str]:
        return sorted({digest for digest, _ in self._records})

    def settings(self, digest: str) -> dict[str, Any] | None:
        settings = self._header["protocols"].get(digest)
        fair = isinstance(settings, dict) and digest_of(differences(settings)) == digest
        return settings if fair else None

    def get(self, digest: str, run: Run) -> RunRecord | None:
        return self._records.get((digest, run))

    def runs(self, digest: str) -> list[Run]:
        return sorted(run for held, run in self._records if held == digest)


def _header(line: bytes, path: Path) -> dict[str, Any]:
    header: dict[str, Any] = {}
    with suppress(RecordError):
        header = parse_object(line)
    if header.get("format") != PACKED_FORMAT:
        raise FileFormatError(f"{path} is not a packed study; make one with 'study pack'")
    if header.get("version") != 1:
        raise FileFormatError(
            f"{path} is a packed study of version {header.get('version')!r:.60}, not 1; "
            "update gnn-repair"
        )
    if type(header.get("records")) is not int or not isinstance(header.get("protocols"), dict):
        raise FileFormatError(f"{path} has a damaged header; pack the study again")
    return header


def pack(source: str | Path, path: str | Path, digest: str | None = None) -> int:
    """Write the results of a store as one file; how many records it holds."""
    target, held = check_target(path), open_results(source)
    digests = held.digests() if digest is None else [held.resolve(digest)]
    records = [record.as_json() for protocol in digests for record in held.records(protocol)]
    if not records:
        raise InputError(f"{source} holds no result to pack; run a study first")
    protocols = {protocol: held.settings(protocol) for protocol in digests}
    header = {"format": PACKED_FORMAT, "version": 1}
    header |= {"records": len(records), "protocols": protocols}
    with (
        replacing(target) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for line in (header, *records):
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
    return len(records)


@dataclass(frozen=True)
class MergeReport:
    """What came of merging."""

    added: int
    same: int
    """Records that the store had already, just so."""
    kept: tuple[Run, ...]
    """Runs of which the store had another record, which stayed."""
    united: int = 0
    """Records of the same frozen model that got further methods."""


def merge(sources: Iterable[str | Path], store: str | Path) -> MergeReport:
    """Put the results of stores and packed files into a store; what it has already stays.

    Where both have a run of the same frozen model, its record gets the methods that it lacks.
    """
    listed = as_list("sources", sources, "a list of stores and packed files")
    target, added, same, united = Store(store), 0, 0, 0
    kept: list[Run] = []
    for source in listed:
        held = open_results(source)
        for digest in held.digests():
            target.begin(held.protocol(digest))
            for record in map(partial(_with_models, held), held.records(digest)):
                stored = target.get(digest, record.run)
                if stored is None:
                    target.put(record)
                    added += 1
                    continue
                new_models = record.models.keys() - target.models(digest, record.run).keys()
                united_record = stored if stored == record else unite(stored, record)
                if united_record is None:
                    kept.append(record.run)
                    continue
                if united_record != stored or new_models:
                    models = _with_models(target, stored).models
                    target.put(replace(united_record, models={**record.models, **models}))
                same += united_record == stored
                united += united_record != stored
    return MergeReport(added, same, tuple(kept), united)


def _with_models(source: ResultsSource, record: RunRecord) -> RunRecord:
    files = source.models(record.protocol, record.run)
    return replace(record, models={name: path.read_bytes() for name, path in files.items()})


# As one data frame, and as a file of it -----------------------------------------------------------

COLUMNS = ["dataset", "backbone", "split", "protocol", "method", "part", "metric", "value"]


def read_results(store: str | Path | ResultsSource, protocol: str | None = None) -> pd.DataFrame:
    """Everything a store holds, one number per row.

    Args:
        store: the folder of results, or a packed file of them.
        protocol: digest of the settings; all of them unless given.

    Returns:
        Columns ``dataset``, ``backbone``, ``split``, ``protocol``, ``method`` (``frozen``,
        ``oracle`` or a repair), ``part`` (train, val, test, or empty), ``metric`` and ``value``.
        Accuracies and reaches are shares, not per cent.

    Raises:
        InputError: there is no result.
    """
    held = store if isinstance(store, ResultsSource) else open_results(store)
    digests = held.digests() if protocol is None else [held.resolve(protocol)]
    rows = [
        [record.dataset, record.backbone, record.split, record.protocol, *row]
        for digest in digests
        for record in held.records(digest)
        for row in _numbers(record)
    ]
    if not rows:
        raise InputError(f"{held.root} holds no result; run a study first or name another store")
    import pandas as pd  # which loads slowly, and no other table needs it

    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({"split": "int64", "value": "float64"})


def _numbers(record: RunRecord) -> Iterator[tuple[str, str, str, Any]]:
    """Method, part, metric and value of everything in a record; None becomes NaN in the frame."""
    for method, scores in {FROZEN: record.frozen, **record.methods}.items():
        for name, value in scores.items():
            part = name if name in PARTS else ""
            yield method, part, "accuracy" if part else name, value
    for name, value in (record.oracle or {}).items():
        if isinstance(value, dict):
            part, before = (name, "") if name in PARTS else ("", f"{name}: ")
            for metric, inner in value.items():
                yield "oracle", part, before + metric, inner
        else:
            yield "oracle", "", name, value
    for stage, value in record.seconds.items():
        yield stage, "", "seconds", value


def export_results(store: str | Path, path: str | Path, protocol: str | None = None) -> int:
    """Write the data frame as CSV or Parquet, by the file's ending; returns the number of rows."""
    target = check_target(path)
    if target.suffix not in (".csv", ".parquet"):
        raise InputError(f"{target.name} ends in neither .csv nor .parquet; choose one of them")
    frame = read_results(store, protocol)
    with replacing(target) as temporary:
        if target.suffix == ".csv":
            frame.to_csv(temporary, index=False)
            return len(frame)
        try:
            frame.to_parquet(temporary, index=False, engine="pyarrow")
        except ImportError as error:
            raise InputError(
                "writing Parquet needs the package pyarrow in a version that fits NumPy's; install "
                "gnn-repair[parquet] or write .csv"
            ) from error
    return len(frame)


# What of a grid is stored, failed before or missing, and the work that is left --------------------

PAPER_DATASETS = tuple(published_numbers()["datasets"])
PAPER_BACKBONES = tuple(published_numbers()["tables"]["frozen"]["cells"])
PAPER_SPLITS = tuple(range(10))


@dataclass(frozen=True)
class Plan:
    """What of a grid is stored, failed before, or missing."""

    done: tuple[Run, ...]
    failed: Mapping[Run, str]
    """Runs without a result, with the recorded error."""
    missing: tuple[Run, ...]
    """Runs without a result and without an error."""
    cases: tuple[Case, ...]
    """The work left: failed and missing runs, by case."""

    @property
    def total(self) -> int:
        """Runs of the grid."""
        return len(self.done) + len(self.failed) + len(self.missing)


def make_plan(
    store: ResultsSource,
    protocol: Protocol,
    runs: Sequence[Run],
    methods: Iterable[str] | None = None,
    stack: int | None = None,
) -> Plan:
    """Compare a grid with a store.

    A run is done when its record holds a current result of every method asked for. One that lacks
    some is run anew with old and new methods together, so that a record always speaks of one
    frozen model.

    Args:
        store: where results lie.
        protocol: all settings.
        runs: the grid, splits of a case side by side.
        methods: what must be evaluated; everything unless given.
        stack: most splits trained as one; all unless given.
    """
    check_type("store", store, ResultsSource, "a Store")
    check_type("protocol", protocol, Protocol, "a Protocol")
    if stack is not None:
        check_whole("study", "stack", stack, 1)
    wanted, digest = check_methods(methods), protocol.digest
    done, failed, missing, todo = [], {}, [], []
    for run in as_list("runs", runs, "a list of runs"):
        check_type("a run", run, Run, "a Run of dataset, backbone and split")
        record = store.get(digest, run)
        held = () if record is None else current_methods(record, protocol)
        if record is not None and set(wanted) <= set(held):
            done.append(run)
            continue
        evaluated = [name for name in held if name in (ORACLE, *METHODS)]
        todo.append((run, check_methods({*wanted, *evaluated})))
        error = store.failure(digest, run)
        if error is None:
            missing.append(run)
        else:
            failed[run] = error
    return Plan(tuple(done), failed, tuple(missing), tuple(_cases(todo, stack)))


def _cases(todo: list[tuple[Run, tuple[str, ...]]], stack: int | None) -> Iterable[Case]:
    by_case = groupby(todo, lambda item: (item[0].dataset, item[0].backbone, item[1]))
    for (dataset, backbone, methods), group in by_case:
        splits = tuple(run.split for run, _ in group)
        size = stack or len(splits)
        for first in range(0, len(splits), size):
            yield Case(dataset, backbone, splits[first : first + size], methods)


def current_methods(record: RunRecord, protocol: Protocol) -> tuple[str, ...]:
    """Which stages of a record are results of this protocol as it is computed today.

    A record without keys is of the time before stages had any, when all versions were 1.
    """
    case = (record.dataset, record.backbone)
    now = stage_keys(protocol, *case)
    stored = record.stages or stage_keys(protocol, *case, dict.fromkeys(VERSIONS, 1))
    if stored.get(FROZEN) != now[FROZEN]:
        return ()
    held = ((ORACLE,) if record.oracle else ()) + tuple(record.methods)
    return tuple(name for name in held if name not in now or stored.get(name) == now[name])


def held_methods(records: Iterable[RunRecord], protocol: Protocol) -> list[str]:
    """The oracle and the methods of which some of the records hold a current result."""
    names = {name for record in records for name in current_methods(record, protocol)}
    return [name for name in (ORACLE, *METHODS) if name in names]
