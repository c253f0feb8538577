"""What is known of a dataset before any of its files is opened."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gnn_repair.datasets.sources import Source
from gnn_repair.published import published


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


def from_paper(name: str, source: Source) -> DatasetSpec:
    """A dataset of the paper, with the statistics of its dataset table."""
    row = published()["datasets"][name]
    ratio = re.search(r"(\d+)/(\d+)/(\d+)", row["splits"])
    if ratio is None:
        raise ValueError(f"the published splits of {name} name no ratio: {row['splits']}")
    train, val, test = (int(share) for share in ratio.groups())
    statistics = Statistics(
        row["nodes"], row["entries"], row["features"], row["classes"], (train, val, test)
    )
    stratified = row["splits"].startswith("stratified")
    return DatasetSpec(name, source, statistics, stratified, raw_files(name))


def beyond_paper(name: str, source: Source, statistics: Statistics) -> DatasetSpec:
    """A dataset that the paper does not use, with provided splits."""
    return DatasetSpec(name, source, statistics, files=raw_files(name))


@functools.cache
def _manifest() -> dict[str, dict[str, Any]]:
    text = resources.files("gnn_repair.datasets").joinpath("raw_files.json").read_text("utf-8")
    manifest: dict[str, dict[str, Any]] = json.loads(text)
    return manifest


def raw_files(name: str) -> tuple[RawFile, ...]:
    """The raw files of a dataset, with their reference sizes and checksums."""
    return tuple(RawFile(path, **reference) for path, reference in _manifest()[name].items())
