"""One answer about a label, a link or a value in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.thresholds import ACTIVE, REACHABLE

SHOWN = 6
"""Senders named in a sentence."""


@dataclass(frozen=True, eq=False)
class LabelWitness:
    """One question's answer; printed, a sentence that its λ proves."""

    member: int
    subject: str
    """Such as ``node 7, label 3`` or ``link 4 → 9``."""
    wanted: bool
    """Whether it is wanted above the threshold."""
    margin: float
    bound: float
    threshold: float
    terms: Integers
    coefficients: Floats
    sources: Integers
    groups: Integers
    verdict: str
    reason: str = ""
    scope: str = ""
    """What of the model was reweighted where that is not all."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    @property
    def value(self) -> float:
        """The output under λ."""
        return self.threshold + (self.margin if self.wanted else -self.margin)

    @property
    def reachable(self) -> bool:
        """Whether λ puts the output on the wanted side."""
        return self.margin > REACHABLE

    def __str__(self) -> str:
        head = self.subject + (f" ({self.scope})" if self.scope else "")
        side = "above" if self.wanted else "below"
        if not len(self.terms):
            return f"{head} is {self.value:.4g} as it stands; no message can be reweighted"
        if self.verdict == "can":
            limit = self.threshold + (self.bound if self.wanted else -self.bound)
            return (
                f"{head} can be {side} {self.threshold:g}: {self.value:.4g} using "
                f"{self.senders()}; no reweighting goes beyond {limit:.4g}"
            )
        if self.verdict == "cannot":
            edge = "at most" if self.wanted else "at least"
            limit = self.threshold + (self.bound if self.wanted else -self.bound)
            return (
                f"{head} cannot be {side} {self.threshold:g}: under every reweighting it is "
                f"{edge} {limit:.4g}"
            )
        return f"{head} is undecided: {self.reason}"

    __repr__ = __str__

    def senders(self) -> str:
        """Who is listened to, the largest λ first."""
        order = np.argsort(-self.coefficients, kind="stable")
        order = order[self.coefficients[order] > ACTIVE]
        shown = ", ".join(self._sender(int(i)) for i in order[:SHOWN])
        more = len(order) - SHOWN
        return (shown or "no message") + (f" and {more} more" if more > 0 else "")

    def _sender(self, i: int) -> str:
        named = self.names.typed or self.groups.any()
        group = f", {self.names.group(self.groups[i])}" if named else ""
        return f"{self.names.sender(self.sources[i])} (λ {self.coefficients[i]:.4g}{group})"
