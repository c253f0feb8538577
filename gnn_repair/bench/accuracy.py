"""``gnn-repair bench accuracy``: frozen test accuracy beside the published numbers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from gnn_repair.backbones import train_backbone
from gnn_repair.datasets import load_dataset
from gnn_repair.published import published


@dataclass(frozen=True)
class AccuracyRow:
    """One case: mean and standard deviation over splits, in per cent."""

    dataset: str
    backbone: str
    accuracy: float
    deviation: float
    paper: float | None
    epochs: int
    """Largest number of epochs a split ran."""
    seconds: float

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.accuracy - self.paper


def bench_accuracy(
    datasets: Iterable[str],
    backbones: Iterable[str],
    *,
    root: str | Path | None = None,
    splits: Iterable[int] | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Iterator[AccuracyRow]:
    """Train every case on its splits at once and score it on the test nodes."""
    names, chosen = list(backbones), None if splits is None else list(splits)
    for dataset in datasets:
        data = load_dataset(dataset, root)
        for name in names:
            start = time.perf_counter()
            frozen = train_backbone(name, data, chosen, seed=seed, device=device)
            accuracy = 100 * frozen.accuracy(data.test_mask).double().cpu()
            paper = published()["tables"]["frozen"]["cells"][name].get(dataset)
            yield AccuracyRow(
                dataset=dataset,
                backbone=name,
                accuracy=float(accuracy.mean()),
                deviation=float(accuracy.std()) if len(accuracy) > 1 else 0.0,
                paper=paper,
                epochs=int(frozen.epochs_run.max()),
                seconds=time.perf_counter() - start,
            )
            del frozen
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
