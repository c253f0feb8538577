"""What is run: runs and cases, the methods evaluated on them, and what each result depends on.

A run is dataset × backbone × split, a case its splits trained together. A run has stages: a frozen
model, the oracle's answers about it and one result a method. Each stage has a key: a digest of
those differences from the paper's protocol that the stage reads, and of the stage's version. A
setting that another stage reads, a further setting with its default or a further method leaves it
as it was. Raise a stage's version when what it computes changes without any setting doing so: its
stored results, and no others, are then made anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, SupportsIndex

from gnn_repair.errors import InputError, suggestion
from gnn_repair.methods import METHODS
from gnn_repair.published import published
from gnn_repair.results.protocol import PAPER, Protocol, digest_of

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
MOST_SPLITS = 10_000
"""Of a study; the paper has ten, and a larger number is a typing error."""
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


def all_runs(datasets: Iterable[str], backbones: Iterable[str], splits: Sequence[int]) -> list[Run]:
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
    if isinstance(splits, str) or not isinstance(splits, Iterable):
        raise InputError(f"splits is {splits!r:.60}; give whole numbers such as range(10)")
    chosen = [_split(split) for split in islice(splits, MOST_SPLITS + 1)]
    if not chosen:
        raise InputError("no split was named; give at least one, such as 0")
    if len(chosen) > MOST_SPLITS:
        raise InputError(f"a study has at most {MOST_SPLITS:,} splits; name fewer")
    return chosen


def _split(split: object) -> int:
    """A whole number from 0, of whatever make."""
    if isinstance(split, SupportsIndex) and not isinstance(split, bool):
        with suppress(TypeError):
            number = split.__index__()
            if number < 0:
                raise InputError(f"split {number} does not exist; splits begin at 0")
            return number
    raise InputError(f"split {split!r:.60} is not a whole number; splits begin at 0")


def chosen_methods(names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Known names in the order of the tables, the oracle first.

    Unless given, those that run by default: not the ladder and its controls, which cost more than
    all others together.
    """
    known = (ORACLE, *METHODS)
    if isinstance(names, str) or not (names is None or isinstance(names, Iterable)):
        raise InputError(f"methods is {names!r:.80}; give a list of names, of {', '.join(known)}")
    usual = (ORACLE, *(name for name, method in METHODS.items() if method.by_default))
    wanted = usual if names is None else tuple(names)
    for name in wanted:
        if name not in known:
            raise InputError(f"unknown method {name!r:.80}; {suggestion(str(name), known)}")
    return tuple(name for name in known if name in wanted)


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
    protocol: Protocol,
    dataset: str,
    backbone: str,
    versions: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """The key of every stage of a run, by the stage's name."""
    versions = VERSIONS if versions is None else versions
    changes, size = protocol.differences(), protocol.batches.of(dataset, backbone)
    model = _picked(changes, (*_SIZES, *_budgets(backbone)))
    keys = {}
    for stage, version in versions.items():
        tree: dict[str, Any] = {
            "stage": stage,
            "version": version,
            "frozen version": versions[FROZEN],
        }
        tree["backbone"] = model
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
    if backbone in published()["tables"]["frozen"]["cells"]:
        return ("backbones.long",)
    return "backbones.short", "backbones.long"


def _picked(changes: Mapping[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """The differences at or below ``paths``."""
    found = {}
    for path in paths:
        value: Any = changes
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[path] = value
    return found
