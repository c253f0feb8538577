"""The oracle, or a fitted repair, on a large graph: one task per range of recipients."""

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
from gnn_repair.exposure.value import focus
from gnn_repair.oracle.problems import pose_problems
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import Target, solve
from gnn_repair.repair.base import FittedRepair
from gnn_repair.study.engine import Engine, Failure, LocalEngine, Tell, Work

RANGE = 1 << 16
"""Recipients per matrix product: other sizes round differently, so it does not depend on the number
of tasks."""


@dataclass(frozen=True, eq=False)
class Shard:
    """A range of recipients with their terms: one task."""

    exposure: Exposure
    """Of k nodes and the table rows that the terms refer to, renumbered."""
    first: int
    """Position of its first recipient in the full exposure."""
    first_term: int = 0
    """Its first term there; only the oracle reads this and the following fields."""
    full_nodes: Any = None
    """[k]: each node's number in the full exposure."""
    nodes: Any = None
    """[k, S] bool: the nodes to solve."""


def solve_oracle_sharded(
    exposure: Exposure,
    target: Target,
    nodes: Tensor | None = None,
    *,
    shards: int,
    engine: Engine | None = None,
    threads: int | None = None,
) -> Solution:
    """:func:`solve` with one task per range of recipients; the answer is the same.

    Args:
        exposure: the frozen model's final aggregation.
        target: [N] classes, or ``"all"``.
        nodes: a mask [N] or [N, S], or node numbers; all recipients unless given.
        shards: number of ranges, with about the same number of terms.
        engine: where they are solved; in this process unless given.
        threads: threads per task; all cores unless given.
    """
    _check(exposure, engine, shards=shards, threads=1 if threads is None else threads)
    lps = pose_problems(exposure, target, nodes)
    mask = torch.zeros(exposure.num_nodes, exposure.num_members, dtype=torch.bool)
    mask[exposure.recipients.cpu()[lps.position], lps.member] = True
    tasks = make_shards(exposure, mask, shards)
    if not tasks:
        return solve(exposure, target, nodes, threads=threads)
    shared = (target.cpu() if isinstance(target, Tensor) else target), threads
    solution = Solution.concatenate(_run_tasks(engine, "oracle", _solve_shard, tasks, shared))
    order = np.lexsort((solution.target, solution.recipient, solution.member))
    n_id = None if exposure.n_id is None else exposure.n_id.cpu().numpy()
    return replace(solution.taken(order), skipped=lps.skipped, n_id=n_id)


def _check(exposure: Any, engine: Any, **numbers: Any) -> None:
    check_type("exposure", exposure, Exposure, "what gnn_repair.expose returns")
    check_type("engine", LocalEngine() if engine is None else engine, Engine, "an Engine")
    for name, value in numbers.items():
        check_whole("sharding", name, value, 1)


def _run_tasks(
    engine: Engine | None, title: str, work: Work[Any, Any], tasks: Sequence[Any], shared: Any
) -> list[Any]:
    """The results of all tasks, in the order of their first recipients."""
    results: dict[int, Any] = {}
    for task, result in (engine or LocalEngine()).map(work, tasks, shared):
        if isinstance(result, Failure):
            raise GnnRepairError(f"a shard of the {title} failed: {result.error}")
        results[task.first] = result
    return [results[first] for first in sorted(results)]


def make_shards(exposure: Exposure, mask: Tensor, shards: int) -> list[Shard]:
    """Contiguous ranges of recipients with about the same number of terms; empty ones left out."""
    ends = exposure.segments[:: exposure.num_groups].cpu()
    # A recipient counts as one more term, so that recipients without terms are spread as well.
    load = ends + torch.arange(len(ends))
    marks = torch.arange(1, shards) * load[-1] // shards
    cuts = [0, *torch.searchsorted(load, marks).tolist(), exposure.num_recipients]
    # On the CPU, without the states from which the contributions were computed.
    state, messages = exposure.state[..., :0], exposure.messages[..., :0]
    slim = replace(exposure, state=state, messages=messages, embedding=None)
    slim = slim if slim.recipients.device.type == "cpu" else slim.to("cpu")
    tasks: list[Shard] = []
    for first, last in pairwise(cuts):
        if bool(mask[slim.recipients[first:last]].any()):
            part, full_nodes, _ = focus(slim, torch.arange(first, last))
            nodes = torch.zeros(len(full_nodes), mask.shape[1], dtype=torch.bool)
            nodes[part.recipients] = mask[full_nodes][part.recipients]
            tasks.append(Shard(part, first, int(ends[first]), full_nodes, nodes))
    return tasks


def _solve_shard(shared: tuple[Target, int | None], shard: Shard, tell: Tell) -> Solution:
    """Solve one shard; the answer has the full exposure's positions and terms."""
    target, threads = shared
    target = target[shard.full_nodes] if isinstance(target, Tensor) else target
    solution = solve(shard.exposure, target, shard.nodes, threads=threads)
    full_nodes = shard.full_nodes.numpy()
    return replace(
        solution,
        recipient=solution.recipient + shard.first,
        terms=solution.terms + shard.first_term,
        node=full_nodes[solution.node],
        sources=np.where(solution.sources < 0, -1, full_nodes[solution.sources]),
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
    """``fitted.member_logits(exposure)``, computed range by range: [S, n, C] float64 on the CPU.

    The result is bitwise the same for any number of shards and machines, and equal to
    ``fitted.logits`` up to rounding.

    Args:
        fitted: a repair that looks at recipients one by one.
        exposure: the frozen model's final aggregation.
        shards: number of tasks, with about the same number of ranges.
        engine: where they run; in this process unless given.
        threads: threads per task; another number may round differently.
        size: recipients per range.
    """
    if not isinstance(fitted, FittedRepair) or not fitted.one_by_one:
        raise InputError(
            f"fitted is {fitted!r:.60}; give a repair that looks at recipients one by one: "
            "a translation, a reweighting or a refitted head"
        )
    _check(exposure, engine, shards=shards, threads=threads, size=size)
    ranges = -(-exposure.num_recipients // size)
    shard_size = -(-ranges // min(shards, max(1, ranges))) * size
    exposure = exposure.to("cpu")
    tasks = [
        Shard(focus(exposure, positions).exposure, int(positions[0]))
        for positions in torch.arange(exposure.num_recipients).split(shard_size)
    ]
    parts = _run_tasks(engine, "repair", _repair_shard, tasks, (fitted, threads, size))
    return torch.cat(parts, dim=1)


def _repair_shard(shared: tuple[FittedRepair[Any], int, int], shard: Shard, tell: Tell) -> Tensor:
    fitted, threads, size = shared
    ranges = torch.arange(shard.exposure.num_recipients).split(size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        parts = [fitted.member_logits(focus(shard.exposure, r).exposure) for r in ranges]
        return torch.cat(parts, dim=1)
    finally:
        torch.set_num_threads(before)
