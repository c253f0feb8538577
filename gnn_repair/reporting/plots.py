"""The page's pictures on matplotlib axes, for notebooks and papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.budget import check_type, check_whole
from gnn_repair.checks import as_member
from gnn_repair.errors import InputError, kind_of
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.pieces import classes_for, require_outputs
from gnn_repair.methods import rung_title as title_of
from gnn_repair.oracle.metrics import Changes, LabelReach
from gnn_repair.oracle.questions.ranges import ValueRange
from gnn_repair.reporting.evidence import check_names, gather
from gnn_repair.reporting.figures import REACHED, RIVAL, draw_margins, draw_polytope

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnn_repair.repair.ladder.ladder import FittedLadder


def __dir__() -> list[str]:
    return ["changes", "intervals", "labels", "node", "reach", "rungs"]


def node(
    exposure: Exposure,
    node: int,
    target: Tensor | int | None = None,
    *,
    repairs: Mapping[str, Any] | None = None,
    class_names: Sequence[str] | None = None,
    member: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """The logits that reweighting can give a node, relative to one class and its strongest rivals.

    With a nonlinear head logits are no polytope; then each message is drawn with all of its
    group's mass.

    Args:
        exposure: the frozen model's final aggregation, with a head or without.
        node: the node.
        target: the class in question, or [N] classes such as ``data.y``; the model's prediction
            unless given.
        repairs: by name, fitted repairs whose predictions are drawn as well.
        class_names: names of the classes.
        member: which member.
        ax: where to draw; new axes unless given.
    """
    check_type("exposure", exposure, Exposure, "what gnn_repair.expose returns")
    check_whole("plots.node", "node", node, 0)
    require_outputs(exposure, "classes")
    if target is None:
        target = exposure.frozen_logits[as_member(member, exposure.num_members)].argmax(1)
    if isinstance(target, int) and not isinstance(target, bool):
        target = torch.full((exposure.num_nodes,), target)
    y = classes_for(exposure, target, "target")
    evidence = gather(exposure, y, torch.tensor([node]), member=member, repairs=repairs)
    axes = _axes(ax)
    draw_polytope(axes, evidence, 0, check_names(class_names, evidence.num_classes, "class"))
    return axes


def reach(
    exposure: Exposure,
    y: Tensor,
    nodes: Tensor | None = None,
    *,
    member: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """A histogram of γ, the largest margin of the true class, over nodes.

    With a head, of the best margins found; undecided nodes are omitted.

    Args:
        exposure: the frozen model's final aggregation, with a head or without.
        y: [N] true classes, −1 where unknown.
        nodes: a mask [N] or [N, S], or node numbers; all unless given.
        member: which member.
        ax: where to draw; new axes unless given.
    """
    evidence = gather(exposure, y, nodes, member=member)
    axes = _axes(ax)
    draw_margins(axes, evidence)
    return axes


def changes(changes: Changes, *, ax: Axes | None = None) -> Axes:
    """Share of errors that a change of at most some mass undoes: the true class beside chance.

    Args:
        changes: what ``reach(…).changes`` or ``diagnose(…).changes`` gives.
        ax: where to draw; new axes unless given.
    """
    check_type("changes", changes, Changes, "reach(…).changes or diagnose(…).changes")
    axes = _axes(ax)
    names = ("true class", "chance: neither true nor predicted")
    for shares, name, colour in zip(changes.shares(), names, (REACHED, RIVAL), strict=True):
        finite = np.sort(shares[np.isfinite(shares)])
        if len(shares):
            steps = 100 * np.arange(len(finite) + 1) / len(shares)
            places = 100 * np.append(np.append(0.0, finite), 1.0)
            axes.step(places, np.append(steps, steps[-1]), where="post", color=colour, label=name)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_xlabel("mass that may move (%)")
    axes.set_ylabel("can win (% of errors)")
    axes.legend(loc="upper left", frameon=False)
    return axes


def labels(reach: LabelReach, *, ax: Axes | None = None) -> Axes:
    """Per label, errors that reweighting could undo beside right ones that it could lose."""
    check_type("reach", reach, LabelReach, "what reach says of labels")
    axes, places = _axes(ax), np.arange(len(reach.labels))
    for step, name, colour, rates in (
        (-0.2, "errors that could be undone", REACHED, [row.error for row in reach.labels]),
        (0.2, "chance: right ones that could be lost", RIVAL, [row.chance for row in reach.labels]),
    ):
        axes.bar(places + step, [100 * r.value for r in rates], 0.4, color=colour, label=name)
    axes.set_xticks(places, [str(row.label) for row in reach.labels])
    axes.set_ylim(0, 100)
    axes.set_xlabel("label")
    axes.set_ylabel("within reach (%)")
    axes.legend(frameon=False)
    return axes


def intervals(found: ValueRange, true: Any, *, ax: Axes | None = None) -> Axes:
    """The values that each output can take, over its true value [L]."""
    check_type("found", found, ValueRange, "what value_range returns")
    axes, truth = _axes(ax), np.asarray(true, float)
    low, high = found.ends
    inside = (low <= truth) & (truth <= high)
    for rows, name, colour in (
        (inside, "true value within reach", REACHED),
        (~inside & ~np.isnan(truth), "out of reach", RIVAL),
    ):
        axes.vlines(truth[rows], found.low[rows], found.high[rows], color=colour, label=name)
    ends = [np.nanmin(truth, initial=0.0), np.nanmax(truth, initial=1.0)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set_xlabel("true value")
    axes.set_ylabel("values that reweighting gives")
    axes.legend(frameon=False)
    return axes


def rungs(fitted: FittedLadder, *, ax: Axes | None = None) -> Axes:
    """The gain of each kind of evidence on held-out nodes, in points, with its standard error."""
    findings = getattr(fitted, "findings", None)
    if not callable(findings):
        raise InputError(f"fitted is {kind_of(fitted)}; pass a fitted EvidenceLadder")
    rows = findings().overall()
    axes = _axes(ax)
    gains = np.array([row.gain for row in rows])
    colours = [REACHED if row.clear and row.gain > 0 else RIVAL if row.clear else "#8b929c"
               for row in rows]  # fmt: skip
    axes.barh(range(len(rows)), gains, 0.55, xerr=[row.error for row in rows], color=colours)
    axes.set_yticks(range(len(rows)), [title_of(row.rung) for row in rows])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("points of accuracy on held-out nodes; grey: not significant")
    return axes


def _axes(ax: Axes | None) -> Axes:
    from matplotlib.axes import Axes

    if ax is not None:
        check_type("ax", ax, Axes, "matplotlib axes, or None for new ones")
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(5.2, 3.6), layout="constrained")[1]
