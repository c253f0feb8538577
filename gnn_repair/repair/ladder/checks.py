"""What must hold of a ladder that was read from a file."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.repair.kept_tables import check_table
from gnn_repair.repair.ladder.combination import RULES
from gnn_repair.repair.ladder.fitted import FittedLadder


def check_ladder(fitted: FittedLadder) -> None:
    """Raise :class:`InputError` where tables do not fit together."""
    (count,) = check_table(fitted, "weights", torch.float64, None)
    if count != len(fitted.candidates):
        raise InputError(f"weights stand for {count} candidates, not {len(fitted.candidates)}")
    (nodes,) = check_table(fitted, "signature", torch.float32, None)
    classes = fitted.num_classes
    check_table(fitted, "log_probs", torch.float32, count - 1, nodes, classes)
    check_table(fitted, "out_of_fold", torch.float32, count, nodes, classes)
    check_table(fitted, "folds", torch.int64, nodes)
    check_table(fitted, "labels", torch.int64, nodes)
    check_table(fitted, "chosen", torch.int64)
    check_table(fitted, "count", torch.int64)
    check_table(fitted, "temperature", torch.float64)
    check_table(fitted, "nested_accuracy", torch.float64, len(RULES))
    names = {
        "weights", "signature", "log_probs", "out_of_fold", "folds", "labels", "chosen", "count",
        "temperature", "nested_accuracy",
    }  # fmt: skip
    if unknown := sorted(fitted.constants.keys() - names):
        raise InputError(f"a ladder has no constant {unknown[0][:80]!r}")
    _check_values(fitted, fitted.constants["weights"])


def _check_values(fitted: FittedLadder, weights: Tensor) -> None:
    """Shares that sum to 1, candidates, folds and labels that there are."""
    sums = (weights.sum(1) - 1).abs()
    # Sums of a handful of doubles.
    if bool((weights < 0).any()) or bool((sums > 1e-9).any()):
        raise InputError("a ladder's weights must be shares that sum to 1")
    if not bool((fitted.temperature > 0).all()):
        raise InputError("a temperature must be positive")
    limits = {
        "chosen": (0, weights.shape[1]),
        "folds": (-1, fitted.ladder.folds),
        "labels": (-1, fitted.num_classes),
        "count": (0, 2**62),
    }
    for name, (least, end) in limits.items():
        value = fitted.constants[name]
        if not bool(((value >= least) & (value < end)).all()):
            raise InputError(f"{name} of a ladder must lie in {least}..{end - 1}")
    accuracy = fitted.constants["nested_accuracy"]
    if not bool(((accuracy >= 0) & (accuracy <= 1)).all()):
        raise InputError("nested_accuracy of a ladder must be shares")
    told, judged = fitted.constants["folds"] >= 0, fitted.constants["labels"] >= 0
    if not torch.equal(told, judged) or not bool(judged.any(1).all()):
        raise InputError("a ladder's folds and labels are of other nodes")
