"""Repairs on top of a frozen model: two from the paper, its controls, baselines, the ladder."""

from typing import Any

from gnn_repair.budget import paper_batch_size
from gnn_repair.methods import METHODS
from gnn_repair.repair.adapters import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair.base import FittedRepair, Repair
from gnn_repair.repair.baselines import CorrectAndSmooth, TemperatureScaling
from gnn_repair.repair.folds import CrossFitted
from gnn_repair.repair.ladder.ladder import EvidenceLadder

REPAIRS: dict[str, type[Repair[Any]]] = {
    key.replace("_", "-"): method.repair_class
    for key, method in METHODS.items()
    if method.by_default
}
"""The classes of the methods that run by default, by name; each is declared once, in METHODS."""

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
    "paper_batch_size",
]
