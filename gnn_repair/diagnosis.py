"""The front door: which errors of a trained model could be undone, node by node, with chance.

found = gr.diagnose(model, data)
print(found)
found.to_csv("errors.csv")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.atomic import check_target, replacing
from gnn_repair.backbones import Frozen
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.arguments import classes_for, require_outputs
from gnn_repair.exposure.data import batches_of, field
from gnn_repair.exposure.names import recipients_called
from gnn_repair.notebook import shown
from gnn_repair.oracle.metrics import UNDEFINED, Changes, Reach, least_changes, reach
from gnn_repair.oracle.witness import gain_words, percent
from gnn_repair.reporting import plots, report
from gnn_repair.reporting.evidence import counted, noun_of, plural
from gnn_repair.thresholds import ACTIVE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Tell = Callable[[str], None]
ORDINALS = ("least", "second-least", "third-least", "fourth-least", "fifth-least")
KEY = 5
"""Messages of a witness that a table names."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What could be done about a model's errors by weighing its final messages differently."""

    exposure: Exposure = dataclass_field(repr=False)
    y: Tensor = dataclass_field(repr=False)
    """[N] true classes, −1 where unknown."""
    nodes: Tensor | None = dataclass_field(repr=False)
    """A mask [N] or [N, S], or node numbers; None: all."""
    selection: str
    """What the nodes are called, such as ``test nodes``."""
    reach: Reach = dataclass_field(repr=False)
    """How often the true class can win, and how often by chance."""
    changes: Changes = dataclass_field(repr=False)
    """The least change of every error; with a nonlinear head of the true class alone."""
    edge_index: Tensor | None = dataclass_field(default=None, repr=False)

    @cached_property
    def _rows(self) -> dict[tuple[int, int], int]:
        """The place of a member's node among the rows."""
        found = self.reach.classes
        pairs = zip(found.member.tolist(), self._named(found.node).tolist(), strict=True)
        return {pair: i for i, pair in enumerate(pairs)}

    @cached_property
    def _errors(self) -> dict[int, int]:
        """By row, the place among the changes."""
        found, changes = self.reach.classes, self.changes
        place = {
            pair: k
            for k, pair in enumerate(
                zip(changes.member.tolist(), changes.node.tolist(), strict=True)
            )
        }
        pairs = zip(found.member.tolist(), found.node.tolist(), strict=True)
        return {i: place[pair] for i, pair in enumerate(pairs) if pair in place}

    def _named(self, nodes: Any) -> Any:
        return self.reach.witnesses.named(nodes)

    def to_frame(self) -> pd.DataFrame:
        """One row per node, in words and numbers that survive a CSV file.

        ``frozen_margin`` is the true logit less the best other one. ``verdict`` says of an error
        whether some reweighting makes the true class win (``can``, ``cannot``, ``undecided``), of
        the rest ``right``. ``gamma`` is the largest margin that a reweighting gives the true class,
        by the ``key_messages``. ``mass_moved`` is the least share of the node's mass that must
        move, ``smallest_change`` how. ``chance`` is the share of classes neither true nor predicted
        that can win here, ``classes_in_reach`` counts all that can, ``place_by_change`` is the true
        class's place by least change among those not predicted.
        """
        import pandas as pd

        found, own = self.reach, self.reach.witnesses
        classes, wrong = found.classes, found.wrong
        logits = self.exposure.frozen_logits.cpu().numpy()[classes.member, classes.node]
        rows = np.arange(len(logits))
        true = logits[rows, found.true]
        logits[rows, found.true] = -np.inf
        chance = found.chance_per_node
        everyone = range(len(logits))
        least = [self._least(i) for i in everyone]
        place = self.changes.places[1]
        frame = pd.DataFrame(
            {
                "member": classes.member,
                recipients_called(own.names): self._named(classes.node),
                "true": found.true,
                "predicted": found.predicted,
                "frozen_margin": true - logits.max(1),
                "verdict": np.where(wrong, own.verdict, "right"),
                "gamma": own.margin,
                "mass_moved": [np.nan if one is None else one.share for one in least],
                "smallest_change": [_change(one) for one in least],
                "key_messages": [self._key(i) for i in everyone],
                "chance": chance,
                "classes_in_reach": classes.count,
                "place_by_change": [
                    place[self._errors[i]] if i in self._errors else np.nan for i in everyone
                ],
            }
        )
        return frame if found.num_members > 1 else frame.drop(columns="member")

    def to_csv(self, path: str | Path) -> Path:
        """Write :meth:`to_frame` to a file."""
        target = check_target(path)
        frame = self.to_frame()
        with replacing(target) as temporary:
            frame.to_csv(temporary, index=False)
        return target

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the page of these nodes; options as for :func:`gnn_repair.report`."""
        words: dict[str, Any] = {"selection": self.selection, "edge_index": self.edge_index}
        if self.reach.num_members == 1:  # what is known already is not asked again
            words["answers"] = (self.reach, self.changes)
        return report(self.exposure, self.y, path, nodes=self.nodes, **{**words, **options})

    def plot(self, ax: Axes | None = None) -> Axes:
        """How much of the mass must move for the true class, beside chance."""
        return plots.changes(self.changes, ax=ax)

    def explain(self, node: int, member: int = 0) -> str:
        """One node in a few sentences, the smallest change first."""
        i = self._rows.get((member, node))
        names = self.reach.witnesses.names
        if i is None:
            raise InputError(
                f"{names.node(node)} is not among the {self.selection}; choose another"
            )
        found = self.reach
        true, predicted = int(found.true[i]), int(found.predicted[i])
        if true == predicted:
            return f"{names.node(node)}: predicted {predicted}, which is right. " + self._count(i)
        head = f"{names.node(node)}: predicted {predicted}, true {true}."
        least, witness = self._least(i), self.reach.witnesses[i]
        if least is None:
            return f"{head} {_sentence(str(witness))} {self._count(i)}"
        return (
            f"{head} {_sentence(f'{_change(least)} would be enough')} "
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

    def _key(self, i: int) -> str:
        """The active messages of the witness, the largest λ first."""
        own = self.reach.witnesses
        part = slice(own.indptr[i], own.indptr[i + 1])
        pairs = zip(self._named(own.sources[part]), own.coefficients[part], strict=True)
        active = sorted((pair for pair in pairs if pair[1] > ACTIVE), key=lambda pair: -pair[1])
        words = [f"{own.names.sender(who)} (λ {lam:.4g})" for who, lam in active[:KEY]]
        return ", ".join(words) + (f" and {len(active) - KEY} more" if len(active) > KEY else "")

    def _repr_html_(self) -> str:
        return shown(self, self.to_frame())

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
            best = int(np.argmin(own))
            node = int(self._named(self.changes.node[best]))
            sentence = self.explain(node, int(self.changes.member[best]))
            lines.append("Closest: " + sentence.split(" The largest margin:")[0])
        return "\n".join(lines)

    __repr__ = __str__

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
                f" By least change the true class has place {self.changes.rank.words()} of "
                f"{classes - 1} ({classes / 2:.1f} by chance)."
                if self.changes.complete
                else ""
            )
        )


def _change(least: Any) -> str:
    """Who is given more; nothing where there is no change."""
    return "" if least is None else gain_words(least.gains, least.names)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


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
        model: what :func:`expose` takes, or an exposure.
        data: the PyG data the model runs on.
        y: [N] true classes, −1 where unknown; ``data.y`` unless given.
        nodes: a mask [N] or [N, S], or node numbers; the test nodes of data (``test_mask``) unless
            given, all labelled nodes where it has none.
        tell: called with a sentence before each step.
        **options: of :func:`expose`, such as ``node_type`` or ``forward``.

    Returns:
        Print it; ``to_frame()``, ``to_csv(path)``, ``report(path)``, ``plot()``,
        ``explain(node)``.
    """
    say = tell or (lambda _: None)
    say("exposing the final aggregation")
    if isinstance(model, Exposure):
        exposure: Exposure = model
    elif isinstance(model, Frozen):
        exposure, data = expose(model), model.data if data is None else data
    else:
        exposure = expose(model, data, **options)
    require_outputs(exposure, "classes")
    held, noun = _held(data, exposure), plural(noun_of(exposure))
    truth = classes_for(exposure, _labels(held) if y is None else y)
    words = f"chosen {noun}"
    if nodes is None:
        splits = model.splits if isinstance(model, Frozen) else None
        nodes, words = _test_nodes(held, exposure, splits, noun)
    say(f"asking whether each of {exposure.num_classes} classes can win")
    found = reach(exposure, truth, nodes)
    assert isinstance(found, Reach)
    say(f"looking for the smallest change at {counted(int(found.wrong.sum()), 'error')}")
    if exposure.head is not None:  # where every class would take minutes
        changes = least_changes(found, exposure, others=False)
    else:
        changes = found.changes
    return Diagnosis(exposure, truth.cpu(), nodes, words, found, changes, _edges(held, exposure))


def _held(data: Any, exposure: Exposure) -> Any:
    """What holds labels and masks: the graph, its classified node type, or all graphs' labels."""
    batches = batches_of(data)
    if batches is not None:
        truths = [field(batch, "y") for batch in batches]
        whole = all(isinstance(y, Tensor) for y in truths)
        return {"y": torch.cat([y.view(-1) for y in truths]) if whole else None}
    kinds = getattr(data, "node_types", ())
    return data[exposure.names.recipient] if exposure.names.recipient in kinds else data


def _labels(held: Any) -> Tensor:
    y = field(held, "y")
    if y is None:
        raise InputError("data has no y; pass y, the true class of every node (−1 where unknown)")
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
