"""Is a dataset what its publication says? One row of findings a dataset."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from gnn_repair.catalog import DatasetSpec, missing_files
from gnn_repair.checks import MASKS
from gnn_repair.datasets.loading import CacheWarning, load
from gnn_repair.errors import InputError
from gnn_repair.published import counted

_FIGURES = ("nodes", "entries", "features", "classes", "splits", "train", "val", "test")


@dataclass(frozen=True)
class DatasetCheck:
    """What the check of one dataset found.

    ``figures`` holds None for what could not be counted; ``error`` is set where the dataset could
    not be loaded at all.
    """

    name: str
    status: str
    figures: dict[str, int | None]
    checksums: str
    error: InputError | None = None

    def row(self) -> dict[str, Any]:
        """The finding as one line of a listing."""
        return {
            "dataset": self.name,
            **self.figures,
            "checksums": self.checksums,
            "status": self.status,
        }


def check_dataset(spec: DatasetSpec, root: Path, required: bool = False) -> DatasetCheck:
    """Load a dataset and compare it with its published statistics.

    Missing files are a finding, not an error, unless the dataset is ``required``; only then is a
    download tried.
    """
    nothing: dict[str, int | None] = dict.fromkeys(_FIGURES)
    missing = missing_files(spec, root)
    if missing and not required:
        return DatasetCheck(
            spec.name, "missing", nothing, f"{counted(len(missing), 'file')} missing"
        )
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", CacheWarning)
            data = load(spec, root)
    except InputError as error:
        if missing:
            return DatasetCheck(
                spec.name, "missing", nothing, f"{counted(len(missing), 'file')} missing", error
            )
        return DatasetCheck(spec.name, f"differs: {error}", nothing, "differ", error)
    faults = [str(each.message) for each in said if each.category is CacheWarning]
    differences = [*faults, *compare(spec, data)]
    status = "differs: " + "; ".join(differences) if differences else "ok"
    known = sum(file.sha256 is not None for file in spec.files)
    verified = f"{known} verified" if known == len(spec.files) else "no published checksum"
    return DatasetCheck(
        spec.name, status, describe(data), verified if spec.files else "none needed"
    )


def compare(spec: DatasetSpec, data: Data) -> list[str]:
    """Where ``data`` departs from the published statistics, one phrase each."""
    found, expected = describe(data), spec.statistics
    differences = [
        f"{field} {found[field]:,} (published {published:,})"
        for field in ("nodes", "entries", "features", "classes")
        if (published := getattr(expected, field)) not in (None, found[field])
    ]
    if found["splits"] != 10:
        differences.append(f"splits {found['splits']} (published 10)")
    if expected.shares is not None:
        differences += _share_differences(data, expected.shares)
    return differences


def _share_differences(data: Data, shares: tuple[int, int, int]) -> list[str]:
    """Masks whose share of the labelled nodes does not round to the published per cent."""
    labelled = int((data.y >= 0).sum())
    differences = []
    for name, published in zip(MASKS, shares, strict=True):
        percent = 100 * data[name].sum(dim=0) / labelled
        furthest = percent[(percent - published).abs().argmax()].item()
        if abs(furthest - published) > 0.5:
            differences.append(f"{name} {furthest:.1f} % (published {published} %)")
    return differences


def describe(data: Data) -> dict[str, int | None]:
    """Nodes, entries, features, classes, splits and the sizes of split 0."""
    train, val, test = (int(data[name][:, 0].sum()) for name in MASKS)
    sizes = (data.x.size(0), data.edge_index.size(1), data.x.size(1), int(data.y.max()) + 1)
    return dict(zip(_FIGURES, (*sizes, data.train_mask.size(1), train, val, test), strict=True))
