"""From a dataset's description to a checked graph."""

from __future__ import annotations

from pathlib import Path

from torch_geometric.data import Data

from gnn_repair.datasets.builtin import generate_builtin
from gnn_repair.datasets.cache import cached
from gnn_repair.datasets.catalog import DatasetSpec
from gnn_repair.datasets.files import data_root, fetch_missing, verified_digests
from gnn_repair.datasets.preprocessing import preprocess
from gnn_repair.datasets.splits import Draw
from gnn_repair.errors import DatasetError, GnnRepairError


def load(spec: DatasetSpec, root: str | Path | None = None, draw: Draw = "torch") -> Data:
    """Load the dataset ``spec`` describes; see :func:`gnn_repair.datasets.load_dataset`.

    Every raw file is compared with its checksum before anything parses it.
    """
    classes = spec.statistics.classes
    if spec.source is None:
        return preprocess(generate_builtin(), spec.name, classes)
    folder = data_root(root)
    fetch_missing(spec, folder)
    digests = verified_digests(spec, folder)
    return cached(spec.name, classes, [draw, *digests], build=lambda: _parse(spec, folder, draw))


def _parse(spec: DatasetSpec, folder: Path, draw: Draw) -> Data:
    assert spec.source is not None
    try:
        raw = spec.source.read(folder)
        return preprocess(raw, spec.name, spec.statistics.classes, spec.stratified, draw)
    except GnnRepairError as error:
        raise type(error)(f"{spec.name} cannot be used: {error}") from error
    except Exception as error:  # whatever PyG's parsers make of a malformed file
        raise DatasetError(
            f"{spec.name} cannot be read from {folder / spec.files[0].path} "
            f"({type(error).__name__}: {error}); replace it with the original file from "
            f"{spec.source.url}."
        ) from error
