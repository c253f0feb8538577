"""Answers to consecutive LPs, as plain arrays that can be joined and replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gnn_repair.oracle.flat_arrays import ANSWERED, PER_TERM
from gnn_repair.oracle.reference_solvers import Answer
from gnn_repair.oracle.tables import Floats, Integers, Tables

_PER_LP = (*ANSWERED, "weights", "counts")


@dataclass(frozen=True)
class Piece:
    """n answers; see :class:`~gnn_repair.oracle.solution.OracleSolution`."""

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
        arrays = {name: getattr(self, name)[first:last] for name in _PER_LP}
        arrays |= {name: getattr(self, name)[low:high] for name in PER_TERM}
        reasons = {k - first: text for k, text in self.reasons.items() if first <= k < last}
        return Piece(**arrays, reasons=reasons)

    def with_answers(self, places: Integers, others: Piece) -> Piece:
        """The same with the answers at ``places`` (ascending) replaced."""
        arrays = {name: getattr(self, name).copy() for name in _PER_LP}
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
        for name in _PER_LP + PER_TERM
    }
    reasons, offset = dict[int, str](), 0
    for piece in pieces:
        reasons |= {offset + k: text for k, text in piece.reasons.items()}
        offset += len(piece.margin)
    return Piece(**arrays, reasons=reasons)
