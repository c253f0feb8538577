"""All rungs by name."""

from __future__ import annotations

from gnn_repair.repair.ladder.rungs import (
    Labels,
    LabelsFeatures,
    LabelsFeaturesReweighting,
    LabelsReweighting,
    PaperFit,
    Rung,
)
from gnn_repair.repair.ladder.summary_rungs import (
    Summary,
    SummaryAll,
    SummaryFeatures,
    SummaryKin,
    SummaryLabels,
)

RUNGS: dict[str, type[Rung]] = {
    "paper": PaperFit,
    "summary": Summary,
    "summary-labels": SummaryLabels,
    "summary-features": SummaryFeatures,
    "summary-kin": SummaryKin,
    "summary-all": SummaryAll,
    "set": Rung,
    "labels": Labels,
    "labels-features": LabelsFeatures,
    "labels-reweighting": LabelsReweighting,
    "labels-features-reweighting": LabelsFeaturesReweighting,
}
"""From the least that is read to the most; Frozen stands below them all."""

FAST = tuple(name for name in RUNGS if name.startswith("summary"))
"""Rungs on a frozen summary of the messages: seconds where the others take minutes."""
LEARNED = ("paper", *(name for name in RUNGS if name not in ("paper", *FAST)))
"""Rungs that learn an encoder of the message set, and the paper's own fit."""
