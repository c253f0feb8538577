"""The page and the evidence of one run of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnn_repair.reporting.evidence import Evidence, gather
from gnn_repair.reporting.writing import report
from gnn_repair.study.protocol import Protocol
from gnn_repair.study.rerun import Rerun

if TYPE_CHECKING:
    import pandas as pd


def class_names_of(run: Rerun) -> list[str] | None:
    """What the dataset calls its classes, where it says so."""
    return run.data.get("class_names")


def evidence_of(run: Rerun) -> Evidence:
    """What a report shows of a run."""
    return gather(
        run.exposure,
        run.data.y,
        run.test_mask,
        member=run.member,
        repairs=run.repairs,
        edge_index=run.data.edge_index,
    )


def made_of(protocol: Protocol, command: str = "") -> dict[str, str]:
    """What a page's footer says of a study's protocol."""
    made = {
        "protocol": protocol.digest,
        "seed": f"{protocol.backbones.seed} (backbone), {protocol.repairs.seed} (repairs)",
    }
    return {**made, "command": command} if command else made


def report_run(
    run: Rerun, path: str | Path, results: pd.DataFrame | None = None, *, command: str = ""
) -> Path:
    """Write the page of a run; it says which run it is, and the command that made it if given."""
    return report(
        run.exposure,
        run.data.y,
        path,
        nodes=run.test_mask,
        member=run.member,
        repairs=run.repairs,
        edge_index=run.data.edge_index,
        class_names=class_names_of(run),
        dataset=run.case.dataset,
        backbone=run.case.backbone,
        title=f"{run.exposure.origin}, split {run.split}",
        selection="test nodes",
        split=run.split,
        note=run.provenance(),
        made=made_of(run.worked.settings.protocol, command),
        results=results,
    )
