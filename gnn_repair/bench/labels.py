"""Pairs of node and label answered a second, beside the simplex on the same questions."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from gnn_repair.exposure import Exposure, Group
from gnn_repair.exposure.terms import mixture_of
from gnn_repair.kernels import Pattern
from gnn_repair.oracle import solve_labels, solve_oracle
from gnn_repair.oracle.tables import Floats


@dataclass(frozen=True)
class LabelsRow:
    """One measured exposure."""

    nodes: int
    labels: int
    terms: int
    pairs_per_second: float
    """Closed form, one thread, processor time."""
    simplex_per_second: float
    """The exact-mass simplex on the two classes (0, z_k) of one label, likewise."""
    check_per_second: float
    """Certificates verified."""
    difference: float
    """Largest |margin − margin| between the two."""


def bench_labels(
    nodes: int = 5_000, labels: int = 121, neighbours: int = 28, heads: int = 2
) -> LabelsRow:
    """Solve every pair of a random exposure of about PPI's shape."""
    exposure = _random(nodes, labels, neighbours, heads)
    y = torch.rand(nodes, labels, generator=torch.Generator().manual_seed(1)) > 0.5
    solve_labels(exposure, y, torch.arange(2), threads=1)  # compiled before the clock starts
    begin = time.process_time()
    solution = solve_labels(exposure, y, threads=1)
    seconds = time.process_time() - begin
    part = solution[: 100 * labels]
    begin = time.process_time()
    assert part.check(exposure).ok
    checking = time.process_time() - begin
    simplex, difference = _beside(exposure, y, solution.margin.reshape(nodes, labels)[:, 0])
    return LabelsRow(
        nodes,
        labels,
        exposure.num_terms,
        len(solution) / seconds,
        simplex,
        len(part) / checking,
        difference,
    )


def _beside(exposure: Exposure, y: torch.Tensor, margin: Floats) -> tuple[float, float]:
    """The simplex's LPs a second on label 0, and how far its margins are from these."""

    def against_zero(values: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(values[..., :1]), values[..., :1]], dim=-1)

    two = replace(
        exposure,
        outputs="classes",
        contributions=against_zero(exposure.contributions),
        fixed_logits=against_zero(exposure.fixed_logits),
        frozen_logits=against_zero(exposure.frozen_logits),
    )
    solve_oracle(two, y[:, 0].long(), torch.arange(2), threads=1)
    begin = time.process_time()
    solution = solve_oracle(two, y[:, 0].long(), threads=1)
    seconds = time.process_time() - begin
    return len(solution) / seconds, float(np.abs(solution.margin - margin).max())


def _random(nodes: int, labels: int, neighbours: int, heads: int) -> Exposure:
    draw = torch.Generator().manual_seed(0)
    terms = nodes * heads * neighbours
    segments = torch.arange(nodes * heads + 1) * neighbours
    rows = torch.randint(nodes * heads, (terms,), generator=draw).int()
    alpha = torch.rand(1, terms, generator=draw, dtype=torch.float64) / neighbours
    table = torch.randn(1, nodes * heads, labels, generator=draw, dtype=torch.float64)
    mixed = mixture_of(Pattern(segments[::heads], rows, nodes * heads), alpha, table)
    fixed = torch.randn(1, nodes, labels, generator=draw, dtype=torch.float64) - 1
    return Exposure(
        groups=tuple(Group(f"head {h}", "random", "random") for h in range(heads)),
        recipients=torch.arange(nodes),
        segments=segments,
        rows=rows,
        coefficients=alpha,
        contributions=table,
        fixed_logits=fixed,
        frozen_logits=fixed + mixed,
        state=torch.zeros(1, nodes, 1, dtype=torch.float64),
        messages=torch.zeros(1, nodes * heads, 1, dtype=torch.float64),
        message_rows=torch.arange(nodes * heads, dtype=torch.int32),
        sources=(torch.arange(nodes * heads) % nodes).int(),
        outputs="labels",
    )
