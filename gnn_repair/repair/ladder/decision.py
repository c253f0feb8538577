"""From out-of-fold predictions to weights, a chosen rung and a temperature, member by member."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_repair.repair.ladder.combination import (
    RULES,
    accuracies,
    compare,
    likelihoods,
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
    makes the labels more likely by ``clearly`` standard errors of the paired difference. Frozen
    needs nothing that could go wrong, so a rung must show more than chance. Likelihood is what
    is compared, since both accuracies flatter (see :func:`likelihoods`).

    Args:
        told: [S, R, n, C] log-probabilities out of fold, Frozen first.
        labels: [n], read at validation nodes.
        folds: [S, n], −1 where a recipient is no validation node.
        rule: a name of ``RULES``.
        clearly: standard errors.
    """
    rows = []
    for member, own in enumerate(folds):
        judged = own >= 0
        rows.append(_one(told[member][:, judged], labels[judged], own[judged], rule, clearly))
    return Decision(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _one(
    told: Tensor, labels: Tensor, folds: Tensor, rule: str, clearly: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    said = {name: nested(way, told, labels, folds) for name, way in RULES.items()}
    frozen = torch.zeros(told.shape[0], dtype=torch.float64, device=told.device)
    frozen[0] = 1
    use = better(said[rule], told[0], labels, clearly)
    weights = RULES[rule](told, labels) if use else frozen
    best = accuracies(told, labels).argmax()
    if not better(told[best], told[0], labels, clearly):
        best = torch.zeros_like(best)
    scale = temperature(said[rule] if use else told[0], labels)
    hits = torch.stack([(values.argmax(1) == labels).double().mean() for values in said.values()])
    return weights, best, torch.tensor(scale, dtype=torch.float64, device=told.device), hits


def better(mine: Tensor, other: Tensor, labels: Tensor, clearly: float) -> bool:
    """Whether log-probabilities [m, C] make the labels clearly more likely than others do."""
    return compare(likelihoods(mine, labels), likelihoods(other, labels)).clear(clearly)
