"""``gnn-repair bench oracle``: microseconds per LP, ours beside general solvers, in one run.

Everything runs on one thread and is timed in seconds of its processor, so that other work on the
machine does not count. *Total* is what a user waits for: from the exposure to margin, λ
and w. *Call* is the solver alone, its model already built. Each figure is a mean over LPs. A peer
counts with its best repetition of each LP; ours, which solves all in one call, and the read count
with their best repetition of the whole, before, between and after the peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gnn_repair.backbones import find_backbone, train_backbone
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, Group, expose
from gnn_repair.oracle.reference_solvers import Gurobi, Highs
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.tables import Instance, Problems, Tables, instance, problems

SHAPES = ((5, 3, 1), (20, 7, 1), (100, 18, 3), (1900, 7, 1), (3000, 18, 1))
"""(K, C, B) of the synthetic instances."""
GUROBI_FREE = 2000
"""Variables that gurobipy's free licence allows."""
SECONDS = 1.5
"""How long one peer may take on one shape, about."""


@dataclass(frozen=True)
class OracleRow:
    """One shape or one real exposure; microseconds per LP, None where a peer cannot run."""

    name: str
    terms: float
    """K, the mean for a real exposure."""
    classes: int
    groups: int
    ours: float
    read: float
    """One read of the K·C doubles of an LP, the memory bound."""
    highs: float | None
    highs_call: float | None
    scipy: float | None
    gurobi: float | None
    gurobi_call: float | None
    ours_small: float | None
    """Ours on the LPs that gurobipy's free licence admits, where that leaves some out."""

    def ratio(self, peer: str) -> float | None:
        """How many times faster we are than ``peer``, totals, on the LPs the peer could solve."""
        value = getattr(self, peer)
        if value is None:
            return None
        ours = self.ours if peer != "gurobi" or self.ours_small is None else self.ours_small
        return float(value / ours)


def parse_shapes(text: str) -> list[tuple[int, int, int]]:
    """``"5:3:1,20:7:1"`` as (K, C, B) each."""
    shapes = []
    for part in filter(None, text.split(",")):
        numbers = [int(number) if number.isdigit() else 0 for number in part.strip().split(":")]
        if len(numbers) != 3 or min(numbers) < 1 or numbers[1] < 2 or numbers[2] > numbers[0]:
            raise InputError(f"{part!r} is not a shape K:C:B such as 20:7:1 with C ≥ 2 and B ≤ K")
        shapes.append((numbers[0], numbers[1], numbers[2]))
    return shapes


def parse_cases(text: str) -> list[tuple[str, str]]:
    """``"cora:gcn,squirrel:sgc"`` as (dataset, backbone) each."""
    cases = []
    for part in filter(None, text.split(",")):
        dataset, colon, backbone = part.strip().partition(":")
        if not colon:
            raise InputError(f"{part!r} is not a case such as cora:gcn")
        cases.append((dataset, backbone))
    return cases


def synthetic(terms: int, classes: int, groups: int, count: int, seed: int = 0) -> Exposure:
    """``count`` recipients with Gaussian contributions, every term a table row of its own."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    cuts = torch.arange(1, groups + 1) * terms // groups
    segments = torch.cat(
        [torch.zeros(1), (torch.arange(count).unsqueeze(1) * terms + cuts).view(-1)]
    )
    size = count * terms
    alpha = torch.rand(1, size, dtype=torch.float64, generator=generator) + 0.01
    table, fixed = normal(1, size, classes), normal(1, count, classes)
    mixed = (alpha[..., None] * table).view(1, count, terms, classes).sum(2)
    rows = torch.arange(size, dtype=torch.int32)
    return Exposure(
        groups=tuple(Group(f"group {g}", "synthetic", "random") for g in range(groups)),
        recipients=torch.arange(count),
        segments=segments.long(),
        rows=rows,
        coefficients=alpha,
        contributions=table,
        fixed_logits=fixed,
        frozen_logits=fixed + mixed,
        state=torch.zeros(1, count, 1),
        messages=torch.zeros(1, 1, 1),
        message_rows=torch.zeros(size, dtype=torch.int32),
        sources=torch.zeros(size, dtype=torch.int32),
        origin=f"synthetic {terms}, {classes}, {groups}",
    )


OracleCase = tuple[str, Exposure, torch.Tensor, torch.Tensor | None]
"""Name, exposure, target and nodes."""


def synthetic_case(terms: int, classes: int, groups: int) -> OracleCase:
    """A synthetic exposure of about six million numbers."""
    # Enough to time and to spill the caches; few enough to wait for.
    count = int(np.clip(6_000_000 // (terms * classes), 64, 4096))
    exposure = synthetic(terms, classes, groups, count)
    return f"K={terms} C={classes} B={groups}", exposure, torch.arange(count) % classes, None


def trained_case(
    dataset: str, backbone: str, root: str | None = None, splits: int = 1, epochs: int = 50
) -> OracleCase:
    """The validation and test nodes of a briefly trained model."""
    data = load_dataset(dataset, root)
    budget = replace(find_backbone(backbone).budget, epochs=epochs)
    frozen = train_backbone(backbone, data, range(splits), device="cpu", budget=budget)
    nodes = (data.val_mask | data.test_mask)[:, :splits]
    return f"{dataset} {backbone}", expose(frozen), data.y, nodes


def bench_synthetic(
    shapes: Sequence[tuple[int, int, int]] = SHAPES, repeats: int = 5
) -> Iterator[OracleRow]:
    """A row per shape."""
    for shape in shapes:
        yield bench_exposure(*synthetic_case(*shape), repeats)


def bench_real(
    cases: Sequence[tuple[str, str]],
    root: str | None = None,
    splits: int = 1,
    epochs: int = 50,
    repeats: int = 5,
) -> Iterator[OracleRow]:
    """A row per (dataset, backbone)."""
    for dataset, backbone in cases:
        yield bench_exposure(*trained_case(dataset, backbone, root, splits, epochs), repeats)


def bench_exposure(
    name: str,
    exposure: Exposure,
    target: torch.Tensor,
    nodes: torch.Tensor | None = None,
    repeats: int = 5,
) -> OracleRow:
    """Time the LPs of one exposure; general solvers see a sample of them."""
    asked = problems(exposure, target, nodes)
    tables = Tables.of(exposure)
    solve_oracle(exposure, target, nodes, threads=1)  # compiles, or loads what was compiled
    seconds = list[tuple[float, float]]()

    def time_ours() -> None:
        ours = _best(lambda: solve_oracle(exposure, target, nodes, threads=1), repeats)
        seconds.append((ours / len(asked), _read_time(tables, asked, repeats)))

    sample = np.random.default_rng(0).permutation(len(asked))[:200]
    chosen = Problems(asked.member[sample], asked.position[sample], asked.target[sample])
    time_ours()
    gurobi, gurobi_call = _gurobi(tables, chosen, repeats)
    time_ours()
    highs, highs_call = _highs(tables, chosen, repeats)
    time_ours()
    scipy = _scipy(tables, chosen, repeats)
    time_ours()
    ours, read = (min(times) for times in zip(*seconds, strict=True))
    return OracleRow(
        name=name,
        terms=float(tables.counts(asked.position).mean()),
        classes=exposure.num_classes,
        groups=exposure.num_groups,
        ours=1e6 * ours,
        read=1e6 * read,
        highs=highs,
        highs_call=highs_call,
        scipy=scipy,
        gurobi=gurobi,
        gurobi_call=gurobi_call,
        ours_small=_ours_small(exposure, tables, target, asked, repeats),
    )


def _ours_small(
    exposure: Exposure, tables: Tables, target: torch.Tensor, asked: Problems, repeats: int
) -> float | None:
    """Ours, timed after the peers, on the first member's LPs with fewer than GUROBI_FREE terms."""
    small = tables.counts(asked.position) < GUROBI_FREE
    if small.all() or not small.any():
        return None
    nodes = torch.from_numpy(tables.nodes[np.unique(asked.position[small])])
    first = exposure.member(0)
    seconds = _best(lambda: solve_oracle(first, target, nodes, threads=1), repeats)
    return 1e6 * seconds / len(nodes)


def _best(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of ``repeats`` runs."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def _read_time(tables: Tables, asked: Problems, repeats: int) -> float:
    """Seconds to read an LP's K·C doubles once: the sum over a contiguous array of all of them."""
    counts = tables.counts(asked.position)
    width = min(int(counts.sum()), 1 << 21)  # beyond any cache, and no more memory than needed
    numbers = np.ones(width * tables.num_classes)
    return _best(numbers.sum, repeats) * float(counts.mean()) / width


def _each(
    tables: Tables, asked: Problems, repeats: int, solve: Callable[[Instance], tuple[float, float]]
) -> tuple[float, float]:
    """Mean microseconds (total, call) of ``solve`` over LPs, within a time budget."""
    totals, calls = [], []
    begin = time.process_time()
    for member, position, target in zip(asked.member, asked.position, asked.target, strict=True):
        runs = []
        for _ in range(repeats):
            start = time.process_time()
            problem = instance(tables, int(member), int(position), int(target))
            built, called = solve(problem)
            runs.append((built - start + called, called))
        totals.append(min(run[0] for run in runs))
        calls.append(min(run[1] for run in runs))
        if time.process_time() - begin > SECONDS and len(totals) >= 10:
            break
    return 1e6 * float(np.mean(totals)), 1e6 * float(np.mean(calls))


def _highs(
    tables: Tables, asked: Problems, repeats: int
) -> tuple[float, float] | tuple[None, None]:
    try:
        highs = Highs(tolerance=1e-7)  # highspy's own: the fastest it offers
    except ImportError:
        return None, None

    def solve(problem: Instance) -> tuple[float, float]:
        highs.load(problem)
        built = time.process_time()
        highs.run()
        highs.read()
        return built, time.process_time() - built

    return _each(tables, asked, repeats, solve)


def _gurobi(
    tables: Tables, asked: Problems, repeats: int
) -> tuple[float, float] | tuple[None, None]:
    try:
        gurobi = Gurobi()
    except InputError:
        return None, None
    small = tables.counts(asked.position) < GUROBI_FREE
    if small.mean() < 0.5:
        return None, None
    fitting = Problems(asked.member[small], asked.position[small], asked.target[small])

    def solve(problem: Instance) -> tuple[float, float]:
        model, shares, rows = gurobi.load(problem)
        model.update()
        built = time.process_time()
        model.optimize()
        _ = shares.X, rows.Pi
        called = time.process_time() - built
        model.dispose()
        return built, called

    return _each(tables, fitting, repeats, solve)


def _scipy(tables: Tables, asked: Problems, repeats: int) -> float:
    from scipy.optimize import linprog

    def solve(problem: Instance) -> tuple[float, float]:
        begin = time.process_time()
        count, rivals = problem.gaps.shape
        margins = np.concatenate([-problem.columns.T, np.ones((rivals, 1))], axis=1)
        masses = np.zeros((len(problem.mass), count + 1))
        masses[problem.group, np.arange(count)] = 1.0
        cost, bounds = np.zeros(count + 1), [(0, None)] * count + [(None, None)]
        cost[-1] = -1.0
        ones = np.ones(len(problem.mass))
        linprog(cost, margins, problem.fixed, masses, ones, bounds, method="highs-ds")
        return begin, time.process_time() - begin

    return _each(tables, asked, repeats, solve)[0]


def rows_for_print(measured: Sequence[OracleRow]) -> list[dict[str, Any]]:
    """What the command prints, one mapping per row."""
    return [
        {
            "LPs": row.name,
            "K": round(row.terms, 1),
            "ours": round(row.ours, 2),
            "one read": round(row.read, 2),
            "highspy": _rounded(row.highs),
            "(call)": _rounded(row.highs_call),
            "gurobipy": _rounded(row.gurobi),
            "(call) ": _rounded(row.gurobi_call),
            "scipy": _rounded(row.scipy),
            "highspy / ours": _rounded(row.ratio("highs")),
            "gurobipy / ours": _rounded(row.ratio("gurobi")),
            "ours / read": round(row.ours / row.read, 1),
        }
        for row in measured
    ]


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
