"""The oracle, or a fitted repair, over a large graph: ranges of recipients, each a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.budget import check_type, check_whole
from gnn_repair.errors import GnnRepairError, InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.parts import focus
from gnn_repair.oracle.problems import pose_problems
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import Target, solve
from gnn_repair.repair.base import FittedRepair
from gnn_repair.study.engine import Engine, Failure, LocalEngine, Tell, Work

RANGE = 1 << 16
"""Recipients that are worked out together wherever that happens: products of other sizes round
otherwise, so ranges do not depend on how many tasks there are."""


@dataclass(frozen=True, eq=False)
class Shard:
    """A range of recipients with their terms: one task."""

    exposure: Exposure
    """With k nodes and the table rows that its terms point at, numbered anew."""
    first: int
    """Position of its first recipient in the whole exposure."""
    first_term: int = 0
    """Its first term there; this and the following are read by the oracle alone."""
    places: Any = None
    """[k]: the whole exposure's node behind each of its own."""
    nodes: Any = None
    """[k, S] bool: which of them are asked for."""


def solve_oracle_sharded(
    exposure: Exposure,
    target: Target,
    nodes: Tensor | None = None,
    *,
    shards: int,
    engine: Engine | None = None,
    threads: int | None = None,
) -> Solution:
    """:func:`solve`, one task per range of recipients; the answer is the same.

    Args:
        exposure: the frozen model's final aggregation.
        target: [N] classes, or ``"all"``.
        nodes: a mask [N] or [N, S], or node numbers; all recipients unless given.
        shards: how many ranges, alike in terms.
        engine: where they are solved; this process unless given.
        threads: of every task; all cores unless given.
    """
    _check(exposure, engine, shards=shards, threads=1 if threads is None else threads)
    asked = pose_problems(exposure, target, nodes)
    mask = torch.zeros(exposure.num_nodes, exposure.num_members, dtype=torch.bool)
    mask[exposure.recipients.cpu()[asked.position], asked.member] = True
    tasks = make_shards(exposure, mask, shards)
    if not tasks:
        return solve(exposure, target, nodes, threads=threads)
    place = target.cpu() if isinstance(target, Tensor) else target
    names = None if exposure.n_id is None else exposure.n_id.cpu().numpy()
    parts = _mapped(engine, "oracle", _solve_shard, tasks, (place, threads))
    whole = Solution.concatenate(parts)
    ordered = whole.taken(np.lexsort((whole.target, whole.recipient, whole.member)))
    return replace(ordered, skipped=asked.skipped, n_id=names)


def _check(exposure: Any, engine: Any, **numbers: Any) -> None:
    check_type("exposure", exposure, Exposure, "what gnn_repair.expose returns")
    check_type("engine", LocalEngine() if engine is None else engine, Engine, "an Engine")
    for name, value in numbers.items():
        check_whole("sharding", name, value, 1)


def _mapped(
    engine: Engine | None, what: str, work: Work[Any, Any], tasks: Sequence[Any], shared: Any
) -> list[Any]:
    """The results of all tasks, in the order of their first recipients."""
    results: dict[int, Any] = {}
    for task, result in (engine or LocalEngine()).map(work, tasks, shared):
        if isinstance(result, Failure):
            raise GnnRepairError(f"a shard of the {what} failed: {result.error}")
        results[task.first] = result
    return [results[first] for first in sorted(results)]


def make_shards(exposure: Exposure, mask: Tensor, shards: int) -> list[Shard]:
    """Contiguous ranges of recipients with about the same number of terms; empty ones left out."""
    ends = exposure.segments[:: exposure.num_groups].cpu()
    # A recipient counts as one more term, so that recipients without terms spread as well.
    load = ends + torch.arange(len(ends))
    marks = torch.arange(1, shards) * load[-1] // shards
    cuts = [0, *torch.searchsorted(load, marks).tolist(), exposure.num_recipients]
    # Without the states behind the contributions, on the CPU.
    state, messages = exposure.state[..., :0], exposure.messages[..., :0]
    slim = replace(exposure, state=state, messages=messages, embedding=None)
    slim = slim if slim.recipients.device.type == "cpu" else slim.to("cpu")
    parts: list[Shard] = []
    for first, last in pairwise(cuts):
        if bool(mask[slim.recipients[first:last]].any()):
            part, places, _ = focus(slim, torch.arange(first, last))
            asked = torch.zeros(len(places), mask.shape[1], dtype=torch.bool)
            asked[part.recipients] = mask[places][part.recipients]
            parts.append(Shard(part, first, int(ends[first]), places, asked))
    return parts


def _solve_shard(shared: tuple[Target, int | None], shard: Shard, tell: Tell) -> Solution:
    """One task: solve and express the answer in the whole exposure's positions and terms."""
    target, threads = shared
    own = target[shard.places] if isinstance(target, Tensor) else target
    solution = solve(shard.exposure, own, shard.nodes, threads=threads)
    places = shard.places.numpy()
    return replace(
        solution,
        recipient=solution.recipient + shard.first,
        terms=solution.terms + shard.first_term,
        node=places[solution.node],
        sources=np.where(solution.sources < 0, -1, places[solution.sources]),
        n_id=None,
    )


# A fitted repair ----------------------------------------------------------------------------------


def repaired_logits_sharded(
    fitted: FittedRepair[Any],
    exposure: Exposure,
    *,
    shards: int,
    engine: Engine | None = None,
    threads: int = 1,
    size: int = RANGE,
) -> Tensor:
    """``fitted.member_logits(exposure)``, worked out range by range: [S, n, C] float64 on the CPU.

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
    if not isinstance(fitted, FittedRepair) or not fitted.one_by_one:
        raise InputError(
            f"fitted is {fitted!r:.60}; give a repair that looks at recipients one by one: "
            "a translation, a reweighting or a refitted head"
        )
    _check(exposure, engine, shards=shards, threads=threads, size=size)
    ranges = -(-exposure.num_recipients // size)
    each = -(-ranges // min(shards, max(1, ranges))) * size
    place = exposure.to("cpu")
    tasks = [
        Shard(focus(place, positions).exposure, int(positions[0]))
        for positions in torch.arange(exposure.num_recipients).split(each)
    ]
    parts = _mapped(engine, "repair", _work, tasks, (fitted, threads, size))
    return torch.cat(parts, dim=1)


def _work(shared: tuple[FittedRepair[Any], int, int], task: Shard, tell: Tell) -> Tensor:
    fitted, threads, size = shared
    parts = torch.arange(task.exposure.num_recipients).split(size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logits = [fitted.member_logits(focus(task.exposure, part).exposure) for part in parts]
        return torch.cat(logits, dim=1)
    finally:
        torch.set_num_threads(before)
