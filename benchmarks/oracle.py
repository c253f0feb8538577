"""The oracle: microseconds per LP beside general solvers in one run; labels in closed form.

Everything runs on one thread and is timed in seconds of its processor, so that other work on the
machine does not count. *Total* is what a user waits for: from the exposure to margin, λ
and w. *Call* is the solver alone, its model already built. Each figure is a mean over LPs. A peer
counts with its best repetition of each LP; ours, which solves all in one call, and the read count
with their best repetition of the whole, before, between and after the peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnn_repair.backbones import find_backbone, train_backbone
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, Group, expose
from gnn_repair.exposure.pieces import mixture_of
from gnn_repair.kernels import Pattern
from gnn_repair.oracle import solve
from gnn_repair.oracle.fallback import Highs
from gnn_repair.oracle.problems import Floats, Instance, Problems, Tables, build_lp, pose_problems

GUROBI_FREE = 2000
"""Variables that gurobipy's free licence allows."""
SECONDS = 1.5
"""How long one peer may take on one shape, about."""


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


def bench_oracle(
    shapes: Iterable[tuple[int, int, int]],
    cases: Iterable[tuple[str, str]],
    root: str | None = None,
    splits: int = 1,
    epochs: int = 50,
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """A row per shape (K, C, B) and per (dataset, backbone)."""
    return [
        *(bench_exposure(*synthetic_case(*shape), repeats) for shape in shapes),
        *(bench_exposure(*trained_case(*case, root, splits, epochs), repeats) for case in cases),
    ]


def bench_exposure(
    name: str,
    exposure: Exposure,
    target: torch.Tensor,
    nodes: torch.Tensor | None = None,
    repeats: int = 5,
) -> dict[str, Any]:
    """Time the LPs of one exposure; general solvers see a sample of them.

    A peer that cannot run has no figures, and a ratio is over the LPs that the peer could solve.
    *One read* is that of the K·C doubles of an LP, the memory bound.
    """
    asked = pose_problems(exposure, target, nodes)
    tables = Tables.from_exposure(exposure)
    solve(exposure, target, nodes, threads=1)  # compiles, or loads what was compiled
    seconds = list[tuple[float, float]]()

    def time_ours() -> None:
        ours = _best(lambda: solve(exposure, target, nodes, threads=1), repeats)
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
    small = _ours_small(exposure, tables, target, asked, repeats)
    return {
        "LPs": name,
        "K": round(float(tables.counts(asked.position).mean()), 1),
        "ours": round(1e6 * ours, 2),
        "one read": round(1e6 * read, 2),
        "highspy": _rounded(highs),
        "(call)": _rounded(highs_call),
        "gurobipy": _rounded(gurobi),
        "(call) ": _rounded(gurobi_call),
        "scipy": _rounded(scipy),
        "highspy / ours": _rounded(highs, 1e6 * ours),
        "gurobipy / ours": _rounded(gurobi, small or 1e6 * ours),
        "ours / read": round(ours / read, 1),
    }


def _ours_small(
    exposure: Exposure, tables: Tables, target: torch.Tensor, asked: Problems, repeats: int
) -> float | None:
    """Ours, timed after the peers, on the first member's LPs with fewer than GUROBI_FREE terms."""
    small = tables.counts(asked.position) < GUROBI_FREE
    if small.all() or not small.any():
        return None
    nodes = torch.from_numpy(tables.nodes[np.unique(asked.position[small])])
    first = exposure.member(0)
    seconds = _best(lambda: solve(first, target, nodes, threads=1), repeats)
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
            problem = build_lp(tables, int(member), int(position), int(target))
            built, called = solve(problem)
            runs.append((built - start + called, called))
        totals.append(min(run[0] for run in runs))
        calls.append(min(run[1] for run in runs))
        if time.process_time() - begin > SECONDS and len(totals) >= 10:
            break
    return 1e6 * float(np.mean(totals)), 1e6 * float(np.mean(calls))


def _highs(tables: Tables, asked: Problems, repeats: int) -> tuple[float, float]:
    highs = Highs(tolerance=1e-7)  # highspy's own: the fastest it offers

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
        import gurobipy
    except ImportError:
        return None, None
    # The paper's settings.
    environment = gurobipy.Env(params={"OutputFlag": 0, "Threads": 1, "Method": 1, "Presolve": 0})
    small = tables.counts(asked.position) < GUROBI_FREE
    if small.mean() < 0.5:
        return None, None
    fitting = Problems(asked.member[small], asked.position[small], asked.target[small])

    def solve(problem: Instance) -> tuple[float, float]:
        count, rivals, groups = len(problem.terms), len(problem.rivals), len(problem.mass)
        matrix = np.zeros((rivals + groups, count + 1))
        matrix[:rivals, :count] = -problem.columns.T
        matrix[:rivals, count] = 1.0
        matrix[rivals + problem.group, np.arange(count)] = 1.0
        lower, cost = np.zeros(count + 1), np.zeros(count + 1)
        lower[-1], cost[-1] = -gurobipy.GRB.INFINITY, 1.0
        model = gurobipy.Model(env=environment)
        model.ModelSense = gurobipy.GRB.MAXIMIZE
        shares = model.addMVar(count + 1, lb=lower, obj=cost)
        ends = np.concatenate([problem.fixed, np.ones(groups)])
        senses = np.array(["<"] * rivals + ["="] * groups)
        rows = model.addMConstr(matrix, shares, senses, ends)
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


def _rounded(value: float | None, unit: float = 1.0) -> int | None:
    return None if value is None else round(value / unit)


def bench_labels(
    nodes: int = 5_000, labels: int = 121, neighbours: int = 28, heads: int = 2
) -> dict[str, Any]:
    """Solve every pair of a random exposure of about PPI's shape."""
    exposure = _random(nodes, labels, neighbours, heads)
    y = torch.rand(nodes, labels, generator=torch.Generator().manual_seed(1)) > 0.5
    solve(exposure, y, torch.arange(2), threads=1)  # compiled before the clock starts
    begin = time.process_time()
    solution = solve(exposure, y, threads=1)
    seconds = time.process_time() - begin
    part = solution[: 100 * labels]
    begin = time.process_time()
    assert part.check(exposure).ok
    checking = time.process_time() - begin
    simplex, difference = _beside(exposure, y, solution.margin.reshape(nodes, labels)[:, 0])
    return {
        "nodes": nodes,
        "labels": labels,
        "terms": exposure.num_terms,
        "pairs a CPU second": round(len(solution) / seconds),  # one thread, like the next two
        "simplex": round(simplex),  # on the two classes (0, z_k) of one label
        "certificates": round(len(part) / checking),
        "largest difference": float(f"{difference:.1e}"),
    }


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
    solve(two, y[:, 0].long(), torch.arange(2), threads=1)
    begin = time.process_time()
    solution = solve(two, y[:, 0].long(), threads=1)
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
