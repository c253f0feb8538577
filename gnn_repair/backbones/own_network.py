"""A network of the user's own in a study: any PyG model, trained one split after the other.

A :class:`~gnn_repair.backbones.base.Backbone` trains all splits as one and ends affinely by
construction. What is said here is only how the network is built; it may end in anything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

from gnn_repair.backbones.frozen import RESULTS, check_names, check_splits, fingerprint
from gnn_repair.budget import SHORT, Budget
from gnn_repair.checks import as_splits, num_classes
from gnn_repair.devices import seeded
from gnn_repair.errors import InputError
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors
from gnn_repair.training import CHECK_EVERY, Progress, ProgressCallback

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
            made = self.build(features, classes)
        except TypeError as error:
            name = getattr(self.build, "__name__", "build")
            raise InputError(
                f"{name} cannot be built from {features} features and {classes} classes: {error}; "
                "give an OwnNetwork a build=lambda features, classes: ..."
            ) from error
        if not isinstance(made, nn.Module):
            raise InputError(
                f"OwnNetwork: build gives {made!r:.60}; it must return a torch module for "
                f"{features} features and {classes} classes"
            )
        return made

    def logits(self, network: nn.Module, data: Data) -> Tensor:
        """The network's output, [N, C]."""
        out = (
            network(data.x, data.edge_index)
            if self.forward is None
            else self.forward(network, data)
        )
        shape = (int(data.num_nodes), num_classes(data))
        if not isinstance(out, Tensor) or tuple(out.shape) != shape:
            found = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise InputError(
                f"{self.title or 'the network'} gives {found} instead of logits {list(shape)}; "
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
        state = {n.removeprefix("state/"): v for n, v in tensors.items() if n.startswith("state/")}
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            said = " ".join(str(error).split())[:200]
            raise InputError(f"it holds another network's weights: {said}") from error
        results = {name: tensors[name] for name in RESULTS}
        again, kept = own.logits(network, data), results["logits"]
        scale = kept.abs().clamp(min=1)
        # Another machine's float32 may differ by 1e-5 or so; other weights differ by far more.
        if kept.shape != (1, *again.shape) or not bool(
            (((again - kept) / scale).abs() < 1e-3).all()
        ):
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
    with seeded(seed, device):
        run = _Training(own, data, split, device, budget)
        for epoch in range(budget.epochs):
            if epoch % CHECK_EVERY == 0 and on_progress is not None:
                on_progress(Progress(epoch, budget.epochs, 1, run.best_score))
            if not run.epoch(epoch):
                break
        else:
            run.look(budget.epochs)
    return run.frozen(split)


class _Training:
    """The state of one call of :func:`train_own`."""

    def __init__(
        self, own: OwnNetwork, data: Data, split: int, device: torch.device, budget: Budget
    ) -> None:
        self.own, self.budget, self.original = own, budget, data
        self.network = own.network(data.x.shape[1], num_classes(data)).to(device, data.x.dtype)
        self.data = data.clone().to(device)
        self.train, self.val = (
            as_splits(data[f"{part}_mask"])[:, split].to(device) for part in ("train", "val")
        )
        kind = torch.optim.AdamW if budget.decoupled else torch.optim.Adam
        self.optimizer = kind(
            self.network.parameters(), lr=budget.learning_rate, weight_decay=budget.weight_decay
        )
        self.best_score, self.best_epoch, self.epochs_run = -1.0, 0, 0
        self.best = copy.deepcopy(self.network.state_dict())
        self.diverged = False

    def logits(self) -> Tensor:
        """The network's output, [N, C]."""
        return self.own.logits(self.network, self.data)

    def look(self, epoch: int) -> bool:
        """Note the state if it is the best; whether training goes on."""
        if epoch or self.budget.epoch_zero:
            self.network.eval()
            with torch.no_grad():
                right = self.logits().argmax(1) == self.data.y
            score = float((right & self.val).sum())
            if score > self.best_score:
                self.best_score, self.best_epoch = score, epoch
                self.best = copy.deepcopy(self.network.state_dict())
        patience = self.budget.patience
        return patience is None or epoch - self.best_epoch < patience

    def epoch(self, epoch: int) -> bool:
        """Evaluate, then update; whether training goes on."""
        if not self.look(epoch):
            return False
        self.network.train()
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.logits()[self.train], self.data.y[self.train])
        if not bool(torch.isfinite(loss)):
            self.diverged = True
            return False
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.budget.clip)
        self.optimizer.step()
        self.epochs_run = epoch + 1
        return True

    @torch.no_grad()
    def frozen(self, split: int) -> FrozenNetwork:
        """The best state, in evaluation mode."""
        self.network.load_state_dict(self.best)
        self.network.eval()
        return FrozenNetwork(
            own=self.own,
            data=self.original,
            splits=(split,),
            network=self.network,
            logits=self.logits().detach().unsqueeze(0),
            best_epoch=torch.tensor([self.best_epoch]),
            epochs_run=torch.tensor([self.epochs_run]),
            diverged=torch.tensor([self.diverged]),
        )
