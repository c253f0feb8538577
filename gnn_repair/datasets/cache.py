"""Finished graphs kept in the user's cache folder, so that text is parsed once.

A cache is a convenience: one that is damaged, foreign or cannot be written is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from torch_geometric.data import Data

from gnn_repair.datasets.files import cache_folder
from gnn_repair.datasets.validation import check_data
from gnn_repair.errors import InputError, ResourceError
from gnn_repair.files import load_tensors, save_tensors

VERSION = 4
"""Raise this when preprocessing or splits change: older graphs are not used again."""

_KIND = "preprocessed graph"
_TENSORS = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")


def cached(
    name: str, classes: int, digests: list[str], draw: str, build: Callable[[], Data]
) -> Data:
    """The graph ``build()`` makes of raw files with these ``digests``, from the cache if there."""
    key = hashlib.sha256(" ".join([name, str(VERSION), draw, *digests]).encode()).hexdigest()
    path = cache_folder() / "graphs" / f"{name}-{key[:20]}.safetensors"
    data = _read(path, name, classes)
    if data is None:
        data = build()
        with contextlib.suppress(InputError, ResourceError):
            tensors = {field: data[field] for field in _TENSORS}
            save_tensors(path, _KIND, {"name": name}, tensors)
    return data


def _read(path: Path, name: str, classes: int) -> Data | None:
    try:
        _, tensors = load_tensors(path, _KIND)
        data = Data(**{field: tensors[field] for field in _TENSORS}, name=name, classes=classes)
        check_data(data)
    except (InputError, KeyError):
        return None
    return data
