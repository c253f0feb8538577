"""Training the splits of a dataset: a backbone as one stack, a network of the user one by one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

from gnn_repair import training
from gnn_repair.backbones.architectures import BACKBONES
from gnn_repair.backbones.base import Backbone
from gnn_repair.backbones.frozen import (
    RESULTS,
    STATISTICS,
    Frozen,
    agree,
    check_names,
    check_splits,
    fingerprint,
    under,
)
from gnn_repair.backbones.graph import Graph
from gnn_repair.budget import SHORT, check_whole
from gnn_repair.checks import MASKS, as_splits, check_data, num_classes
from gnn_repair.devices import choose_device, learning, seeded
from gnn_repair.errors import InputError, SplitError, suggestion
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors
from gnn_repair.training import Budget, Progress, ProgressCallback, Trainee, fit


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
    with learning(f"training {architecture.title} on {len(chosen)} splits", data.x):
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
        stacked = training.stack_parameters(network.to(data.x.dtype), len(splits))
        self.parameters = {name: value.to(device) for name, value in stacked.items()}
        self.labels = data.y.to(device)
        train, self.val = (
            as_splits(mask)[:, list(splits)].to(device) for mask in (data.train_mask, data.val_mask)
        )
        self.weights = training.mask_weights(train, data.x.dtype)

    def trunk(self) -> Any:
        return self.backbone.trunk(self.parameters, self.graph)

    def logits(self, trunk: Any, dropout: float = 0.0) -> Tensor:
        """z, [N, S, C]."""
        return self.backbone.logits(self.parameters, self.graph, trunk, dropout)

    def losses(self, trunk: Any) -> Tensor:
        logits = self.logits(trunk, self.backbone.shape.dropout)
        return training.member_losses(logits, self.labels, self.weights)

    def scores(self, trunk: Any) -> Tensor:
        return training.member_correct(self.logits(trunk), self.labels, self.val)


# A network of the user's own: any PyG model, trained one split after the other --------------------
#
# A Backbone trains all splits as one and ends affinely by construction. What is said here is only
# how the network is built; it may end in anything.

KIND = "gnn-repair network"
Forward = Callable[[nn.Module, Any], Tensor]
"""(network, data) → logits [N, C]."""


@dataclass(frozen=True)
class OwnNetwork:
    """How a network of your own is built and trained.

    Args:
        build: (features, classes) → a network whose output is logits or log-probabilities [N, C].
        title: its name in tables.
        budget: how each split is trained.
        forward: how it is called; ``network(data.x, data.edge_index)`` unless given.
    """

    build: Callable[[int, int], nn.Module]
    title: str = ""
    budget: Budget = SHORT
    forward: Forward | None = None

    def __post_init__(self) -> None:
        for name, value in (("build", self.build), ("forward", self.forward)):
            if not callable(value) and not (value is None and name == "forward"):
                raise InputError(f"OwnNetwork: {name} is {value!r:.60}; give a function")
        if not isinstance(self.budget, Budget):
            raise InputError(f"OwnNetwork: budget is {self.budget!r:.60}; give a Budget")

    def network(self, features: int, classes: int) -> nn.Module:
        """A fresh one; InputError where ``build`` gives something else."""
        try:
            network = self.build(features, classes)
        except TypeError as error:
            name = getattr(self.build, "__name__", "build")
            raise InputError(
                f"{name} cannot be built from {features} features and {classes} classes: {error}; "
                "give an OwnNetwork a build=lambda features, classes: ..."
            ) from error
        if not isinstance(network, nn.Module):
            raise InputError(
                f"OwnNetwork: build gives {network!r:.60}; it must return a torch module for "
                f"{features} features and {classes} classes"
            )
        return network

    def logits(self, network: nn.Module, data: Data) -> Tensor:
        """The network's output, [N, C]."""
        call = self.forward or (lambda network, data: network(data.x, data.edge_index))
        out = call(network, data)
        shape = (int(data.num_nodes), num_classes(data))
        if not isinstance(out, Tensor) or tuple(out.shape) != shape:
            shown = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise InputError(
                f"{self.title or 'the network'} gives {shown} instead of logits {list(shape)}; "
                "give an OwnNetwork a forward= that returns them"
            )
        return out


@dataclass(frozen=True, eq=False)
class FrozenNetwork:
    """A trained network of one split; its parameters are not to be changed."""

    own: OwnNetwork
    data: Data
    splits: tuple[int, ...]
    """The one split it was trained on."""
    network: nn.Module
    """In evaluation mode."""
    logits: Tensor
    """z⁰, [1, N, C]."""
    best_epoch: Tensor
    """[1]."""
    epochs_run: Tensor
    """[1]."""
    diverged: Tensor
    """[1] bool."""

    @cached_property
    def parameters(self) -> Mapping[str, Tensor]:
        """[1, …] by name."""
        return {name: p.detach().unsqueeze(0) for name, p in self.network.named_parameters()}

    def save(self, path: str | Path) -> None:
        """Write the network's state as one safetensors file; :func:`load_network` reads it back."""
        state = self.network.state_dict()
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.layout != torch.strided:
                raise InputError(
                    f"{name} is no dense tensor, and a safetensors file holds no others"
                )
        tensors = {f"state/{name}": value for name, value in state.items()}
        tensors |= {name: getattr(self, name) for name in RESULTS}
        save_tensors(path, KIND, {"data": fingerprint(self.data), "splits": self.splits}, tensors)


@torch.no_grad()
def load_network(path: str | Path, own: OwnNetwork, data: Data) -> FrozenNetwork:
    """Read what :meth:`FrozenNetwork.save` wrote; raises for another graph or network."""
    header, tensors = load_tensors(path, KIND)
    with contents_of(path):
        check_fields(header, {"data": str, "splits": list}, "header")
        check_names(tensors, RESULTS, "state/")
        splits = check_splits(header["splits"], as_splits(data.train_mask).shape[1])
        if header["data"] != fingerprint(data):
            raise InputError("it was made with another data; use the graph it was trained on")
        network = own.network(data.x.shape[1], num_classes(data)).to(data.x.dtype).eval()
        try:
            network.load_state_dict(under(tensors, "state/"))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"it holds another network's weights: {reason}") from error
        results = {name: tensors[name] for name in RESULTS}
        again, kept = own.logits(network, data).unsqueeze(0), results["logits"]
        if kept.shape != again.shape or not agree(again, kept):
            raise InputError("its weights do not give its logits")
    return FrozenNetwork(own, data, splits, network, **results)


def train_own(
    own: OwnNetwork,
    data: Data,
    split: int,
    *,
    device: torch.device,
    budget: Budget,
    seed: int = 0,
    on_progress: ProgressCallback | None = None,
) -> FrozenNetwork:
    """Train one split; the state with most validation nodes right is kept, the first on ties.

    An epoch is evaluate, then update, as for backbones; buffers such as running means belong to
    the state.
    """
    best_score, best_epoch, epochs_run, diverged = -1.0, 0, 0, False
    with seeded(seed, device):
        network = own.network(data.x.shape[1], num_classes(data)).to(device, data.x.dtype)
        placed = data.clone().to(device)
        train, val = (
            as_splits(data[f"{part}_mask"])[:, split].to(device) for part in ("train", "val")
        )
        kind = torch.optim.AdamW if budget.decoupled else torch.optim.Adam
        optimizer = kind(
            network.parameters(), lr=budget.learning_rate, weight_decay=budget.weight_decay
        )
        best = copy.deepcopy(network.state_dict())
        for epoch in range(budget.epochs + 1):
            last = epoch == budget.epochs
            if epoch % training.CHECK_EVERY == 0 and on_progress is not None and not last:
                on_progress(Progress(epoch, budget.epochs, 1, best_score))
            if epoch or budget.epoch_zero:
                network.eval()
                with torch.no_grad():
                    right = own.logits(network, placed).argmax(1) == placed.y
                score = float((right & val).sum())
                if score > best_score:
                    best_score, best_epoch = score, epoch
                    best = copy.deepcopy(network.state_dict())
            if last or (budget.patience is not None and epoch - best_epoch >= budget.patience):
                break
            network.train()
            optimizer.zero_grad()
            loss = functional.cross_entropy(own.logits(network, placed)[train], placed.y[train])
            if not bool(torch.isfinite(loss)):
                diverged = True
                break
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), budget.clip)
            optimizer.step()
            epochs_run = epoch + 1
    network.load_state_dict(best)
    network.eval()
    with torch.no_grad():
        logits = own.logits(network, placed).unsqueeze(0)
    counts = torch.tensor([best_epoch]), torch.tensor([epochs_run]), torch.tensor([diverged])
    return FrozenNetwork(own, data, (split,), network, logits, *counts)
