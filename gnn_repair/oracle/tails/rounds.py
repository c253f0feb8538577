"""Better lines, round by round: lines tight where the last relaxation stood, added to the earlier.

Every line gives linear bounds that hold for all λ, so bounds of several rounds stand side by side
as rivals of one exact-mass LP, and its dual says how to mix their slopes. This is the cutting-plane
way to the best lines (with ReLUs after one layer: to the triangle relaxation), without a general
solver.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gnn_repair.oracle.answers import Piece
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.backward import Linear, Relaxed
from gnn_repair.oracle.tails.lowering import Root
from gnn_repair.oracle.tails.region import Region
from gnn_repair.oracle.tails.relaxation import (
    Certificate,
    Game,
    Slopes,
    certify,
    game_of,
    parts_with,
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

    def add(self, rows: Tensor, mixture: Tensor, parts: dict[int, Relaxed]) -> None:
        """Bound rows [B, R, C] of the outputs with these lines."""
        linear = self.region.backward(len(self.region.base.graph.operations), rows, parts)
        self.games.append(game_of(self.region, linear))
        self.mixtures.append(mixture)
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


def refine(
    region: Region,
    target: Integers,
    start: Piece,
    rounds: int,
    visit: Callable[[Tensor, Floats], None] | None = None,
) -> Certificate:
    """The best certificate of several rounds from the first relaxation's λ.

    Args:
        region: B LPs.
        target: [B] classes.
        start: the first relaxation's answer.
        rounds: how often lines are added.
        visit: told x [B, D] and λ [places] of every round, to try them as witnesses.
    """
    classes = width(region)
    rows, _ = rival_rows(target, classes)
    own = torch.from_numpy(target)[:, None, None].expand(-1, classes - 1, 1)
    mixture = (-rows).scatter(2, own, 0.0)
    cuts, piece = Cuts(region, target), start
    cuts.add(rows, mixture, region.relax())
    best: Certificate | None = None
    for _ in range(rounds):
        x = mixed_at(region, piece)
        if visit is not None:
            visit(x, dense_shares(region, piece))
        values = region.base.graph.values(x, region.nodes)
        cuts.add(rows, mixture, region.relax(values))
        piece = cuts.solve()
        weights, slopes = cuts.combine(piece)
        found = certify(region, target, weights, parts_with(region, slopes))
        best = found if best is None else better(best, found)
    if visit is not None:
        visit(mixed_at(region, piece), dense_shares(region, piece))
    assert best is not None
    return best


def better(first: Certificate, second: Certificate) -> Certificate:
    """For each LP the certificate with the smaller bound."""
    take = second.bound < first.bound

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(take.view(-1, *[1] * (a.dim() - 1)), b, a)

    slopes = {
        number: tuple(pick(a, b) for a, b in zip(old, second.slopes[number], strict=True))
        for number, old in first.slopes.items()
    }
    return Certificate(pick(first.bound, second.bound), pick(first.weights, second.weights), slopes)
