"""What a record holds beside accuracies: oracle statistics, use of evidence, ladder scores.

A record holds counts, from which tables form shares over any set of runs
(:mod:`gnn_repair.results.averages`). Earlier records lack some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    select_recipients,
)
from gnn_repair.oracle.rates import count_reach
from gnn_repair.oracle.solver import solve
from gnn_repair.published import REACHABLE, REALIZABLE
from gnn_repair.repair import FittedRepair
from gnn_repair.repair.adapters import FittedTranslation
from gnn_repair.repair.baselines import KeptPrediction
from gnn_repair.repair.ladder import FittedLadder
from gnn_repair.repair.ladder.rungs import calibration_error, mix, temperature
from gnn_repair.results.protocol import OracleProtocol
from gnn_repair.results.records import Numbers

Flags = NDArray[np.bool_]


class OracleFindings(NamedTuple):
    """The oracle's answers for a case."""

    summaries: list[dict[str, Any] | None]
    """One per member; None where the oracle was not run."""
    reachable_errors: Tensor | None
    """[S, N] bool: errors of the frozen model that a reweighting provably corrects."""


def summarise_oracle(
    exposure: Exposure, y: Tensor, parts: Mapping[str, Tensor], settings: OracleProtocol
) -> OracleFindings:
    """Solve the true class of every node in the masks [N, S] of ``val`` and ``test``."""
    has_head = exposure.head is not None
    nodes = (parts["val"] | parts["test"]).to(exposure.recipients.device)
    solution = solve(exposure, y, nodes)
    errors = exposure.frozen_logits.argmax(2).cpu() != y.cpu()
    wrong = errors.numpy()[solution.member, solution.node]
    verdict = solution.verdict_at(settings.reachable_above)
    active = solution.active_above(settings.active_above)
    chances: list[Numbers] = [{}] * exposure.num_members
    if settings.reachable_above == REACHABLE:  # the only threshold for which chance is computed
        chances = estimate_chance(exposure, y, errors.t() & parts["test"].cpu())
    summaries: list[dict[str, Any] | None] = []
    for member, chance in enumerate(chances):
        rows = solution.member == member
        summary: dict[str, Any] = {}
        for part in ("val", "test"):
            part_rows = rows & parts[part][:, member].cpu().numpy()[solution.node]
            answers = verdict[part_rows], wrong[part_rows], active[part_rows]
            summary[part] = _count_answers(*answers, has_head)
        summary["test"] |= chance
        codes = solution.status[rows]
        summary["status"] = {
            name: int((codes == code).sum()) for code, name in STATUS.items() if code in codes
        }
        if not has_head:
            summary["largest_gap"] = float(np.nanmax(solution.gap[rows], initial=0.0))
        summaries.append(summary)
    reachable_errors = torch.zeros(errors.shape, dtype=torch.bool)
    reachable_errors[solution.member, solution.node] = torch.from_numpy((verdict == CAN) & wrong)
    return OracleFindings(summaries, reachable_errors)


def estimate_chance(exposure: Exposure, y: Tensor, errors: Tensor) -> list[Numbers]:
    """At errors [N, S], how often another class could win, and how many classes could.

    One table per member; ``_possible`` is the upper bound, where that is larger.
    """
    if not bool(errors.any()):
        return [{} for _ in range(exposure.num_members)]
    result = reach(exposure, y, errors.to(exposure.recipients.device))
    assert isinstance(result, Reach)  # of classes
    tables = []
    for member, rates in enumerate(result.members):
        counts = result.classes.count[result.classes.member == member]
        table: Numbers = {"reachable_classes": float(counts.mean()) if len(counts) else None}
        for name, mean in (("chance_reach", rates.chance), ("excess", rates.excess)):
            table[name] = None if np.isnan(mean.low) else mean.low
            if mean.high > mean.low:
                table[f"{name}_possible"] = mean.high
        tables.append(table)
    return tables


def _count_answers(verdict: NDArray[Any], wrong: Flags, active: Integers, head: bool) -> Numbers:
    """Counts and shares as a record holds them; a share of no nodes is None.

    Shares are of decided nodes. With a nonlinear ``head``, where many are undecided, they are of
    all nodes: the proved share and, as ``_possible``, the share that is not excluded.
    """
    proved, undecided = verdict == CAN, verdict == UNDECIDED
    total = count_reach(proved, wrong, active, np.ones_like(proved) if head else ~undecided)
    names = ("nodes", "reachable", "errors", "reachable_errors")
    counts = {name: getattr(total, name) for name in names} | {"undecided": int(undecided.sum())}
    ratios = {
        "true_class_reach": (total.reachable, total.nodes),
        "error_reach": (total.reachable_errors, total.errors),
        "support": (total.active, total.reachable),
    }
    if head:
        possible = proved | undecided
        counts["possible"] = int(possible.sum())
        counts["possible_errors"] = int((possible & wrong).sum())
        ratios |= {
            "true_class_reach_possible": (counts["possible"], counts["nodes"]),
            "error_reach_possible": (counts["possible_errors"], counts["errors"]),
        }
    return {**counts, **{name: a / b if b else None for name, (a, b) in ratios.items()}}


# Which shifts of the logits a reweighting can make: q ∈ D_v, decided by the oracle's solver -------
#
# D_v = {P(z_v(λ) − z⁰_v) : λ ∈ Δ_v}. With centred contributions P ℓ and goal = P(z⁰ − β + q), the
# distance of q to D_v is
#
#     min_λ max_j |Σ_a λ_a (P ℓ_a)_j − goal_j| = −max_λ min_{j,±} ±(goal_j − Σ_a λ_a (P ℓ_a)_j),
#
# which is the oracle's linear program for a class of zeros among 2C rivals, ±P ℓ. The same solver
# and bound apply: a shift is inside when some λ comes near enough, outside when the bound excludes
# every λ, and otherwise undecided.


class Displacements(NamedTuple):
    """Where L shifts lie, [L] each; one that is neither inside nor outside is undecided."""

    member: Integers
    inside: Flags
    """Some reweighting makes this shift."""
    outside: Flags
    """Proved: no reweighting makes it."""


def solve_displacements(exposure: Exposure, shift: Tensor, nodes: Tensor) -> Displacements:
    """Decide whether shifts q_v lie in D_v, up to rounding relative to max(1, |q|, |m ℓ|).

    The exposure has no nonlinear head; shifts [S, n, C] are finite, and a common offset of a node's
    classes does not matter; ``nodes`` [N, S] bool selects the shifts.
    """
    goal = shift.detach().double().cpu().numpy()
    member, position = select_recipients(exposure, nodes)
    tables = Tables.from_exposure(exposure)
    lps = Problems(member, position, np.zeros(len(member), np.int64))
    frozen = exposure.frozen_logits.detach().cpu().numpy()
    answers = solve_with_second_attempts(_make_tables(tables, frozen, goal), lps, None)
    allowed = REALIZABLE * _measure_shifts(tables, goal, member, position)
    certified = answers.status != FAILED
    inside = certified & (np.maximum(-answers.margin, 0.0) <= allowed)
    outside = certified & (np.maximum(-answers.bound, 0.0) > allowed)
    return Displacements(member, inside, outside)


def _make_tables(tables: Tables, frozen: Floats, shift: Floats) -> Tables:
    """The oracle's tables with classes 0, +P ℓ and −P ℓ; the goals, computed from z⁰ [S, N, C] and
    q [S, n, C], are the fixed logits."""
    columns = _centre(tables.contributions)
    goal = np.zeros_like(tables.fixed_logits)
    goal[:, tables.nodes] = _centre((frozen - tables.fixed_logits)[:, tables.nodes] + shift)
    return replace(tables, contributions=_mirror(columns), fixed_logits=_mirror(-goal))


def _mirror(values: Floats) -> Floats:
    """[…, C] as [0, v, −v], […, 2C + 1]."""
    return np.concatenate([np.zeros_like(values[..., :1]), values, -values], axis=-1)


def _centre(values: Floats) -> Floats:
    centred: Floats = values - values.mean(axis=-1, keepdims=True)
    return centred


def _measure_shifts(tables: Tables, shift: Floats, member: Integers, position: Integers) -> Floats:
    """[L]: max(1, |q|, |m ℓ|) of each shift, ℓ centred."""
    largest = np.abs(_centre(tables.contributions)).max(axis=2, initial=0.0)
    ends = tables.segments[:: tables.num_groups]
    sizes: Floats = np.maximum(1.0, np.abs(shift[member, position]).max(axis=1, initial=0.0))
    for s in np.unique(member):
        rows = member == s
        by_node = tables.mass[min(int(s), len(tables.mass) - 1)].max(axis=1, initial=0.0)
        by_node[ends[:-1] == ends[1:]] = 0.0
        nonempty = np.flatnonzero(np.diff(ends) > 0)
        if len(nonempty):
            # reduceat cuts at the starts of nonempty segments; empty ones lie between two of them.
            by_node[nonempty] *= np.maximum.reduceat(largest[s][tables.rows], ends[nonempty])
        sizes[rows] = np.maximum(sizes[rows], by_node[position[rows]])
    return sizes


# The use of evidence ------------------------------------------------------------------------------


def errors_fixed(
    predicted: Tensor, y: Tensor, reachable_errors: Tensor | None, test: Tensor
) -> list[Numbers]:
    """How many of the frozen model's reachable errors on test nodes a method predicts right.

    ``predicted`` are classes [S, N]; ``reachable_errors`` [S, N] is None without the oracle.
    """
    if reachable_errors is None:
        return [{} for _ in predicted]
    right = predicted.cpu() == y.cpu()
    fixed = right & reachable_errors.cpu() & test.t().cpu()
    return [{"reachable_errors_fixed": int(count)} for count in fixed.sum(1)]


def shifts_inside(fitted: FittedRepair[Any], exposure: Exposure, test: Tensor) -> list[Numbers]:
    """How many of a translation's shifts of test nodes lie in D_v; empty for other methods.

    Members that kept the frozen model (epoch 0) have learned no shift.
    """
    counts: list[Numbers] = [{} for _ in range(fitted.num_members)]
    # With a nonlinear head the reachable shifts of the logits are no polytope D_v.
    if not isinstance(fitted, FittedTranslation) or exposure.head is not None:
        return counts
    learned, shift = fitted.best_epoch.cpu() > 0, fitted.shift(exposure).cpu()
    nodes = test.cpu() & learned.unsqueeze(0)
    nodes[exposure.recipients.cpu()] &= shift.isfinite().all(2).t()  # without overflowed shifts
    if not bool(nodes.any()):
        return counts
    result = solve_displacements(exposure, shift.nan_to_num(), nodes)
    undecided = ~result.inside & ~result.outside
    for member in learned.nonzero().view(-1).tolist():
        rows = result.member == member
        counts[member] = {
            "shifts": int(rows.sum()),
            "shifts_inside": int((rows & result.inside).sum()),
            "shifts_undecided": int((rows & undecided).sum()),
        }
    return counts


# Rungs, single models, calibration ----------------------------------------------------------------


def further_scores(
    fitted: FittedRepair[Any], exposure: Exposure, y: Tensor, test: Tensor
) -> list[Numbers]:
    """Scores of the ladder and of single retrained models; one table per member."""
    members = range(fitted.num_members)
    y, masks = y.to(exposure.recipients.device), test.t().to(exposure.recipients.device)
    if isinstance(fitted, FittedLadder):
        return [_score_ladder(fitted, exposure, y, masks[s], s) for s in members]
    if isinstance(fitted, KeptPrediction) and fitted.single is not None:
        right = fitted.single.to(y.device) == y
        return [{"test single": _mean(right[s][..., masks[s]])} for s in members]
    return [{} for _ in members]


def _score_ladder(
    fitted: FittedLadder, exposure: Exposure, y: Tensor, mask: Tensor, member: int
) -> Numbers:
    """Every candidate's scores on held-out and on test nodes (``mask`` [N]), and calibration."""
    rows = mask[exposure.recipients]
    labels = y[exposure.recipients][rows]
    candidates = {name: p[member][rows] for name, p in fitted.rung_log_probs(exposure).items()}
    numbers: Numbers = {}
    for i, (name, log_probs) in enumerate(candidates.items()):
        numbers[f"out-of-fold {name}"] = float(fitted.out_of_fold[name][member])
        numbers[f"test {name}"] = _mean(log_probs.argmax(1) == labels)
        numbers[f"weight {name}"] = float(fitted.weights[member, i])
        numbers[f"chosen {name}"] = fitted.chosen[member] == name
    # A combination of other candidates declares no blocks and reads all that they do.
    dissimilar = [
        i
        for i, name in enumerate(candidates)
        if name == FROZEN or "similar" not in (RUNGS[name].blocks or BLOCKS)
    ]
    weights = fitted.weights[member, dissimilar]
    if float(weights.sum()) > 0:
        stacked = torch.stack(list(candidates.values()))[dissimilar]
        mixture = mix(stacked, weights / weights.sum())
        numbers["test without similar"] = _mean(mixture.argmax(1) == labels)
    if "smoothed" in candidates:
        gain = fitted.member(member).findings().of("smoothed").gain / 100
        numbers["out-of-fold together"] = numbers["out-of-fold smoothed"] - gain
    numbers["nested weighted"] = float(fitted.nested[member])
    numbers["refitted"] = bool(fitted.refitted[member])
    validation = fitted.constants["labels"][member]
    # Validation nodes per class, and each rung's held-out gain over Frozen on them.
    right = fitted.right_out_of_fold()[0][member]
    for label in range(fitted.num_classes):
        hits = right[:, validation == label].double()
        numbers[f"nodes of class {label}"] = hits.shape[1]
        for name, gains in zip(fitted.candidates[1:], hits[1:] - hits[0], strict=True):
            numbers[f"out-of-fold gain {name} class {label}"] = _mean(gains)
    if labels.numel():
        labelled = validation >= 0
        log_probs = fitted.constants["out_of_fold"][member, 0][labelled]
        # Temperature scaling of the frozen prediction, learned on validation nodes.
        scaled = candidates[FROZEN] / float(temperature(log_probs, validation[labelled]))
        predictions = {
            "": fitted.member_logits(exposure)[member][rows].log_softmax(1),
            " frozen": candidates[FROZEN],
            " frozen scaled": scaled.log_softmax(1),
        }
        for name, log_probs in predictions.items():
            numbers[f"calibration error{name}"] = calibration_error(log_probs, labels)
    numbers["temperature"] = float(fitted.temperature[member])
    return numbers


def _mean(values: Tensor) -> float | None:
    """None where there are no values."""
    return float(values.double().mean()) if values.numel() else None
