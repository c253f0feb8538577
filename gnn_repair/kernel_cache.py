"""Compiled kernels kept between processes, in one folder named after the sources of all of them.

numba keeps a kernel beside the file that defines it and asks only whether *that* file has changed,
though a kernel holds compiled copies of those it calls. Here any change in a file that may matter
means another folder of compiled kernels. Where none can be written, kernels are compiled anew in
every process, and a warning says so.

Only our own kernels are told where to go (numba's settings, which are the whole process's, stay as
they are). That needs three names that numba does not document: the dispatcher's ``_cache``, and
``_locator_classes`` and ``_cache_file`` of a cache; ``tests/test_kernel_cache.py`` notices when
they go.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    _CacheLocator,
)

PACKAGE = Path(__file__).parent
SOURCES = ("*.py", "kernels/**/*.py", "oracle/**/*.py")
"""Where kernels, and the constants they are compiled with, are written."""
KEPT = 4
"""Folders of compiled kernels that stay: those of the branches one goes back and forth between."""
REMEMBER = 3600.0
"""Seconds after which it is noted again that a folder is in use."""
_PREFIX = "gnn-repair-kernels-"


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit(**options)``, compiled once for all processes."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        if compiled_folder() is not None and hasattr(dispatcher, "_cache"):
            dispatcher._cache = _KernelCache(function)
        return dispatcher

    return decorate


# Where --------------------------------------------------------------------------------------------


@cache
def sources_digest() -> str:
    """A digest of every file that a kernel may be compiled from."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(PACKAGE.glob(pattern)):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(PACKAGE)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:20]


@cache
def compiled_folder() -> Path | None:
    """The folder of compiled kernels, made where it can be; None where it can be nowhere."""
    for parent, private in _parents():
        folder = parent / f"{_PREFIX}{sources_digest()}"
        with suppress(OSError):
            if private:
                _make_private(parent)
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                _tidy(parent, folder)
            if os.access(folder, os.W_OK | os.X_OK):
                _note_use(folder)
                return folder
    warnings.warn(
        "compiled kernels cannot be kept anywhere, so every process compiles them anew; set "
        "NUMBA_CACHE_DIR to a folder that can be written",
        stacklevel=2,
    )
    return None


def _parents() -> Iterator[tuple[Path, bool]]:
    """Where the folder may be, the best place first, and whether others may write there, too."""
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR), False
    yield PACKAGE / "__pycache__", False
    with suppress(RuntimeError):  # this user has no home
        home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
        yield Path(home or Path.home() / ".cache") / "gnn-repair", False
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"gnn-repair-{user}", True


def _make_private(folder: Path) -> None:
    """Make a folder that nobody else can write; what is loaded from it is run."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    ours = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    if not (stat.S_ISDIR(found.st_mode) and ours) or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(f"{folder} is not ours alone")


def _note_use(folder: Path) -> None:
    if time.time() - folder.stat().st_mtime > REMEMBER:
        os.utime(folder)


def _tidy(parent: Path, new: Path) -> None:
    """Remove folders that were not used for longest, and what earlier versions left in place."""
    found = [path for path in parent.glob(f"{_PREFIX}*") if path != new and path.is_dir()]
    for path in sorted(found, key=lambda p: p.stat().st_mtime, reverse=True)[KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
    for path in PACKAGE.rglob("__pycache__/*.nb[ci]"):
        path.unlink(missing_ok=True)


# How ----------------------------------------------------------------------------------------------


class _Locator(_CacheLocator):
    """Tells numba's cache the folder, and that its name stands for all sources."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file = file
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator:
        return cls(function, file)

    def get_cache_path(self) -> str:
        return str(compiled_folder())

    def ensure_cache_path(self) -> None:
        Path(self.get_cache_path()).mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        return sources_digest()

    def get_disambiguator(self) -> str:
        place = Path(self._py_file).resolve().relative_to(PACKAGE.resolve()).parent
        return f"{'-'.join(place.parts)}-{self._line}"


class _Place(CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _CheckedFile(IndexDataCacheFile):
    """Compiled code that is loaded only as it was saved: damaged code would crash the process."""

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(content[32:])


class _KernelCache(FunctionCache):
    """numba's cache, where a fault means compiling instead of an end."""

    _impl_class = _Place

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        base, stamp = self._impl.filename_base, sources_digest()
        self._cache_file = _CheckedFile(self._cache_path, base, stamp)

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)
        except Exception:  # whatever reading a damaged file raises; it is written anew
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        for last in (False, True):
            try:
                return super().save_overload(signature, compiled)
            except Exception as error:  # a full disk, or an index that cannot be read
                if last:
                    _warn_unsaved(str(error))
                with suppress(OSError):
                    self.flush()
        return None


@cache
def _warn_unsaved(reason: str) -> None:
    warnings.warn(f"compiled kernels cannot be kept: {reason}", stacklevel=3)
