"""One verdict in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.thresholds import ACTIVE, REACHABLE

CAN, CANNOT, UNDECIDED = "can", "cannot", "undecided"
STAGES = {
    0: "no bound",
    1: "linear relaxation",
    2: "witness search",
    3: "best lines",
    4: "cases",
}
"""How far the question went: no bound is known; one line a unit; a λ searched for; several rounds
of lines; cases by the signs of units."""
SHOWN = 6
"""Senders named in a sentence."""


@dataclass(frozen=True, eq=False)
class TailWitness:
    """One question's answer; printed, a sentence that says what is proved and how."""

    node: int
    target: int
    verdict: str
    margin: float
    bound: float
    terms: Integers
    coefficients: Floats
    sources: Integers
    groups: Integers
    stage: str
    cases: int
    replayed: bool
    reason: str = ""
    scope: str = ""
    """What of the model was reweighted where that is not all."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    @property
    def reachable(self) -> bool:
        """Whether some λ is known to make the class win."""
        return self.verdict == CAN

    def __str__(self) -> str:
        head = f"{self.names.node(self.node)}, class {self.target}"
        head += f" ({self.scope})" if self.scope else ""
        where = "the model itself, run with these weights" if self.replayed else "its tail"
        if self.verdict == CAN:
            return (
                f"{head} can win by {self.margin:.4g} using {self._senders()} ({where}, says so); "
                f"no reweighting exceeds {self.bound:.4g}"
            )
        if self.verdict == CANNOT:
            return f"{head} cannot win: {self._proof()}"
        return f"{head} is undecided: {self._between()}; {self.reason}"

    __repr__ = __str__

    def _proof(self) -> str:
        cases = f"{self.cases} cases" if self.cases > 1 else "one linear bound"
        if self.bound < -REACHABLE:
            return f"every reweighting loses by at least {-self.bound:.4g}, by {cases}"
        return f"every reweighting ties at best (none exceeds {self.bound:.1g}), by {cases}"

    def _between(self) -> str:
        if np.isfinite(self.bound):
            return f"its largest margin lies between {self.margin:.4g} and {self.bound:.4g}"
        return f"its largest margin is at least {self.margin:.4g}"

    def _senders(self) -> str:
        order = np.argsort(-self.coefficients, kind="stable")
        order = order[self.coefficients[order] > ACTIVE]
        if not len(order):
            return "no message"
        parts = [self._sender(int(i)) for i in order[:SHOWN]]
        more = f" and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
        return ", ".join(parts) + more

    def _sender(self, i: int) -> str:
        named = self.names.typed or self.groups.any()
        group = f", {self.names.group(self.groups[i])}" if named else ""
        return f"{self.names.sender(self.sources[i])} (λ {self.coefficients[i]:.4g}{group})"
