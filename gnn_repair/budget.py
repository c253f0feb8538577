"""Training budgets: plain numbers, so that naming one loads nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Integral, Real
from typing import Any

from gnn_repair.errors import InputError

LARGEST = 2**31 - 1
"""Counts are 32-bit in some kernels, and nothing sensible comes near."""


def check_whole(owner: str, name: str, value: object, least: int, most: int = LARGEST) -> None:
    """A setting is a whole number from ``least`` to ``most``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not least <= int(value) <= most:  # type: ignore[call-overload]
        raise InputError(
            f"{owner}: {name} is {value!r:.60}; give a whole number from {least} to {most:,}"
        )


def check_real(
    owner: str, name: str, value: object, low: float, high: float = math.inf, *, above: bool = False
) -> None:
    """A setting is finite, at least ``low`` (with ``above`` larger than it) and below ``high``."""
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    inside = real and (value > low if above else value >= low) and value < high  # type: ignore[operator]
    if not inside:
        least = f"above {low:g}" if above else f"of at least {low:g}"
        most = "" if high == math.inf else f" and below {high:g}"
        raise InputError(f"{owner}: {name} is {value!r:.60}; give a finite number {least}{most}")


def check_switch(owner: str, name: str, value: object) -> None:
    """A setting is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{owner}: {name} is {value!r:.60}; give True or False")


def check_type(name: str, value: object, kind: type, wanted: str) -> None:
    """An argument is a ``kind``."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {value!r:.60}; give {wanted}")


def as_list(name: str, value: Any, wanted: str, most: int | None = None) -> list[Any]:
    """An argument's items, at most so many; a text is one thing, not many."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r:.60}; give {wanted}")
    return list(islice(value, most))


@dataclass(frozen=True)
class Budget:
    """How something is trained."""

    epochs: int
    patience: int | None
    """Epochs without a strict improvement after which a member stops; None: never."""
    learning_rate: float
    weight_decay: float
    decoupled: bool = False
    """AdamW's decay instead of Adam's L2 term."""
    clip: float = 5.0
    """Largest gradient norm of a member."""
    epoch_zero: bool = False
    """Whether the untrained state is a candidate."""

    def __post_init__(self) -> None:
        check_whole("Budget", "epochs", self.epochs, 1)
        if self.patience is not None:
            check_whole("Budget", "patience", self.patience, 1)
        check_real("Budget", "learning_rate", self.learning_rate, 0, above=True)
        check_real("Budget", "weight_decay", self.weight_decay, 0)
        check_switch("Budget", "decoupled", self.decoupled)
        check_real("Budget", "clip", self.clip, 0, above=True)
        check_switch("Budget", "epoch_zero", self.epoch_zero)


def with_budget(owner: str, budget: object, epochs: int | None, lr: float | None) -> Budget:
    """A budget with another number of epochs or learning rate, where they are given."""
    if not isinstance(budget, Budget):
        raise InputError(f"{owner}: budget is {budget!r:.60}; give a Budget")
    if epochs is not None:
        check_whole(owner, "epochs", epochs, 1)
        budget = replace(budget, epochs=epochs)
    if lr is not None:
        check_real(owner, "lr", lr, 0, above=True)
        budget = replace(budget, learning_rate=lr)
    return budget


SHORT = Budget(epochs=200, patience=None, learning_rate=1e-2, weight_decay=5e-4)
"""GCN, GAT and GraphSAGE."""
LONG = Budget(epochs=1000, patience=100, learning_rate=1e-2, weight_decay=5e-4)
"""The five added backbones."""

# Epochs, patience, learning rate and weight decay are the paper's.
REWEIGHTING = Budget(300, 60, 5e-4, 1e-4, decoupled=True, epoch_zero=True)
TRANSLATION = Budget(500, 80, 1e-3, 1e-4, decoupled=True, epoch_zero=True)
"""Set translation."""
LADDER = Budget(200, 40, 3e-3, 1e-4, decoupled=True, epoch_zero=True)
"""Rungs of the evidence ladder: heads on frozen numbers, which take a larger step well."""
CONTROL = Budget(1100, 200, 1e-3, 1e-4, decoupled=True, epoch_zero=True)
"""Node translation."""
REFIT = Budget(1100, 200, 1e-3, 1e-4, decoupled=True, epoch_zero=False)
"""The refitted head, which must be trained to count."""

BATCHED = ("sgc", "mixhop", "h2gcn")
"""Backbones whose repairs the paper trains on minibatches of targets."""
BATCHES = {"squirrel": 8, "amazon-ratings": 16}
"""Batch sizes of these; BATCH on every other dataset."""
BATCH = 64
"""The paper's."""


def paper_batch_size(
    dataset: str,
    backbone: str,
    *,
    backbones: Collection[str] = BATCHED,
    size: int = BATCH,
    sizes: Mapping[str, int] | None = None,
) -> int | None:
    """How many targets an update of a repair sees; None: all of them.

    ``backbones`` are those whose repairs are trained on minibatches, ``sizes`` those of datasets
    that have their own; the paper's unless given.
    """
    own = BATCHES if sizes is None else sizes
    return own.get(dataset, size) if backbone in backbones else None
