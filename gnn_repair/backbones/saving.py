"""What must hold of a trained model's file, whatever the model: shared with fitted repairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.files import REAL, check_tensor

HEADER = {
    "backbone": str, "shape": dict, "budget": dict, "seed": int, "data": str, "splits": list,
}  # fmt: skip
PREFIX = "parameters/"
STATISTICS = {
    "best_epoch": (1, (torch.int64,)),
    "epochs_run": (1, (torch.int64,)),
    "diverged": (1, (torch.bool,)),
}
"""Axes and types of what training says about itself."""
RESULTS = {"logits": (3, REAL), **STATISTICS}


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it; floats among them finite."""
    found = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    for name, value in found.items():
        check_tensor(name[:80], value, value.dim(), (*REAL, torch.int64))
    return found


def check_names(tensors: Mapping[str, Tensor], named: Mapping[str, Any], *prefixes: str) -> None:
    """Raise where a named tensor is missing, or one has neither a known name nor prefix."""
    if missing := sorted(named.keys() - tensors.keys()):
        raise InputError(f"it is incomplete: it lacks {missing[0]}")
    others = sorted(name for name in tensors.keys() - named.keys() if not name.startswith(prefixes))
    if others:
        raise InputError(f"it holds {others[0][:80]!r}, which nothing here reads")


def parameters_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A frozen model's parameters by their own names."""
    check_names(tensors, RESULTS, PREFIX)
    return below(tensors, PREFIX)


def check_splits(splits: list[Any], available: int) -> tuple[int, ...]:
    """The split behind each member, all of them among the data's."""
    if not splits or not all(type(k) is int and 0 <= k < available for k in splits):
        raise InputError(f"its splits are not numbers in 0..{available - 1}")
    return tuple(splits)


def check_statistics(tensors: Mapping[str, Tensor], members: int, epochs: int) -> None:
    """0 ≤ best_epoch ≤ epochs_run ≤ the budget's, for every member."""
    for name, (dims, dtypes) in STATISTICS.items():
        check_tensor(name, tensors[name], dims, dtypes)
        found = len(tensors[name])
        if found != members:
            raise InputError(f"{name} has {found} members instead of {members}")
    best, run = tensors["best_epoch"], tensors["epochs_run"]
    if not bool(((best >= 0) & (best <= run) & (run <= epochs)).all()):
        raise InputError(f"best_epoch and epochs_run must lie in 0..{epochs}, in this order")
