"""One node and one case of a proof as :mod:`check` sees them, and the part of λ a case is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnn_repair.oracle.tails.recomputed_lines import Array


@dataclass(frozen=True)
class Node:
    """One node's mixture: o [D], and of every group the mass and the messages [K, D]."""

    number: int
    fixed: Array
    groups: tuple[tuple[float, Array], ...]


@dataclass(frozen=True)
class CoveredCase:
    """One case of a proof."""

    weights: Array
    slopes: Array
    """[U]."""
    splits: tuple[tuple[int, int, int, float], ...]
    """(nonlinear operation from 0, unit, sign, β)."""
    halvings: tuple[tuple[int, int, int], ...] = ()
    """(corner i, corner j, the side that stays: −1 or 1), in order."""


def part_of(node: Node, halvings: tuple[tuple[int, int, int], ...]) -> Node | None:
    """The part of a node's polytope that halvings leave; None where an edge is none."""
    ends = np.cumsum([0, *(len(messages) for _, messages in node.groups)])
    corners = [messages.copy() for _, messages in node.groups]
    for i, j, side in halvings:
        own = [g for g in range(len(corners)) if ends[g] <= min(i, j) <= max(i, j) < ends[g + 1]]
        if not own or i == j or side not in (-1, 1):
            return None
        group, first = corners[own[0]], ends[own[0]]
        group[(i if side > 0 else j) - first] = group[[i - first, j - first]].mean(0)
    masses = [mass for mass, _ in node.groups]
    return Node(node.number, node.fixed, tuple(zip(masses, corners, strict=True)))
