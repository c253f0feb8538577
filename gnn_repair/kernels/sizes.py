"""Sizes of what the operations are given: compiled kernels read through them unchecked."""

from __future__ import annotations

from torch import Tensor

from gnn_repair.errors import InputError


def check_sizes(name: str, tensor: Tensor, *sizes: int | None) -> None:
    """Raise unless the tensor's axes have these sizes; None: any."""
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
