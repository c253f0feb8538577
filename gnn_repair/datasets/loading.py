"""From a dataset's name to a checked graph: fetched, verified, parsed, preprocessed, cached."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric import datasets as pyg_datasets
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.datasets import HeterophilousGraphDataset
from torch_geometric.utils import add_self_loops, to_undirected

from gnn_repair.atomic import check_target, scratch_folder
from gnn_repair.catalog import (
    ROOT_VARIABLE,
    DatasetSpec,
    RawFile,
    Source,
    cache_folder,
    data_root,
    find_dataset,
    missing_files,
    verified_digests,
)
from gnn_repair.checks import MASKS, as_splits, check_data, check_edges, check_labels
from gnn_repair.datasets.generated import generate_builtin
from gnn_repair.datasets.splits import DRAWS, Draw, stratified_splits
from gnn_repair.errors import DatasetError, GnnRepairError, InputError, ResourceError, SplitError
from gnn_repair.files import load_tensors, save_tensors
from gnn_repair.published import count_of

SPLITS = 10
_PATIENCE = 10.0  # seconds to wait for a sign of life before calling the machine offline


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


def load(spec: DatasetSpec, root: str | Path | None = None, draw: Draw = "torch") -> Data:
    """Load the dataset ``spec`` describes; see :func:`load_dataset`.

    Every raw file is compared with its checksum before anything parses it.
    """
    classes = spec.statistics.classes
    if spec.source is None:
        return preprocess(generate_builtin(), spec.name, classes)
    folder = data_root(root)
    fetch_missing(spec, folder)
    digests = verified_digests(spec, folder)
    return load_or_build(
        spec.name, classes, [draw, *digests], build=lambda: _parse(spec, folder, draw)
    )


def _parse(spec: DatasetSpec, folder: Path, draw: Draw) -> Data:
    assert spec.source is not None
    try:
        raw = read_raw(spec.source, folder)
        return preprocess(raw, spec.name, spec.statistics.classes, spec.stratified, draw)
    except GnnRepairError as error:
        raise type(error)(f"{spec.name} cannot be used: {error}") from error
    except Exception as error:  # whatever PyG's parsers make of a malformed file
        raise DatasetError(
            f"{spec.name} cannot be read from {folder / spec.files[0].path} "
            f"({type(error).__name__}: {error}); replace it with the original file from "
            f"{spec.source.url}."
        ) from error


# Raw files by PyG's own classes, read without writing beside them ---------------------------------


class FilteredGraphDataset(HeterophilousGraphDataset):
    """Chameleon and Squirrel without their duplicate nodes: files that PyG's class can read but
    whose names it does not know."""

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        InMemoryDataset.__init__(self, root)
        self.load(self.processed_paths[0])


def read_raw(source: Source, root: Path) -> Data:
    """Parse the raw files below ``root``; what PyG writes goes to a scratch folder."""
    with tempfile.TemporaryDirectory(prefix="gnn-repair-") as scratch:
        elsewhere = {
            "processed_dir": property(lambda dataset: scratch),
            "download": _refuse_download,
            "log": property(lambda dataset: False, lambda dataset, value: None),
        }
        return _opened(source, elsewhere, root)[0]


def download_raw(source: Source, root: Path) -> None:
    """Download the raw files below ``root`` as PyG does, without parsing them."""
    nothing = lambda *arguments, **options: None  # noqa: E731
    _opened(source, {"_process": nothing, "load": nothing}, root)


def _opened(source: Source, overrides: dict[str, Any], root: Path) -> InMemoryDataset:
    """PyG's dataset with some of its methods replaced."""
    own_readers = {"FilteredGraphDataset": FilteredGraphDataset}
    reader = own_readers.get(source.reader) or getattr(pyg_datasets, source.reader)
    dataset = type(source.reader, (reader,), overrides)
    names = () if source.title is None else (source.title,)
    return dataset(str(root / source.folder), *names)


def _refuse_download(dataset: InMemoryDataset) -> None:
    raise FileNotFoundError(f"raw files vanished from {dataset.raw_dir}")


def fetch_missing(spec: DatasetSpec, root: Path) -> None:
    """Download what is missing below ``root``, or say what is missing and why it cannot be had."""
    missing = missing_files(spec, root)
    if not missing or spec.source is None:
        return
    try:
        _download(spec, spec.source, root, missing)
    except Exception as error:  # PyG's downloads fail with whatever their transport raises
        what = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise DatasetError(
            f"{spec.name} is not here and cannot be downloaded ({what}); copy its files "
            f"from {spec.source.url}, or name the folder that holds them as the data root (--root "
            f"or {ROOT_VARIABLE}); missing are {_listing(missing, root)}."
        ) from error


def _download(spec: DatasetSpec, source: Source, root: Path, missing: list[RawFile]) -> None:
    """Download to a scratch folder, verify, move below ``root``."""
    check_target(root / missing[0].path, folders=True)
    try:  # PyG's own downloads wait for minutes before they give up
        request = urllib.request.Request(source.url, method="HEAD")
        urllib.request.urlopen(request, timeout=_PATIENCE).close()
    except urllib.error.HTTPError:
        pass  # somebody answered
    except (OSError, ValueError) as error:
        raise InputError(f"no connection: {getattr(error, 'reason', error)}") from error
    root.mkdir(parents=True, exist_ok=True)
    with scratch_folder(root) as scratch:
        download_raw(source, scratch)
        try:
            verified_digests(spec, scratch)
        except DatasetError as error:
            raise InputError(f"what the server sent does not match: {error}") from error
        for file in missing:
            (root / file.path).parent.mkdir(parents=True, exist_ok=True)
            (scratch / file.path).replace(root / file.path)


def _listing(files: list[RawFile], root: Path) -> str:
    """``files`` with their sizes, and the folder they belong in (a dataset has just one)."""
    sizes = (
        f"{Path(file.path).name} "
        + ("(size not published)" if file.size is None else f"({file.size:,} bytes)")
        for file in files
    )
    return f"{', '.join(sizes)} in {(root / files[0].path).parent}"


# From a raw graph to the entries, masks and types that everything after relies on -----------------


def preprocess(
    raw: Data, name: str, classes: int, stratified: bool = False, draw: Draw = "torch"
) -> Data:
    """Prepare a raw graph and check it.

    Features are cast, not normalised. Splits are the first ten provided ones, or, if
    ``stratified``, ten drawn ones (by the generator ``draw``); nodes with ``y = -1`` are in none.

    Returns:
        ``x`` float32 [N, F], ``edge_index`` [2, E], ``y`` long [N], ``train_mask``, ``val_mask``
        and ``test_mask`` bool [N, splits], ``name`` and ``classes`` (C).
    """
    y = raw.y.long().view(-1)
    check_labels(y, classes)
    masks = [raw[mask] for mask in MASKS] if not stratified else stratified_splits(y, draw=draw)
    labelled = (y >= 0).unsqueeze(1)
    splits = [(as_splits(mask.bool())[:, :SPLITS] & labelled).contiguous() for mask in masks]
    data = Data(
        x=raw.x.float().contiguous(),
        edge_index=entries(raw.edge_index, num_nodes=raw.x.size(0)),
        y=y,
        **dict(zip(MASKS, splits, strict=True)),
        name=name,
        classes=classes,
    )
    check_data(data)
    return data


def entries(edge_index: Tensor, num_nodes: int) -> Tensor:
    """The entries E [2, E] of a graph: symmetric, coalesced, one more self-loop per node.

    The self-loop comes on top of one that is already there, so that such a node has two: this is
    what reproduces the published counts.
    """
    check_edges(edge_index, num_nodes)
    symmetric = to_undirected(edge_index.long(), num_nodes=num_nodes)
    looped, _ = add_self_loops(symmetric, num_nodes=num_nodes)
    return looped.contiguous()


# Finished graphs in the user's cache folder, so that text is parsed once --------------------------
#
# A cache is a convenience: one that is absent, foreign or cannot be written is passed over, and one
# that is damaged is named in a warning and built again.

VERSION = 4
"""Raise this when preprocessing, splits or the files change: older graphs are not used again."""

_KIND = "preprocessed graph"
_TENSORS = ("x", "edge_index", "y", *MASKS)


class CacheWarning(UserWarning):
    """A cached graph was damaged."""


def load_or_build(name: str, classes: int, made_of: list[str], build: Callable[[], Data]) -> Data:
    """The graph ``build()`` makes, from the cache if it is there.

    ``made_of`` is what it depends on: the draw of its splits and its raw files' digests.
    """
    key = hashlib.sha256(" ".join([name, str(VERSION), *made_of]).encode()).hexdigest()
    try:
        path = cache_folder() / "graphs" / f"{name}-{key[:20]}.safetensors"
        cached = path.is_file()
    except (InputError, OSError):  # no home, or one that cannot be entered
        return build()
    if cached:
        try:
            header, tensors = load_tensors(path, _KIND, sealed=True)
            if header != {"name": name} or tensors.keys() != set(_TENSORS):
                raise InputError(f"{path} does not hold {name}")
            data = Data(**{field: tensors[field] for field in _TENSORS}, name=name, classes=classes)
            check_data(data)
            return data
        except InputError as error:
            text = f"the cached graph of {name} cannot be used: {error}; it is built again from the"
            warnings.warn(f"{text} raw files", CacheWarning, stacklevel=3)
    data = build()
    with contextlib.suppress(InputError, ResourceError, RuntimeError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, _KIND, {"name": name}, {field: data[field] for field in _TENSORS})
    return data


# Is a dataset what its publication says? ---------------------------------------------------------

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
    files = f"{count_of(len(missing), 'file')} missing"
    absent = DatasetCheck(spec.name, "missing", nothing, files)
    if missing and not required:
        return absent
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", CacheWarning)
            data = load(spec, root)
    except InputError as error:
        if missing:
            return replace(absent, error=error)
        return DatasetCheck(spec.name, f"differs: {error}", nothing, "differ", error)
    faults = [str(each.message) for each in raised if each.category is CacheWarning]
    differences = [*faults, *compare(spec, data)]
    status = "differs: " + "; ".join(differences) if differences else "ok"
    total, hashed = len(spec.files), sum(file.sha256 is not None for file in spec.files)
    verified = f"{hashed} of {total} verified" if hashed else "no published checksum"
    verified = f"{hashed} verified" if hashed == total else verified
    return DatasetCheck(spec.name, status, describe(data), verified if total else "none needed")


def compare(spec: DatasetSpec, data: Data) -> list[str]:
    """Where ``data`` departs from the published statistics, one phrase each."""
    statistics, expected = describe(data), spec.statistics
    differences = [
        f"{field} {statistics[field]:,} (published {published:,})"
        for field in ("nodes", "entries", "features", "classes")
        if (published := getattr(expected, field)) not in (None, statistics[field])
    ]
    if statistics["splits"] != 10:
        differences.append(f"splits {statistics['splits']} (published 10)")
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
