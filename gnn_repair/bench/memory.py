"""Peak memory of a piece of work, on a GPU or in this process."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def peak_mib(work: Callable[[], object], device: torch.device) -> float | None:
    """MiB that ``work`` needed beyond what was there before it; None where it cannot be told."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        # Memory that was freed but kept would hide what the work takes.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        # "5" sets the process's peak resident size back to its present one (Linux).
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        work()
        return None
    resident = _kib("VmRSS")
    work()
    return max(0.0, (_kib("VmHWM") - resident) / 1024)


def _kib(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    return float(found.group(1)) if found else float("nan")
