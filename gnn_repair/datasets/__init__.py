"""Datasets: benchmark graphs and the built-in one, as PyG ``Data`` with ten splits."""

from gnn_repair.catalog import DATASETS, DatasetSpec, find_dataset
from gnn_repair.datasets.loading import load_dataset
from gnn_repair.datasets.motifs import motif_graphs
from gnn_repair.datasets.publications import generate_publications
from gnn_repair.datasets.splits import as_splits, stratified_splits
from gnn_repair.datasets.validation import check_data, num_classes

__all__ = [
    "DATASETS",
    "DatasetSpec",
    "as_splits",
    "check_data",
    "find_dataset",
    "generate_publications",
    "load_dataset",
    "motif_graphs",
    "num_classes",
    "stratified_splits",
]
