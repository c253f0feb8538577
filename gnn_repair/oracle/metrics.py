"""How often the evidence was there: true-class reach, error reach and support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure
from gnn_repair.notebook import shown
from gnn_repair.oracle.counting import ReachCounts, count_reach, mean_over_members
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.thresholds import REACHABLE

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.oracle.labels.reach import LabelReach
    from gnn_repair.oracle.tails.reach import TailClassReach, TailReach
    from gnn_repair.oracle.tails.solution import TailSolution

QUANTILE = 1.959963984540054
"""Of the normal distribution, for 95 % intervals."""


def support_words(support: float) -> str:
    """A mean number of active terms; where no class was reachable there is none."""
    return "–" if np.isnan(support) else f"{support:.2f} active terms on average"


@dataclass(frozen=True)
class Rate:
    """How many of how many."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        """hits / total; NaN when there is nothing to count."""
        return self.hits / self.total if self.total else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson score interval of the underlying probability."""
        if not self.total:
            return float("nan"), float("nan")
        square = QUANTILE**2 / self.total
        centre = (self.value + square / 2) / (1 + square)
        spread = self.value * (1 - self.value) / self.total + square / (4 * self.total)
        half = QUANTILE * spread**0.5 / (1 + square)
        return max(0.0, centre - half), min(1.0, centre + half)

    def __str__(self) -> str:
        low, high = self.interval
        share = f"{100 * self.value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        return f"{share} ({self.hits:,} of {self.total:,})"


@dataclass(frozen=True)
class MemberReach:
    """One member's figures."""

    counts: ReachCounts

    @property
    def true_class(self) -> Rate:
        """Nodes whose true class some reweighting makes win."""
        return Rate(self.counts.reachable, self.counts.nodes)

    @property
    def error(self) -> Rate:
        """The same among nodes the frozen model gets wrong."""
        return Rate(self.counts.reachable_errors, self.counts.errors)

    @property
    def support(self) -> float:
        """Active terms of reachable solutions, on average; NaN when there is none."""
        return self.counts.support

    @property
    def undecided(self) -> int:
        """LPs without an answer, or with one that decides nothing; they count nowhere else."""
        return self.counts.undecided


FIGURES = ("true_class", "error", "support")


@dataclass(frozen=True)
class Reach:
    """True-class reach, error reach and support: means over members, and each member's own."""

    members: tuple[MemberReach, ...]
    skipped: int
    """Nodes without a label, over all members."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""

    @property
    def true_class(self) -> float:
        """True-class reach, the mean over members, as in the paper."""
        return self.mean("true_class")

    @property
    def error(self) -> float:
        """Error reach, the mean over members that make errors."""
        return self.mean("error")

    @property
    def support(self) -> float:
        """Active terms of reachable solutions, the mean of the members' means."""
        return self.mean("support")

    @property
    def undecided(self) -> int:
        """LPs that count nowhere, over all members."""
        return sum(member.undecided for member in self.members)

    def mean(self, name: str) -> float:
        """The mean over members of ``true_class``, ``error`` or ``support``."""
        return mean_over_members(self._values(name))

    def _values(self, name: str) -> list[float]:
        if name not in FIGURES:
            raise InputError(f"there is no mean of {name!r}; ask for one of {', '.join(FIGURES)}")
        found = [getattr(member, name) for member in self.members]
        return [value.value if isinstance(value, Rate) else value for value in found]

    def rows(self) -> list[dict[str, Any]]:
        """A mapping per member and one for their mean, for tables."""
        rows = [
            {
                "member": str(i),
                "true-class reach": str(member.true_class),
                "error reach": str(member.error),
                "support": round(member.support, 3),
                "undecided": member.undecided,
            }
            for i, member in enumerate(self.members)
        ]
        mean: dict[str, Any] = {
            "member": "mean",
            "true-class reach": f"{100 * self.true_class:.1f} %",
            "error reach": f"{100 * self.error:.1f} %",
            "support": round(self.support, 3),
            "undecided": self.undecided,
        }
        return [*rows, mean]

    def to_frame(self) -> pd.DataFrame:
        """One row a member: shares with their intervals and counts, support, LPs left out."""
        from gnn_repair.oracle.frames import reach_frame

        return reach_frame(self)

    def _repr_html_(self) -> str:
        return shown(self, self.to_frame())

    def __str__(self) -> str:
        lines = [
            f"true-class reach {self._line('true_class')}",
            f"error reach      {self._line('error')}",
            f"support          {support_words(self.support)}",
        ]
        if self.undecided:
            lines.append(f"undecided        {self.undecided:,} LPs, which are in no figure above")
        if self.scope:
            lines.append(f"about            the {self.scope}")
        return "\n".join(lines)

    __repr__ = __str__

    def _line(self, name: str) -> str:
        """One member with its interval; several by their mean and the counts behind it."""
        rates = [getattr(member, name) for member in self.members]
        if len(rates) == 1:
            return str(rates[0])
        hits, total = sum(rate.hits for rate in rates), sum(rate.total for rate in rates)
        kept = sum(rate.total > 0 for rate in rates)
        members = f"{kept} members" if kept == len(rates) else f"{kept} of {len(rates)} members"
        shown = f"{100 * self.mean(name):.1f} %" if kept else "nan %"
        return f"{shown}, mean over {members} ({hits:,} of {total:,} in all)"


@overload
def reach(
    exposure: Exposure, y: Tensor, mask: Tensor | None = None, *, threads: int | None = None
) -> Reach: ...
@overload
def reach(
    exposure: TailedExposure, y: Tensor, mask: Tensor | None = None, *, threads: int | None = None
) -> TailReach: ...
def reach(
    exposure: Exposure | TailedExposure,
    y: Tensor,
    mask: Tensor | None = None,
    *,
    threads: int | None = None,
) -> Reach | TailReach | LabelReach:
    """How often an admissible reweighting makes the true class win.

    Args:
        exposure: S members. Where its outputs are labels, or its recipients links, each label is
            asked for its own side, and a ``LabelReach`` comes back.
        y: [N] true classes, −1 where unknown; of labels [N, K] zeros and ones.
        mask: [N], or [N, S] with a column per member (such as ``data.test_mask``); None: all.
        threads: as for :func:`solve_oracle`.
    """
    if isinstance(y, str):
        raise InputError("y must hold the true classes; for every class use class_reach")
    if getattr(exposure, "outputs", "classes") != "classes":
        from gnn_repair.oracle.labels.reach import label_reach

        return label_reach(exposure, y, mask, threads)
    if isinstance(exposure, TailedExposure):
        from gnn_repair.oracle.tails.reach import tail_reach

        return tail_reach(exposure, y, mask)
    return summarise(exposure, solve_oracle(exposure, y, mask, threads=threads))


@overload
def summarise(exposure: Exposure, solution: OracleSolution) -> Reach: ...
@overload
def summarise(exposure: TailedExposure, solution: TailSolution) -> TailReach: ...
def summarise(
    exposure: Exposure | TailedExposure, solution: OracleSolution | TailSolution
) -> Reach | TailReach:
    """The figures of a solution whose targets are the true classes."""
    if isinstance(solution, LabelSolution):
        raise InputError("a LabelSolution is summarised by reach(exposure, y [N, K])")
    if isinstance(exposure, TailedExposure) or not isinstance(solution, OracleSolution):
        return _summarise_tail(exposure, solution)
    predicted = exposure.frozen_logits.argmax(2).cpu().numpy()
    wrong = predicted[solution.member, solution.node] != solution.target
    decided, reachable, active = solution.decided, solution.reachable, solution.support
    members = []
    for s in range(exposure.num_members):
        own = solution.member == s
        counts = count_reach(reachable[own], wrong[own], active[own], decided[own])
        members.append(MemberReach(counts))
    return Reach(tuple(members), solution.skipped, exposure.scope)


def _summarise_tail(exposure: Any, solution: Any) -> TailReach:
    from gnn_repair.oracle.tails.reach import summarise_tail
    from gnn_repair.oracle.tails.solution import TailSolution

    if not isinstance(exposure, TailedExposure) or not isinstance(solution, TailSolution):
        raise InputError(
            f"a {type(solution).__name__} is no solution of {exposure!r:.60}; solve the oracle on "
            "the exposure that is summarised"
        )
    return summarise_tail(exposure, solution)


@dataclass(frozen=True, eq=False)
class ClassReach:
    """Which classes each node could be given at all, without any label."""

    member: Integers
    """[M]: one entry per member and node."""
    node: Integers
    """[M]: the graph node."""
    margin: Floats
    """[M, C]: γ_v(c)."""

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """[M, C]: whether some admissible reweighting makes the class win."""
        return self.margin > REACHABLE

    @property
    def count(self) -> Integers:
        """[M]: how many classes are within reach; 1 means that the prediction is forced."""
        return self.reachable.sum(1)

    def __str__(self) -> str:
        share = np.bincount(self.count, minlength=self.margin.shape[1] + 1) / len(self.count)
        parts = [f"{k}: {100 * p:.1f} %" for k, p in enumerate(share) if p > 0]
        return f"classes within reach of {len(self.node):,} nodes: " + ", ".join(parts)

    __repr__ = __str__


@overload
def class_reach(
    exposure: Exposure, nodes: Tensor | None = None, *, threads: int | None = None
) -> ClassReach: ...
@overload
def class_reach(
    exposure: TailedExposure, nodes: Tensor | None = None, *, threads: int | None = None
) -> TailClassReach: ...
def class_reach(
    exposure: Exposure | TailedExposure,
    nodes: Tensor | None = None,
    *,
    threads: int | None = None,
) -> ClassReach | TailClassReach:
    """The classes that reweighting could give each node: label-free, every class tried."""
    if isinstance(exposure, TailedExposure):
        from gnn_repair.oracle.tails.reach import tail_class_reach

        return tail_class_reach(exposure, nodes)
    solution = solve_oracle(exposure, "all", nodes, threads=threads)
    classes = exposure.num_classes
    return ClassReach(
        solution.member[::classes],
        solution.node[::classes],
        solution.margin.reshape(-1, classes),
    )
