"""Shares and means with their intervals: what is proved, and what is not excluded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnn_repair.oracle.problems import Floats, Integers
from gnn_repair.published import REACHABLE

Flags: TypeAlias = NDArray[np.bool_]
QUANTILE = 1.959963984540054
"""Of the normal distribution, for 95 % intervals."""
RESAMPLES = 1000
"""Of a bootstrap."""


@dataclass(frozen=True)
class Rate:
    """How many of how many; ``undecided`` of them may or may not."""

    hits: int
    total: int
    undecided: int = 0

    @property
    def value(self) -> float:
        """hits / total, what is proved; NaN when there is nothing to count."""
        return self.hits / self.total if self.total else float("nan")

    @property
    def possible(self) -> float:
        """The share that is not excluded."""
        return (self.hits + self.undecided) / self.total if self.total else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson score interval of the underlying probability; with undecided ones from
        the lower end of what is proved to the upper end of what is not excluded."""
        if not self.total:
            return float("nan"), float("nan")
        square = QUANTILE**2 / self.total

        def end(share: float, sign: int) -> float:
            centre = (share + square / 2) / (1 + square)
            spread = share * (1 - share) / self.total + square / (4 * self.total)
            return centre + sign * QUANTILE * spread**0.5 / (1 + square)

        return max(0.0, end(self.value, -1)), min(1.0, end(self.possible, 1))

    def __str__(self) -> str:
        if not self.total:
            return "– (none of them)"
        low, high = (100 * end for end in self.interval)
        if not self.undecided:
            counts = f"({self.hits:,} of {self.total:,})"
            return f"{100 * self.value:.1f} % [{low:.1f}, {high:.1f}] {counts}"
        return (
            f"{100 * self.value:.1f} to {100 * self.possible:.1f} % ({self.hits:,} proved, "
            f"{self.undecided:,} undecided, of {self.total:,})"
        )


@dataclass(frozen=True)
class Mean:
    """A mean over nodes; undecided answers leave it between ``low`` and ``high``."""

    low: float
    high: float
    interval: tuple[float, float]
    """95 %, by a bootstrap over nodes, of both ends together; NaN where there is one node."""

    @property
    def value(self) -> float:
        """The lower end, which is proved."""
        return self.low

    @property
    def possible(self) -> float:
        """The upper end, which is not excluded."""
        return self.high

    def words(self, scale: float = 1.0, digits: int = 1, sign: str = "", unit: str = "") -> str:
        """Such as ``10.4 % [7.1, 14.0]``."""
        if np.isnan(self.low):
            return "–"
        low, high, *ends = (
            f"{scale * x:{sign}.{digits}f}" for x in (self.low, self.high, *self.interval)
        )
        held = f"{low}{unit}" if low == high else f"{low} to {high}{unit}"
        return held if np.isnan(self.interval[0]) else f"{held} [{ends[0]}, {ends[1]}]"

    def __str__(self) -> str:
        return self.words(digits=3)


def resample_sums(node: Integers, columns: Floats, member: Integers | None = None) -> Floats:
    """Sums of ``columns`` [M, F] over nodes drawn with replacement, [RESAMPLES, S, F].

    All rows of a node (several members, several labels) are drawn together. Nodes with the same
    numbers are drawn as one kind, so that a million nodes take as long as a hundred. NaN of one.
    """
    member = np.zeros(len(node), np.int64) if member is None else member
    _, place = np.unique(node, return_inverse=True)
    width = int(member.max(initial=0)) + 1
    totals = np.zeros((int(place.max(initial=-1)) + 1, width, columns.shape[1]))
    np.add.at(totals, (place, member), columns)
    kinds, counts = np.unique(totals.reshape(len(totals), -1), axis=0, return_counts=True)
    random, nodes = np.random.default_rng(0), len(totals)
    kinds = kinds if nodes > 1 else np.full_like(kinds, np.nan)
    step = max(1, 4_000_000 // max(1, len(kinds)))
    parts = [
        random.multinomial(nodes, counts / nodes, min(step, RESAMPLES - first)) @ kinds
        for first in range(0, RESAMPLES, step)
    ]
    return np.concatenate(parts).reshape(RESAMPLES, width, columns.shape[1])


def find_interval(low: Floats, high: Floats) -> tuple[float, float]:
    """The 95 % interval of resampled values: the lower end of one, the upper end of the other."""
    if np.isnan(low).all():
        return float("nan"), float("nan")
    return float(np.nanpercentile(low, 2.5)), float(np.nanpercentile(high, 97.5))


def mean_over_nodes(low: Floats, high: Floats, node: Integers, member: Integers) -> Mean:
    """Over rows of nodes and members: the mean over members of each member's mean."""
    ones = np.ones(len(low))
    if not len(low) or np.isnan(low).any():
        return Mean(np.nan, np.nan, (np.nan, np.nan))
    own = [member == s for s in np.unique(member)]
    ends = [mean_over_members(x[rows].mean() for rows in own) for x in (low, high)]
    sums = resample_sums(node, np.stack([low, high, ones], 1), member)
    with np.errstate(invalid="ignore"):
        shares = sums[..., :2] / sums[..., 2:]
        drawn = np.nansum(shares, 1) / (~np.isnan(shares)).sum(1)
    return Mean(ends[0], ends[1], find_interval(drawn[:, 0], drawn[:, 1]))


def rank_column(
    best: Floats, worst: Floats, column: Integers, among: Flags
) -> tuple[Floats, Floats]:
    """The place of one column's value among others, 1 for the largest; ties share theirs.

    Args:
        best: [M, C] the most that each value may be.
        worst: [M, C] the least.
        column: [M] whose place.
        among: [M, C] what it is compared with, and it itself.

    Returns:
        The best and the worst place, [M] each: equal where the values are known.
    """
    rows = np.arange(len(column))
    rest = among.copy()
    rest[rows, column] = False

    def place(theirs: Floats, own: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # two that are infinite are equal
            ahead = np.where(theirs == own[:, None], 0.0, theirs - own[:, None])
        counted = np.where(ahead > REACHABLE, 1.0, np.where(ahead >= -REACHABLE, 0.5, 0.0))
        rank: Floats = 1 + (counted * rest).sum(1)
        return rank

    return place(worst, best[rows, column]), place(best, worst[rows, column])


@dataclass(frozen=True)
class ReachCounts:
    """How many nodes of one member.

    A question counts when it is *decided*: proved that its class can win, or that it cannot.
    """

    nodes: int
    """Decided."""
    reachable: int
    """Of these, the class can win."""
    errors: int
    """Decided nodes that the frozen model gets wrong."""
    reachable_errors: int
    """Of these, the class can win."""
    active: int
    """Active terms of all that can win."""

    @property
    def true_class_reach(self) -> float:
        """NaN where there is nothing to count, like the two others."""
        return _ratio(self.reachable, self.nodes)

    @property
    def error_reach(self) -> float:
        """The share of errors whose class can win."""
        return _ratio(self.reachable_errors, self.errors)

    @property
    def support(self) -> float:
        """Active terms of those that can win, on average."""
        return _ratio(self.active, self.reachable)


def count_reach(
    reachable: Flags, wrong: Flags, active: NDArray[np.int64], decided: Flags
) -> ReachCounts:
    """Count LPs, [n] each: γ above the threshold, frozen model wrong, active terms, decided."""
    can_win, errors = reachable & decided, wrong & decided
    return ReachCounts(
        nodes=int(decided.sum()),
        reachable=int(can_win.sum()),
        errors=int(errors.sum()),
        reachable_errors=int((can_win & errors).sum()),
        active=int(active[can_win].sum()),
    )


def mean_over_members(values: Iterable[float]) -> float:
    """The mean of the members that have the figure; NaN if none has."""
    numbers = [value for value in values if value == value]
    return fmean(numbers) if numbers else nan


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else nan
