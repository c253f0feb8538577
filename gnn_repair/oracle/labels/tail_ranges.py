"""Ranges after a nonlinear tail: attained ends and proved bounds, drawn together by halving.

Whether an output can exceed θ is a question that the solver of tails answers. Asked first at the
frozen value, it gives an attained end and a bound; asked again at the middle of the two, it moves
one of them there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.labels.questions import Asked, ask
from gnn_repair.oracle.labels.ranges import ValueRange
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.labels.tails import TailPart, joined, solve_part
from gnn_repair.oracle.tables import Floats
from gnn_repair.oracle.tails.search import on_cpu

ROUNDS = 4
"""Times an end is asked about: the gap that the first leaves shrinks to an eighth."""
CLOSE = 1e-4
"""A gap this small beside the values is left: twelve halvings further nobody would see it."""


def tail_range(exposure: Exposure, nodes: Any, outputs: Any, effort: str | float) -> ValueRange:
    """Both ends of every output asked about."""
    exposure = on_cpu(exposure)
    low, high = (
        _end(exposure, ask(exposure, side, nodes, outputs, 0.0), effort) for side in (False, True)
    )
    frozen = exposure.frozen_logits.numpy()
    return ValueRange(low, high, frozen[low.member, low.node, low.target])


def _end(exposure: Exposure, asked: Asked, effort: str | float) -> LabelSolution:
    """The best of several rounds, each asked at its own thresholds."""
    parts: list[TailPart] = []
    columns = []
    for column in range(len(asked.outputs)):
        one, found = _column(exposure, asked, column, effort)
        columns.append(one)
        parts += found
    by_output = np.arange(asked.wanted.size).reshape(len(columns), -1)
    return replace(_stacked(columns).taken(by_output.T.ravel()), parts=tuple(parts))


def _column(
    exposure: Exposure, asked: Asked, column: int, effort: str | float
) -> tuple[LabelSolution, list[TailPart]]:
    sign = 1.0 if asked.wanted[0, column] else -1.0
    limit = exposure.frozen_logits[0, :, int(asked.outputs[column])].clone()
    best: LabelSolution | None = None
    parts: list[TailPart] = []
    chosen = asked
    for _ in range(ROUNDS):
        part = solve_part(exposure, chosen, column, limit.clone(), effort)
        parts.append(part)
        best = _better(best, _shifted(joined(exposure, [part], chosen, 0.0), limit.numpy(), sign))
        wide = np.isfinite(best.bound) & (best.gap > CLOSE * (1 + np.abs(best.margin)))
        if not wide.any():
            break
        middle = sign * (best.margin + best.bound) / 2
        limit[torch.from_numpy(best.node[wide])] = torch.from_numpy(middle[wide])
        chosen = _only(asked, best.recipient[wide])
    assert best is not None
    return best, parts


def _shifted(solution: LabelSolution, limit: Floats, sign: float) -> LabelSolution:
    """Margins against zero of questions that were asked against ``limit``."""
    moved = sign * limit[solution.node]
    return replace(solution, margin=solution.margin + moved, bound=solution.bound + moved)


def _better(old: LabelSolution | None, new: LabelSolution) -> LabelSolution:
    """Of each question the larger margin with its λ, and the smaller bound."""
    if old is None:
        return new
    both = _stacked([old, new])
    place = {int(r): i for i, r in enumerate(old.recipient)}
    chosen, bound = np.arange(len(old)), old.bound.copy()
    for j, recipient in enumerate(new.recipient.tolist()):
        i = place[recipient]
        bound[i] = min(bound[i], new.bound[j])
        if new.margin[j] > old.margin[i]:
            chosen[i] = len(old) + j
    kept = both.taken(chosen)
    # What was found may lie beyond what was proved by the rounding of the model itself.
    return replace(kept, bound=bound)


def _only(asked: Asked, recipients: Any) -> Asked:
    kept = np.isin(asked.position, recipients)
    return replace(
        asked,
        member=asked.member[kept],
        position=asked.position[kept],
        wanted=asked.wanted[kept],
        known=asked.known[kept],
    )


def _stacked(solutions: list[LabelSolution]) -> LabelSolution:
    """One solution after another."""
    names = ("member", "recipient", "node", "target", "wanted", "margin", "bound")
    flat = ("terms", "coefficients", "sources", "groups")
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in solutions]) for name in (*names, *flat)
    }
    counts = np.concatenate([np.diff(one.indptr) for one in solutions])
    return replace(solutions[0], **arrays, indptr=np.append(0, np.cumsum(counts)))
