"""Where the evidence was lost, as a fitted ladder among the repairs found it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnn_repair.methods import RUNGS
from gnn_repair.methods import rung_title as title_of
from gnn_repair.reporting.corrections import RepairLike


def lost_evidence(
    repairs: Mapping[str, RepairLike] | None, member: int, classes: int
) -> dict[str, Any] | None:
    """What the page shows of the first ladder among the repairs; None where there is none.

    Args:
        repairs: by name.
        member: which member's findings.
        classes: C, for the columns.
    """
    ladder: Any = next((r for r in (repairs or {}).values() if hasattr(r, "findings")), None)
    if ladder is None:
        return None
    # A ladder of one member speaks for whichever is shown, as other repairs do.
    ladder = ladder.member(member if ladder.num_members > 1 else 0)
    findings = ladder.findings()
    by_class = {(row.rung, row.label): row for row in findings.rows}
    rows = [
        {
            "rung": title_of(row.rung),
            "above": title_of(row.above),
            "words": str(row),
            "gain": row.gain,
            "error": row.error,
            "clear": row.clear,
            "classes": [
                by_class[row.rung, label].gain if (row.rung, label) in by_class else None
                for label in range(classes)
            ],
        }
        for row in findings.overall()
    ]
    bound = [title_of(name) for name in ladder.candidates[1:] if not RUNGS[name].inductive]
    return {
        "rows": rows,
        "advice": list(findings.advice()),
        "chosen": title_of(ladder.chosen[0]),
        "transductive": bound,
        "nodes": round(findings.overall()[0].nodes) if rows else 0,
    }
