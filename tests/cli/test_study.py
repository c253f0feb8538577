"""``gnn-repair study`` and ``demo`` as a user meets them: real processes, signals, exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gnn_repair.catalog import DATASETS
from gnn_repair.study import PAPER, Case, Plan, Run, Store, StudyProgress, override
from gnn_repair.study.engine import Failure
from tests.helpers.study.planted_records import fake_case, make_record, stored
from tests.helpers.study.tiny import TINY

SMALL = [part for setting in TINY for part in ("--set", setting)]
DIGEST = override(PAPER, TINY).digest
GRID = ["--datasets", "builtin", "--backbones", "gcn,sgc", "--splits", "0-1", *SMALL]


@pytest.fixture
def store(tmp_path):
    pairs = ("cora", "gcn"), ("pubmed", "gat")
    held = stored(tmp_path / "store", *(make_record(*pair, k) for pair in pairs for k in range(2)))
    held.put_failure(PAPER.digest, Run("cora", "gat", 0), "a planted fault", "Traceback")
    return held.root


def test_a_process_with_two_jobs_gives_what_one_job_gives_and_a_second_run_nothing(run, tmp_path):
    """The CPU repeats exactly, so records differ in their times alone."""
    methods = ["--methods", "oracle,refit_head,set_translation,node_translation"]
    start = ["study", "run", "--device", "cpu"]
    lines = {
        jobs: [*start, "--store", str(tmp_path / jobs), *GRID, *methods, "--jobs", jobs]
        for jobs in ("1", "2")
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gnn_repair", *lines["2"]]
    two = subprocess.run(command, capture_output=True, text=True, env=environment)
    code, one, _ = run(*lines["1"])
    assert (two.returncode, code) == (0, 0)
    for jobs, said in (("1", one), ("2", two.stdout)):
        assert said.startswith("4 runs stored (protocol")
        assert DIGEST in said and str(tmp_path / jobs) in said
    assert "builtin × gcn: 2 splits in" in two.stderr
    assert "(4 of 4 runs" in two.stderr
    records = [Store(tmp_path / jobs).records(DIGEST) for jobs in lines]
    first, second = ([(r.run, r.frozen, r.methods, r.oracle) for r in each] for each in records)
    assert len(first) == 4 and first == second
    assert run(*lines["2"])[1].startswith("4 runs already there (protocol")
    store = ["--store", str(tmp_path / "2")]
    facts = json.loads(run("study", "tables", *store, *SMALL, "--format", "json")[1])
    (macro,) = [f for f in facts if f["sheet"] == "Frozen" and f["row"] == f["column"] == "average"]
    assert (macro["count"], macro["published"]) == (2, None)
    # Without its settings: the store holds one protocol.
    status = run("study", "status", *store, *GRID[:6], *methods, "--format", "json")[1]
    assert [row["done"] for row in json.loads(status)] == [2, 2]


def test_a_failed_case_is_exit_code_1_and_is_listed(run, tmp_path):
    """A raw file that is not what it should be fails its own case, not the study."""
    target, root = str(tmp_path / "store"), tmp_path / "data"
    damaged = root / DATASETS["minesweeper"].files[0].path
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"PK")
    bad = [*GRID, "--datasets", "minesweeper,builtin", "--backbones", "gcn", "--splits", "0"]
    bad += ["--methods", "refit_head"]
    code, out, err = run("study", "run", "--store", target, *bad, "--root", str(root))
    assert code == 1
    assert out.startswith("1 run stored, 1 case failed (protocol")
    assert "minesweeper × gcn failed: " in err and "is truncated or altered" in err
    status = " ".join(run("study", "status", "--store", target, *bad)[1].split())
    assert "1 done, 1 failed, 0 missing of 2 runs" in status and "truncated or altered" in status


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_cleanly(run, monkeypatch, tmp_path, number, code):
    """In the middle of the second case."""

    def work(shared, case, tell):
        if case.backbone == "sgc":
            signal.raise_signal(number)
        return fake_case(shared, case, tell)

    monkeypatch.setattr("gnn_repair.study.grid.run_case", work)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    # A shell starts what runs in its background with interrupts ignored, and so would this be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    grid = ["--datasets", "builtin", "--backbones", "gcn,sgc", "--splits", "0"]
    ended, _, err = run("study", "run", "--store", str(tmp_path), *grid)
    signal.signal(signal.SIGINT, handlers[0])
    assert signal.getsignal(signal.SIGTERM) == handlers[1]
    assert ended == code
    assert err.splitlines()[-1].endswith("run again to continue")
    assert [p.parent.name for p in tmp_path.rglob("split-0.json")] == ["gcn"]
    assert [p for p in tmp_path.rglob(".*") if p.is_file()] == []


STOPPED = """
import time
from tqdm.auto import tqdm
from gnn_repair.study.engine import ProcessEngine

def work(shared, task, tell):
    tqdm([1])
    tell("made")
    time.sleep(60)

def stop(task, text):
    if text == "made":
        raise KeyboardInterrupt

if __name__ == "__main__":
    list(ProcessEngine(1).map(work, [1], tell=stop))
"""


def test_nothing_is_said_of_processes_that_were_stopped(tmp_path):
    (tmp_path / "stopped.py").write_text(STOPPED)
    path = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    line = [sys.executable, "stopped.py"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, env=path)
    assert "KeyboardInterrupt" in ended.stderr and "resource_tracker" not in ended.stderr


def test_the_status_is_of_what_the_store_holds_or_of_the_whole_paper(run, store):
    line = ("study", "status", "--store", str(store))
    other = override(PAPER, ["backbones.hidden=64"])
    record = make_record("builtin", "gcn", 3)
    stored(store, replace(record, methods={}), protocol=other)
    for more, done, cases, total in (
        (["--protocol", "paper"], 4, 3, 5),
        (["--set", "backbones.hidden=64"], 1, 1, 1),
        (["--set", "backbones.hidden=64", "--methods", "oracle"], 1, 1, 1),
        (["--set", "backbones.hidden=64", "--methods", "all"], 0, 1, 1),
        (["--datasets", "paper"], 4, 64, 640),
        (["--set", "backbones.dropout=0.1"], 0, 64, 640),
    ):
        rows = json.loads(run(*line, "--format", "json", *more)[1])
        assert len(rows) == cases and sum(r["done"] for r in rows) == done, more
        assert sum(r["done"] + r["failed"] + r["missing"] for r in rows) == total, more
        listed = " ".join(run(*line, *more)[1].split())
        assert "1 runs" not in listed
        only_others = "it holds other settings only: protocol" in listed and PAPER.digest in listed
        assert only_others is (more[-1] == "backbones.dropout=0.1")


def test_tables_are_of_the_protocol_that_is_named(run, store):
    change = "backbones.hidden=64"
    other = override(PAPER, [change])
    stored(store, make_record("actor", "sgc", 0), protocol=other)
    line = ("study", "tables", "dataset-statistics", "--store", str(store), "--format", "json")
    for named in (("--set", change), ("--digest", other.digest)):
        assert {fact["row"] for fact in json.loads(run(*line, *named)[1])} == {"actor"}
    for named in ((), ("--protocol", "paper")):
        assert {fact["row"] for fact in json.loads(run(*line, *named)[1])} == {"cora", "pubmed"}


def test_plain_lines_say_what_a_bar_would():
    said = io.StringIO()
    case = Case("cora", "gcn", (0, 1), ("oracle",))
    other = Case("cora", "gat", (0, 1), ("oracle",))
    done = (Run("cora", "gcn", 2),)
    plan = Plan(done, dict.fromkeys(other.runs, "lost"), tuple(case.runs), (case, other))
    with StudyProgress(said) as progress:
        progress.planned(plan)
        progress.start -= 60  # for two runs, so that the other two take as long
        progress.stage(case, "training, epoch 10")
        progress.finished(case, 75.0)
        progress.failed(other, Failure("a planted fault", ""))
    first, second, third = said.getvalue().splitlines()
    assert first.startswith("1 of 5 runs stored; 2 cases to run, 2 runs that failed before")
    assert second.startswith("cora × gcn: 2 splits in 01:15 (3 of 5 runs, 01:00 left)")
    assert third.startswith("cora × gat failed: a planted fault (5 of 5 runs")
