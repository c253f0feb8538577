"""Several cases at once, in processes that may fail or die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

from gnn_repair.study import ProcessEngine
from gnn_repair.study.engine import Failure


def meet(folder, task, tell):
    """Wait until another task is running too."""
    tell(f"task {task}")
    Path(folder, f"{task}-{os.getpid()}").touch()
    deadline = time.monotonic() + 300
    while len(list(Path(folder).iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return task * task


def fragile(shared, task, tell):
    """Task 1 raises, task 2 is killed, the others give their square."""
    if task == 1:
        raise ValueError("a planted fault")
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task * task


def endless(shared, task, tell):
    while task:
        time.sleep(0.01)
    return task


def test_tasks_run_at_the_same_time_and_each_once(tmp_path):
    """Neither of two tasks ends before both have begun; the third reuses a process."""
    heard = []
    found = ProcessEngine(2).map(meet, [1, 2, 3], str(tmp_path), lambda *said: heard.append(said))
    assert sorted(found) == [(1, 1), (2, 4), (3, 9)]
    assert sorted(heard) == [(k, f"task {k}") for k in (1, 2, 3)]
    processes = {path.name.split("-")[1] for path in tmp_path.iterdir()}
    assert len(processes) == 2
    assert str(os.getpid()) not in processes


def test_an_error_and_a_death_are_failures_of_their_own_task():
    found = dict(ProcessEngine(2).map(fragile, range(5)))
    assert {task: found[task] for task in (0, 3, 4)} == {0: 0, 3: 9, 4: 16}
    assert isinstance(found[1], Failure)
    assert found[1].error == "ValueError: a planted fault"
    assert found[2] == Failure("its process ended with exit code -9", "")


def test_nothing_is_left_behind_when_nobody_listens_any_more():
    results = ProcessEngine(2).map(endless, [0, 1])
    assert next(results) == (0, 0)
    assert multiprocessing.active_children()
    results.close()
    assert not multiprocessing.active_children()
