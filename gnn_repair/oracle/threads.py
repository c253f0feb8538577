"""Work on many things in threads, one solver object (or room to work in) per thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


def over_lps(
    count: int,
    solve: Callable[[int, Any], Result],
    make: Callable[[], Any],
    threads: int | None = None,
) -> list[Result]:
    """[solve(i, make()) for i in range(count)], but ``make`` is called once per thread only."""
    workers = max(1, min(threads or os.cpu_count() or 1, count))
    solvers: SimpleQueue[Any] = SimpleQueue()
    for _ in range(workers):
        solvers.put(make())

    def work(index: int) -> Result:
        solver = solvers.get()
        try:
            return solve(index, solver)
        finally:
            solvers.put(solver)

    if workers == 1:
        return [work(index) for index in range(count)]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(count)))
