"""From an exposure to its oracle solution: our own solver, or a general one for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.batch import solve_range
from gnn_repair.oracle.general import Answer, Solver, gurobi_solver, highs_solver
from gnn_repair.oracle.pool import over_lps
from gnn_repair.oracle.pricing import moderately_optimised
from gnn_repair.oracle.room import Room, new_room, rest, take_room
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.status import FAILED, FALLBACK, OPTIMAL
from gnn_repair.oracle.tables import Floats, Integers, Problems, Tables, instance, problems
from gnn_repair.quick_start import collection_paused

CHUNK = 1024
"""LPs a thread takes at a time."""

GENERAL: dict[str, Callable[[], Solver]] = {"highs": highs_solver, "gurobi": gurobi_solver}


def solve_oracle(
    exposure: Exposure,
    target: Tensor | Literal["all"],
    nodes: Tensor | None = None,
    *,
    method: Literal["simplex", "highs", "gurobi"] = "simplex",
    threads: int | None = None,
) -> OracleSolution:
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

    Returns:
        One answer per member, node and class. A solve that fails is a status, never an exception.
    """
    asked = problems(exposure, target, nodes)
    tables = Tables.of(exposure)
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    if method == "simplex":
        pieces = _solve_chunks(tables, asked, threads)
        pieces = _fall_back(tables, asked, pieces)
    elif method in GENERAL:
        pieces = _solve_generally(tables, asked, GENERAL[method], threads)
    else:
        raise InputError(f'method must be "simplex", "highs" or "gurobi", not "{method}"')
    return _assemble(exposure, tables, asked, pieces, method)


@dataclass(frozen=True)
class Piece:
    """Answers to consecutive LPs."""

    margin: Floats
    bound: Floats
    status: NDArray[np.int8]
    weights: Floats
    counts: Integers
    terms: Integers
    coefficients: Floats
    reasons: dict[int, str]


def _solve_chunks(tables: Tables, asked: Problems, threads: int | None) -> list[Piece]:
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
    return pieces


def _solve_chunk(tables: Tables, asked: Problems, first: int, last: int, room: Room) -> Piece:
    size, width = last - first, tables.num_classes + tables.num_groups - 2
    margin, bound = np.empty(size), np.empty(size)
    status, counts = np.empty(size, np.int8), np.empty(size, np.int64)
    weights = np.empty((size, tables.num_classes))
    terms, shares = np.empty(size * width, np.int64), np.empty(size * width)
    filled = solve_range(
        first, last, asked.member, asked.position, asked.target, tables.nodes, tables.segments,
        tables.rows, tables.contributions, tables.mass, tables.fixed_logits,
        room, margin, bound, status, weights, counts, terms, shares,
    )  # fmt: skip
    return Piece(margin, bound, status, weights, counts, terms[:filled], shares[:filled], {})


def _fall_back(tables: Tables, asked: Problems, pieces: list[Piece]) -> list[Piece]:
    """Hand what our solver gave up on to highspy."""
    solver: Solver | None = None
    for place, piece in enumerate(pieces):
        for k in np.flatnonzero(piece.status == FAILED):
            solver = solver or highs_solver()
            answer = _answer(tables, asked, place * CHUNK + int(k), solver)
            status = FALLBACK if answer.status == OPTIMAL else FAILED
            reason = answer.reason or "our simplex method did not converge"
            piece = _splice(piece, int(k), replace(answer, status=status, reason=reason))
        pieces[place] = piece
    return pieces


def _splice(piece: Piece, k: int, answer: Answer) -> Piece:
    """The piece with LP k's answer replaced."""
    low = int(piece.counts[:k].sum())
    high = low + int(piece.counts[k])
    for array, value in (
        (piece.margin, answer.margin),
        (piece.bound, answer.bound),
        (piece.status, answer.status),
        (piece.weights, answer.weights),
        (piece.counts, len(answer.terms)),
    ):
        array[k] = value
    old = piece.coefficients
    terms = np.concatenate([piece.terms[:low], answer.terms, piece.terms[high:]])
    shares = np.concatenate([old[:low], answer.coefficients, old[high:]])
    return replace(
        piece, terms=terms, coefficients=shares, reasons={**piece.reasons, k: answer.reason}
    )


def _answer(tables: Tables, asked: Problems, index: int, solver: Solver) -> Answer:
    problem = instance(
        tables, int(asked.member[index]), int(asked.position[index]), int(asked.target[index])
    )
    return solver.solve(problem)


def _solve_generally(
    tables: Tables, asked: Problems, make: Callable[[], Solver], threads: int | None
) -> list[Piece]:
    """Every LP through a general solver."""

    def work(index: int, solver: Solver) -> Answer:
        return _answer(tables, asked, index, solver)

    return [_pack(over_lps(len(asked), work, make, threads))]


def _pack(answers: list[Answer]) -> Piece:
    return Piece(
        np.array([answer.margin for answer in answers]),
        np.array([answer.bound for answer in answers]),
        np.array([answer.status for answer in answers], np.int8),
        np.stack([answer.weights for answer in answers]),
        np.array([len(answer.terms) for answer in answers]),
        np.concatenate([answer.terms for answer in answers]),
        np.concatenate([answer.coefficients for answer in answers]),
        {k: answer.reason for k, answer in enumerate(answers) if answer.reason},
    )


def _assemble(
    exposure: Exposure, tables: Tables, asked: Problems, pieces: list[Piece], method: str
) -> OracleSolution:
    counts = np.concatenate([piece.counts for piece in pieces])
    terms = np.concatenate([piece.terms for piece in pieces])
    reasons = {
        place * CHUNK + k: reason
        for place, piece in enumerate(pieces)
        for k, reason in piece.reasons.items()
    }
    return OracleSolution(
        member=asked.member,
        recipient=asked.position,
        node=tables.nodes[asked.position],
        target=asked.target,
        margin=np.concatenate([piece.margin for piece in pieces]),
        bound=np.concatenate([piece.bound for piece in pieces]),
        rival_weights=np.concatenate([piece.weights for piece in pieces]),
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        terms=terms,
        coefficients=np.concatenate([piece.coefficients for piece in pieces]),
        sources=exposure.sources.cpu().numpy()[tables.rows[terms]].astype(np.int64),
        groups=_groups(tables, np.repeat(asked.position, counts), terms),
        status=np.concatenate([piece.status for piece in pieces]),
        skipped=asked.skipped,
        method=method,
        reasons=reasons,
    )


def _groups(tables: Tables, position: Integers, terms: Integers) -> Integers:
    """[nnz]: the group of each term of the recipients at ``position``."""
    groups = np.zeros(len(terms), np.int64)
    for g in range(1, tables.num_groups):
        groups += terms >= tables.segments[position * tables.num_groups + g]
    return groups
