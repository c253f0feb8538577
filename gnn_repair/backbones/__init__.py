"""The eight architectures, trained ten splits at a time, and the frozen value they become.

Names load when first used: what the backbones are called needs no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnn_repair.backbones.base import Backbone, Readout, Shape, Stream
    from gnn_repair.backbones.frozen import Frozen, load_frozen
    from gnn_repair.backbones.graph import Graph, Operator
    from gnn_repair.backbones.own_network import (
        FrozenNetwork,
        OwnNetwork,
        load_network,
        train_own,
    )
    from gnn_repair.backbones.registry import BACKBONES
    from gnn_repair.backbones.train import find_backbone, train_backbone

_HOMES = {
    "BACKBONES": "registry",
    "Backbone": "base",
    "Frozen": "frozen",
    "FrozenNetwork": "own_network",
    "Graph": "graph",
    "Operator": "graph",
    "OwnNetwork": "own_network",
    "Readout": "base",
    "Shape": "base",
    "Stream": "base",
    "find_backbone": "train",
    "load_frozen": "frozen",
    "load_network": "own_network",
    "train_backbone": "train",
    "train_own": "own_network",
}

__all__ = [
    "BACKBONES",
    "Backbone",
    "Frozen",
    "FrozenNetwork",
    "Graph",
    "Operator",
    "OwnNetwork",
    "Readout",
    "Shape",
    "Stream",
    "find_backbone",
    "load_frozen",
    "load_network",
    "train_backbone",
    "train_own",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gnn_repair.backbones' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gnn_repair.backbones.{_HOMES[name]}"), name)
