"""Linear relaxations of heads, solved as exact-mass LPs by the package's own simplex method.

With every nonlinear operation replaced by a line, each margin is at most a linear function of λ,
and the largest smallest of those over all admissible λ is the oracle's LP again, with contributions
that belong to the node. Its dual w and the slopes of the lines are the certificate. Bounds of
several rounds stand side by side as rivals of one LP, and its dual says how to mix them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_repair.exposure.heads.operations import Root, Slopes
from gnn_repair.oracle.heads.bound import HUGE, LinearBound, Region, Relaxed
from gnn_repair.oracle.heads.kernels import scores
from gnn_repair.oracle.lps import Piece, join, solve_tables
from gnn_repair.oracle.problems import FAILED, Floats, Integers, Problems, Tables

SlopesOf = dict[int, Slopes]
"""By number of a curved operation: slopes [B, k], one tensor per input."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """w and slopes of B linear programs: they prove that no λ has a margin above ``bound``."""

    bound: Tensor
    """[B]: of the margin, or of σ times it where the head was multiplied through."""
    weights: Tensor
    """[B, C]: w ≥ 0, sums to one, zero at the target."""
    slopes: SlopesOf
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


def game_of(region: Region, linear: LinearBound) -> Game:
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


def parts_with(region: Region, slopes: SlopesOf) -> dict[int, Relaxed]:
    """Relaxations with given slopes, above and below."""
    parts = dict[int, Relaxed]()
    for number in region.boxes:
        operation, given = region.curved(number), slopes[number]
        if isinstance(operation, Root):
            given = (operation.within(given[0]),)
        parts[number] = region.with_slopes(number, (given, given))
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


TINY = 1e-12
"""Coefficients below this times the largest do not decide about a slope."""


class Cuts:
    """All linear bounds of the rounds so far, for the same B LPs."""

    def __init__(self, region: Region, target: Integers) -> None:
        self.region, self.target = region, target
        self.games: list[Game] = []
        self.mixtures: list[Tensor] = []
        """[B, R, C] each: the rivals' weights behind each bound."""
        self.weighted: dict[int, list[list[Tensor]]] = {}
        """By operation: coefficients [B, R, k], then their products with each input's slope."""
        self.pushes: dict[int, list[Tensor]] = {}
        """By operation: multiples [B, R, k] of its input that were added."""

    def add(
        self,
        rows: Tensor,
        mixture: Tensor,
        parts: dict[int, Relaxed],
        pushes: dict[int, Tensor] | None = None,
    ) -> None:
        """Bound rows [B, R, C] of the outputs with these lines."""
        last = len(self.region.base.graph.operations)
        linear = self.region.backward(last, rows, parts, pushes)
        self.games.append(game_of(self.region, linear))
        self.mixtures.append(mixture)
        for number, part in parts.items():
            given = None if pushes is None else pushes.get(number)
            if given is None:
                given = torch.zeros(len(self.region), rows.shape[1], part.box[0].low.shape[1])
            self.pushes.setdefault(number, []).append(given.double())
        for number, part in parts.items():
            self._note(number, part, linear)

    def _note(self, number: int, part: Relaxed, linear: LinearBound) -> None:
        seen = linear.seen.get(number)
        count = len(self.region)
        if seen is None:  # the operation does not reach these outputs
            rows, units = linear.constant.shape[1], part.lower.shape[1]
            seen = torch.zeros(count, rows, units, dtype=torch.float64)
        seen = seen.expand(count, -1, -1)
        lists = self.weighted.setdefault(number, [[] for _ in range(1 + len(part.below))])
        if isinstance(part.operation, Root):
            down = seen.clamp(max=0.0)
            lists[0].append(down)
            q = part.below[0].unflatten(1, (-1, part.operation.size)).unsqueeze(1)
            lists[1].append((down.unsqueeze(3) * q).flatten(2))
            return
        lists[0].append(seen)
        for k, (a, b) in enumerate(zip(part.above, part.below, strict=True)):
            slopes = torch.where(seen > 0, a.unsqueeze(1), b.unsqueeze(1))
            lists[k + 1].append(seen * slopes)

    def solve(self) -> Piece:
        """The LP over all bounds."""
        terms = np.concatenate([game.terms for game in self.games], axis=1)
        fixed = np.concatenate([game.fixed for game in self.games], axis=1)
        return play(self.region, Game(terms, fixed))

    def combine(self, piece: Piece) -> tuple[Tensor, SlopesOf]:
        """Rival weights and slopes as the LP's dual mixes them."""
        shares = torch.from_numpy(np.ascontiguousarray(piece.weights[:, 1:])).unsqueeze(1)
        weights = (shares @ torch.cat(self.mixtures, dim=1))[:, 0].clamp(min=0.0)
        slopes: SlopesOf = {}
        for number, lists in self.weighted.items():
            operation = self.region.base.graph.operations[number]
            total = (shares @ torch.cat(lists[0], dim=1))[:, 0]
            mixed = tuple((shares @ torch.cat(part, dim=1))[:, 0] for part in lists[1:])
            if isinstance(operation, Root):
                total = total.repeat_interleave(operation.size, dim=1)
            safe = total.abs() > TINY * total.abs().amax(1, keepdim=True).clamp(min=1e-300)
            slopes[number] = tuple(
                torch.where(safe, part / torch.where(safe, total, 1.0), 0.0) for part in mixed
            )
        return weights / weights.sum(1, keepdim=True), slopes

    def combine_pushes(self, piece: Piece) -> dict[int, Tensor]:
        """The multiples [B, k] of inputs as the LP's dual mixes them."""
        shares = torch.from_numpy(np.ascontiguousarray(piece.weights[:, 1:])).unsqueeze(1)
        return {
            number: (shares @ torch.cat(parts, dim=1))[:, 0]
            for number, parts in self.pushes.items()
        }


def places_to_terms(region: Region, piece: Piece) -> Piece:
    """A piece whose support is by places of a region, by the exposure's terms instead."""
    shift = np.repeat(region.ends[:, 0] - region.begins[:-1], piece.counts)
    terms = piece.terms + shift
    return Piece(
        piece.margin, piece.bound, piece.status, piece.weights, piece.counts, terms,
        piece.coefficients, piece.sources, piece.groups, piece.reasons,
    )  # fmt: skip


def mixed_at(region: Region, piece: Piece) -> Tensor:
    """x at the λ of a game, [B, D]."""
    terms = places_to_terms(region, piece).terms
    indptr = np.append(0, np.cumsum(piece.counts))
    return region.base.mix(region.position, indptr, terms, piece.coefficients)


def dense_shares(region: Region, piece: Piece) -> Floats:
    """λ of a game by places, [places]."""
    shares = np.zeros(int(region.begins[-1]))
    shares[piece.terms] = piece.coefficients
    return shares


def rows_and_mixture(region: Region, target: Integers) -> tuple[Tensor, Tensor]:
    """The margins' rows [B, C − 1, C], and the rival each is about as weights."""
    classes = width(region)
    rows, _ = rival_rows(target, classes)
    own = torch.from_numpy(target)[:, None, None].expand(-1, classes - 1, 1)
    return rows, (-rows).scatter(2, own, 0.0)
