"""How far a learned method uses what reweighting could do: two counts that the paper does not have.

A record holds counts, so that shares can be formed over any set of runs; tables form them
(:mod:`gnn_repair.study.cells`). They are optional: earlier records lack them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gnn_repair.exposure import Exposure, TailedExposure
from gnn_repair.oracle.displacement import solve_displacements
from gnn_repair.repair import FittedRepair
from gnn_repair.repair.translation import FittedTranslation

EVIDENCE = "evidence"
"""The stage, where seconds are counted."""

Counted = list[dict[str, int]]
"""One table a member."""
EvidenceUse = Mapping[str, Sequence[Mapping[str, Any]]]
"""By method, one table a member."""


def errors_fixed(
    predicted: Tensor, y: Tensor, reachable_errors: Tensor | None, test: Tensor
) -> Counted:
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


def shifts_inside(
    fitted: FittedRepair, exposure: Exposure | TailedExposure, test: Tensor
) -> Counted:
    """How many of a translation's shifts of test nodes lie in D_v; nothing for other methods.

    A member that kept the frozen rule (epoch 0) has learned no shift, and one that has no test
    node has none to ask about.

    Args:
        fitted: the method.
        exposure: what it was fitted on.
        test: [N, S] bool.
    """
    members = range(fitted.num_members)
    learned = fitted.best_epoch.cpu() > 0
    asked = test.cpu() & learned.unsqueeze(0)
    # Behind a tail what reweighting adds to logits is no polytope D_v, so nothing is asked.
    if not isinstance(fitted, FittedTranslation) or isinstance(exposure, TailedExposure):
        return [{} for _ in members]
    shift = fitted.shift(exposure).cpu()
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


def merged(*parts: Counted) -> Counted:
    """The tables of several counts as one a member."""
    return [
        {name: value for table in tables for name, value in table.items()}
        for tables in zip(*parts, strict=True)
    ]
