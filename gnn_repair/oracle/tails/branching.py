"""Branch and bound over the signs of units, with leaves that prove themselves.

Where a relaxation stays positive, the unit whose line is farthest off decides two cases. All leaves
of one depth are bounded together, across LPs. A leaf is closed by the same kind of certificate as
everything else, and an LP is decided when all its leaves are closed or one λ met on the way wins.
"""

from __future__ import annotations

import time
from dataclasses import replace

from gnn_repair.oracle.tails.base import Base
from gnn_repair.oracle.tails.leaves import Leaf, Tree, bounded
from gnn_repair.oracle.tails.lines import NONLINEAR
from gnn_repair.oracle.tails.lowering import Root

ROUNDS = 2
"""Rounds of lines a leaf: a half inherits its parent's weights, and splitting does the rest."""
LAST_ROUNDS, LAST_PUSH = 8, 1e5
"""For leaves that cannot be split any more: what is left is a linear program, to be solved well."""
BATCH = 512
"""Leaves bounded together, so that their numbers stay in the cache."""


def grow(base: Base, trees: list[Tree], leaves: int, deadline: float | None = None) -> None:
    """Split leaves above the threshold until all are closed, a λ wins, or the budget is spent.

    Args:
        base: of the exposure.
        trees: one an LP; changed in place.
        leaves: how many leaves a tree may have.
        deadline: process time at which to stop.
    """
    while True:
        alive = [tree for tree in trees if _alive(tree, leaves)]
        if not alive or (deadline is not None and time.process_time() > deadline):
            return
        _level(base, alive[: BATCH // 2])


def _alive(tree: Tree, leaves: int) -> bool:
    if not tree.leaves or tree.margin > tree.win or tree.size >= leaves:
        return False
    return not any(leaf.last for leaf in tree.leaves)


def _is_exact(base: Base) -> bool:
    """Whether a leaf without anything to split is a linear program (or one with lengths)."""
    curved = [op for op in base.graph.operations if isinstance(op, NONLINEAR)]
    return all(isinstance(op, Root) or op.title == "relu" for op in curved)


def _level(base: Base, trees: list[Tree]) -> None:
    """Split the worst leaves of every tree, as many as make a batch."""
    share, exact = max(1, BATCH // (2 * len(trees))), _is_exact(base)
    by_depth: dict[tuple[int, bool], list[tuple[Tree, Leaf]]] = {}
    for tree in trees:
        tree.leaves.sort(key=lambda leaf: leaf.bound)
        for _ in range(min(share, len(tree.leaves))):
            leaf = tree.leaves.pop()
            last = leaf.split is None
            if last and not exact:  # its gap is that of the lines, which no rounds close
                tree.leaves.append(replace(leaf, last=True))
                break
            for case in (replace(leaf, last=True),) if last else leaf.halves():
                by_depth.setdefault((len(case.units), last), []).append((tree, case))
    for (_, last), cases in by_depth.items():
        if last:
            bounded(base, cases, LAST_ROUNDS, LAST_PUSH)
        else:
            bounded(base, cases, ROUNDS)
