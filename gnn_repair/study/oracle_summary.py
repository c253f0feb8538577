"""The oracle's answers on validation and test nodes, in a few numbers a split."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure import Exposure
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.witness import STATUS
from gnn_repair.study.protocol import OracleProtocol

Flags = NDArray[np.bool_]


def summarise_oracle(
    exposure: Exposure, y: Tensor, val_mask: Tensor, test_mask: Tensor, settings: OracleProtocol
) -> list[dict[str, Any] | None]:
    """Solve the true class of every node in the masks [N, S]; one summary a member."""
    solution = solve_oracle(exposure, y, (val_mask | test_mask).to(exposure.recipients.device))
    wrong = (exposure.frozen_logits.argmax(2).cpu() != y.cpu()).numpy()
    error = wrong[solution.member, solution.node]
    counted = count_active(solution, settings.active_above)
    summaries: list[dict[str, Any] | None] = []
    for member in range(exposure.num_members):
        own = solution.member == member
        summary: dict[str, Any] = {
            part: _reach(
                solution,
                own & mask[:, member].cpu().numpy()[solution.node],
                error,
                counted,
                settings,
            )
            for part, mask in (("val", val_mask), ("test", test_mask))
        }
        codes = solution.status[own]
        summary["status"] = {
            name: int((codes == code).sum()) for code, name in STATUS.items() if code in codes
        }
        gaps = solution.gap[own]
        summary["largest_gap"] = float(np.nanmax(gaps, initial=0.0))
        summaries.append(summary)
    return summaries


def count_active(solution: OracleSolution, above: float) -> NDArray[np.int64]:
    """How many λ of each LP exceed ``above``, [L]."""
    active = np.concatenate([[0], np.cumsum(solution.coefficients > above)])
    return active[solution.indptr[1:]] - active[solution.indptr[:-1]]


def _reach(
    solution: OracleSolution,
    chosen: Flags,
    error: Flags,
    active: NDArray[np.int64],
    settings: OracleProtocol,
) -> dict[str, Any]:
    """True-class reach, error reach and support over the LPs that were solved."""
    solved = chosen & ~np.isnan(solution.margin)
    reachable = solved & (solution.margin > settings.reachable_above)
    errors = solved & error
    corrected = reachable & errors
    return {
        "nodes": int(solved.sum()),
        "reachable": int(reachable.sum()),
        "errors": int(errors.sum()),
        "reachable_errors": int(corrected.sum()),
        "true_class_reach": _ratio(reachable.sum(), solved.sum()),
        "error_reach": _ratio(corrected.sum(), errors.sum()),
        "support": _ratio(active[reachable].sum(), reachable.sum()),
    }


def _ratio(part: Any, whole: Any) -> float | None:
    """None where there is nothing to count."""
    return float(part) / float(whole) if whole else None
