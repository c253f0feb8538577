"""Many LPs at once: our own solver in threads, and what helps where it gives up."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.oracle.fallback import second_attempts
from gnn_repair.oracle.problems import (
    FAILED,
    Floats,
    Integers,
    Problems,
    Tables,
    as_whole,
    instance,
)
from gnn_repair.oracle.reference import Answer, Solver
from gnn_repair.oracle.simplex import Room, new_room
from gnn_repair.oracle.solve_kernel import solve_range
from gnn_repair.startup import collection_paused

CHUNK = 1024
"""LPs a thread takes at a time: a millisecond of work, long beside the call into compiled code and
short beside a user's patience."""
PER_LP = ("margin", "bound", "status", "weights", "counts")
PER_TERM = ("terms", "coefficients", "sources", "groups")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Piece:
    """n answers; see :class:`~gnn_repair.oracle.solution.Solution`."""

    margin: Floats
    bound: Floats
    status: NDArray[np.int8]
    weights: Floats
    counts: Integers
    """[n]: size of each support; the four arrays below hold one support after another."""
    terms: Integers
    coefficients: Floats
    sources: Integers
    groups: Integers
    reasons: dict[int, str] = field(default_factory=dict)

    def part(self, first: int, last: int) -> Piece:
        """Answers ``first : last``."""
        low = int(self.counts[:first].sum())
        high = low + int(self.counts[first:last].sum())
        arrays = {name: getattr(self, name)[first:last] for name in PER_LP}
        arrays |= {name: getattr(self, name)[low:high] for name in PER_TERM}
        reasons = {k - first: text for k, text in self.reasons.items() if first <= k < last}
        return Piece(**arrays, reasons=reasons)

    def with_answers(self, places: Integers, others: Piece) -> Piece:
        """The same with the answers at ``places`` (ascending) replaced."""
        arrays = {name: getattr(self, name).copy() for name in PER_LP}
        for name, array in arrays.items():
            array[places] = getattr(others, name)
        stays = np.ones(len(self.margin), bool)
        stays[places] = False
        mine = np.repeat(stays, self.counts)
        owner = np.concatenate(
            [np.repeat(np.arange(len(stays)), self.counts)[mine], np.repeat(places, others.counts)]
        )
        order = np.argsort(owner, kind="stable")
        for name in PER_TERM:
            parts = [getattr(self, name)[mine], getattr(others, name)]
            arrays[name] = np.concatenate(parts)[order]
        reasons = {k: text for k, text in self.reasons.items() if stays[k]}
        reasons |= {int(places[k]): text for k, text in others.reasons.items()}
        return Piece(**arrays, reasons=dict(sorted(reasons.items())))


def pack(tables: Tables, positions: Integers, answers: Sequence[Answer]) -> Piece:
    """The answers for the recipients at ``positions``."""
    counts = np.array([len(answer.terms) for answer in answers])
    terms = np.concatenate([answer.terms for answer in answers])
    return Piece(
        np.array([answer.margin for answer in answers]),
        np.array([answer.bound for answer in answers]),
        np.array([answer.status for answer in answers], np.int8),
        np.stack([answer.weights for answer in answers]),
        counts,
        terms,
        np.concatenate([answer.coefficients for answer in answers]),
        *tables.origin(np.repeat(positions, counts), terms),
        {k: answer.reason for k, answer in enumerate(answers) if answer.reason},
    )


def join(pieces: Sequence[Piece]) -> Piece:
    """One piece of several."""
    arrays = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in PER_LP + PER_TERM
    }
    reasons, offset = dict[int, str](), 0
    for piece in pieces:
        reasons |= {offset + k: text for k, text in piece.reasons.items()}
        offset += len(piece.margin)
    return Piece(**arrays, reasons=reasons)


def check_threads(threads: Any) -> None:
    """Raise InputError unless it is a number of threads, or None for all cores."""
    if threads is not None and as_whole(threads, "threads") < 1:
        raise InputError(f"threads must be at least 1, not {threads}")


def over_lps(
    count: int,
    solve: Callable[[int, Any], Result],
    make: Callable[[], Any],
    threads: int | None = None,
) -> list[Result]:
    """[solve(i, make()) for i in range(count)], but ``make`` is called once per thread only."""
    workers = max(1, min(threads or os.cpu_count() or 1, count))
    solvers: SimpleQueue[Any] = SimpleQueue()
    for _ in range(workers):
        solvers.put(make())

    def work(index: int) -> Result:
        solver = solvers.get()
        try:
            return solve(index, solver)
        finally:
            solvers.put(solver)

    if workers == 1:
        return [work(index) for index in range(count)]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(count)))


def solve_tables(tables: Tables, asked: Problems, threads: int | None = None) -> Piece:
    """Our own solver alone on any tables; where it gives up the status is FAILED."""
    return _solve_chunks(tables, asked, threads)


def solve_with_second_attempts(
    tables: Tables, asked: Problems, threads: int | None = None
) -> Piece:
    """Our own solver on any tables, and what helps where it gives up."""
    return _try_again(tables, asked, _solve_chunks(tables, asked, threads))


def _solve_chunks(tables: Tables, asked: Problems, threads: int | None) -> Piece:
    """Our own solver, CHUNK LPs at a time."""
    starts = range(0, len(asked), CHUNK)

    def work(place: int, room: Room) -> Piece:
        first = starts[place]
        return _solve_chunk(tables, asked, first, min(first + CHUNK, len(asked)), room)

    def make() -> Room:
        return new_room(tables.num_classes, tables.num_groups)

    if not solve_range.signatures:
        with collection_paused():  # compiles, or loads what was compiled
            _solve_chunk(tables, asked, 0, 0, make())
    return join(over_lps(len(starts), work, make, threads))


def _solve_chunk(tables: Tables, asked: Problems, first: int, last: int, room: Room) -> Piece:
    size, width = last - first, tables.num_classes + tables.num_groups - 2
    margin, bound = np.empty(size), np.empty(size)
    status, counts = np.empty(size, np.int8), np.empty(size, np.int64)
    weights = np.empty((size, tables.num_classes))
    terms, sources, groups = np.empty((3, size * width), np.int64)
    shares = np.empty(size * width)
    filled = solve_range(
        first, last, asked.member, asked.position, asked.target, tables.nodes, tables.segments,
        tables.rows, tables.sources, tables.contributions, tables.mass, tables.fixed_logits,
        room, margin, bound, status, weights, counts, terms, shares, sources, groups,
    )  # fmt: skip
    return Piece(
        margin, bound, status, weights, counts,
        terms[:filled], shares[:filled], sources[:filled], groups[:filled],
    )  # fmt: skip


def _try_again(tables: Tables, asked: Problems, whole: Piece) -> Piece:
    """Replace the answers that our solver could not certify."""
    stuck = np.flatnonzero(whole.status == FAILED)
    if not len(stuck):
        return whole
    left = Problems(asked.member[stuck], asked.position[stuck], asked.target[stuck])

    def solve_reduced(reduced: Tables, lps: Problems) -> Piece:
        return _solve_chunks(reduced, lps, 1)

    answers = second_attempts(tables, left, whole.weights[stuck], solve_reduced)
    return whole.with_answers(stuck, pack(tables, left.position, answers))


def _answer(tables: Tables, asked: Problems, index: int, solver: Solver) -> Answer:
    problem = instance(
        tables, int(asked.member[index]), int(asked.position[index]), int(asked.target[index])
    )
    return solver.solve(problem)


def solve_generally(
    tables: Tables, asked: Problems, make: Callable[[], Solver], threads: int | None
) -> Piece:
    """Every LP through a general solver."""

    def work(index: int, solver: Solver) -> Answer:
        return _answer(tables, asked, index, solver)

    return pack(tables, asked.position, over_lps(len(asked), work, make, threads))
