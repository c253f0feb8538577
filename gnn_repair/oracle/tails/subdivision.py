"""Parts of a node's polytope: a group's simplex halved at edges, each half a simplex again.

Halving the edge between two corners replaces one of them by the middle, so a part has as many
corners as the whole, and a base whose messages are the corners bounds it like any node: all
intervals shrink, whatever the tail. With few terms this ends far sooner than signs of units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.backward import Relaxed
from gnn_repair.oracle.tails.base import Base
from gnn_repair.oracle.tails.lowering import Root
from gnn_repair.oracle.tails.region import Region
from gnn_repair.oracle.tails.vertices import extremes, halve, widest

FEW = 8
"""Terms up to which a polytope is halved at edges rather than by signs of units: a hundred times
fewer cases with 4 terms after two layers of units, as many as by signs with 10 after one."""
DEEPEST = 64
"""Halvings of one part at most: a pole at a corner, which no halving excludes, ends here."""
Halving = tuple[int, int, int]
"""Corners i and j of one group, by the node's terms, and a side: −1 keeps i, 1 keeps j."""


def free_terms(base: Base, position: int) -> int:
    """How many terms of a recipient can change its aggregate: a group of equal messages cannot."""
    ends = base.ends[position].tolist()
    groups = [base.table[base.rows[first:last]] for first, last in pairwise(ends)]
    return sum(len(group) for group in groups if len(group) and (group != group[0]).any())


def subdivided(base: Base, position: Integers, halvings: Sequence[tuple[Halving, ...]]) -> Base:
    """A base whose recipients are parts of those at ``position``, their corners its messages."""
    ends = base.ends[position]
    counts = ends[:, -1] - ends[:, 0]
    begins = np.append(0, np.cumsum(counts))
    terms = np.repeat(ends[:, 0] - begins[:-1], counts) + np.arange(begins[-1])
    table = base.table[base.rows[terms]]
    halve(begins, *_flat(halvings), table)
    local, mass = ends - ends[:, :1] + begins[:-1, None], base.mass[position]
    rows = np.arange(len(table), dtype=np.int32)
    fixed, size = base.fixed[position], base.size[position]
    low, high = np.empty_like(fixed), np.empty_like(fixed)
    extremes(local, mass, rows, table, low, high, np.empty_like(fixed))
    slack = base.slack[position]  # a corner is off by no more than what it is a mean of
    return replace(
        base, nodes=base.nodes[position], ends=local, mass=mass, rows=rows,
        sources=base.sources[base.rows[terms]], table=table, fixed=fixed,
        low=low + fixed - slack, high=high + fixed + slack, size=size,
        slack=slack,
    )  # fmt: skip


def _flat(halvings: Sequence[tuple[Halving, ...]]) -> tuple[Integers, Integers]:
    """Where each one's halvings end, and all of them one after another, [H, 3]."""
    counts = [len(own) for own in halvings]
    flat = [halving for own in halvings for halving in own]
    return np.append(0, np.cumsum(counts, dtype=np.int64)), np.array(flat, np.int64).reshape(-1, 3)


def original_shares(halvings: tuple[Halving, ...], shares: Floats) -> Floats:
    """λ [K] over the node's terms that λ over the corners of a part stands for."""
    corners = np.eye(len(shares))
    halve(np.array([0, len(shares)]), *_flat([halvings]), corners)
    return np.asarray(shares @ corners)


def corner_points(region: Region) -> tuple[Tensor, Tensor]:
    """x at every corner, [places, D], other groups at their mean; and each one's graph node."""
    base, ends = region.base, region.ends
    owner = np.repeat(np.arange(len(region)), np.diff(region.begins))
    term = np.arange(len(owner)) - region.begins[owner] + ends[owner, 0]
    group = (term[:, None] >= ends[owner, 1:-1]).sum(1)
    points = base.table[base.rows[term]] * region.mass[owner, group][:, None]
    centre = np.zeros((len(region), ends.shape[1] - 1, base.width))
    if ends.shape[1] > 2:
        np.add.at(centre, (owner, group), points)
        centre /= np.maximum(np.diff(ends, axis=1), 1)[:, :, None]
    rest = base.fixed[region.position] + centre.sum(1)
    points += rest[owner] - centre[owner, group]
    return torch.from_numpy(points), region.nodes[torch.from_numpy(owner)]


def longest_edges(
    region: Region, parts: dict[int, Relaxed], seen: dict[int, Tensor], values: list[Tensor]
) -> Integers:
    """For each row the two corners of a group that differ most where lines are loose, [B, 2].

    Args:
        region: of the parts.
        parts: their lines, the same slope above and below.
        seen: the coefficients each nonlinear operation had in the bound.
        values: the tail's values at all corners, [places, k].
    """
    owner = torch.from_numpy(np.repeat(np.arange(len(region)), np.diff(region.begins)))
    scaled = []
    for number, outer in seen.items():
        weight = outer.expand(len(region), -1, -1)[:, 0].abs()
        for value, each in zip(
            parts[number].operation.inputs, _looseness(parts[number], weight), strict=True
        ):
            scaled.append((values[value] * each[owner]).nan_to_num())
    # Where no bound holds yet, no line is looser than another: the longest edge of all.
    scaled.append(values[0] * region.unbounded[owner].unsqueeze(1))
    best = np.full((len(region), 2), -1, np.int64)
    points = torch.cat(scaled, dim=1).contiguous().numpy()
    local = region.ends - region.ends[:, :1] + region.begins[:-1, None]
    widest(local, region.begins, points, best)
    return best


def _looseness(part: Relaxed, weight: Tensor) -> list[Tensor]:
    """How far the lines of each input are apart in the bound, for each unit of its width."""
    if isinstance(part.operation, Root):
        return [weight.repeat_interleave(part.operation.size, dim=1)]
    band = weight * (part.above - part.below).clamp(min=0.0)
    return [band / (box.high - box.low).clamp(min=1e-300) for box in part.box]
