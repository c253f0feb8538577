"""Linear bounds of several rounds as rivals of one exact-mass LP, and how its dual mixes them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnn_repair.oracle.answers import Piece
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.backward import Linear, Relaxed
from gnn_repair.oracle.tails.lowering import Root
from gnn_repair.oracle.tails.region import Region
from gnn_repair.oracle.tails.relaxation import (
    Game,
    Slopes,
    game_of,
    play,
    rival_rows,
    width,
)

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

    def _note(self, number: int, part: Relaxed, linear: Linear) -> None:
        seen = linear.seen.get(number)
        count = len(self.region)
        if seen is None:  # the operation does not reach these outputs
            rows, units = linear.constant.shape[1], part.below.shape[1]
            seen = torch.zeros(count, rows, units, dtype=torch.float64)
        seen = seen.expand(count, -1, -1)
        lists = self.weighted.setdefault(number, [[] for _ in range(1 + len(part.lines.below))])
        if isinstance(part.operation, Root):
            down = seen.clamp(max=0.0)
            lists[0].append(down)
            q = part.lines.below[0].unflatten(1, (-1, part.operation.size)).unsqueeze(1)
            lists[1].append((down.unsqueeze(3) * q).flatten(2))
            return
        lists[0].append(seen)
        assert part.lines.above is not None
        for k, (a, b) in enumerate(zip(part.lines.above, part.lines.below, strict=True)):
            slopes = torch.where(seen > 0, a.unsqueeze(1), b.unsqueeze(1))
            lists[k + 1].append(seen * slopes)

    def solve(self) -> Piece:
        """The LP over all bounds."""
        terms = np.concatenate([game.terms for game in self.games], axis=1)
        fixed = np.concatenate([game.fixed for game in self.games], axis=1)
        return play(self.region, Game(terms, fixed))

    def combine(self, piece: Piece) -> tuple[Tensor, Slopes]:
        """Rival weights and slopes as the LP's dual mixes them."""
        shares = torch.from_numpy(np.ascontiguousarray(piece.weights[:, 1:])).unsqueeze(1)
        weights = (shares @ torch.cat(self.mixtures, dim=1))[:, 0].clamp(min=0.0)
        slopes: Slopes = {}
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
