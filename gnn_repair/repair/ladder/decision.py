"""From out-of-fold predictions to weights, a chosen rung and a temperature, member by member."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_repair.repair.ladder.combination import (
    RULES,
    accuracies,
    compare,
    mixed,
    nested,
    temperature,
)


class Decision(NamedTuple):
    """What was decided for S members among R candidates, Frozen first."""

    weights: Tensor
    """[S, R] float64, summing to 1."""
    chosen: Tensor
    """[S] int64: the best single candidate; 0 (Frozen) where none is clearly better."""
    temperature: Tensor
    """[S] float64."""
    nested_accuracy: Tensor
    """[S, rules] float64: of each rule's combination, its weights fitted without the node's fold,
    in the order of ``RULES``."""


def decide(told: Tensor, labels: Tensor, folds: Tensor, rule: str, clearly: float) -> Decision:
    """Weigh the candidates of every member.

    Frozen keeps all the weight unless the combination, its weights fitted without a node's fold,
    beats it by ``clearly`` standard errors of the paired difference. The rule is one-sided on
    purpose: Frozen needs nothing that could go wrong, so a rung must show more than chance.

    Args:
        told: [S, R, n, C] log-probabilities out of fold, Frozen first.
        labels: [n], read at validation nodes.
        folds: [S, n], −1 where a recipient is no validation node.
        rule: a name of ``RULES``.
        clearly: standard errors.
    """
    rows = [
        _decide_one(
            told[s][:, folds[s] >= 0], labels[folds[s] >= 0], folds[s][folds[s] >= 0], rule, clearly
        )
        for s in range(told.shape[0])
    ]
    return Decision(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _decide_one(
    told: Tensor, labels: Tensor, folds: Tensor, rule: str, clearly: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    right = told.argmax(2) == labels
    said = {name: nested(way, told, labels, folds) for name, way in RULES.items()}
    combined = compare(said[rule].argmax(1) == labels, right[0])
    frozen = torch.zeros(told.shape[0], dtype=torch.float64, device=told.device)
    frozen[0] = 1
    use = combined.clear(clearly)
    weights = RULES[rule](told, labels) if use else frozen
    best = accuracies(told, labels).argmax()
    if not compare(right[best], right[0]).clear(clearly):
        best = torch.zeros_like(best)
    scale = temperature(said[rule] if use else mixed(told, frozen), labels)
    hits = torch.stack([(values.argmax(1) == labels).double().mean() for values in said.values()])
    return weights, best, torch.tensor(scale, dtype=torch.float64, device=told.device), hits
