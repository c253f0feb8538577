"""A study: plan what is missing, run it on an engine, store what comes back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from torch_geometric.data import Data
from tqdm.auto import tqdm

from gnn_repair.backbones import OwnNetwork
from gnn_repair.budget import as_list, check_type
from gnn_repair.errors import InputError
from gnn_repair.published import count_of
from gnn_repair.results.protocol import PAPER, Protocol
from gnn_repair.results.records import Case, RunRecord, all_runs, check_splits
from gnn_repair.results.store import (
    PAPER_BACKBONES,
    PAPER_DATASETS,
    PAPER_SPLITS,
    Plan,
    Store,
    make_plan,
)
from gnn_repair.study.case import Architecture, checked_settings, run_case
from gnn_repair.study.engine import Engine, Failure, LocalEngine, Work

KEEP = ("all", "first", "none")
"""Splits whose trained models a store keeps."""


class Watcher:
    """Told how a study goes; does nothing unless overridden."""

    def planned(self, plan: Plan) -> None:
        """What is to be done is known."""

    def stage(self, case: Case, text: str) -> None:
        """A case is doing ``text`` now."""

    def finished(self, case: Case, seconds: float) -> None:
        """A case was stored; ``seconds`` is the time it took where it ran."""

    def failed(self, case: Case, failure: Failure) -> None:
        """A case ended with an error, which was recorded."""

    def noted(self, text: str) -> None:
        """Something that a reader should know, once."""


QUIET = 60.0
"""Seconds without a line after which a long case says where it is."""


class StudyProgress(Watcher):
    """A bar on a terminal or in a notebook, a line per case elsewhere; on stderr."""

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file or sys.stderr
        self.live = self.file.isatty() or "ipykernel" in sys.modules
        self.bar = tqdm(unit="run", file=file, disable=not self.live, smoothing=0)
        self.done = self.total = self.first = 0
        self.start = self.spoke = time.monotonic()

    def __enter__(self) -> StudyProgress:
        return self

    def __exit__(self, *raised: object) -> None:
        self.bar.close()

    def planned(self, plan: Plan) -> None:
        """Say what is left."""
        self.total, self.done = plan.total, len(plan.done)
        self.first = self.bar.n = self.bar.initial = self.done
        self.bar.total = self.total
        self.bar.refresh()
        if plan.cases:
            failed = f", {count_of(len(plan.failed), 'run')} that failed before among them"
            stored = f"{self.done} of {count_of(plan.total, 'run')} stored"
            cases = f"{count_of(len(plan.cases), 'case')} to run"
            self.noted(f"{stored}; {cases}{failed if plan.failed else ''}")

    def stage(self, case: Case, text: str) -> None:
        """Part of the bar; as a line only now and then, since stages change often."""
        self.bar.set_description(f"{case}: {text}")
        if not self.live and time.monotonic() - self.spoke > QUIET:
            self.noted(f"{case}: {text}")

    def finished(self, case: Case, seconds: float) -> None:
        """A step, and a line."""
        self._advance(
            case, f": {count_of(len(case.splits), 'split')} in {tqdm.format_interval(seconds)}"
        )

    def failed(self, case: Case, failure: Failure) -> None:
        """The same."""
        self._advance(case, f" failed: {failure.error}")

    def noted(self, text: str) -> None:
        """A line."""
        self.spoke = time.monotonic()
        tqdm.write(text, file=self.file)

    def _advance(self, case: Case, text: str) -> None:
        """One case further; where no bar shows them, the line has the count and the time left."""
        self.done += len(case.splits)
        self.bar.update(len(case.splits))
        if not self.live:
            rate = (time.monotonic() - self.start) / max(1, self.done - self.first)
            left = tqdm.format_interval(rate * (self.total - self.done))
            text += f" ({self.done} of {count_of(self.total, 'run')}, {left} left)"
        self.noted(f"{case}{text}")


@dataclass(frozen=True)
class Outcome:
    """How a study ended."""

    protocol: str
    """Digest of the settings."""
    already: int
    """Runs that were stored before."""
    stored: int = 0
    """Runs stored now."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Errors by case."""


def run_study(
    datasets: Iterable[str] | Mapping[str, Data] = PAPER_DATASETS,
    backbones: Iterable[str] | Mapping[str, Architecture] = PAPER_BACKBONES,
    splits: Iterable[int] = PAPER_SPLITS,
    *,
    store: str | Path,
    methods: Iterable[str] | None = None,
    protocol: Protocol = PAPER,
    device: str = "auto",
    root: str | Path | None = None,
    engine: Engine | None = None,
    stack: int | None = None,
    watcher: Watcher | None = None,
    keep_models: str = "first",
    work: Work[Case, list[RunRecord]] | None = None,
) -> Outcome:
    """Run what a store lacks of datasets × backbones × splits.

    Args:
        datasets: names that :func:`load_dataset` knows, or a mapping from names of your own to
            PyG data with masks [N, splits].
        backbones: names of :data:`BACKBONES`, or a mapping from names to backbone classes or
            instances, or to an :class:`~gnn_repair.backbones.OwnNetwork`.
        splits: which splits.
        store: the folder of results.
        methods: of ``oracle`` and the repairs, those to evaluate; all unless given.
        protocol: all settings.
        device: ``"auto"`` takes the GPU when there is one.
        root: folder of the raw datasets.
        engine: where cases run; this process unless given.
        stack: most splits trained as one; all unless given.
        watcher: told how it goes.
        keep_models: of which splits the store keeps the trained models: ``all``, ``first`` or
            ``none``.
        work: what a case does; for tests.
    """
    engine = LocalEngine() if engine is None else engine
    watcher = Watcher() if watcher is None else watcher
    check_type("engine", engine, Engine, "an Engine")
    check_type("watcher", watcher, Watcher, "a Watcher")
    if keep_models not in KEEP:
        raise InputError(f"keep_models is {keep_models!r:.60}; choose from {', '.join(KEEP)}")
    held = Store(store)
    graphs, models = _axis(datasets, "datasets"), _axis(backbones, "backbones")
    runs = all_runs(graphs, models, check_splits(splits))
    chosen = sorted({run.split for run in runs})
    kept = {"all": chosen, "first": chosen[:1], "none": []}[keep_models]
    plan = make_plan(held, protocol, runs, methods, stack)
    if not plan.cases:
        watcher.planned(plan)
        return Outcome(protocol.digest, len(plan.done))
    shared = None
    if work is None:
        where = (device, root, engine.elsewhere)
        shared = checked_settings(graphs, models, plan.cases, protocol, *where, frozenset(kept))
        work = run_case
        for name, given in shared.backbones.items():
            if isinstance(given, OwnNetwork):
                watcher.noted(
                    f"{name} is no Backbone, so its splits are trained one after the other, "
                    "not as one"
                )
    for case in plan.cases:
        for run in case.runs:
            held.refuse_newer(protocol.digest, run)
    held.begin(protocol)
    watcher.planned(plan)
    results = engine.map(work, plan.cases, shared, watcher.stage)
    # Closing it, however this ends, takes back what a cluster has not begun.
    with closing(results):
        stored, failures = _collect(results, held, protocol.digest, watcher)
    return Outcome(protocol.digest, len(plan.done), stored, failures)


def _axis(axis: Any, name: str) -> Any:
    """A mapping or a list of names."""
    wanted = "a list of names, or a mapping from names"
    return axis if isinstance(axis, Mapping) else as_list(name, axis, wanted)


def _collect(
    results: Iterable[tuple[Case, list[RunRecord] | Failure]],
    store: Store,
    digest: str,
    watcher: Watcher,
) -> tuple[int, dict[str, str]]:
    """Store results and failures as they come; how many runs, and the errors by case."""
    stored, failures = 0, {}
    for case, result in results:
        if isinstance(result, Failure):
            for run in case.runs:
                store.put_failure(digest, run, result.error, result.traceback)
            failures[str(case)] = result.error
            watcher.failed(case, result)
            continue
        for record in result:
            store.put(record)
        stored += len(result)
        watcher.finished(case, sum(record.seconds.get("total", 0.0) for record in result))
    return stored, failures
