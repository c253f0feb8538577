"""A fitted repair over a large graph: ranges of recipients, some of them a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import GnnRepairError, InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.focus import focused
from gnn_repair.repair.fitted import FittedRepair
from gnn_repair.study.engine import Engine, Failure, LocalEngine, Tell

RANGE = 1 << 16
"""Recipients that are worked out together wherever that happens: products of other sizes round
otherwise, so ranges do not depend on how many tasks there are."""


@dataclass(frozen=True, eq=False)
class Ranges:
    """Consecutive ranges of recipients, for one task."""

    exposure: Exposure
    first: int
    """Position of its first recipient in the whole exposure."""


def repaired_logits_sharded(
    fitted: FittedRepair,
    exposure: Exposure,
    *,
    shards: int,
    engine: Engine | None = None,
    threads: int = 1,
    size: int = RANGE,
) -> Tensor:
    """``fitted.logits(exposure)``, worked out range by range: [S, n, C] float64 on the CPU.

    The same bits come out for any number of shards, on one machine or on many, and those of
    ``fitted.logits`` up to rounding.

    Args:
        fitted: a repair that looks at recipients one by one.
        exposure: the frozen model's final aggregation.
        shards: how many tasks, of about the same number of ranges.
        engine: where they run; this process unless given.
        threads: of every task; other numbers of threads may round otherwise.
        size: recipients in a range.
    """
    _check(fitted, exposure, engine, shards=shards, threads=threads, size=size)
    ranges = -(-exposure.num_recipients // size)
    each = -(-ranges // min(shards, max(1, ranges))) * size
    place = exposure.to("cpu")
    tasks = [
        Ranges(focused(place, positions).exposure, int(positions[0]))
        for positions in torch.arange(exposure.num_recipients).split(each)
    ]
    parts: dict[int, Tensor] = {}
    for task, result in (engine or LocalEngine()).map(_work, tasks, (fitted, threads, size)):
        if isinstance(result, Failure):
            raise GnnRepairError(f"a shard of the repair failed: {result.error}")
        parts[task.first] = result
    return torch.cat([parts[first] for first in sorted(parts)], dim=1)


def _check(fitted: Any, exposure: Any, engine: Any, **numbers: Any) -> None:
    if not isinstance(fitted, FittedRepair) or not fitted.one_by_one:
        raise InputError(
            f"fitted is {fitted!r:.60}; give a repair that looks at recipients one by one: "
            "a translation, a reweighting or a refitted head"
        )
    if not isinstance(exposure, Exposure):
        raise InputError(f"exposure is {exposure!r:.60}; give what gnn_repair.expose returns")
    if engine is not None and not isinstance(engine, Engine):
        raise InputError(f"engine is {engine!r:.60}; give an Engine")
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise InputError(f"{name} is {value!r:.60}; give a whole number from 1")


def _work(shared: tuple[FittedRepair, int, int], task: Ranges, tell: Tell) -> Tensor:
    fitted, threads, size = shared
    parts = torch.arange(task.exposure.num_recipients).split(size)
    with _threads(threads):
        return torch.cat([fitted.logits(focused(task.exposure, p).exposure) for p in parts], dim=1)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
