"""Compiled kernels between processes: never those of other sources, never a reason to end."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

import gnn_repair
from gnn_repair import kernel_cache as caching

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
    print(twice(0), sum(twice.stats.cache_hits.values()), caching.compiled_folder().parent)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder of kernels in which one file calls another's."""
    folder = tmp_path / "package"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "callee.py").write_text(CALLEE.format(1))
    (folder / "kernels" / "caller.py").write_text(CALLER)
    monkeypatch.setattr(caching, "PACKAGE", folder)
    for cached in (caching.sources_digest, caching.compiled_folder, caching._warn_unsaved):
        cached.cache_clear()
    yield folder
    for cached in (caching.sources_digest, caching.compiled_folder, caching._warn_unsaved):
        cached.cache_clear()


def answer(package: Path, **environment: str) -> list[str]:
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), str(package)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.split()


def module(package: Path, monkeypatch: pytest.MonkeyPatch):
    """The caller, loaded in this process."""
    monkeypatch.syspath_prepend(str(package / "kernels"))
    for name in ("callee", "caller"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("caller", package / "kernels" / "caller.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_an_edit_in_another_file_is_never_answered_with_old_code(package):
    own = str(package / "__pycache__")
    assert answer(package) == ["2", "0", own]
    assert answer(package) == ["2", "1", own]
    (package / "kernels" / "callee.py").write_text(CALLEE.format(5))
    assert answer(package) == ["10", "0", own]


def test_a_digest_of_every_file_a_kernel_may_be_compiled_from(package):
    digests = set()
    for place in ("kernels/callee.py", "kernels/deep/new.py", "oracle/x.py", "thresholds.py"):
        path = package / place
        path.parent.mkdir(exist_ok=True)
        path.write_text("X = 1\n")
        caching.sources_digest.cache_clear()
        digests.add(caching.sources_digest())
    assert len(digests) == 4


def test_kernels_are_compiled_from_hashed_files_only_and_kept_only_here():
    hashed = {path for pattern in caching.SOURCES for path in ROOT.glob(pattern)}
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"^(import|from) numba\b", text, re.MULTILINE):
            continue
        assert path in hashed, f"{path} holds kernels outside of what the cache's name stands for"
        assert not re.search(r"njit\([^)]*cache=True", text), f"{path} uses numba's own cache"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gnn_repair."):
                place = ROOT.joinpath(*node.module.split(".")[1:])
                assert {place.with_suffix(".py"), place / "__init__.py"} & hashed


def test_without_a_place_kernels_are_compiled_anew_and_a_warning_says_so(package, monkeypatch):
    (package / "file").write_text("")
    monkeypatch.setattr(caching, "_parents", lambda: iter([(package / "file" / "x", False)]))
    with pytest.warns(UserWarning, match="cannot be kept anywhere.*NUMBA_CACHE_DIR"):
        assert caching.compiled_folder() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module(package, monkeypatch).twice(0) == 2


def test_without_package_and_home_a_private_temporary_folder_serves(package, tmp_path, monkeypatch):
    (package / "__pycache__").write_text("a file where the folder should be")
    (tmp_path / "home").write_text("likewise")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(caching.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    found = caching.compiled_folder()
    assert found is not None and found.parent.parent == tmp_path / "temporary"
    assert found.parent.stat().st_mode & 0o777 == 0o700
    # What is loaded from there is run: a folder that others can write is not used.
    caching.compiled_folder.cache_clear()
    found.parent.chmod(0o777)
    with pytest.warns(UserWarning, match="cannot be kept anywhere"):
        assert caching.compiled_folder() is None
    caching.compiled_folder.cache_clear()
    found.parent.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o700)
    found.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="cannot be kept anywhere"):
        assert caching.compiled_folder() is None


def test_damaged_files_are_compiled_anew(package, monkeypatch):
    assert module(package, monkeypatch).twice(0) == 2
    folder = caching.compiled_folder()
    for ending in ("nbc", "nbi"):
        (path,) = folder.glob(f"*.{ending}")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
        again = module(package, monkeypatch).twice
        assert again(0) == 2
        assert not again.stats.cache_hits
        healed = module(package, monkeypatch).twice
        assert healed(0) == 2
        assert sum(healed.stats.cache_hits.values()) == 1


def test_compiled_code_is_loaded_only_as_it_was_saved(tmp_path):
    held = caching._CheckedFile(str(tmp_path), "kernel", "stamp")
    held.save("key", b"machine code")
    assert held.load("key") == b"machine code"
    (path,) = tmp_path.glob("*.nbc")
    path.write_bytes(path.read_bytes().replace(b"machine", b"maChine"))  # still a sound pickle
    with pytest.raises(ValueError, match="damaged"):
        held.load("key")


def test_a_full_disk_is_one_warning(package, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching._CheckedFile, "save", full)
    with pytest.warns(UserWarning, match="cannot be kept: .*No space left on device"):
        assert module(package, monkeypatch).twice(0) == 2


def test_folders_that_are_no_longer_used_go(package):
    parent = package / "__pycache__"
    for age in range(8):
        folder = parent / f"gnn-repair-kernels-{age}"
        folder.mkdir(parents=True)
        os.utime(folder, (1e9 - age, 1e9 - age))
    (parent / "other").mkdir()
    (parent / "solve.py311.1.nbc").write_text("of an earlier version")
    new = caching.compiled_folder()
    left = {path.name for path in parent.iterdir()}
    kept = {f"gnn-repair-kernels-{age}" for age in range(caching.KEPT - 1)}
    assert left == {*kept, new.name, "other"}
