"""Compiled kernels between processes: never those of other sources, never a reason to end."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numba
import numpy as np
import pytest

import gnn_repair
from gnn_repair import kernel_cache as caching
from gnn_repair.startup import collection_paused

ROOT = Path(gnn_repair.__file__).parent
CALLEE = "import numba\n\n@numba.njit\ndef step(x):\n    return x + {}\n"
CALLER = """
from callee import step
from gnn_repair.kernel_cache import cached_njit

@cached_njit()
def twice(x):
    return step(step(x))
"""
PROCESS = """
    import sys
    from pathlib import Path
    from gnn_repair import kernel_cache as caching
    caching.PACKAGE = Path(sys.argv[1])
    sys.path.insert(0, sys.argv[1] + "/kernels")
    from caller import twice
    print(twice(0), sum(twice.stats.cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path):
    """A folder of kernels in which one file calls another's."""
    folder = tmp_path / "package"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "callee.py").write_text(CALLEE.format(1))
    (folder / "kernels" / "caller.py").write_text(CALLER)
    return folder


def answer(package: Path, **environment: str) -> tuple[list[str], str]:
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), str(package)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.split(), done.stderr


def test_an_edit_in_another_file_is_never_answered_with_old_code(package):
    assert answer(package)[0] == ["2", "0"]
    (package / "kernels" / "callee.py").write_text(CALLEE.format(5))
    assert answer(package)[0] == ["10", "0"]
    assert answer(package)[0] == ["10", "1"]


def test_without_a_place_kernels_are_compiled_anew_and_a_warning_says_so(package, tmp_path):
    (package / "kernels" / "__pycache__").write_text("a file where the folder should be")
    (tmp_path / "home").write_text("likewise")
    places = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home")}
    found, said = answer(package, NUMBA_CACHE_DIR="", PYTHONDONTWRITEBYTECODE="1", **places)
    assert found == ["2", "0"]
    assert "cannot be kept anywhere" in said and "NUMBA_CACHE_DIR" in said


def test_kernels_are_compiled_from_hashed_files_only_and_kept_only_here():
    hashed = {path for pattern in caching.SOURCES for path in ROOT.glob(pattern)}
    hashed.add(ROOT / "kernel_cache.py")  # which holds no kernel
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"^(import|from) numba\b", text, re.M):
            continue
        assert path in hashed, f"{path} holds kernels outside of what the digest stands for"
        assert not re.search(r"njit\([^)]*cache=True", text), f"{path} uses numba's own stamp"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gnn_repair."):
                place = ROOT.joinpath(*node.module.split(".")[1:])
                assert {place.with_suffix(".py"), place / "__init__.py"} & hashed


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_is_collected_afterwards_where_it_was_before(collecting):
    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    with collection_paused():
        assert not gc.isenabled()
    found = gc.isenabled()
    (gc.enable if before else gc.disable)()
    assert found is collecting


def test_a_person_is_told_once_why_the_first_call_takes_long(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    caching._say_compiling.cache_clear()
    said = []
    for module in ("elsewhere", "gnn_repair.toy", "gnn_repair.toy"):

        def step(x):
            return x + 1

        step.__module__ = module
        assert numba.njit(step)(1) == 2
        said.append(bool(capsys.readouterr().err))
    assert said == [False, True, False]


def test_compiling_is_no_effort():
    start, began = time.process_time(), caching.working_seconds()
    assert numba.njit(lambda x: np.sort(x)[::-1].sum())(np.arange(4.0)) == 6
    assert caching.working_seconds() - began < 0.5 * (time.process_time() - start)
