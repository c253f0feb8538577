"""What a record holds beside accuracies: the oracle's answers, the use made of them, the ladder.

A record holds counts, so that shares can be formed over any set of runs; tables form them
(:mod:`gnn_repair.results.averages`). Earlier records lack some of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure import Exposure
from gnn_repair.methods import BLOCKS, FROZEN, RUNGS
from gnn_repair.oracle.metrics import Reach, reach
from gnn_repair.oracle.problems import CAN, STATUS
from gnn_repair.oracle.rates import ReachCounts, count_reach
from gnn_repair.oracle.solver import solve
from gnn_repair.published import REACHABLE
from gnn_repair.repair import FittedRepair
from gnn_repair.repair.adapters import FittedTranslation
from gnn_repair.repair.controls import KeptPrediction
from gnn_repair.repair.ladder import FittedLadder
from gnn_repair.repair.ladder.rungs import calibration_error, mixed, temperature
from gnn_repair.results.protocol import OracleProtocol
from gnn_repair.results.records import Numbers
from gnn_repair.study.displacement import solve_displacements

Flags = NDArray[np.bool_]


class OracleFindings(NamedTuple):
    """What the oracle says of a case."""

    summaries: list[dict[str, Any] | None]
    """One a member; None where it was not asked."""
    reachable_errors: Tensor | None
    """[S, N] bool: the frozen model is wrong, and proved that a reweighting is right."""


def summarise_oracle(
    exposure: Exposure,
    y: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    settings: OracleProtocol,
) -> OracleFindings:
    """Solve the true class of every node in the masks [N, S]; one summary a member."""
    parts = {"val": val_mask, "test": test_mask}
    if exposure.head is not None:
        summaries, reachable_errors = _summarise_heads(exposure, y, parts, settings)
    else:
        summaries, reachable_errors = _summarise(exposure, y, parts, settings)
    wrong = exposure.frozen_logits.argmax(2).cpu() != y.cpu()
    if settings.reachable_above == REACHABLE:  # chance counts wins above this alone
        errors = wrong.t() & test_mask.cpu()
        for summary, chance in zip(summaries, chance_figures(exposure, y, errors), strict=True):
            summary["test"] |= chance
    return OracleFindings([*summaries], reachable_errors)


def chance_figures(exposure: Exposure, y: Tensor, errors: Tensor) -> list[Numbers]:
    """Of errors [N, S]: how often another class could win there, and how many classes could.

    One table a member; ``_possible`` is what is not excluded, where that is more.
    """
    if not bool(errors.any()):
        return [{} for _ in range(exposure.num_members)]
    found = reach(exposure, y, errors.to(exposure.recipients.device))
    assert isinstance(found, Reach)  # of classes
    tables = []
    for member, figures in enumerate(found.members):
        own = found.classes.member == member
        table: Numbers = {"reachable_classes": _mean_of(found.classes.count[own])}
        for name, mean in (("chance_reach", figures.chance), ("excess", figures.excess)):
            table[name] = None if np.isnan(mean.low) else mean.low
            if mean.high > mean.low:
                table[f"{name}_possible"] = mean.high
        tables.append(table)
    return tables


def _mean_of(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _summarise(
    exposure: Exposure, y: Tensor, parts: dict[str, Tensor], settings: OracleProtocol
) -> tuple[list[dict[str, Any]], Tensor]:
    """Without a nonlinear head."""
    val_mask, test_mask = parts.values()
    solution = solve(exposure, y, (val_mask | test_mask).to(exposure.recipients.device))
    wrong = (exposure.frozen_logits.argmax(2).cpu() != y.cpu()).numpy()
    error = wrong[solution.member, solution.node]
    reachable = solution.margin > settings.reachable_above
    decided = solution.decided_at(settings.reachable_above)
    active = solution.active_above(settings.active_above)
    summaries: list[dict[str, Any]] = []
    for member in range(exposure.num_members):
        own = solution.member == member
        summary: dict[str, Any] = {}
        for part, mask in parts.items():
            chosen = own & mask[:, member].cpu().numpy()[solution.node]
            counts = count_reach(reachable[chosen], error[chosen], active[chosen], decided[chosen])
            summary[part] = _figures(counts)
        summary["status"] = _by_status(solution.status[own])
        summary["largest_gap"] = float(np.nanmax(solution.gap[own], initial=0.0))
        summaries.append(summary)
    found = torch.zeros(wrong.shape, dtype=torch.bool)
    found[solution.member, solution.node] = torch.from_numpy(reachable & decided & error)
    return summaries, found


def _by_status(codes: NDArray[Any]) -> dict[str, int]:
    return {name: int((codes == code).sum()) for code, name in STATUS.items() if code in codes}


def _figures(counts: ReachCounts) -> Numbers:
    """Counts and shares as a record holds them: None where there is nothing to count."""
    names = ("nodes", "reachable", "errors", "reachable_errors", "undecided")
    shares = {n: getattr(counts, n) for n in ("true_class_reach", "error_reach", "support")}
    return {
        **{name: getattr(counts, name) for name in names},
        **{name: None if np.isnan(value) else value for name, value in shares.items()},
    }


def _summarise_heads(
    exposure: Exposure, y: Tensor, parts: dict[str, Tensor], settings: OracleProtocol
) -> tuple[list[dict[str, Any]], Tensor]:
    """The same behind a nonlinear head, of one member.

    Shares are of all nodes: ``true_class_reach`` counts what is proved and
    ``true_class_reach_possible`` what is not excluded; the same for errors.
    """
    chosen = (parts["val"] | parts["test"])[:, 0].to(exposure.recipients.device)
    solution = solve(exposure, y, chosen)
    wrong = (exposure.frozen_logits[0].argmax(1).cpu() != y.cpu()).numpy()[solution.node]
    proved = (solution.verdict == CAN) & (solution.margin > settings.reachable_above)
    possible = proved | ~(solution.bound <= settings.reachable_above)
    active = solution.active_above(settings.active_above)
    summary: dict[str, Any] = {}
    for part, mask in parts.items():
        own = mask[:, 0].cpu().numpy()[solution.node]
        summary[part] = _head_figures(proved[own], possible[own], wrong[own], active[own])
    summary["status"] = _by_status(solution.status)
    found = torch.zeros(1, exposure.num_nodes, dtype=torch.bool)
    found[0, solution.node] = torch.from_numpy(proved & wrong)
    return [summary], found


def _head_figures(
    proved: Flags, possible: Flags, wrong: Flags, active: NDArray[np.int64]
) -> Numbers:
    nodes, errors = len(proved), int(wrong.sum())
    counts = {
        "nodes": nodes,
        "reachable": int(proved.sum()),
        "possible": int(possible.sum()),
        "errors": errors,
        "reachable_errors": int((proved & wrong).sum()),
        "possible_errors": int((possible & wrong).sum()),
        "undecided": int((possible & ~proved).sum()),
    }
    ratios = {
        "true_class_reach": (counts["reachable"], nodes),
        "true_class_reach_possible": (counts["possible"], nodes),
        "error_reach": (counts["reachable_errors"], errors),
        "error_reach_possible": (counts["possible_errors"], errors),
        "support": (int(active[proved].sum()), counts["reachable"]),
    }
    return {**counts, **{name: a / b if b else None for name, (a, b) in ratios.items()}}


# The use of evidence ------------------------------------------------------------------------------


def errors_fixed(
    predicted: Tensor, y: Tensor, reachable_errors: Tensor | None, test: Tensor
) -> list[Numbers]:
    """How many of the frozen model's reachable errors on test nodes a method predicts right.

    Args:
        predicted: [S, N] classes.
        y: [N].
        reachable_errors: [S, N] bool; None: the oracle was not asked.
        test: [N, S] bool.
    """
    if reachable_errors is None:
        return [{} for _ in predicted]
    right = predicted.cpu() == y.cpu()
    fixed = right & reachable_errors.cpu() & test.t().cpu()
    return [{"reachable_errors_fixed": int(count)} for count in fixed.sum(1)]


def shifts_inside(fitted: FittedRepair[Any], exposure: Exposure, test: Tensor) -> list[Numbers]:
    """How many of a translation's shifts of test nodes lie in D_v; nothing for other methods.

    A member that kept the frozen rule (epoch 0) has learned no shift, and one that has no test
    node has none to ask about.

    Args:
        fitted: the method.
        exposure: what it was fitted on.
        test: [N, S] bool.
    """
    members = range(fitted.num_members)
    # Behind a head what reweighting adds to logits is no polytope D_v, so nothing is asked.
    if not isinstance(fitted, FittedTranslation) or exposure.head is not None:
        return [{} for _ in members]
    learned, shift = fitted.best_epoch.cpu() > 0, fitted.shift(exposure).cpu()
    asked = test.cpu() & learned.unsqueeze(0)
    # Of a node whose shift overflowed nothing can be asked; the others still count.
    asked[exposure.recipients.cpu()] &= shift.isfinite().all(2).t()
    if not bool(asked.any()):
        return [{} for _ in members]
    found = solve_displacements(exposure, shift.nan_to_num(), asked)
    return [
        {
            "shifts": int(own.sum()),
            "shifts_inside": int((own & found.inside).sum()),
            "shifts_undecided": int((own & found.undecided).sum()),
        }
        if bool(learned[member])
        else {}
        for member in members
        for own in [found.member == member]
    ]


# Rungs, single models, calibration ----------------------------------------------------------------


def further_scores(
    fitted: FittedRepair[Any], exposure: Exposure, y: Tensor, test: Tensor
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
        return [{"test single": _share((said[s] == y)[..., masks[s]])} for s in members]
    return [{} for _ in members]


def _of_ladder(
    fitted: FittedLadder, exposure: Exposure, y: Tensor, masks: Tensor, member: int
) -> Numbers:
    chosen = masks[member][exposure.recipients]
    labels = y[exposure.recipients][chosen]
    each = {name: told[member][chosen] for name, told in fitted.rung_log_probs(exposure).items()}
    numbers: Numbers = {}
    for place, (name, told) in enumerate(each.items()):
        numbers[f"out-of-fold {name}"] = float(fitted.out_of_fold[name][member])
        numbers[f"test {name}"] = _share(told.argmax(1) == labels)
        numbers[f"weight {name}"] = float(fitted.weights[member, place])
        numbers[f"chosen {name}"] = fitted.chosen[member] == name
    # A combination of other candidates (which declares nothing) reads all that they do.
    alone = [
        i
        for i, name in enumerate(each)
        if name == FROZEN or "similar" not in (RUNGS[name].blocks or BLOCKS)
    ]
    weights = fitted.weights[member, alone]
    if float(weights.sum()) > 0:
        rest = mixed(torch.stack(list(each.values()))[alone], weights / weights.sum())
        numbers["test without similar"] = _share(rest.argmax(1) == labels)
    if "smoothed" in each:
        gain = fitted.member(member).findings().of("smoothed").gain / 100
        numbers["out-of-fold together"] = numbers["out-of-fold smoothed"] - gain
    numbers["nested weighted"] = float(fitted.nested[member])
    numbers["refitted"] = bool(fitted.refitted[member])
    validation = fitted.constants["labels"][member]
    numbers |= _by_class(fitted, member, validation)
    if labels.numel():
        judged = validation >= 0
        told = fitted.constants["out_of_fold"][member, 0][judged]
        # τ of the frozen prediction on validation nodes: what temperature scaling would take.
        scaled = each[FROZEN] / float(temperature(told, validation[judged]))
        together = fitted.member_logits(exposure)[member][chosen].log_softmax(1)
        numbers["calibration error"] = calibration_error(together, labels)
        numbers["calibration error frozen"] = calibration_error(each[FROZEN], labels)
        error = calibration_error(scaled.log_softmax(1), labels)
        numbers["calibration error frozen scaled"] = error
    numbers["temperature"] = float(fitted.temperature[member])
    return numbers


def _by_class(fitted: FittedLadder, member: int, labels: Tensor) -> Numbers:
    """Validation nodes a class, and each rung's gain over Frozen on them, out of fold."""
    right, _ = fitted.right_out_of_fold()
    numbers: Numbers = {}
    for label in range(fitted.num_classes):
        own = right[member][:, labels == label].double()
        numbers[f"nodes of class {label}"] = own.shape[1]
        for name, hits in zip(fitted.candidates[1:], own[1:], strict=True):
            key = f"out-of-fold gain {name} class {label}"
            numbers[key] = float((hits - own[0]).mean()) if hits.numel() else None
    return numbers


def _share(right: Tensor) -> float | None:
    """The mean; None where there are none."""
    return float(right.double().mean()) if right.numel() else None
