"""``gnn-repair data`` and ``demo`` as a user meets them: output and exit codes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnn_repair.catalog import DATASETS, Statistics
from gnn_repair.cli import main


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GNN_REPAIR_DATA", raising=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in this process; gives exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gnn-repair", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return int(caught.value.code or 0), output.out, output.err

    return call


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root where squirrel-filtered is a path of 20 nodes; the registry expects just that."""
    parts = np.stack([np.random.default_rng(split).permutation(20) for split in range(10)])
    root, spec = tmp_path / "data", DATASETS["squirrel-filtered"]
    path = root / spec.files[0].path
    path.parent.mkdir(parents=True)
    np.savez(
        path,
        node_features=np.ones((20, 3), dtype=np.float32),
        node_labels=np.arange(20) % 2,
        edges=np.stack([np.arange(19), np.arange(1, 20)], axis=1),
        train_masks=parts < 10,
        val_masks=(parts >= 10) & (parts < 15),
        test_masks=parts >= 15,
    )
    statistics = Statistics(20, 2 * 19 + 20, 3, 2, (50, 25, 25))
    expected = dataclasses.replace(spec, statistics=statistics)
    monkeypatch.setitem(DATASETS, "squirrel-filtered", expected)
    return root


def test_list_has_a_row_a_dataset(run: Any, graph: Path) -> None:
    code, out, _ = run("data", "list", "--root", str(graph), "--format", "json")
    rows = {row["dataset"]: row for row in json.loads(out)}
    assert code == 0
    assert list(rows) == list(DATASETS)
    assert rows["roman-empire"] == {
        "dataset": "roman-empire",
        "nodes": 22662,
        "entries": 88516,
        "features": 300,
        "classes": 18,
        "splits": "provided 50/25/25",
        "source": "heterophilous",
        "files": "missing",
    }
    assert rows["squirrel-filtered"]["files"] == "present"
    assert rows["builtin"]["files"] == "none needed"


def test_the_table_cuts_no_name_off(run: Any) -> None:
    code, out, _ = run("data", "list")
    assert code == 0
    assert all(name in out for name in DATASETS)


def test_check_passes_what_is_right_and_reports_what_is_missing(run: Any, graph: Path) -> None:
    code, out, _ = run("data", "check", "--root", str(graph), "--format", "json")
    rows = {row["dataset"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["cora"]["status"] == "missing"
    assert rows["builtin"]["status"] == "ok"
    assert rows["squirrel-filtered"] == {
        "dataset": "squirrel-filtered",
        "nodes": 20,
        "entries": 58,
        "features": 3,
        "classes": 2,
        "splits": 10,
        "train": 10,
        "val": 5,
        "test": 5,
        "checksums": "no published checksum",
        "status": "ok",
    }


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"nodes": 21}, "differs: nodes 20 (published 21)"),
        ({"entries": 57}, "differs: entries 58 (published 57)"),
        ({"shares": (60, 15, 25)}, "differs: train_mask 50.0 % (published 60 %); val_mask 25.0 %"),
    ],
)
def test_check_reports_differences(
    run: Any, graph: Path, monkeypatch: pytest.MonkeyPatch, change: Any, status: str
) -> None:
    spec = DATASETS["squirrel-filtered"]
    statistics = dataclasses.replace(spec.statistics, **change)
    changed = dataclasses.replace(spec, statistics=statistics)
    monkeypatch.setitem(DATASETS, "squirrel-filtered", changed)
    code, out, _ = run("data", "check", "--root", str(graph), "--format", "json")
    row = next(row for row in json.loads(out) if row["dataset"] == "squirrel-filtered")
    assert code == 1
    assert row["status"].startswith(status)


def test_check_notices_a_damaged_cache(run: Any, graph: Path, tmp_path: Path) -> None:
    command = ("data", "check", "squirrel-filtered", "--root", str(graph), "--format", "json")
    assert run(*command)[0] == 0
    (entry,) = (tmp_path / "cache").rglob("*.safetensors")
    content = bytearray(entry.read_bytes())
    content[-1] ^= 1  # one node moves into or out of a mask
    entry.write_bytes(content)
    code, out, err = run(*command)
    (row,) = json.loads(out)
    assert code == 1 and err == ""
    assert row["status"].startswith("differs: the cached graph of squirrel-filtered cannot be used")
    assert str(entry) in row["status"] and "checksum" in row["status"]
    assert (row["nodes"], row["train"]) == (20, 10)
    assert run(*command)[0] == 0


def test_check_of_a_damaged_file_names_the_checksum(run: Any, tmp_path: Path) -> None:
    file = DATASETS["minesweeper"].files[0]
    (tmp_path / file.path).parent.mkdir(parents=True)
    (tmp_path / file.path).write_bytes(b"PK")
    code, out, err = run("data", "check", "--root", str(tmp_path), "--format", "json")
    row = next(row for row in json.loads(out) if row["dataset"] == "minesweeper")
    assert code == 2
    assert row["status"].startswith("differs: ")
    assert str(file.sha256) in err


def test_a_named_dataset_must_be_there(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run("data", "check", "roman-empire", "--root", str(tmp_path / "file" / "root"))
    assert code == 2
    assert "roman_empire.npz (20,401,489 bytes)" in err


def test_the_command_runs_as_a_process() -> None:
    command = [sys.executable, "-m", "gnn_repair", "data", "check", "builtin", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0]["status"] == "ok"
