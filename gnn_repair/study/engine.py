"""Where work is done: an engine maps a function over independent tasks."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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

            def say(text: str, task: Task = task) -> None:
                if tell is not None:
                    tell(task, text)

            say("starting")
            yield task, attempt(work, shared, task, say)
