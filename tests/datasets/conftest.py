"""Generated files in the formats of the real datasets, and a private cache for every test."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from gnn_repair.catalog import DATASETS, RawFile


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def arrays():
    """A small graph in the format of the heterophilous collection, twelve splits, 18 classes."""
    generator = np.random.default_rng(3)
    nodes, splits = 72, 12
    parts = np.stack([generator.permutation(nodes) for _ in range(splits)])
    edges = generator.integers(nodes, size=(150, 2))
    return {
        "node_features": generator.standard_normal((nodes, 5)).astype(np.float32),
        "node_labels": np.arange(nodes) % 18,
        "edges": np.unique(np.sort(edges, axis=1), axis=0),
        "train_masks": parts < 36,
        "val_masks": (parts >= 36) & (parts < 54),
        "test_masks": parts >= 54,
    }


@pytest.fixture
def place(tmp_path):
    """Writes arrays where a dataset looks for its npz file; gives a spec that expects them."""

    def write(name, arrays):
        spec, root = DATASETS[name], tmp_path / "data"
        path = root / spec.files[0].path
        path.parent.mkdir(parents=True)
        np.savez(path, **arrays)
        if spec.files[0].sha256 is not None:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            file = RawFile(spec.files[0].path, path.stat().st_size, digest)
            spec = dataclasses.replace(spec, files=(file,))
        return spec, root

    return write
