"""``gnn-repair bench repair``: an epoch of a repair, literal against factorised."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, coalesce, to_undirected

from gnn_repair.backbones import find_backbone, train_backbone
from gnn_repair.bench.literal import LiteralRepair, literal_loop
from gnn_repair.bench.memory import peak_mib
from gnn_repair.datasets import load_dataset, stratified_splits
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.kernels.sets import plainly
from gnn_repair.repair import Reweighting, SetTranslation
from gnn_repair.training import CHECK_EVERY, Budget, Progress

REPAIRS: dict[str, type[SetTranslation] | type[Reweighting]] = {
    "set-translation": SetTranslation,
    "reweighting": Reweighting,
}
SLOW = 1.0
"""Seconds an epoch may take before fewer of them are timed."""
GENERATED = "generated"
"""A random graph with Citeseer's numbers of nodes, entries, features and classes."""


@dataclass(frozen=True)
class RepairRow:
    """One form's figures on one case."""

    case: str
    repair: str
    width: int
    terms: int
    form: str
    members: int
    milliseconds: float
    """Per epoch and member."""
    peak_mib: float | None
    """Per member."""


def bench_repair(
    cases: Iterable[str],
    *,
    root: str | None = None,
    device: str = "auto",
    members: int = 10,
    epochs: int = 20,
    repairs: Iterable[str] = tuple(REPAIRS),
) -> Iterator[RepairRow]:
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


def with_ratios(measured: Iterable[RepairRow]) -> list[dict[str, object]]:
    """The rows of a table, each beside the literal form of the same case and repair."""
    literal: dict[tuple[str, str], RepairRow] = {}
    rows: list[dict[str, object]] = []
    for row in measured:
        peer = literal.setdefault((row.case, row.repair), row)
        memory = row.peak_mib and peer.peak_mib and round(peer.peak_mib / row.peak_mib, 1)
        rows.append(
            {
                "case": row.case,
                "repair": row.repair,
                "d": row.width,
                "terms": row.terms,
                "form": row.form,
                "members": row.members,
                "ms": round(row.milliseconds, 3),
                "literal / this": round(peer.milliseconds / row.milliseconds, 1),
                "peak MiB": None if row.peak_mib is None else round(row.peak_mib, 1),
                "memory ratio": memory,
            }
        )
    return rows


def _forms(
    case: str, repair: str, exposure: Exposure, data: Data, device: torch.device, epochs: int
) -> Iterator[RepairRow]:
    members = exposure.num_members
    one = exposure.member(0)
    fixed = (case, repair, exposure.state.shape[2], exposure.num_terms)
    forms: list[tuple[str, int, Callable[[EpochTimer, Budget], object]]] = [
        ("literal", 1, lambda c, b: _literal(repair, one, data, c, b)),
        ("plain", 1, lambda c, b: _ours(repair, one, data, c, b, device, plain=True)),
        ("fused", 1, lambda c, b: _ours(repair, one, data, c, b, device)),
        ("fused", members, lambda c, b: _ours(repair, exposure, data, c, b, device)),
    ]
    for form, count, work in forms:
        elapsed, peak = _measure(work, device, epochs, 1 if form == "literal" else CHECK_EVERY)
        share = None if peak is None else peak / count
        yield RepairRow(*fixed, form, count, elapsed / count, share)


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
