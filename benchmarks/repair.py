"""Fitting repairs: an epoch of the literal form against ours, and a step of minibatch training.

The literal form builds x_{v,a} term by term, as the definition reads. Of a minibatch step, *before*
multiplies every message in every step and drops hidden channels with PyTorch's own operations;
*after* is what runs. Both train the same repair to rounding.
"""

from __future__ import annotations

import ctypes
import gc
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, coalesce, to_undirected

from gnn_repair.backbones import find_backbone, train_backbone
from gnn_repair.datasets import load_dataset, stratified_splits
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.kernels.sets import drop_rows_plainly
from gnn_repair.repair import NodeTranslation, Reweighting, SetTranslation, paper_batch_size
from gnn_repair.repair.inputs import Description
from gnn_repair.training import CHECK_EVERY, Budget, Progress

REPAIRS: dict[str, type[Any]] = {
    "set-translation": SetTranslation,
    "reweighting": Reweighting,
    "node-translation": NodeTranslation,
}
LITERAL = ("set-translation", "reweighting")
"""Those with a literal form."""
CHUNK = 65_536
"""Terms that the literal form encodes at a time, as in the paper."""
WARM = 1
"""Rounds of minibatch epochs that are not timed: kernels are compiled, steps captured."""
SLOW = 1.0
"""Seconds an epoch may take before fewer of them are timed."""
GENERATED = "generated"
"""A random graph with Citeseer's numbers of nodes, entries, features and classes."""


def bench_repair(
    cases: Iterable[str],
    *,
    root: str | None = None,
    device: str = "auto",
    members: int = 10,
    epochs: int = 20,
    repairs: Iterable[str] = LITERAL,
) -> Iterator[dict[str, Any]]:
    """Time the literal form, ours in plain PyTorch and ours with kernels, in the same run.

    Args:
        cases: such as ``citeseer:sgc``; the dataset may be ``generated``.
        root: folder of the raw datasets.
        device: ``auto``, ``cpu`` or ``cuda``.
        members: how many are stacked in the last figure.
        epochs: epochs timed, a multiple of ten.
        repairs: which repairs.
    """
    place, chosen = choose_device(device), tuple(repairs)
    for case in cases:
        name, _, backbone = case.partition(":")
        if not backbone:
            raise InputError(f"case {case!r} is not dataset:backbone, such as citeseer:sgc")
        data = citeseer_sized_graph() if name == GENERATED else load_dataset(name, root)
        budget = replace(find_backbone(backbone).budget, epochs=5)
        frozen = train_backbone(backbone, data, range(members), device=place, budget=budget)
        exposure = expose(frozen)
        for repair in chosen:
            yield from _forms(case, repair, exposure, data, place, epochs)


def _forms(
    case: str, repair: str, exposure: Exposure, data: Data, device: torch.device, epochs: int
) -> Iterator[dict[str, Any]]:
    members = exposure.num_members
    one = exposure.member(0)
    forms: list[tuple[str, int, Callable[[EpochTimer, Budget], object]]] = [
        ("literal", 1, lambda c, b: _literal(repair, one, data, c, b)),
        ("plain", 1, lambda c, b: _ours(repair, one, data, c, b, device, plain=True)),
        ("fused", 1, lambda c, b: _ours(repair, one, data, c, b, device)),
        ("fused", members, lambda c, b: _ours(repair, exposure, data, c, b, device)),
    ]
    literal: list[float | None] = []
    for form, count, work in forms:
        elapsed, peak = _measure(work, device, epochs, 1 if form == "literal" else CHECK_EVERY)
        own = [elapsed / count, None if peak is None else peak / count]  # per member
        literal = literal or own
        times, memory = (
            round(peer / mine, 1) if peer and mine else None
            for peer, mine in zip(literal, own, strict=True)
        )
        yield {
            "case": case,
            "repair": repair,
            "d": exposure.state.shape[2],
            "terms": exposure.num_terms,
            "form": form,
            "members": count,
            "ms": round(elapsed / count, 3),
            "literal / this": times,
            "peak MiB": None if own[1] is None else round(own[1], 1),
            "memory ratio": memory,
        }


class EpochTimer:
    """Notes when the epochs to be timed begin and end."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.start = self.stop = 0.0

    def __call__(self, epoch: int) -> None:
        """Hear that ``epoch`` epochs are done."""
        if epoch == self.first:
            self.start = time.perf_counter()
        if epoch == self.last:
            self.stop = time.perf_counter()


def _measure(
    work: Callable[[EpochTimer, Budget], object], device: torch.device, epochs: int, every: int
) -> tuple[float, float | None]:
    """Milliseconds an epoch, best of three (once where it is slow); peak memory of one epoch.

    ``every`` is how often, in epochs, the form reports where it is.
    """
    gc.collect()
    short = Budget(1, None, 1e-3, 1e-4, decoupled=True, epoch_zero=True)
    work(EpochTimer(0, 1), short)
    start = time.perf_counter()
    peak = peak_mib(lambda: work(EpochTimer(0, 1), short), device)
    slow = time.perf_counter() - start > SLOW
    timed = every if slow else max(every, epochs)
    longer = replace(short, epochs=every + timed)
    figures = []
    for _ in range(1 if slow else 3):
        clock = EpochTimer(every, longer.epochs)
        work(clock, longer)
        figures.append(1e3 * (clock.stop - clock.start) / timed)
    return min(figures), peak


def _literal(
    repair: str, exposure: Exposure, data: Data, clock: EpochTimer, budget: Budget
) -> None:
    place = exposure.recipients.device
    model = LiteralRepair(exposure, repair == "reweighting").to(place)
    y, train, val = (t.to(place) for t in (data.y, data.train_mask[:, 0], data.val_mask[:, 0]))
    literal_loop(model, y, train, val, budget, clock)


def _ours(
    repair: str,
    exposure: Exposure,
    data: Data,
    clock: EpochTimer,
    budget: Budget,
    device: torch.device,
    *,
    plain: bool = False,
) -> None:
    def listen(progress: Progress) -> None:
        clock(progress.epoch)

    count = exposure.num_members
    masks = data.train_mask[:, :count], data.val_mask[:, :count]
    with plainly() if plain else nullcontext():
        REPAIRS[repair](budget=budget).fit(
            exposure, data.y, *masks, device=device, on_progress=listen
        )


def citeseer_sized_graph(nodes: int = 3327, entries: int = 12_431, features: int = 3703) -> Data:
    """A random graph of Citeseer's size with bag-of-words features (about 32 words a node)."""
    generator = torch.Generator().manual_seed(0)
    wanted = (entries - nodes) // 2
    ends = torch.randint(nodes, (2, 4 * wanted), generator=generator)
    pairs = coalesce(ends.sort(dim=0).values[:, ends[0] != ends[1]], num_nodes=nodes)
    pairs = pairs[:, torch.randperm(pairs.shape[1], generator=generator)[:wanted]]
    entry_index = add_self_loops(to_undirected(pairs, num_nodes=nodes), num_nodes=nodes)[0]
    x = (torch.rand(nodes, features, generator=generator) < 32 / features).float()
    y = torch.randint(6, (nodes,), generator=generator)
    train, val, test = stratified_splits(y)
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    return Data(x=x, edge_index=entry_index, y=y, name=GENERATED, **masks)


def mlp(inputs: int, outputs: int, hidden: int = 128) -> nn.Sequential:
    """Affine, ReLU, dropout, affine."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, outputs)
    )


class LiteralRepair(nn.Module):
    """Set translation or reweighting of one member, one row x_{v,a} per term and pass."""

    def __init__(self, exposure: Exposure, reweighting: bool) -> None:
        super().__init__()
        self.exposure, self.reweighting = exposure, reweighting
        d, c = exposure.state.shape[2], exposure.num_classes
        pair, context = 3 * d + 3 * c + 2, d + c + 128 + 1
        self.encoder = mlp(pair, 128)
        self.head = mlp(pair + context, 1) if reweighting else mlp(context, c)
        last = self.head[3]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        row, state = exposure.rows.long(), exposure.state[0]
        self.h, self.z = state, exposure.frozen_logits[0].to(state.dtype)
        self.messages = exposure.messages[0]
        self.message, self.source = exposure.message_rows[row].long(), exposure.sources[row].long()
        self.owner = exposure.terms_by_recipient.recipients.long()
        self.segment = torch.repeat_interleave(exposure.segments.diff())
        self.alpha = exposure.coefficients[0]
        self.contributions = exposure.contributions[0].to(state.dtype)[row]
        self.fixed = exposure.fixed_logits[0].to(state.dtype)

    def pairs(self, part: slice) -> Tensor:
        """x_{v,a} of a chunk of terms, [K, 3d + 3C + 2]."""
        node = self.exposure.recipients[self.owner[part]]
        h_v, h_a = self.h[node], self.messages[self.message[part]]
        z_v, z_a = self.z[node], self.z[self.source[part]]
        cosine = torch.cosine_similarity(h_v, h_a, dim=1).unsqueeze(1)
        distance = (h_a - h_v).norm(dim=1, keepdim=True)
        return torch.cat([h_v, h_a, h_a - h_v, z_v, z_a, z_a - z_v, cosine, distance], dim=1)

    def forward(self) -> Tensor:
        """Repaired logits, [N, C]."""
        count, terms = self.exposure.num_recipients, self.owner.numel()
        parts = [slice(i, i + CHUNK) for i in range(0, terms, CHUNK)]
        encoded = self.h.new_zeros(count, 128)
        for part in parts:
            message = self.alpha[part, None] * self.encoder(self.pairs(part))
            encoded = encoded.index_add(0, self.owner[part], message)
        total = self.h.new_zeros(count).index_add(0, self.owner, self.alpha).unsqueeze(1)
        own = self.exposure.recipients
        context = torch.cat([self.h[own], self.z[own], encoded / total, total], dim=1)
        if not self.reweighting:
            shift = 4 * self.head(context).tanh()
            return self.z[own] + shift - shift.mean(1, keepdim=True)
        return self._mixture(context, parts)

    def _mixture(self, context: Tensor, parts: list[slice]) -> Tensor:
        raw = [
            self.head(torch.cat([self.pairs(part), context[self.owner[part]]], dim=1))
            for part in parts
        ]
        tilted = self.alpha * (4 * torch.cat(raw).squeeze(1).tanh()).exp()
        groups = self.exposure.segments.numel() - 1
        zeros = tilted.new_zeros(groups)
        mass = zeros.index_add(0, self.segment, self.alpha)
        # An empty group has no terms to divide among; 0 / 1e-30 is nothing.
        share = mass / zeros.index_add(0, self.segment, tilted).clamp(min=1e-30)
        weighted = (tilted * share[self.segment]).unsqueeze(1) * self.contributions
        return self.fixed[self.exposure.recipients].index_add(0, self.owner, weighted)


def literal_loop(
    model: LiteralRepair,
    y: Tensor,
    train: Tensor,
    val: Tensor,
    budget: Budget,
    on_epoch: Callable[[int], None],
) -> float:
    """Train, clip and validate every epoch; returns the best validation accuracy."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=budget.learning_rate, weight_decay=budget.weight_decay
    )
    best = 0.0
    for epoch in range(budget.epochs):
        model.train()
        optimizer.zero_grad()
        cross_entropy(model()[train], y[train]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), budget.clip)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            predicted = model().argmax(1)
        best = max(best, float((predicted[val] == y[val]).float().mean()))
        on_epoch(epoch + 1)
    return best


def bench_minibatch(
    cases: Iterable[str],
    *,
    root: str | None = None,
    device: str = "auto",
    members: int = 10,
    steps: int = 60,
    epochs: int = 3,
    repairs: Iterable[str] = tuple(REPAIRS),
) -> Iterator[dict[str, Any]]:
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
            later = timed.step(REPAIRS[repair])
            yield {
                "case": case,
                "repair": repair,
                "batch": batch,
                "members": count,
                "before (ms)": round(earlier, 3),
                "after (ms)": round(later, 3),
                "before / after": round(earlier / later, 2),
            }


@contextmanager
def before() -> Iterator[None]:
    """Inside, nothing of what was removed is left out."""
    rows_plainly = patch("gnn_repair.repair.inputs.drop_rows", drop_rows_plainly)
    with patch.object(Description, "picks_cheaply", False), rows_plainly:
        yield


@contextmanager
def plainly() -> Iterator[None]:
    """Inside, the plain PyTorch form of the set operations does the work on every device."""
    with patch("gnn_repair.kernels.sets.kernel_module", return_value=None):
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


def peak_mib(work: Callable[[], object], device: torch.device) -> float | None:
    """MiB that ``work`` needed beyond what was there before it; None where it cannot be told."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        # Memory that was freed but kept would hide what the work takes.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        # "5" sets the process's peak resident size back to its present one (Linux).
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        work()
        return None
    resident = _kib("VmRSS")
    work()
    return max(0.0, (_kib("VmHWM") - resident) / 1024)


def _kib(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return float(found.group(1)) if found else float("nan")
