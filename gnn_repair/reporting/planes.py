"""The plane a polytope is drawn in: two logit directions, the projected hull and vertices."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.reporting.evidence import Evidence

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Plane:
    """Margins of the true class over two rivals: across over ``one``, up over ``two``."""

    true: int
    one: int
    two: int

    def place(self, logits: Floats) -> Floats:
        """[…, C] logits to […, 2] positions."""
        own = logits[..., self.true]
        return np.stack([own - logits[..., self.one], own - logits[..., self.two]], axis=-1)


def plane_of(evidence: Evidence, i: int) -> Plane:
    """The default plane: the strongest rival when frozen, and the one that holds the oracle back
    (or the next strongest)."""
    true = int(evidence.true_class[i])
    ranked = [int(c) for c in np.argsort(-evidence.frozen_logits[i]) if c != true]
    weights = evidence.rival_weights[i].copy()
    weights[[true, ranked[0]]] = 0.0
    held = int(weights.argmax()) if weights.max() > 0 else ranked[min(1, len(ranked) - 1)]
    return Plane(true, ranked[0], held)


def vertices(evidence: Evidence, i: int) -> Floats:
    """[K, C]: logits with all of a term's group mass on it and the other groups as frozen."""
    if evidence.tail is not None:
        terms = slice(int(evidence.starts[i]), int(evidence.starts[i + 1]))
        alone = evidence.tail.alone_logits[terms]
        return alone if len(alone) else evidence.frozen_logits[i : i + 1]
    made = []
    for terms in group_slices(evidence, i):
        alpha, table = evidence.coefficients[terms], evidence.contributions[evidence.rows[terms]]
        if len(alpha):
            made.append(evidence.frozen_logits[i] - alpha @ table + alpha.sum() * table)
    return np.concatenate(made) if made else evidence.frozen_logits[i : i + 1]


def hull(evidence: Evidence, i: int, plane: Plane) -> Floats:
    """[H, 2]: outline of the projected β + Σ_g m_g conv{ℓ_a}, counterclockwise.

    The logits behind a nonlinear tail are no polytope; then there is no outline, [0, 2].
    """
    if evidence.tail is not None:
        return np.empty((0, 2))
    outline = plane.place(evidence.fixed_logits[i])[None]
    for terms in group_slices(evidence, i):
        mass = evidence.coefficients[terms].sum()
        if mass > 0:
            part = convex_hull(mass * plane.place(evidence.contributions[evidence.rows[terms]]))
            outline = convex_hull((outline[:, None] + part[None]).reshape(-1, 2))
    return outline


def group_slices(evidence: Evidence, i: int) -> list[slice]:
    """The terms of node i, by group."""
    groups = len(evidence.groups)
    ends = evidence.segments[i * groups : (i + 1) * groups + 1]
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


def convex_hull(points: Floats) -> Floats:
    """Corners of the convex hull in the plane, counterclockwise (Andrew's monotone chain)."""
    ordered = sorted({(float(x), float(y)) for x, y in points})
    if len(ordered) < 3:
        return np.array(ordered)
    return np.array([*_chain(ordered), *_chain(ordered[::-1])])


def _chain(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[Any] = []
    for p in points:
        while len(kept) > 1 and _turn(kept[-2], kept[-1], p) <= 0:
            kept.pop()
        kept.append(p)
    return kept[:-1]


def _turn(o: tuple[float, float], a: tuple[float, float], b: tuple[float, float]) -> float:
    return (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0])
