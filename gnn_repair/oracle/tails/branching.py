"""Branch and bound over parts of polytopes and signs of units, with leaves that prove themselves.

Where a relaxation stays positive, two cases are made: with few terms the halves of the polytope at
the edge along which lines are loosest, else the signs of the unit whose line is farthest off. All
leaves of one depth are bounded together, across LPs. A leaf is closed by the same kind of
certificate as everything else, and an LP is decided when all its leaves are closed or one λ met on
the way wins.
"""

from __future__ import annotations

import time
from dataclasses import replace

from gnn_repair.exposure.tails.operations import Activation, Operation
from gnn_repair.oracle.tails.base import Base
from gnn_repair.oracle.tails.leaves import Leaf, Tree, bounded
from gnn_repair.oracle.tails.lines import NONLINEAR
from gnn_repair.oracle.tails.lowering import Root
from gnn_repair.oracle.tails.subdivision import FEW

ROUNDS = 2
"""Rounds of lines a leaf: a half inherits its parent's weights, and splitting does the rest."""
LAST_ROUNDS, LAST_PUSH = 8, 1e5
"""For leaves that cannot be split any more: what is left is a linear program, to be solved well."""
FEW_UNITS = 6
"""Units whose signs are tried at once when no more are open: at most so many cases are then linear
programs, where halves would only come closer and closer."""
BATCH = 512
"""Leaves bounded together, so that their numbers stay in the cache."""


def grow(base: Base, trees: list[Tree], leaves: int, deadline: float) -> None:
    """Split leaves above the threshold until all are closed, a λ wins, or the budget is spent.

    Args:
        base: of the exposure.
        trees: one an LP; changed in place.
        leaves: how many leaves a tree may have.
        deadline: process time at which to stop.
    """
    while True:
        alive = [tree for tree in trees if _alive(tree, leaves)]
        if not alive or time.process_time() > deadline:
            return
        _level(base, alive[: BATCH // 2])


def _alive(tree: Tree, leaves: int) -> bool:
    if not tree.leaves or tree.margin > tree.win or tree.size >= leaves:
        return False
    return not any(leaf.last for leaf in tree.leaves)


def _others(base: Base) -> list[Operation]:
    """The nonlinear operations that are no ReLU."""
    curved = [op for op in base.graph.operations if isinstance(op, NONLINEAR)]
    return [op for op in curved if not (isinstance(op, Activation) and op.name == "relu")]


def _cases(leaf: Leaf, terms: int, others: list[Operation]) -> tuple[Leaf, ...]:
    """What a leaf is split into: at an edge of few corners, by a unit's sign, or not at all."""
    soon_linear = not others and leaf.loose <= FEW_UNITS
    if leaf.edge is not None and terms <= FEW and not soon_linear:
        return leaf.parts()
    if leaf.split is not None:
        return leaf.halves()
    return (replace(leaf, last=True),)


def _stuck(leaf: Leaf, terms: int, others: list[Operation]) -> bool:
    """Whether nothing is left to split and the gap is that of curved lines, which no rounds close
    (a Root's tangents they do)."""
    curved = any(not isinstance(op, Root) for op in others)
    return curved and leaf.split is None and (terms > FEW or leaf.edge is None)


def _level(base: Base, trees: list[Tree]) -> None:
    """Split the worst leaves of every tree, as many as make a batch."""
    share, others = max(1, BATCH // (2 * len(trees))), _others(base)
    by_depth: dict[tuple[int, bool], list[tuple[Tree, Leaf]]] = {}
    for tree in trees:
        tree.leaves.sort(key=lambda leaf: leaf.bound)
        for _ in range(min(share, len(tree.leaves))):
            leaf = tree.leaves.pop()
            if _stuck(leaf, tree.terms, others):
                tree.leaves.append(replace(leaf, last=True))
                break
            for case in _cases(leaf, tree.terms, others):
                by_depth.setdefault((len(case.units), case.last), []).append((tree, case))
    for (_, last), cases in by_depth.items():
        if last:
            bounded(base, cases, LAST_ROUNDS, LAST_PUSH)
        else:
            bounded(base, cases, ROUNDS)
