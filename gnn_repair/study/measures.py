"""What a record holds beside accuracies: the oracle's answers, the use made of them, the ladder.

A record holds counts, so that shares can be formed over any set of runs; tables form them
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
    """What the oracle says of a case."""

    summaries: list[dict[str, Any] | None]
    """One per member; None where it was not asked."""
    reachable_errors: Tensor | None
    """[S, N] bool: the frozen model is wrong, and proved that a reweighting is right."""


def summarise_oracle(
    exposure: Exposure, y: Tensor, parts: Mapping[str, Tensor], settings: OracleProtocol
) -> OracleFindings:
    """Solve the true class of every node in the masks [N, S] of ``val`` and ``test``."""
    headed = exposure.head is not None
    asked = (parts["val"] | parts["test"]).to(exposure.recipients.device)
    solution = solve(exposure, y, asked)
    mistakes = exposure.frozen_logits.argmax(2).cpu() != y.cpu()
    wrong = mistakes.numpy()[solution.member, solution.node]
    verdict = solution.verdict_at(settings.reachable_above)
    active = solution.active_above(settings.active_above)
    chances: list[Numbers] = [{}] * exposure.num_members
    if settings.reachable_above == REACHABLE:  # chance counts wins above this alone
        chances = chance_figures(exposure, y, mistakes.t() & parts["test"].cpu())
    summaries: list[dict[str, Any] | None] = []
    for member, chance in enumerate(chances):
        own = solution.member == member
        summary: dict[str, Any] = {}
        for part in ("val", "test"):
            chosen = own & parts[part][:, member].cpu().numpy()[solution.node]
            summary[part] = _figures(verdict[chosen], wrong[chosen], active[chosen], headed)
        summary["test"] |= chance
        codes = solution.status[own]
        summary["status"] = {
            name: int((codes == code).sum()) for code, name in STATUS.items() if code in codes
        }
        if not headed:
            summary["largest_gap"] = float(np.nanmax(solution.gap[own], initial=0.0))
        summaries.append(summary)
    found = torch.zeros(mistakes.shape, dtype=torch.bool)
    found[solution.member, solution.node] = torch.from_numpy((verdict == CAN) & wrong)
    return OracleFindings(summaries, found)


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
        counts = found.classes.count[own]
        table: Numbers = {"reachable_classes": float(counts.mean()) if len(counts) else None}
        for name, mean in (("chance_reach", figures.chance), ("excess", figures.excess)):
            table[name] = None if np.isnan(mean.low) else mean.low
            if mean.high > mean.low:
                table[f"{name}_possible"] = mean.high
        tables.append(table)
    return tables


def _figures(verdict: NDArray[Any], wrong: Flags, active: Integers, headed: bool) -> Numbers:
    """Counts and shares as a record holds them; a share of nothing is None.

    Shares are of decided nodes. Behind a nonlinear head, where many are undecided, they are of all
    nodes: what is proved, and as ``_possible`` what is not excluded.
    """
    proved, undecided = verdict == CAN, verdict == UNDECIDED
    counted = np.ones_like(proved) if headed else ~undecided
    found = count_reach(proved, wrong, active, counted)
    names = ("nodes", "reachable", "errors", "reachable_errors")
    counts = {name: getattr(found, name) for name in names} | {"undecided": int(undecided.sum())}
    ratios = {
        "true_class_reach": (found.reachable, found.nodes),
        "error_reach": (found.reachable_errors, found.errors),
        "support": (found.active, found.reachable),
    }
    if headed:
        possible = proved | undecided
        counts["possible"] = int(possible.sum())
        counts["possible_errors"] = int((possible & wrong).sum())
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


class Displacements(NamedTuple):
    """Where shifts lie, [L] each; one that is neither inside nor outside is undecided."""

    member: Integers
    inside: Flags
    """A reweighting makes this shift."""
    outside: Flags
    """Proved that none does."""


def solve_displacements(exposure: Exposure, shift: Tensor, nodes: Tensor) -> Displacements:
    """Decide of shifts q_v whether they lie in D_v, up to rounding relative to max(1, |q|, |m ℓ|).

    Of an exposure without a nonlinear head, shifts [S, n, C], finite, of which a common offset of a
    node's classes does not matter, and the nodes asked about, [N, S] bool.
    """
    goal = shift.detach().double().cpu().numpy()
    member, position = select_recipients(exposure, nodes)
    tables = Tables.from_exposure(exposure)
    asked = Problems(member, position, np.zeros(len(member), np.int64))
    frozen = exposure.frozen_logits.detach().cpu().numpy()
    solved = solve_with_second_attempts(_two_sided(tables, frozen, goal), asked, None)
    allowed = REALIZABLE * _sizes(tables, goal, member, position)
    known = solved.status != FAILED  # an answer that nobody could certify says nothing
    inside = known & (np.maximum(-solved.margin, 0.0) <= allowed)
    return Displacements(member, inside, known & (np.maximum(-solved.bound, 0.0) > allowed))


def _two_sided(tables: Tables, frozen: Floats, shift: Floats) -> Tables:
    """The oracle's tables with classes 0, +P ℓ and −P ℓ; the fixed logits hold the goals, which
    z⁰ [S, N, C] and q [S, n, C] give."""
    columns = _centred(tables.contributions)
    goal = np.zeros_like(tables.fixed_logits)
    goal[:, tables.nodes] = _centred((frozen - tables.fixed_logits)[:, tables.nodes] + shift)
    return replace(tables, contributions=_mirrored(columns), fixed_logits=_mirrored(-goal))


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
        by_node = tables.mass[min(int(s), len(tables.mass) - 1)].max(axis=1, initial=0.0)
        by_node[ends[:-1] == ends[1:]] = 0.0
        some = np.flatnonzero(np.diff(ends) > 0)
        if len(some):
            # Recipients without terms begin where the next one does, so leaving them out is enough.
            by_node[some] *= np.maximum.reduceat(largest[s][tables.rows], ends[some])
        out[own] = np.maximum(out[own], by_node[position[own]])
    return out


# The use of evidence ------------------------------------------------------------------------------


def errors_fixed(
    predicted: Tensor, y: Tensor, reachable_errors: Tensor | None, test: Tensor
) -> list[Numbers]:
    """How many of the frozen model's reachable errors on test nodes a method predicts right.

    ``predicted`` are classes [S, N]; ``reachable_errors`` [S, N], None: the oracle was not asked.
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
            "shifts_undecided": int((own & ~found.inside & ~found.outside).sum()),
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
    """One table a member; empty for most methods."""
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
        rest = mix(torch.stack(list(each.values()))[alone], weights / weights.sum())
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
