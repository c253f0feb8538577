"""``gnn-repair bench tails``: how much is decided about models with tails, and how fast, by stage.

All figures are processor time of one thread. *Errors* are the test nodes of split 0 that a briefly
trained two-layer model gets wrong; each is asked whether reweighting could give it its true class.
A stage's time is a mean over the questions that reached it, the share decided is of all; since few
reach the third and a batch of few is slow, its time with all errors asked is given too. The peers
get the same questions, a sample of them: the triangle relaxation as one LP and the tail itself as a
MILP, with a model built by arrays (tails with one layer of ReLUs only). Verdicts are compared with
a MILP's of another build (:mod:`tail_milp`), the questions that needed most work first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnn_repair.bench.tail_journal import Journal
from gnn_repair.bench.tail_milp import MilpComparison, compare_with_milp
from gnn_repair.bench.tail_models import tail_exposure, trained
from gnn_repair.bench.tail_peers import peer_figures
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.base import base_of
from gnn_repair.oracle.tails.effort import EffortLimit
from gnn_repair.oracle.tails.replaying import replay_margins
from gnn_repair.oracle.tails.solve import solve_tails
from gnn_repair.oracle.tails.stages import (
    ASCENT,
    Questions,
    frozen_of,
    relax_all,
    search_all,
    split_all,
)
from gnn_repair.thresholds import REACHABLE


@dataclass(frozen=True)
class Stage:
    """One stage: microseconds a question that reached it, and the share decided after it."""

    microseconds: float
    decided: float
    reached: int


@dataclass(frozen=True)
class TailRow:
    """One model."""

    dataset: str
    tail: str
    hidden: int
    accuracy: float
    errors: int
    stages: tuple[Stage, ...]
    """Relaxation, witness search, best lines, cases."""
    can: int
    cannot: int
    undecided: int
    holds: bool
    """Whether every λ and every bound passed the check."""
    check: float
    """Milliseconds a question of that check."""
    lines_for_all: float
    """Microseconds a question of the third stage, every error asked."""
    milp: MilpComparison | None
    """None where none was asked for, or the tail has operations no MILP has."""
    peers: dict[str, float | None]
    """Milliseconds a question: highspy's LP and MILP, gurobipy's LP; the share the LP excludes."""


def parse_widths(text: str) -> list[int]:
    """``"64,128"`` as numbers."""
    try:
        widths = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{text!r} is no list of hidden units such as 64,128") from error
    if min(widths) < 1:
        raise InputError(f"hidden units must be at least 1, not {min(widths)}")
    return widths


def bench_tails(
    datasets: Sequence[str],
    tails: Sequence[str],
    widths: Sequence[int],
    *,
    root: str | None = None,
    epochs: int = 150,
    sample: int = 40,
    milp: int = 0,
    folder: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """A row per dataset, tail and width, read from the folder where it was measured before.

    Args:
        datasets, tails, widths: what is measured, in all combinations.
        root: where datasets lie.
        epochs: of training.
        sample: questions a model that general solvers are timed on.
        milp: questions a model whose verdicts a MILP is asked about too.
        folder: where rows are kept.
    """
    torch.set_num_threads(1)
    journal = Journal(folder)
    for name in datasets:
        data = load_dataset(name, root)
        for hidden in widths:
            for tail in tails:
                title = f"{name}-{tail}-{hidden}-{epochs}-{sample}-{milp}"
                row = journal.read(title)
                if row is None:
                    found = _row(name, data, tail, hidden, epochs, sample, milp)
                    row = rows_for_print([found])[0]
                    journal.write(title, row)
                yield row


def _row(
    name: str, data: Any, tail: str, hidden: int, epochs: int, sample: int, milp: int
) -> TailRow:
    exposure = tail_exposure(trained(data, tail, hidden, epochs), data)
    right = exposure.frozen_logits[0].argmax(1) == data.y
    test = data.test_mask[:, 0]
    wrong = (test & ~right).nonzero().view(-1).numpy()
    target = data.y.numpy()[wrong]
    time_stages(exposure, wrong[:64], target[:64])  # compiles, or loads what was compiled
    stages = time_stages(exposure, wrong, target)
    solution = solve_tails(exposure, data.y, torch.from_numpy(wrong))
    begin = time.process_time()
    holds = solution.check(exposure).ok
    check = time.process_time() - begin
    hardest = np.argsort(-solution.status, kind="stable")[:milp]
    return TailRow(
        dataset=name,
        tail=tail,
        hidden=hidden,
        accuracy=100 * float(right[test].float().mean()),
        errors=len(wrong),
        stages=stages,
        can=int(solution.reachable.sum()),
        cannot=int(solution.excluded.sum()),
        undecided=int((~solution.decided).sum()),
        holds=holds,
        check=1e3 * check / max(1, len(wrong)),
        lines_for_all=_lines_for_all(exposure, wrong, target),
        milp=compare_with_milp(exposure, solution, hardest) if milp else None,
        peers=peer_figures(exposure, wrong, target, sample),
    )


def time_stages(
    exposure: TailedExposure, position: Integers, target: Integers
) -> tuple[Stage, ...]:
    """Each stage by itself, on the questions the one before left open."""
    frozen = frozen_of(exposure.aggregate.coefficients)
    begin = time.process_time()
    questions = Questions(base_of(exposure, position), position, target)
    relax_all(questions, frozen)
    stages = [_stage(exposure, questions, begin, len(questions))]
    for work in ("search", "lines", "cases"):
        left = np.flatnonzero(questions.open())
        begin = time.process_time()
        if work == "search":
            search_all(questions, left, frozen, ASCENT)
        else:
            split_all(questions, left, EffortLimit(1 if work == "lines" else 1000))
        stages.append(_stage(exposure, questions, begin, len(left)))
    return tuple(stages)


def _lines_for_all(exposure: TailedExposure, position: Integers, target: Integers) -> float:
    """Microseconds a question of the third stage alone."""
    questions = Questions(base_of(exposure, position), position, target)
    relax_all(questions, frozen_of(exposure.aggregate.coefficients))
    begin = time.process_time()
    split_all(questions, np.arange(len(questions)), EffortLimit(1))
    return 1e6 * (time.process_time() - begin) / max(1, len(questions))


def _stage(exposure: TailedExposure, questions: Questions, begin: float, reached: int) -> Stage:
    """The stage that began at ``begin``; wins count when the model confirms them."""
    seconds = time.process_time() - begin
    won = _confirmed(exposure, questions) > REACHABLE
    decided = won | (questions.raw <= questions.threshold)
    return Stage(1e6 * seconds / max(1, reached), float(decided.mean()), reached)


def _confirmed(exposure: TailedExposure, questions: Questions) -> Floats:
    return replay_margins(exposure, questions.position, questions.target, questions.shares)


def rows_for_print(rows: Sequence[TailRow]) -> list[dict[str, Any]]:
    """Mappings for tables."""
    return [
        {
            "dataset": row.dataset,
            "tail": row.tail,
            "units": row.hidden,
            "accuracy (%)": round(row.accuracy, 1),
            "errors": row.errors,
            **{
                f"{title} (µs)": round(stage.microseconds)
                for title, stage in zip(TITLES, row.stages, strict=True)
            },
            **{
                f"after {title} (%)": round(100 * stage.decided, 1)
                for title, stage in zip(TITLES, row.stages, strict=True)
            },
            "can": row.can,
            "cannot": row.cannot,
            "undecided": row.undecided,
            "all checked": row.holds,
            "check (ms)": round(row.check, 2),
            "lines, all errors (µs)": round(row.lines_for_all),
            **_compared(row.milp),
            **{
                name: None if value is None else round(value, 2)
                for name, value in row.peers.items()
            },
        }
        for row in rows
    ]


def _compared(milp: MilpComparison | None) -> dict[str, Any]:
    """How the comparison went."""
    return {
        "MILPs solved": None if milp is None else f"{milp.ended} of {milp.asked}",
        "compared": None if milp is None else milp.compared,
        "contradictions": None if milp is None else "; ".join(milp.contradictions) or "0",
    }


TITLES = ("relaxation", "search", "lines", "cases")
"""The stages in a table."""
