"""How often the evidence was there, and how often it would have been there for any class.

True-class reach is the share of nodes whose true class some admissible reweighting makes win, error
reach the same among nodes that the frozen model gets wrong. *Chance* is the share of classes that
are neither true nor predicted that win in the same sense, the mean over the same nodes: what error
reach would be if messages said nothing about the true class. *Excess* is the difference.

What is not decided (models with a nonlinear head, solves that failed) makes every figure an
interval, from what is proved to what is not excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.arguments import classes_for
from gnn_repair.exposure.value import Exposure
from gnn_repair.notebook import shown
from gnn_repair.oracle.counting import mean_over_members
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.nearest import ALREADY, MOVED, nearest_reweighting
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.tables import Floats, Integers, given_exposure, problems
from gnn_repair.thresholds import REACHABLE

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.oracle.labels.reach import LabelReach
    from gnn_repair.oracle.solution import OracleSolution
    from gnn_repair.oracle.tails.solution import TailSolution

Flags: TypeAlias = NDArray[np.bool_]
Solution: TypeAlias = "OracleSolution | TailSolution"
QUANTILE = 1.959963984540054
"""Of the normal distribution, for 95 % intervals."""
RESAMPLES = 1000
"""Of a bootstrap."""
UNDEFINED = "undefined with two classes: beside the true and the predicted one there is none"


# Numbers ------------------------------------------------------------------------------------------


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
            f"between {100 * self.value:.1f} % and {100 * self.possible:.1f} % ({self.hits:,} "
            f"proved, {self.undecided:,} undecided, of {self.total:,})"
        )


@dataclass(frozen=True)
class Mean:
    """A mean over nodes; undecided answers leave it between ``low`` and ``high``."""

    low: float
    high: float
    interval: tuple[float, float]
    """95 %, by a bootstrap over nodes, of both ends together."""

    @property
    def value(self) -> float:
        """The lower end, which is proved."""
        return self.low

    def words(self, scale: float = 1.0, digits: int = 1, sign: str = "", unit: str = "") -> str:
        """Such as ``10.4 % [7.1, 14.0]``."""
        if np.isnan(self.low):
            return "–"
        low, high, *ends = (
            f"{scale * x:{sign}.{digits}f}" for x in (self.low, self.high, *self.interval)
        )
        held = f"{low}{unit}" if low == high else f"between {low}{unit} and {high}{unit}"
        return f"{held} [{ends[0]}, {ends[1]}]"

    def __str__(self) -> str:
        return self.words(digits=3)


def resampled_sums(node: Integers, columns: Floats, member: Integers | None = None) -> Floats:
    """Sums of ``columns`` [M, F] over nodes drawn with replacement, [RESAMPLES, S, F].

    All rows of a node (several members, several labels) are drawn together. Nodes with the same
    numbers are drawn as one kind, so that a million nodes take no longer than a hundred.
    """
    member = np.zeros(len(node), np.int64) if member is None else member
    _, place = np.unique(node, return_inverse=True)
    width = int(member.max(initial=0)) + 1
    totals = np.zeros((int(place.max(initial=-1)) + 1, width, columns.shape[1]))
    np.add.at(totals, (place, member), columns)
    kinds, counts = np.unique(totals.reshape(len(totals), -1), axis=0, return_counts=True)
    random, nodes = np.random.default_rng(0), len(totals)
    step = max(1, 4_000_000 // max(1, len(kinds)))
    parts = [
        random.multinomial(nodes, counts / nodes, min(step, RESAMPLES - first)) @ kinds
        for first in range(0, RESAMPLES, step)
    ]
    return np.concatenate(parts).reshape(RESAMPLES, width, columns.shape[1])


def interval_of(low: Floats, high: Floats) -> tuple[float, float]:
    """The 95 % interval of resampled values: the lower end of one, the upper end of the other."""
    if np.isnan(low).all():
        return float("nan"), float("nan")
    return float(np.nanpercentile(low, 2.5)), float(np.nanpercentile(high, 97.5))


def _mean(low: Floats, high: Floats, node: Integers, member: Integers) -> Mean:
    """Over rows of nodes and members: the mean over members of each member's mean."""
    ones = np.ones(len(low))
    if not len(low) or np.isnan(low).any():
        return Mean(np.nan, np.nan, (np.nan, np.nan))
    own = [member == s for s in np.unique(member)]
    ends = [mean_over_members(x[rows].mean() for rows in own) for x in (low, high)]
    sums = resampled_sums(node, np.stack([low, high, ones], 1), member)
    with np.errstate(invalid="ignore"):
        drawn = np.nanmean(sums[..., :2] / sums[..., 2:], axis=1)
    return Mean(ends[0], ends[1], interval_of(drawn[:, 0], drawn[:, 1]))


def places_of(best: Floats, worst: Floats, column: Integers, among: Flags) -> tuple[Floats, Floats]:
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
        found: Floats = 1 + (counted * rest).sum(1)
        return found

    return place(worst, best[rows, column]), place(best, worst[rows, column])


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
    return _by_class(solve_oracle(exposure, "all", nodes, threads=threads), exposure.num_classes)


def _by_class(solution: OracleSolution | TailSolution, classes: int) -> ClassReach:
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
        """The true class's place by γ among the classes that were not predicted, over errors: 1 is
        first, C / 2 is chance, ties share their place."""
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
        from gnn_repair.oracle.frames import reach_frame

        return reach_frame(self)

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
                f"classes          {count} of {classes} can win per error; the true one has place "
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
        return _mean(low, high, self.classes.node[rows], self.classes.member[rows])

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
    return "–" if np.isnan(support) else f"{support:.2f} active terms on average"


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
        threads: as for :func:`solve_oracle`.
    """
    if isinstance(y, str):
        raise InputError("y must hold the true classes; for every class use class_reach")
    if getattr(exposure, "outputs", "classes") != "classes":
        from gnn_repair.oracle.labels.reach import label_reach

        return label_reach(exposure, y, mask, threads)
    given_exposure(exposure)
    asked = problems(exposure, y, mask)
    chosen = torch.zeros(exposure.num_nodes, exposure.num_members, dtype=torch.bool)
    recipients = exposure.recipients.cpu()
    chosen[recipients[asked.position], torch.from_numpy(asked.member)] = True
    solution = solve_oracle(exposure, "all", chosen, threads=threads)
    return summarise(exposure, solution, y, skipped=asked.skipped)


def summarise(exposure: Exposure, solution: Solution, y: Tensor, *, skipped: int = 0) -> Reach:
    """The figures of a solution of every class (``target="all"``) of nodes with a label."""
    if isinstance(solution, LabelSolution):
        raise InputError("a LabelSolution is summarised by reach(exposure, y [N, K])")
    if (exposure.head is not None) != hasattr(solution, "proofs"):
        raise InputError(
            f"a {type(solution).__name__} is no solution of {exposure!r:.60}; solve the oracle on "
            "the exposure that is summarised"
        )
    found = _by_class(solution, exposure.num_classes)
    true = classes_for(exposure, y).cpu().numpy()[found.node]
    if (true < 0).any():
        raise InputError("a node of the solution has no label; leave it out, or call reach")
    predicted = exposure.frozen_logits.argmax(2).cpu().numpy()[found.member, found.node]
    own = solution.taken(np.arange(len(true)) * exposure.num_classes + true)
    members = exposure.num_members
    return Reach(found, true, predicted, own, skipped, exposure.scope, members, exposure)


# The least change ---------------------------------------------------------------------------------


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
        """[E]: the true class's place by least change among classes not predicted, 1 for the
        least; classes that cannot win share the last. Best and worst, equal where all is known."""
        if not self.complete:
            unknown = np.full(len(self.true), np.nan)
            return unknown, unknown
        among = np.arange(self.share.shape[1]) != self.predicted[:, None]
        return places_of(-self.bound, -self.share, self.true, among)

    @cached_property
    def rank(self) -> Mean:
        """The mean of the places; C / 2 is chance."""
        return _mean(*self.places, self.node, self.member)

    def shares(self) -> tuple[Floats, Floats]:
        """What must move for the true class, one number per error, and for classes neither true
        nor predicted, C − 2 per error; infinite where they cannot win."""
        rows = np.arange(len(self.true))
        rest = np.ones(self.share.shape, bool)
        rest[rows, self.true] = rest[rows, self.predicted] = False
        return self.share[rows, self.true], self.share[rest & self.complete]

    def to_frame(self) -> pd.DataFrame:
        """How many can win by moving at most so much: true class and chance, in per cent."""
        from gnn_repair.oracle.frames import changes_frame

        return changes_frame(self)

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
            f"least change of {len(own):,} errors: where it can win, the true class needs {median} "
            f"of the mass moved (median), another class {other}; the true class has place "
            f"{self.rank.words()} of {classes - 1} by least change ({classes / 2:.1f} by chance)"
        )

    __repr__ = __str__


def least_changes(found: Reach, exposure: Exposure, *, others: bool = True) -> Changes:
    """The least change of every error's true class and, unless told otherwise, of all classes."""
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
