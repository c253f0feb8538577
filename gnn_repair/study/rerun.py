"""A run of a study with its models at hand, to look at its nodes: those kept, or made again.

A store keeps the models of some runs beside their records. Of the others it holds numbers alone.
Splits trained together share their dropout's stream, so such a run is made again as it was made:
by the study's own function, in the same stack, with the protocol's seeds. On the same device it is
then the same model, and where it is not, it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.methods import METHODS
from gnn_repair.results.protocol import PAPER, Protocol
from gnn_repair.results.records import FROZEN, ORACLE, Case, RunRecord, all_runs, chosen_methods
from gnn_repair.results.store import ResultsSource
from gnn_repair.study.case import Architecture, Worked, records_of, work_case
from gnn_repair.study.grid import checked_settings


@dataclass(frozen=True, eq=False, kw_only=True)
class Rerun(Worked):
    """A run with its models at hand: one split of a worked case."""

    split: int
    stored: RunRecord | None = None
    """The record it repeats, if there is one."""
    kept: tuple[str, ...] = ()
    """Models that were read from the store: ``frozen`` and methods."""

    @property
    def member(self) -> int:
        """The split's place among those trained together."""
        return self.case.splits.index(self.split)

    @property
    def record(self) -> RunRecord:
        """What the study would store of it."""
        return records_of(self)[self.member]

    def mask(self, part: str) -> Tensor:
        """[N]: the split's ``train``, ``val`` or ``test`` nodes."""
        return self.masks[part][:, self.member].cpu()

    def beside(self, split: int) -> Rerun | None:
        """Another split of those trained together; None where it is not among them."""
        if split not in self.case.splits:
            return None
        return replace(self, split=split, stored=None, kept=())

    def provenance(self) -> str:
        """Which run this is, in a sentence for readers."""
        splits = stack_of(None, self.stored) if self.stored and self.kept else self.case.splits
        whole = list(splits) == list(range(splits[0], splits[-1] + 1))
        listed = f"{splits[0]} to {splits[-1]}" if whole else ", ".join(map(str, splits))
        alone = "trained alone" if len(splits) == 1 else f"trained with splits {listed}"
        what = f"split {self.split}, {alone}"
        if self.stored is None:
            return f"{what}; made for this page"
        changed = _changed(self.stored, self.record)
        if self.kept and not changed:
            anew = [METHODS[name].title.lower() for name in self.repairs if name not in self.kept]
            more = f"; {', '.join(anew)} fitted for this page" if anew else ""
            return f"{what}; the stored models{more}"
        if not changed:
            return f"{what}; the stored run, made again with the same accuracies"
        return f"{what}; made again for this page, where {changed}: the nodes are of this model"


def _changed(stored: RunRecord, made: RunRecord) -> str:
    """How the first test accuracy that differs does; empty where none does."""
    pairs = [("the frozen model", stored.frozen, made.frozen)]
    pairs += [
        (METHODS[name].title.lower(), stored.methods[name], scores)
        for name, scores in made.methods.items()
        if name in stored.methods
    ]
    for name, before, now in pairs:
        old, new = before.get("test"), now.get("test")
        if old != new and old is not None and new is not None:
            share = f"{100 * new:.1f} % of the test nodes"
            return f"{name} is right about {share} (stored {100 * old:.1f} %)"
    return ""


def rerun(
    dataset: str,
    backbone: str,
    split: int = 0,
    *,
    source: ResultsSource | None = None,
    protocol: Protocol = PAPER,
    methods: Sequence[str] | None = None,
    device: str = "auto",
    root: str | Path | None = None,
    backbones: Mapping[str, Architecture] | None = None,
    datasets: Mapping[str, Data] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Rerun:
    """One run with its models: those the store kept, else made again with its stack.

    Args:
        dataset: its name, like ``backbone``.
        source: where the run is stored; without it the split is trained alone.
        methods: repairs to show; those of the stored run, or the paper's four, unless named.
        backbones: where the backbone is the user's own, a mapping that has it.
        datasets: where the graph is the user's own, likewise.
        tell: told what is being done.
    """
    (run,) = all_runs([dataset], [backbone], [split])
    stored = None if source is None else source.get(protocol.digest, run)
    files = {} if stored is None or source is None else source.models(protocol.digest, run)
    files = files if FROZEN in files else {}
    if methods is None:
        usual = [name for name, method in METHODS.items() if method.from_paper]
        methods = usual if stored is None else [name for name in METHODS if name in stored.methods]
    chosen = chosen_methods(methods)
    splits = (split,) if stored is None or files else stack_of(source, stored)
    case = Case(dataset, backbone, splits, tuple(name for name in chosen if name != ORACLE))
    models = [backbone] if backbones is None else {backbone: backbones[backbone]}
    graphs = [dataset] if datasets is None else {dataset: datasets[dataset]}
    # What was kept is read on the CPU, whatever trained it.
    place = "cpu" if files and device == "auto" else device
    settings = checked_settings(graphs, models, [case], protocol, place, root)
    last = ""

    def say(text: str) -> None:
        """Each stage once, not every epoch."""
        nonlocal last
        stage = text.partition(", epoch")[0]
        if stage != last:
            last = stage
            tell(stage)

    worked = work_case(settings, case, say, files)
    return Rerun(**vars(worked), split=split, stored=stored, kept=tuple(files))


def stack_of(source: ResultsSource | None, record: RunRecord) -> tuple[int, ...]:
    """The splits that were trained with a stored run.

    Earlier records say only how many; where that is all of the stored ones, these it must be.
    """
    if record.split in record.stack:
        return tuple(sorted(record.stack))
    if source is None or record.members == 1:
        return (record.split,)
    case = (record.dataset, record.backbone)
    runs = source.runs(record.protocol)
    others = [run.split for run in runs if (run.dataset, run.backbone) == case]
    return tuple(sorted(others)) if len(others) == record.members else (record.split,)
