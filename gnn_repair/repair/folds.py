"""Folds of validation nodes, and tables that hold for the graph they were fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_repair.backbones.frozen import STATISTICS
from gnn_repair.errors import InputError, SplitError
from gnn_repair.exposure import Exposure
from gnn_repair.kernels import row_hash
from gnn_repair.kernels.dropout import LOW
from gnn_repair.repair.base import FittedRepair
from gnn_repair.repair.targets import Task

FOLDS = 5
"""Four fifths of the validation nodes to learn from, a fifth to choose the epoch by."""
FOLD_SHARE = 0.8
"""How much of the loss falls on validation nodes, where the frozen model's mistakes are honest;
the rest keeps what holds on training nodes, of which there are more."""


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


def deal_folds(val: Tensor, labels: Tensor, folds: int, seed: int, even: bool = True) -> Tensor:
    """The fold of every validation recipient, [S, n] int64; −1 elsewhere.

    Nodes are dealt out in a random order that depends on the seed and the node alone, so a
    member's folds do not depend on who is fitted beside it.

    Args:
        val: [S, n] bool.
        labels: [n]; read where ``val`` holds.
        folds: how many.
        seed: another one, other folds.
        even: classes are dealt one after the other, so that every fold has its share of each.
            Then the other folds tell how frequent a class is in this one, and accuracies out of
            fold are a little too high.
    """
    fewest = int(val.sum(1).min())
    if folds < 2:
        raise InputError(f"folds is {folds}; there must be at least 2 to learn and to judge")
    if fewest < folds:
        raise SplitError(
            f"val of a member has {fewest} nodes, too few for {folds} folds; "
            "give more validation nodes or fewer folds"
        )
    numbers = torch.arange(val.shape[1], device=val.device)
    order = row_hash(torch.tensor(seed, device=val.device), numbers)
    # Validation nodes first, by class and then by chance; labels elsewhere are not read.
    kinds = labels if even else torch.zeros_like(labels)
    behind = kinds[val.any(0)].max() + 1
    keys = torch.where(val, kinds, behind) * (LOW + 1) + order
    place = keys.argsort(dim=1).argsort(dim=1)
    return torch.where(val, place % folds, -1)


def cross_roles(train: Tensor, folds: Tensor, count: int, leave: int = 1, times: int = 1) -> Roles:
    """Copy k learns from the training nodes and all folds but k, and is judged on fold k.

    Args:
        train: [S, n] bool.
        folds: [S, n], from :func:`deal_folds`.
        count: K.
        leave: how many folds a copy does not learn from, k and those after it; where it learns
            from all of them, it is judged on none.
        times: how many copies do the same, numbers k, k + K, …
    """
    own = (torch.arange(count * times, device=folds.device) % count).view(1, -1, 1)
    dealt = folds.unsqueeze(1)
    judged = ((dealt == own) & (leave > 0)).flatten(0, 1)
    others = ((dealt >= 0) & ((dealt - own) % count >= leave)).flatten(0, 1)
    trained = train.repeat_interleave(count * times, 0)
    weights = FOLD_SHARE * _mean(others) + (1 - FOLD_SHARE) * _mean(trained)
    return Roles(weights, judged, count * times)


def _mean(chosen: Tensor) -> Tensor:
    return chosen.float() / chosen.sum(1, keepdim=True).clamp(min=1)


def fold_roles(task: Task, folds: int, seed: int) -> Roles:
    """Of a copy per fold of every member, with each class dealt evenly."""
    dealt = deal_folds(task.val, task.labels, folds, seed)
    return cross_roles(task.train, dealt, folds)


def averaged(logits: Tensor, copies: int) -> Tensor:
    """Mean log-probabilities of the copies' logits [S·K, n, C], normalised; [S, n, C] float64."""
    by_copy = logits.double().log_softmax(2).unflatten(0, (-1, copies))
    return by_copy.mean(1).log_softmax(2)


def held_out(logits: Tensor, roles: Roles) -> Tensor:
    """Log-probabilities of the copy that was judged on a node, [S, n, C]; zero elsewhere."""
    told = logits.double().log_softmax(2).unflatten(0, (-1, roles.copies))
    judged = roles.judged.unflatten(0, (-1, roles.copies)).unsqueeze(3)
    return torch.where(judged, told, 0.0).sum(1)


def middle_copy(stack: Mapping[str, Tensor], copies: int) -> dict[str, Tensor]:
    """A stack's statistics by member: the middle copy's epochs, whether any diverged."""
    best, run, gone = (stack[name].reshape(-1, copies) for name in STATISTICS)
    return {
        "best_epoch": best.median(1).values,
        "epochs_run": run.median(1).values,
        "diverged": gone.any(1),
    }


# Tables by node that are kept with a fitted repair, and the graph that they belong to -------------


def signature(exposure: Exposure) -> Tensor:
    """One number per node and member that another graph or model would not share, [S, N]."""
    weights = torch.linspace(1, 2, exposure.num_classes, dtype=torch.float64)
    return (exposure.frozen_logits @ weights.to(exposure.frozen_logits.device)).float()


def same_graph(expected: Tensor, exposure: Exposure) -> bool:
    """Whether the exposure is of the graph and model that gave this signature."""
    found = signature(exposure).to(expected.device)
    # Frozen logits of one model repeat to rounding, also on another device.
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-3)


def check_graph(expected: Tensor, exposure: Exposure, title: str) -> None:
    """Refuse another graph than the one whose labels were read."""
    if not same_graph(expected, exposure):
        raise InputError(
            f"{title} reads known labels of the graph it was fitted on and this is another one; "
            "fit it again here, or use a repair that reads no labels"
        )


def kept_rows(log_probs: Tensor, exposure: Exposure, title: str) -> Tensor:
    """Of log-probabilities by node [S, …, N, C] those of the recipients, float64.

    Nodes that were no recipients then have rows of zeros, which are nobody's probabilities.
    """
    place = exposure.recipients
    kept = log_probs.to(place.device)[..., place, :].double()
    if not bool((kept.exp().sum(-1) < 1.5).all()):
        raise InputError(
            f"some of these recipients were not exposed when {title} was fitted; fit it on an "
            "exposure that holds them"
        )
    return kept


def check_table(
    fitted: FittedRepair[Any], name: str, dtype: torch.dtype, *shape: int | None
) -> tuple[int, ...]:
    """The shape a member of a constant read from a file, once it is as asked for.

    Args:
        fitted: what was read.
        name: of the constant, which must be there.
        dtype: its type.
        shape: its axes after the members; None: any length.
    """
    if name not in fitted.constants:
        raise InputError(f"it is incomplete: it lacks {name}")
    value = fitted.constants[name]
    found = tuple(value.shape[1:])
    fits = len(found) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, found, strict=True)
    )
    if not fits or value.dtype != dtype or len(value) != fitted.num_members:
        wanted = tuple("any" if size is None else size for size in shape)
        raise InputError(f"{name} has shape {found} and type {value.dtype}, not {wanted}, {dtype}")
    return found
