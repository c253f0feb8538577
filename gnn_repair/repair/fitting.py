"""How a repair is fitted: the trainee that it becomes, and who hears how it goes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gnn_repair.errors import InputError
from gnn_repair.f1 import micro_scores
from gnn_repair.kernels import row_hash
from gnn_repair.kernels.dropout import LOW
from gnn_repair.repair.layers import SEEDS_A_STEP, Noise, Parameters
from gnn_repair.repair.targets import Targets
from gnn_repair.training import Progress, ProgressCallback, Trainee, check_progress

SEED_STRIDE, EPOCH_STRIDE = 0x9E3779B1, 0x85EBCA77
"""Odd 32-bit numbers far apart from their multiples: seeds and epochs share no stream."""

Predict = Callable[[Parameters, Any, Tensor, Noise | None], Tensor]
"""Logits [S, L, C] of targets [S, L], from parameters, tables and dropout."""
LOG = logging.getLogger("gnn_repair.repair")
"""Epochs at DEBUG, what was learned at INFO."""
QUARTERS = 4
"""Lines of a whole run where they cannot be written over, such as a file or a pipe."""
T = TypeVar("T")


class RepairTrainee(Trainee):
    """A repair over its training targets, in one batch or in shuffled minibatches.

    A member's batches, their order and its dropout follow from the seed, the epoch and the step
    alone, and it learns only in steps that hold one of its targets: who else is in the stack does
    not matter.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        tables: Callable[[Parameters], Any],
        predict: Predict,
        train: Targets,
        val: Targets,
        *,
        dropout: float,
        batch_size: int | None,
        seed: int,
    ) -> None:
        self.parameters = parameters
        # Other precisions go the plain way, which asks the device how many terms there are.
        self.captures = all(value.dtype == torch.float32 for value in parameters.values())
        self.tables, self.predict = tables, predict
        self.val, self.dropout = val, dropout
        longest = train.positions.shape[1]
        self.batch = longest if batch_size is None else min(batch_size, longest)
        self.steps_per_epoch = -(-longest // self.batch)
        self.train = _padded(train, self.steps_per_epoch * self.batch)
        self.weights = _batch_weights(self.train, self.batch)
        if train.shares is not None:
            self.weights = self._shares(self.train.positions) * self.train.real
        # One tensor, so that a step picks positions and labels at once.
        self.ordered = torch.stack(self.train[:2])
        self.positions, self.labels = self.ordered
        place = train.positions.device
        # On the device, where the steps of a captured CUDA graph count them on; each is a launch.
        self.epoch, self.step, self.stream = (
            torch.zeros((), dtype=torch.long, device=place) for _ in range(3)
        )
        self.places = torch.arange(self.batch, device=place)
        self.start = (seed * SEED_STRIDE) & LOW

    def trunk(self) -> Any:
        return self.tables(self.parameters)

    def begin_epoch(self) -> None:
        """A new order of every member's real targets; padding stays behind.

        What fits into one batch keeps its order, as it would alone.
        """
        self.epoch.add_(1)
        self.step.zero_()
        if self.steps_per_epoch == 1:
            return
        self.stream.copy_(self._stream() - SEEDS_A_STEP)
        torch.arange(-self.batch, 0, out=self.places)
        place = torch.arange(self.train.positions.shape[1], device=self.epoch.device)
        shuffled = row_hash(self._stream() - 1, place).expand_as(self.train.positions)
        keys = torch.where(self.train.sizes.unsqueeze(1) > self.batch, shuffled, place)
        order = (keys + (LOW + 1) * ~self.train.real).argsort(dim=1, stable=True)
        # Into the same memory, which the steps of a captured CUDA graph go on reading.
        torch.gather(self.train.positions, 1, order, out=self.positions)
        torch.gather(self.train.labels, 1, order, out=self.labels)

    def _stream(self) -> Tensor:
        """Where this step's random numbers begin."""
        return self.start + self.epoch * EPOCH_STRIDE + self.step * SEEDS_A_STEP

    def _next_stream(self) -> Tensor:
        """The same, counted on from the step before."""
        return self._stream() if self.steps_per_epoch == 1 else self.stream.add_(SEEDS_A_STEP)

    def losses(self, trunk: Any) -> Tensor:
        noise = Noise(self.dropout, self._next_stream()) if self.dropout else None
        targets, labels, weights = self._next_batch()
        logits = self.predict(self.parameters, trunk, targets, noise)
        if self.train.truths is not None:
            chosen = label_likelihood(logits, self.train.truths[targets])
        else:
            chosen = logits.log_softmax(2).gather(2, labels.unsqueeze(2)).squeeze(2)
        return -(chosen * weights.to(chosen.dtype)).sum(1)

    def learning(self) -> Tensor | None:
        """Whether a member had a target in the batch before: not past the end of its own."""
        if self.steps_per_epoch == 1:
            return None
        return self.places[:1] < self.train.sizes

    def _next_batch(self) -> tuple[Tensor, ...]:
        """Positions, labels and weights of the batch that comes next, each [S, L]."""
        if self.steps_per_epoch == 1:
            return self.positions, self.labels, self.weights
        self.places.add_(self.batch)
        self.step.add_(1)
        positions, labels = self.ordered.index_select(2, self.places)
        weights = self.weights.index_select(1, self.places)
        if self.train.shares is not None:  # they travel with their nodes
            weights = self._shares(positions) * (weights > 0)
        return positions, labels, weights

    def _shares(self, positions: Tensor) -> Tensor:
        """Of the loss; a batch's sum stands for the epoch's, however many steps a member has."""
        assert self.train.shares is not None
        own_steps = -(-self.train.sizes // self.batch)
        return self.train.shares.gather(1, positions) * own_steps.unsqueeze(1)

    def scores(self, trunk: Any) -> Tensor:
        logits = self.predict(self.parameters, trunk, self.val.positions, None)
        if self.val.truths is not None:
            return micro_scores(logits > 0, self.val.truths[self.val.positions], self.val.real)
        return ((logits.argmax(2) == self.val.labels) & self.val.real).sum(1)


def label_likelihood(logits: Tensor, truths: Tensor) -> Tensor:
    """Mean log-likelihood of a target's known labels, each of them a coin, [S, L].

    Args:
        logits: [S, L, K].
        truths: [S, L, K]: 0, 1, or NaN where unknown.
    """
    known = ~truths.isnan()
    signs = torch.where(truths == 1, 1.0, -1.0).to(logits.dtype)
    told = torch.where(known, logsigmoid(signs * logits), 0.0)
    return told.sum(2) / known.sum(2).clamp(min=1)


def _padded(targets: Targets, length: int) -> Targets:
    extra = length - targets.positions.shape[1]
    index, labels = (
        torch.cat([values, values[:, :1].expand(-1, extra)], dim=1) for values in targets[:2]
    )
    return targets._replace(positions=index, labels=labels)


def _batch_weights(targets: Targets, batch: int) -> Tensor:
    """[S, L]: 1 / (real targets in the batch) on real targets, so that a batch's loss is a mean."""
    real = targets.real
    counts = real.view(real.shape[0], -1, batch).sum(2, keepdim=True).clamp(min=1)
    return (real.view(real.shape[0], -1, batch) / counts).view_as(real)


# How it goes: a line that is written over, or Python's own logging -------------------------------


class Listener:
    """Hears how a repair is fitted and tells whoever wants to know."""

    def __init__(
        self, title: str, on_progress: Any, progress: Any, outputs: str = "classes"
    ) -> None:
        check_progress(on_progress)
        if not isinstance(progress, bool):
            raise InputError(f"progress is {progress!r:.60}; give True or False")
        self.title, self.own, self.outputs = title, on_progress, outputs
        # A program without a terminal may have no stream for errors at all.
        shown = progress and sys.stderr is not None
        self.line = ProgressLine(title, sys.stderr, outputs) if shown else None

    @property
    def callback(self) -> ProgressCallback | None:
        """What the loop calls; None where nobody listens, so that it need not look."""
        heard = self.own is not None or self.line is not None or LOG.isEnabledFor(logging.DEBUG)
        return self._hear if heard else None

    def _hear(self, progress: Progress) -> None:
        if self.own is not None:
            self.own(progress)
        if self.line is not None:
            self.line.show(progress)
        LOG.debug("%s: %s", self.title, in_words(progress, self.outputs))

    def told(self, fitted: T) -> T:
        """The repair itself, once what it learned has been said."""
        LOG.info("%s", fitted)
        return fitted

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.line is not None:
            self.line.close()


def in_words(progress: Progress, outputs: str = "classes") -> str:
    """Such as ``epoch 40 of 200, 2 members training, 61.5 validation nodes right``.

    Before the first epoch was scored nothing is said of a score; of labels it is their micro-F1.
    """
    members = "1 member" if progress.active == 1 else f"{progress.active} members"
    text = f"epoch {progress.epoch} of {progress.epochs}, {members} training"
    if progress.best < 0:
        return text
    if outputs == "labels":
        return f"{text}, validation micro-F1 {100 * progress.best:.1f} %"
    return f"{text}, {progress.best:g} validation nodes right"


class ProgressLine:
    """One line in a terminal or below a notebook's cell, some lines elsewhere."""

    def __init__(self, title: str, stream: TextIO, outputs: str = "classes") -> None:
        self.title, self.stream, self.outputs = title, stream, outputs
        self.live = stream.isatty() or in_notebook()
        self.width = self.quarter = 0

    def show(self, progress: Progress) -> None:
        """Say where fitting stands."""
        text = f"{self.title}: {in_words(progress, self.outputs)}"
        if self.live:
            # Blanks cover what was there before; a carriage return is the only way that both know.
            self.stream.write("\r" + text.ljust(self.width))
            self.width = len(text)
        else:
            quarter = QUARTERS * progress.epoch // max(1, progress.epochs)
            if quarter <= self.quarter:
                return
            self.quarter = quarter
            self.stream.write(text + "\n")
        self.stream.flush()

    def close(self) -> None:
        """End the line."""
        if self.live and self.width:
            self.stream.write("\n")
            self.stream.flush()


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")
