"""Linear relaxations of tails, solved as exact-mass LPs by the package's own simplex method.

With every nonlinear operation replaced by a line, each margin is at most a linear function of λ,
and the largest smallest of those over all admissible λ is the oracle's LP again, with contributions
that belong to the node. Its dual w and the slopes of the lines are the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_repair.oracle.answers import Piece, join
from gnn_repair.oracle.solve import solve_tables
from gnn_repair.oracle.status import FAILED
from gnn_repair.oracle.tables import Floats, Integers, Problems, Tables
from gnn_repair.oracle.tails.backward import Linear, Relaxed, relaxed
from gnn_repair.oracle.tails.lines import Lines, within_ball
from gnn_repair.oracle.tails.lowering import Root
from gnn_repair.oracle.tails.region import HUGE, Region
from gnn_repair.oracle.tails.vertices import scores

Slopes = dict[int, tuple[Tensor, ...]]
"""By number of a nonlinear operation: slopes [B, k], one tensor an input."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """w and slopes of B linear programs: they prove that no λ has a margin above ``bound``."""

    bound: Tensor
    """[B]: of the margin, or of σ times it where the tail was multiplied through."""
    weights: Tensor
    """[B, C]: w ≥ 0, sums to one, zero at the target."""
    slopes: Slopes
    seen: dict[int, Tensor]
    """By number of a nonlinear operation: the coefficients [B or 1, 1, k] it had."""


@dataclass(frozen=True, eq=False)
class Game:
    """Linear upper bounds of margins, [places, R] by term and [B, R] for what is fixed."""

    terms: Floats
    fixed: Floats


def rival_rows(target: Integers, classes: int) -> tuple[Tensor, Integers]:
    """Coefficients [B, C − 1, C] of the margins T_c − T_r, and the rivals [B, C − 1]."""
    rivals = np.arange(classes - 1)[None] + (np.arange(classes - 1)[None] >= target[:, None])
    rows = torch.zeros(len(target), classes - 1, classes, dtype=torch.float64)
    index = torch.from_numpy(rivals).unsqueeze(2)
    rows.scatter_(2, index, -1.0)
    rows.scatter_(2, torch.from_numpy(target)[:, None, None].expand(-1, classes - 1, 1), 1.0)
    return rows, rivals


def game_of(region: Region, linear: Linear) -> Game:
    """The linear functions as margins of an exact-mass LP."""
    terms = np.empty((int(region.begins[-1]), linear.constant.shape[1]))
    scores(
        region.ends, region.begins, region.base.rows, region.base.table, region.lifts,
        linear.functions.numpy(), linear.lifted.numpy(), terms,
    )  # fmt: skip
    offset = (linear.functions @ region.fixed.unsqueeze(2)).squeeze(2) + linear.constant
    return Game(terms, offset.numpy())


def play(region: Region, game: Game, threads: int | None = None) -> Piece:
    """max_λ min_r of the game's margins: a λ by places of the region, and weights over r."""
    count = len(region)
    ends = region.ends
    local = (ends - ends[:, :1] + region.begins[:-1, None])[:, :-1]
    width = game.fixed.shape[1] + 1
    table, beta = np.zeros((1, len(game.terms), width)), np.zeros((1, count, width))
    # What no number is known for is left out: certificates do not rest on what the LP was told.
    table[0, :, 1:] = np.where(np.abs(game.terms) < HUGE, -game.terms, 0.0)
    beta[0, :, 1:] = np.where(np.abs(game.fixed) < HUGE, -game.fixed, 0.0)
    rows = np.arange(len(game.terms), dtype=np.int32)
    tables = Tables(
        np.arange(count), np.append(local.ravel(), region.begins[-1]), rows, rows, table,
        region.mass[None], beta,
    )  # fmt: skip
    zero = np.zeros(count, np.int64)
    piece = solve_tables(tables, Problems(zero, np.arange(count), zero), threads)
    return _with_substitutes(region, piece)


def _with_substitutes(region: Region, piece: Piece) -> Piece:
    """A vertex and equal weights where the solver gave up: worse, but admissible."""
    stuck = np.flatnonzero(piece.status == FAILED)
    if not len(stuck):
        return piece
    width = piece.weights.shape[1]
    return piece.with_answers(stuck, join([_substitute(region, int(k), width) for k in stuck]))


def _substitute(region: Region, row: int, width: int) -> Piece:
    ends, mass = region.ends[row], region.mass[row]
    present = np.flatnonzero(np.diff(ends) > 0)
    terms = ends[present] - ends[0] + region.begins[row]
    weights = np.full((1, width), 1.0 / (width - 1))
    nan, counts = np.full(1, np.nan), np.array([len(terms)])
    failed = np.full(1, FAILED, np.int8)
    return Piece(nan, nan, failed, weights, counts, terms, mass[present], terms, present)


def certify(
    region: Region,
    target: Integers,
    weights: Tensor,
    parts: dict[int, Relaxed],
    pushes: dict[int, Tensor] | None = None,
) -> Certificate:
    """What w and the lines prove, rounding included."""
    rows = -weights.unsqueeze(1)
    index = torch.from_numpy(target)[:, None, None]
    rows = rows.scatter(2, index, weights.sum(1)[:, None, None])
    last = len(region.base.graph.operations)
    linear = region.backward(last, rows, parts, pushes)
    bound = region.largest(linear)[:, 0]
    proved = bound.isfinite() & ~region.unbounded
    return Certificate(torch.where(proved, bound, torch.inf), weights, linear.slopes, linear.seen)


def parts_with(region: Region, slopes: Slopes) -> dict[int, Relaxed]:
    """Relaxations with given slopes, above and below."""
    parts = dict[int, Relaxed]()
    for number, box in region.boxes.items():
        operation = region.base.graph.operations[number]
        given = slopes[number]
        top, lift = region.tops.get(number), region.lift_of.get(number)
        if isinstance(operation, Root):
            lines = Lines(None, (within_ball(operation, given[0]),))
        else:
            lines = Lines(given, given)
        parts[number] = relaxed(operation, box, lines, None if top is None else top.high, lift)
    return parts


def class_weights(piece: Piece, rivals: Integers, classes: int) -> Tensor:
    """The game's weights [B, R + 1] as weights [B, C] of classes."""
    weights = torch.zeros(len(rivals), classes, dtype=torch.float64)
    found = torch.from_numpy(np.ascontiguousarray(piece.weights[:, 1:]))
    weights.scatter_add_(1, torch.from_numpy(rivals), found)
    return weights / weights.sum(1, keepdim=True)


def first_relaxation(
    region: Region, target: Integers, threads: int | None = None
) -> tuple[Certificate, Piece]:
    """The cheapest bound: one line a unit, tight at the middle of its interval."""
    parts = region.lines
    classes = width(region)
    rows, rivals = rival_rows(target, classes)
    linear = region.backward(len(region.base.graph.operations), rows, parts)
    piece = play(region, game_of(region, linear), threads)
    return certify(region, target, class_weights(piece, rivals, classes), parts), piece


def width(region: Region) -> int:
    """C."""
    return region.sizes[-1].shape[1]
