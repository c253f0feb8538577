"""Repairs on top of a frozen model: two from the paper, its controls, baselines, the ladder."""

from gnn_repair.budget import paper_batch_size
from gnn_repair.repair.base import FittedRepair, Repair
from gnn_repair.repair.baselines import CorrectAndSmooth, TemperatureScaling
from gnn_repair.repair.cross_fitting import CrossFitted
from gnn_repair.repair.head import RefitHead
from gnn_repair.repair.ladder.ladder import EvidenceLadder
from gnn_repair.repair.loading import REPAIRS, load_repair
from gnn_repair.repair.realizability import displacement_distance, realizable
from gnn_repair.repair.reweighting import Reweighting
from gnn_repair.repair.translation import NodeTranslation, SetTranslation

__all__ = [
    "REPAIRS",
    "CorrectAndSmooth",
    "CrossFitted",
    "EvidenceLadder",
    "FittedRepair",
    "NodeTranslation",
    "RefitHead",
    "Repair",
    "Reweighting",
    "SetTranslation",
    "TemperatureScaling",
    "displacement_distance",
    "load_repair",
    "paper_batch_size",
    "realizable",
]
