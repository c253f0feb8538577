"""Whose message a class cannot do without: every witness asked again without one of its senders."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.answers import Piece
from gnn_repair.oracle.flat_arrays import in_use
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_with_second_attempts
from gnn_repair.oracle.status import FAILED, UNCERTIFIED
from gnn_repair.oracle.tables import Floats, Integers, Problems, Tables, on_terms
from gnn_repair.thresholds import REACHABLE

QUESTIONS = 1 << 16
"""Asked together: with some hundred terms each, the copies of their rows take 50 MB."""
WORDS = np.array(["can", "cannot", "undecided"])


def without_each_source(
    solution: OracleSolution, exposure: Exposure, threads: int | None = None
) -> pd.DataFrame:
    """What becomes of every class that can win when one sender of its witness falls silent.

    One row an LP and source of its witness: member, node, class, source, ``margin`` without the
    source's messages at that node (−inf where nobody else could carry a group's mass) and
    ``verdict``. Sources that a witness does not use are never indispensable: it stays a witness.
    """
    tables = Tables.of(exposure)
    lp, source = _pairs(solution, tables)
    margins, verdicts = [np.empty(0)], [np.empty(0, WORDS.dtype)]
    for first in range(0, len(lp), QUESTIONS):
        part = slice(first, first + QUESTIONS)
        margin, verdict = _asked(tables, solution, lp[part], source[part], threads)
        margins.append(margin)
        verdicts.append(verdict)
    return pd.DataFrame(
        {
            "member": solution.member[lp],
            "node": solution.named(solution.node[lp]),
            "class": solution.target[lp],
            "source": solution.named(source),
            "margin": np.concatenate(margins),
            "verdict": np.concatenate(verdicts),
        }
    )


def _pairs(solution: OracleSolution, tables: Tables) -> tuple[Integers, Integers]:
    """LP and source of every sender that a witness listens to, each once."""
    owner = np.repeat(np.arange(len(solution)), np.diff(solution.indptr))
    used = in_use(solution, tables.mass) & solution.reachable[owner] & (solution.sources >= 0)
    pairs = np.unique(np.stack([owner[used], solution.sources[used]]), axis=1)
    return pairs[0], pairs[1]


def _asked(
    tables: Tables, solution: OracleSolution, lp: Integers, source: Integers, threads: int | None
) -> tuple[Floats, NDArray[np.str_]]:
    position = solution.recipient[lp]
    counts = tables.counts(position)
    owner = np.repeat(np.arange(len(lp)), counts)
    first = tables.segments[:: tables.num_groups][position]
    terms = np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)
    left = tables.sources[tables.rows[terms]] != source[owner]
    reduced = on_terms(tables, position, owner[left], terms[left])
    asked = Problems(solution.member[lp], np.arange(len(lp)), solution.target[lp])
    piece = solve_with_second_attempts(reduced, asked, threads)
    lost = _emptied(tables, reduced, position)
    margin = np.where(lost, -np.inf, piece.margin)
    return margin, WORDS[np.where(lost, 1, _verdict(piece))]


def _verdict(piece: Piece) -> Integers:
    """Places in WORDS, as a solution's ``verdict`` has them."""
    can = piece.margin > REACHABLE
    proven = (can | (piece.bound <= REACHABLE)) & (piece.status != FAILED)
    claimed = (piece.status != FAILED) & (piece.status != UNCERTIFIED)
    verdict: Integers = np.where(claimed | proven, np.where(can, 0, 1), 2)
    return verdict


def _emptied(tables: Tables, reduced: Tables, position: Integers) -> NDArray[np.bool_]:
    """[q]: a group has lost all its terms, so that its mass has nowhere to go."""
    shape = (-1, tables.num_groups)
    before = np.diff(tables.segments).reshape(shape)[position] > 0
    after = np.diff(reduced.segments).reshape(shape) > 0
    return np.asarray((before & ~after).any(1))
