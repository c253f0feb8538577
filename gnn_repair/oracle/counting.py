"""The one definition of reach: what is counted, and what is counted nowhere.

An LP counts when it is *decided*: proven that its class can win, or that it cannot. True-class
reach is the share of decided nodes that can, error reach the same among nodes that the frozen model
gets wrong, support the mean number of active terms of those that can. Over several members (splits)
each is the mean of the members' figures, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class ReachCounts:
    """How many nodes of one member."""

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
    undecided: int
    """LPs without an answer, or with one that decides nothing; they are in no other count."""

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
        undecided=int((~decided).sum()),
    )


def mean_over_members(values: Iterable[float]) -> float:
    """The mean of the members that have the figure; NaN if none has."""
    known = [value for value in values if value == value]
    return fmean(known) if known else nan


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else nan
