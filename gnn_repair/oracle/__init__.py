"""The exact-mass oracle: can reweighting the final messages make a class win?"""

import importlib
from typing import TYPE_CHECKING, Any

from gnn_repair.oracle.certificate import Verification
from gnn_repair.oracle.labels.ranges import ValueRange, value_range
from gnn_repair.oracle.labels.reach import LabelReach
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.labels.solve import solve_labels
from gnn_repair.oracle.metrics import (
    Changes,
    ClassReach,
    Rate,
    Reach,
    class_reach,
    reach,
    summarise,
)
from gnn_repair.oracle.nearest import Nearest, nearest_reweighting
from gnn_repair.oracle.relaxed import RelaxedMargins, relax, relaxed_margins
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.stable import StableEvidence, stable_evidence
from gnn_repair.oracle.witness import Witness

if TYPE_CHECKING:
    from gnn_repair.oracle.baseline import compare, save_baseline
    from gnn_repair.oracle.explainer import OracleExplainer
    from gnn_repair.oracle.frames import confusion_by_reach, source_ranking

__all__ = [
    "Changes",
    "ClassReach",
    "LabelReach",
    "LabelSolution",
    "Nearest",
    "OracleExplainer",
    "OracleSolution",
    "Rate",
    "Reach",
    "RelaxedMargins",
    "StableEvidence",
    "ValueRange",
    "Verification",
    "Witness",
    "class_reach",
    "compare",
    "confusion_by_reach",
    "nearest_reweighting",
    "reach",
    "relax",
    "relaxed_margins",
    "save_baseline",
    "solve_labels",
    "solve_oracle",
    "source_ranking",
    "stable_evidence",
    "summarise",
    "value_range",
]


_LATER = {
    "OracleExplainer": "explainer",
    "compare": "baseline",
    "confusion_by_reach": "frames",
    "save_baseline": "baseline",
    "source_ranking": "frames",
}
"""PyG's explainers and pandas load slowly, and few callers want them."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"gnn_repair.oracle.{_LATER[name]}"), name)
    raise AttributeError(f"module 'gnn_repair.oracle' has no attribute {name!r}")
