"""The oracle's answers on validation and test nodes, in a few numbers a split."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_repair.exposure import Exposure, TailedExposure
from gnn_repair.oracle.counting import ReachCounts, count_reach
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.witness import STATUS
from gnn_repair.study.protocol import OracleProtocol


class OracleFindings(NamedTuple):
    """What the oracle says of a case."""

    summaries: list[dict[str, Any] | None]
    """One a member; None where it was not asked."""
    reachable_errors: Tensor | None
    """[S, N] bool: the frozen model is wrong, and proved that a reweighting is right."""


def summarise_oracle(
    exposure: Exposure | TailedExposure,
    y: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    settings: OracleProtocol,
) -> OracleFindings:
    """Solve the true class of every node in the masks [N, S]; one summary a member."""
    if isinstance(exposure, TailedExposure):
        from gnn_repair.study.tail_summary import summarise_tail_oracle

        return summarise_tail_oracle(exposure, y, val_mask, test_mask, settings)
    solution = solve_oracle(exposure, y, (val_mask | test_mask).to(exposure.recipients.device))
    wrong = (exposure.frozen_logits.argmax(2).cpu() != y.cpu()).numpy()
    error = wrong[solution.member, solution.node]
    reachable = solution.margin > settings.reachable_above
    decided = solution.decided_at(settings.reachable_above)
    active = solution.active_above(settings.active_above)
    summaries: list[dict[str, Any] | None] = []
    for member in range(exposure.num_members):
        own = solution.member == member
        summary: dict[str, Any] = {}
        for part, mask in (("val", val_mask), ("test", test_mask)):
            chosen = own & mask[:, member].cpu().numpy()[solution.node]
            counts = count_reach(reachable[chosen], error[chosen], active[chosen], decided[chosen])
            summary[part] = _figures(counts)
        codes = solution.status[own]
        summary["status"] = {
            name: int((codes == code).sum()) for code, name in STATUS.items() if code in codes
        }
        gaps = solution.gap[own]
        summary["largest_gap"] = float(np.nanmax(gaps, initial=0.0))
        summaries.append(summary)
    found = torch.zeros(wrong.shape, dtype=torch.bool)
    found[solution.member, solution.node] = torch.from_numpy(reachable & decided & error)
    return OracleFindings(summaries, found)


def _figures(counts: ReachCounts) -> dict[str, Any]:
    """Counts and shares as a record holds them: None where there is nothing to count."""
    shares = {
        name: getattr(counts, name) for name in ("true_class_reach", "error_reach", "support")
    }
    return {
        "nodes": counts.nodes,
        "reachable": counts.reachable,
        "errors": counts.errors,
        "reachable_errors": counts.reachable_errors,
        "undecided": counts.undecided,
        **{name: None if np.isnan(value) else value for name, value in shares.items()},
    }
