"""What a record holds of a method beside its accuracies: rungs, single models, calibration."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_repair.exposure import Exposure
from gnn_repair.repair import FittedRepair
from gnn_repair.repair.controls import KeptPrediction
from gnn_repair.repair.ladder import FittedLadder
from gnn_repair.repair.ladder.combination import calibration_error

Numbers = dict[str, Any]
"""By name; plain numbers and truth values."""


def further_scores(
    fitted: FittedRepair, exposure: Exposure, y: Tensor, test: Tensor
) -> list[Numbers]:
    """One table a member; empty for most methods.

    Args:
        fitted: the method.
        exposure: what it was fitted on.
        y: [N].
        test: [N, S] bool.
    """
    members = range(fitted.num_members)
    y, masks = y.to(exposure.recipients.device), test.t().to(exposure.recipients.device)
    if isinstance(fitted, FittedLadder):
        return [_of_ladder(fitted, exposure, y, masks, member) for member in members]
    if isinstance(fitted, KeptPrediction) and fitted.single is not None:
        said = fitted.single.to(y.device)
        return [{"test single": _share(said[s] == y, masks[s])} for s in members]
    return [{} for _ in members]


def _of_ladder(
    fitted: FittedLadder, exposure: Exposure, y: Tensor, masks: Tensor, member: int
) -> Numbers:
    chosen = masks[member][exposure.recipients]
    labels = y[exposure.recipients][chosen]
    each = {name: told[member][chosen] for name, told in fitted.rung_log_probs(exposure).items()}
    together = fitted.logits(exposure)[member][chosen].log_softmax(1)
    numbers: Numbers = {}
    for place, (name, told) in enumerate(each.items()):
        numbers[f"out-of-fold {name}"] = float(fitted.out_of_fold[name][member])
        numbers[f"test {name}"] = _share(told.argmax(1) == labels)
        numbers[f"weight {name}"] = float(fitted.weights[member, place])
        numbers[f"chosen {name}"] = fitted.chosen[member] == name
    for rule, accuracy in fitted.nested.items():
        numbers[f"nested {rule}"] = float(accuracy[member])
    if labels.numel():
        numbers["calibration error"] = calibration_error(together, labels)
        numbers["calibration error frozen"] = calibration_error(each["frozen"], labels)
    numbers["temperature"] = float(fitted.temperature[member])
    return numbers


def _share(right: Tensor, chosen: Tensor | None = None) -> float | None:
    """Mean of ``right`` [..., m] over the chosen nodes; None where there are none."""
    right = right if chosen is None else right[..., chosen]
    return float(right.double().mean()) if right.numel() else None
