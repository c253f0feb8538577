"""Compiled kernels between processes: numba's own cache, asked about every source that matters.

numba keeps a kernel beside the file that defines it (else in the user's cache folder, first of all
in ``NUMBA_CACHE_DIR``) and asks only whether *that* file has changed, though a kernel holds
compiled copies of those it calls. Here any change in a file that may matter means compiling anew.
"""

from __future__ import annotations

import hashlib
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.caching import IndexDataCacheFile

PACKAGE = Path(__file__).parent
SOURCES = ("published.py", "kernels/**/*.py", "oracle/**/*.py")
"""Where kernels, and the constants they are compiled with, are written."""


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit(**options)``, compiled once for all processes."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        if hasattr(dispatcher, "enable_caching"):  # not where numba is switched off
            try:
                dispatcher.enable_caching()
            except RuntimeError:  # no folder that can be written
                warnings.warn(
                    "compiled kernels cannot be kept anywhere, so every process compiles them "
                    "anew; set NUMBA_CACHE_DIR to a folder that can be written",
                    stacklevel=1,  # here, so that it is said once
                )
                return dispatcher
            kept = dispatcher._cache
            base = kept._impl.filename_base
            kept._cache_file = IndexDataCacheFile(kept.cache_path, base, sources_digest())
        return dispatcher

    return decorate


class _Notice(event.Listener):
    """Says once why the first call of an installation takes long, where a person looks on."""

    def __init__(self) -> None:
        self.seconds, self._open = 0.0, list[float]()

    def on_start(self, event: Any) -> None:
        self._open.append(time.process_time())
        module = event.data["dispatcher"].py_func.__module__
        if module.startswith("gnn_repair.") and (sys.stderr.isatty() or "ipykernel" in sys.modules):
            _say_compiling()

    def on_end(self, event: Any) -> None:
        start = self._open.pop()
        if not self._open:  # kernels that it calls are compiled inside
            self.seconds += time.process_time() - start


def working_seconds() -> float:
    """This process's processor time but for what compiling took: effort is measured by it."""
    return time.process_time() - _NOTICE.seconds


@cache
def _say_compiling() -> None:
    print("gnn-repair compiles its kernels once, for half a minute …", file=sys.stderr)


_NOTICE = _Notice()
event.register("numba:compile", _NOTICE)


@cache
def sources_digest() -> str:
    """A digest of every file that a kernel may be compiled from."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(PACKAGE.glob(pattern)):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(PACKAGE)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:20]
