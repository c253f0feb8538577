"""The oracle's answers about a model with a tail, in a few numbers: proved, and not excluded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure import TailedExposure
from gnn_repair.oracle.tails.sentence import CAN, STAGES
from gnn_repair.oracle.tails.solution import TailSolution
from gnn_repair.oracle.tails.solve import solve_tails
from gnn_repair.study.oracle_summary import OracleFindings
from gnn_repair.study.protocol import OracleProtocol

Flags = NDArray[np.bool_]


def summarise_tail_oracle(
    exposure: TailedExposure,
    y: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    settings: OracleProtocol,
) -> OracleFindings:
    """Solve the true class of every node in the masks [N, 1].

    Shares are of all nodes: ``true_class_reach`` counts what is proved and
    ``true_class_reach_possible`` what is not excluded; the same for errors.
    """
    chosen = (val_mask | test_mask)[:, 0].to(exposure.recipients.device)
    solution = solve_tails(exposure, y, chosen)
    wrong = (exposure.frozen_logits[0].argmax(1).cpu() != y.cpu()).numpy()[solution.node]
    proved = (solution.verdict == CAN) & (solution.margin > settings.reachable_above)
    possible = proved | ~(solution.bound <= settings.reachable_above)
    active = _active(solution, settings.active_above)
    summary: dict[str, Any] = {}
    for part, mask in (("val", val_mask), ("test", test_mask)):
        own = mask[:, 0].cpu().numpy()[solution.node]
        summary[part] = _figures(proved[own], possible[own], wrong[own], active[own])
    codes = solution.status
    summary["status"] = {
        name: int((codes == code).sum()) for code, name in STAGES.items() if code in codes
    }
    found = torch.zeros(1, exposure.num_nodes, dtype=torch.bool)
    found[0, solution.node] = torch.from_numpy(proved & wrong)
    return OracleFindings([summary], found)


def _active(solution: TailSolution, above: float) -> NDArray[np.int64]:
    total = np.concatenate([[0], np.cumsum(solution.coefficients > above)])
    return np.asarray(total[solution.indptr[1:]] - total[solution.indptr[:-1]])


def _figures(
    proved: Flags, possible: Flags, wrong: Flags, active: NDArray[np.int64]
) -> dict[str, Any]:
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
    return {
        **counts,
        "true_class_reach": _share(counts["reachable"], nodes),
        "true_class_reach_possible": _share(counts["possible"], nodes),
        "error_reach": _share(counts["reachable_errors"], errors),
        "error_reach_possible": _share(counts["possible_errors"], errors),
        "support": _share(int(active[proved].sum()), counts["reachable"]),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
