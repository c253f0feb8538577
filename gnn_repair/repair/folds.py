"""Cutting validation nodes into folds, and who learns from and is judged by which of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_repair.errors import InputError, SplitError
from gnn_repair.kernels import row_hash
from gnn_repair.kernels.dropout import LOW
from gnn_repair.repair.targets import Targets


@dataclass(frozen=True, eq=False)
class Roles:
    """What each of K copies of S members does with each recipient.

    Copy k of member s is number s·K + k. A copy *learns* where its weight is positive and is
    *judged* elsewhere, on validation nodes that it does not learn from.
    """

    weights: Tensor
    """[S·K, n] float32: shares of the loss, summing to 1 for every copy."""
    judged: Tensor
    """[S·K, n] bool."""
    copies: int
    """K."""


def deal_folds(val: Tensor, labels: Tensor, folds: int, seed: int) -> Tensor:
    """The fold of every validation recipient, [S, n] int64; −1 elsewhere.

    Classes are dealt out one after the other, each in a random order that depends on the seed and
    the node alone, so every fold has its share of every class and a member's folds do not depend
    on who is fitted beside it.

    Args:
        val: [S, n] bool.
        labels: [n]; read where ``val`` holds.
        folds: how many.
        seed: another one, other folds.
    """
    fewest = int(val.sum(1).min())
    if folds < 2:
        raise InputError(f"folds is {folds}; there must be at least 2 to learn and to judge")
    if fewest < folds:
        raise SplitError(
            f"val_mask of a member has {fewest} nodes, too few for {folds} folds; "
            "give more validation nodes or fewer folds"
        )
    numbers = torch.arange(val.shape[1], device=val.device)
    order = row_hash(torch.tensor(seed, device=val.device), numbers)
    # Validation nodes first, by class and then by chance; labels elsewhere are not read.
    behind = labels[val.any(0)].max() + 1
    keys = torch.where(val, labels, behind) * (LOW + 1) + order
    place = keys.argsort(dim=1).argsort(dim=1)
    return torch.where(val, place % folds, -1)


def cross_roles(train: Tensor, folds: Tensor, count: int, fold_share: float) -> Roles:
    """Copy k learns from the training nodes and all folds but k, and is judged on fold k.

    Args:
        train: [S, n] bool.
        folds: [S, n], from :func:`deal_folds`.
        count: K.
        fold_share: how much of the loss falls on validation nodes.
    """
    own = torch.arange(count, device=folds.device).view(1, -1, 1)
    judged = (folds.unsqueeze(1) == own).flatten(0, 1)
    others = ((folds.unsqueeze(1) >= 0) & (folds.unsqueeze(1) != own)).flatten(0, 1)
    trained = train.repeat_interleave(count, 0)
    weights = fold_share * _mean(others) + (1 - fold_share) * _mean(trained)
    return Roles(weights, judged, count)


def paper_roles(train: Tensor, val: Tensor) -> Roles:
    """One copy: it learns from the training nodes and is judged on all validation nodes."""
    return Roles(_mean(train), val, 1)


def _mean(chosen: Tensor) -> Tensor:
    return chosen.float() / chosen.sum(1, keepdim=True).clamp(min=1)


def as_targets(chosen: Tensor, labels: Tensor) -> Targets:
    """Each row's chosen recipients [M, n] as targets; padding repeats a row's first."""
    sizes = chosen.sum(1)
    order = torch.sort(chosen.int(), dim=1, descending=True, stable=True).indices
    order = order[:, : int(sizes.max())]
    real = torch.arange(order.shape[1], device=order.device) < sizes.unsqueeze(1)
    index = torch.where(real, order, order[:, :1])
    return Targets(index, labels[index], sizes)
