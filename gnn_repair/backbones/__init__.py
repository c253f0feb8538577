"""The eight architectures, trained ten splits at a time, and the frozen value they become."""

from gnn_repair.backbones.architectures import BACKBONES
from gnn_repair.backbones.base import Backbone, Readout, Shape, Stream
from gnn_repair.backbones.frozen import Frozen
from gnn_repair.backbones.graph import Graph, Operator
from gnn_repair.backbones.train import (
    FrozenNetwork,
    OwnNetwork,
    find_backbone,
    load_network,
    train_backbone,
    train_own,
)

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
    "load_network",
    "train_backbone",
    "train_own",
]
