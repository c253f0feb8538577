"""Splits: which nodes train, validate and test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gnn_repair.budget import as_list, check_whole
from gnn_repair.errors import SplitError

Masks = tuple[Tensor, Tensor, Tensor]
"""Train, validation and test masks, each bool [N, splits]."""
Draw = Literal["torch", "numpy"]
"""Whose generator shuffles the nodes of a class."""
_Shuffle = Callable[[np.ndarray], np.ndarray]


def _by_torch(seed: int) -> _Shuffle:
    generator = torch.Generator().manual_seed(seed)
    return lambda nodes: nodes[torch.randperm(len(nodes), generator=generator).numpy()]


def _by_numpy(seed: int) -> _Shuffle:
    return np.random.default_rng(seed).permutation


DRAWS: dict[str, Callable[[int], _Shuffle]] = {"torch": _by_torch, "numpy": _by_numpy}


def stratified_splits(
    y: Tensor,
    ratios: Sequence[int] = (60, 20, 20),
    seeds: Sequence[int] = range(100, 110),
    draw: Draw = "torch",
) -> Masks:
    """Draw one class-stratified split per seed.

    Each class is shuffled and cut by the ``ratios`` (train : validation : test) with the largest
    remainders rounded up, the earlier part first on a tie: every count is within one of its exact
    share. Every labelled node is in exactly one of the three masks; nodes with ``y = -1`` in none.

    Args:
        y: Labels, long [N], -1 where unlabelled.
        ratios: Three nonnegative integers, for instance per cent.
        seeds: One split each.
        draw: Whose generator shuffles: PyTorch's ``randperm``, which gives the paper's splits of
            Cora, Citeseer and PubMed (docs/results/reproduction.md), or NumPy's ``default_rng``.

    Returns:
        Train, validation and test masks, bool [N, splits].
    """
    seeds = as_list("seeds", seeds, "one whole number per split")
    _check(y, ratios, seeds)
    if not isinstance(draw, str) or draw not in DRAWS:
        raise SplitError(f"There is no draw {draw!r:.60}; choose 'torch' or 'numpy'.")
    labels = y.cpu().numpy()
    parts = np.stack([_parts(labels, ratios, DRAWS[draw](seed)) for seed in seeds], axis=1)
    train, val, test = (torch.from_numpy(parts == part) for part in range(3))
    return train, val, test


def _check(y: Any, ratios: Any, seeds: Any) -> None:
    whole = isinstance(ratios, Sequence) and all(type(part) is int for part in ratios)
    if not whole or len(ratios) != 3 or min(ratios) < 0 or sum(ratios) == 0:
        raise SplitError(
            f"The split ratios {ratios!r:.60} are not three nonnegative integers with a "
            "positive sum, such as (60, 20, 20)."
        )
    for seed in seeds or [None]:
        check_whole("stratified_splits", "seed", seed, 0)
    fair = isinstance(y, Tensor) and y.dim() == 1 and y.numel() > 0
    if not fair or y.is_floating_point() or y.is_complex() or y.dtype is torch.bool:
        raise SplitError("The labels y are no tensor of whole numbers [N]; give a class per node.")


def _parts(labels: np.ndarray, ratios: Sequence[int], shuffle: _Shuffle) -> np.ndarray:
    """The part (0, 1, 2) of each node in one split, -1 where unlabelled; [N]."""
    part = np.full(len(labels), -1)
    for label in np.unique(labels[labels >= 0]):
        members = shuffle(np.flatnonzero(labels == label))
        part[members] = np.repeat(np.arange(3), part_sizes(len(members), ratios))
    return part


def part_sizes(count: int, ratios: Sequence[int]) -> list[int]:
    """Cut ``count`` into whole parts proportional to ``ratios`` by largest remainders."""
    total = sum(ratios)
    sizes = [count * ratio // total for ratio in ratios]
    remainders = [count * ratio % total for ratio in ratios]
    by_remainder = sorted(range(len(ratios)), key=lambda part: -remainders[part])
    for part in by_remainder[: count - sum(sizes)]:
        sizes[part] += 1
    return sizes
