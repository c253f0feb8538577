"""Datasets: benchmark graphs and the built-in one, as PyG ``Data`` with ten splits."""

from gnn_repair.datasets.loading import load_dataset
from gnn_repair.datasets.motifs import motif_graphs
from gnn_repair.datasets.publications import generate_publications
from gnn_repair.datasets.splits import stratified_splits

__all__ = [
    "generate_publications",
    "load_dataset",
    "motif_graphs",
    "stratified_splits",
]
