"""What is run: a run is dataset × backbone × split, a case its splits trained together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import SupportsIndex

from gnn_repair.errors import InputError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


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


@dataclass(frozen=True)
class Place:
    """Where cases run and where they find raw files."""

    device: str = "auto"
    root: str | Path | None = None
    elsewhere: bool = False
    """Whether it is another machine, of whose devices and files nothing is known here."""


def check_name(name: str, kind: str) -> str:
    """``name`` if it can stand in a path: letters, digits, - and _ only."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"the {kind} name {name!r:.120} cannot be stored; "
            "use letters, digits, - and _, beginning with a letter or digit"
        )
    return name


MOST_SPLITS = 10_000
"""Of a study; the paper has ten, and a larger number is a typing error."""


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
    for split in chosen:
        if split < 0:
            raise InputError(f"split {split} does not exist; splits begin at 0")
    if not chosen:
        raise InputError("no split was named; give at least one, such as 0")
    if len(chosen) > MOST_SPLITS:
        raise InputError(f"a study has at most {MOST_SPLITS:,} splits; name fewer")
    return chosen


def _split(split: object) -> int:
    """A whole number of whatever make."""
    if isinstance(split, SupportsIndex) and not isinstance(split, bool):
        with suppress(TypeError):
            return split.__index__()
    raise InputError(f"split {split!r:.60} is not a whole number; splits begin at 0")
