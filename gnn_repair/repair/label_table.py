"""Micro- and macro-F1 of a frozen model and its repairs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.pieces import nodes_for, require_outputs, truths_for
from gnn_repair.f1 import F1, f1_of
from gnn_repair.repair.base import FittedRepair
from gnn_repair.repair.targets import check_exposure_given


def label_f1(
    exposure: Exposure, y: Any, nodes: Any = None, fitted: FittedRepair[Any] | None = None
) -> tuple[F1, ...]:
    """F1 of every member at some nodes (all where None).

    Args:
        exposure: outputs are labels.
        y: [N, K] zeros and ones, NaN or −1 where unknown.
        nodes: those that count: a mask [N] or node numbers.
        fitted: a repair; the frozen model where None.
    """
    check_exposure_given(exposure)
    require_outputs(exposure, "labels")
    truths = truths_for(exposure, y)[exposure.recipients]
    frozen = exposure.frozen_logits[:, exposure.recipients]
    logits = frozen if fitted is None else fitted.member_logits(exposure)
    counted = torch.ones_like(exposure.recipients, dtype=torch.bool)
    if nodes is not None:
        counted = torch.isin(exposure.recipients, nodes_for(exposure, nodes))
    return tuple(f1_of(member[counted] > 0, truths[counted]) for member in logits)


def label_table(
    exposure: Exposure, y: Tensor, nodes: Any, repairs: Sequence[FittedRepair[Any]]
) -> pd.DataFrame:
    """One row a method: mean micro- and macro-F1 over members, gains, trained parameters."""
    if not all(isinstance(fitted, FittedRepair) for fitted in repairs):
        raise InputError("repairs must be a list of what fit returned")
    rows = [_row("Frozen", label_f1(exposure, y, nodes), 0)]
    for fitted in repairs:
        found = label_f1(exposure, y, nodes, fitted)
        rows.append(_row(fitted.repair.title, found, fitted.num_parameters))
    for row in rows:
        row["gain"] = row["micro_f1"] - rows[0]["micro_f1"]
    return pd.DataFrame(rows)


def _row(title: str, scores: Sequence[F1], parameters: int) -> dict[str, Any]:
    return {
        "method": title,
        "micro_f1": fmean(score.micro for score in scores),
        "macro_f1": fmean(score.macro for score in scores),
        "parameters": parameters,
    }
