"""What makes a process ready sooner."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

_BLAS = "scipy.linalg.cython_blas"


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection inside; afterwards, what is alive counts as old.

    Loading torch and compiling kernels make a million objects that all stay. Looking through them
    for garbage again and again takes a fifth of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            # Moves everything to the oldest generation, which is looked through last.
            gc.freeze()
            gc.unfreeze()
        if collecting:
            gc.enable()


@cache
def load_numba() -> None:
    """Load what numba otherwise loads when it first compiles, but for SciPy's linear algebra.

    It asks for that on the occasion: a third of a second, and no kernel here uses it. A stand-in
    answers; whoever needs the real one loads it once the stand-in is gone.
    """
    from numba.core.registry import cpu_target

    absent = _BLAS not in sys.modules
    sys.modules.setdefault(_BLAS, ModuleType(_BLAS))
    try:
        cpu_target.target_context.refresh()
    finally:
        if absent:
            del sys.modules[_BLAS]
