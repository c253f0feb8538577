"""Ray as the engine past one machine: every task is a Ray task with its resource needs.

Results come back to the driver, which alone writes. A task whose worker or node is lost is run
again elsewhere; an error raised by the task itself is a :class:`Failure` and is not retried.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from types import ModuleType
from typing import Any

from gnn_repair.errors import InputError
from gnn_repair.study.engine import Engine, Failure, Result, Task, Work, attempt

RETRIES = 3
"""How often a task lost with its worker is run again."""


class RayEngine(Engine):
    """Tasks on a Ray cluster.

    Args:
        address: of a running cluster, such as ``auto`` or ``ray://host:10001``; one is started on
            this machine unless given.
        cpus: cores a task needs.
        gpus: GPUs, or the fraction of one, a task needs.
        retries: how often a task is run again after its worker or node was lost.
    """

    elsewhere = True

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: float = 1,
        gpus: float = 0,
        retries: int = RETRIES,
    ) -> None:
        if cpus < 0 or gpus < 0 or cpus + gpus == 0:
            raise InputError(f"a task cannot run on {cpus} CPUs and {gpus} GPUs; ask for some")
        self.ray = _ray()
        self.address, self.needs = address, {"num_cpus": cpus, "num_gpus": gpus}
        self.retries = retries

    def map(
        self,
        work: Work[Task, Result],
        tasks: Sequence[Task],
        shared: Any = None,
        tell: Callable[[Task, str], None] | None = None,
    ) -> Generator[tuple[Task, Result | Failure], None, None]:
        own = self._connect()
        pending: dict[Any, Task] = {}
        try:
            self._check_needs()
            remote = self.ray.remote(max_retries=self.retries, **self.needs)(_attempt)
            place = self.ray.put((work, shared))
            pending = {remote.remote(place, task): task for task in tasks}
            while pending:
                for reference in self.ray.wait(list(pending), num_returns=1)[0]:
                    yield pending.pop(reference), self._collect(reference)
        finally:
            for reference in pending:
                with contextlib.suppress(Exception):
                    self.ray.cancel(reference, force=True)
            if own:
                self.ray.shutdown()

    def _connect(self) -> bool:
        """Join or start a cluster; tells whether the connection is ours to close."""
        if self.ray.is_initialized():
            return False
        try:
            self.ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(
                f"no Ray cluster answers at {self.address!r} ({error}); "
                "start one with 'ray start --head' or leave out the address"
            ) from error
        return True

    def _check_needs(self) -> None:
        """A task that fits on no node would wait forever."""
        wanted = {"CPU": self.needs["num_cpus"], "GPU": self.needs["num_gpus"]}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in nodes):
            raise InputError(
                f"no node of the cluster has {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs "
                "for a task; ask for less or add a node"
            )

    def _collect(self, reference: Any) -> Any:
        """The task's outcome; a failure where it was lost more often than it may be."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return Failure.of(error)


def _attempt(place: tuple[Work[Task, Result], Any], task: Task) -> Result | Failure:
    """Runs on a worker."""
    work, shared = place
    return attempt(work, shared, task, _silent)


def _silent(text: str) -> None:
    """Nobody watches a worker."""


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "the Ray engine needs the package ray; install gnn-repair[ray] or use the local engine"
        ) from error
    return ray
