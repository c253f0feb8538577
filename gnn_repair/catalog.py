"""Which datasets there are, and their raw files: what is known before any of them is parsed."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

from gnn_repair.atomic import as_path
from gnn_repair.errors import DatasetError, InputError, suggestion
from gnn_repair.published import published_numbers

ROOT_VARIABLE = "GNN_REPAIR_DATA"


@dataclass(frozen=True)
class Source:
    """Where a dataset's files come from, and the PyG class that reads them."""

    collection: str
    """What the listing calls it."""
    url: str
    """Where its files are available."""
    reader: str
    """A class of ``torch_geometric.datasets``, or one of our own (:mod:`gnn_repair.datasets`)."""
    folder: str
    """Its root, relative to the data root."""
    title: str | None = None
    """The dataset's name in that class; None where the class holds a single one."""


_GEOM_GCN = "https://github.com/graphdml-uiuc-jlu/geom-gcn"
_PLATONOV = "https://github.com/yandex-research/heterophilous-graphs/tree/main/data"


_PLANETOID = "https://github.com/kimiyoung/planetoid/tree/master/data"
_planetoid = partial(Source, "Planetoid", _PLANETOID, "Planetoid", "planetoid")
_wikipedia = partial(Source, "Geom-GCN", _GEOM_GCN, "WikipediaNetwork", "wikipedia")
_heterophilous, _filtered = (
    partial(Source, "heterophilous", _PLATONOV, reader, "heterophilous")
    for reader in ("HeterophilousGraphDataset", "FilteredGraphDataset")
)
"""The second are the Wikipedia networks that Platonov et al. freed of duplicate nodes."""


@dataclass(frozen=True)
class RawFile:
    """One raw file as its authors distribute it.

    ``path`` is relative to the data root; ``size`` (bytes) and ``sha256`` are None where no
    reference is known.
    """

    path: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class Statistics:
    """Published figures after preprocessing; None where none is published."""

    nodes: int
    entries: int | None
    features: int
    classes: int
    shares: tuple[int, int, int] | None = None
    """Train, validation and test nodes in per cent of the labelled ones."""


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset: where it comes from, which files it needs, how it is split, what to expect.

    ``source`` is None for the built-in graph, which needs no file. ``stratified`` datasets get
    drawn splits because their source provides a single one.
    """

    name: str
    source: Source | None
    statistics: Statistics
    stratified: bool = False
    files: tuple[RawFile, ...] = ()

    @property
    def splits(self) -> str:
        """The ten-split protocol in words."""
        shares = self.statistics.shares
        ratio = "" if shares is None else f" {shares[0]}/{shares[1]}/{shares[2]}"
        return ("stratified" if self.stratified else "provided") + ratio


def _from_paper(name: str, source: Source) -> DatasetSpec:
    """A dataset of the paper, with the statistics of its dataset table."""
    row = published_numbers()["datasets"][name]
    train, val, test = map(int, row["splits"].split()[1].rstrip(",").split("/"))
    sizes = {key: row[key] for key in ("nodes", "entries", "features", "classes")}
    statistics = Statistics(**sizes, shares=(train, val, test))
    stratified = row["splits"].startswith("stratified")
    return DatasetSpec(name, source, statistics, stratified, _raw_files(name))


def _beyond_paper(name: str, source: Source, statistics: Statistics) -> DatasetSpec:
    """A dataset that the paper does not use, with provided splits."""
    return DatasetSpec(name, source, statistics, files=_raw_files(name))


_MANIFEST = json.loads(resources.files("gnn_repair").joinpath("raw_files.json").read_text("utf-8"))


def _raw_files(name: str) -> tuple[RawFile, ...]:
    """The raw files of a dataset, with their reference sizes and checksums."""
    return tuple(RawFile(path, **reference) for path, reference in _MANIFEST[name].items())


DATASETS: dict[str, DatasetSpec] = {
    "actor": _from_paper("actor", Source("Geom-GCN", _GEOM_GCN, "Actor", "actor")),
    "amazon-ratings": _from_paper("amazon-ratings", _heterophilous("Amazon-ratings")),
    "chameleon": _from_paper("chameleon", _wikipedia("chameleon")),
    "citeseer": _from_paper("citeseer", _planetoid("CiteSeer")),
    "cora": _from_paper("cora", _planetoid("Cora")),
    "pubmed": _from_paper("pubmed", _planetoid("PubMed")),
    "roman-empire": _from_paper("roman-empire", _heterophilous("Roman-empire")),
    "squirrel": _from_paper("squirrel", _wikipedia("squirrel")),
    "tolokers": _beyond_paper(
        "tolokers",
        _heterophilous("Tolokers"),
        Statistics(11_758, 2 * 519_000 + 11_758, 10, 2, (50, 25, 25)),
    ),
    "minesweeper": _beyond_paper(
        "minesweeper",
        _heterophilous("Minesweeper"),
        Statistics(10_000, 2 * 39_402 + 10_000, 7, 2, (50, 25, 25)),
    ),
    "chameleon-filtered": _beyond_paper(
        "chameleon-filtered", _filtered("chameleon_filtered"), Statistics(890, None, 2_325, 5)
    ),
    "squirrel-filtered": _beyond_paper(
        "squirrel-filtered", _filtered("squirrel_filtered"), Statistics(2_223, None, 2_089, 5)
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


# Raw files ---------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The user's cache folder for this package."""
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return Path(home or Path.home() / ".cache") / "gnn-repair"
    except RuntimeError as error:  # neither HOME nor a user that the system knows
        raise DatasetError(
            f"This user has no home folder; set {ROOT_VARIABLE} and XDG_CACHE_HOME to folders."
        ) from error


def data_root(root: str | Path | None = None) -> Path:
    """The data root: the argument, else ``GNN_REPAIR_DATA``, else the user's cache folder."""
    if root is None:
        root = os.environ.get(ROOT_VARIABLE) or cache_folder() / "data"
    if not str(root).strip():
        raise DatasetError(
            f"The data root is empty; name a folder, set {ROOT_VARIABLE}, or leave it out."
        )
    try:
        folder = as_path(as_path(root).expanduser())
    except (InputError, RuntimeError) as error:  # RuntimeError: ~name of nobody
        raise DatasetError(f"The data root is not a folder: {error}.") from error
    if folder.exists() and not folder.is_dir():
        raise DatasetError(f"The data root {folder} is a file; name a folder.")
    return folder


def missing_files(spec: DatasetSpec, root: Path) -> list[RawFile]:
    """The raw files of ``spec`` that are not below ``root``."""
    return [file for file in spec.files if not (root / file.path).is_file()]


def verified_digests(spec: DatasetSpec, root: Path) -> list[str]:
    """The sha256 of every raw file of ``spec``; raises where one is not the reference's."""
    digests = []
    for file in spec.files:
        path = root / file.path
        try:
            size = path.stat().st_size
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise DatasetError(
                f"{path} cannot be read ({error.strerror}); make it readable."
            ) from error
        if file.sha256 not in (None, digest):
            raise DatasetError(
                f"{path} is truncated or altered: it has {size:,} bytes and sha256 "
                f"{digest} instead of {file.size:,} bytes and sha256 {file.sha256}; delete it to "
                "have it downloaded again, or copy the original there."
            )
        digests.append(digest)
    return digests
