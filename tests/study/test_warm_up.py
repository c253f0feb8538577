"""Kernels compiled beside the first case: when, how it is said, and that nothing waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from rich.console import Console

from gnn_repair.cli.progress import StudyProgress
from gnn_repair.study import warm_up
from gnn_repair.study.warm_up import MARKER, SAID, compile_kernels, warming


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A machine that says it has a GPU, with an empty folder of compiled kernels."""
    monkeypatch.setattr(
        "gnn_repair.study.warm_up.choose_device", lambda device: torch.device("cuda")
    )
    monkeypatch.setattr("gnn_repair.study.warm_up.compiled_folder", lambda: tmp_path)
    return tmp_path


def started(monkeypatch, line):
    """Processes that are started in place of the real one."""
    real, made = subprocess.Popen, []

    def begin(asked, **options):
        assert asked[1:] == ["-m", "gnn_repair.study.warm_up"]
        made.append(real([sys.executable, "-c", line], **options))
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", begin)
    return made


def test_a_first_use_is_said_and_ends_with_the_study(gpu, monkeypatch):
    made, said = started(monkeypatch, "import time; time.sleep(60)"), []
    with warming("cuda", said.append):
        assert said == [SAID]
        assert made[0].poll() is None
    assert made[0].poll() is not None


def test_what_is_compiled_is_not_compiled_again(gpu, monkeypatch):
    made, said = started(monkeypatch, ""), []
    (gpu / MARKER).touch()
    with warming("cuda", said.append):
        pass
    assert (made, said) == ([], [])


def test_a_cpu_needs_none(monkeypatch):
    made, said = started(monkeypatch, ""), []
    with warming("cpu", said.append):
        pass
    assert (made, said) == ([], [])


def test_a_process_that_cannot_start_or_fails_is_no_matter(gpu, monkeypatch):
    made = started(monkeypatch, "raise SystemExit(3)")
    with warming("cuda", lambda text: None):
        made[0].wait()
    assert not (gpu / MARKER).exists()

    def refuse(*line, **options):
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    said = []
    with warming("cuda", said.append):
        pass
    assert said == []


def test_the_error_of_a_study_is_kept(gpu, monkeypatch):
    made = started(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(KeyboardInterrupt), warming("cuda", lambda text: None):
        raise KeyboardInterrupt
    assert made[0].poll() is not None


def test_the_process_marks_what_it_compiled(gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(warm_up, "compile_kernels", asked.append)
    warm_up.main()
    assert asked == ["cuda"]
    assert (gpu / MARKER).exists()


def test_the_tiny_cases_run():
    compile_kernels("cpu")


def test_the_line_is_shown():
    console = Console(record=True, force_terminal=False, width=200)
    StudyProgress(console).noted(SAID)
    assert "compiled, 10 s or more" in console.export_text()
