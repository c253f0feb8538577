"""Hand-made exposures for the oracle: random, degenerate and planted instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle import solve
from tests.helpers.hand_made import hand_made

Floats = NDArray[np.float64]
Node = tuple[Floats, list[tuple[Floats, Floats]]]
"""A node's β [C] and, per group, its (α [K], ℓ [K, C]); an absent group has K = 0."""


def exposure_of(nodes: Sequence[Node]) -> Exposure:
    """One recipient per node, every term with a table row of its own."""
    classes = len(nodes[0][0])
    groups = max(len(parts) for _, parts in nodes)
    alphas, tables, lengths = [], [], []
    for _, parts in nodes:
        for alpha, table in parts:
            alphas.append(alpha)
            tables.append(table.reshape(-1, classes))
            lengths.append(len(alpha))
    segments = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))
    return hand_made(
        segments,
        torch.arange(int(segments[-1])),
        torch.tensor(np.concatenate(alphas))[None],
        torch.tensor(np.concatenate(tables))[None],
        torch.tensor(np.stack([beta for beta, _ in nodes]))[None],
        groups,
    )


def random_node(
    rng: np.random.Generator,
    terms: Sequence[int],
    classes: int,
    draw: Callable[[tuple[int, ...]], Floats] | None = None,
) -> Node:
    """A node with ``terms[g]`` terms in group g; ``draw(shape)`` gives its numbers."""
    draw = draw or (lambda shape: rng.normal(size=shape))
    parts = [(rng.random(count) + 0.05, draw((count, classes))) for count in terms]
    return draw((classes,)), parts


def families(seed: int) -> dict[str, list[Node]]:
    """Named lists of nodes with the same number of classes and groups each."""
    rng = np.random.default_rng(seed)

    def many(count: int, make: Callable[[], Node]) -> list[Node]:
        return [make() for _ in range(count)]

    def sizes(groups: int, top: int) -> list[int]:
        return [int(rng.integers(1, top)) for _ in range(groups)]

    def integers(shape: tuple[int, ...]) -> Floats:
        return rng.integers(-2, 3, shape).astype(float)

    def duplicated() -> Node:
        beta, parts = random_node(rng, [6], 5)
        alpha, table = parts[0]
        return beta, [(np.tile(alpha, 4), np.tile(table, (4, 1)))]

    def near_duplicated() -> Node:
        beta, [(alpha, table)] = duplicated()
        return beta, [(alpha, table + 1e-13 * rng.normal(size=table.shape))]

    def scaled() -> Node:
        return random_node(
            rng, [12, 7], 4, lambda shape: rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6)
        )

    def mixed_scales() -> Node:
        def draw(shape: tuple[int, ...]) -> Floats:
            size = 10.0 ** rng.integers(-6, 6, shape[:1])
            return rng.normal(size=shape) * size.reshape((-1,) + (1,) * (len(shape) - 1))

        return random_node(rng, [15], 5, draw)

    def paper_scissors() -> Node:
        game = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], float)
        table = np.concatenate([np.zeros((3, 1)), game], axis=1) * rng.choice([0.5, 1.0, 4.0])
        return np.zeros(4), [(np.full(3, 1 / 3), table)]

    def some_zero_coefficients() -> Node:
        beta, parts = random_node(rng, [9, 5], 5)
        for alpha, _ in parts:
            alpha[1::2] = 0.0
        return beta, parts

    def absent_group() -> Node:
        return random_node(rng, [int(k) for k in rng.integers(0, 4, 3)], 4)

    return {
        "one group": many(80, lambda: random_node(rng, sizes(1, 40), 7)),
        "three groups": many(60, lambda: random_node(rng, sizes(3, 40), 6)),
        "eighteen classes": many(30, lambda: random_node(rng, sizes(3, 60), 18)),
        "single term": many(20, lambda: random_node(rng, [1], 5)),
        "class pair": many(40, lambda: random_node(rng, sizes(2, 20), 2)),
        "large": many(6, lambda: random_node(rng, [int(rng.integers(300, 900))], 5)),
        "large groups": many(6, lambda: random_node(rng, [300, 5, 400], 7)),
        "large integers": many(6, lambda: random_node(rng, [500], 5, integers)),
        "integers": many(60, lambda: random_node(rng, sizes(2, 30), 5, integers)),
        "all tied": many(4, lambda: random_node(rng, [20], 5, np.zeros)),
        "duplicates": many(20, duplicated),
        "near duplicates": many(20, near_duplicated),
        "twelve decades": many(40, scaled),
        "decades within": many(40, mixed_scales),
        "rock paper scissors": many(6, paper_scissors),
        "zero coefficients": many(20, some_zero_coefficients),
        "absent groups": many(40, absent_group),
    }


def members_exposure(shared: bool = False) -> Exposure:
    """Three members with coefficients, messages and fixed logits of their own."""
    rng = np.random.default_rng(4)
    parts = [exposure_of([random_node(rng, [3, 2], 4) for _ in range(4)]) for _ in range(3)]
    first = parts[0]
    return hand_made(
        first.segments,
        first.rows,
        torch.cat([part.coefficients for part in parts][: 1 if shared else 3]),
        torch.cat([part.contributions for part in parts]),
        torch.cat([part.fixed_logits for part in parts]),
        2,
    )


def members(shared=False):
    whole = members_exposure(shared)
    return whole, solve(whole, "all")
