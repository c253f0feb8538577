"""How a study goes: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gnn_repair.results.plan import Plan
from gnn_repair.results.runs import Case
from gnn_repair.study.engine import Failure
from gnn_repair.study.grid import Watcher

QUIET = 60.0
"""Seconds without a line after which a long case says where it is."""


def duration(seconds: float) -> str:
    """1 h 02 min, 3 min 05 s, or 4.2 s."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{seconds:.1f} s"


class StudyProgress(Watcher):
    """Shows what runs now, how many runs are done and how long the rest may take."""

    def __init__(self, console: Console | None = None) -> None:
        # Progress is not output: it goes to stderr.
        self.console = console or Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("runs,"),
            TimeElapsedColumn(),
            TextColumn("elapsed,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
            # Cases take minutes; speed is estimated over the whole study.
            speed_estimate_period=1e9,
            disable=not self.live,
        )
        self.task = self.bar.add_task("planning", total=None)
        self.done = self.total = self.began = 0
        self.start = self.spoke = time.monotonic()

    def __enter__(self) -> StudyProgress:
        if self.live:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Where it shows nothing, earlier versions of rich end it with an empty line.
        if self.live:
            self.bar.stop()

    def planned(self, plan: Plan) -> None:
        """Say what is left."""
        self.total = self.total or plan.total
        self.done = self.began = len(plan.done)
        text = f"{_count(len(plan.cases))} to run"
        self.bar.update(self.task, description=text, total=plan.total, completed=self.done)
        if not plan.cases:
            return
        text = f"{self.done} of {plan.total} runs stored; {_count(len(plan.cases))} to run"
        if plan.failed:
            text += f", {len(plan.failed)} runs that failed before among them"
        self._say(text)

    def stage(self, case: Case, text: str) -> None:
        """Part of the bar; as a line only now and then, since stages change often."""
        self.bar.update(self.task, description=f"{case}: {text}")
        if not self.live and time.monotonic() - self.spoke > QUIET:
            self._say(f"{case}: {text}")

    def finished(self, case: Case, seconds: float) -> None:
        """A line without a terminal, a step of the bar with one."""
        self._advance(case)
        self._say(f"{case}: {len(case.splits)} splits in {duration(seconds)}{self._outlook()}")

    def failed(self, case: Case, failure: Failure) -> None:
        """Always a line."""
        self._advance(case)
        self._say(f"{case} failed: {failure.error}{self._outlook()}")

    def noted(self, text: str) -> None:
        """Always a line."""
        self._say(text)

    def _advance(self, case: Case) -> None:
        self.done += len(case.splits)
        self.bar.update(self.task, completed=self.done)

    def _outlook(self) -> str:
        """Count and time left, where no bar shows them."""
        if self.live:
            return ""
        rate = (time.monotonic() - self.start) / max(1, self.done - self.began)
        left = rate * (self.total - self.done)
        return f" ({self.done} of {self.total} runs" + (
            f", {duration(left)} left)" if left else ")"
        )

    def _say(self, text: str) -> None:
        self.spoke = time.monotonic()
        self.console.print(text, markup=False, soft_wrap=True)


def _count(cases: int) -> str:
    return "1 case" if cases == 1 else f"{cases} cases"
