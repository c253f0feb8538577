"""Running tests against a mutant, in a forked process that already holds the heavy libraries."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal

from tools.mutation.mutants import Mutant

Fate = Literal["killed", "survived", "timeout"]


@dataclass(frozen=True)
class Trial:
    """What became of a mutant."""

    mutant: Mutant
    fate: Fate
    seconds: float


class _Mutated(importlib.machinery.SourceFileLoader):
    """Loads the mutant's tree where its file was asked for."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self.tree = tree

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self.tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        parts = list(mutant.path.with_suffix("").parts)
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        file = str(self.mutant.path.resolve())
        loader = _Mutated(fullname, file, self.mutant.tree)
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


def preload() -> None:
    """Load what every trial needs and no mutant changes; the package itself is not among it."""
    import hypothesis  # noqa: F401
    import numba  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.sparse  # noqa: F401
    import torch
    import torch_geometric.nn  # noqa: F401

    torch.set_num_threads(1)
    assert "gnn_repair" not in sys.modules


def start(mutant: Mutant | None, tests: Sequence[str]) -> int:
    """Fork a process that runs the tests until the first failure; returns its number."""
    process = os.fork()
    if process:
        return process
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(mutant))
    code = 1
    try:
        import pytest

        with tempfile.TemporaryDirectory() as folder:
            options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", folder]
            code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)


def run_all(
    mutants: Sequence[Mutant], tests: Sequence[str], jobs: int, limit: float
) -> Iterator[Trial]:
    """Try every mutant, ``jobs`` at a time; one that runs past ``limit`` seconds counts apart."""
    waiting, running = list(reversed(mutants)), dict[int, tuple[Mutant, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            running[start(mutant, tests)] = mutant, time.monotonic()
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            mutant, since = running.pop(process)
            fate: Fate = "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
            yield Trial(mutant, fate, time.monotonic() - since)
            continue
        for late, (mutant, since) in list(running.items()):
            if time.monotonic() - since > limit:
                os.killpg(late, signal.SIGKILL)
                os.waitpid(late, 0)
                del running[late]
                yield Trial(mutant, "timeout", limit)
        time.sleep(0.05)


def baseline(tests: Sequence[str]) -> float:
    """Seconds the tests take without a change; they must pass."""
    since = time.monotonic()
    _, status = os.waitpid(start(None, tests), 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"the tests {' '.join(tests)} fail without any mutant")
    return time.monotonic() - since


def read_equivalent(path: Path) -> set[str]:
    """Keys of mutants known to change nothing a user could see, one a line, # for reasons."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}
