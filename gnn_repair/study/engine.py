"""Where work is done: an engine maps a function over independent tasks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, TypeVar

from gnn_repair.budget import check_real, check_whole
from gnn_repair.errors import GnnRepairError, InputError, ResourceError

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


Outcomes = Generator[tuple[Task, Result | Failure], None, None]
"""Each task with its result or failure."""


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
        self, work: Work[Task, Result], tasks: Sequence[Task], shared: Any = None, tell: Any = None
    ) -> Outcomes[Task, Result]:
        """Yield (task, result or failure) in the order of completion.

        Args:
            work: called as ``work(shared, task, tell)``.
            tasks: what to do.
            shared: sent once to every place where work is done.
            tell: called as ``tell(task, text)`` with what a task is doing, where that can be known.
        """


class LocalEngine(Engine):
    """One task after the other in this process; stacked splits keep its cores or GPU busy."""

    def map(
        self, work: Work[Task, Result], tasks: Sequence[Task], shared: Any = None, tell: Any = None
    ) -> Outcomes[Task, Result]:
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
        self, work: Work[Task, Result], tasks: Sequence[Task], shared: Any = None, tell: Any = None
    ) -> Outcomes[Task, Result]:
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
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            return "lost", Failure(f"its process ended with exit code {code}", "")

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


# Ray: every task is a Ray task with its resource needs --------------------------------------------
#
# Results come back to the driver, which alone writes. A task whose worker or node is lost is run
# again elsewhere; an error raised by the task itself is a failure and is not retried.

Endpoint = tuple[str, int]
"""Host and port."""

CLIENT = "ray://"
GONE = 8.0
"""Seconds a head may be silent before it counts as gone; one that restarts is back sooner."""
RETRIES = 3
"""How often a task lost with its worker is run again: a machine that dies takes its task along
once; a task that loses three workers is what kills them."""
LISTEN = 2.0
"""Seconds without a result after which the head is asked whether it is there."""
SILENCE = 5.0
"""Seconds an address may take to accept a connection; a reachable one takes milliseconds."""
CONNECT = 120.0
"""Seconds a cluster that answers may take to let us in; a busy one takes ten."""


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
        for name, value in (("cpus", cpus), ("gpus", gpus)):
            check_real("RayEngine", name, value, 0)
        if cpus + gpus == 0:
            raise InputError("a task cannot run on 0 CPUs and 0 GPUs; ask for some")
        if address is not None and (not isinstance(address, str) or not address.strip()):
            raise InputError(f"the Ray address is {address!r:.60}; give one such as 'auto'")
        check_whole("RayEngine", "retries", retries, 0)
        self.ray = _ray(alone=address is None)
        self.address, self.needs = address, {"num_cpus": cpus, "num_gpus": gpus}
        self.retries = retries

    def map(
        self, work: Work[Task, Result], tasks: Sequence[Task], shared: Any = None, tell: Any = None
    ) -> Outcomes[Task, Result]:
        own = self._connect()
        head = ClusterHead(self._head_address())
        pending: dict[Any, Task] = {}
        try:
            self._check_needs()
            remote = self.ray.remote(max_retries=self.retries, **self.needs)(_attempt)
            place = self.ray.put((work, shared))
            pending = {remote.remote(place, task): task for task in tasks}
            while pending:
                ready = self.ray.wait(list(pending), num_returns=1, timeout=LISTEN)[0]
                if not ready:
                    head.check()
                for reference in ready:
                    outcome = self._collect(reference, head)
                    yield pending.pop(reference), outcome
        finally:
            if not head.gone:
                for reference in pending:  # what the cluster has not finished
                    with contextlib.suppress(Exception):
                        self.ray.cancel(reference, force=True)
                if own:
                    self.ray.shutdown()

    def _connect(self) -> bool:
        """Join or start a cluster; tells whether the connection is ours to close."""
        if self.ray.is_initialized():
            return False
        remedy = "start one with 'ray start --head' or leave out the address"
        endpoint = endpoint_of(self.ray, self.address)
        if endpoint and not answers(endpoint, SILENCE):
            raise InputError(f"no Ray cluster answers at {self._where()}; {remedy}")
        try:
            options = {"log_to_driver": False, "logging_level": "ERROR"}
            within(CONNECT, partial(self.ray.init, address=self.address, **options))
        except TimeoutError as error:
            raise InputError(
                f"what answers at {self._where()} is no Ray cluster, or a stuck one: it did not "
                f"let us in within {CONNECT:.0f} s; {remedy}"
            ) from error
        except (ConnectionError, ValueError, RuntimeError, AssertionError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"no Ray cluster answers at {self._where()} ({reason}); {remedy}"
            ) from error
        return True

    def _where(self) -> str:
        return repr(self.address or os.environ.get("RAY_ADDRESS"))

    def _head_address(self) -> Endpoint | None:
        """Of the process that knows the whole cluster."""
        if (self.address or "").startswith(CLIENT):
            return endpoint_of(self.ray, self.address)
        with contextlib.suppress(Exception):
            return split_address(self.ray.get_runtime_context().gcs_address)
        return None

    def _check_needs(self) -> None:
        """A task that fits on no node would wait forever."""
        wanted = {"CPU": self.needs["num_cpus"], "GPU": self.needs["num_gpus"]}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in nodes):
            raise InputError(
                f"no node of the cluster has {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs "
                "for a task; ask for less or add a node"
            )

    def _collect(self, reference: Any, head: ClusterHead) -> Any:
        """The task's outcome; a failure where it was lost more often than it may be."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            # What a dying cluster says about a task is no result of the task.
            head.check()
            return Failure.of(error)


def _attempt(place: tuple[Work[Task, Result], Any], task: Task) -> Result | Failure:
    """Runs on a worker."""
    work, shared = place
    return attempt(work, shared, task, lambda text: None)  # nobody watches a worker


def _ray(alone: bool) -> ModuleType:
    """The package; a cluster of this machine ``alone`` keeps its ports to this machine."""
    if alone and not os.environ.get("RAY_ADDRESS"):
        # Ray's own switch for taking the loopback address; read when it is first imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "the Ray engine needs the package ray; install gnn-repair[ray] or use the local engine"
        ) from error
    return ray


# Is somebody there? Ray itself waits for many minutes before it says that nobody is ---------------


def answers(endpoint: Endpoint, seconds: float) -> bool:
    """Whether something accepts a connection there."""
    try:
        socket.create_connection(endpoint, timeout=seconds).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def split_address(address: str) -> Endpoint | None:
    """Host and port of ``host:port``, None for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        return None
    return host.strip("[]"), int(port)


def endpoint_of(ray: ModuleType, address: str | None) -> Endpoint | None:
    """Where a cluster is asked for; None: one is to be started, or nothing is known."""
    if address is not None and address.startswith(CLIENT):
        return split_address(address.removeprefix(CLIENT).partition("/")[0])
    if address is not None and address not in ("auto", "local"):
        return split_address(address)
    with contextlib.suppress(Exception):
        # What "auto" stands for: the environment's address, or the last cluster of this machine.
        found = ray._private.services.canonicalize_bootstrap_address(address)
        return None if found is None else split_address(found)
    return split_address(os.environ.get("RAY_ADDRESS", ""))


def within(seconds: float, work: Callable[[], Any]) -> None:
    """Do ``work`` in a thread that nobody waits for; TimeoutError where it takes longer."""
    done: Future[Any] = Future()

    def attempt() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=attempt, daemon=True).start()
    done.result(seconds)


@dataclass
class ClusterHead:
    """The process that holds a cluster together, asked now and then whether it is there."""

    endpoint: Endpoint | None
    """None: it cannot be asked, and Ray's own word has to do."""
    gone: bool = False
    patience: float = GONE

    def check(self) -> None:
        """Return once it answers; raise when it has been silent for too long."""
        if self.endpoint is None:
            return
        begun = time.monotonic()
        while not answers(self.endpoint, 2.0):
            if time.monotonic() - begun > self.patience:
                self.gone = True
                host, port = self.endpoint
                raise ResourceError(
                    f"the head of the Ray cluster at {host}:{port} is gone; start it and run the "
                    "same command again: what is stored is kept"
                )
            time.sleep(0.5)
