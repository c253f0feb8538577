"""Records without any training: the machinery is tested with planted numbers."""

from __future__ import annotations

from typing import Any

from gnn_repair.methods import METHODS
from gnn_repair.results.protocol import PAPER
from gnn_repair.results.records import Case, RunRecord

OFFSETS = {"refit_head": -0.01, "node_translation": 0.01, "set_translation": 0.03}


def make_record(
    dataset: str, backbone: str, split: int, test: float = 0.8, **changes: Any
) -> RunRecord:
    """A record whose frozen test accuracy is ``test``; methods differ from it by ``OFFSETS``."""
    score = {"train": 0.9, "val": test, "best_epoch": 3, "epochs_run": 5, "diverged": False}
    reach = {"nodes": 10, "reachable": 9, "errors": 2, "reachable_errors": 1}
    reach |= {"true_class_reach": 0.9, "error_reach": 0.5, "support": 1.5}
    graph = {"nodes": 20, "entries": 60, "features": 4, "classes": 2}
    planted: dict[str, Any] = {
        "protocol": PAPER.digest,
        "dataset": dataset,
        "backbone": backbone,
        "split": split,
        "graph": {**graph, "train": 10, "val": 5, "test": 5},
        "frozen": {**score, "test": test, "parameters": 7},
        "oracle": {"val": reach, "test": reach, "status": {"optimal": 20}, "largest_gap": 1e-15},
        "methods": {
            name: {**score, "test": test + OFFSETS.get(name, 0.0), "parameters": 7}
            for name in METHODS
        },
        "seconds": {"total": 0.5},
        "environment": {"python": "3"},
    }
    return RunRecord(**planted | changes)


def fake_case(shared: Any, case: Case, tell: Any) -> list[Any]:
    """The work of a case, in no time."""
    return [make_record(run.dataset, run.backbone, run.split) for run in case.runs]
