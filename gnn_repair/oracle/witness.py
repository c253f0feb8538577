"""One answer in words: who can bring an output to its wanted side, or why nobody can."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnn_repair.exposure.pieces import ONE_KIND, NodeNames
from gnn_repair.oracle.problems import (
    CAN,
    FAILED,
    FIXED,
    STATUS,
    UNCERTIFIED,
    UNDECIDED,
    Floats,
    Integers,
)
from gnn_repair.published import ACTIVE, REACHABLE

SHOWN = 6
"""Senders named in a sentence; more would not be read."""
NAMED = 3
"""Senders named where each comes with two numbers."""
NOTICED = 1e-10
"""A gain below this share of the mass is rounding."""
NAMED_ABOVE = 0.01
"""The share of all gains that a named one exceeds; smaller ones are counted."""


def within(subject: str, scope: str) -> str:
    """What one answer is about, with what of the model was reweighted where that is not all."""
    return f"{subject} ({scope})" if scope else subject


def about(scope: str) -> str:
    """The same after the words of many answers."""
    return f"; about the {scope}" if scope else ""


@dataclass(frozen=True, eq=False)
class Witness:
    """One question's answer; printed, a sentence that its λ and its proof show."""

    member: int
    subject: str
    """Such as ``node 7, class 3`` or ``link 4 → 9``."""
    node: int
    target: int
    verdict: str
    """``can``, ``cannot`` or ``undecided``."""
    margin: float
    bound: float
    status: str
    terms: Integers
    coefficients: Floats
    sources: Integers
    groups: Integers
    rival_weights: Floats | None = None
    """[C]: of classes without a head, the mixture of rivals that proves the bound."""
    cases: int = 0
    """After a head: how many cases prove the bound."""
    replayed: bool = False
    """After a head: whether the model itself was run with λ."""
    wanted: bool | None = None
    """Of labels and values: whether the output is wanted above the threshold."""
    threshold: float = 0.0
    reason: str = ""
    scope: str = ""
    """What of the model was reweighted where that is not all."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    @property
    def reachable(self) -> bool:
        """Whether λ brings the output to its wanted side."""
        return self.verdict == CAN

    @property
    def value(self) -> float:
        """Of labels and values: the output under λ."""
        return self._at(self.margin)

    def __str__(self) -> str:
        head = within(self.subject, self.scope)
        if self.status == STATUS[FAILED]:
            return f"{head}: no answer ({self.reason})"
        if self.wanted is not None:
            return f"{head} {self._side(self.wanted)}"
        if self.status == STATUS[FIXED]:
            return f"{head} {self._as_it_stands()}; no message can be reweighted"
        return f"{head} {self._class()}"

    __repr__ = __str__

    # Labels and values ------------------------------------------------------------------------

    def _at(self, margin: float) -> float:
        return self.threshold + (margin if self.wanted else -margin)

    def _side(self, wanted: bool) -> str:
        if not len(self.terms):
            return f"is {self.value:.4g} as it stands; no message can be reweighted"
        if self.verdict == UNDECIDED:
            at_least, at_most = f"at least {self.margin:.4g}", f"at most {self.bound:.4g}"
            return f"is undecided: its margin is {at_least} and {at_most}"
        side, limit = f"{'above' if wanted else 'below'} {self.threshold:g}", self._at(self.bound)
        if self.verdict == CAN:
            return (
                f"can be {side}: {self.value:.4g} using {self.senders()}; no reweighting goes "
                f"beyond {limit:.4g}"
            )
        edge = "at most" if wanted else "at least"
        return f"cannot be {side}: under every reweighting it is {edge} {limit:.4g}"

    # Classes ----------------------------------------------------------------------------------

    def _class(self) -> str:
        doubt = f", not certified ({self.reason})" if self.status == STATUS[UNCERTIFIED] else ""
        if self.verdict == CAN:
            limit = f"no reweighting exceeds {self.bound:.4g}"
            by = f"can win by {self.margin:.4g} using {self.senders()}"
            return f"{by}{self._confirmed()}; {limit}{doubt}"
        if self.verdict == UNDECIDED and self.rival_weights is None:
            return f"is undecided: its largest margin {self._between()}; {self.reason}"
        if self.verdict == UNDECIDED:
            return f"may or may not win: its best margin {self._between()}{doubt}"
        if self.bound < -REACHABLE:
            loses = f"cannot win: every reweighting loses by at least {-self.bound:.4g}"
            return f"{loses}{self._proof(' to')}{doubt}"
        if self.rival_weights is None:
            ties = f"every reweighting ties at best (none exceeds {self.bound:.1g})"
            return f"cannot win: {ties}{self._proof('')}"
        if self.margin >= -REACHABLE:
            return (
                f"ties at best: using {self.senders()} its margin is {self.margin:.4g}, and no "
                f"reweighting exceeds {self.bound:.4g}{self._proof(' against')}{doubt}"
            )
        return f"cannot win: its best margin {self._between()}{doubt}"

    def _confirmed(self) -> str:
        if self.rival_weights is not None:
            return ""
        where = "the model itself, run with these weights" if self.replayed else "its head"
        return f" ({where}, says so)"

    def _proof(self, word: str) -> str:
        if self.rival_weights is None:
            return f", by {self.cases} cases" if self.cases > 1 else ", by one linear bound"
        # Weights that rounding left behind would read as "0.0 %".
        shown = ((r, w) for r, w in enumerate(self.rival_weights) if w > ACTIVE)
        mixture = ", ".join(f"{100 * w:.1f} % class {r}" for r, w in shown)
        return f"{word} the rival mixture {mixture}"

    def _between(self) -> str:
        if not np.isfinite(self.bound):
            return f"is at least {self.margin:.4g}"
        return f"lies between {self.margin:.4g} and {self.bound:.4g}"

    def _as_it_stands(self) -> str:
        if self.margin > REACHABLE:
            return f"wins as it stands, by {self.margin:.4g}"
        rival = "" if self.rival_weights is None else f"class {int(self.rival_weights.argmax())}"
        if self.margin >= -REACHABLE:
            return f"ties with {rival} as it stands"
        return f"loses as it stands, by {-self.margin:.4g} to {rival}"

    # Senders ----------------------------------------------------------------------------------

    def senders(self) -> str:
        """Who is listened to, the largest λ first."""
        order = np.argsort(-self.coefficients, kind="stable")
        most = len(order)
        if self.rival_weights is None:  # else a proof of a few terms, all of which count
            most, order = SHOWN, order[self.coefficients[order] > ACTIVE]
        shown = ", ".join(self._sender(int(i)) for i in order[:most])
        more = len(order) - most
        return (shown or "no message") + (f" and {more} more" if more > 0 else "")

    def _sender(self, i: int) -> str:
        named = self.names.typed or self.groups.any()
        group = f", {self.names.group(self.groups[i])}" if named else ""
        return f"{self.names.sender(self.sources[i])} (λ {self.coefficients[i]:.4g}{group})"


# Changes ------------------------------------------------------------------------------------------

Gains = tuple[tuple[int, float, float], ...]
"""Senders that get more weight, the largest gain first: who, its share of the node's mass now, and
then."""


def compute_gains(sources: Integers, alpha: Floats, change: Floats) -> Gains:
    """Over all of a node's terms, [K] each; a source may send several."""
    who, place = np.unique(sources, return_inverse=True)
    now, more = (np.bincount(place, x) / max(alpha.sum(), 1e-290) for x in (alpha, change))
    order = [i for i in np.argsort(-more, kind="stable") if more[i] > NOTICED]
    return tuple((int(who[i]), float(now[i]), float(now[i] + more[i])) for i in order)


def describe_gains(gains: Gains, names: NodeNames) -> str:
    """Such as ``giving 12 % of the weight (now 0.90 %) to node 322``."""
    least = NAMED_ABOVE * sum(then - now for _, now, then in gains)
    named = [gain for gain in gains[:NAMED] if gain[2] - gain[1] > least]
    parts = []
    for who, now, then in named:
        # As many digits in both as tell the two apart.
        digits = next((d for d in (2, 3, 4) if percent(now, d) != percent(then, d)), 5)
        before, after = (percent(share, digits, zeros=True) for share in (now, then))
        parts.append(f"{after} of the weight (now {before}) to {names.sender(who)}")
    more = len(gains) - len(named)
    parts += [f"a little more to {more} more sender{'s' * (more > 1)}"] if more > 0 else []
    words = " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
    return f"giving {words}" if words else "moving weight between the same senders' messages"


def percent(share: float, digits: int = 2, *, zeros: bool = False) -> str:
    """Such as ``0.9 %``, with ``zeros`` ``0.90 %``, ``12 %`` or, whatever the digits, ``100 %``."""
    value = 100 * share
    if value >= 99.5 or value == 0:
        return f"{value:.0f} %"
    text = f"{value:#.{digits}g}" if zeros else f"{value:.{digits}g}"
    return f"{text.rstrip('.')} %"
