"""``gnn-repair bench minibatch``: a step of minibatch training, before and after work was removed.

*Before* multiplies every message in every step and drops hidden channels with PyTorch's own
operations; *after* is what runs. Both train the same repair to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.backbones import find_backbone, train_backbone
from gnn_repair.datasets import load_dataset
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.kernels.dropout import plain_dropout
from gnn_repair.repair import NodeTranslation, Reweighting, SetTranslation, paper_batch_size
from gnn_repair.repair.message_table import whole_tables
from gnn_repair.training import CHECK_EVERY, Budget, Progress

REPAIRS: dict[str, type[Any]] = {
    "set-translation": SetTranslation,
    "reweighting": Reweighting,
    "node-translation": NodeTranslation,
}
WARM = 1
"""Rounds of epochs that are not timed: kernels are compiled and steps captured in them."""


@dataclass(frozen=True)
class MinibatchRow:
    """Milliseconds a step of all members."""

    case: str
    repair: str
    batch: int
    members: int
    before: float
    after: float


def bench_minibatch(
    cases: Iterable[str],
    *,
    root: str | None = None,
    device: str = "auto",
    members: int = 10,
    steps: int = 60,
    epochs: int = 3,
    repairs: Iterable[str] = tuple(REPAIRS),
) -> Iterator[MinibatchRow]:
    """Time both forms in the same run, in the paper's batch sizes.

    Args:
        cases: such as ``pubmed:sgc``; the backbone is one of those that the paper batches.
        root: folder of the raw datasets.
        device: ``auto``, ``cpu`` or ``cuda``.
        members: splits fitted as one.
        steps: of an epoch; its validation, once an epoch, is shared among them.
        epochs: timed, of which the best counts.
        repairs: which repairs.
    """
    place = choose_device(device)
    for case in cases:
        name, _, backbone = case.partition(":")
        batch = paper_batch_size(name, backbone) if backbone else None
        if batch is None:
            raise InputError(f"case {case!r} is not trained on minibatches; try pubmed:sgc")
        data = load_dataset(name, root)
        budget = replace(find_backbone(backbone).budget, epochs=5)
        count = min(members, data.train_mask.shape[1])
        frozen = train_backbone(backbone, data, range(count), device=place, budget=budget)
        timed = _Timed(expose(frozen), data, batch, steps, epochs, place)
        for repair in repairs:
            with before():
                earlier = timed.step(REPAIRS[repair])
            yield MinibatchRow(case, repair, batch, count, earlier, timed.step(REPAIRS[repair]))


@contextmanager
def before() -> Iterator[None]:
    """Inside, nothing of what was removed is left out."""
    with ExitStack() as stack:
        stack.enter_context(whole_tables())
        stack.enter_context(plain_dropout())
        yield


@dataclass(frozen=True)
class _Timed:
    """A case of which single steps are timed."""

    exposure: Exposure
    data: Data
    batch: int
    steps: int
    epochs: int
    device: torch.device

    def step(self, repair: type[Any]) -> float:
        """Milliseconds, the best epoch's."""
        count, marks = self.exposure.num_members, list[float]()
        train = _first(self.data.train_mask[:, :count], self.steps * self.batch)
        steps = -(-int(train.sum(0).max()) // self.batch)
        # As often as the training loop reports where it is.
        every = max(1, CHECK_EVERY // steps)
        epochs = every * (WARM + self.epochs)
        budget = Budget(epochs, None, 1e-3, 1e-4, decoupled=True, epoch_zero=True)

        def listen(progress: Progress) -> None:
            if progress.epoch >= every * WARM:
                marks.append(time.perf_counter())

        repair(budget=budget).fit(
            self.exposure, self.data.y, train, self.data.val_mask[:, :count],
            device=self.device, batch_size=self.batch, on_progress=listen,
        )  # fmt: skip
        spent = [later - earlier for earlier, later in pairwise(marks)]
        return 1e3 * min(spent) / (every * steps)


def _first(mask: Tensor, most: int) -> Tensor:
    """The first ``most`` nodes of every member's mask [N, S]."""
    return mask & (mask.long().cumsum(0) <= most)
