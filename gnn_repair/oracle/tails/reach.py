"""How often the evidence was there, with a tail: what is proved, and what is not excluded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.notebook import shown
from gnn_repair.oracle.metrics import Rate, support_words
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.sentence import CAN, CANNOT
from gnn_repair.oracle.tails.solution import TailSolution
from gnn_repair.oracle.tails.solve import solve_tails

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RateBetween:
    """A share that is known up to the undecided."""

    proved: Rate
    """Nodes whose class some λ was shown to make win."""
    possible: Rate
    """These and the undecided: all that are not excluded."""

    @property
    def decided(self) -> bool:
        """Whether both are the same."""
        return self.proved == self.possible

    def __str__(self) -> str:
        if self.decided:
            return f"{self.proved}, all decided"
        low, high = 100 * self.proved.value, 100 * self.possible.value
        return (
            f"between {low:.1f} % and {high:.1f} % ({self.proved.hits:,} proved, "
            f"{self.possible.hits - self.proved.hits:,} undecided, of {self.proved.total:,})"
        )

    __repr__ = __str__


@dataclass(frozen=True)
class TailReach:
    """True-class reach and error reach as intervals that undecided questions leave open."""

    true_class: RateBetween
    """Nodes whose true class some reweighting makes win."""
    error: RateBetween
    """The same among nodes the frozen model gets wrong."""
    support: float
    """Active terms of the λ that win, on average; NaN when there is none."""
    undecided: int
    skipped: int
    """Nodes without a label."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``TailedExposure.scope``)."""

    def to_frame(self) -> pd.DataFrame:
        """One row: what is proved and what is not excluded, with counts."""
        from gnn_repair.oracle.frames import tail_reach_frame

        return tail_reach_frame(self)

    def _repr_html_(self) -> str:
        return shown(self, self.to_frame())

    def rows(self) -> list[dict[str, Any]]:
        """One mapping, for tables."""
        return [
            {
                "true-class reach": str(self.true_class),
                "error reach": str(self.error),
                "support": round(self.support, 3),
                "undecided": self.undecided,
            }
        ]

    def __str__(self) -> str:
        return (
            f"true-class reach {self.true_class}\n"
            f"error reach      {self.error}\n"
            f"support          {support_words(self.support)}"
            + (f"\nabout            the {self.scope}" if self.scope else "")
        )

    __repr__ = __str__


def tail_reach(exposure: TailedExposure, y: Tensor, mask: Tensor | None = None) -> TailReach:
    """How often an admissible reweighting makes the true class win."""
    return summarise_tail(exposure, solve_tails(exposure, y, mask))


def summarise_tail(exposure: TailedExposure, solution: TailSolution) -> TailReach:
    """The figures of a solution whose targets are the true classes."""
    predicted = exposure.frozen_logits[0].argmax(1).cpu().numpy()
    wrong = predicted[solution.node] != solution.target
    won = solution.reachable
    support = solution.support[won]
    return TailReach(
        _between(solution, np.ones(len(solution), bool)),
        _between(solution, wrong),
        float(support.mean()) if len(support) else float("nan"),
        int((~solution.decided).sum()),
        solution.skipped,
        exposure.scope,
    )


def _between(solution: TailSolution, chosen: NDArray[np.bool_]) -> RateBetween:
    total = int(chosen.sum())
    proved = int((solution.reachable & chosen).sum())
    possible = int((~solution.excluded & chosen).sum())
    return RateBetween(Rate(proved, total), Rate(possible, total))


@dataclass(frozen=True, eq=False)
class TailClassReach:
    """Which classes each node could be given at all, without any label."""

    member: Integers
    """[M]: always 0."""
    node: Integers
    """[M]: the graph node."""
    margin: Floats
    """[M, C]: the largest margin found."""
    bound: Floats
    """[M, C]: what it cannot exceed."""
    verdict: NDArray[np.str_]
    """[M, C]."""

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """[M, C]: whether some λ was shown to make the class win."""
        return np.asarray(self.verdict == CAN)

    @property
    def count(self) -> Integers:
        """[M]: how many classes are shown to be within reach."""
        return self.reachable.sum(1)

    @property
    def possible(self) -> Integers:
        """[M]: how many are not excluded; 1 means that the prediction is forced."""
        return np.asarray(self.verdict != CANNOT).sum(1)

    def __str__(self) -> str:
        share = np.bincount(self.count, minlength=self.margin.shape[1] + 1) / len(self.node)
        parts = [f"{k}: {100 * p:.1f} %" for k, p in enumerate(share) if p > 0]
        open_ = int((self.possible - self.count).sum())
        words = f"; {open_:,} of {self.margin.size:,} undecided" if open_ else ", all decided"
        return f"classes within reach of {len(self.node):,} nodes: " + ", ".join(parts) + words

    __repr__ = __str__


def tail_class_reach(exposure: TailedExposure, nodes: Tensor | None = None) -> TailClassReach:
    """The classes that reweighting could give each node: label-free, every class tried."""
    solution = solve_tails(exposure, "all", nodes)
    classes = exposure.frozen_logits.shape[2]
    return TailClassReach(
        solution.member[::classes],
        solution.node[::classes],
        solution.margin.reshape(-1, classes),
        solution.bound.reshape(-1, classes),
        solution.verdict.reshape(-1, classes),
    )
