"""A fitted ladder whose tables are planted: nothing is trained, so it is the same everywhere."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from gnn_repair.repair import EvidenceLadder
from gnn_repair.repair.folds import signature
from gnn_repair.repair.ladder.rungs import decide
from tests.helpers.report.report_worlds import make_exposure

FOLDS = 3


@cache
def by_hand(members: int = 3, nodes: int = 90) -> Any:
    """An exposure, its labels, and a ladder: it stays Frozen for member 0, not for the others.

    Members are judged on other nodes, as many as they like; class 3 is judged for member 1 alone.
    """
    exposure, y = make_exposure(nodes, members=members)
    generator = torch.Generator().manual_seed(6)
    rungs = EvidenceLadder().rungs
    place = torch.arange(nodes)
    folds = torch.stack([torch.where(place % 3 < 1 + s, place % FOLDS, -1) for s in range(members)])
    folds = torch.where((y == 3) & (torch.arange(members)[:, None] != 1), -1, folds)
    labels = torch.where(folds >= 0, y, -1)
    strength = 0.4 * torch.arange(len(rungs) + 1) * torch.arange(members).clamp(max=1)[:, None]
    noise = torch.randn(members, len(rungs) + 1, nodes, 4, generator=generator, dtype=torch.float64)
    told = noise + strength[:, :, None, None] * torch.nn.functional.one_hot(y, 4)
    told[:, 0] = exposure.frozen_logits
    told = told.log_softmax(3)
    decision = decide(told, y, folds, FOLDS)
    constants = {
        "log_probs": told[:, 1:].flip(1).float(),
        "out_of_fold": told.float(),
        "folds": folds,
        "labels": labels,
        "signature": signature(exposure),
        "count": torch.full((members,), 17),
        "refitted": torch.arange(members) % 2,
        **decision._asdict(),
    }
    run = {"best_epoch": torch.arange(members), "epochs_run": torch.arange(members) + 5}
    fitted = EvidenceLadder(folds=FOLDS).fitted_on(exposure, **run, constants=constants)
    return exposure, y, fitted
