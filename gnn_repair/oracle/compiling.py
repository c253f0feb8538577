"""How the oracle's kernels are compiled."""

from collections.abc import Iterator
from contextlib import contextmanager

import numba

from gnn_repair.kernel_cache import cached_njit

# Kernels own no memory, so reference counting is switched off. Passing many arrays costs more than
# solving a small LP, so what runs once per LP or pivot is inlined; what runs rarely is not.
_ENTRY = {
    "nogil": True,
    "_nrt": False,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
}
_OPTIONS = {**_ENTRY, "no_cpython_wrapper": True}
entry_kernel = cached_njit(**_ENTRY)
cold_kernel = numba.njit(**_OPTIONS)
kernel = numba.njit(**_OPTIONS, forceinline=True)
# What is called from one place only is compiled there and nowhere else.
kernel_once = numba.njit(**_OPTIONS, inline="always")


@contextmanager
def moderately_optimised() -> Iterator[None]:
    """Kernels compiled inside are optimised at LLVM's second level.

    It takes a fifth less time than the third, and code that says *eight at a time* runs as fast.
    """
    level = numba.config.OPT
    numba.config.OPT = type(level)(min(level, 2))
    try:
        yield
    finally:
        numba.config.OPT = level
