"""Datasets: benchmark graphs and the built-in one, as PyG ``Data`` with ten splits."""

from __future__ import annotations

from pathlib import Path

from torch_geometric.data import Data

from gnn_repair.datasets import sources
from gnn_repair.datasets.catalog import (
    DatasetSpec,
    Statistics,
    beyond_paper,
    from_paper,
)
from gnn_repair.datasets.loading import load
from gnn_repair.datasets.motifs import motif_graphs
from gnn_repair.datasets.publications import generate_publications
from gnn_repair.datasets.splits import DRAWS, Draw, as_splits, stratified_splits
from gnn_repair.datasets.validation import check_data, num_classes
from gnn_repair.errors import DatasetError, SplitError
from gnn_repair.suggestion import suggestion

DATASETS: dict[str, DatasetSpec] = {
    "actor": from_paper("actor", sources.actor()),
    "amazon-ratings": from_paper("amazon-ratings", sources.heterophilous("Amazon-ratings")),
    "chameleon": from_paper("chameleon", sources.wikipedia("chameleon")),
    "citeseer": from_paper("citeseer", sources.planetoid("CiteSeer")),
    "cora": from_paper("cora", sources.planetoid("Cora")),
    "pubmed": from_paper("pubmed", sources.planetoid("PubMed")),
    "roman-empire": from_paper("roman-empire", sources.heterophilous("Roman-empire")),
    "squirrel": from_paper("squirrel", sources.wikipedia("squirrel")),
    "tolokers": beyond_paper(
        "tolokers",
        sources.heterophilous("Tolokers"),
        Statistics(11_758, 2 * 519_000 + 11_758, 10, 2, (50, 25, 25)),
    ),
    "minesweeper": beyond_paper(
        "minesweeper",
        sources.heterophilous("Minesweeper"),
        Statistics(10_000, 2 * 39_402 + 10_000, 7, 2, (50, 25, 25)),
    ),
    "chameleon-filtered": beyond_paper(
        "chameleon-filtered",
        sources.filtered("chameleon_filtered"),
        Statistics(890, None, 2_325, 5),
    ),
    "squirrel-filtered": beyond_paper(
        "squirrel-filtered",
        sources.filtered("squirrel_filtered"),
        Statistics(2_223, None, 2_089, 5),
    ),
    "builtin": DatasetSpec("builtin", None, Statistics(3_000, 10_740, 64, 18, (50, 25, 25)), True),
}
"""Every dataset by name."""


def find_dataset(name: str) -> DatasetSpec:
    """The description of a dataset; an unknown name raises with the nearest known one."""
    if isinstance(name, str) and name in DATASETS:
        return DATASETS[name]
    wanted = str(name).lower().replace("_", "-").replace(" ", "-")
    raise DatasetError(f"There is no dataset {name!r:.80}; {suggestion(wanted, DATASETS)}")


def load_dataset(name: str, root: str | Path | None = None, *, draw: Draw = "torch") -> Data:
    """Load a dataset, preprocessed as in the paper.

    Raw files are looked for below ``root``, else ``GNN_REPAIR_DATA``, else the user's cache
    folder; what is missing is downloaded there where the machine is online. They are compared
    with their checksums before they are parsed, and nothing else is written beside them.

    Args:
        name: A key of :data:`DATASETS`; ``"builtin"`` needs no file.
        root: The data root.
        draw: Whose generator draws the splits of Cora, Citeseer and PubMed, which come with one
            only: ``"torch"`` gives the paper's, ``"numpy"`` others of the same sizes.

    Returns:
        ``x`` float32 [N, F]; ``edge_index`` [2, E], the entries with one self-loop per node
        added; ``y`` long [N], -1 where unlabelled; ``train_mask``, ``val_mask`` and ``test_mask``
        bool [N, splits]; ``name``; ``classes`` (C).
    """
    if draw not in DRAWS:
        raise SplitError(f"There is no draw {draw!r}; choose 'torch' or 'numpy'.")
    return load(find_dataset(name), root, draw)


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
