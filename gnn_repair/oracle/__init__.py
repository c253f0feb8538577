"""The exact-mass oracle: can reweighting the final messages bring an output to its wanted side?"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from gnn_repair.oracle.certificate import Verification
from gnn_repair.oracle.metrics import (
    Changes,
    ClassReach,
    LabelReach,
    Reach,
    class_reach,
    confusion_by_reach,
    reach,
    summarise,
)
from gnn_repair.oracle.questions.nearest import Nearest, nearest_reweighting
from gnn_repair.oracle.questions.ranges import ValueRange, value_range
from gnn_repair.oracle.questions.relaxed import RelaxedMargins, relax, relaxed_margins
from gnn_repair.oracle.questions.stable import StableEvidence, source_ranking, stable_evidence
from gnn_repair.oracle.rates import Rate
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve
from gnn_repair.oracle.witness import Witness

if TYPE_CHECKING:
    from gnn_repair.oracle.baseline import compare, save_baseline
    from gnn_repair.oracle.explainer import OracleExplainer

__all__ = [
    "Changes",
    "ClassReach",
    "LabelReach",
    "Nearest",
    "OracleExplainer",
    "Rate",
    "Reach",
    "RelaxedMargins",
    "Solution",
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
    "solve",
    "source_ranking",
    "stable_evidence",
    "summarise",
    "value_range",
]


_LATER = {
    "OracleExplainer": "explainer",
    "compare": "baseline",
    "save_baseline": "baseline",
}
"""PyG's explainers and pandas load slowly, and few callers want them."""
_MOVED = {
    "LabelSolution": ("solution", "Solution"),
    "OracleSolution": ("solution", "Solution"),
    "solve_labels": ("solver", "solve"),
    "solve_oracle": ("solver", "solve_oracle"),
}
"""Names of version 0.2: where each lives now, and what it is called there."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"gnn_repair.oracle.{_LATER[name]}"), name)
    if name in _MOVED:
        home, attribute = _MOVED[name]
        successor = attribute.removesuffix("_oracle")
        text = f"gnn_repair.oracle.{name} is gnn_repair.oracle.{successor} now"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(f"gnn_repair.oracle.{home}"), attribute)
    raise AttributeError(f"module 'gnn_repair.oracle' has no attribute {name!r}")
