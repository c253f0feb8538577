"""Repairs on top of a frozen model: two from the paper, its controls, baselines, the ladder.

Names load when first used: reading what methods there are needs no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnn_repair.budget import paper_batch_size

if TYPE_CHECKING:
    from gnn_repair.repair.base import Repair
    from gnn_repair.repair.baselines import CorrectAndSmooth, TemperatureScaling
    from gnn_repair.repair.cross_fitting import CrossFitted
    from gnn_repair.repair.fitted import FittedRepair
    from gnn_repair.repair.head import RefitHead
    from gnn_repair.repair.ladder import EvidenceLadder
    from gnn_repair.repair.methods import METHODS, Look, Method
    from gnn_repair.repair.realizability import displacement_distance, realizable
    from gnn_repair.repair.registry import REPAIRS, load_repair
    from gnn_repair.repair.reweighting import Reweighting
    from gnn_repair.repair.translation import NodeTranslation, SetTranslation

_HOMES = {
    "CorrectAndSmooth": "baselines",
    "CrossFitted": "cross_fitting",
    "EvidenceLadder": "ladder",
    "FittedRepair": "fitted",
    "Look": "methods",
    "METHODS": "methods",
    "Method": "methods",
    "NodeTranslation": "translation",
    "REPAIRS": "registry",
    "RefitHead": "head",
    "Repair": "base",
    "Reweighting": "reweighting",
    "SetTranslation": "translation",
    "TemperatureScaling": "baselines",
    "displacement_distance": "realizability",
    "load_repair": "registry",
    "realizable": "realizability",
}

__all__ = [
    "METHODS",
    "REPAIRS",
    "CorrectAndSmooth",
    "CrossFitted",
    "EvidenceLadder",
    "FittedRepair",
    "Look",
    "Method",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gnn_repair.repair' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gnn_repair.repair.{_HOMES[name]}"), name)
