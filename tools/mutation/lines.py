"""Which lines of the package each test executes, and how long it takes."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

Line = tuple[str, int]
SOMEWHERE = 0
"""Stands for every line of a file."""


class Recorder:
    """A pytest plugin: the lines of some files, by test; a fixture's count for all who use it."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = {str(file.resolve()): file.as_posix() for file in files}
        self.lines: set[Line] = set()
        self.fixtures: dict[str, set[Line]] = {}
        self.tests: dict[str, tuple[float, set[Line]]] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._local if frame.f_code.co_filename in self.files else None

    def _local(self, frame: FrameType, event: str, argument: object) -> Any:
        self.lines.add((self.files[frame.f_code.co_filename], frame.f_lineno))
        return self._local

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, None, None]:
        outside, self.lines = self.lines, set()
        yield
        self.fixtures.setdefault(fixturedef.argname, set()).update(self.lines)
        self.lines |= outside

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, None, None]:
        self.lines = set()
        start = time.process_time()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        yield
        sys.settrace(None)
        threading.settrace(None)
        used = (self.fixtures.get(name, set()) for name in getattr(item, "fixturenames", ()))
        self.tests[item.nodeid] = time.process_time() - start, self.lines.union(*used)

    def write(self, path: Path) -> None:
        """Keep it, with digests that say which of the files are still what they were.

        Tests that fail without any mutant are left out: they would notice everything.
        """
        passed = {name: entry for name, entry in self.tests.items() if name not in self.failed}
        tests = {name: [s, sorted(lines)] for name, (s, lines) in passed.items()}
        files = {name: digest([Path(name)]) for name in self.files.values()}
        path.write_text(json.dumps({"files": files, "tests": tests}), encoding="utf-8")


def read(path: Path) -> dict[str, tuple[float, set[Line]]]:
    """What :meth:`Recorder.write` wrote; of files that changed since only that they were run."""
    held = json.loads(path.read_text(encoding="utf-8"))
    same = {name: digest([Path(name)]) == value for name, value in held["files"].items()}
    return {
        name: (s, {(file, line if same[file] else SOMEWHERE) for file, line in lines})
        for name, (s, lines) in held["tests"].items()
    }


def named(files: Iterable[Path]) -> str:
    """A digest of the files' names."""
    text = "\n".join(sorted(file.as_posix() for file in files))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def digest(files: Iterable[Path]) -> str:
    """Names the contents of the files."""
    held = (file.read_bytes() if file.exists() else b"" for file in files)
    return hashlib.sha256(b"\0".join(held)).hexdigest()[:16]
