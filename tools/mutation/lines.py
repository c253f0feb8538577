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


class Recorder:
    """A pytest plugin: the lines of some files, by test; a fixture's count for all who use it."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = {str(file.resolve()): file.as_posix() for file in files}
        self.lines: set[Line] = set()
        self.fixtures: dict[str, set[Line]] = {}
        self.tests: dict[str, tuple[float, set[Line]]] = {}

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
        tests = {name: [s, sorted(lines)] for name, (s, lines) in self.tests.items()}
        path.write_text(json.dumps(tests), encoding="utf-8")


def read(path: Path) -> dict[str, tuple[float, set[Line]]]:
    """What :meth:`Recorder.write` wrote; nothing where there is no file."""
    tests = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: (s, {(file, line) for file, line in lines}) for name, (s, lines) in tests.items()}


def digest(files: Iterable[Path]) -> str:
    """Names the contents of the files: what was recorded holds as long as it is the same."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]
