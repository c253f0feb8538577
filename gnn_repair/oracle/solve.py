"""From an exposure to its oracle solution: our own solver, or a general one for comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.answers import Piece, join, pack
from gnn_repair.oracle.compiling import moderately_optimised
from gnn_repair.oracle.reference_solvers import Answer, Solver, gurobi_solver, highs_solver
from gnn_repair.oracle.second_attempt import second_attempts
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve_kernel import solve_range
from gnn_repair.oracle.status import FAILED
from gnn_repair.oracle.tables import (
    Problems,
    Tables,
    as_whole,
    given_exposure,
    instance,
    problems,
    require_exposure,
)
from gnn_repair.oracle.threads import over_lps
from gnn_repair.oracle.workspace import Room, new_room, rest, take_room
from gnn_repair.startup import collection_paused

if TYPE_CHECKING:
    pass

CHUNK = 1024
"""LPs a thread takes at a time: a millisecond of work, long beside the call into compiled code and
short beside a user's patience."""

GENERAL: dict[str, Callable[[], Solver]] = {"highs": highs_solver, "gurobi": gurobi_solver}


SolverName = Literal["simplex", "highs", "gurobi"]
Target = Tensor | Literal["all"]


def solve_oracle(
    exposure: Exposure,
    target: Target,
    nodes: Tensor | None = None,
    *,
    method: SolverName = "simplex",
    threads: int | None = None,
    effort: str | float = "normal",
) -> Any:
    """Maximise a class's worst-rival margin over all admissible reweightings of the messages.

        γ_v(c) = max { min_{r≠c} z_c(λ) − z_r(λ) :  λ ≥ 0,  Σ_{a∈g} λ_a = m_g for every group g }

    Args:
        exposure: the frozen model's final aggregation.
        target: [N] the class c of each node of the graph (−1: unknown, skipped and counted), or
            ``"all"`` for every class of every node.
        nodes: a mask [N] or [N, S] (member s solves column s), node numbers, or None for all.
        method: ``simplex`` is ours; ``highs`` (highspy) and ``gurobi`` (gurobipy, with the
            paper's settings) are slower references that return the same kind of solution.
        threads: worker threads; all cores unless given. Results do not depend on it.
        effort: for models with a tail only: ``fast``, ``normal``, ``full``, or processor seconds
            for each question that is split into cases.

    Returns:
        One answer per member, node and class. A solve that fails is a status, never an exception.
        For a model with a tail a :class:`~gnn_repair.oracle.tails.solution.TailSolution`: can win,
        cannot win, or undecided.
    """
    given_exposure(exposure)
    if exposure.head is not None:
        from gnn_repair.oracle.tails.solve import solve_tails

        return solve_tails(exposure, target, nodes, method=method, effort=effort)
    require_exposure(exposure)
    asked = problems(exposure, target, nodes)
    tables = Tables.of(exposure)
    if threads is not None and as_whole(threads, "threads") < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    if method == "simplex":
        solved = solve_with_second_attempts(tables, asked, threads)
    elif isinstance(method, str) and method in GENERAL:
        solved = _solve_generally(tables, asked, GENERAL[method], threads)
    else:
        raise InputError(f'method must be "simplex", "highs" or "gurobi", not {method!r}')
    return OracleSolution(
        member=asked.member,
        recipient=asked.position,
        node=tables.nodes[asked.position],
        target=asked.target,
        margin=solved.margin,
        bound=solved.bound,
        rival_weights=solved.weights,
        indptr=np.append(0, np.cumsum(solved.counts)),
        terms=solved.terms,
        coefficients=solved.coefficients,
        sources=solved.sources,
        groups=solved.groups,
        status=solved.status,
        skipped=asked.skipped,
        method=method,
        reasons=solved.reasons,
        scope=exposure.scope,
        n_id=None if exposure.n_id is None else exposure.n_id.cpu().numpy(),
        names=exposure.term_names,
    )


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
    widest = int(tables.counts(asked.position).max())

    def work(place: int, room: Room) -> Piece:
        first = starts[place]
        return _solve_chunk(tables, asked, first, min(first + CHUNK, len(asked)), room)

    size, rooms = (tables.num_classes, tables.num_groups, widest), list[Room]()

    def make() -> Room:
        rooms.append(take_room(*size))
        return rooms[-1]

    if not solve_range.signatures:
        with collection_paused(), moderately_optimised():  # compiles, or loads what was compiled
            _solve_chunk(tables, asked, 0, 0, new_room(*size))
    pieces = over_lps(len(starts), work, make, threads)
    rest(rooms, *size)
    return join(pieces)


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


def _solve_generally(
    tables: Tables, asked: Problems, make: Callable[[], Solver], threads: int | None
) -> Piece:
    """Every LP through a general solver."""

    def work(index: int, solver: Solver) -> Answer:
        return _answer(tables, asked, index, solver)

    return pack(tables, asked.position, over_lps(len(asked), work, make, threads))
