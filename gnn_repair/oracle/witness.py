"""One LP's answer in words: who can make the class win, or why nobody can."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.oracle.status import FAILED, FALLBACK, FIXED, OPTIMAL, UNCERTIFIED
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.thresholds import ACTIVE, REACHABLE

STATUS = {
    OPTIMAL: "optimal",
    FALLBACK: "fallback",
    FIXED: "no terms",
    FAILED: "failed",
    UNCERTIFIED: "not certified",
}
"""Optimal; optimal at a second attempt (``reasons`` says which); nothing to reweight, γ is the
frozen margin; no answer (``reasons`` says why); γ lies between margin and bound, which do not
meet."""


@dataclass(frozen=True, eq=False)
class Witness:
    """One LP's answer; printed, a sentence that its λ and w prove."""

    member: int
    node: int
    target: int
    margin: float
    bound: float
    rival_weights: Floats
    terms: Integers
    coefficients: Floats
    sources: Integers
    groups: Integers
    status: str
    reason: str = ""
    scope: str = ""
    """What of the model was reweighted where that is not all."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    @property
    def reachable(self) -> bool:
        """Whether λ makes the class win."""
        return self.margin > REACHABLE

    def __str__(self) -> str:
        head = f"{self.names.node(self.node)}, class {self.target}"
        head += f" ({self.scope})" if self.scope else ""
        if self.status == STATUS[FAILED]:
            return f"{head}: no answer ({self.reason})"
        if self.status == STATUS[FIXED]:
            return f"{head} {self._as_it_stands()}; no message can be reweighted"
        return f"{head} {self._verdict()}"

    __repr__ = __str__

    def _verdict(self) -> str:
        doubt = f", not certified ({self.reason})" if self.status == STATUS[UNCERTIFIED] else ""
        if self.reachable:
            limit = f"no reweighting exceeds {self.bound:.4g}"
            return f"can win by {self.margin:.4g} using {self._senders()}; {limit}{doubt}"
        if self.bound < -REACHABLE:
            return (
                f"cannot win: every reweighting loses by at least {-self.bound:.4g} "
                f"to the rival mixture {self._mixture()}{doubt}"
            )
        if self.bound <= REACHABLE and self.margin >= -REACHABLE:
            return (
                f"ties at best: using {self._senders()} its margin is {self.margin:.4g}, and no "
                f"reweighting exceeds {self.bound:.4g} against the rival mixture "
                f"{self._mixture()}{doubt}"
            )
        if self.bound <= REACHABLE:
            return f"cannot win: its best margin lies {self._between()}{doubt}"
        return f"may or may not win: its best margin lies {self._between()}{doubt}"

    def _between(self) -> str:
        return f"between {self.margin:.4g} and {self.bound:.4g}"

    def _as_it_stands(self) -> str:
        rival = int(self.rival_weights.argmax())
        if self.reachable:
            return f"wins as it stands, by {self.margin:.4g}"
        if self.margin >= -REACHABLE:
            return f"ties with class {rival} as it stands"
        return f"loses as it stands, by {-self.margin:.4g} to class {rival}"

    def _mixture(self) -> str:
        # Weights that rounding left behind would read as "0.0 %".
        shown = ((r, w) for r, w in enumerate(self.rival_weights) if w > ACTIVE)
        return ", ".join(f"{100 * w:.1f} % class {r}" for r, w in shown)

    def _senders(self) -> str:
        order = np.argsort(-self.coefficients, kind="stable")
        return ", ".join(self._sender(int(i)) for i in order)

    def _sender(self, i: int) -> str:
        named = self.names.typed or self.groups.any()
        group = f", {self.names.group(self.groups[i])}" if named else ""
        return f"{self.names.sender(self.sources[i])} (λ {self.coefficients[i]:.4g}{group})"
