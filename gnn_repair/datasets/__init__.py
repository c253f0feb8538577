"""Datasets: benchmark graphs and generated ones, as PyG data with splits."""

from gnn_repair.datasets.generated import (
    generate_publications,
    motif_graphs,
    planted_labels,
    planted_links,
    planted_values,
)
from gnn_repair.datasets.loading import load_dataset
from gnn_repair.datasets.splits import stratified_splits

__all__ = [
    "generate_publications",
    "load_dataset",
    "motif_graphs",
    "planted_labels",
    "planted_links",
    "planted_values",
    "stratified_splits",
]
