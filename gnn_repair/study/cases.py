"""What is run: a run is dataset × backbone × split, a case its splits trained together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gnn_repair.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


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
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"the {kind} name {name!r} cannot be stored; "
            "use letters, digits, - and _, beginning with a letter or digit"
        )
    return name


def all_runs(datasets: Iterable[str], backbones: Iterable[str], splits: Sequence[int]) -> list[Run]:
    """The grid, in the order in which it is run."""
    names = [check_name(name, "backbone") for name in dict.fromkeys(backbones)]
    for split in splits:
        if split < 0:
            raise InputError(f"split {split} does not exist; splits begin at 0")
    return [
        Run(check_name(dataset, "dataset"), backbone, split)
        for dataset in dict.fromkeys(datasets)
        for backbone in names
        for split in sorted(set(splits))
    ]
