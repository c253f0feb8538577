"""What a record holds of a method beside its accuracies: rungs, single models, calibration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure import Exposure
from gnn_repair.repair import FittedRepair
from gnn_repair.repair.controls import KeptPrediction
from gnn_repair.repair.ladder import FittedLadder
from gnn_repair.repair.ladder.decision import calibration_error, mixed, temperature
from gnn_repair.repair.rungs import FROZEN, READS, RUNGS

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
    alone = [i for i, name in enumerate(each) if "similar" not in _all_read(name)]
    weights = fitted.weights[member, alone]
    if float(weights.sum()) > 0:
        rest = mixed(torch.stack(list(each.values()))[alone], weights / weights.sum())
        numbers["test without similar"] = _share(rest.argmax(1) == labels)
    if "smoothed" in each:
        gain = fitted.member(member).findings().of("smoothed").gain / 100
        numbers["out-of-fold together"] = numbers["out-of-fold smoothed"] - gain
    numbers["nested weighted"] = float(fitted.nested[member])
    numbers["refitted"] = bool(fitted.refitted[member])
    numbers |= _by_class(fitted, member)
    if labels.numel():
        frozen, scale = each["frozen"], _frozen_temperature(fitted, member)
        numbers["calibration error"] = calibration_error(together, labels)
        numbers["calibration error frozen"] = calibration_error(frozen, labels)
        numbers["calibration error frozen scaled"] = calibration_error(
            (frozen / scale).log_softmax(1), labels
        )
    numbers["temperature"] = float(fitted.temperature[member])
    return numbers


def _all_read(name: str) -> tuple[str, ...]:
    """What a candidate reads; a combination of others reads what they do."""
    return () if name == FROZEN else RUNGS[name].reads or READS


def _by_class(fitted: FittedLadder, member: int) -> Numbers:
    """Validation nodes a class, and each rung's gain over Frozen on them, out of fold."""
    right, _ = fitted.right_out_of_fold()
    labels = fitted.constants["labels"][member]
    numbers: Numbers = {}
    for label in range(fitted.num_classes):
        own = right[member][:, labels == label].double()
        numbers[f"nodes of class {label}"] = own.shape[1]
        for name, hits in zip(fitted.candidates[1:], own[1:], strict=True):
            key = f"out-of-fold gain {name} class {label}"
            numbers[key] = float((hits - own[0]).mean()) if hits.numel() else None
    return numbers


def _frozen_temperature(fitted: FittedLadder, member: int) -> float:
    """τ of the frozen prediction on validation nodes: what temperature scaling would take."""
    labels = fitted.constants["labels"][member]
    judged = labels >= 0
    told = fitted.constants["out_of_fold"][member, 0][judged]
    return float(temperature(told, labels[judged]))


def _share(right: Tensor, chosen: Tensor | None = None) -> float | None:
    """Mean of ``right`` [..., m] over the chosen nodes; None where there are none."""
    right = right if chosen is None else right[..., chosen]
    return float(right.double().mean()) if right.numel() else None
