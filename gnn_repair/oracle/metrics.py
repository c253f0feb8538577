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

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.pieces import classes_for, nodes_for, require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.f1 import F1, F1Counts
from gnn_repair.notebook import html_view
from gnn_repair.oracle.problems import (
    CAN,
    CANNOT,
    UNDECIDED,
    Floats,
    Integers,
    pose_problems,
    require_exposure,
)
from gnn_repair.oracle.questions.nearest import ALREADY, MOVED, nearest_reweighting
from gnn_repair.oracle.rates import (
    Flags,
    Mean,
    Rate,
    find_interval,
    mean_over_members,
    mean_over_nodes,
    rank_column,
    resample_sums,
)
from gnn_repair.oracle.solution import Solution, require_class_answers, write_frame
from gnn_repair.oracle.solver import solve
from gnn_repair.oracle.witness import about
from gnn_repair.published import count_of

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
    noun: str = field(default="node", kw_only=True)
    """What has one row."""
    scope: str = field(default="", kw_only=True)
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""

    @property
    def verdict(self) -> NDArray[np.str_]:
        """[M, C]: ``can``, ``cannot`` or ``undecided``."""
        return np.where(self.decided, np.where(self.reachable, CAN, CANNOT), UNDECIDED)

    @property
    def count(self) -> Integers:
        """[M]: how many classes are within reach; 1 means that the prediction is forced."""
        return self.reachable.sum(1)

    @property
    def not_excluded(self) -> Flags:
        """[M, C]: it can win, or nothing is proved."""
        return self.reachable | ~self.decided

    @property
    def possible(self) -> Integers:
        """[M]: how many are not excluded; the same where all is decided."""
        return self.not_excluded.sum(1)

    def __str__(self) -> str:
        share = np.bincount(self.count, minlength=self.margin.shape[1] + 1) / len(self.count)
        parts = [f"{k}: {100 * p:.1f} %" for k, p in enumerate(share) if p > 0]
        left = int((~self.decided).sum())
        words = f"; {left:,} of {self.decided.size:,} undecided" if left else ""
        of = count_of(len(self.node), self.noun)
        return f"classes within reach of {of}: " + ", ".join(parts) + words + about(self.scope)

    __repr__ = __str__


def class_reach(
    exposure: Exposure,
    nodes: Tensor | None = None,
    *,
    threads: int | None = None,
) -> ClassReach:
    """The classes that reweighting could give each node: label-free, every class tried."""
    require_exposure(exposure)
    require_outputs(exposure, "classes")
    chosen = _each_once(exposure, nodes)
    return _by_class(solve(exposure, "all", chosen, threads=threads), exposure.num_classes)


def _each_once(exposure: Exposure, nodes: Any) -> Any:
    """What a rate counts: a node that is named twice is one."""
    if nodes is None or getattr(nodes, "ndim", 1) == 2:
        return nodes
    chosen = torch.zeros(exposure.num_nodes, dtype=torch.bool)
    chosen[nodes_for(exposure, nodes).cpu()] = True
    return chosen


def _by_class(solution: Solution, classes: int) -> ClassReach:
    if len(solution) % classes or (solution.target != np.arange(len(solution)) % classes).any():
        raise InputError('chance needs every class of a node; solve with target="all"')
    arrays = (solution.margin, solution.bound, solution.reachable, solution.decided)
    each: Iterator[Any] = (array.reshape(-1, classes) for array in arrays)
    of = solution.member[::classes], solution.node[::classes]
    return ClassReach(*of, *each, noun=solution.names.recipient, scope=solution.scope)


# Reach --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Answers(ABC):
    """M questions beside their truths, from which the figures of classes and of labels are counted.

    A label is a question about two classes, (0, z_k − θ): class 1 is the label being there.
    """

    classes: ClassReach
    """Every class of every node that has a label; of labels both sides of every label."""
    true: Integers
    """[M]."""
    predicted: Integers
    """[M]: by the frozen model."""
    witnesses: Solution
    """What the oracle says of the true classes (of labels: the true sides), in the same order."""
    skipped: int
    """Nodes (of labels: pairs of node and label) without a truth, over all members."""
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
    def undecided(self) -> int:
        """Questions about the truth of which neither is proved."""
        return self._rate(np.ones(len(self.true), bool)).undecided

    @abstractmethod
    def _rows(self) -> list[dict[str, Any]]:
        """Of the frame."""

    @abstractmethod
    def _lines(self) -> dict[str, str]:
        """What is printed, by its title."""

    def to_frame(self) -> pd.DataFrame:
        """One row per member (of labels: per label), with intervals, counts and chance."""
        import pandas as pd

        return pd.DataFrame(self._rows())

    def _repr_html_(self) -> str:
        return html_view(self, self.to_frame())

    def __str__(self) -> str:
        lines = self._lines() | ({"about": f"the {self.scope}"} if self.scope else {})
        width = max(map(len, lines))
        return "\n".join(f"{title:<{width}} {words}" for title, words in lines.items())

    def __repr__(self) -> str:
        return str(self)

    def _side(self, column: Integers) -> tuple[Flags, Flags]:
        """[M]: whether one class of each question can win, and whether it is not excluded."""
        rows = np.arange(len(self.true))
        return self.classes.reachable[rows, column], self.classes.not_excluded[rows, column]

    def _rate(self, rows: Flags, column: Integers | None = None) -> Rate:
        """How many of the rows' true classes (or of another class of each) can win."""
        can, may = self._side(self.true if column is None else column)
        return Rate(int(can[rows].sum()), int(rows.sum()), int((may & ~can)[rows].sum()))


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


FIGURES = ("true_class", "error", "support")


@dataclass(frozen=True, eq=False, repr=False)
class Reach(_Answers):
    """True-class reach and error reach with their chance level, over M pairs of member and node.

    Over several members (splits) each figure is the mean of the members' figures.
    """

    @property
    def others(self) -> Flags:
        """[M, C]: the classes that are neither true nor predicted."""
        return _others(self.true, self.predicted, self.classes.margin.shape[1])

    @cached_property
    def members(self) -> tuple[MemberReach, ...]:
        """Each member's figures."""
        member = self.classes.member
        return tuple(
            MemberReach(
                self._rate(member == s),
                self._rate((member == s) & self.wrong),
                self._support(member == s),
                self._over((member == s) & self.wrong, *self._shares),
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
        return self._over(np.ones(len(self.true), bool), *self._shares)

    @cached_property
    def chance(self) -> Mean:
        """Chance reach: the same over errors, where neither class compared is the predicted one."""
        return self._over(self.wrong, *self._shares)

    @cached_property
    def excess(self) -> Mean:
        """Error reach less chance, paired node by node; of 1, not in points."""
        return self._excess(self.wrong)

    @cached_property
    def classes_per_error(self) -> Mean:
        """How many classes can win at a node that the model gets wrong."""
        count, possible = self.classes.count, self.classes.possible
        return self._over(self.wrong, count.astype(float), possible.astype(float))

    @cached_property
    def rank(self) -> Mean:
        """The true class's rank by γ among the classes that were not predicted, over errors: 1 is
        first, C / 2 is chance, ties share their rank."""
        unpredicted = np.arange(self.classes.margin.shape[1]) != self.predicted[:, None]
        return self._over(self.wrong, *rank_column(*self._margins(), self.true, unpredicted))

    @property
    def chance_per_node(self) -> Floats:
        """[M]: the share of classes neither true nor predicted that can win; NaN with two."""
        return self._shares[0]

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
        figures = [getattr(member, name) for member in self.members]
        return mean_over_members(v.value if isinstance(v, Rate) else v for v in figures)

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for index, member in enumerate(self.members):
            row: dict[str, Any] = {"member": index}
            for name, rate in (("true_class", member.true_class), ("error", member.error)):
                row |= _with_interval(name, rate, f"{name}_reach")
                row |= {f"{name}_hits": rate.hits, f"{name}_total": rate.total}
            row |= _with_interval("chance", member.chance)
            row |= _with_interval("excess", member.excess)
            rows.append(row | {"support": member.support, "undecided": member.true_class.undecided})
        return rows

    def _lines(self) -> dict[str, str]:
        classes, lines = self.classes.margin.shape[1], {}
        reach, error = self.words("true_class"), self.words("error")
        if classes < 3:
            lines["chance"] = UNDEFINED
        else:
            reach += f"; chance {self.true_class_chance.words(100, unit=' %')}"
        if classes > 2 and self.wrong.any():
            excess = self.excess.words(100, sign="+", unit=" points")
            error += f"; chance {self.chance.words(100, unit=' %')}, excess {excess}"
            count, place = self.classes_per_error.words(), self.rank.words()
            lines["classes"] = (
                f"{count} of {classes} can win per error; the true one has rank "
                f"{place} of {classes - 1} by γ ({classes / 2:.1f} by chance)"
            )
        # Where no class was reachable there is no mean number of active terms.
        none, mean = np.isnan(self.support), f"{self.support:.2f} messages used on average"
        lines["support"] = "–" if none else mean
        return {"true-class reach": reach, "error reach": error, **lines}

    def words(self, name: str) -> str:
        """One member with its interval; several by their mean and the counts behind it."""
        rates = [getattr(member, name) for member in self.members]
        if len(rates) == 1:
            return str(rates[0]) if rates[0].total else "– (the model makes no errors here)"
        hits, total = sum(rate.hits for rate in rates), sum(rate.total for rate in rates)
        kept = sum(rate.total > 0 for rate in rates)
        members = count_of(len(rates), "member")
        members = members if kept == len(rates) else f"{kept} of {members}"
        left = sum(rate.undecided for rate in rates)
        words = f", {left:,} undecided" if left else ""
        share = f"{100 * self.mean(name):.1f} %" if kept else "–"
        return f"{share}, mean over {members} ({hits:,} of {total:,} in all{words})"

    def _support(self, rows: Flags) -> float:
        active = self.witnesses.support[rows & self._side(self.true)[0]]
        return float(active.mean()) if len(active) else float("nan")

    def _over(self, rows: Flags, low: Floats, high: Floats) -> Mean:
        """The mean over some of the rows of numbers [M] of all."""
        own = self.classes
        return mean_over_nodes(low[rows], high[rows], own.node[rows], own.member[rows])

    @cached_property
    def _shares(self) -> tuple[Floats, Floats]:
        """[M]: the share of other classes that can win, and that may."""
        others, classes = self.others, self.classes
        number = others.sum(1) if others.shape[1] > 2 else np.full(len(others), np.nan)
        sides = classes.reachable, classes.not_excluded
        low, high = ((side & others).sum(1) / number for side in sides)
        return low, high

    def _excess(self, rows: Flags) -> Mean:
        (can, may), (low, high) = self._side(self.true), self._shares
        return self._over(rows, can - high, may - low)

    def _margins(self) -> tuple[Floats, Floats]:
        """The most and the least that each γ may be."""
        classes = self.classes
        least = np.where(np.isnan(classes.margin), -np.inf, classes.margin)
        most = np.where(np.isnan(classes.bound), np.inf, np.maximum(classes.bound, least))
        return most, least


def _others(true: Integers, predicted: Integers, classes: int) -> Flags:
    """[M, C]: the classes that are neither."""
    column = np.arange(classes)
    return (column != true[:, None]) & (column != predicted[:, None])


def _with_interval(name: str, figure: Rate | Mean, title: str | None = None) -> dict[str, float]:
    """A figure as columns of a frame."""
    low, high = figure.interval
    shares = {title or name: figure.value, f"{name}_possible": figure.possible}
    return {**shares, f"{name}_low": low, f"{name}_high": high}


def reach(
    exposure: Exposure | LinkExposure,
    y: Tensor,
    mask: Tensor | None = None,
    *,
    threads: int | None = None,
    effort: str | float = "normal",
) -> Reach | LabelReach:
    """How often an admissible reweighting makes the true class win, and how often any other class.

    Args:
        exposure: S members. Where its outputs are labels, or its recipients links, each label is
            asked for its own side, and a ``LabelReach`` comes back. Values have no reach, since
            there is nothing to win: :func:`value_range` says which values are possible.
        y: [N] true classes, −1 where unknown; of labels [N, K] zeros and ones.
        mask: [N], or [N, S] with a column per member (such as ``data.test_mask``), node numbers;
            None: all.
        threads: as for :func:`solve`, like ``effort``.
        effort: how long answers behind a head may take.
    """
    if isinstance(y, str):
        raise InputError("y must hold the true classes; for every class use class_reach")
    if isinstance(exposure, LinkExposure) or getattr(exposure, "outputs", "classes") != "classes":
        if isinstance(exposure, Exposure):
            require_outputs(exposure, "labels")
            mask = _each_once(exposure, mask)
        turned = torch.as_tensor(y).double()
        turned = torch.where((turned == 0) | (turned == 1), 1 - turned, turned)
        own, other = (
            solve(exposure, side, mask, threads=threads, effort=effort) for side in (y, turned)
        )
        return summarise_labels(exposure, own, other)
    require_exposure(exposure)
    asked = pose_problems(exposure, y, mask)
    chosen = torch.zeros(exposure.num_nodes, exposure.num_members, dtype=torch.bool)
    recipients = exposure.recipients.cpu()
    chosen[recipients[asked.position], torch.from_numpy(asked.member)] = True
    solution = solve(exposure, "all", chosen, threads=threads, effort=effort)
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
    classes = _by_class(solution, exposure.num_classes)
    true = classes_for(exposure, y).cpu().numpy()[classes.node]
    if (true < 0).any():
        raise InputError("a node of the solution has no label; leave it out, or call reach")
    predicted = exposure.frozen_logits.argmax(2).cpu().numpy()[classes.member, classes.node]
    own = solution.taken(np.arange(len(true)) * exposure.num_classes + true)
    members = exposure.num_members
    return Reach(classes, true, predicted, own, skipped, exposure.scope, members, exposure)


def confusion_by_reach(
    solution: Solution,
    exposure: Exposure,
    y: Tensor,
    *,
    csv: str | Path | None = None,
) -> pd.DataFrame:
    """Which classes steal from which, and how often the evidence for the true one was there.

    One row per pair of true and predicted class among the nodes asked about with their true class:
    ``nodes``, of which ``can`` win, ``cannot``, or stay ``undecided``. ``csv`` names a file to
    write the frame to as well.
    """
    import pandas as pd

    require_class_answers(solution, exposure)
    require_outputs(exposure, "classes")
    true = classes_for(exposure, y).cpu().numpy()
    own = solution.taken(np.flatnonzero(solution.target == true[solution.node]))
    if not len(own):
        raise InputError("no LP is about a node's true class; solve with target=y")
    pair = own.target, own.frozen(exposure)["predicted"]
    counted = pd.crosstab([*pair], own.verdict, rownames=["true", "predicted"])
    counted = counted.reindex(columns=[CAN, CANNOT, UNDECIDED], fill_value=0)
    counted.insert(0, "nodes", counted.sum(axis=1))
    counted.columns.name = None
    ranked = counted.reset_index()
    ranked = ranked.sort_values(["nodes", "true"], ascending=[False, True], ignore_index=True)
    return write_frame(ranked, csv)


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
        return rank_column(-self.bound, -self.share, self.true, among)

    @cached_property
    def rank(self) -> Mean:
        """The mean of the places; C / 2 is chance."""
        return mean_over_nodes(*self.places, self.node, self.member)

    def shares(self) -> tuple[Floats, Floats]:
        """What must move for the true class, one number per error, and for classes neither true
        nor predicted, C − 2 per error; infinite where they cannot win."""
        rest = _others(self.true, self.predicted, self.share.shape[1])
        return self.share[np.arange(len(rest)), self.true], self.share[rest & self.complete]

    def to_frame(self) -> pd.DataFrame:
        """How many can win by moving at most so much: true class and chance, in per cent."""
        import pandas as pd

        shares = {
            name: [float((x <= limit).mean()) if len(x) else np.nan for limit in LIMITS]
            for name, x in zip(("true_class", "chance"), self.shares(), strict=True)
        }
        return pd.DataFrame({"mass_moved": LIMITS, **shares})

    def _repr_html_(self) -> str:
        return html_view(self, self.to_frame())

    def __str__(self) -> str:
        if not len(self.true):
            return "no errors, so nothing has to change"
        (own, others), classes = self.shares(), self.share.shape[1]
        median, other = (
            f"{100 * np.median(x[np.isfinite(x)]):.0f} %" if np.isfinite(x).any() else "–"
            for x in (own, others)
        )
        beside = (
            f", another class {other}; the true class has rank {self.rank.words()} of "
            f"{classes - 1} by smallest change ({classes / 2:.1f} by chance)"
        )
        return (
            f"smallest change of {count_of(len(own), 'error')}: where it can win, the true class "
            f"needs {median} of the mass moved (median){beside * (classes > 2)}"
        )

    __repr__ = __str__


def least_changes(
    figures: Reach, exposure: Exposure, *, others: bool = True, effort: str | float = "normal"
) -> Changes:
    """The smallest change of every error's true class and, unless told not to, of all classes."""
    errors = np.flatnonzero(figures.wrong)
    rows = errors[np.lexsort((figures.classes.node[errors], figures.classes.member[errors]))]
    member, node = figures.classes.member[rows], figures.classes.node[rows]
    true, predicted = figures.true[rows], figures.predicted[rows]
    can, decided = figures.classes.reachable[rows], figures.classes.decided[rows]
    share, bound = np.full(can.shape, np.inf), np.where(decided, np.inf, 0.0)
    answers: dict[tuple[int, int], Any] = {}
    for wanted in np.arange(can.shape[1]) if others else [true]:  # each error's class, together
        classes = np.broadcast_to(wanted, true.shape)
        asked = np.flatnonzero(can[np.arange(len(can)), classes] & (predicted != classes))
        if not len(asked):
            continue
        mask = torch.zeros(exposure.num_nodes, exposure.num_members, dtype=torch.bool)
        mask[node[asked], member[asked]] = True
        target = torch.full((exposure.num_nodes,), -1)
        target[node[asked]] = torch.from_numpy(classes[asked])
        nearest: Sequence[Any] = nearest_reweighting(exposure, target, mask, effort=effort)
        # In the order of members and nodes, as the rows are.
        for i, c, one in zip(asked.tolist(), classes[asked].tolist(), nearest, strict=True):
            measured = one.status in (MOVED, ALREADY)
            share[i, c] = one.share if measured else np.inf
            bound[i, c] = one.bound / one.mass if measured else 0.0
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


@dataclass(frozen=True, eq=False, repr=False)
class LabelReach(_Answers):
    """Reach and error reach of every label; micro pools pairs, macro averages labels."""

    @cached_property
    def labels(self) -> tuple[OneLabelReach, ...]:
        """Each label's figures."""
        target = self.witnesses.target
        return tuple(self._label(int(k), target == k) for k in np.unique(target))

    @property
    def micro(self) -> Rate:
        """Pairs of node and label whose true side is within reach."""
        return self._rate(np.ones(len(self.true), bool))

    @property
    def micro_error(self) -> Rate:
        """The same among pairs that the frozen model has wrong."""
        return self._rate(self.wrong)

    @property
    def chance(self) -> Rate:
        """Pairs that the frozen model has right and some reweighting turns over."""
        return self._rate(~self.wrong, 1 - self.true)

    @cached_property
    def excess(self) -> Mean:
        """Error reach less chance over all pairs, by a bootstrap over nodes; of 1, not in points.

        From what is proved of errors and not excluded of chance to the other way round.
        """
        columns = []
        for rows, side in ((self.wrong, self.true), (~self.wrong, 1 - self.true)):
            can, may = self._side(side)
            columns += [rows & can, rows & may, rows]
        whole = np.stack(columns, 1).astype(float)
        drawn = resample_sums(self.classes.node, whole)[:, 0]
        with np.errstate(invalid="ignore"):
            low, high = (
                [
                    sums[:, error] / sums[:, 2] - sums[:, right] / sums[:, 5]
                    for sums in (whole.sum(0, keepdims=True), drawn)
                ]
                for error, right in ((0, 4), (1, 3))
            )
        return Mean(float(low[0][0]), float(high[0][0]), find_interval(low[1], high[1]))

    @property
    def macro(self) -> float:
        """The mean of the labels' reach."""
        return mean_over_members(one.reach.value for one in self.labels)

    @property
    def macro_error(self) -> float:
        """The mean of the labels' error reach, where there are errors."""
        return mean_over_members(one.error.value for one in self.labels)

    @property
    def frozen(self) -> F1:
        """F1 of the model as it is."""
        return F1(tuple(one.frozen for one in self.labels))

    @property
    def best(self) -> F1:
        """F1 if every error that is not proved out of reach were undone."""
        return F1(tuple(one.best for one in self.labels))

    def _label(self, label: int, rows: Flags) -> OneLabelReach:
        wrong, (_, may) = self.wrong, self._side(self.true)
        return OneLabelReach(
            label,
            self._rate(rows),
            self._rate(rows & wrong),
            self._rate(rows & ~wrong, 1 - self.true),
            self._counts(rows, wrong),
            self._counts(rows, wrong & ~may),
        )

    def _counts(self, rows: Flags, wrong: Flags) -> F1Counts:
        there = self.true == 1
        kinds = there & ~wrong, ~there & wrong, there & wrong
        return F1Counts(*(int((rows & kind).sum()) for kind in kinds))

    def _rows(self) -> list[dict[str, Any]]:
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
                    "undecided": one.reach.undecided,
                    "f1": one.frozen.f1,
                    "f1_within_reach": one.best.f1,
                }
            )
        return rows

    def _lines(self) -> dict[str, str]:
        return {
            "label reach": f"{self.micro}; macro {100 * self.macro:.1f} % over "
            f"{count_of(len(self.labels), 'label')}",
            "error reach": f"{self.micro_error}; macro {100 * self.macro_error:.1f} %",
            "chance": f"{self.chance} of the right ones could be turned over; excess "
            f"{self.excess.words(100, sign='+', unit=' points')}",
            "F1": f"{self.frozen}; within reach: {self.best}",
        }


def summarise_labels(exposure: Any, own: Solution, other: Solution) -> LabelReach:
    """The figures of a solution whose wanted sides are the truths, and one of the other sides."""

    def sides(name: str) -> Any:
        """[M, 2]: by whether the label is there."""
        true, false = (getattr(one, name) for one in (own, other))
        return np.where(own.wanted[:, None], np.stack([false, true], 1), np.stack([true, false], 1))

    names = ("margin", "bound", "reachable", "decided")
    classes = ClassReach(own.member, own.node, *(sides(name) for name in names), scope=own.scope)
    predicted = np.asarray(own.frozen(exposure)["predicted"]).astype(int)
    return LabelReach(classes, own.wanted.astype(int), predicted, own, own.skipped, own.scope)
