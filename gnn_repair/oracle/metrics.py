"""How often the evidence was there, and how often it would have been there for any class.

True-class reach is the share of nodes whose true class some admissible reweighting makes win, error
reach the same among nodes that the frozen model gets wrong. *Chance* is the share of classes that
are neither true nor predicted that win in the same sense, the mean over the same nodes: what error
reach would be if messages said nothing about the true class. *Excess* is the difference.

A label has two sides, so a wrong one has no third that could be reached by chance; *chance* is then
how often reweighting could turn over a label that the model has right: where that is as frequent
as error reach, reach says nothing about errors.

What is not decided (models with a nonlinear head, solves that failed) makes every figure an
interval, from what is proved to what is not excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import classes_for, require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.f1 import F1, F1Counts
from gnn_repair.notebook import shown
from gnn_repair.oracle.problems import Floats, Integers, problems, require_exposure
from gnn_repair.oracle.questions import nearest_reweighting
from gnn_repair.oracle.questions.nearest import ALREADY, MOVED
from gnn_repair.oracle.rates import (
    Flags,
    Mean,
    Rate,
    interval_of,
    mean_over_members,
    mean_over_nodes,
    places_of,
    resampled_sums,
)
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve

if TYPE_CHECKING:
    import pandas as pd

UNDEFINED = "undefined with two classes: beside the true and the predicted one there is none"
LIMITS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Shares of a node's mass, for the distribution of what must move."""


# Classes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClassReach:
    """Which classes each node could be given at all, without any label."""

    member: Integers
    """[M]: one entry per member and node."""
    node: Integers
    """[M]: the graph node."""
    margin: Floats
    """[M, C]: γ_v(c); with a nonlinear head the largest margin found."""
    bound: Floats
    """[M, C]: what it cannot exceed."""
    reachable: Flags
    """[M, C]: some admissible reweighting was shown to make the class win."""
    decided: Flags
    """[M, C]: that, or it was proved that none does."""

    @property
    def count(self) -> Integers:
        """[M]: how many classes are within reach; 1 means that the prediction is forced."""
        return self.reachable.sum(1)

    @property
    def possible(self) -> Integers:
        """[M]: how many are not excluded; the same where all is decided."""
        return (self.reachable | ~self.decided).sum(1)

    def __str__(self) -> str:
        share = np.bincount(self.count, minlength=self.margin.shape[1] + 1) / len(self.count)
        parts = [f"{k}: {100 * p:.1f} %" for k, p in enumerate(share) if p > 0]
        left = int((~self.decided).sum())
        words = f"; {left:,} of {self.decided.size:,} undecided" if left else ""
        return f"classes within reach of {len(self.node):,} nodes: " + ", ".join(parts) + words

    __repr__ = __str__


def class_reach(
    exposure: Exposure,
    nodes: Tensor | None = None,
    *,
    threads: int | None = None,
) -> ClassReach:
    """The classes that reweighting could give each node: label-free, every class tried."""
    return _by_class(solve(exposure, "all", nodes, threads=threads), exposure.num_classes)


def _by_class(solution: Solution, classes: int) -> ClassReach:
    if len(solution) % classes or (solution.target != np.arange(len(solution)) % classes).any():
        raise InputError('chance needs every class of a node; solve with target="all"')
    decided = solution.decided
    shape = (-1, classes)
    return ClassReach(
        solution.member[::classes],
        solution.node[::classes],
        solution.margin.reshape(shape),
        solution.bound.reshape(shape),
        (solution.reachable & decided).reshape(shape),
        decided.reshape(shape),
    )


# Reach --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemberReach:
    """One member's figures."""

    true_class: Rate
    """Nodes whose true class some reweighting makes win."""
    error: Rate
    """The same among nodes the frozen model gets wrong."""
    support: float
    """Active terms of reachable solutions, on average; NaN when there is none."""
    chance: Mean
    """Of errors: classes that are neither true nor predicted and can win."""
    excess: Mean
    """Error reach less chance, node by node."""

    @property
    def undecided(self) -> int:
        """True classes of which neither is proved."""
        return self.true_class.undecided


FIGURES = ("true_class", "error", "support")


@dataclass(frozen=True, eq=False)
class Reach:
    """True-class reach and error reach with their chance level, over M pairs of member and node.

    Over several members (splits) each figure is the mean of the members' figures.
    """

    classes: ClassReach
    """Every class of every node that has a label."""
    true: Integers
    """[M]."""
    predicted: Integers
    """[M]: by the frozen model."""
    witnesses: Solution
    """What the oracle says of the true classes, in the same order."""
    skipped: int
    """Nodes without a label, over all members."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""
    num_members: int = 1
    exposure: Exposure | None = field(default=None, repr=False)
    """What was reweighted, for the least changes."""

    @property
    def wrong(self) -> Flags:
        """[M]: whether the frozen model is wrong."""
        return np.asarray(self.true != self.predicted)

    @property
    def others(self) -> Flags:
        """[M, C]: the classes that are neither true nor predicted."""
        mask = np.ones(self.classes.margin.shape, bool)
        rows = np.arange(len(mask))
        mask[rows, self.true] = mask[rows, self.predicted] = False
        return mask

    @cached_property
    def members(self) -> tuple[MemberReach, ...]:
        """Each member's figures."""
        member = self.classes.member
        return tuple(
            MemberReach(
                self._rate(member == s),
                self._rate((member == s) & self.wrong),
                self._support(member == s),
                self._chance((member == s) & self.wrong),
                self._excess((member == s) & self.wrong),
            )
            for s in range(self.num_members)
        )

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

    @cached_property
    def true_class_chance(self) -> Mean:
        """Over all nodes: the share of classes neither true nor predicted that can win. NaN with
        two classes."""
        return self._chance(np.ones(len(self.true), bool))

    @cached_property
    def chance(self) -> Mean:
        """Chance reach: the same over errors, where neither class compared is the predicted one."""
        return self._chance(self.wrong)

    @cached_property
    def excess(self) -> Mean:
        """Error reach less chance, paired node by node; of 1, not in points."""
        return self._excess(self.wrong)

    @cached_property
    def classes_per_error(self) -> Mean:
        """How many classes can win at a node that the model gets wrong."""
        rows = self.wrong
        count, possible = self.classes.count[rows], self.classes.possible[rows]
        return self._over(rows, count.astype(float), possible.astype(float))

    @cached_property
    def rank(self) -> Mean:
        """The true class's rank by γ among the classes that were not predicted, over errors: 1 is
        first, C / 2 is chance, ties share their rank."""
        low, high = places_of(*self._margins(), self.true, ~self._is_predicted())
        return self._over(self.wrong, low[self.wrong], high[self.wrong])

    @property
    def chance_per_node(self) -> Floats:
        """[M]: the share of classes neither true nor predicted that can win; NaN with two."""
        return self._shares(np.ones(len(self.true), bool))[0]

    @property
    def undecided(self) -> int:
        """True classes of which neither is proved, over all members."""
        return sum(member.undecided for member in self.members)

    @cached_property
    def changes(self) -> Changes:
        """The least mass that must move for each class at each error, true class and others.

        Solved when first asked for: a program per error and class within reach, about a
        millisecond each (models with a nonlinear head: tens of milliseconds, up to seconds).
        """
        if self.exposure is None:
            raise InputError("these figures are without their exposure; call reach for the changes")
        return least_changes(self, self.exposure)

    def mean(self, name: str) -> float:
        """The mean over members of ``true_class``, ``error`` or ``support``."""
        if name not in FIGURES:
            raise InputError(f"there is no mean of {name!r}; ask for one of {', '.join(FIGURES)}")
        found = [getattr(member, name) for member in self.members]
        return mean_over_members(v.value if isinstance(v, Rate) else v for v in found)

    def to_frame(self) -> pd.DataFrame:
        """One row per member: shares with intervals and counts, chance, excess, support."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for index, member in enumerate(self.members):
            row: dict[str, Any] = {"member": index}
            for name, rate in (("true_class", member.true_class), ("error", member.error)):
                low, high = rate.interval
                row |= {f"{name}_reach": rate.value, f"{name}_possible": rate.possible}
                row |= {f"{name}_low": low, f"{name}_high": high}
                row |= {f"{name}_hits": rate.hits, f"{name}_total": rate.total}
            for name, mean in (("chance", member.chance), ("excess", member.excess)):
                low, high = mean.interval
                row |= {name: mean.low, f"{name}_possible": mean.high}
                row |= {f"{name}_low": low, f"{name}_high": high}
            rows.append(row | {"support": member.support, "undecided": member.undecided})
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return shown(self, self.to_frame())

    def __str__(self) -> str:
        classes = self.classes.margin.shape[1]
        lines = [
            f"true-class reach {self.words('true_class')}",
            f"error reach      {self.words('error')}",
        ]
        if classes < 3:
            lines.append(f"chance           {UNDEFINED}")
        else:
            lines[0] += f"; chance {self.true_class_chance.words(100, unit=' %')}"
        if classes > 2 and self.wrong.any():
            excess = self.excess.words(100, sign="+", unit=" points")
            lines[1] += f"; chance {self.chance.words(100, unit=' %')}, excess {excess}"
            count, place = self.classes_per_error.words(), self.rank.words()
            lines.append(
                f"classes          {count} of {classes} can win per error; the true one has rank "
                f"{place} of {classes - 1} by γ ({classes / 2:.1f} by chance)"
            )
        lines.append(f"support          {support_words(self.support)}")
        if self.scope:
            lines.append(f"about            the {self.scope}")
        return "\n".join(lines)

    __repr__ = __str__

    def words(self, name: str) -> str:
        """One member with its interval; several by their mean and the counts behind it."""
        rates = [getattr(member, name) for member in self.members]
        if len(rates) == 1:
            return str(rates[0]) if rates[0].total else "– (the model makes no errors here)"
        hits, total = sum(rate.hits for rate in rates), sum(rate.total for rate in rates)
        kept = sum(rate.total > 0 for rate in rates)
        members = f"{kept} members" if kept == len(rates) else f"{kept} of {len(rates)} members"
        left = sum(rate.undecided for rate in rates)
        words = f", {left:,} undecided" if left else ""
        share = f"{100 * self.mean(name):.1f} %" if kept else "–"
        return f"{share}, mean over {members} ({hits:,} of {total:,} in all{words})"

    def _own(self) -> tuple[Flags, Flags]:
        """[M]: the true class can win, and whether that is decided."""
        rows = np.arange(len(self.true))
        return self.classes.reachable[rows, self.true], self.classes.decided[rows, self.true]

    def _rate(self, rows: Flags) -> Rate:
        can, decided = self._own()
        return Rate(int(can[rows].sum()), int(rows.sum()), int((~decided)[rows].sum()))

    def _support(self, rows: Flags) -> float:
        active = self.witnesses.support[rows & self._own()[0]]
        return float(active.mean()) if len(active) else float("nan")

    def _over(self, rows: Flags, low: Floats, high: Floats) -> Mean:
        return mean_over_nodes(low, high, self.classes.node[rows], self.classes.member[rows])

    def _shares(self, rows: Flags) -> tuple[Floats, Floats]:
        """The share of other classes that can win, and that may."""
        others, found = self.others[rows], self.classes
        if others.shape[1] < 3:
            return np.full(len(others), np.nan), np.full(len(others), np.nan)
        can, may = found.reachable[rows], (found.reachable | ~found.decided)[rows]
        number = others.sum(1)
        return (can & others).sum(1) / number, (may & others).sum(1) / number

    def _chance(self, rows: Flags) -> Mean:
        return self._over(rows, *self._shares(rows))

    def _excess(self, rows: Flags) -> Mean:
        can, decided = self._own()
        low, high = self._shares(rows)
        return self._over(rows, can[rows] - high, (can | ~decided)[rows] - low)

    def _is_predicted(self) -> Flags:
        return np.arange(self.classes.margin.shape[1]) == self.predicted[:, None]

    def _margins(self) -> tuple[Floats, Floats]:
        """The most and the least that each γ may be."""
        found = self.classes
        least = np.where(np.isnan(found.margin), -np.inf, found.margin)
        most = np.where(np.isnan(found.bound), np.inf, np.maximum(found.bound, least))
        return most, least


def support_words(support: float) -> str:
    """A mean number of active terms; where no class was reachable there is none."""
    return "–" if np.isnan(support) else f"{support:.2f} messages used on average"


def reach(
    exposure: Exposure,
    y: Tensor,
    mask: Tensor | None = None,
    *,
    threads: int | None = None,
) -> Reach | LabelReach:
    """How often an admissible reweighting makes the true class win, and how often any other class.

    Args:
        exposure: S members. Where its outputs are labels, or its recipients links, each label is
            asked for its own side, and a ``LabelReach`` comes back. Values have no reach, since
            there is nothing to win: :func:`value_range` says which values are possible.
        y: [N] true classes, −1 where unknown; of labels [N, K] zeros and ones.
        mask: [N], or [N, S] with a column per member (such as ``data.test_mask``), node numbers;
            None: all.
        threads: as for :func:`solve`.
    """
    if isinstance(y, str):
        raise InputError("y must hold the true classes; for every class use class_reach")
    if getattr(exposure, "outputs", "classes") != "classes":
        return label_reach(exposure, y, mask, threads)
    require_exposure(exposure)
    asked = problems(exposure, y, mask)
    chosen = torch.zeros(exposure.num_nodes, exposure.num_members, dtype=torch.bool)
    recipients = exposure.recipients.cpu()
    chosen[recipients[asked.position], torch.from_numpy(asked.member)] = True
    solution = solve(exposure, "all", chosen, threads=threads)
    return summarise(exposure, solution, y, skipped=asked.skipped)


def summarise(exposure: Exposure, solution: Solution, y: Tensor, *, skipped: int = 0) -> Reach:
    """The figures of a solution of every class (``target="all"``) of nodes with a label."""
    if solution.outputs != "classes":
        kind = f"answers about {solution.outputs}"
        raise InputError(f"{kind} are summarised by reach(exposure, y [N, K])")
    if (exposure.head is None) == (solution.rival_weights is None):
        raise InputError(
            f"this is no solution of {exposure!r:.60}; solve the exposure that is summarised"
        )
    found = _by_class(solution, exposure.num_classes)
    true = classes_for(exposure, y).cpu().numpy()[found.node]
    if (true < 0).any():
        raise InputError("a node of the solution has no label; leave it out, or call reach")
    predicted = exposure.frozen_logits.argmax(2).cpu().numpy()[found.member, found.node]
    own = solution.taken(np.arange(len(true)) * exposure.num_classes + true)
    members = exposure.num_members
    return Reach(found, true, predicted, own, skipped, exposure.scope, members, exposure)


# The smallest change ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Changes:
    """Which share of a node's mass must move for a class to win: E errors, C classes.

    0 for the predicted class, infinite where a class cannot win.
    """

    member: Integers
    """[E]."""
    node: Integers
    """[E]: the graph node."""
    true: Integers
    """[E]."""
    predicted: Integers
    """[E]."""
    share: Floats
    """[E, C]: of the node's mass, the least found; infinite where the class is not known to win."""
    bound: Floats
    """[E, C]: what must move at least, by proof; less than ``share`` only with a nonlinear head."""
    answers: dict[tuple[int, int], Any] = field(repr=False, default_factory=dict)
    """By row and class, what ``nearest_reweighting`` gives."""
    complete: bool = True
    """Whether every class was asked for; else the true one alone, and nothing is compared."""

    @property
    def places(self) -> tuple[Floats, Floats]:
        """[E]: the true class's rank by smallest change among classes not predicted, 1 for the
        least; classes that cannot win share the last. Best and worst, equal where all is known."""
        if not self.complete:
            unknown = np.full(len(self.true), np.nan)
            return unknown, unknown
        among = np.arange(self.share.shape[1]) != self.predicted[:, None]
        return places_of(-self.bound, -self.share, self.true, among)

    @cached_property
    def rank(self) -> Mean:
        """The mean of the places; C / 2 is chance."""
        return mean_over_nodes(*self.places, self.node, self.member)

    def shares(self) -> tuple[Floats, Floats]:
        """What must move for the true class, one number per error, and for classes neither true
        nor predicted, C − 2 per error; infinite where they cannot win."""
        rows = np.arange(len(self.true))
        rest = np.ones(self.share.shape, bool)
        rest[rows, self.true] = rest[rows, self.predicted] = False
        return self.share[rows, self.true], self.share[rest & self.complete]

    def to_frame(self) -> pd.DataFrame:
        """How many can win by moving at most so much: true class and chance, in per cent."""
        import pandas as pd

        own, others = self.shares()
        return pd.DataFrame(
            {
                "mass_moved": LIMITS,
                "true_class": [
                    float((own <= limit).mean()) if len(own) else np.nan for limit in LIMITS
                ],
                "chance": [
                    float((others <= limit).mean()) if len(others) else np.nan for limit in LIMITS
                ],
            }
        )

    def _repr_html_(self) -> str:
        return shown(self, self.to_frame())

    def __str__(self) -> str:
        if not len(self.true):
            return "no errors, so nothing has to change"
        (own, others), classes = self.shares(), self.share.shape[1]
        median, other = (
            f"{100 * np.median(x[np.isfinite(x)]):.0f} %" if np.isfinite(x).any() else "–"
            for x in (own, others)
        )
        return (
            f"smallest change of {len(own):,} errors: where it can win, the true class needs "
            f"{median} of the mass moved (median), another class {other}; the true class has rank "
            f"{self.rank.words()} of {classes - 1} by smallest change ({classes / 2:.1f} by chance)"
        )

    __repr__ = __str__


def least_changes(found: Reach, exposure: Exposure, *, others: bool = True) -> Changes:
    """The smallest change of every error's true class and, unless told not to, of all classes."""
    errors = np.flatnonzero(found.wrong)
    rows = errors[np.lexsort((found.classes.node[errors], found.classes.member[errors]))]
    member, node = found.classes.member[rows], found.classes.node[rows]
    true, predicted = found.true[rows], found.predicted[rows]
    can, decided = found.classes.reachable[rows], found.classes.decided[rows]
    share, bound = np.full(can.shape, np.inf), np.where(decided, np.inf, 0.0)
    answers: dict[tuple[int, int], Any] = {}
    for c in range(can.shape[1]):
        asked = np.flatnonzero(can[:, c] & (predicted != c) & (others | (true == c)))
        if not len(asked):
            continue
        mask = torch.zeros(exposure.num_nodes, exposure.num_members, dtype=torch.bool)
        mask[node[asked], member[asked]] = True
        target = torch.full((exposure.num_nodes,), c)
        nearest: Sequence[Any] = nearest_reweighting(exposure, target, mask)
        # In the order of members and nodes, as the rows are.
        for i, one in zip(asked.tolist(), nearest, strict=True):
            known = one.status in (MOVED, ALREADY)
            share[i, c] = one.share if known else np.inf
            bound[i, c] = one.bound / one.mass if known else 0.0
            answers[i, c] = one
    at = np.arange(len(rows)), predicted
    share[at] = bound[at] = 0.0
    return Changes(member, node, true, predicted, share, bound, answers, others)


# Labels -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneLabelReach:
    """One label's figures."""

    label: int
    reach: Rate
    """Nodes where some reweighting puts the label on its true side."""
    error: Rate
    """The same among nodes where the frozen model has it wrong."""
    chance: Rate
    """Nodes where the frozen model has it right and some reweighting turns it over."""
    frozen: F1Counts
    """Of the model as it is."""
    best: F1Counts
    """If every error that is not proved out of reach were undone: no reweighting does better."""

    @property
    def undecided(self) -> int:
        """Nodes of which neither is proved."""
        return self.reach.undecided


@dataclass(frozen=True)
class LabelReach:
    """Reach and error reach of every label; micro pools pairs, macro averages labels."""

    labels: tuple[OneLabelReach, ...]
    skipped: int
    """Pairs without a known truth."""
    excess: Mean
    """Error reach less chance over all pairs, by a bootstrap over nodes; of 1, not in points."""
    scope: str = ""

    @property
    def micro(self) -> Rate:
        """Pairs of node and label whose true side is within reach."""
        return _pooled([one.reach for one in self.labels])

    @property
    def micro_error(self) -> Rate:
        """The same among pairs that the frozen model has wrong."""
        return _pooled([one.error for one in self.labels])

    @property
    def chance(self) -> Rate:
        """Pairs that the frozen model has right and some reweighting turns over."""
        return _pooled([one.chance for one in self.labels])

    @property
    def macro(self) -> float:
        """The mean of the labels' reach."""
        return mean_over_members([one.reach.value for one in self.labels])

    @property
    def macro_error(self) -> float:
        """The mean of the labels' error reach, where there are errors."""
        return mean_over_members([one.error.value for one in self.labels])

    @property
    def frozen(self) -> F1:
        """F1 of the model as it is."""
        return F1(tuple(one.frozen for one in self.labels))

    @property
    def best(self) -> F1:
        """F1 if every error that is not proved out of reach were undone."""
        return F1(tuple(one.best for one in self.labels))

    @property
    def undecided(self) -> int:
        """Pairs of which neither is proved."""
        return sum(one.undecided for one in self.labels)

    def to_frame(self) -> pd.DataFrame:
        """One row per label."""
        import pandas as pd

        rows = []
        for one in self.labels:
            low, high = one.reach.interval
            rows.append(
                {
                    "label": one.label,
                    "reach": one.reach.value,
                    "reach_low": low,
                    "reach_high": high,
                    "hits": one.reach.hits,
                    "total": one.reach.total,
                    "error_reach": one.error.value,
                    "error_hits": one.error.hits,
                    "errors": one.error.total,
                    "chance": one.chance.value,
                    "chance_hits": one.chance.hits,
                    "chance_total": one.chance.total,
                    "undecided": one.undecided,
                    "f1": one.frozen.f1,
                    "f1_within_reach": one.best.f1,
                }
            )
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return shown(self, self.to_frame())

    def __str__(self) -> str:
        lines = [
            f"label reach {self.micro}; macro {100 * self.macro:.1f} % over "
            f"{len(self.labels)} label{'s' * (len(self.labels) != 1)}",
            f"error reach {self.micro_error}; macro {100 * self.macro_error:.1f} %",
            f"chance      {self.chance} of the right ones could be turned over; excess "
            f"{self.excess.words(100, sign='+', unit=' points')}",
            f"F1          {self.frozen}; within reach: {self.best}",
        ]
        if self.scope:
            lines.append(f"about       the {self.scope}")
        return "\n".join(lines)

    __repr__ = __str__


def _pooled(rates: list[Rate]) -> Rate:
    return Rate(*(sum(getattr(r, name) for r in rates) for name in ("hits", "total", "undecided")))


def label_reach(
    exposure: Exposure | Any, y: Any, mask: Any = None, threads: int | None = None
) -> LabelReach:
    """How often an admissible reweighting puts a label on its true side."""
    return summarise_labels(exposure, *both_sides(exposure, y, mask, threads))


def both_sides(
    exposure: Exposure | Any, y: Any, mask: Any = None, threads: int | None = None
) -> tuple[Solution, Solution]:
    """Every label asked for its true side and, in the same order, for the other one."""
    if isinstance(y, str):
        raise InputError("y must hold the truths [N, K]; without them use solve")
    if isinstance(exposure, Exposure):
        require_outputs(exposure, "labels")
    own = solve(exposure, y, mask, threads=threads)
    turned = torch.as_tensor(y).double()
    turned = torch.where((turned == 0) | (turned == 1), 1 - turned, turned)
    return own, solve(exposure, turned, mask, threads=threads)


def summarise_labels(exposure: Any, own: Solution, other: Solution) -> LabelReach:
    """The figures of a solution whose wanted sides are the truths, and one of the other sides."""
    wrong = own.frozen(exposure)["predicted"] != own.wanted
    labels = tuple(_one(int(k), own.target == k, own, other, wrong) for k in np.unique(own.target))
    return LabelReach(labels, own.skipped, _excess(own, other, wrong), own.scope)


def _one(label: int, rows: Flags, own: Solution, other: Solution, wrong: Flags) -> OneLabelReach:
    assert own.wanted is not None
    wanted, bad, excluded = own.wanted[rows], wrong[rows], own.excluded[rows]
    return OneLabelReach(
        label,
        _rate(own, rows),
        _rate(own, rows & wrong),
        _rate(other, rows & ~wrong),
        _counts(bad, wanted),
        _counts(bad & excluded, wanted),
    )


def _rate(solution: Solution, rows: Flags) -> Rate:
    can, open_ = solution.reachable & rows, ~solution.decided & rows
    return Rate(int(can.sum()), int(rows.sum()), int(open_.sum()))


def _excess(own: Solution, other: Solution, wrong: Flags) -> Mean:
    """From what is proved of errors and not excluded of chance to the other way round."""
    right = ~wrong
    columns = [
        wrong & own.reachable, wrong & ~own.excluded, wrong,
        right & other.reachable, right & ~other.excluded, right,
    ]  # fmt: skip
    whole = np.stack(columns, 1).astype(float)
    drawn = resampled_sums(own.node, whole)[:, 0]
    with np.errstate(invalid="ignore"):
        (low, many), (high, much) = (
            [x[:, e] / x[:, 2] - x[:, c] / x[:, 5] for x in (whole.sum(0, keepdims=True), drawn)]
            for e, c in ((0, 4), (1, 3))
        )
    return Mean(float(low[0]), float(high[0]), interval_of(many, much))


def _counts(wrong: Flags, wanted: Flags) -> F1Counts:
    return F1Counts(
        int((wanted & ~wrong).sum()), int((~wanted & wrong).sum()), int((wanted & wrong).sum())
    )
