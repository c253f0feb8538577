"""Stratified splits: exact shares, disjoint, complete, reproducible."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnn_repair.checks import as_splits
from gnn_repair.datasets import stratified_splits
from gnn_repair.datasets.splits import part_sizes
from gnn_repair.errors import SplitError

LABELS = torch.tensor([0] * 50 + [1] * 7 + [2] * 23 + [-1] * 4)[
    torch.randperm(84, generator=torch.Generator().manual_seed(0))
]


def test_every_labelled_node_is_in_exactly_one_mask() -> None:
    memberships = sum(mask.long() for mask in stratified_splits(LABELS))
    expected = (LABELS >= 0).long().unsqueeze(1).expand(-1, 10)
    torch.testing.assert_close(memberships, expected)


@pytest.mark.parametrize(("label", "sizes"), [(0, (30, 10, 10)), (1, (4, 2, 1)), (2, (14, 5, 4))])
def test_class_counts(label: int, sizes: tuple[int, int, int]) -> None:
    for mask, size in zip(stratified_splits(LABELS), sizes, strict=True):
        assert mask[label == LABELS].sum(dim=0).tolist() == [size] * 10


@settings(deadline=None)
@given(
    count=st.integers(0, 10_000),
    ratios=st.lists(st.integers(0, 100), min_size=3, max_size=3).filter(any),
)
def test_sizes_are_within_one_of_the_exact_share(count: int, ratios: list[int]) -> None:
    sizes = part_sizes(count, ratios)
    assert sum(sizes) == count
    for size, ratio in zip(sizes, ratios, strict=True):
        assert abs(size - Fraction(count * ratio, sum(ratios))) < 1


def test_a_seed_always_draws_the_same_split() -> None:
    y = torch.arange(1000) % 7
    train, val, test = stratified_splits(y)
    alone = stratified_splits(y, seeds=[103])
    torch.testing.assert_close(alone[0][:, 0], train[:, 3])
    packed = torch.stack([train, val, test]).numpy().tobytes()
    assert hashlib.sha256(packed).hexdigest() == (
        "c0f5d370f9355d82eb8eca0de2c7668db44960a0e345b9711e44f3bd2f968be4"
    )


@pytest.mark.parametrize("draw", ["torch", "numpy"])
def test_classes_are_shuffled_one_after_another_by_one_generator(draw) -> None:
    """The definition, written out for two seeds."""
    y = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 1, 0] * 5)
    train, val, test = stratified_splits(y, seeds=[100, 101], draw=draw)
    for split, seed in enumerate((100, 101)):
        shuffle = permutations(draw, seed)
        for label in (0, 1):
            drawn = shuffle((y == label).nonzero().view(-1))
            for mask, part in zip((train, val, test), drawn.split([15, 5, 5]), strict=True):
                own = (mask[:, split] & (y == label)).nonzero().view(-1)
                assert torch.equal(own, part.sort().values)


def permutations(draw: str, seed: int) -> Callable[[Tensor], Tensor]:
    """The same draws written down once more."""
    if draw == "numpy":
        generator = np.random.default_rng(seed)
        return lambda nodes: torch.from_numpy(generator.permutation(nodes.numpy()))
    stream = torch.Generator().manual_seed(seed)
    return lambda nodes: nodes[torch.randperm(len(nodes), generator=stream)]


def test_the_draws_differ_and_an_unknown_one_is_refused() -> None:
    one, other = stratified_splits(LABELS), stratified_splits(LABELS, draw="numpy")
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine.sum(0), theirs.sum(0))
        assert not torch.equal(mine, theirs)
    with pytest.raises(SplitError, match="no draw 'dice'"):
        stratified_splits(LABELS, draw="dice")


def test_one_mask_is_one_split() -> None:
    mask = torch.tensor([True, False, True])
    torch.testing.assert_close(as_splits(mask), torch.tensor([[True], [False], [True]]))
    torch.testing.assert_close(as_splits(as_splits(mask)), as_splits(mask))
    with pytest.raises(SplitError, match=r"\[3, 1, 1\]"):
        as_splits(mask.view(3, 1, 1))
