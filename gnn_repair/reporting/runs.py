"""The page and the evidence of one run of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnn_repair.reporting.beside import PARTS, Beside
from gnn_repair.reporting.evidence import Evidence, gather
from gnn_repair.reporting.writing import report
from gnn_repair.results.protocol import Protocol
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


def beside_of(run: Rerun, other: Rerun) -> Beside:
    """Another run at the nodes that ``run`` shows, with what each of them is for it."""
    evidence = gather(
        other.exposure,
        run.data.y,
        run.test_mask,
        member=other.member,
        repairs=other.repairs,
        edge_index=run.data.edge_index,
    )
    part = np.full(len(run.data.y), PARTS.index("no part"))
    for name, mask in other.worked.masks.items():
        part[mask[:, other.member].cpu().numpy()] = PARTS.index(_PART_WORDS[name])
    return Beside(evidence, part[evidence.nodes], other.split)


_PART_WORDS = {"train": PARTS[0], "val": PARTS[1], "test": PARTS[3]}


def made_of(protocol: Protocol, command: str = "") -> dict[str, str]:
    """What a page's footer says of a study's protocol."""
    made = {
        "protocol": protocol.digest,
        "seed": f"{protocol.backbones.seed} (backbone), {protocol.repairs.seed} (repairs)",
    }
    return {**made, "command": command} if command else made


def report_run(
    run: Rerun,
    path: str | Path,
    results: pd.DataFrame | None = None,
    *,
    command: str = "",
    beside: Mapping[str, Rerun] | None = None,
    single_file: bool | None = True,
) -> Path:
    """Write the page of a run; it says which run it is.

    Args:
        run: whose nodes are shown.
        path: the file to write.
        results: the study around it.
        command: what made the page, for its footer.
        beside: by title, further runs on the same graph to compare nodes with.
        single_file: as in ``report``.
    """
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
        beside={title: beside_of(run, other) for title, other in (beside or {}).items()},
        single_file=single_file,
    )
