"""Hand-made exposures for the oracle: random, degenerate and planted instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.exposure.heads.operations import Affine, HeadGraph
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle import solve
from tests.campaigns import lp_families
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


def small_exposure(lengths: Any, alpha: Any, table: Any, fixed: Any = None) -> Exposure:
    """Recipients with so many terms in each group, [n, G]; β is zero unless given."""
    table, lengths = np.array(table, float), np.array(lengths, np.int64)
    fixed = np.zeros((len(lengths), table.shape[1])) if fixed is None else np.array(fixed, float)
    numbers = lp_families.Numbers(lengths, np.array(alpha, float), table, fixed)
    return lp_families.exposure_of(numbers)


def as_members(parts: Sequence[Exposure]) -> Exposure:
    """One exposure whose members are these, which share their terms."""
    names = ("coefficients", "contributions", "fixed_logits", "frozen_logits")
    numbers = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **numbers, fingerprint=())


def behind_identity(exposure: Exposure) -> Exposure:
    """The same behind a head that does nothing."""
    count = exposure.num_classes
    same = Affine((0,), torch.eye(count).double(), torch.zeros(count).double())
    return exposure.with_head(HeadGraph(count, (same,)), exposure.frozen_logits)


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


def members_exposure(shared: bool = False) -> Exposure:
    """Three members with coefficients, messages and fixed logits of their own."""
    rng = np.random.default_rng(4)
    parts = [exposure_of([random_node(rng, [3, 2], 4) for _ in range(4)]) for _ in range(3)]
    whole = as_members(parts)
    alpha = whole.coefficients[: 1 if shared else 3]
    return hand_made(whole.segments, whole.rows, alpha, whole.contributions, whole.fixed_logits, 2)


def members(shared=False):
    whole = members_exposure(shared)
    return whole, solve(whole, "all")
