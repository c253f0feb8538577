"""The backbones by name. A ninth is one class and one line here."""

from __future__ import annotations

from gnn_repair.backbones.attention import GAT, GATv2
from gnn_repair.backbones.base import Backbone
from gnn_repair.backbones.convolutional import GCN, GraphConvolution, GraphSAGE
from gnn_repair.backbones.streams import H2GCN, SGC, MixHop

BACKBONES: dict[str, type[Backbone]] = {
    "gcn": GCN,
    "gat": GAT,
    "sage": GraphSAGE,
    "gatv2": GATv2,
    "graphconv": GraphConvolution,
    "sgc": SGC,
    "mixhop": MixHop,
    "h2gcn": H2GCN,
}
