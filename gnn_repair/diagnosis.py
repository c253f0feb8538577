"""The front door: which errors of a trained model could be undone, node by node, with chance.

found = gr.diagnose(model, data)
print(found)
found.to_csv("errors.csv")
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

from gnn_repair.atomic import check_target, replacing
from gnn_repair.backbones import Frozen
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.calling import batches_of, field, listed_graphs
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.pieces import classes_for, recipient_column
from gnn_repair.notebook import html_view
from gnn_repair.oracle.metrics import (
    UNDEFINED,
    Changes,
    LabelReach,
    Reach,
    least_changes,
    reach,
)
from gnn_repair.oracle.problems import CAN, CANNOT, UNDECIDED
from gnn_repair.oracle.questions.ranges import ValueRange, value_range
from gnn_repair.oracle.rates import Mean, Rate, mean_over_nodes
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.witness import describe_gains, percent
from gnn_repair.published import count_of, plural
from gnn_repair.reporting import plots, report
from gnn_repair.reporting.evidence import noun_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Tell = Callable[[str], None]
ORDINALS = ("least", "second-least", "third-least", "fourth-least", "fifth-least")


class Diagnosis(ABC):
    """What could be done about a model's errors by weighing its final messages differently.

    Print it for the story in a few lines; a row per node (or per label, value, link) is in
    :meth:`to_frame`.
    """

    exposure: Any
    y: Tensor
    """The truth of every node."""
    nodes: Any
    """A mask [N] or [N, S], or node numbers; None: all."""
    selection: str
    """What the nodes are called, such as ``test nodes``."""

    @property
    @abstractmethod
    def _solution(self) -> Solution:
        """One question per row."""

    @abstractmethod
    def _columns(self) -> dict[str, Any]:
        """By name, a value per row."""

    @property
    @abstractmethod
    def _figures(self) -> tuple[Rate, Rate | Mean, Mean]:
        """Reach of errors (of values: of true ones), chance, excess."""

    @abstractmethod
    def _sentence(self, i: int) -> str:
        """Row i in words."""

    @abstractmethod
    def plot(self, ax: Axes | None = None) -> Axes:
        """The figures beside their chance level."""

    def to_frame(self) -> pd.DataFrame:
        """One row per question, in words and numbers that survive a CSV file.

        ``verdict`` says of an error whether some reweighting undoes it (``can``, ``cannot``,
        ``undecided``), of the rest ``right``; ``gamma`` is the largest margin that a reweighting
        gives, by the ``key_messages``. One row per node where classes are predicted:
        ``frozen_margin`` is the true logit less the best other one, ``mass_moved`` the least share
        of the node's mass that must move, ``smallest_change`` how; ``chance`` is the share of
        classes neither true nor predicted that can win here, ``classes_in_reach`` counts all that
        can, ``rank_by_change`` is the true class's rank by smallest change among those not
        predicted. Per node and label, or per link, ``could_turn`` says of a right one whether
        reweighting could lose it. Per node and value, the true one lies between ``low`` and
        ``high`` where the verdict is ``can``, and ``chance`` is the share of the other nodes' true
        values that do.
        """
        import pandas as pd

        frame = pd.DataFrame(self._columns())
        # One model needs no column that says which.
        return frame if frame["member"].any() else frame.drop(columns="member")

    def summary(self) -> dict[str, Any]:
        """What is printed above the rows, for machines: counts, reach, chance and excess.

        Of each ``value`` (what is proved), ``possible`` (what is not excluded) and the 95 %
        interval from ``low`` to ``high``, as shares of 1; None where there is nothing to count.
        """
        counts: dict[str, Any] = {"selection": self.selection, "asked": len(self._solution)}
        figures = dict(zip(("reach", "chance", "excess"), self._figures, strict=True))
        for name, figure in figures.items():
            ends = (figure.value, figure.possible, *figure.interval)
            told = dict(zip(("value", "possible", "low", "high"), ends, strict=True))
            counts[name] = {key: None if np.isnan(x) else float(x) for key, x in told.items()}
            if isinstance(figure, Rate):
                counts[name] |= {"hits": figure.hits, "total": figure.total}
        return counts

    def explain(self, node: int, member: int = 0) -> str:
        """One node (or link) in a few sentences."""
        asked = self._solution
        rows = np.flatnonzero((asked.named(asked.node) == node) & (asked.member == member))
        if not len(rows):
            who = f"link {node}" if asked.links is not None else asked.names.node(node)
            raise InputError(f"{who} is not among the {self.selection}; choose another")
        return "\n".join(self._sentence(i) for i in rows.tolist())

    def to_csv(self, path: str | Path) -> Path:
        """Write :meth:`to_frame` to a file."""
        target = check_target(path)
        frame = self.to_frame()
        with replacing(target) as temporary:
            frame.to_csv(temporary, index=False)
        return target

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the page of these nodes; options as for :func:`gnn_repair.report`."""
        raise InputError(
            "the page shows models that choose between classes; to_csv(path) has these rows"
        )

    def _repr_html_(self) -> str:
        return html_view(self, self.to_frame())

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, eq=False, repr=False)
class ClassDiagnosis(Diagnosis):
    """Of a model that chooses between classes."""

    exposure: Exposure
    y: Tensor
    """[N] true classes, −1 where unknown."""
    nodes: Tensor | None
    selection: str
    reach: Reach
    """How often the true class can win, and how often by chance."""
    changes: Changes
    """The smallest change of every error; with a nonlinear head of the true class alone."""
    edge_index: Tensor | None = None

    @property
    def _solution(self) -> Solution:
        return self.reach.witnesses

    @property
    def _figures(self) -> tuple[Rate, Rate | Mean, Mean]:
        rates = [member.error for member in self.reach.members]
        hits, total = sum(one.hits for one in rates), sum(one.total for one in rates)
        rate = Rate(hits, total, sum(one.undecided for one in rates))
        return rate, self.reach.chance, self.reach.excess

    @cached_property
    def _errors(self) -> dict[int, int]:
        """By row, the place among the changes, which are in the order of members and nodes."""
        rows, classes = np.flatnonzero(self.reach.wrong), self.reach.classes
        order = np.lexsort((classes.node[rows], classes.member[rows]))
        return {row: place for place, row in enumerate(rows[order].tolist())}

    def _columns(self) -> dict[str, Any]:
        found, solution = self.reach, self._solution
        least = [self._least(i) for i in range(len(found.true))]
        rank = np.full(len(least), np.nan)
        rank[list(self._errors)] = self.changes.places[1]
        return {
            "member": solution.member,
            recipient_column(solution.names): solution.named(solution.node),
            "true": found.true,
            **solution.frozen(self.exposure),
            "verdict": np.where(found.wrong, solution.verdict, "right"),
            "gamma": solution.margin,
            "mass_moved": [np.nan if one is None else one.share for one in least],
            "smallest_change": [_change(one) for one in least],
            "key_messages": solution.key_messages(),
            "chance": found.chance_per_node,
            "classes_in_reach": found.classes.count,
            "rank_by_change": rank,
        }

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the page of these nodes; options as for :func:`gnn_repair.report`."""
        words: dict[str, Any] = {"selection": self.selection, "edge_index": self.edge_index}
        if self.reach.num_members == 1:  # what is known already is not asked again
            words["answers"] = (self.reach, self.changes)
        return report(self.exposure, self.y, path, nodes=self.nodes, **{**words, **options})

    def plot(self, ax: Axes | None = None) -> Axes:
        """How much of the mass must move for the true class, beside chance."""
        return plots.changes(self.changes, ax=ax)

    def _sentence(self, i: int) -> str:
        """The smallest change first."""
        found, solution = self.reach, self._solution
        who = solution.names.node(solution.named(solution.node[i]))
        true, predicted = int(found.true[i]), int(found.predicted[i])
        if true == predicted:
            return f"{who}: predicted {predicted}, which is right. {self._count(i)}"
        head = f"{who}: predicted {predicted}, true {true}."
        least, witness = self._least(i), solution[i]
        if least is None:
            text = str(witness)
            return f"{head} {text[:1].upper()}{text[1:]}. {self._count(i)}"
        change = _change(least)
        return (
            f"{head} {change[:1].upper()}{change[1:]} would be enough. "
            f"{percent(least.share)} of the mass moves. {self._count(i)} "
            f"The largest margin: {witness}."
        )

    def _count(self, i: int) -> str:
        """How special it is that the true class can win."""
        classes = self.reach.classes
        count, total = int(classes.count[i]), classes.margin.shape[1]
        left = int(classes.possible[i]) - count
        words = f"{count} of {total} classes could win here"
        words += f", {left} more are undecided" if left else ""
        if not self.changes.complete or i not in self._errors or self._least(i) is None:
            return f"{words}."
        place = int(self.changes.places[1][self._errors[i]]) - 1
        which = ORDINALS[place] if place < len(ORDINALS) else f"{place + 1}th-least"
        return f"{words}; class {int(self.reach.true[i])} needs the {which} change."

    def _least(self, i: int) -> Any:
        """The nearest reweighting of a row's true class; None where there is none to be found."""
        error = self._errors.get(i)
        one = None if error is None else self.changes.answers.get((error, int(self.reach.true[i])))
        return one if one is not None and np.isfinite(one.moved) else None

    def __str__(self) -> str:
        found, classes = self.reach, self.reach.classes.margin.shape[1]
        total, wrong = len(found.true), int(found.wrong.sum())
        origin = self.exposure.origin or "The model"
        several = f", {found.num_members} members together" if found.num_members > 1 else ""
        lines = [f"{origin} is wrong about {wrong:,} of {total:,} {self.selection}{several}."]
        if not wrong:
            return lines[0]
        lines.append(
            "The true class could win by weighing the same messages differently: error reach "
            f"{found.words('error')}."
        )
        if classes > 2:
            lines.append(
                "A class that is neither true nor predicted could win there: chance "
                f"{found.chance.words(100, unit=' %')}, excess "
                f"{found.excess.words(100, sign='+', unit=' points')}."
            )
        else:
            lines.append(f"Chance is {UNDEFINED}.")
        own, others = self.changes.shares()
        if np.isfinite(own).any():
            lines.append(self._needed(own, others))
            closest = self._sentence(list(self._errors)[int(np.argmin(own))])
            lines.append("Closest: " + closest.split(" The largest margin:")[0])
        return "\n".join(lines)

    def _needed(self, own: Any, others: Any) -> str:
        """How large the changes are, true class and chance."""
        can, rest = own[np.isfinite(own)], others[np.isfinite(others)]
        other = f" (other classes {percent(float(np.median(rest)))})" if len(rest) else ""
        few = (own <= 0.1).sum()
        classes = self.changes.share.shape[1]
        return (
            f"Where it can, half need at most {percent(float(np.median(can)))} of the mass moved"
            f"{other}; {few:,} of {len(own):,} errors need at most 10 %."
            + (
                f" By smallest change the true class has rank {self.changes.rank.words()} of "
                f"{classes - 1} ({classes / 2:.1f} by chance)."
                if self.changes.complete
                else ""
            )
        )


@dataclass(frozen=True, eq=False, repr=False)
class LabelDiagnosis(Diagnosis):
    """Of a model with several labels per node, or of links, which have one label each."""

    exposure: Exposure | LinkExposure
    y: Tensor
    """[N, K] zeros and ones, −1 where unknown; of links [L]."""
    nodes: Any
    selection: str
    reach: LabelReach
    """How often a label can be put on its true side, and how often a right one turned over."""

    @property
    def _solution(self) -> Solution:
        return self.reach.witnesses

    @property
    def _figures(self) -> tuple[Rate, Rate | Mean, Mean]:
        return self.reach.micro_error, self.reach.chance, self.reach.excess

    def _columns(self) -> dict[str, Any]:
        asked, found, wrong = self._solution, self.reach, self.reach.wrong
        margin = asked.frozen(self.exposure)["frozen_margin"]
        turned = found.classes.verdict[np.arange(len(wrong)), 1 - found.true]
        return {
            **asked.subjects(),
            "true": asked.wanted,
            "predicted": asked.wanted ^ wrong,
            "frozen_logit": asked.threshold + np.where(asked.wanted, margin, -margin),
            "verdict": np.where(wrong, asked.verdict, "right"),
            "gamma": asked.margin,
            "key_messages": asked.key_messages(),
            "could_turn": np.where(wrong, "", turned),
        }

    def _sentence(self, i: int) -> str:
        subject, has = self._solution.subject(i), "is" if self.reach.predicted[i] else "is not"
        if self.reach.wrong[i]:
            return f"{subject}: {has} predicted, wrongly. {self._solution[i]}."
        return f"{subject}: {has} predicted, rightly."

    def plot(self, ax: Axes | None = None) -> Axes:
        """Per label, the share of errors that could be undone beside that of right ones lost."""
        return plots.labels(self.reach, ax=ax)

    def __str__(self) -> str:
        found, asked, wrong = self.reach, self._solution, int(self.reach.wrong.sum())
        nodes = self.exposure.mixture if isinstance(self.exposure, LinkExposure) else self.exposure
        of = ("labels of " if asked.links is None else "") + self.selection
        lines = [f"{nodes.origin or 'The model'} is wrong about {wrong:,} of {len(asked):,} {of}."]
        if wrong:
            lines.append(
                "The true side could be had by weighing the same messages differently: error reach "
                f"{found.micro_error}."
            )
            lines.append(
                f"Of those that are right, so many could be lost in the same way: chance "
                f"{found.chance}, excess {found.excess.words(100, sign='+', unit=' points')}."
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, repr=False)
class ValueDiagnosis(Diagnosis):
    """Of a model with values as outputs: nothing wins, so the question is which values it could
    give instead."""

    exposure: Exposure
    y: Tensor
    """[N] or [N, K] true values, NaN where unknown."""
    nodes: Any
    selection: str
    range: ValueRange
    """The values that reweighting can give each output."""

    @cached_property
    def _outcome(self) -> dict[str, NDArray[Any]]:
        """Per output of a node: truth, verdict and chance."""
        found = self.range
        true = found.true_values(self.y)
        inside = (found.low <= true) & (true <= found.high)
        outside = (true < found.low_bound) | (found.high_bound < true)
        verdict = np.where(inside, CAN, np.where(outside, CANNOT, UNDECIDED))
        chance = np.full(len(true), np.nan)
        pairs = np.stack([found.lower.member, found.lower.target], 1)
        for pair in np.unique(pairs, axis=0):
            rows = np.flatnonzero((pairs == pair).all(1) & ~np.isnan(true))
            if len(rows) > 1:
                held, ends = np.sort(true[rows]), (found.low[rows], found.high[rows])
                within = np.searchsorted(held, ends[1], "right") - np.searchsorted(held, ends[0])
                chance[rows] = (within - inside[rows]) / (len(rows) - 1)
        return {"true": true, "verdict": np.where(np.isnan(true), "", verdict), "chance": chance}

    @cached_property
    def _figures(self) -> tuple[Rate, Rate | Mean, Mean]:
        found = self._outcome
        known = ~np.isnan(found["true"])
        verdict, chance = found["verdict"][known], found["chance"][known]
        can, may = verdict == CAN, verdict != CANNOT
        asked = self._solution
        of = asked.node[known], asked.member[known]
        return (
            Rate(int(can.sum()), len(can), int((may & ~can).sum())),
            mean_over_nodes(chance, chance, *of),
            mean_over_nodes(can - chance, may - chance, *of),
        )

    @property
    def _solution(self) -> Solution:
        return self.range.lower

    def _columns(self) -> dict[str, Any]:
        found, figures = self.range, self._outcome
        return {
            **found.lower.subjects(),
            "true": figures["true"],
            "predicted": found.frozen,
            "low": found.low,
            "high": found.high,
            "verdict": figures["verdict"],
            "chance": figures["chance"],
            "messages_low": found.lower.key_messages(),
            "messages_high": found.upper.key_messages(),
        }

    def _sentence(self, i: int) -> str:
        true = self._outcome["true"][i]
        return f"{self.range.sentence(i)}." + ("" if np.isnan(true) else f" True: {true:.4g}.")

    def plot(self, ax: Axes | None = None) -> Axes:
        """The interval of every output over its true value."""
        return plots.intervals(self.range, self._outcome["true"], ax=ax)

    def __str__(self) -> str:
        found, true = self.range, self._outcome["true"]
        error = np.abs(found.frozen - true)[~np.isnan(true)]
        lines = [
            f"{self.exposure.origin or 'The model'} gives {len(found):,} values of "
            f"{self.selection}"
            + (f", {error.mean():.4g} from the truth on average." if len(error) else ".")
        ]
        if len(error):
            rate, by_chance, excess = self._figures
            assert isinstance(by_chance, Mean)
            lines.append(f"The true value could be had by weighing messages differently: {rate}.")
            lines.append(
                f"Another {noun_of(self.exposure)}'s true value lies within the same interval: "
                f"chance {by_chance.words(100, unit=' %')}, excess "
                f"{excess.words(100, sign='+', unit=' points')}."
            )
        lines.append(f"The interval is {np.median(found.width):.4g} wide (median).")
        return "\n".join(lines)


def _change(least: Any) -> str:
    """Who is given more; nothing where there is no change."""
    return "" if least is None else describe_gains(least.gains, least.names)


def diagnose(
    model: Any,
    data: Any = None,
    y: Any = None,
    nodes: Any = None,
    *,
    tell: Tell | None = None,
    **options: Any,
) -> Diagnosis:
    """Which of a trained model's errors could be undone by weighing its final messages differently.

    Args:
        model: what :func:`expose` takes, or an exposure, also of links.
        data: the PyG data the model runs on.
        y: [N] true classes, −1 where unknown; of labels [N, K] zeros and ones, of values [N] or
            [N, K], of links [L]; ``data.y`` (links: ``data.edge_label``) unless given.
        nodes: a mask [N] or [N, S], or node numbers; the test nodes of data (``test_mask``) unless
            given, all labelled nodes where it has none.
        tell: called with a sentence before each step.
        **options: of :func:`expose`, such as ``node_type`` or ``forward``.

    Returns:
        Print it; ``to_frame()``, ``to_csv(path)``, ``report(path)``, ``plot()``,
        ``explain(node)``.
    """
    for name in options.keys() - signature(expose).parameters.keys():
        raise TypeError(f"diagnose() got an unexpected keyword argument {name!r}")
    say, data = tell or (lambda _: None), listed_graphs(data)
    say("exposing the final aggregation")
    if isinstance(model, Exposure | LinkExposure):
        exposure: Exposure | LinkExposure = model
    elif isinstance(model, Frozen):
        exposure, data = expose(model), model.data if data is None else data
    else:
        exposure = expose(model, data, **options)
    if isinstance(exposure, LinkExposure):
        truth = field(data, "edge_label") if y is None else y
        if truth is None:
            raise InputError("pass y, 1 for every link that is there and 0 for the others")
        return _diagnose_labels(exposure, truth, nodes, "links", say)
    held, one = _held(data, exposure), noun_of(exposure)
    noun = plural(one)
    if exposure.outputs == "classes":
        y = classes_for(exposure, _truth(held, one) if y is None else y)
    elif y is None:
        y = _truth(held, one)
    words = f"chosen {noun}"
    if nodes is None:
        splits = model.splits if isinstance(model, Frozen) else None
        nodes, words = _test_nodes(held, exposure, splits, noun)
    if exposure.outputs == "labels":
        return _diagnose_labels(exposure, y, nodes, words, say)
    if exposure.outputs == "values":
        say("looking for the least and the largest value of every output")
        return ValueDiagnosis(
            exposure, torch.as_tensor(y), nodes, words, value_range(exposure, nodes)
        )
    say(f"asking whether each of {exposure.num_classes} classes can win")
    found = reach(exposure, y, nodes)
    assert isinstance(found, Reach)
    say(f"looking for the smallest change at {count_of(int(found.wrong.sum()), 'error')}")
    if exposure.head is not None:  # where every class would take minutes
        changes = least_changes(found, exposure, others=False)
    else:
        changes = found.changes
    return ClassDiagnosis(exposure, y.cpu(), nodes, words, found, changes, _edges(held, exposure))


def _diagnose_labels(
    exposure: Exposure | LinkExposure, y: Any, nodes: Any, words: str, say: Tell
) -> LabelDiagnosis:
    say("asking whether each label can be put on its true side, and on the other")
    found = reach(exposure, y, nodes)
    assert isinstance(found, LabelReach)
    return LabelDiagnosis(exposure, torch.as_tensor(y), nodes, words, found)


def _held(data: Any, exposure: Exposure) -> Any:
    """What holds labels and masks: the graph, its classified node type, or all graphs' labels."""
    batches = batches_of(data)
    if batches is not None:
        truths = [field(batch, "y") for batch in batches]
        whole = all(isinstance(y, Tensor) for y in truths)
        return {"y": torch.cat([y.view(-1) for y in truths]) if whole else None}
    kinds = getattr(data, "node_types", ())
    return data[exposure.names.recipient] if exposure.names.recipient in kinds else data


def _truth(held: Any, noun: str) -> Any:
    y = field(held, "y")
    if y is None:
        raise InputError(f"data has no y; pass y, the truth of every {noun}")
    return y.flatten() if isinstance(y, Tensor) and y.dim() == 2 and y.shape[1] == 1 else y


def _test_nodes(
    held: Any, exposure: Exposure, splits: Sequence[int] | None, noun: str
) -> tuple[Tensor | None, str]:
    """The test nodes that are recipients, and what they are called."""
    mask = field(held, "test_mask")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        return None, f"labelled {noun}"
    mask = mask.cpu()
    if mask.dim() == 2:
        columns = range(mask.shape[1]) if splits is None else splits
        if len(columns) != exposure.num_members:
            raise InputError(
                f"data.test_mask has {mask.shape[1]} splits; pass the one that the model was "
                "trained on, such as nodes=data.test_mask[:, 0]"
            )
        mask = mask[:, list(columns)]
    known = torch.zeros(exposure.num_nodes, dtype=torch.bool)
    known[exposure.recipients.cpu()] = True
    if mask.shape[0] != len(known):
        raise InputError(
            f"data.test_mask has {mask.shape[0]} entries for {len(known)} {noun}; pass nodes"
        )
    return mask & (known if mask.dim() == 1 else known.unsqueeze(1)), f"test {noun}"


def _edges(held: Any, exposure: Exposure) -> Tensor | None:
    """The graph for a page, where its numbers are the exposure's nodes."""
    edges = field(held, "edge_index")
    plain = exposure.graph_starts is None and not exposure.names.typed
    return edges if plain and isinstance(edges, Tensor) and edges.dim() == 2 else None
