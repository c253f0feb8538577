"""``gnn-repair doctor`` looks things up, tries them, and says what is wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from importlib import metadata

import pytest

from gnn_repair.cli import doctor, main
from gnn_repair.oracle import Solution


def found(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["gnn-repair", "doctor", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code or 0, capsys.readouterr().out


def test_a_sound_installation_is_called_so(monkeypatch, capsys, tmp_path):
    code, out = found(monkeypatch, capsys, "--format", "json", "--root", str(tmp_path))
    rows = {row["subject"]: row for row in json.loads(out)}
    assert code == 0 and not any(row["wrong"] for row in rows.values())
    assert rows["torch"]["found"] == metadata.version("torch")
    assert rows["data"]["found"].startswith("1 of ") and str(tmp_path) in rows["data"]["found"]
    assert rows["one LP"]["found"] == "margin 0.5, known to be 0.5"
    assert "pytest" not in rows  # only those who work on the package need it


def test_a_table_ticks_every_line(monkeypatch, capsys):
    code, out = found(monkeypatch, capsys)
    assert code == 0 and "✗" not in out and out.count("✓") >= 15


def test_an_old_package_is_named(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.9.12")
    finding = doctor._package("numba", "0.60", None)
    assert (finding.found, finding.wrong) == ("0.9.12", "0.60 or newer is needed")
    assert doctor._package("numba", "0.9.9", None).wrong is None
    assert doctor._package("numba", "0.9.12", None).wrong is None


def test_a_wrong_oracle_and_a_blind_check_are_found(monkeypatch, capsys):
    import gnn_repair.oracle as oracle

    solve = oracle.solve

    def off(exposure, targets):
        answer = solve(exposure, targets)
        return dataclasses.replace(answer, margin=answer.margin + 1e-6)

    monkeypatch.setattr(oracle, "solve", off)
    monkeypatch.setattr(Solution, "check", lambda self, exposure: True)
    code, out = found(monkeypatch, capsys, "--format", "json")
    wrong = {row["subject"] for row in json.loads(out) if row["wrong"]}
    assert code == 1 and wrong == {"one LP", "one certificate"}


WITHOUT_TORCH = """
import subprocess
import sys
sys.modules["torch"] = None  # what a missing or broken PyTorch looks like to an import
sys.argv = ["gnn-repair", *sys.argv[1:]]
from gnn_repair.cli import main
main()
"""


def without_torch(*arguments):
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_missing_pytorch_is_a_finding():
    ended = without_torch("doctor", "--format", "json")
    rows = {row["subject"]: row for row in json.loads(ended.stdout)}
    assert ended.returncode == 1 and not ended.stderr
    assert rows["Python"]["wrong"] is None
    for subject in ("devices", "one LP", "one certificate"):
        assert "torch" in rows[subject]["found"] and rows[subject]["wrong"] == "install it anew"


def test_other_commands_name_the_missing_package():
    ended = without_torch("data", "check", "builtin")
    assert ended.returncode == 1
    assert ended.stderr.startswith("gnn-repair: a package cannot be imported (import of torch ")
    assert ended.stderr.count("\n") == 1 and "gnn-repair doctor" in ended.stderr
