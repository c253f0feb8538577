"""What a record holds beside accuracies: the oracle's answers, the use made of them, the ladder.

A record holds counts, so that shares can be formed over any set of runs; tables form them
(:mod:`gnn_repair.results.averages`). Earlier records lack some of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.methods import BLOCKS, FROZEN, RUNGS
from gnn_repair.oracle.fallback import solve_with_second_attempts
from gnn_repair.oracle.metrics import Reach, reach
from gnn_repair.oracle.problems import (
    CAN,
    FAILED,
    STATUS,
    UNDECIDED,
    Floats,
    Integers,
    Problems,
    Tables,
    require_no_head,
    selection,
)
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve
from gnn_repair.published import REACHABLE, REALIZABLE
from gnn_repair.repair import FittedRepair
from gnn_repair.repair.adapters import FittedTranslation
from gnn_repair.repair.controls import KeptPrediction
from gnn_repair.repair.ladder import FittedLadder
from gnn_repair.repair.ladder.rungs import calibration_error, mixed, temperature
from gnn_repair.results.protocol import OracleProtocol
from gnn_repair.results.records import Numbers

Flags = NDArray[np.bool_]


class OracleFindings(NamedTuple):
    """What the oracle says of a case."""

    summaries: list[dict[str, Any] | None]
    """One per member; None where it was not asked."""
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
    """One summary per member, and the errors [S, N] that a reweighting is proved to undo."""
    headed = exposure.head is not None
    asked = (parts["val"] | parts["test"]).to(exposure.recipients.device)
    solution = solve(exposure, y, asked)
    mistakes = (exposure.frozen_logits.argmax(2).cpu() != y.cpu()).numpy()
    wrong = mistakes[solution.member, solution.node]
    verdict = solution.verdict_at(settings.reachable_above)
    active = solution.active_above(settings.active_above)
    summaries: list[dict[str, Any]] = []
    for member in range(exposure.num_members):
        own = solution.member == member
        summary: dict[str, Any] = {}
        for part, mask in parts.items():
            chosen = own & mask[:, member].cpu().numpy()[solution.node]
            summary[part] = _figures(verdict[chosen], wrong[chosen], active[chosen], headed)
        summary["status"] = _by_status(solution.status[own])
        if not headed:
            summary["largest_gap"] = float(np.nanmax(solution.gap[own], initial=0.0))
        summaries.append(summary)
    found = torch.zeros(mistakes.shape, dtype=torch.bool)
    found[solution.member, solution.node] = torch.from_numpy((verdict == CAN) & wrong)
    return summaries, found


def _by_status(codes: NDArray[Any]) -> dict[str, int]:
    return {name: int((codes == code).sum()) for code, name in STATUS.items() if code in codes}


def _figures(verdict: NDArray[Any], wrong: Flags, active: Integers, headed: bool) -> Numbers:
    """Counts and shares as a record holds them; a share of nothing is None.

    Shares are of decided nodes. Behind a nonlinear head, where many are undecided, they are of all
    nodes: what is proved, and as ``_possible`` what is not excluded.
    """
    proved, undecided = verdict == CAN, verdict == UNDECIDED
    counted = np.ones_like(proved) if headed else ~undecided
    counts = {
        "nodes": int(counted.sum()),
        "reachable": int(proved.sum()),
        "errors": int((wrong & counted).sum()),
        "reachable_errors": int((proved & wrong).sum()),
        "undecided": int(undecided.sum()),
    }
    ratios = {
        "true_class_reach": (counts["reachable"], counts["nodes"]),
        "error_reach": (counts["reachable_errors"], counts["errors"]),
        "support": (int(active[proved].sum()), counts["reachable"]),
    }
    if headed:
        possible = proved | undecided
        counts |= {
            "possible": int(possible.sum()),
            "possible_errors": int((possible & wrong).sum()),
        }
        ratios |= {
            "true_class_reach_possible": (counts["possible"], counts["nodes"]),
            "error_reach_possible": (counts["possible_errors"], counts["errors"]),
        }
    return {**counts, **{name: a / b if b else None for name, (a, b) in ratios.items()}}


# Which shifts of the logits a reweighting could have made: q ∈ D_v, by our own solver ------------
#
# D_v = {P(z_v(λ) − z⁰_v) : λ ∈ Δ_v}. With centred contributions P ℓ and goal = P(z⁰ − β + q), the
# distance of q to D_v is
#
#     min_λ max_j |Σ_a λ_a (P ℓ_a)_j − goal_j| = −max_λ min_{j,±} ±(goal_j − Σ_a λ_a (P ℓ_a)_j),
#
# which is the oracle's own linear program for a class of zeros among 2C rivals, ±P ℓ. So the same
# solver answers, and the same bound proves: a shift is inside when its λ comes near enough, outside
# when the bound says that none does, and otherwise undecided.


@dataclass(frozen=True, eq=False)
class Displacements:
    """One shift a member and node, and where it lies."""

    member: Integers
    """[L]."""
    node: Integers
    """[L]."""
    distance: Floats
    """[L]: to the nearest point of D_v that was found, in the largest class; NaN: none was."""
    bound: Floats
    """[L]: what the distance is at least."""
    inside: Flags
    """[L]: a reweighting makes this shift."""
    outside: Flags
    """[L]: proved that none does."""

    @property
    def undecided(self) -> Flags:
        """[L]: neither."""
        undecided: Flags = ~(self.inside | self.outside)
        return undecided


def solve_displacements(
    exposure: Exposure,
    shift: Tensor,
    nodes: Tensor | None = None,
    *,
    tolerance: float = REALIZABLE,
    threads: int | None = None,
) -> Displacements:
    """Decide of each shift q_v whether it lies in D_v.

    Args:
        exposure: the frozen model.
        shift: q, [S, n, C]; a common offset of a node's classes does not matter.
        nodes: a mask [N] or [N, S] (member s takes column s), node numbers, or None for all.
        tolerance: distance accepted, relative to max(1, |q|, |m ℓ|).
        threads: worker threads; all cores unless given.
    """
    require_no_head(exposure, "which shifts it can make is not known")
    expected = (exposure.num_members, exposure.num_recipients, exposure.num_classes)
    if not isinstance(shift, Tensor) or tuple(shift.shape) != expected:
        shape = list(shift.shape) if isinstance(shift, Tensor) else type(shift).__name__
        raise InputError(f"shift has shape {shape} instead of {list(expected)}")
    goal = shift.detach().double().cpu().numpy()
    if not np.isfinite(goal).all():
        raise InputError("shift holds NaN or infinite values; a repair that diverged has no shifts")
    member, position = selection(exposure, nodes)
    tables = Tables.of(exposure)
    asked = Problems(member, position, np.zeros(len(member), np.int64))
    frozen = exposure.frozen_logits.detach().cpu().numpy()
    solved = solve_with_second_attempts(_two_sided(tables, frozen, goal), asked, threads)
    allowed = tolerance * _sizes(tables, goal, member, position)
    return _verdicts(tables, asked, solved, allowed)


def _verdicts(tables: Tables, asked: Problems, solved: Solution, allowed: Floats) -> Displacements:
    """What margin and bound say of each; an answer that nobody could certify says nothing."""
    known = solved.status != FAILED
    distance = np.where(known, np.maximum(-solved.margin, 0.0), np.nan)
    bound = np.where(known, np.maximum(-solved.bound, 0.0), 0.0)
    return Displacements(
        asked.member,
        tables.nodes[asked.position],
        distance,
        bound,
        inside=distance <= allowed,
        outside=bound > allowed,
    )


def _two_sided(tables: Tables, frozen: Floats, shift: Floats) -> Tables:
    """The oracle's tables with classes 0, +P ℓ and −P ℓ; the fixed logits hold the goals.

    Args:
        tables: the exposure's own.
        frozen: z⁰, [S, N, C].
        shift: q, [S, n, C].
    """
    columns = _centred(tables.contributions)
    goal = np.zeros_like(tables.fixed_logits)
    goal[:, tables.nodes] = _centred((frozen - tables.fixed_logits)[:, tables.nodes] + shift)
    return replace(
        tables,
        contributions=_mirrored(columns),
        fixed_logits=_mirrored(-goal),
    )


def _mirrored(values: Floats) -> Floats:
    """[…, C] as [0, v, −v], […, 2C + 1]."""
    return np.concatenate([np.zeros_like(values[..., :1]), values, -values], axis=-1)


def _centred(values: Floats) -> Floats:
    centred: Floats = values - values.mean(axis=-1, keepdims=True)
    return centred


def _sizes(tables: Tables, shift: Floats, member: Integers, position: Integers) -> Floats:
    """[L]: max(1, |q|, |m ℓ|) of each shift, ℓ centred."""
    largest = np.abs(_centred(tables.contributions)).max(axis=2, initial=0.0)
    ends = tables.segments[:: tables.num_groups]
    out: Floats = np.maximum(1.0, np.abs(shift[member, position]).max(axis=1, initial=0.0))
    for s in np.unique(member):
        own = member == s
        mass = tables.mass[min(int(s), len(tables.mass) - 1)].max(axis=1, initial=0.0)
        by_node = mass * _largest_term(largest[s], tables.rows, ends)
        out[own] = np.maximum(out[own], by_node[position[own]])
    return out


def _largest_term(largest: Floats, rows: NDArray[Any], ends: Integers) -> Floats:
    """[n]: the largest of a recipient's terms; 0 where it has none."""
    out = np.zeros(len(ends) - 1)
    some = np.flatnonzero(np.diff(ends) > 0)
    if len(some):
        # Recipients without terms begin where the next one does, so leaving them out is enough.
        out[some] = np.maximum.reduceat(largest[rows], ends[some])
    return out


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
    """Validation nodes per class, and each rung's held-out gain over Frozen on them."""
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
