"""The exact-mass oracle: can reweighting the final messages make a class win?"""

from typing import TYPE_CHECKING, Any

from gnn_repair.oracle.certificate import Verification
from gnn_repair.oracle.metrics import ClassReach, Rate, Reach, class_reach, reach, summarise
from gnn_repair.oracle.nearest import Nearest, nearest_reweighting
from gnn_repair.oracle.relaxed import RelaxedMargins, relax, relaxed_margins
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.stable import StableEvidence, stable_evidence
from gnn_repair.oracle.witness import Witness

if TYPE_CHECKING:
    from gnn_repair.oracle.explainer import OracleExplainer

__all__ = [
    "ClassReach",
    "Nearest",
    "OracleExplainer",
    "OracleSolution",
    "Rate",
    "Reach",
    "RelaxedMargins",
    "StableEvidence",
    "Verification",
    "Witness",
    "class_reach",
    "nearest_reweighting",
    "reach",
    "relax",
    "relaxed_margins",
    "solve_oracle",
    "stable_evidence",
    "summarise",
]


def __getattr__(name: str) -> Any:
    # PyG's explainers load slowly, and few callers want them.
    if name == "OracleExplainer":
        from gnn_repair.oracle.explainer import OracleExplainer

        return OracleExplainer
    raise AttributeError(f"module 'gnn_repair.oracle' has no attribute {name!r}")
