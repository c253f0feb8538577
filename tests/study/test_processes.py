"""Several cases at once, in processes that may fail or die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from itertools import islice
from pathlib import Path

from gnn_repair.study import ProcessEngine
from gnn_repair.study.engine import Failure


def work(folder, task, tell):
    """1 and 2 wait for each other, 3 raises, 4 is killed, 5 gives its square, 0 never ends."""
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
    heard: list[tuple[int, str]] = []
    results = ProcessEngine(2).map(
        work, [1, 2, 3, 4, 5, 0], str(tmp_path), lambda *said: heard.append(said)
    )
    found = dict(islice(results, 5))
    assert {task: found.get(task) for task in (1, 2, 5)} == {1: 1, 2: 4, 5: 25}
    assert isinstance(found[3], Failure) and found[3].error == "ValueError: a planted fault"
    assert found[4] == Failure("its process ended with exit code -9", "")
    assert {(task, f"task {task}") for task in range(1, 6)} <= set(heard)
    names = [path.name.split("-") for path in tmp_path.iterdir()]
    ran = {int(task): int(process) for task, process in names}
    assert len(names) == len(ran)  # each once
    assert ran[1] != ran[2] and ran[3] in (ran[1], ran[2]) and os.getpid() not in ran.values()
    assert multiprocessing.active_children()
    results.close()
    assert not multiprocessing.active_children()
