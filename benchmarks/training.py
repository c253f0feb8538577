"""Training backbones: milliseconds per split and epoch against a plain PyG loop, and accuracy."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from gnn_repair.backbones import Backbone, find_backbone, train_backbone
from gnn_repair.checks import num_classes
from gnn_repair.datasets import load_dataset
from gnn_repair.devices import choose_device
from gnn_repair.published import published_numbers
from gnn_repair.training import CHECK_EVERY, Budget, Progress

WARM_UP = 2 * CHECK_EVERY
"""Epochs that are not timed: compilation, graph capture and caches belong to them."""


def bench_training(
    data: Data,
    backbones: Iterable[str],
    *,
    device: str = "auto",
    members: int = 10,
    epochs: int = 60,
) -> Iterator[dict[str, Any]]:
    """Time ``epochs`` epochs of each backbone three ways in the same run."""
    place = choose_device(device)
    moved = data.clone().to(str(place))
    for name in backbones:
        backbone = find_backbone(name)
        budget = replace(backbone.budget, patience=None, epochs=WARM_UP + epochs)
        plain = _time_plain(backbone, moved, budget)
        one = _time_ours(backbone, data, 1, place, budget)
        stacked = _time_ours(backbone, data, members, place, budget) / members
        yield {
            "backbone": name,
            "plain PyG (ms)": round(plain, 3),
            "one member (ms)": round(one, 3),
            f"{members} members (ms each)": round(stacked, 3),
            "plain / one": round(plain / one, 1),
            f"plain / {members}": round(plain / stacked, 1),
        }


class _Clock:
    """Remembers when the timed epochs began; the listener of both loops."""

    def __init__(self) -> None:
        self.start = 0.0

    def __call__(self, epoch: int) -> None:
        if epoch == WARM_UP:
            self.start = time.perf_counter()

    def per_epoch(self, budget: Budget) -> float:
        """Milliseconds per epoch since then."""
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


def plain_loop(
    network: nn.Module,
    data: Data,
    split: int,
    budget: Budget,
    on_epoch: Callable[[int], None] = lambda _: None,
) -> dict[str, object]:
    """The peer, the loop most people write for a PyG network.

    Trains one split with Adam, clips, validates every epoch and keeps the best state; ``on_epoch``
    hears the number of epochs done, after each.
    """
    optimizer = torch.optim.Adam(
        network.parameters(), lr=budget.learning_rate, weight_decay=budget.weight_decay
    )
    train, val = data.train_mask[:, split], data.val_mask[:, split]
    best, best_state = -1.0, copy.deepcopy(network.state_dict())
    for epoch in range(budget.epochs):
        network.train()
        optimizer.zero_grad()
        out = network(data.x, data.edge_index)
        cross_entropy(out[train], data.y[train]).backward()
        nn.utils.clip_grad_norm_(network.parameters(), budget.clip)
        optimizer.step()
        network.eval()
        with torch.no_grad():
            predicted = network(data.x, data.edge_index).argmax(1)
        accuracy = float((predicted[val] == data.y[val]).float().mean())
        if accuracy > best:
            best, best_state = accuracy, copy.deepcopy(network.state_dict())
        on_epoch(epoch + 1)
    return best_state


def bench_accuracy(
    datasets: Iterable[str],
    backbones: Iterable[str],
    *,
    root: str | Path | None = None,
    splits: Iterable[int] | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Iterator[dict[str, Any]]:
    """Train every case on its splits at once and score it on the test nodes, in per cent."""
    names, chosen = list(backbones), None if splits is None else list(splits)
    for dataset in datasets:
        data = load_dataset(dataset, root)
        for name in names:
            start = time.perf_counter()
            frozen = train_backbone(name, data, chosen, seed=seed, device=device)
            accuracy = 100 * frozen.accuracy(data.test_mask).double().cpu()
            mean = float(accuracy.mean())
            paper = published_numbers()["tables"]["frozen"]["cells"][name].get(dataset)
            yield {
                "dataset": dataset,
                "backbone": name,
                "accuracy": round(mean, 2),
                "std": round(float(accuracy.std()), 2) if len(accuracy) > 1 else 0.0,
                "paper": paper,
                "difference": None if paper is None else round(mean - paper, 2),
                "epochs": int(frozen.epochs_run.max()),  # the most that a split ran
                "seconds": round(time.perf_counter() - start, 1),
            }
            del frozen
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
