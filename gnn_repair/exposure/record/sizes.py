"""How large a product of several hops would be, before it is formed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from gnn_repair.errors import ExposureRefused

LARGEST = 1 << 30
"""Terms beyond which to refuse in any case: places of terms are 32-bit numbers."""
BYTES_PER_TERM = 80
"""Peak memory while exposing a product of hops, measured: 44 to 65 bytes, rounded up."""
SHARE = 0.8
"""Of the memory that is available; the rest is for the model and for what follows."""
NOTEWORTHY = 1 << 25
"""Terms from which on the size is told before the work begins: it will take a while."""
SAMPLED_ENTRIES = 1 << 24
"""Numbers that a sample of rows may form: about 200 MB, a second's work."""
FEWEST, MOST = 8, 256
"""Rows in a sample."""


def estimated_terms(operators: Callable[[Any], Iterable[Any]], nodes: int) -> int:
    """How many nonzeros a filter's operators have together, from some of their rows.

    Args:
        operators: from a matrix S [m, N] the products S P(Â) for the filter's polynomials P.
        nodes: N.
    """
    count = min(nodes, max(FEWEST, min(MOST, SAMPLED_ENTRIES // max(nodes, 1))))
    rows = np.random.default_rng(0).choice(nodes, size=count, replace=False)
    sample = sparse.identity(nodes, format="csr")[np.sort(rows)]
    found = sum(int(operator.nnz) for operator in operators(sample))
    return round(found * nodes / count)


def refuse_too_large(terms: int, nodes: int) -> None:
    """Raise where the terms do not fit the machine; say it where they are many."""
    needed, free = terms * BYTES_PER_TERM, available_memory()
    size = (
        f"the paths of several hops between {nodes:,} nodes make about {terms:,} terms "
        f"({needed / 2**30:.1f} GiB while exposing"
    )
    last = "use hops='last' to expose the last hop alone"
    if free is not None and needed > SHARE * free:
        raise ExposureRefused(f"{size}, of {free / 2**30:.1f} GiB available); {last}")
    if terms > LARGEST:
        raise ExposureRefused(f"{size}), more than {LARGEST:,}; {last}")
    if terms > NOTEWORTHY:
        warnings.warn(f"{size}); {last}", stacklevel=2)


def available_memory() -> int | None:
    """Bytes that a process may still take; None where the system does not tell."""
    limits = [_meminfo(), _control_group()]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _control_group() -> int | None:
    """What a container's limit leaves."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        return limit - int((folder / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
