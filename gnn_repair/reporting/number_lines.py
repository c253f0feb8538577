"""Two classes need no plane: a node's leads over the other class, as a figure on one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_repair.reporting.evidence import Evidence
from gnn_repair.reporting.planes import group_slices, vertices

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def lead_range(evidence: Evidence, i: int) -> tuple[float, float] | None:
    """The smallest and the largest lead of node i's true class over the other one, over all
    mixtures of its messages; None behind a tail, where it is not known."""
    if evidence.tail is not None:
        return None
    own = int(evidence.true_class[i])
    low = high = float(evidence.fixed_logits[i, own] - evidence.fixed_logits[i, 1 - own])
    for terms in group_slices(evidence, i):
        mass, table = evidence.coefficients[terms].sum(), evidence.contributions
        lead = table[evidence.rows[terms], own] - table[evidence.rows[terms], 1 - own]
        if len(lead):
            low, high = low + float(mass * lead.min()), high + float(mass * lead.max())
    return low, high


def draw_line(
    axes: Axes,
    evidence: Evidence,
    i: int,
    points: Sequence[tuple[str, tuple[str, str], np.ndarray[Any, Any]]],
    names: Sequence[str],
) -> None:
    """One row a prediction, given as title, (marker, colour) and logits; all mixtures as a bar."""
    own = int(evidence.true_class[i])
    rows = [title for title, _, _ in points]
    for row, (_, (marker, colour), logits) in enumerate(points):
        axes.plot(logits[own] - logits[1 - own], row, marker, color=colour, markersize=9,
                  markeredgecolor="#16191d", markeredgewidth=0.7)  # fmt: skip
    reach = lead_range(evidence, i)
    if reach is not None:
        rows.append("all mixtures")
        axes.barh(
            len(rows) - 1, reach[1] - reach[0], 0.4, left=reach[0], color="#0072b2", alpha=0.4
        )
    rows.append("terms, each alone")
    alone = vertices(evidence, i)
    axes.plot(alone[:, own] - alone[:, 1 - own], np.full(len(alone), len(rows) - 1), ".",
              color="#0072b2")  # fmt: skip
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"lead of {names[own]} over {names[1 - own]} (logits)")
    axes.set_title(f"{evidence.noun} {evidence.nodes[i]}, which is {names[own]}")
