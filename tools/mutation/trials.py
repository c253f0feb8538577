"""Running tests against mutants: collected once, then a forked process for every mutant."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NoReturn
from weakref import WeakKeyDictionary

import pytest

from tools.mutation.lines import SOMEWHERE, Line, Recorder, digest, named, read
from tools.mutation.mutants import Mutant
from tools.mutation.transplant import module_of, transplant

Fate = Literal["killed", "survived", "timeout"]
SLACK = 20.0
"""Seconds that a mutant may take beyond five times its tests': a loaded machine is no proof."""
CHEAP = 0.5
"""Seconds of a test that is tried on constants, too, when it runs no line of their module."""


@dataclass(frozen=True)
class Trial:
    """What became of a mutant."""

    mutant: Mutant
    fate: Fate
    seconds: float
    tests: int
    """How many tests reach the change."""


@dataclass
class Trials:
    """A pytest plugin that runs the collected tests once for every mutant that they reach."""

    mutants: Sequence[Mutant]
    watched: Sequence[Path]
    """The mutants' files, and others of which one wants to know which tests run them."""
    on_trial: Callable[[Trial], None]
    cache: Path
    """A folder for what is known about tests that did not change."""
    most: float = float("inf")
    """Seconds of tests that are spent on a mutant; what they do not notice counts as alive."""
    jobs: int = 1
    """Processes side by side."""
    kills: Counter[str] = field(default_factory=Counter)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for file in self.watched:
            module_of(file)
        known = self._known(session.items, self.watched)
        cheap = [item for item in session.items if known.get(item.nodeid, (9.0,))[0] < CHEAP]
        _warm(cheap, self.watched)
        works = (self._work(m, self._tests(m, session.items, known)) for m in self.mutants)
        for work, code, killer, seconds in forked(works, self.jobs):
            mutant, tests = work.about
            self.kills[killer] += 1
            fate: Fate = "survived" if code == 0 else "timeout" if code is None else "killed"
            self.on_trial(Trial(mutant, fate, seconds, tests))
        return True

    def _known(
        self, items: Sequence[pytest.Item], files: Sequence[Path]
    ) -> dict[str, tuple[float, set[Line]]]:
        """Seconds and lines of every test; a file of tests that changed is run to find out."""
        by_file: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in items:
            by_file[item.path].append(item)
        places = {
            path: self.cache / f"{path.stem}-{digest([path])}-{named(files)}.json"
            for path in by_file
        }
        works = (
            Work(functools.partial(_record, by_file[path], files, place), 3600, path)
            for path, place in places.items()
            if not place.exists()
        )
        for work, code, failed, _ in forked(works, self.jobs):
            if code != 0:
                print(f"left out  {failed or work.about}: fails without any mutant", flush=True)
        known: dict[str, tuple[float, set[Line]]] = {}
        for place in places.values():
            known.update(read(place) if place.exists() else {})
        return known

    def _tests(
        self,
        mutant: Mutant,
        items: Sequence[pytest.Item],
        known: dict[str, tuple[float, set[Line]]],
    ) -> list[tuple[float, pytest.Item]]:
        """The tests that reach a mutant: cheap ones and those that killed others come first."""
        name, wanted = mutant.path.as_posix(), mutant.lines
        reached = []
        for number, item in enumerate(items):
            if item.nodeid not in known:
                continue
            seconds, lines = known[item.nodeid]
            own = {line for file, line in lines if file == name}
            near = not own.isdisjoint((SOMEWHERE, *wanted))
            if near or (not wanted and (own or seconds < CHEAP)):
                cost = max(seconds, 0.01) / (1 + self.kills[item.nodeid])
                reached.append((cost, number, seconds, item))
        reached.sort(key=lambda entry: entry[:2])
        spent = accumulate(seconds for _, _, seconds, _ in reached)
        return [
            (seconds, item)
            for total, (_, _, seconds, item) in zip(spent, reached, strict=True)
            if total <= self.most
        ]

    def _work(self, mutant: Mutant, tests: list[tuple[float, pytest.Item]]) -> Work:
        items = [item for _, item in tests]
        limit = 5 * sum(seconds for seconds, _ in tests) + SLACK
        return Work(functools.partial(_run, items, mutant), limit, (mutant, len(items)))


@dataclass(frozen=True)
class Work:
    """What a process of its own is to do, and in how many seconds at most."""

    call: Callable[[], str]
    """Gives the name of a test that failed, or nothing."""
    limit: float
    about: Any


def forked(works: Iterable[Work], jobs: int = 1) -> Iterator[tuple[Work, int | None, str, float]]:
    """Each work in a process of its own, ``jobs`` at a time, as they end.

    With its exit code (None: too long), what it returned, and its seconds.
    """
    waiting = iter(works)
    running: dict[int, tuple[Work, Path, float]] = {}
    while True:
        for work in itertools.islice(waiting, jobs - len(running)):
            folder = Path(tempfile.mkdtemp(prefix="mutation-"))
            child = os.fork()
            if child == 0:
                _do(work.call, folder)
            running[child] = work, folder, time.monotonic()
        if not running:
            return
        time.sleep(0.01)
        for child, (work, folder, begun) in list(running.items()):
            process, status = os.waitpid(child, os.WNOHANG)
            seconds = time.monotonic() - begun
            if not process and seconds < work.limit:
                continue
            code = os.waitstatus_to_exitcode(status) if process else None
            if not process:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            place = folder / "answer"
            answer = place.read_text(encoding="utf-8") if place.exists() else ""
            shutil.rmtree(folder, ignore_errors=True)
            del running[child]
            yield work, code, answer, seconds


def _do(call: Callable[[], str], folder: Path) -> NoReturn:
    _be_quiet(folder)
    code = 1
    try:
        answer = call()
        (folder / "answer").write_text(answer, encoding="utf-8")
        code = 1 if answer else 0
    finally:
        os._exit(code)


def _be_quiet(folder: Path) -> None:
    os.setsid()
    gc.disable()  # it would write to all memory that this process shares with its parent
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    tempfile.tempdir = str(folder)


def _warm(items: Sequence[pytest.Item], watched: Sequence[Path]) -> None:
    """Run cheap tests here once: what they train, load and keep, no mutant's process has to.

    What the mutants' modules keep is forgotten again: a mutant may make something else of it.
    """
    shown = [os.dup(place) for place in (1, 2)]
    quiet = os.open(os.devnull, os.O_WRONLY)
    for place in (1, 2):
        os.dup2(quiet, place)
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    for place, before in zip((1, 2), shown, strict=True):
        os.dup2(before, place)
    for value in [value for file in watched for value in vars(module_of(file)).values()]:
        if isinstance(value, WeakKeyDictionary):
            value.clear()
    for value in [it for it in gc.get_objects() if type(it) is functools._lru_cache_wrapper]:
        code = getattr(inspect.unwrap(value), "__code__", None)
        own = code is not None and Path(code.co_filename) in {f.resolve() for f in watched}
        # Tests keep graphs and models, which are wanted, and what was fitted to them.
        if own or (code is not None and "fit" in code.co_names):
            value.cache_clear()
    gc.collect()


class _Failed(BaseException):
    """Carries the name of the test that failed out of pytest's protocol."""


class _Stop:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            raise _Failed(report.nodeid)


def _run(items: Sequence[pytest.Item], mutant: Mutant | None) -> str:
    """The name of the first test that fails, or nothing."""
    if not items:
        return ""
    if mutant is not None:
        transplant(mutant)
    manager = items[0].config.pluginmanager
    manager.register(_Stop())
    try:
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    except _Failed as failed:
        return str(failed)
    return ""


def _record(items: Sequence[pytest.Item], files: Sequence[Path], place: Path) -> str:
    """The names of tests that fail without any mutant; what the others run is written down."""
    recorder = Recorder(files)
    items[0].config.pluginmanager.register(recorder)
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    recorder.write(place)
    return ", ".join(sorted(recorder.failed))


def run_tests(trials: Trials, tests: Sequence[str]) -> None:
    """Collect the tests and try every mutant."""
    from hypothesis import Phase, settings

    # A failing example need not be made small, nor remembered: it is the mutant's, not ours.
    settings.register_profile("mutation", database=None, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutation")
    trials.cache.mkdir(parents=True, exist_ok=True)
    options = [
        "-qq",
        "-s",
        "--no-header",
        "--no-summary",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    code = pytest.main([*options, *tests], plugins=[trials])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"the tests {' '.join(tests)} could not be collected")
