"""Runs, what each of their results depends on, and the record of a result.

A run is dataset × backbone × split, a case its splits trained together. A run has stages: a frozen
model, the oracle's answers about it and one result per method. Each stage has a key: a digest of
those differences from the paper's protocol that the stage reads, and of the stage's version. A
setting that another stage reads, a further setting with its default or a further method leaves it
as it was. Raise a stage's version when what it computes changes without any setting doing so: its
stored results, and no others, are then made anew.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gnn_repair.budget import as_list, check_whole
from gnn_repair.errors import InputError, suggestion
from gnn_repair.methods import METHODS
from gnn_repair.published import published_numbers
from gnn_repair.results.protocol import PAPER, Protocol, digest_of

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
MOST_SPLITS = 10_000
"""Of a study; the paper has ten, and a larger number is a typing error."""
GRAPH = "graph"
FROZEN = "frozen"
ORACLE = "oracle"
"""The exact-mass oracle on validation and test nodes; asked for like a method."""


@dataclass(frozen=True, order=True)
class Run:
    """One result: a dataset, a backbone and a split."""

    dataset: str
    backbone: str
    split: int

    def __str__(self) -> str:
        return f"{self.dataset} × {self.backbone}, split {self.split}"


@dataclass(frozen=True)
class Case:
    """One piece of work: splits of a dataset × backbone that are trained as one."""

    dataset: str
    backbone: str
    splits: tuple[int, ...]
    methods: tuple[str, ...] = ()
    """What is evaluated on them."""

    @property
    def runs(self) -> list[Run]:
        """One per split."""
        return [Run(self.dataset, self.backbone, split) for split in self.splits]

    def __str__(self) -> str:
        return f"{self.dataset} × {self.backbone}"


def check_name(name: str, kind: str) -> str:
    """``name`` if it can stand in a path: letters, digits, - and _ only."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"the {kind} name {name!r:.120} cannot be stored; "
            "use letters, digits, - and _, beginning with a letter or digit"
        )
    return name


def all_runs(datasets: Iterable[str], backbones: Iterable[str], splits: Iterable[int]) -> list[Run]:
    """The grid, in the order in which it is run."""
    names = [check_name(name, "backbone") for name in backbones]
    graphs = [check_name(name, "dataset") for name in datasets]
    chosen = sorted(set(check_splits(splits)))
    if not names or not graphs:
        raise InputError("the grid is empty; name at least one dataset and one backbone")
    return [
        Run(dataset, backbone, split)
        for dataset in dict.fromkeys(graphs)
        for backbone in dict.fromkeys(names)
        for split in chosen
    ]


def check_splits(splits: Iterable[int]) -> list[int]:
    """Splits as whole numbers from 0, at least one and not absurdly many."""
    chosen = as_list("splits", splits, "whole numbers such as range(10)", MOST_SPLITS + 1)
    if not 0 < len(chosen) <= MOST_SPLITS:
        raise InputError(f"a study has 1 to {MOST_SPLITS:,} splits; name so many")
    for split in chosen:
        check_whole("study", "split", split, 0)
    return [int(split) for split in chosen]


def check_methods(names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Known names in the order of the tables, the oracle first.

    Unless given, those that run by default: not the ladder and its controls, which cost more than
    all others together.
    """
    available = (ORACLE, *METHODS)
    wanted = [ORACLE, *(name for name, method in METHODS.items() if method.by_default)]
    if names is not None:
        wanted = as_list("methods", names, f"a list of names, of {', '.join(available)}")
    for name in wanted:
        if name not in available:
            raise InputError(f"unknown method {name!r:.80}; {suggestion(str(name), available)}")
    return tuple(name for name in available if name in wanted)


# What a result depends on -------------------------------------------------------------------------

VERSIONS: dict[str, int] = dict.fromkeys((FROZEN, ORACLE, *METHODS), 1)
"""Of what each stage computes."""
VERSIONS["evidence_ladder"] = 2  # other candidates, honest epochs

_SIZES = (
    "data", "backbones.hidden", "backbones.heads", "backbones.dropout", "backbones.seed",
    "backbones.self_loops", "backbones.zero_stream_biases",
)  # fmt: skip
_SHORT = ("gcn", "gat", "sage")
"""The paper's backbones that are trained on the short budget."""


def stage_keys(
    protocol: Protocol, dataset: str, backbone: str, versions: Mapping[str, int] = VERSIONS
) -> dict[str, str]:
    """The key of every stage of a run, by the stage's name."""
    changes, size = protocol.differences(), protocol.batches.of(dataset, backbone)
    model = _picked(changes, (*_SIZES, *_budgets(backbone)))
    keys = {}
    for stage, version in versions.items():
        tree: dict[str, Any] = {"stage": stage, "version": version, "backbone": model}
        tree["frozen version"] = versions[FROZEN]
        if stage == ORACLE:
            tree[stage] = _picked(changes, ("oracle",))
        elif stage != FROZEN:
            tree[stage] = _picked(changes, METHODS[stage].settings)
            if METHODS[stage].batched and size != PAPER.batches.of(dataset, backbone):
                tree[stage]["batch"] = size
        keys[stage] = digest_of(tree)
    return keys


def _budgets(backbone: str) -> tuple[str, ...]:
    """The budget that a backbone is trained on; either may be, for one of the user's own."""
    if backbone in _SHORT:
        return ("backbones.short",)
    if backbone in published_numbers()["tables"]["frozen"]["cells"]:
        return ("backbones.long",)
    return "backbones.short", "backbones.long"


def _picked(changes: Mapping[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """The differences at or below ``paths``."""
    differences = {}
    for path in paths:
        value: Any = changes
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            differences[path] = value
    return differences


# A run's result: what it holds, how one is read without trust, and how two of a model unite -------

FORMAT = "gnn-repair run"
VERSION = 1
LARGEST = 2**20
"""Bytes of a record. One takes two to three thousand; a larger file is something else."""
PARTS = ("train", "val", "test")
_MOST = 2**53
"""Whole numbers above this are not exact in the tables' floats."""
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_ .:-]{0,99}")

Numbers = dict[str, Any]
"""By name: numbers, truth values, and None for what could not be had."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run's result; ``docs/reference/study.md`` says what its tables hold."""

    protocol: str
    """Digest of the settings."""
    dataset: str
    backbone: str
    split: int
    stages: dict[str, str] = field(default_factory=dict)
    """Keys of what was computed; empty in records of the time before stages had any."""
    graph: Numbers
    """Sizes."""
    frozen: Numbers
    oracle: dict[str, Any] | None = None
    """``val`` and ``test`` hold numbers, ``status`` counts; None where it was not asked."""
    methods: dict[str, Numbers]
    seconds: Numbers = field(default_factory=dict)
    members: int = 1
    stack: list[int] = field(default_factory=list)
    """The splits that were trained as one."""
    environment: dict[str, str]
    models: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Files of the frozen model and its repairs, which stores keep beside a record."""

    @property
    def run(self) -> Run:
        """Its dataset, backbone and split."""
        return Run(self.dataset, self.backbone, self.split)

    def number(self, owner: str, name: str) -> float:
        """Of a method, ``frozen``, ``graph``, or ``oracle`` on test nodes; NaN: there is none."""
        tables = {GRAPH: self.graph, FROZEN: self.frozen, **self.methods}
        tables[ORACLE] = (self.oracle or {}).get("test") or {}
        value: float | None = tables.get(owner, {}).get(name)
        return math.nan if value is None else value

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        held = {name: value for name, value in vars(self).items() if name != "models"}
        return {"format": FORMAT, "version": VERSION, **held}


class RecordError(ValueError):
    """Why something is not a record, as the end of a sentence."""


class StoreWarning(UserWarning):
    """A file in a store was left out."""


def leave_out(where: str | Path, fault: object) -> None:
    """Say that something is not a result; nothing on disk is changed."""
    # Python says a warning once per place: this one, wherever a file is read again.
    warnings.warn(f"{where}: {fault}; it is left out", StoreWarning, stacklevel=1)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        if not path.is_file():  # a named pipe would wait for somebody to write
            raise RecordError("it is not a file")
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise RecordError(f"it cannot be read ({error.strerror or error})") from error
    if len(text) > LARGEST:
        raise RecordError(f"it has more than {LARGEST:,} bytes")
    return parse_object(text)


def parse_object(text: bytes) -> dict[str, Any]:
    """The JSON object in a text."""
    constants: list[str] = []
    try:
        content = json.loads(text.decode("utf-8"), parse_constant=constants.append)
    except (ValueError, RecursionError) as error:
        raise RecordError("it is truncated or not JSON") from error
    if constants:
        raise RecordError("it holds NaN or infinity")
    if not isinstance(content, dict):
        raise RecordError("it is truncated or not JSON")
    return content


def is_newer(content: Mapping[str, Any]) -> bool:
    """Whether a later version of this package wrote it."""
    version = content.get("version")
    return content.get("format") == FORMAT and type(version) is int and version > VERSION


def parse_record(content: Mapping[str, Any]) -> RunRecord:
    """The record in a JSON object, every part of it checked."""
    if content.get("format") != FORMAT:
        raise RecordError("it is not a result of this package")
    version = f"its format version is {content.get('version')!r:.60}"
    if is_newer(content):
        raise RecordError(f"{version}, newer than {VERSION}; update gnn-repair")
    if content.get("version") != VERSION or type(content["version"]) is not int:
        raise RecordError(f"{version}, not {VERSION}")
    for part in (FROZEN, "methods", "graph", "environment"):
        if not isinstance(content.get(part), dict):
            raise RecordError(f"it has no {part}")
    for name, scores in ((FROZEN, content[FROZEN]), *content["methods"].items()):
        if not _KEY.fullmatch(name):
            raise RecordError(f"it names a method {name!r:.60}")
        _check_scores(name, scores)
    _check_oracle(content.get("oracle"))
    _check_numbers("graph", content["graph"])
    _check_numbers("seconds", content.get("seconds", {}))
    for name in ("environment", "stages"):
        texts = content.get(name, {})
        if not isinstance(texts, dict) or not all(isinstance(t, str) for t in texts.values()):
            raise RecordError(f"its {name} is not a table of texts")
    members, stack = content.get("members", 1), content.get("stack", [])
    if type(members) is not int or members < 1:
        raise RecordError(f"its members are {members!r:.60}")
    if not isinstance(stack, list) or any(type(split) is not int for split in stack):
        raise RecordError(f"its stack is {stack!r:.60}")
    names = {part.name for part in fields(RunRecord)} - {"models"}
    address = dict.fromkeys(("protocol", "dataset", "backbone", "split"))
    return RunRecord(**{**address, **{name: content[name] for name in names if name in content}})


def _check_scores(name: str, scores: Any) -> None:
    """Accuracies are shares; everything beside them is a number or missing."""
    _check_numbers(name, scores)
    for part in PARTS:
        _check_share(f"{part} accuracy of {name}", scores.get(part))


def _check_share(what: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not 0 <= value <= 1):
        raise RecordError(f"the {what} is {value!r:.60}, not a share")


def _check_oracle(oracle: Any) -> None:
    oracle = {} if oracle is None else oracle
    if not isinstance(oracle, dict):
        raise RecordError(f"its oracle is {oracle!r:.60}")
    for name, value in oracle.items():
        inner = value if name in ("val", "test", "status") else {name: value}
        _check_numbers(f"oracle {name}", inner)
    for part in ("val", "test"):
        for metric in ("true_class_reach", "error_reach", "chance_reach"):
            _check_share(f"{metric} of {part}", oracle.get(part, {}).get(metric))


def _check_numbers(name: str, values: Any) -> None:
    if not isinstance(values, dict):
        raise RecordError(f"its {name} is {values!r:.60}, not a table")
    for key, value in values.items():
        if not _KEY.fullmatch(key):
            raise RecordError(f"its {name} names {key!r:.60}")
        if value is None or isinstance(value, bool):
            continue
        if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > _MOST:
            raise RecordError(f"{key} of {name} is {value!r:.60}, not a number")


def check_address(record: RunRecord, digest: str, run: Run) -> None:
    """A record belongs where it lies."""
    for name, value in (("protocol", digest), *vars(run).items()):
        stored = getattr(record, name)
        if stored != value or type(stored) is not type(value):
            raise RecordError(f"its {name} is {stored!r:.60}, not {value!r}")


def unite(there: RunRecord, other: RunRecord) -> RunRecord | None:
    """``there`` with the methods that only ``other`` has; None where the two disagree.

    Two records of one frozen model agree in everything but which methods were evaluated, where
    and how fast.
    """
    if any(getattr(there, name) != getattr(other, name) for name in _SAME):
        return None
    tables: Any = (there.methods, other.methods), (there.stages, other.stages)
    if any(left[name] != right[name] for left, right in tables for name in left.keys() & right):
        return None
    if there.oracle is not None and other.oracle not in (None, there.oracle):
        return None
    new = [name for name in other.methods if name not in there.methods]
    new += ["oracle"] * (there.oracle is None and other.oracle is not None)
    added = {name: other.seconds[name] for name in new if name in other.seconds}
    # What the new methods took is added; training and exposing are counted once.
    total = round(there.seconds.get("total", 0.0) + sum(added.values()), 4)
    home, away = there.environment, other.environment
    differing = [name for name in away if home.get(name) != away[name]]
    return replace(
        there,
        oracle=other.oracle if there.oracle is None else there.oracle,
        methods={**other.methods, **there.methods},
        stages={**other.stages, **there.stages},
        models={**other.models, **there.models},
        seconds={**there.seconds, **added, "total": total},
        # For methods that were run elsewhere, what differs there.
        environment=home
        | {f"{name} of {method}": away[name] for method in new for name in differing},
    )


_SAME = ("protocol", "dataset", "backbone", "split", "graph", "frozen", "members", "stack")
