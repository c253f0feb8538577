"""What of a grid is stored, failed before or missing, and the work that is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gnn_repair.errors import InputError
from gnn_repair.methods import METHODS
from gnn_repair.published import published
from gnn_repair.results.protocol import Protocol
from gnn_repair.results.records import RunRecord
from gnn_repair.results.runs import FROZEN, ORACLE, VERSIONS, Case, Run, chosen_methods, stage_keys
from gnn_repair.results.store import ResultsSource

PAPER_DATASETS = tuple(published()["datasets"])
PAPER_BACKBONES = tuple(published()["tables"]["frozen"]["cells"])
PAPER_SPLITS = tuple(range(10))


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


def current_methods(record: RunRecord, protocol: Protocol) -> tuple[str, ...]:
    """Which stages of a record are results of this protocol as it is computed today.

    A record without keys is of the time before stages had any, when all versions were 1.
    """
    place = (record.dataset, record.backbone)
    now = stage_keys(protocol, *place)
    stored = record.stages or stage_keys(protocol, *place, dict.fromkeys(VERSIONS, 1))
    if stored.get(FROZEN) != now[FROZEN]:
        return ()
    held = ((ORACLE,) if record.oracle else ()) + tuple(record.methods)
    return tuple(name for name in held if name not in now or stored.get(name) == now[name])
