"""Finished graphs kept in the user's cache folder, so that text is parsed once.

A cache is a convenience: one that is absent, foreign or cannot be written is passed over, and one
that is damaged is named in a warning and built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path

from torch_geometric.data import Data

from gnn_repair.datasets.files import cache_folder
from gnn_repair.datasets.validation import check_data
from gnn_repair.errors import InputError, ResourceError
from gnn_repair.files import load_tensors, save_tensors

VERSION = 4
"""Raise this when preprocessing, splits or the files change: older graphs are not used again."""

_KIND = "preprocessed graph"
_TENSORS = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")


class CacheWarning(UserWarning):
    """A cached graph was damaged."""


def cached(name: str, classes: int, made_of: list[str], build: Callable[[], Data]) -> Data:
    """The graph ``build()`` makes, from the cache if it is there.

    Args:
        name: the dataset's.
        classes: C.
        made_of: what the graph depends on: the draw of its splits, its raw files' digests.
        build: makes it anew.
    """
    data, fault = _read(name, classes, made_of)
    if fault:
        warnings.warn(f"{fault}; it is built again from the raw files", CacheWarning, stacklevel=3)
    if data is None:
        data = build()
        with contextlib.suppress(InputError, ResourceError, RuntimeError):
            tensors = {field: data[field] for field in _TENSORS}
            save_tensors(_place(name, made_of), _KIND, {"name": name}, tensors)
    return data


def cache_fault(name: str, classes: int, made_of: list[str]) -> str:
    """What is wrong with the cached graph; empty where it is sound or there is none."""
    return _read(name, classes, made_of)[1]


def _place(name: str, made_of: list[str]) -> Path:
    key = hashlib.sha256(" ".join([name, str(VERSION), *made_of]).encode()).hexdigest()
    return cache_folder() / "graphs" / f"{name}-{key[:20]}.safetensors"


def _read(name: str, classes: int, made_of: list[str]) -> tuple[Data | None, str]:
    """The cached graph if it is there and sound, and what is wrong with it."""
    with contextlib.suppress(InputError, RuntimeError, OSError):  # no home, or not to be entered
        path = _place(name, made_of)
        if path.is_file():
            return _read_file(path, name, classes)
    return None, ""


def _read_file(path: Path, name: str, classes: int) -> tuple[Data | None, str]:
    try:
        header, tensors = load_tensors(path, _KIND, sealed=True)
        if header != {"name": name} or tensors.keys() != set(_TENSORS):
            raise InputError(f"{path} does not hold {name}")
        named = {field: tensors[field] for field in _TENSORS}
        data = Data(**named, name=name, classes=classes)
        check_data(data)
    except InputError as error:
        return None, f"the cached graph of {name} cannot be used: {error}"
    return data, ""
