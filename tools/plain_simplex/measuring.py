"""Two processes that solve the same LPs in turns."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

Row = tuple[str, int, float, float, float]
"""Name, LPs, microseconds an LP vectorised and plain, largest difference of margins."""


def subjects(shapes: str, cases: str, root: str | None) -> Iterator[Any]:
    """(name, exposure, target, nodes) of every shape and case; the same in every process."""
    import torch

    from benchmarks.oracle import parse_cases, parse_shapes, synthetic_case, trained_case

    torch.set_num_threads(1)
    for shape in parse_shapes(shapes):
        yield synthetic_case(*shape)
    for dataset, backbone in parse_cases(cases):
        yield trained_case(dataset, backbone, root)


def work(link: Connection, plain: bool, asked: Sequence[Any]) -> None:
    """A process that solves everything once whenever it is told to."""
    with tempfile.TemporaryDirectory() as folder:
        if plain:
            # Kernels on disk are named after the package's sources, and these are others.
            os.environ["NUMBA_CACHE_DIR"] = folder
            from tools.plain_simplex import install

            install()
        from gnn_repair.oracle.solver import solve

        for name, *case in subjects(*asked):
            solve(*case, threads=1)
            link.send(name)
            while link.recv():
                begin = time.process_time()
                solution = solve(*case, threads=1)
                link.send((time.process_time() - begin, solution.margin))
        link.send(None)


def measure(asked: Sequence[Any], rounds: int) -> Iterator[Row]:
    """A Row for every subject."""
    context = multiprocessing.get_context("spawn")
    links = []
    for plain in (False, True):
        here, there = context.Pipe()
        context.Process(target=work, args=(there, plain, asked), daemon=True).start()
        links.append(here)
    while (names := [link.recv() for link in links])[0] is not None:
        seconds, margins = [np.inf, np.inf], list[Any]([None, None])
        for _ in range(rounds):
            for i, link in enumerate(links):
                link.send(True)
                spent, margins[i] = link.recv()
                seconds[i] = min(seconds[i], spent)
        for link in links:
            link.send(False)
        off = float(np.nanmax(np.abs(margins[0] - margins[1]), initial=0.0))
        each = [1e6 * spent / len(margins[0]) for spent in seconds]
        yield names[0], len(margins[0]), each[0], each[1], off
