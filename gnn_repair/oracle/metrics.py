"""How often the evidence was there: true-class reach, error reach and support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.solution import REACHABLE, OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.status import FAILED
from gnn_repair.oracle.tables import Floats, Integers

if TYPE_CHECKING:
    from gnn_repair.oracle.tails.reach import TailClassReach, TailReach

QUANTILE = 1.959963984540054
"""Of the normal distribution, for 95 % intervals."""


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

    true_class: Rate
    """Nodes whose true class some reweighting makes win."""
    error: Rate
    """The same among nodes the frozen model gets wrong."""
    support: float
    """Active terms of reachable solutions, on average; NaN when there is none."""
    failed: int
    """LPs without an answer; they count as not reachable."""


@dataclass(frozen=True)
class Reach:
    """True-class reach, error reach and support of every member, and pooled."""

    members: tuple[MemberReach, ...]
    total: MemberReach
    """All members' LPs together."""
    skipped: int
    """Nodes without a label, over all members."""

    def mean(self, name: str) -> float:
        """The mean over members of ``true_class``, ``error`` or ``support``, as in the paper."""
        values = [getattr(member, name) for member in self.members]
        return float(np.mean([v.value if isinstance(v, Rate) else v for v in values]))

    def rows(self) -> list[dict[str, Any]]:
        """A mapping per member and one for the pooled figures, for tables."""
        named = [*((str(i), member) for i, member in enumerate(self.members)), ("all", self.total)]
        return [
            {
                "member": name,
                "true-class reach": str(member.true_class),
                "error reach": str(member.error),
                "support": round(member.support, 3),
            }
            for name, member in named
        ]

    def __str__(self) -> str:
        return (
            f"true-class reach {self.total.true_class}\n"
            f"error reach      {self.total.error}\n"
            f"support          {self.total.support:.2f} active terms on average"
        )

    __repr__ = __str__


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
) -> Reach | TailReach:
    """How often an admissible reweighting makes the true class win.

    Args:
        exposure: S members.
        y: [N] true classes, −1 where unknown.
        mask: [N], or [N, S] with a column per member (such as ``data.test_mask``); None: all.
        threads: as for :func:`solve_oracle`.
    """
    if isinstance(exposure, TailedExposure):
        from gnn_repair.oracle.tails.reach import tail_reach

        return tail_reach(exposure, y, mask)
    return summarise(exposure, solve_oracle(exposure, y, mask, threads=threads))


def summarise(exposure: Exposure, solution: OracleSolution) -> Reach:
    """The figures of a solution whose targets are the true classes."""
    predicted = exposure.frozen_logits.argmax(2).cpu().numpy()
    wrong = predicted[solution.member, solution.node] != solution.target
    members = tuple(
        _figures(solution, wrong, solution.member == s) for s in range(exposure.num_members)
    )
    return Reach(members, _figures(solution, wrong, solution.member >= 0), solution.skipped)


def _figures(
    solution: OracleSolution, wrong: NDArray[np.bool_], chosen: NDArray[np.bool_]
) -> MemberReach:
    reachable = solution.reachable & chosen
    support = solution.support[reachable]
    return MemberReach(
        Rate(int(reachable.sum()), int(chosen.sum())),
        Rate(int((reachable & wrong).sum()), int((wrong & chosen).sum())),
        float(support.mean()) if len(support) else float("nan"),
        int((solution.status[chosen] == FAILED).sum()),
    )


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
