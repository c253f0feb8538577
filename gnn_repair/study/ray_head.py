"""Is somebody there? Ray itself waits for many minutes before it says that nobody is."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from gnn_repair.errors import ResourceError

Endpoint = tuple[str, int]
"""Host and port."""

CLIENT = "ray://"
GONE = 8.0
"""Seconds a head may be silent before it counts as gone; one that restarts is back sooner."""


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


def within(seconds: float, work: Callable[[], None]) -> None:
    """Do ``work`` in a thread of its own; TimeoutError where it takes longer."""
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    if failed:
        raise failed[0]


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
