"""The entry point: which errors of a trained model could be undone, per node, and chance.

diagnosis = gr.diagnose(model, data)
print(diagnosis)
diagnosis.to_csv("errors.csv")
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.atomic import check_target
from gnn_repair.backbones import Frozen
from gnn_repair.checks import as_nodes
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.calling import batches_of, field, listed_graphs
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.pieces import as_table, classes_for, recipient_column, require_own
from gnn_repair.notebook import html_view
from gnn_repair.oracle.heads.solve import budget_of
from gnn_repair.oracle.metrics import (
    UNDEFINED,
    Changes,
    LabelReach,
    Reach,
    least_changes,
    reach,
)
from gnn_repair.oracle.problems import CAN, CANNOT, UNDECIDED, whole_number
from gnn_repair.oracle.questions.ranges import ValueRange, value_range
from gnn_repair.oracle.rates import Mean, Rate, mean_over_nodes
from gnn_repair.oracle.solution import Solution, write_frame
from gnn_repair.oracle.witness import describe_gains, percent, within
from gnn_repair.published import count_of, plural
from gnn_repair.reporting import plots, report
from gnn_repair.reporting.evidence import noun_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Tell = Callable[[str], None]
ORDINALS = ("least", "second-least", "third-least", "fourth-least", "fifth-least")


class Diagnosis(ABC):
    """Which of a model's errors another weighting of its final messages could undo.

    Printing it gives a summary; :meth:`to_frame` has one row per node (or label, value, link).
    """

    exposure: Any
    y: Tensor
    """The truth of every node."""
    nodes: Any
    """A mask [N] or [N, S], or node numbers; None: all."""
    selection: str
    """The words for the nodes, such as ``test nodes``."""

    @property
    @abstractmethod
    def _solution(self) -> Solution:
        """One question per row."""

    @abstractmethod
    def _columns(self) -> dict[str, Any]:
        """The frame's columns by name, with one entry per row."""

    @property
    @abstractmethod
    def _figures(self) -> tuple[Rate | Mean, Rate | Mean, Mean]:
        """Reach of errors (of values: of true values), chance, excess."""

    @abstractmethod
    def _sentence(self, i: int) -> str:
        """Row i in words."""

    @abstractmethod
    def _lines(self) -> list[str]:
        """What is printed."""

    @abstractmethod
    def plot(self, ax: Axes | None = None) -> Axes:
        """The figures beside their chance level."""

    def to_frame(self) -> pd.DataFrame:
        """One row per question, in words and numbers that survive a CSV file.

        ``verdict``: whether some reweighting undoes an error (``can``, ``cannot``, ``undecided``),
        or ``right``; ``gamma``: the largest margin that a reweighting gives, by the
        ``key_messages``. One row per node where classes are predicted: ``frozen_margin`` is the
        true logit minus the best other logit, ``mass_moved`` the least share of the node's mass
        that must move, ``smallest_change`` that change in words; ``chance`` the share of classes
        neither true nor predicted that can win, ``classes_in_reach`` the number of all classes
        that can, ``rank_by_change`` the true class's rank by smallest change among those not
        predicted. Per node and label, or per link, ``could_turn`` is the verdict on whether
        reweighting could turn a right prediction over. Per node and value, the true value lies
        between ``low`` and ``high`` where the verdict is ``can``; ``chance`` is the share of other
        nodes' true values that lie there. ``scope`` says what was reweighted where that is not all.
        """
        import pandas as pd

        scope = self._solution.scope
        frame = pd.DataFrame(self._columns() | ({"scope": scope} if scope else {}))
        return frame if frame["member"].any() else frame.drop(columns="member")

    def summary(self) -> dict[str, Any]:
        """Counts, reach, chance and excess as plain values, for machines.

        Each figure has ``value`` (proved), ``possible`` (not excluded) and the 95 % interval from
        ``low`` to ``high``, as shares of 1; None where there is nothing to count. Over several
        members each is the mean of theirs, and ``hits`` of ``total`` are all of them together.
        ``scope`` says what was reweighted where that is not all.
        """
        counts: dict[str, Any] = {"selection": self.selection, "asked": len(self._solution)}
        figures = dict(zip(("reach", "chance", "excess"), self._figures, strict=True))
        for name, figure in figures.items():
            numbers = (figure.value, figure.possible, *figure.interval)
            entries = zip(("value", "possible", "low", "high"), numbers, strict=True)
            counts[name] = {key: None if np.isnan(x) else float(x) for key, x in entries}
            if isinstance(figure, Rate):
                counts[name] |= {"hits": figure.hits, "total": figure.total}
        scope = self._solution.scope
        return counts | ({"scope": scope} if scope else {})

    def explain(self, node: int, member: int = 0) -> str:
        """One node (or link) in a few sentences."""
        solution = self._solution
        nodes = solution.named(solution.node)
        node = whole_number(node, "link" if solution.links is not None else "node")
        rows = np.flatnonzero((nodes == node) & (solution.member == member))
        if not len(rows):
            name = f"link {node}" if solution.links is not None else solution.names.node(node)
            raise InputError(f"{name} is not among the {self.selection}; choose another")
        return "\n".join(self._sentence(i) for i in rows.tolist())

    def to_csv(self, path: str | Path) -> Path:
        """Write :meth:`to_frame` to a file."""
        target = check_target(path)
        write_frame(self.to_frame(), target)
        return target

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the page of these nodes; options as for :func:`gnn_repair.report`, such as
        ``repairs``, ``val``, ``member``, ``title``, ``class_names`` or ``node_names``."""
        raise InputError(
            "the page shows models that choose between classes; to_csv(path) has these rows"
        )

    def _repr_html_(self) -> str:
        return html_view(self, self.to_frame())

    def __str__(self) -> str:
        scope = self._solution.scope
        return "\n".join([*self._lines(), *[f"All this is about the {scope}."] * bool(scope)])

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, eq=False, repr=False)
class ClassDiagnosis(Diagnosis):
    """The diagnosis of a model that chooses between classes."""

    exposure: Exposure
    y: Tensor
    """[N] true classes, −1 where unknown."""
    nodes: Tensor | None
    selection: str
    reach: Reach
    """How often the true class can win, and how often by chance."""
    changes: Changes
    """The smallest change per error; with a nonlinear head of the true class only."""
    edge_index: Tensor | None = None

    @property
    def _solution(self) -> Solution:
        return self.reach.witnesses

    @property
    def _figures(self) -> tuple[Rate | Mean, Rate | Mean, Mean]:
        reach, asked = self.reach, self._solution.taken(np.flatnonzero(self.reach.wrong))
        error: Rate | Mean = reach.members[0].error
        if reach.num_members > 1:
            can, may = asked.verdict == CAN, asked.verdict != CANNOT
            error = mean_over_nodes(can * 1.0, may * 1.0, asked.node, asked.member)
        return error, reach.chance, reach.excess

    def summary(self) -> dict[str, Any]:
        verdict, counts = self._solution.verdict[self.reach.wrong], super().summary()
        counts["reach"] |= {"hits": int((verdict == CAN).sum()), "total": len(verdict)}
        return counts

    @cached_property
    def _errors(self) -> dict[int, int]:
        """Place of a row among the changes: both are sorted by member and node."""
        return {int(row): place for place, row in enumerate(np.flatnonzero(self.reach.wrong))}

    def _columns(self) -> dict[str, Any]:
        reach, solution = self.reach, self._solution
        least = [self._least(i) for i in range(len(reach.true))]
        rank = np.full(len(least), np.nan)
        rank[list(self._errors)] = self.changes.places[1]
        return {
            "member": solution.member,
            recipient_column(solution.names): solution.named(solution.node),
            "true": reach.true,
            **solution.frozen(self.exposure),
            "verdict": np.where(reach.wrong, solution.verdict, "right"),
            "gamma": solution.margin,
            "mass_moved": [np.nan if change is None else change.share for change in least],
            "smallest_change": [
                "" if change is None else describe_gains(change.gains, change.names)
                for change in least
            ],
            "key_messages": solution.key_messages(),
            "chance": reach.chance_per_node,
            "classes_in_reach": reach.classes.count,
            "rank_by_change": rank,
        }

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the page of these nodes; options as for :meth:`Diagnosis.report`."""
        words: dict[str, Any] = {"selection": self.selection, "edge_index": self.edge_index}
        if self.reach.num_members == 1:  # else the page solves for its member
            words["answers"] = (self.reach, self.changes)
        return report(self.exposure, self.y, path, nodes=self.nodes, **{**words, **options})

    def plot(self, ax: Axes | None = None) -> Axes:
        """The mass that must move for the true class, beside chance."""
        return plots.changes(self.changes, ax=ax)

    def _sentence(self, i: int) -> str:
        """The smallest change, then the largest margin."""
        solution = self._solution
        name = solution.names.node(solution.named(solution.node[i]))
        true, predicted = int(self.reach.true[i]), int(self.reach.predicted[i])
        least, counts = self._least(i), self._count_classes(i)
        if true == predicted:
            head = within(name, solution.scope)
            return f"{head}: predicted {predicted}, which is right. {counts}"
        head = f"{name}: predicted {predicted}, true {true}."
        text = str(solution[i]) if least is None else describe_gains(least.gains, least.names)
        text = text[:1].upper() + text[1:]
        if least is None:
            return f"{head} {text}. {counts}"
        return (
            f"{head} {text} would be enough. {percent(least.share)} of the mass moves. {counts} "
            f"The largest margin: {solution[i]}."
        )

    def _count_classes(self, i: int) -> str:
        """How many classes could win at row i, and the true class's rank by smallest change."""
        classes = self.reach.classes
        count, total = int(classes.count[i]), classes.margin.shape[1]
        undecided = int(classes.possible[i]) - count
        words = f"{count} of {total} classes could win here"
        words += f", {undecided} more are undecided" if undecided else ""
        if total < 3 or not self.changes.complete or self._least(i) is None:
            return f"{words}."
        place = int(self.changes.places[1][self._errors[i]]) - 1
        ordinal = ORDINALS[place] if place < len(ORDINALS) else f"{place + 1}th-least"
        return f"{words}; class {int(self.reach.true[i])} needs the {ordinal} change."

    def _least(self, i: int) -> Any:
        """The nearest reweighting of an error's true class; None where no finite one is known."""
        if i not in self._errors:
            return None
        change = self.changes.answers.get((self._errors[i], int(self.reach.true[i])))
        return change if change is not None and np.isfinite(change.moved) else None

    def _lines(self) -> list[str]:
        reach, changes = self.reach, self.changes
        total, wrong = len(reach.true), int(reach.wrong.sum())
        origin = self.exposure.origin or "The model"
        members = f", {reach.num_members} members together" if reach.num_members > 1 else ""
        lines = [f"{origin} is wrong about {wrong:,} of {total:,} {self.selection}{members}."]
        if not wrong:
            return lines
        lines.append(
            "The true class could win by weighing the same messages differently: error reach "
            f"{reach.words('error')}."
        )
        if reach.classes.margin.shape[1] > 2:
            lines.append(
                "A class that is neither true nor predicted could win there: chance "
                f"{reach.chance.words(100, unit=' %')}, excess "
                f"{reach.excess.words(100, sign='+', unit=' points')}."
            )
        else:
            lines.append(f"Chance is {UNDEFINED}.")
        true_shares, other_shares = changes.shares()
        finite, others = (v[np.isfinite(v)] for v in (true_shares, other_shares))
        if len(finite):
            beside = f" (other classes {percent(float(np.median(others)))})" if len(others) else ""
            sentence = (
                f"Where it can, half need at most {percent(float(np.median(finite)))} of the mass "
                f"moved{beside}; {(finite <= 0.1).sum():,} of {len(true_shares):,} errors need at "
                "most 10 %."
            )
            classes = changes.share.shape[1]
            if changes.complete and classes > 2:
                sentence += (
                    f" By smallest change the true class has rank {changes.rank.words()} of "
                    f"{classes - 1} ({classes / 2:.1f} by chance)."
                )
            closest = self._sentence(list(self._errors)[int(np.argmin(true_shares))])
            lines += [sentence, "Closest: " + closest.split(" The largest margin:")[0]]
        return lines


@dataclass(frozen=True, eq=False, repr=False)
class LabelDiagnosis(Diagnosis):
    """The diagnosis of a model with several labels per node, or of links with one label each."""

    exposure: Exposure | LinkExposure
    y: Tensor
    """[N, K] zeros and ones, −1 where unknown; of links [L]."""
    nodes: Any
    selection: str
    reach: LabelReach
    """How often a wrong label can be corrected, and how often a right label turned over."""

    @property
    def _solution(self) -> Solution:
        return self.reach.witnesses

    @property
    def _figures(self) -> tuple[Rate, Rate | Mean, Mean]:
        return self.reach.micro_error, self.reach.chance, self.reach.excess

    def _columns(self) -> dict[str, Any]:
        solution, reach, wrong = self._solution, self.reach, self.reach.wrong
        margin = solution.frozen(self.exposure)["frozen_margin"]
        could_turn = reach.classes.verdict[np.arange(len(wrong)), 1 - reach.true]
        return {
            **solution.subjects(),
            "true": solution.wanted,
            "predicted": solution.wanted ^ wrong,
            "frozen_logit": solution.threshold + np.where(solution.wanted, margin, -margin),
            "verdict": np.where(wrong, solution.verdict, "right"),
            "gamma": solution.margin,
            "key_messages": solution.key_messages(),
            "could_turn": np.where(wrong, "", could_turn),
        }

    def _sentence(self, i: int) -> str:
        subject, verb = self._solution.subject(i), "is" if self.reach.predicted[i] else "is not"
        if self.reach.wrong[i]:
            return f"{subject}: {verb} predicted, wrongly. {self._solution[i]}."
        return f"{within(subject, self._solution.scope)}: {verb} predicted, rightly."

    def plot(self, ax: Axes | None = None) -> Axes:
        """Per label, the share of errors that could be undone beside that of right labels lost."""
        return plots.labels(self.reach, ax=ax)

    def _lines(self) -> list[str]:
        reach, solution, wrong = self.reach, self._solution, int(self.reach.wrong.sum())
        nodes = self.exposure.mixture if isinstance(self.exposure, LinkExposure) else self.exposure
        origin = nodes.origin or "The model"
        noun = ("labels of " if solution.links is None else "") + self.selection
        lines = [f"{origin} is wrong about {wrong:,} of {len(solution):,} {noun}."]
        if wrong:
            lines.append(
                "The true side could be had by weighing the same messages differently: error reach "
                f"{reach.micro_error}."
            )
            lines.append(
                f"Of those that are right, so many could be lost in the same way: chance "
                f"{reach.chance}, excess {reach.excess.words(100, sign='+', unit=' points')}."
            )
        return lines


@dataclass(frozen=True, eq=False, repr=False)
class ValueDiagnosis(Diagnosis):
    """The diagnosis of a model with values as outputs: which values it could give instead."""

    exposure: Exposure
    y: Tensor
    """[N] or [N, K] true values, NaN where unknown."""
    nodes: Any
    selection: str
    range: ValueRange
    """The values that reweighting can give each output."""

    @cached_property
    def _outcome(self) -> dict[str, NDArray[Any]]:
        """Truth, verdict and chance per output of a node."""
        (low, high), true = self.range.ends, self.range.true_values(self.y)
        inside = (low <= true) & (true <= high)
        outside = ~inside & ((true < self.range.low_bound) | (self.range.high_bound < true))
        verdict = np.where(inside, CAN, np.where(outside, CANNOT, UNDECIDED))
        chance = np.full(len(true), np.nan)
        pairs = np.stack([self.range.lower.member, self.range.lower.target], 1)
        for pair in np.unique(pairs, axis=0):
            rows = np.flatnonzero((pairs == pair).all(1) & ~np.isnan(true))
            if len(rows) > 1:
                values = np.sort(true[rows])
                below = np.searchsorted(values, low[rows])
                within = np.searchsorted(values, high[rows], "right") - below
                chance[rows] = (within - inside[rows]) / (len(rows) - 1)
        return {"true": true, "verdict": np.where(np.isnan(true), "", verdict), "chance": chance}

    @cached_property
    def _figures(self) -> tuple[Rate, Rate | Mean, Mean]:
        has_truth = ~np.isnan(self._outcome["true"])
        verdict, chance = (self._outcome[name][has_truth] for name in ("verdict", "chance"))
        can, may = verdict == CAN, verdict != CANNOT
        node, member = self._solution.node[has_truth], self._solution.member[has_truth]
        return (
            Rate(int(can.sum()), len(can), int((may & ~can).sum())),
            mean_over_nodes(chance, chance, node, member),
            mean_over_nodes(can - chance, may - chance, node, member),
        )

    @property
    def _solution(self) -> Solution:
        return self.range.lower

    def _columns(self) -> dict[str, Any]:
        ends, outcome = self.range, self._outcome
        return {
            **ends.lower.subjects(),
            "true": outcome["true"],
            "predicted": ends.frozen,
            "low": ends.low,
            "high": ends.high,
            "verdict": outcome["verdict"],
            "chance": outcome["chance"],
            "messages_low": ends.lower.key_messages(),
            "messages_high": ends.upper.key_messages(),
        }

    def _sentence(self, i: int) -> str:
        true = self._outcome["true"][i]
        return f"{self.range.sentence(i)}." + ("" if np.isnan(true) else f" True: {true:.4g}.")

    def plot(self, ax: Axes | None = None) -> Axes:
        """The interval of every output over its true value."""
        return plots.intervals(self.range, self._outcome["true"], ax=ax)

    def _lines(self) -> list[str]:
        true = self._outcome["true"]
        error = np.abs(self.range.frozen - true)[~np.isnan(true)]
        lines = [
            f"{self.exposure.origin or 'The model'} gives {len(self.range):,} values of "
            f"{self.selection}"
            + (f", {error.mean():.4g} from the truth on average." if len(error) else ".")
        ]
        if len(error):
            rate, chance, excess = self._figures
            assert isinstance(chance, Mean)
            lines.append(f"The true value could be had by weighing messages differently: {rate}.")
            lines.append(
                f"Another {noun_of(self.exposure)}'s true value lies within the same interval: "
                f"chance {chance.words(100, unit=' %')}, excess "
                f"{excess.words(100, sign='+', unit=' points')}."
            )
        lines.append(f"The interval is {np.median(self.range.width):.4g} wide (median).")
        return lines


def diagnose(
    model: Any,
    data: Any = None,
    y: Any = None,
    nodes: Any = None,
    *,
    tell: Tell | None = None,
    effort: str | float = "normal",
    **options: Any,
) -> Diagnosis:
    """Find which of a trained model's errors another weighting of its final messages could undo.

    Args:
        model: what :func:`expose` takes, or an exposure, also of links.
        data: the PyG data the model runs on.
        y: [N] true classes, −1 where unknown; of labels [N, K] zeros and ones, of values [N] or
            [N, K], of links [L]; ``data.y`` (links: ``data.edge_label``) unless given.
        nodes: a mask [N] or [N, S], or node numbers; the test nodes of data (``test_mask``) unless
            given, all labelled nodes where it has none.
        tell: called with a sentence before each step.
        effort: as for :func:`solve`, how long answers behind a nonlinear head may take.
        **options: of :func:`expose`: ``hops``, ``forward``, ``tolerance``, ``expected``,
            ``node_type``, ``outputs``.

    Returns:
        The diagnosis: print it, or use ``to_frame()``, ``to_csv(path)``, ``report(path)``,
        ``plot()``, ``explain(node)``.
    """
    for name in options.keys() - signature(expose).parameters.keys():
        raise TypeError(f"diagnose() got an unexpected keyword argument {name!r}")
    budget_of(effort)  # before anything is run
    tell = tell or (lambda _: None)
    tell("exposing the final aggregation")
    exposure, y, nodes, words, store = questions_about(model, data, y, nodes, **options)
    if exposure.outputs == "labels":
        tell("asking whether each label can be put on its true side, and on the other")
        labels = reach(exposure, y, nodes, effort=effort)
        assert isinstance(labels, LabelReach)
        return LabelDiagnosis(exposure, torch.as_tensor(y), nodes, words, labels)
    if exposure.outputs == "values":
        tell("looking for the least and the largest value of every output")
        ranges = value_range(exposure, nodes, effort=effort)
        return ValueDiagnosis(exposure, torch.as_tensor(y), nodes, words, ranges)
    tell(f"asking whether each of {exposure.num_classes} classes can win")
    answers = reach(exposure, y, nodes, effort=effort)
    assert isinstance(answers, Reach)
    if errors := int(answers.wrong.sum()):
        tell(f"looking for the smallest change at {count_of(errors, 'error')}")
    # With a nonlinear head every class would take minutes.
    changes = least_changes(answers, exposure, others=exposure.head is None, effort=effort)
    # A page draws the graph where its numbers are the exposure's nodes.
    edges = field(store, "edge_index")
    drawable = isinstance(edges, Tensor) and edges.dim() == 2
    if not drawable or exposure.graph_starts is not None or exposure.names.typed:
        edges = None
    return ClassDiagnosis(exposure, y.cpu(), nodes, words, answers, changes, edges)


def questions_about(
    model: Any, data: Any = None, y: Any = None, nodes: Any = None, **options: Any
) -> tuple[Any, Any, Any, str, Any]:
    """What is asked of a model: exposure, y, nodes, the words for them, and what holds the labels.

    Arguments as for :func:`diagnose`.
    """
    data = listed_graphs(data)
    if isinstance(model, Exposure | LinkExposure):
        exposure: Exposure | LinkExposure = model
    elif isinstance(model, Frozen):
        exposure, data = expose(model), model.data if data is None else data
    else:
        exposure = expose(model, data, **options)
    if isinstance(exposure, LinkExposure):
        truth = field(data, "edge_label") if y is None else y
        if truth is None:
            raise InputError(
                "pass y, or set data.edge_label: 1 for every link that is there, 0 for the others"
            )
        return exposure, truth, nodes, "links", data
    store, noun = _label_store(data, exposure), noun_of(exposure)
    nouns = plural(noun)
    if y is None:
        y = field(store, "y")
        if y is None:
            raise InputError(f"data has no y; pass y, the truth of every {noun}, or set data.y")
        y = y.flatten() if isinstance(y, Tensor) and y.dim() == 2 and y.shape[1] == 1 else y
    if exposure.outputs == "classes":
        y = classes_for(exposure, y)
    elif exposure.outputs == "values":
        require_own(exposure, y, "y")
        as_table(y, (exposure.num_nodes, exposure.num_classes))
    words = f"chosen {nouns}"
    if nodes is None:
        splits = model.splits if isinstance(model, Frozen) else None
        nodes, words = _test_nodes(store, exposure, splits, nouns)
    return exposure, y, nodes, words, store


def _label_store(data: Any, exposure: Exposure) -> Any:
    """The object with labels and masks: the graph, its classified node type, or all graphs' y."""
    batches = batches_of(data)
    if batches is not None:
        truths = [field(batch, "y") for batch in batches]
        complete = all(isinstance(y, Tensor) for y in truths)
        return {"y": torch.cat([y.view(-1) for y in truths]) if complete else None}
    types = getattr(data, "node_types", ())
    return data[exposure.names.recipient] if exposure.names.recipient in types else data


def _test_nodes(
    store: Any, exposure: Exposure, splits: Sequence[int] | None, nouns: str
) -> tuple[Tensor | None, str]:
    """The test nodes that are recipients, and the words for them."""
    mask = field(store, "test_mask")
    if mask is None:
        return None, f"labelled {nouns}"
    recipients = torch.zeros(exposure.num_nodes, dtype=torch.bool)
    recipients[exposure.recipients.cpu()] = True
    none = InputError(f"data.test_mask selects none of the {nouns}; mend it or pass nodes")
    if getattr(mask, "ndim", 1) != 2:
        chosen = as_nodes(mask, len(recipients), "data.test_mask", noun_of(exposure)).cpu()
        chosen = chosen[recipients[chosen]]
        if not len(chosen):
            raise none
        return chosen, f"test {nouns}"
    columns = range(mask.shape[1]) if splits is None else splits
    if len(columns) != exposure.num_members:
        raise InputError(
            f"data.test_mask has {mask.shape[1]} splits; pass the one that the model was "
            "trained on, such as nodes=data.test_mask[:, 0]"
        )
    mask = torch.as_tensor(mask).cpu()[:, list(columns)]
    if mask.dtype != torch.bool or mask.shape[0] != len(recipients):
        raise InputError(
            f"data.test_mask is {mask.dtype} of {mask.shape[0]} rows for {len(recipients)} "
            f"{nouns}; give a boolean mask with a row for each, or pass nodes"
        )
    mask = mask & recipients.unsqueeze(1)
    if not bool(mask.any()):
        raise none
    return mask, f"test {nouns}"
