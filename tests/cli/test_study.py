"""``gnn-repair study`` and ``demo`` as a user meets them: real processes, signals, exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gnn_repair.catalog import DATASETS
from gnn_repair.results.records import StoreWarning
from gnn_repair.study import PAPER, Case, Plan, Run, Store, StudyProgress, override
from gnn_repair.study.engine import Failure
from tests.helpers.study.planted_records import make_record
from tests.helpers.study.tiny import TINY

SMALL = [part for setting in TINY for part in ("--set", setting)]
DIGEST = override(PAPER, TINY).digest
GRID = ["--datasets", "builtin", "--backbones", "gcn,sgc", "--splits", "0-1", *SMALL]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gnn_repair", *arguments]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=environment
    )


@pytest.fixture
def store(tmp_path):
    held = Store(tmp_path / "store")
    held.begin(PAPER)
    for dataset, backbone in (("cora", "gcn"), ("pubmed", "gat")):
        for split in range(2):
            held.put(make_record(dataset, backbone, split))
    held.put_failure(PAPER.digest, Run("cora", "gat", 0), "a planted fault", "Traceback")
    return held.root


def test_run_then_run_again_then_tables(run, tmp_path):
    target = str(tmp_path / "store")
    methods = ["--methods", "oracle,refit_head,set_translation,node_translation"]
    first = call("study", "run", "--store", target, *GRID, *methods)
    assert first.returncode == 0
    assert first.stdout.startswith("4 runs stored, 0 already there, 0 cases failed")
    assert DIGEST in first.stdout and target in first.stdout
    assert "builtin × gcn: 2 splits in" in first.stderr
    assert "(4 of 4 runs" in first.stderr
    again = run("study", "run", "--store", target, *GRID, *methods)[1]
    assert again.startswith("0 runs stored, 4 already there, 0 cases failed")
    facts = json.loads(run("study", "tables", "--store", target, *SMALL, "--format", "json")[1])
    (macro,) = [f for f in facts if f["sheet"] == "Frozen" and f["row"] == f["column"] == "average"]
    assert (macro["count"], macro["published"]) == (2, None)
    grid = [*GRID[:6], *methods]  # without its settings: the store holds one protocol
    status = run("study", "status", "--store", target, *grid, "--format", "json")[1]
    assert [row["done"] for row in json.loads(status)] == [2, 2]


def test_two_jobs_give_what_one_gives(run, tmp_path):
    """The CPU repeats exactly, so records differ in their times alone."""
    found = {}
    for jobs in ("1", "2"):
        target = str(tmp_path / jobs)
        options = ["--methods", "refit_head", "--splits", "0", "--jobs", jobs]
        assert run("study", "run", "--store", target, *GRID, *options)[0] == 0
        records = Store(target).records(DIGEST)
        found[jobs] = [(r.backbone, r.split, r.frozen, r.methods) for r in records]
    assert len(found["1"]) == 2
    assert found["1"] == found["2"]


def test_a_failed_case_is_exit_code_1_and_is_listed(run, tmp_path):
    """A raw file that is not what it should be fails its own case, not the study."""
    target, root = str(tmp_path / "store"), tmp_path / "data"
    damaged = root / DATASETS["minesweeper"].files[0].path
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"PK")
    bad = [*GRID, "--datasets", "minesweeper,builtin", "--backbones", "gcn", "--splits", "0"]
    bad += ["--methods", "refit_head"]
    done = call("study", "run", "--store", target, *bad, "--root", str(root))
    assert done.returncode == 1
    assert "1 run stored" in done.stdout
    assert "minesweeper × gcn failed: " in done.stderr
    assert "is truncated or altered" in done.stderr
    status = " ".join(run("study", "status", "--store", target, *bad)[1].split())
    assert "1 done, 1 failed, 0 missing of 2 runs" in status and "truncated or altered" in status


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_cleanly(tmp_path, number, code):
    target = tmp_path / "store"
    grid = ["--datasets", "builtin", "--backbones", "gcn,sgc", "--splits", "0", *SMALL]
    # The second case would take hours: the signal must end it.
    long = ["--set", "backbones.long.epochs=100000000", "--set", "backbones.long.patience=none"]
    process = subprocess.Popen(
        command("study", "run", "--store", str(target), *grid, *long, "--methods", "refit_head"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell starts what runs in its background with interrupts ignored, and so would this be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 300
    while not list(target.rglob("split-0.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.splitlines()[-1].endswith("run again to continue")
    assert "Traceback" not in err
    assert [p.parent.name for p in target.rglob("split-0.json")] == ["gcn"]
    assert [p for p in target.rglob(".*") if p.is_file()] == []


def test_the_whole_paper_is_the_default_grid(run, store):
    out = run("study", "status", "--store", str(store), "--format", "json")[1]
    rows = json.loads(out)
    assert len(rows) == 64
    assert sum(r["done"] + r["failed"] + r["missing"] for r in rows) == 640


def test_a_damaged_record_is_named_and_counts_as_missing(run, store):
    path = store / PAPER.digest / "cora" / "gcn" / "split-0.json"
    path.write_text(path.read_text()[:100])
    grid = ["--datasets", "cora", "--backbones", "gcn", "--splits", "0-1", "--format", "json"]
    with pytest.warns(StoreWarning, match=r"split-0\.json: it is truncated or not JSON"):
        out = run("study", "status", "--store", str(store), *grid)[1]
    (row,) = json.loads(out)
    assert (row["done"], row["missing"]) == (1, 1)
    assert sorted(p.name for p in path.parent.iterdir()) == ["split-0.json", "split-1.json"]


def test_the_demo_keeps_its_results_when_asked(run, tmp_path, monkeypatch):
    monkeypatch.setattr("gnn_repair.cli.demo.SETTINGS", TINY)
    page = ("--report", str(tmp_path / "page.html"))
    code, out, _ = run("demo", "--format", "json", "--store", str(tmp_path / "store"), *page)
    assert code == 0
    sheets = {fact["sheet"] for fact in json.loads(out)}
    assert {"Frozen", "Set translation", "Error reach (%)", "Macro means"} <= sheets
    assert len(list(Store(tmp_path / "store").records(DIGEST))) == 2


def test_plain_lines_say_what_a_bar_would():
    said = io.StringIO()
    case = Case("cora", "gcn", (0, 1), ("oracle",))
    other = Case("cora", "gat", (0, 1), ("oracle",))
    plan = Plan((), dict.fromkeys(other.runs, "lost"), tuple(case.runs), (case, other))
    with StudyProgress(said) as progress:
        progress.planned(plan)
        progress.stage(case, "training, epoch 10")
        progress.finished(case, 75.0)
        progress.failed(other, Failure("a planted fault", ""))
    first, second, third = said.getvalue().splitlines()
    assert first.startswith("0 of 4 runs stored; 2 cases to run, 2 runs that failed before")
    assert second.startswith("cora × gcn: 2 splits in 01:15 (2 of 4 runs, ")
    assert third.startswith("cora × gat failed: a planted fault (4 of 4 runs")
