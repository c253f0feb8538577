"""The eight architectures, trained ten splits at a time, and the frozen value they become."""

from gnn_repair.backbones.base import Backbone, Readout, Shape, Stream
from gnn_repair.backbones.frozen import Frozen, load_frozen
from gnn_repair.backbones.graph import Graph, Operator
from gnn_repair.backbones.registry import BACKBONES
from gnn_repair.backbones.train import find_backbone, train_backbone

__all__ = [
    "BACKBONES",
    "Backbone",
    "Frozen",
    "Graph",
    "Operator",
    "Readout",
    "Shape",
    "Stream",
    "find_backbone",
    "load_frozen",
    "train_backbone",
]
