"""The page and the evidence of one run of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnn_repair.reporting.evidence import Evidence, gather
from gnn_repair.reporting.writing import report
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


def report_run(run: Rerun, path: str | Path, results: pd.DataFrame | None = None) -> Path:
    """Write the page of a run; it says which run it is."""
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
        note=run.provenance(),
        results=results,
    )
