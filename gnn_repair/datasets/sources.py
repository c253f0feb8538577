"""Where datasets come from: PyG's own classes, read without writing beside their raw files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.datasets import (
    Actor,
    HeterophilousGraphDataset,
    Planetoid,
    WikipediaNetwork,
)

from gnn_repair.files import scratch_folder


class FilteredGraphDataset(HeterophilousGraphDataset):
    """Chameleon and Squirrel without their duplicate nodes: files that PyG's class can read but
    whose names it does not know."""

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        InMemoryDataset.__init__(self, root)
        self.load(self.processed_paths[0])


@dataclass(frozen=True)
class Source:
    """A PyG dataset class and how it is called.

    Attributes:
        collection: What the listing calls it.
        url: Where its files can be had.
        dataset: The PyG class.
        folder: Its root, relative to the data root.
        title: The dataset's name in that class; None where the class holds a single one.
    """

    collection: str
    url: str
    dataset: type[Any]
    folder: str
    title: str | None = None

    def read(self, root: Path) -> Data:
        """Parse the raw files below ``root``; what PyG writes goes to a scratch folder."""
        with tempfile.TemporaryDirectory(prefix="gnn-repair-") as scratch:
            elsewhere = {
                "processed_dir": property(lambda dataset: scratch),
                "download": _refuse_download,
                "log": property(lambda dataset: False, lambda dataset, value: None),
            }
            return self._open(elsewhere, root)[0]

    def download(self, root: Path) -> None:
        """Download the raw files below ``root`` as PyG does, without parsing them."""
        nothing = lambda *arguments, **options: None  # noqa: E731
        self._open({"_process": nothing, "load": nothing}, root)

    def _open(self, overrides: dict[str, Any], root: Path) -> InMemoryDataset:
        dataset = type(self.dataset.__name__, (self.dataset,), overrides)
        names = () if self.title is None else (self.title,)
        return dataset(str(root / self.folder), *names)


def _refuse_download(dataset: InMemoryDataset) -> None:
    raise FileNotFoundError(f"raw files vanished from {dataset.raw_dir}")


def download_verified(
    source: Source, root: Path, paths: list[str], verify: Callable[[Path], object]
) -> None:
    """Download to a scratch folder, ``verify(scratch)``, then move ``paths`` below ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    with scratch_folder(root) as scratch:
        source.download(scratch)
        verify(scratch)
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (scratch / path).replace(root / path)


def planetoid(title: str) -> Source:
    """Citation networks with one standard split."""
    url = "https://github.com/kimiyoung/planetoid/tree/master/data"
    return Source("Planetoid", url, Planetoid, "planetoid", title)


def actor() -> Source:
    """The actor co-occurrence network of Geom-GCN."""
    url = "https://github.com/graphdml-uiuc-jlu/geom-gcn"
    return Source("Geom-GCN", url, Actor, "actor")


def wikipedia(title: str) -> Source:
    """The Wikipedia networks of Geom-GCN."""
    url = "https://github.com/graphdml-uiuc-jlu/geom-gcn"
    return Source("Geom-GCN", url, WikipediaNetwork, "wikipedia", title)


def heterophilous(title: str) -> Source:
    """The heterophilous graphs of Platonov et al."""
    url = "https://github.com/yandex-research/heterophilous-graphs/tree/main/data"
    return Source("heterophilous", url, HeterophilousGraphDataset, "heterophilous", title)


def filtered(title: str) -> Source:
    """The Wikipedia networks that Platonov et al. freed of duplicate nodes."""
    url = "https://github.com/yandex-research/heterophilous-graphs/tree/main/data"
    return Source("heterophilous", url, FilteredGraphDataset, "heterophilous", title)
