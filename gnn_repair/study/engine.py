"""Where work is done: an engine maps a function over independent tasks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from gnn_repair.budget import check_whole
from gnn_repair.errors import GnnRepairError

Task = TypeVar("Task")
Result = TypeVar("Result")

Tell = Callable[[str], None]
"""Says what a task is doing now."""

Work = Callable[[Any, Task, Tell], Result]
"""(what all tasks share, the task, tell) -> its result."""


@dataclass(frozen=True)
class Failure:
    """A task that ended with an error, as text (it may come from another machine)."""

    error: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception stands for."""
        text = str(error) or type(error).__name__
        if not isinstance(error, GnnRepairError):
            text = f"{type(error).__name__}: {text}"
        return cls(text, "".join(traceback.format_exception(error)))


def attempt(work: Work[Task, Result], shared: Any, task: Task, tell: Tell) -> Result | Failure:
    """The result of one task, or its failure; an interrupt passes."""
    try:
        return work(shared, task, tell)
    except Exception as error:
        return Failure.of(error)


class Engine(ABC):
    """Runs tasks and hands back results as they come, each exactly once."""

    elsewhere: bool = False
    """Whether tasks may run on other machines, with other devices and files."""

    @abstractmethod
    def map(
        self,
        work: Work[Task, Result],
        tasks: Sequence[Task],
        shared: Any = None,
        tell: Callable[[Task, str], None] | None = None,
    ) -> Generator[tuple[Task, Result | Failure], None, None]:
        """Yield (task, result or failure) in the order of completion.

        Args:
            work: called as ``work(shared, task, tell)``.
            tasks: what to do.
            shared: sent once to every place where work is done.
            tell: told what a task is doing, where that can be known.
        """


class LocalEngine(Engine):
    """One task after the other in this process; stacked splits keep its cores or GPU busy."""

    def map(
        self,
        work: Work[Task, Result],
        tasks: Sequence[Task],
        shared: Any = None,
        tell: Callable[[Task, str], None] | None = None,
    ) -> Generator[tuple[Task, Result | Failure], None, None]:
        for task in tasks:
            say: Tell = (lambda text: None) if tell is None else partial(tell, task)
            say("starting")
            yield task, attempt(work, shared, task, say)


class ProcessEngine(Engine):
    """Tasks in ``jobs`` processes, which share this machine's cores and GPU.

    One case leaves gaps on a large GPU, and phases on the CPU alone; a few cases side by side fill
    them. Results come back through pipes to this process, which alone writes. A process that dies
    takes only its own task with it, which is a failure; a new process goes on with the rest.
    """

    def __init__(self, jobs: int) -> None:
        check_whole("ProcessEngine", "jobs", jobs, 1)
        self.jobs = jobs

    def map(
        self,
        work: Work[Task, Result],
        tasks: Sequence[Task],
        shared: Any = None,
        tell: Callable[[Task, str], None] | None = None,
    ) -> Generator[tuple[Task, Result | Failure], None, None]:
        waiting = deque(tasks)
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        busy: dict[Connection, _Worker] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self.jobs:
                    worker = _Worker(work, shared, threads)
                    busy[worker.pipe] = worker
                    worker.begin(waiting.popleft())
                for pipe in wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    kind, content = worker.hear()
                    if kind == "tell":
                        if tell is not None:
                            tell(worker.task, content)
                        continue
                    task = worker.task
                    if kind == "done" and waiting:
                        worker.begin(waiting.popleft())
                    else:
                        busy.pop(worker.pipe).end()
                    yield task, content
        finally:
            for worker in busy.values():
                worker.end()


class _Worker:
    """A process and the task it is at."""

    def __init__(self, work: Any, shared: Any, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, threads), daemon=True)
        self.process.start()
        there.close()
        with contextlib.suppress(ConnectionError):
            self.pipe.send((work, shared))
        self.task: Any = None

    def begin(self, task: Any) -> None:
        self.task = task
        # One that is gone already is noticed when it is listened to.
        with contextlib.suppress(ConnectionError):
            self.pipe.send(task)

    def hear(self) -> tuple[str, Any]:
        """("tell", text), ("done", result or failure), or ("lost", failure)."""
        try:
            kind, content = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            return "lost", Failure(f"its process ended with exit code {code}", "")
        return kind, content

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _serve(pipe: Connection, threads: int) -> None:
    """What a process does: tasks as they come, until nobody sends any more."""
    # Ctrl-C reaches the whole group; the process that writes decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    try:
        work, shared = pipe.recv()
        while True:
            task = pipe.recv()
            outcome = attempt(work, shared, task, lambda text: pipe.send(("tell", text)))
            pipe.send(("done", outcome))
    except (EOFError, ConnectionError):
        return
