"""A study: plan what is missing, run it on an engine, store what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnn_repair.errors import InputError
from gnn_repair.published import published
from gnn_repair.study.cases import Case, Place, Run, all_runs, check_splits
from gnn_repair.study.engine import Engine, Failure, LocalEngine, Work
from gnn_repair.study.identity import current_methods
from gnn_repair.study.methods import METHODS, ORACLE, chosen_methods
from gnn_repair.study.protocol import PAPER, Protocol
from gnn_repair.study.records import Record
from gnn_repair.study.results_source import ResultsSource
from gnn_repair.study.store import Store

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from gnn_repair.study.run_case import Architecture

PAPER_DATASETS = tuple(published()["datasets"])
PAPER_BACKBONES = tuple(published()["tables"]["frozen"]["cells"])
PAPER_SPLITS = tuple(range(10))


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


@dataclass(frozen=True)
class Plan:
    """What of a grid is stored, failed before, or missing."""

    done: tuple[Run, ...]
    failed: Mapping[Run, str]
    """Runs without a result, with the recorded error."""
    missing: tuple[Run, ...]
    """Runs without a result and without an error."""
    cases: tuple[Case, ...]
    """The work left: failed and missing runs, by case."""

    @property
    def total(self) -> int:
        """Runs of the grid."""
        return len(self.done) + len(self.failed) + len(self.missing)


def make_plan(
    store: ResultsSource,
    protocol: Protocol,
    runs: Sequence[Run],
    methods: Iterable[str] | None = None,
    stack: int | None = None,
) -> Plan:
    """Compare a grid with a store.

    A run is done when its record holds a current result of every method asked for. One that lacks
    some is run anew with old and new methods together, so that a record always speaks of one
    frozen model.

    Args:
        store: where results lie.
        protocol: all settings.
        runs: the grid, splits of a case side by side.
        methods: what must be evaluated; everything unless given.
        stack: most splits trained as one; all unless given.
    """
    if not isinstance(store, ResultsSource):
        raise InputError(f"store is {store!r:.60}; give a Store")
    if not isinstance(protocol, Protocol):
        raise InputError(f"protocol is {protocol!r:.60}; give a Protocol")
    if isinstance(runs, str | bytes) or not isinstance(runs, Iterable):
        raise InputError(f"runs is {runs!r:.60}; give a list of runs")
    if stack is not None and (type(stack) is not int or stack < 1):
        raise InputError(f"stack is {stack!r:.60}; give a whole number from 1, or None for all")
    wanted, digest = chosen_methods(methods), protocol.digest
    done, failed, missing, todo = [], {}, [], []
    for run in runs:
        if not isinstance(run, Run):
            raise InputError(f"{run!r:.60} is not a Run; give dataset, backbone and split")
        record = store.get(digest, run)
        held = () if record is None else current_methods(record, protocol)
        if record is not None and set(wanted) <= set(held):
            done.append(run)
            continue
        known = [name for name in held if name in (ORACLE, *METHODS)]
        todo.append((run, chosen_methods({*wanted, *known})))
        error = store.failure(digest, run)
        if error is None:
            missing.append(run)
        else:
            failed[run] = error
    return Plan(tuple(done), failed, tuple(missing), tuple(_cases(todo, stack)))


def _cases(todo: list[tuple[Run, tuple[str, ...]]], stack: int | None) -> Iterable[Case]:
    def key(item: tuple[Run, tuple[str, ...]]) -> tuple[Any, ...]:
        return item[0].dataset, item[0].backbone, item[1]

    for (dataset, backbone, methods), group in groupby(todo, key):
        splits = tuple(run.split for run, _ in group)
        size = stack or len(splits)
        for first in range(0, len(splits), size):
            yield Case(dataset, backbone, splits[first : first + size], methods)


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
    work: Work[Case, list[Record]] | None = None,
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
        work: what a case does; for tests.
    """
    check_objects(protocol, engine, watcher)
    watcher, held = watcher or Watcher(), Store(store)
    graphs, models = as_grid(datasets, "datasets"), as_grid(backbones, "backbones")
    runs = all_runs(graphs, models, check_splits(splits))
    plan = make_plan(held, protocol, runs, methods, stack)
    if not plan.cases:
        watcher.planned(plan)
        return Outcome(protocol.digest, len(plan.done))
    shared = None
    warm: AbstractContextManager[None] = nullcontext()
    if work is None:
        from gnn_repair.study.before import notes_of, real_work
        from gnn_repair.study.warm_up import warming

        remote = engine is not None and engine.elsewhere
        place = Place(device, root, remote)
        work, shared = real_work(graphs, models, plan.cases, protocol, place)
        for text in notes_of(shared):
            watcher.noted(text)
        warm = nullcontext() if remote else warming(device, watcher.noted)
    for case in plan.cases:
        for run in case.runs:
            held.refuse_newer(protocol.digest, run)
    held.begin(protocol)
    watcher.planned(plan)
    results = (engine or LocalEngine()).map(work, plan.cases, shared, watcher.stage)
    # Closing it, however this ends, takes back what a cluster has not begun.
    with warm, closing(results):
        stored, failures = _collect(results, held, protocol.digest, watcher)
    return Outcome(protocol.digest, len(plan.done), stored, failures)


def check_objects(protocol: Any, engine: Any, watcher: Any) -> None:
    """The objects a study is handed are what they should be."""
    for name, value, kind in (
        ("protocol", protocol, Protocol),
        ("engine", engine, Engine),
        ("watcher", watcher, Watcher),
    ):
        if not isinstance(value, kind) and not (value is None and name != "protocol"):
            raise InputError(f"{name} is {value!r:.60}; give a {kind.__name__}")


def as_grid(axis: Any, name: str) -> Any:
    """A mapping or a list of names."""
    if isinstance(axis, Mapping):
        return axis
    if isinstance(axis, str) or not isinstance(axis, Iterable):
        raise InputError(f"{name} is {axis!r:.60}; give a list of names, or a mapping from names")
    return list(axis)


def _collect(
    results: Iterable[tuple[Case, list[Record] | Failure]],
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
        watcher.finished(case, sum(r.get("seconds", {}).get("total", 0.0) for r in result))
    return stored, failures
