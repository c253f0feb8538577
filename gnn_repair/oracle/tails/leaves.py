"""Cases of a tail (signs of some units' inputs), bounded in batches by rounds of linear bounds.

Every set of lines gives linear bounds that hold for all λ of a case, so bounds of several rounds
stand side by side as rivals of one exact-mass LP, and its dual says how to mix their slopes. This
is the cutting-plane way to the best lines; with ReLUs after one layer it ends at the triangle
relaxation, without a general solver. In a case a unit's interval is halved (a ReLU is linear
there), and a multiple of its input that is nonnegative in that case may be added to any bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gnn_repair.exposure.tails.operations import Activation
from gnn_repair.oracle.answers import Piece
from gnn_repair.oracle.tables import Floats
from gnn_repair.oracle.tails.backward import Relaxed, width_of
from gnn_repair.oracle.tails.base import Base
from gnn_repair.oracle.tails.region import Region, region_of
from gnn_repair.oracle.tails.relaxation import Certificate, Slopes, certify, parts_with
from gnn_repair.oracle.tails.rounds import Cuts, dense_shares, mixed_at, rows_and_mixture
from gnn_repair.oracle.tails.subdivision import (
    DEEPEST,
    FEW,
    Halving,
    corner_points,
    longest_edges,
    original_shares,
    subdivided,
)
from gnn_repair.oracle.tails.witness import worst

PUSH = 100.0
"""How much larger than any unit's coefficient the multiple of its input may be: a case that hardly
any λ falls into needs a large one."""

Unit = tuple[int, int]
"""An elementwise operation's number and a channel of it."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """One case: signs of some inputs, and what proves how far its margin can go."""

    units: tuple[Unit, ...] = ()
    signs: tuple[int, ...] = ()
    bound: float = np.inf
    """Of the lowered tail's margin in this case."""
    weights: Floats = field(default_factory=lambda: np.empty(0))
    """[C]: w."""
    slopes: Floats = field(default_factory=lambda: np.empty(0))
    """[U]: of all nonlinear operations side by side, by number and then by input."""
    multipliers: Floats = field(default_factory=lambda: np.empty(0))
    """[units]: β ≥ 0, what multiple of ± the input was added."""
    split: Unit | None = None
    """The unit whose line is farthest off where the bound is attained; None: there is none left."""
    loose: int = 0
    """How many units could be split."""
    last: bool = False
    """Whether all was tried that there is."""
    halvings: tuple[Halving, ...] = ()
    """Edges of the polytope that were halved, in order."""
    edge: tuple[int, int] | None = None
    """The two corners that differ most; None: there are no two."""

    def halves(self) -> tuple[Leaf, Leaf]:
        """The two cases that ``split`` decides."""
        assert self.split is not None
        units = (*self.units, self.split)
        first, second = (
            Leaf(units, (*self.signs, sign), weights=self.weights, halvings=self.halvings)
            for sign in (-1, 1)
        )
        return first, second

    def parts(self) -> tuple[Leaf, Leaf]:
        """The two cases that halving ``edge`` gives."""
        assert self.edge is not None
        i, j = self.edge
        first, second = (
            Leaf(
                self.units,
                self.signs,
                weights=self.weights,
                halvings=(*self.halvings, (i, j, side)),
            )
            for side in (-1, 1)
        )
        return first, second


@dataclass(eq=False)
class Tree:
    """The cases of one LP: they cover all λ."""

    position: int
    target: int
    threshold: float
    """A case with a bound at or below it is closed (of the lowered tail's margin)."""
    win: float
    """A λ with a margin above it wins."""
    terms: int
    """Those that can change the aggregate."""
    leaves: list[Leaf] = field(default_factory=list)
    """Those with a bound above the threshold, still to be split."""
    closed: list[Leaf] = field(default_factory=list)
    margin: float = -np.inf
    """The best margin of the lowered tail met on the way."""
    shares: Floats | None = None
    """λ [K] by the node's terms that has it."""

    @property
    def size(self) -> int:
        """Leaves so far."""
        return len(self.leaves) + len(self.closed)

    @property
    def bound(self) -> float:
        """What all leaves together prove."""
        return max(leaf.bound for leaf in [*self.leaves, *self.closed])


def elementwise(base: Base) -> dict[int, int]:
    """Numbers and widths of the elementwise operations."""
    return {
        number: width_of(base.graph, number + 1)
        for number, operation in enumerate(base.graph.operations)
        if isinstance(operation, Activation)
    }


def flat_slopes(region: Region, slopes: Slopes) -> Floats:
    """Slopes of all nonlinear operations side by side, [B, U]: by number, then by input.

    One that no margin reads has none, and zeros stand for it: the length σ of a final L2 norm is
    multiplied out and leaves nothing behind.
    """
    parts = [
        part
        for number, box in region.boxes.items()
        for part in slopes.get(number, tuple(torch.zeros_like(side.low) for side in box))
    ]
    if not parts:
        return np.zeros((len(region), 0))
    return np.ascontiguousarray(torch.cat(parts, dim=1).numpy())


class LeafBatch:
    """Leaves of one depth as one region."""

    def __init__(self, base: Base, cases: list[tuple[Tree, Leaf]], push: float = PUSH) -> None:
        self.base, self.cases, self.push = base, cases, push
        self.depth = len(cases[0][1].units)
        self.position = np.array([tree.position for tree, _ in cases])
        self.target = np.array([tree.target for tree, _ in cases])
        self.signs = self._signs()
        self.region = self._region()
        self.best: list[Leaf | None] = [None] * len(cases)

    def _region(self) -> Region:
        signs = self.signs if self.depth else None
        halvings = [leaf.halvings for _, leaf in self.cases]
        if not any(halvings):
            return region_of(self.base, self.position, signs)
        part = subdivided(self.base, self.position, halvings)
        return region_of(part, np.arange(len(self.cases)), signs)

    def _signs(self) -> dict[int, Tensor]:
        signs = {
            number: torch.zeros(len(self.cases), width, dtype=torch.float64)
            for number, width in elementwise(self.base).items()
        }
        for row, (_, leaf) in enumerate(self.cases):
            for (number, unit), sign in zip(leaf.units, leaf.signs, strict=True):
                signs[number][row, unit] = sign
        return signs

    def bound(self, rounds: int) -> list[Leaf]:
        """The leaves with bounds; every λ met is offered to its tree."""
        region = self.region
        rows, mixture = rows_and_mixture(region, self.target)
        cuts, parts = Cuts(region, self.target), region.lines
        cuts.add(rows, mixture, parts)
        weights = self._parents_weights() if self.depth else None
        for turn in range(rounds):
            if weights is not None:
                self._add_mixed(cuts, weights, parts)
            piece = cuts.solve()
            x = mixed_at(region, piece)
            values = self.base.graph.values(x, region.nodes)
            self._offer(values[-1], piece)
            weights, slopes = cuts.combine(piece)
            final = turn + 1 == rounds
            # Bounds only fall from round to round: a certificate is worth its price at the end.
            if final or self._closing(piece):
                self._keep(weights, slopes, cuts.combine_pushes(piece), values)
            if final or self._settled():
                break
            parts = region.relax(values)
            cuts.add(rows, mixture, parts)
        return [leaf for leaf in self.best if leaf is not None]

    def _closing(self, piece: Piece) -> bool:
        """Whether the LP of a round says that some leaf can be closed, or its tree has won."""
        return any(
            tree.margin > tree.win or float(value) <= tree.threshold
            for (tree, _), value in zip(self.cases, piece.margin, strict=True)
        )

    def _settled(self) -> bool:
        """Whether every leaf is closed, or its tree has won."""
        return all(
            tree.margin > tree.win or (leaf is not None and leaf.bound <= tree.threshold)
            for (tree, _), leaf in zip(self.cases, self.best, strict=True)
        )

    def _parents_weights(self) -> Tensor:
        return torch.from_numpy(np.stack([leaf.weights for _, leaf in self.cases]))

    def _add_mixed(self, cuts: Cuts, weights: Tensor, parts: dict[int, Relaxed]) -> None:
        """A bound of the rivals' mixture, where units that rivals disagree about cancel, and one
        more for each sign on the way to the leaf, with a large multiple of that input."""
        rows = (-weights).scatter(1, torch.from_numpy(self.target)[:, None], 1.0)
        sizes = {n: seen[0][0].abs().amax((1, 2)) for n, seen in cuts.weighted.items()}
        pushes = {
            number: torch.zeros(len(self.cases), self.depth + 1, signs.shape[1]).double()
            for number, signs in self.signs.items()
        }
        for row, (_, leaf) in enumerate(self.cases):
            for level, ((number, unit), sign) in enumerate(
                zip(leaf.units, leaf.signs, strict=True)
            ):
                pushes[number][row, level, unit] = self.push * sign * float(sizes[number][row])
        many = (-1, self.depth + 1, -1)
        cuts.add(rows.unsqueeze(1).expand(many), weights.unsqueeze(1).expand(many), parts, pushes)

    def _offer(self, outputs: Tensor, piece: Piece) -> None:
        """Tell every tree of the λ of its leaves' relaxations."""
        margin = worst(outputs, torch.from_numpy(self.target)).numpy()
        shares, begins = dense_shares(self.region, piece), self.region.begins
        for row, (tree, leaf) in enumerate(self.cases):
            if margin[row] > tree.margin:
                tree.margin = float(margin[row])
                own = shares[begins[row] : begins[row + 1]]
                tree.shares = original_shares(leaf.halvings, own)

    def _keep(
        self, weights: Tensor, slopes: Slopes, pushes: dict[int, Tensor], values: list[Tensor]
    ) -> None:
        """Take the certificates where they are better than what was had."""
        betas = {n: (pushes[n] * signs).clamp(min=0.0) for n, signs in self.signs.items()}
        given = {n: (betas[n] * signs).unsqueeze(1) for n, signs in self.signs.items()}
        parts = parts_with(self.region, slopes)
        found = certify(self.region, self.target, weights, parts, given if self.depth else None)
        flat, bounds = flat_slopes(self.region, slopes), found.bound.tolist()
        splits, edges = self._splits(found, parts, values), self._edges(found, parts)
        for row, (_, leaf) in enumerate(self.cases):
            old = self.best[row]
            if old is not None and old.bound <= bounds[row]:
                continue
            sizes = np.array([float(betas[n][row, unit]) for n, unit in leaf.units])
            self.best[row] = Leaf(
                leaf.units, leaf.signs, bounds[row], weights[row].numpy(), flat[row], sizes,
                *splits[row], leaf.last, leaf.halvings, edges[row],
            )  # fmt: skip

    def _edges(self, found: Certificate, parts: dict[int, Relaxed]) -> list[tuple[int, int] | None]:
        """For each leaf of few terms the two corners between which its lines are loosest."""
        edges: list[tuple[int, int] | None] = [None] * len(self.cases)
        few = np.flatnonzero(
            [tree.terms <= FEW and len(leaf.halvings) < DEEPEST for tree, leaf in self.cases]
        )
        if not len(few):
            return edges
        at, region = torch.from_numpy(few), self.region.take(few)
        seen = {n: c.expand(len(edges), -1, -1)[at] for n, c in found.seen.items()}
        values = self.base.graph.values(*corner_points(region))
        chosen = longest_edges(
            region, {n: part.take(at) for n, part in parts.items()}, seen, values
        )
        for row, (i, j) in zip(few.tolist(), chosen.tolist(), strict=True):
            edges[row] = None if i < 0 else (i, j)
        return edges

    def _splits(
        self, found: Certificate, parts: dict[int, Relaxed], values: list[Tensor]
    ) -> list[tuple[Unit | None, int]]:
        """For each leaf the unit that may still be split and whose line is farthest off, and how
        many may."""
        gaps, names = [], list[Unit]()
        for number, signs in self.signs.items():
            outer = found.seen.get(number)
            if outer is not None:
                full = outer.expand(len(self.cases), -1, -1)[:, 0]
                gaps.append(_gaps(parts[number], full, signs, values, self.region.nodes))
                names += [(number, unit) for unit in range(signs.shape[1])]
        if not gaps:
            return [(None, 0)] * len(self.cases)
        all_gaps = torch.cat(gaps, dim=1)
        best, loose = all_gaps.argmax(1).tolist(), (all_gaps >= 0).sum(1).tolist()
        return [
            (names[unit] if count else None, count) for unit, count in zip(best, loose, strict=True)
        ]


def _gaps(
    part: Relaxed, outer: Tensor, signs: Tensor, values: list[Tensor], nodes: Tensor
) -> Tensor:
    """C (s y + b − f(y)) of each unit, −1 where it is not to be split, [B, k]."""
    box, slopes = part.box[0], part.lines.below[0]
    y = values[part.operation.inputs[0]]
    y = torch.minimum(torch.maximum(y, box.low), box.high)
    constant = torch.where(outer > 0, part.above, part.below)
    exact = part.operation.evaluate([y], nodes)
    gap = (outer * (slopes * y + constant - exact)).clamp(min=0.0)
    # Where the point tells nothing (all units tight there), the widest possible gap decides.
    spread = outer.abs() * torch.minimum(box.high, -box.low).clamp(min=0.0)
    splittable = (box.low < 0) & (box.high > 0) & (signs == 0) & (outer != 0)
    return torch.where(splittable, gap + 1e-3 * spread, -1.0)


def bounded(base: Base, cases: list[tuple[Tree, Leaf]], rounds: int, push: float = PUSH) -> None:
    """Bound leaves of one depth and hand them back to their trees."""
    for (tree, _), leaf in zip(cases, LeafBatch(base, cases, push).bound(rounds), strict=True):
        (tree.closed if leaf.bound <= tree.threshold else tree.leaves).append(leaf)
