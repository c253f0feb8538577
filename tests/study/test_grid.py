"""Planning, running, failing and resuming, in one process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from gnn_repair.errors import SplitError
from gnn_repair.methods import METHODS
from gnn_repair.results.records import all_runs
from gnn_repair.study import (
    PAPER,
    Case,
    ProcessEngine,
    Run,
    Store,
    Watcher,
    make_plan,
    override,
    run_study,
)
from gnn_repair.study.engine import Failure
from tests.helpers.study.planted_records import fake_case, make_record, stored
from tests.helpers.study.tiny import tiny_graph

# Planning, running, failing and resuming, with cases that take no time.

GRID = {"datasets": ["cora", "pubmed"], "backbones": ["gcn", "gat"], "splits": range(3)}

USUAL = tuple(name for name, method in METHODS.items() if method.by_default)


class Log(Watcher):
    def __init__(self):
        self.cases, self.errors = [], []

    def finished(self, case, seconds):
        self.cases.append((str(case), case.splits, seconds))

    def failed(self, case, failure):
        self.errors.append((str(case), failure))


def test_the_whole_grid_is_run_once(tmp_path):
    log = Log()
    outcome = run_study(**GRID, store=tmp_path, work=fake_case, watcher=log)
    assert (outcome.stored, outcome.already, outcome.failures) == (12, 0, {})
    assert log.cases == [
        ("cora × gcn", (0, 1, 2), 1.5),
        ("cora × gat", (0, 1, 2), 1.5),
        ("pubmed × gcn", (0, 1, 2), 1.5),
        ("pubmed × gat", (0, 1, 2), 1.5),
    ]

    def never(shared, case, tell):
        raise AssertionError(f"{case} was run again")

    again = run_study(**GRID, store=tmp_path, work=never)
    assert (again.stored, again.already, again.failures) == (0, 12, {})
    seen = []

    def noting(shared, case, tell):
        seen.append((case.splits, case.methods))
        return fake_case(shared, case, tell)

    part = {"store": tmp_path / "part", "stack": 2, "methods": ["refit_head"], "work": noting}
    assert run_study(["cora"], ["gcn"], range(3), **part).stored == 3
    assert seen == [((0, 1), ("refit_head",)), ((2,), ("refit_head",))]


def test_only_what_is_missing_under_this_protocol_is_run_in_stacks(tmp_path):
    store = stored(tmp_path, make_record("cora", "gcn", 1))
    runs = all_runs(["cora"], ["gcn", "gat"], range(4))
    for stack, splits in {
        None: [("gcn", (0, 2, 3)), ("gat", (0, 1, 2, 3))],
        2: [("gcn", (0, 2)), ("gcn", (3,)), ("gat", (0, 1)), ("gat", (2, 3))],
    }.items():
        plan = make_plan(store, PAPER, runs, stack=stack)
        assert plan.done == (Run("cora", "gcn", 1),)
        assert [(case.backbone, case.splits) for case in plan.cases] == splits
        assert plan.total == 8
    other = override(PAPER, ["backbones.hidden=64"])
    assert make_plan(store, other, runs).missing == tuple(runs)


def test_a_record_without_a_wanted_method_is_run_with_all_of_them(tmp_path):
    full = make_record("cora", "gcn", 0)
    partial = replace(full, methods={"refit_head": full.methods["refit_head"]}, oracle=None)
    store = stored(tmp_path, partial)
    runs = [Run("cora", "gcn", 0)]
    assert make_plan(store, PAPER, runs, ["refit_head"]).cases == ()
    (case,) = make_plan(store, PAPER, runs, ["reweighting"]).cases
    assert case == Case("cora", "gcn", (0,), ("refit_head", "reweighting"))
    (case,) = make_plan(store, PAPER, runs).cases
    assert case.methods == ("oracle", *USUAL)


def test_a_failing_case_is_recorded_and_the_study_goes_on(tmp_path):
    def work(shared, case, tell):
        if case.backbone == "gcn" and case.dataset == "cora":
            raise ValueError("a planted\n fault")
        return fake_case(shared, case, tell)

    log = Log()
    outcome = run_study(**GRID, store=tmp_path, work=work, watcher=log)
    assert (outcome.stored, outcome.failures) == (9, {"cora × gcn": "ValueError: a planted fault"})
    assert "a planted\n fault" in log.errors[0][1].traceback
    store = Store(tmp_path)
    plan = make_plan(store, PAPER, all_runs(**GRID))
    assert set(plan.failed) == {Run("cora", "gcn", split) for split in range(3)}
    assert set(plan.failed.values()) == {"ValueError: a planted fault"}
    assert plan.missing == ()
    again = run_study(**GRID, store=tmp_path, work=fake_case)
    assert (again.stored, again.already, again.failures) == (3, 9, {})
    assert make_plan(store, PAPER, all_runs(**GRID)).failed == {}


# Several cases at once, in processes that may fail or die.


def work(folder, task, tell):
    """1 and 2 wait for each other, 3 raises, 4 is killed, more give squares, 0 never ends."""
    tell(f"task {task}")
    Path(folder, f"{task}-{os.getpid()}").touch()
    deadline = time.monotonic() + 300
    while task == 0 or (task < 3 and len(list(Path(folder).iterdir())) < 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if task == 3:
        raise ValueError("a planted fault")
    if task == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return task * task


def test_tasks_run_side_by_side_fail_alone_and_leave_nothing_behind(tmp_path):
    """No task is given to a process that died: all behind it give what they should."""
    heard: list[tuple[int, str]] = []
    results = ProcessEngine(2).map(
        work, [1, 2, 0, 3, 4, 5, 6, 7], str(tmp_path), lambda *said: heard.append(said)
    )
    found = dict(islice(results, 7))
    squares = {task: task * task for task in (1, 2, 5, 6, 7)}
    assert {task: found.get(task) for task in squares} == squares
    assert isinstance(found[3], Failure) and found[3].error == "ValueError: a planted fault"
    assert found[4] == Failure("its process ended with exit code -9", "")
    assert {(task, f"task {task}") for task in range(1, 8)} <= set(heard)
    names = [path.name.split("-") for path in tmp_path.iterdir()]
    ran = {int(task): int(process) for task, process in names}
    assert len(names) == len(ran)  # each once
    assert ran[1] != ran[2] and ran[3] in (ran[1], ran[2]) and os.getpid() not in ran.values()
    assert multiprocessing.active_children()
    results.close()
    assert not multiprocessing.active_children()


def test_a_split_that_a_graph_of_one_s_own_lacks_is_refused_before_the_first_case(tmp_path):
    data = tiny_graph()
    last = data.train_mask.shape[1] - 1
    with pytest.raises(SplitError, match=f"split {last + 1} does not exist; mine has splits 0 to"):
        run_study({"mine": data}, ["gcn"], [last, last + 1], store=tmp_path / "store")
    assert not (tmp_path / "store").exists()
