"""Raw files: where they are looked for, whether they are there and what they should be."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path

from gnn_repair.datasets.catalog import DatasetSpec, RawFile
from gnn_repair.datasets.sources import Source, download_verified
from gnn_repair.errors import DatasetError

ROOT_VARIABLE = "GNN_REPAIR_DATA"
_PATIENCE = 10.0  # seconds to wait for a sign of life before calling the machine offline


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
        folder = Path(root).expanduser()
        if "\0" in str(folder):
            raise ValueError("embedded null byte")
        is_file = folder.exists() and not folder.is_dir()
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DatasetError(
            f"The data root {str(root)[:80]!r} cannot be used ({reason}); name a folder."
        ) from error
    if is_file:
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
            size, digest = path.stat().st_size, _sha256(path)
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


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch_missing(spec: DatasetSpec, root: Path) -> None:
    """Download what is missing below ``root``, or say what is missing and why it cannot be had."""
    missing = missing_files(spec, root)
    if not missing or spec.source is None:
        return
    obstacle = _unwritable(root) or _unreachable(spec.source.url)
    if obstacle is None:
        obstacle = _download(spec, spec.source, root, missing)
    if obstacle is not None:
        raise DatasetError(
            f"{spec.name} is not here and cannot be downloaded ({obstacle}); copy its files "
            f"from {spec.source.url}, or name the folder that holds them as the data root (--root "
            f"or {ROOT_VARIABLE}); missing are {_listing(missing, root)}."
        )


def _download(spec: DatasetSpec, source: Source, root: Path, missing: list[RawFile]) -> str | None:
    """Download and verify; returns what went wrong, if anything did."""
    try:
        download_verified(
            source,
            root,
            [file.path for file in missing],
            verify=lambda scratch: verified_digests(spec, scratch),
        )
    except DatasetError as error:
        return f"what the server sent does not match: {error}"
    except Exception as error:  # PyG's downloads fail with whatever their transport raises
        return f"{type(error).__name__}: {error}"
    return None


def _unwritable(root: Path) -> str | None:
    """Why ``root`` cannot be written, without creating it."""
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return None
    return f"the data root {root} is not writable"


def _unreachable(url: str) -> str | None:
    """Why ``url`` cannot be reached; PyG's own downloads wait for minutes before they give up."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_PATIENCE).close()
    except urllib.error.HTTPError:
        return None  # somebody answered
    except (OSError, ValueError) as error:
        return f"no connection: {getattr(error, 'reason', error)}"
    return None


def _listing(files: list[RawFile], root: Path) -> str:
    """``files`` with their sizes, and the folder they belong in (a dataset has just one)."""
    sizes = (
        f"{Path(file.path).name} "
        + ("(size not published)" if file.size is None else f"({file.size:,} bytes)")
        for file in files
    )
    return f"{', '.join(sizes)} in {(root / files[0].path).parent}"
