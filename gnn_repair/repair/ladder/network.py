"""All rungs as one stack of small heads: R rungs × S members × K copies learn side by side.

A head is W relu(Σ_b x_b V_b + b) + c over the blocks b that its rung reads. Where the rung keeps
the model it becomes z⁰ + P · 4 tanh(·), which starts as the frozen prediction and stays near it;
else it stands for itself and can forget the model. Each block is multiplied once for all rungs,
members and copies that read it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.backbones.frozen import STATISTICS
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.pieces import centre
from gnn_repair.kernels.products import product
from gnn_repair.kernels.sets import BOUND, LOW, keep_mask
from gnn_repair.methods import BLOCKS, RUNGS
from gnn_repair.repair.evidence import (
    FeatureEvidence,
    LabelEvidence,
    standardise,
    statistics,
    summary,
)
from gnn_repair.repair.folds import Roles
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.repair.targets import EPOCH_STRIDE, SEED_STRIDE, Task
from gnn_repair.training import Parameters, ProgressCallback, Trainee, fit

if TYPE_CHECKING:
    from gnn_repair.repair.ladder.ladder import EvidenceLadder

AT_ONCE = 1 << 28
"""Hidden numbers of the rungs that are trained as one, 1 GB."""
CHUNK = 1 << 25
"""Hidden numbers of one block of predictions."""
LEAST = 8
"""A head learns for an eighth of the epochs at least."""
STARTS = (*BLOCKS, "bias", "last")
"""Parameters that are drawn, each from a stream of its own."""


@dataclass(frozen=True, eq=False)
class Sources:
    """What heads can read at every recipient."""

    frozen: Tensor
    """z⁰, [S, n, C]."""
    nodes: Tensor
    """[n]: the graph node behind each recipient."""
    messages: Tensor
    """Standardised summary, [S, n, D]."""
    statistics: Parameters
    """Its mean and scale, [S, D] each."""
    labels: LabelEvidence
    """Of training and validation nodes alone."""
    features: FeatureEvidence | None
    """Where they were given."""

    @staticmethod
    def of(task: Task) -> Sources:
        """Of a frozen model on its graph."""
        inputs, x = task.inputs, getattr(task.data, "x", None)
        classes, dtype = inputs.num_classes, inputs.dtype
        x = None if x is None else x.to(inputs.device, dtype)
        known = torch.where(task.by_node(task.train | task.val), task.y, classes)
        table = summary(inputs)
        scale = statistics(table)
        return Sources(
            inputs.frozen_logits[:, inputs.nodes],
            inputs.nodes,
            standardise(table, **scale),
            scale,
            LabelEvidence(task.links, known, classes, dtype, x),
            None if x is None else FeatureEvidence(x),
        )

    def at(self, positions: Tensor) -> Sources:
        """Of some recipients; what is known of labels is known of all nodes."""
        nodes = self.nodes[positions]
        return replace(
            self,
            frozen=self.frozen[:, positions],
            nodes=nodes,
            messages=self.messages[:, positions],
            features=self.features and FeatureEvidence(self.features.x, nodes),
        )

    def width(self, block: str) -> int:
        """Numbers per recipient."""
        if block == "messages":
            return self.messages.shape[2]
        if block == "features" and self.features is not None:
            return self.features.x.shape[1]
        return self.labels.width if block == "labels" else self.labels.similar_width


class Heads:
    """The arithmetic of a stack of rungs; rows are ordered by rung, member, copy."""

    def __init__(self, rungs: Sequence[str], sources: Sources, copies: int, hidden: int) -> None:
        self.rungs, self.sources, self.hidden = tuple(rungs), sources, hidden
        self.members, _, self.classes = sources.frozen.shape
        self.copies, self.each = copies, self.members * copies
        self.readers = {
            block: [r for r, name in enumerate(rungs) if block in RUNGS[name].blocks]
            for block in BLOCKS
            if any(block in RUNGS[name].blocks for name in rungs)
        }
        """By block, the rungs that read it."""
        place = sources.frozen.device
        self._picks = {b: torch.tensor(rows, device=place) for b, rows in self.readers.items()}

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Untrained parameters [M, …]: copy k starts from seed + k, whatever rung and member."""
        like, shape = self.sources.frozen, (len(self.rungs), self.members)
        sizes = {block: (self.sources.width(block), self.hidden) for block in self.readers}
        sizes |= {"bias": (1, self.hidden), "last": (self.hidden, self.classes)}
        out = {}
        for name, (rows, columns) in sizes.items():
            starts = []
            for copy in range(self.copies):
                generator = torch.Generator().manual_seed(STARTS.index(name) + 16 * (seed + copy))
                starts.append(torch.rand(rows, columns, generator=generator) * 2 - 1)
            table = torch.stack(starts) / math.sqrt(rows if rows > 1 else columns)
            out[name] = table.to(like).expand(*shape, -1, -1, -1).flatten(0, 2).clone()
        # What keeps the model starts as the model.
        keeps = torch.tensor([RUNGS[name].keeps for name in self.rungs], device=like.device)
        out["last"][keeps.repeat_interleave(self.each)] = 0
        out["last bias"] = like.new_zeros(len(self.rungs) * self.each, 1, self.classes)
        return out

    def part(self, p: Parameters, block: str, table: Any, seed: Tensor | None = None) -> Tensor:
        """A block's part of the hidden layer for the rungs that read it, [readers, S·K, L, H].

        ``table`` is [T, L, k] for T = 1, S or S·K, or raw features, of which ``seed`` says while
        training what is dropped.
        """
        weight = p[block].unflatten(0, (-1, self.each)).index_select(0, self._picks[block])
        count, _, width, channels = weight.shape
        if isinstance(table, FeatureEvidence):
            out = table.times(weight.permute(2, 0, 1, 3).reshape(width, -1), seed)
            return out.view(-1, count, self.each, channels).permute(1, 2, 0, 3)
        groups, length, _ = table.shape
        wide = weight.view(count, groups, -1, width, channels).permute(1, 3, 0, 2, 4)
        out = product(table, wide.reshape(groups, width, -1))
        out = out.view(groups, length, count, -1, channels).permute(2, 0, 3, 1, 4)
        return out.reshape(count, self.each, length, channels)

    def logits(
        self,
        p: Parameters,
        reading: Sources,
        histograms: Mapping[str, Tensor],
        noise: tuple[float, Tensor] | None = None,
    ) -> Tensor:
        """[M, L, C] at the recipients of a reading.

        ``histograms`` are labels' by block [S or S·K, L, k]; ``noise`` is, while training, the
        share of hidden channels that is dropped and the step's seed, which drops features too.
        """
        seed = None if noise is None else noise[1] + 1
        own_blocks = {"messages": reading.messages, "features": reading.features}
        tables: dict[str, Any] = {**own_blocks, **histograms}
        # Taken apart at once, so that gradients are put together at once.
        parts = {
            block: dict(zip(rows, self.part(p, block, tables[block], seed).unbind(0), strict=True))
            for block, rows in self.readers.items()
        }
        first, last, bias = (p[n].split(self.each) for n in ("bias", "last", "last bias"))
        own = reading.frozen.repeat_interleave(self.copies, 0)
        mask = None
        if noise is not None and noise[0]:
            # One for all rows, by node: who else is in the stack does not matter.
            stays = keep_mask(noise[1] + 3, noise[0], reading.nodes, self.hidden)
            mask = stays.to(own.dtype) / (1 - noise[0])
        out = []
        for number, name in enumerate(self.rungs):
            hidden = first[number]
            for block in RUNGS[name].blocks:
                hidden = hidden + parts[block][number]
            hidden = hidden.relu()
            if mask is not None:
                hidden = hidden * mask
            raw = torch.baddbmm(bias[number], hidden, last[number])
            out.append(own + centre(BOUND * raw.tanh()) if RUNGS[name].keeps else raw)
        return torch.cat(out)

    def histograms(self, reading: Sources, labels: Tensor) -> dict[str, Tensor]:
        """Histograms of labels [T, N] around the recipients, [T, L, k], where they are read."""
        makers = {"labels": reading.labels.histograms, "similar": reading.labels.similar_histograms}
        return {
            block: make(labels)[:, reading.nodes]
            for block, make in makers.items()
            if block in self.readers
        }

    @torch.no_grad()
    def log_probs(self, p: Parameters) -> Tensor:
        """What every copy says of every recipient, [S, R, K, n, C], in blocks of recipients."""
        everyone = torch.arange(self.sources.nodes.numel(), device=self.sources.nodes.device)
        rows, known = len(self.rungs) * self.each, self.sources.labels.known
        parts = []
        for at in everyone.split(max(1, CHUNK // (rows * self.hidden))):
            reading = self.sources.at(at)
            parts.append(self.logits(p, reading, self.histograms(reading, known)).log_softmax(2))
        shape = len(self.rungs), self.members, self.copies
        return torch.cat(parts, 1).unflatten(0, shape).transpose(0, 1)


class LadderTrainee(Trainee):
    """A stack of heads that learns from some recipients and is judged on others.

    The epoch of a copy is the one at which the *other* copies of its rung and member are right
    most often about their folds, so no label that judges a copy has chosen its epoch. Epochs before
    ``first`` are no candidates: there a head that keeps the model still is the model, whose own
    epoch was chosen by these labels, so its accuracy flatters it. Where ``epochs`` are given, each
    row is kept at its own and nothing is judged.
    """

    def __init__(
        self,
        heads: Heads,
        roles: Roles,
        labels: Tensor,
        *,
        folds: int,
        dropout: float,
        seed: int,
        first: int = 0,
        epochs: Tensor | None = None,
    ) -> None:
        self.heads, self.folds, self.dropout = heads, folds, dropout
        self.first, self.epochs = first, epochs
        self.parameters = heads.initial(seed)
        self.captures = heads.sources.frozen.dtype == torch.float32
        learned, judged = (
            who.any(0).nonzero().view(-1) for who in (roles.weights > 0, roles.judged)
        )
        self.learned, self.judged = heads.sources.at(learned), heads.sources.at(judged)
        self.labels, self.truth = labels[learned], labels[judged]
        rungs, known = len(heads.rungs), heads.sources.labels.known
        self.shares = roles.weights[:, learned].repeat(rungs, 1).to(heads.sources.frozen.dtype)
        self.mine = roles.judged[:, judged].repeat(rungs, 1)
        # A copy sees no label that it does not learn from, not even as a neighbour's.
        self.withheld = roles.judged.new_zeros(heads.each, known.shape[1])
        self.withheld[:, heads.sources.nodes] = roles.weights == 0
        self.histograms = heads.histograms(self.judged, known)
        self.epoch = torch.zeros((), dtype=torch.long, device=labels.device)
        self.start = (seed * SEED_STRIDE) & LOW

    def begin_epoch(self) -> None:
        self.epoch.add_(1)

    def losses(self, trunk: Any) -> Tensor:
        stream = self.start + self.epoch * EPOCH_STRIDE
        shown = self.heads.sources.labels.partly(self.withheld, stream)
        histograms = self.heads.histograms(self.learned, shown)
        logits = self.heads.logits(
            self.parameters, self.learned, histograms, (self.dropout, stream)
        )
        index = self.labels.view(1, -1, 1).expand(len(logits), -1, 1)
        chosen = logits.log_softmax(2).gather(2, index).squeeze(2)
        return -(chosen * self.shares).sum(1)

    def scores(self, trunk: Any) -> Tensor:
        if self.epochs is not None:
            return (self.epoch == self.epochs + 1).float()
        logits = self.heads.logits(self.parameters, self.judged, self.histograms)
        right = ((logits.argmax(2) == self.truth) & self.mine).sum(1)
        # Copies that are judged on the same fold stand a whole round of folds apart.
        rounds = right.view(-1, self.heads.copies // self.folds, self.folds)
        others = rounds.sum((1, 2)).view(-1, 1, 1) - rounds.sum(1, keepdim=True)
        others = others.expand_as(rounds).reshape(-1)
        return torch.where(self.epoch > self.first, others, -1)


@dataclass(frozen=True, eq=False)
class FittedRungs:
    """What fitting rungs gave."""

    rungs: tuple[str, ...]
    log_probs: Tensor
    """[S, R, K, n, C]: of every copy at every recipient."""
    best_epoch: Tensor
    """[R, S, K]."""
    epochs_run: Tensor
    diverged: Tensor
    parameters: Mapping[str, Parameters]
    """By rung, [S, K, …]; of inductive rungs alone."""
    count: int
    """Trained numbers of one member."""


def climb(
    rungs: Sequence[str],
    sources: Sources,
    roles: Roles,
    labels: Tensor,
    ladder: EvidenceLadder,
    *,
    epochs: Tensor | None = None,
    on_progress: ProgressCallback | None = None,
) -> FittedRungs:
    """Train K copies of every rung and member, as many rungs at once as memory is meant for.

    Labels [n] are read where a copy learns or is judged; ``epochs`` [R, S, K] are those that are
    kept, where they are known.
    """
    budget, hidden = ladder.budget, ladder.hidden
    if epochs is not None:
        budget = replace(budget, epochs=max(1, int(epochs.max())), patience=None)
    each, length = roles.weights.shape
    size = max(1, AT_ONCE // (each * length * hidden))
    log_probs: list[Tensor] = []
    statistics: list[list[Tensor]] = []
    parameters: dict[str, Parameters] = {}
    count = 0
    for first in range(0, len(rungs), size):
        names = rungs[first : first + size]
        heads = Heads(names, sources, roles.copies, hidden)
        wanted = None if epochs is None else epochs[first : first + size].reshape(-1)
        trainee = LadderTrainee(
            heads, roles, labels,
            folds=ladder.folds, dropout=ladder.dropout, seed=ladder.seed,
            first=budget.epochs // LEAST, epochs=wanted,
        )  # fmt: skip
        outcome = fit(trainee, budget, on_progress)
        if gone := int(outcome.diverged.sum()):
            warnings.warn(
                f"Evidence ladder: {gone} of {outcome.diverged.numel()} copies diverged; "
                "the best of their earlier states were kept",
                stacklevel=3,
            )
        shape = len(names), heads.members, heads.copies
        log_probs.append(heads.log_probs(outcome.parameters))
        statistics.append([getattr(outcome, name).view(shape) for name in STATISTICS])
        for number, rung in enumerate(names):
            own = {
                name: value.detach().unflatten(0, shape)[number]
                for name, value in outcome.parameters.items()
                if name not in BLOCKS or name in RUNGS[rung].blocks
            }
            count += sum(value[0].numel() for value in own.values())
            if RUNGS[rung].inductive:
                parameters[rung] = own
    best, run, wild = (torch.cat(column) for column in zip(*statistics, strict=True))
    return FittedRungs(tuple(rungs), torch.cat(log_probs, 1), best, run, wild, parameters, count)


@torch.no_grad()
def inductive_log_probabilities(p: Parameters, exposure: Exposure) -> Tensor:
    """Mean log-probabilities of an inductive rung's copies on any graph, [S, n, C] float64.

    ``p`` holds its parameters [S, K, …] and the summary's ``mean`` and ``scale`` [S, D].
    """
    inputs = RepairInputs(exposure)
    rows = standardise(summary(inputs), p["mean"], p["scale"]).unsqueeze(1)
    hidden = (rows @ p["messages"] + p["bias"]).relu()
    shift = centre(BOUND * (hidden @ p["last"] + p["last bias"]).tanh())
    frozen = exposure.frozen_logits[:, exposure.recipients].unsqueeze(1)
    return (frozen + shift).log_softmax(3).mean(1).log_softmax(2)
