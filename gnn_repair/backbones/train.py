"""Training the splits of a dataset as the members of one stacked model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.backbones.architectures import BACKBONES
from gnn_repair.backbones.base import Backbone
from gnn_repair.backbones.frozen import STATISTICS, Frozen
from gnn_repair.backbones.graph import Graph
from gnn_repair.budget import check_whole
from gnn_repair.checks import MASKS, as_splits, check_data, num_classes
from gnn_repair.devices import choose_device, out_of_memory_hint, seeded
from gnn_repair.errors import InputError, SplitError, suggestion
from gnn_repair.training import (
    Budget,
    ProgressCallback,
    Trainee,
    fit,
    mask_weights,
    member_correct,
    member_losses,
    stack_parameters,
)


def train_backbone(
    backbone: str | Backbone,
    data: Data,
    splits: Iterable[int] | None = None,
    *,
    device: str | torch.device = "auto",
    budget: Budget | None = None,
    seed: int = 0,
    on_progress: ProgressCallback | None = None,
) -> Frozen:
    """Train one backbone on several splits at once and freeze it.

    Args:
        backbone: a name of :data:`BACKBONES`, or an instance of your own :class:`Backbone`.
        data: as :func:`load_dataset` gives it; masks [N, splits].
        splits: which splits, one member each; all unless given.
        device: ``"auto"`` takes the GPU when there is one.
        budget: the backbone's own unless given.
        seed: of every member's initialisation, and of dropout.
        on_progress: called every few epochs.
    """
    architecture = find_backbone(backbone)
    given = getattr(data, "test_mask", None) is not None
    check_data(data, MASKS if given else MASKS[:2])  # test masks only where there are any
    check_whole("train_backbone", "seed", seed, 0)
    chosen = _chosen_splits(data, splits)
    place = choose_device(device)
    budget = architecture.budget if budget is None else budget
    if not isinstance(budget, Budget):
        raise InputError(f"train_backbone: budget is {budget!r}; give a Budget")
    with out_of_memory_hint(f"training {architecture.title} on {len(chosen)} splits"):
        trainee = _BackboneTrainee(architecture, data, chosen, place, seed)
        with seeded(seed, place):
            fitted = fit(trainee, budget, on_progress)
        trainee.parameters = dict(fitted.parameters)
        with torch.no_grad():
            logits = trainee.logits(trainee.trunk()).transpose(0, 1).contiguous()
    for member in fitted.diverged.nonzero().view(-1).tolist():
        warnings.warn(
            f"split {chosen[member]} diverged after epoch {int(fitted.epochs_run[member])}; "
            f"its state of epoch {int(fitted.best_epoch[member])} was kept",
            stacklevel=2,
        )
    statistics = {name: getattr(fitted, name) for name in STATISTICS}
    return Frozen(architecture, data, chosen, seed, budget, fitted.parameters, logits, **statistics)


def find_backbone(backbone: str | Backbone) -> Backbone:
    """The backbone of that name; an instance is returned as it is."""
    if isinstance(backbone, Backbone):
        return backbone
    if not isinstance(backbone, str):
        raise InputError(
            f"backbone is {backbone!r}; give a name such as 'gcn' or an instance of a Backbone"
        )
    if backbone not in BACKBONES:
        raise InputError(f"unknown backbone {backbone!r}; {suggestion(backbone, BACKBONES)}")
    return BACKBONES[backbone]()


def _chosen_splits(data: Data, splits: Iterable[int] | None) -> tuple[int, ...]:
    available = as_splits(data.train_mask).shape[1]
    if splits is not None and not isinstance(splits, Iterable):
        raise SplitError(f"splits is {splits!r}; give several, such as [{splits!r}]")
    chosen = tuple(range(available)) if splits is None else tuple(splits)
    if not chosen:
        raise SplitError("no split was chosen; name at least one")
    for split in chosen:
        if not isinstance(split, Integral) or not 0 <= split < available:
            raise SplitError(f"split {split} does not exist; the data has 0..{available - 1}")
    chosen = tuple(int(split) for split in chosen)
    _warn_absent(data, chosen)
    return chosen


def _warn_absent(data: Data, splits: tuple[int, ...]) -> None:
    classes = num_classes(data)
    for split in splits:
        present = data.y[as_splits(data.train_mask)[:, split]].unique()
        missing = sorted(set(range(classes)) - set(present.tolist()))
        if missing:
            warnings.warn(
                f"split {split} trains without any node of class {missing[0]}", stacklevel=4
            )


class _BackboneTrainee(Trainee):
    """A stacked backbone with its training and validation masks."""

    def __init__(
        self,
        backbone: Backbone,
        data: Data,
        splits: tuple[int, ...],
        device: torch.device,
        seed: int,
    ) -> None:
        self.backbone, self.graph = backbone, Graph(data, device)
        with seeded(seed):
            network = backbone.network(data.x.shape[1], num_classes(data))
        stacked = stack_parameters(network.to(data.x.dtype), len(splits))
        self.parameters = {name: value.to(device) for name, value in stacked.items()}
        self.labels = data.y.to(device)
        train, self.val = (
            as_splits(mask)[:, list(splits)].to(device) for mask in (data.train_mask, data.val_mask)
        )
        self.weights = mask_weights(train, data.x.dtype)

    def trunk(self) -> Any:
        return self.backbone.trunk(self.parameters, self.graph)

    def logits(self, trunk: Any, dropout: float = 0.0) -> Tensor:
        """z, [N, S, C]."""
        return self.backbone.logits(self.parameters, self.graph, trunk, dropout)

    def losses(self, trunk: Any) -> Tensor:
        logits = self.logits(trunk, self.backbone.shape.dropout)
        return member_losses(logits, self.labels, self.weights)

    def scores(self, trunk: Any) -> Tensor:
        return member_correct(self.logits(trunk), self.labels, self.val)
