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

from tqdm import tqdm

from gnn_repair.budget import check_real, check_whole
from gnn_repair.errors import GnnRepairError, InputError, ResourceError

Task = TypeVar("Task")
Result = TypeVar("Result")

Tell = Callable[[str], None]
"""Called with the stage that a task has reached."""

Work = Callable[[Any, Task, Tell], Result]
"""(value that all tasks share, task, tell) -> result."""


@dataclass(frozen=True)
class Failure:
    """The error of a task, as text (it may come from another machine)."""

    error: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        text = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, GnnRepairError):
            text = f"{type(error).__name__}: {text}"
        return cls(text, "".join(traceback.format_exception(error)))


Outcomes = Generator[tuple[Task, Result | Failure], None, None]
"""Each task with its result or failure."""


def attempt(work: Work[Task, Result], shared: Any, task: Task, tell: Tell) -> Result | Failure:
    """The result of one task, or its failure; interrupts are not caught."""
    try:
        return work(shared, task, tell)
    except Exception as error:
        return Failure.of(error)


class Engine(ABC):
    """Runs tasks and yields each result exactly once, in the order of completion."""

    elsewhere: bool = False
    """Whether tasks may run on other machines, with other devices and files."""

    @abstractmethod
    def map(
        self, work: Work[Task, Result], tasks: Sequence[Task], shared: Any = None, tell: Any = None
    ) -> Outcomes[Task, Result]:
        """Yield (task, result or failure) in the order of completion.

        Args:
            work: called as ``work(shared, task, tell)``.
            tasks: independent pieces of work.
            shared: sent once to every process.
            tell: called as ``tell(task, text)`` with the stage of a task, except on a cluster.
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

    A single case does not keep a large GPU busy; a few at once do. Results come back through pipes
    to this process, and only it writes. If a process dies, its task fails and a new process runs
    the remaining ones.
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
                    worker.send(waiting.popleft())
                for pipe in wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    kind, content = worker.receive()
                    if kind == "tell":
                        if tell is not None:
                            tell(worker.task, content)
                        continue
                    task = worker.task
                    if kind == "done" and waiting:
                        worker.send(waiting.popleft())
                    else:
                        busy.pop(worker.pipe).stop()
                    yield task, content
        finally:
            for worker in busy.values():
                worker.stop()


class _Worker:
    """A process and its current task."""

    def __init__(self, work: Any, shared: Any, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote, threads), daemon=True)
        self.process.start()
        remote.close()
        with contextlib.suppress(ConnectionError):
            self.pipe.send((work, shared))
        self.task: Any = None

    def send(self, task: Any) -> None:
        self.task = task
        # A process that has died is noticed when its pipe is read.
        with contextlib.suppress(ConnectionError):
            self.pipe.send(task)

    def receive(self) -> tuple[str, Any]:
        """("tell", text), ("done", result or failure), or ("lost", failure)."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            error = f"its process ended with exit code {self.process.exitcode}"
            return "lost", Failure(error, "")

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _serve(pipe: Connection, threads: int) -> None:
    """The main function of a process: run tasks until the pipe is closed."""
    # Ctrl-C reaches the whole process group; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A lock between processes would be reported as leaked where this one is ended.
    tqdm.set_lock(threading.RLock())
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
# Results come back to the driver, and only it writes. A task whose worker or node is lost is run
# again elsewhere; an error raised by the task itself is a failure and is not retried.

Endpoint = tuple[str, int]
"""Host and port."""

CLIENT = "ray://"
GONE = 8.0
"""Seconds without an answer after which a head counts as gone; a restart takes less."""
RETRIES = 3
"""How often a task is run again after its worker was lost; a task that loses three workers is
itself the likely cause."""
LISTEN = 2.0
"""Seconds without a result after which the head's connection is checked."""
SILENCE = 5.0
"""Seconds that an address may take to accept a connection; a reachable one takes milliseconds."""
CONNECT = 120.0
"""Seconds that a cluster which answers may take to accept a driver; a busy one takes ten."""


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
        self.ray = _import_ray(local=address is None)
        self.address, self.needs = address, {"num_cpus": cpus, "num_gpus": gpus}
        self.retries = retries

    def map(
        self, work: Work[Task, Result], tasks: Sequence[Task], shared: Any = None, tell: Any = None
    ) -> Outcomes[Task, Result]:
        owned = self._connect()
        head = ClusterHead(self._head_address())
        pending: dict[Any, Task] = {}
        try:
            self._check_needs()
            remote = self.ray.remote(max_retries=self.retries, **self.needs)(_attempt_remote)
            sent = self.ray.put((work, shared))
            pending = {remote.remote(sent, task): task for task in tasks}
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
                if owned:
                    self.ray.shutdown()

    def _connect(self) -> bool:
        """Join or start a cluster; whether the connection must be closed afterwards."""
        if self.ray.is_initialized():
            return False
        address = repr(self.address or os.environ.get("RAY_ADDRESS"))
        remedy = "start one with 'ray start --head' or leave out the address"
        endpoint = find_endpoint(self.ray, self.address)
        if endpoint and not answers(endpoint, SILENCE):
            raise InputError(f"no Ray cluster answers at {address}; {remedy}")
        options = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            run_within(CONNECT, partial(self.ray.init, address=self.address, **options))
        except TimeoutError as error:
            raise InputError(
                f"what answers at {address} is no Ray cluster, or a stuck one: it did not "
                f"let us in within {CONNECT:.0f} s; {remedy}"
            ) from error
        except (ConnectionError, ValueError, RuntimeError, AssertionError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(f"no Ray cluster answers at {address} ({reason}); {remedy}") from error
        return True

    def _head_address(self) -> Endpoint | None:
        """The address of the process that manages the cluster."""
        if (self.address or "").startswith(CLIENT):
            return find_endpoint(self.ray, self.address)
        with contextlib.suppress(Exception):
            return split_address(self.ray.get_runtime_context().gcs_address)
        return None

    def _check_needs(self) -> None:
        """Refuse a task that fits on no node, because it would wait forever."""
        needs = {"CPU": self.needs["num_cpus"], "GPU": self.needs["num_gpus"]}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(node.get(k, 0) >= v for k, v in needs.items()) for node in nodes):
            raise InputError(
                f"no node of the cluster has {needs['CPU']:g} CPUs and {needs['GPU']:g} GPUs "
                "for a task; ask for less or add a node"
            )

    def _collect(self, reference: Any, head: ClusterHead) -> Any:
        """The task's outcome; a failure where it was lost more often than ``retries``."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            head.check()  # the error of a dying cluster is not the task's
            return Failure.of(error)


def _attempt_remote(sent: tuple[Work[Task, Result], Any], task: Task) -> Result | Failure:
    work, shared = sent
    return attempt(work, shared, task, lambda text: None)  # progress stays on the worker


def _import_ray(local: bool) -> ModuleType:
    """The package; the ports of a ``local`` cluster are open to this machine only."""
    if local and not os.environ.get("RAY_ADDRESS"):
        # Ray's switch for the loopback address; read when it is first imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "the Ray engine needs the package ray; install gnn-repair[ray] or use the local engine"
        ) from error
    return ray


# Connection checks, because Ray itself waits for many minutes before it reports an error ----------


def answers(endpoint: Endpoint, seconds: float) -> bool:
    """Whether something accepts a connection within so many seconds."""
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


def find_endpoint(ray: ModuleType, address: str | None) -> Endpoint | None:
    """The endpoint of a running cluster; None if one is to be started, or it is unknown."""
    if address is not None and address.startswith(CLIENT):
        return split_address(address.removeprefix(CLIENT).partition("/")[0])
    if address is not None and address not in ("auto", "local"):
        return split_address(address)
    with contextlib.suppress(Exception):
        # "auto" is the environment's address, or the last cluster of this machine.
        resolved = ray._private.services.canonicalize_bootstrap_address(address)
        return None if resolved is None else split_address(resolved)
    return split_address(os.environ.get("RAY_ADDRESS", ""))


def run_within(seconds: float, work: Callable[[], Any]) -> None:
    """Run ``work`` in a daemon thread; TimeoutError where it takes longer."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    outcome.result(seconds)


@dataclass
class ClusterHead:
    """The process that manages a cluster, and whether it still answers."""

    endpoint: Endpoint | None
    """None: unknown, so that only Ray itself can notice when it is gone."""
    gone: bool = False
    patience: float = GONE

    def check(self) -> None:
        """Return once it answers; raise when it has not answered for ``patience`` seconds."""
        if self.endpoint is None:
            return
        start = time.monotonic()
        while not answers(self.endpoint, 2.0):
            if time.monotonic() - start > self.patience:
                self.gone = True
                host, port = self.endpoint
                raise ResourceError(
                    f"the head of the Ray cluster at {host}:{port} is gone; start it and run the "
                    "same command again: what is stored is kept"
                )
            time.sleep(0.5)
