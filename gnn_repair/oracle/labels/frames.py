"""Label solutions, ranges and reach as pandas frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from gnn_repair.exposure.names import recipients_called
from gnn_repair.thresholds import ACTIVE

if TYPE_CHECKING:
    from gnn_repair.oracle.labels.ranges import ValueRange
    from gnn_repair.oracle.labels.reach import LabelReach
    from gnn_repair.oracle.labels.solution import LabelSolution


def solution_frame(solution: LabelSolution) -> pd.DataFrame:
    """One row a question; ``terms`` holds (source, λ) of the active terms, the largest first."""
    return pd.DataFrame(
        {
            **_subjects(solution),
            "wanted": solution.wanted,
            "verdict": solution.verdict,
            "margin": solution.margin,
            "bound": solution.bound,
            "value": solution.value,
            "support": solution.support,
            "terms": [active_terms(solution, i) for i in range(len(solution))],
        }
    )


def range_frame(ranges: ValueRange) -> pd.DataFrame:
    """One row an output of a node: the frozen value, both ends, and who is listened to there."""
    lower, upper = ranges.lower, ranges.upper
    frame: dict[str, Any] = {
        **_subjects(lower),
        "value": ranges.frozen,
        "low": ranges.low,
        "high": ranges.high,
    }
    if not ranges.exact:
        frame |= {"low_bound": ranges.low_bound, "high_bound": ranges.high_bound}
    frame["low_terms"] = [active_terms(lower, i) for i in range(len(lower))]
    frame["high_terms"] = [active_terms(upper, i) for i in range(len(upper))]
    return pd.DataFrame(frame)


def _subjects(solution: LabelSolution) -> dict[str, Any]:
    if solution.links is not None:
        ends = {"source": solution.links[:, 0], "target": solution.links[:, 1]}
        return {"member": solution.member, "link": solution.node, **ends}
    number = "output" if solution.noun == "value" else solution.noun
    who = recipients_called(solution.names)
    named = solution.named(solution.node)
    return {"member": solution.member, who: named, number: solution.target}


def active_terms(solution: LabelSolution, index: int) -> tuple[tuple[Any, float], ...]:
    """(source, λ) of a question's active terms, the largest λ first."""
    part = slice(solution.indptr[index], solution.indptr[index + 1])
    sources = solution.named(solution.sources[part]).tolist()
    if solution.names.typed:
        sources = [solution.names.sender(source) for source in sources]
    pairs = zip(sources, solution.coefficients[part].tolist(), strict=True)
    return tuple(sorted((p for p in pairs if p[1] > ACTIVE), key=lambda pair: -pair[1]))


def reach_frame(reach: LabelReach) -> pd.DataFrame:
    """One row a label: shares with their counts, errors, F1 now and with what is within reach."""
    rows = []
    for one in reach.labels:
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
