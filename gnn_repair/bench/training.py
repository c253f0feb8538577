"""``gnn-repair bench training``: milliseconds per split and epoch, against a plain PyG loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch_geometric.data import Data

from gnn_repair.backbones import Backbone, find_backbone, train_backbone
from gnn_repair.bench.plain import plain_loop
from gnn_repair.datasets import num_classes
from gnn_repair.devices import choose_device
from gnn_repair.training import CHECK_EVERY, Budget, Progress

WARM_UP = 2 * CHECK_EVERY
"""Epochs that are not timed: compilation, graph capture and caches belong to them."""


@dataclass(frozen=True)
class TrainingRow:
    """One backbone's figures, in milliseconds per split-epoch."""

    backbone: str
    plain_pyg: float
    one_member: float
    stacked: float
    members: int

    @property
    def ratio(self) -> float:
        """How many times faster stacked members are than the plain loop."""
        return self.plain_pyg / self.stacked


def bench_training(
    data: Data,
    backbones: Iterable[str],
    *,
    device: str = "auto",
    members: int = 10,
    epochs: int = 60,
) -> Iterator[TrainingRow]:
    """Time ``epochs`` epochs of each backbone three ways in the same run."""
    place = choose_device(device)
    moved = data.clone().to(str(place))
    for name in backbones:
        backbone = find_backbone(name)
        budget = replace(backbone.budget, patience=None, epochs=WARM_UP + epochs)
        yield TrainingRow(
            backbone=name,
            plain_pyg=_time_plain(backbone, moved, budget),
            one_member=_time_ours(backbone, data, 1, place, budget),
            stacked=_time_ours(backbone, data, members, place, budget) / members,
            members=members,
        )


class _Clock:
    """Remembers when the timed epochs began; the listener of both loops."""

    def __init__(self) -> None:
        self.start = 0.0

    def __call__(self, epoch: int) -> None:
        if epoch == WARM_UP:
            self.start = time.perf_counter()

    def per_epoch(self, budget: Budget) -> float:
        """Milliseconds an epoch since then."""
        return 1e3 * (time.perf_counter() - self.start) / (budget.epochs - WARM_UP)


def _best_of_three(measure: Callable[[_Clock], None], budget: Budget) -> float:
    figures = []
    for _ in range(3):
        clock = _Clock()
        measure(clock)
        figures.append(clock.per_epoch(budget))
    return min(figures)


def _time_plain(backbone: Backbone, data: Data, budget: Budget) -> float:
    def measure(clock: _Clock) -> None:
        network = backbone.network(data.x.shape[1], num_classes(data)).to(data.x.device)
        if hasattr(network, "conv") and hasattr(network.conv, "cached"):
            network.conv.cached = True  # what a PyG user would set for SGC
        plain_loop(network, data, 0, budget, clock)

    return _best_of_three(measure, budget)


def _time_ours(
    backbone: Backbone, data: Data, members: int, device: torch.device, budget: Budget
) -> float:
    def measure(clock: _Clock) -> None:
        def listen(progress: Progress) -> None:
            clock(progress.epoch)

        train_backbone(
            backbone, data, range(members), device=device, budget=budget, on_progress=listen
        )

    return _best_of_three(measure, budget)
