"""Which compiled kernels work on a tensor, and the sizes of what they are given."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.startup import collection_paused

ON_CPU = ("aggregate", "sets")
"""Operations that numba compiles; products are PyTorch's own on the CPU."""


def compiled(operations: str, tensor: Tensor) -> Any:
    """The module of kernels for such tensors; None: plain PyTorch does the work."""
    kind, dtype = tensor.device.type, tensor.dtype
    if kind == "cpu" and operations in ON_CPU and dtype in (torch.float32, torch.float64):
        return _loaded("cpu")
    if kind == "cuda" and dtype == torch.float32 and importlib.util.find_spec("triton"):
        return _loaded(f"{operations}_gpu")
    return None


@cache
def _loaded(name: str) -> ModuleType:
    with collection_paused():
        return importlib.import_module(f"gnn_repair.kernels.{name}")


def check_sizes(name: str, tensor: Tensor, *sizes: int | None) -> None:
    """Raise unless the tensor's axes have these sizes (None: any): kernels read unchecked."""
    found = tensor.shape
    fits = len(found) == len(sizes) and all(
        size is None or size == have for size, have in zip(sizes, found, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise InputError(f"{name} has shape {list(found)} instead of [{wanted}]")


def check_groups(name: str, channels: int, groups: int) -> None:
    """Raise unless the channels divide evenly among the groups."""
    if groups < 1 or channels % groups:
        raise InputError(f"{name} has {channels} channels, which {groups} groups cannot share")
