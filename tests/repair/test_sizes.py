"""Parameter counts against the paper's formulas and figures."""

from __future__ import annotations

import pytest
from torch import nn

from gnn_repair.repair import (
    NodeTranslation,
    RefitHead,
    Reweighting,
    SetTranslation,
)
from gnn_repair.repair.adapters import matched_width, set_translation_size

DATASETS = {
    "actor": (932, 5),
    "amazon-ratings": (300, 5),
    "chameleon": (2325, 5),
    "citeseer": (3703, 6),
    "cora": (1433, 7),
    "pubmed": (500, 3),
    "roman-empire": (300, 18),
    "squirrel": (2089, 5),
}
SIZES = [(128, classes) for _, classes in DATASETS.values()] + list(DATASETS.values())
"""(d, C) of every case of the paper: hidden states, or raw features."""


def literal(inputs: int, outputs: int) -> int:
    network = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, outputs))
    return sum(value.numel() for value in network.parameters())


@pytest.mark.parametrize("d,c", SIZES)
def test_counts_are_those_of_the_formulas(d, c):
    pair, context = 3 * d + 3 * c + 2, d + c + 128 + 1
    translation = literal(pair, 128) + literal(context, c)
    assert SetTranslation().num_parameters(d, c) == translation
    assert set_translation_size(d, c) == translation
    assert Reweighting().num_parameters(d, c) == literal(pair, 128) + literal(pair + context, 1)
    assert RefitHead().num_parameters(d, c) == c * (d + 1)


@pytest.mark.parametrize("d,c", SIZES)
def test_the_node_control_is_matched_as_closely_as_a_width_can(d, c):
    goal = SetTranslation().num_parameters(d, c)
    width = matched_width(goal, d, c)
    gaps = {h: abs(h * (d + 2 * c + 1) + c - goal) for h in range(max(1, width - 3), width + 4)}
    assert gaps[width] == min(gaps.values())
    count = NodeTranslation().num_parameters(d, c)
    assert count == width * (d + 2 * c + 1) + c
    assert abs(count - goal) / goal <= 0.00083
