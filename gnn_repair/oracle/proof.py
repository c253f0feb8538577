"""What λ and w show of an LP, at the scale of the numbers they are sums of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnn_repair.oracle.tables import Floats, Instance
from gnn_repair.thresholds import REACHABLE

BLUR = 4e-15
"""How far sums of up to a few dozen numbers may be off, relative to those numbers. An answer that
far from the threshold of reach, or nearer, has not decided it."""
GRAIN = 1e-315
"""Some thousands of the smallest floats, which products of small numbers are rounded to."""


@dataclass(frozen=True)
class Proof:
    """What λ and w show of an LP, and how sure it is."""

    margin: float
    """The worst rival's margin under λ."""
    margin_size: float
    """The size of the numbers it is the sum of."""
    bound: float
    """What no reweighting exceeds, by w."""
    bound_size: float
    """The size of the numbers it is the sum of."""
    certain: float
    """The bound less what rounding may have added to each term's score."""

    def meets(self, accept: float) -> bool:
        """Whether bound and margin meet, up to ``accept`` of the margin's numbers."""
        room = accept * self.margin_size + GRAIN
        above = self.margin - self.bound <= room + BLUR * self.bound_size
        return self.certain - self.margin <= room and above

    def near(self, gamma: float, accept: float) -> bool:
        """Whether ``gamma`` is the margin, up to ``accept`` of its numbers."""
        return abs(self.margin - gamma) <= accept * self.margin_size + GRAIN

    def doubt(self, accept: float) -> str:
        """Why it does not settle the LP; empty if it does."""
        if not self.meets(accept):
            return f"bound and margin differ by {self.bound - self.margin:.1e}"
        blur = BLUR * (self.margin_size + self.bound_size)
        if self.margin - blur > REACHABLE or self.bound + blur <= REACHABLE:
            return ""
        return "bound and margin lie on both sides of the threshold of reach, by their rounding"


def weigh(problem: Instance, coefficients: Floats, duals: Floats) -> Proof:
    """Margin and bound of admissible λ [K] and w [R]."""
    active = coefficients > 0
    gaps, used = problem.gaps[active], coefficients[active]
    reached = problem.fixed + used @ gaps
    worst = int(reached.argmin())
    margin_size = abs(problem.fixed[worst]) + used @ np.abs(gaps[:, worst])
    bound, bound_size = duals @ problem.fixed, duals @ np.abs(problem.fixed)
    certain = bound - BLUR * bound_size
    scores, sizes = problem.gaps @ duals, np.abs(problem.gaps) @ duals
    for g, mass in enumerate(problem.mass):
        own = np.flatnonzero(problem.group == g)
        top = own[scores[own].argmax()]
        bound, bound_size = bound + mass * scores[top], bound_size + mass * sizes[top]
        certain += mass * (scores[own] - BLUR * sizes[own]).max()
    margin = float(reached[worst])
    return Proof(margin, float(margin_size), float(bound), float(bound_size), float(certain))
