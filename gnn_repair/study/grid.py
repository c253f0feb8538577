"""A study: plan what is missing, run it on an engine, store what comes back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from torch_geometric.data import Data
from tqdm.auto import tqdm

from gnn_repair.backbones import OwnNetwork
from gnn_repair.budget import as_list, check_type
from gnn_repair.errors import InputError
from gnn_repair.published import count_of
from gnn_repair.results.protocol import PAPER, Protocol
from gnn_repair.results.records import Case, RunRecord, all_runs
from gnn_repair.results.store import (
    PAPER_BACKBONES,
    PAPER_DATASETS,
    PAPER_SPLITS,
    Plan,
    Store,
    make_plan,
)
from gnn_repair.study.case import Architecture, check_settings, run_case
from gnn_repair.study.engine import Engine, Failure, LocalEngine, Work

KEEP = ("all", "first", "none")
"""Splits whose trained models a store keeps."""
NAMES = "a list of names, or a mapping from names"


class Watcher:
    """Callbacks for a study's progress; they do nothing unless overridden."""

    def planned(self, plan: Plan) -> None:
        """The plan is made."""

    def stage(self, case: Case, text: str) -> None:
        """A case entered the stage ``text``."""

    def finished(self, case: Case, seconds: float) -> None:
        """A case was stored; ``seconds`` is the time that it took where it ran."""

    def failed(self, case: Case, failure: Failure) -> None:
        """A case ended with an error, which was recorded."""

    def noted(self, text: str) -> None:
        """A remark for the reader."""


QUIET = 60.0
"""Seconds without a line after which the stage of a long case is printed."""


class StudyProgress(Watcher):
    """A bar on a terminal or in a notebook, elsewhere a line per case; on stderr."""

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file or sys.stderr
        self.live = self.file.isatty() or "ipykernel" in sys.modules
        self.bar = tqdm(unit="run", file=file, disable=not self.live, smoothing=0)
        self.done = self.total = self.first = 0
        self.start = self.last_line = time.monotonic()

    def __enter__(self) -> StudyProgress:
        return self

    def __exit__(self, *raised: object) -> None:
        self.bar.close()

    def planned(self, plan: Plan) -> None:
        """Print what remains to be done."""
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
        """Describe the bar; without one, print a line after a quiet minute."""
        self.bar.set_description(f"{case}: {text}")
        if not self.live and time.monotonic() - self.last_line > QUIET:
            self.noted(f"{case}: {text}")

    def finished(self, case: Case, seconds: float) -> None:
        """Advance the bar and print the case's time."""
        splits = count_of(len(case.splits), "split")
        self._advance(case, f": {splits} in {tqdm.format_interval(seconds)}")

    def failed(self, case: Case, failure: Failure) -> None:
        """Advance the bar and print the case's error."""
        self._advance(case, f" failed: {failure.error}")

    def noted(self, text: str) -> None:
        """Print a line."""
        self.last_line = time.monotonic()
        tqdm.write(text, file=self.file)

    def _advance(self, case: Case, text: str) -> None:
        """Count a case and print its line; without a bar also the count and the remaining time."""
        self.done += len(case.splits)
        self.bar.update(len(case.splits))
        if not self.live:
            rate = (time.monotonic() - self.start) / max(1, self.done - self.first)
            remaining = tqdm.format_interval(rate * (self.total - self.done))
            text += f" ({self.done} of {count_of(self.total, 'run')}, {remaining} left)"
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
        splits: split numbers.
        store: the folder of results.
        methods: ``oracle`` and repairs to evaluate; all unless given.
        protocol: all settings.
        device: ``"auto"`` uses the GPU when there is one.
        root: folder of the raw datasets.
        engine: where cases run; in this process unless given.
        stack: most splits trained together; all unless given.
        watcher: receives the progress.
        keep_models: splits whose trained models are stored: ``all``, ``first`` or ``none``.
        work: computes a case; for tests.
    """
    engine = LocalEngine() if engine is None else engine
    watcher = Watcher() if watcher is None else watcher
    check_type("engine", engine, Engine, "an Engine")
    check_type("watcher", watcher, Watcher, "a Watcher")
    if keep_models not in KEEP:
        raise InputError(f"keep_models is {keep_models!r:.60}; choose from {', '.join(KEEP)}")
    results = Store(store)
    graphs, models = (
        axis if isinstance(axis, Mapping) else as_list(name, axis, NAMES)
        for name, axis in (("datasets", datasets), ("backbones", backbones))
    )
    runs = all_runs(graphs, models, splits)
    numbers = sorted({run.split for run in runs})
    kept_splits = {"all": numbers, "first": numbers[:1], "none": []}[keep_models]
    plan = make_plan(results, protocol, runs, methods, stack)
    digest = protocol.digest
    if not plan.cases:
        if results.settings(digest) is None:  # missing or damaged beside what is stored
            results.begin(protocol)
        watcher.planned(plan)
        return Outcome(digest, len(plan.done))
    shared = None
    if work is None:
        options = device, root, engine.elsewhere, frozenset(kept_splits)
        shared = check_settings(graphs, models, plan.cases, protocol, *options)
        work = run_case
        for name, architecture in shared.backbones.items():
            if isinstance(architecture, OwnNetwork):
                watcher.noted(
                    f"{name} is no Backbone, so its splits are trained one after the other, "
                    "not as one"
                )
    for case in plan.cases:
        for run in case.runs:
            results.refuse_newer(digest, run)
    results.begin(protocol)
    watcher.planned(plan)
    stored, failures = 0, {}
    # Closing the generator, however this ends, cancels what a cluster has not begun.
    with closing(engine.map(work, plan.cases, shared, watcher.stage)) as outcomes:
        for case, outcome in outcomes:
            if isinstance(outcome, Failure):
                for run in case.runs:
                    results.put_failure(digest, run, outcome.error, outcome.traceback)
                failures[str(case)] = outcome.error
                watcher.failed(case, outcome)
                continue
            for record in outcome:
                results.put(record)
            stored += len(outcome)
            watcher.finished(case, sum(record.seconds.get("total", 0.0) for record in outcome))
    return Outcome(digest, len(plan.done), stored, failures)
