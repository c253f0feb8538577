"""The same questions given to general solvers: triangle relaxations as LPs, tails as MILPs.

For tails of one layer of ReLUs, x = relu(y) with y linear in the shares of a node's terms: unstable
units are variables, the others linear. Models are handed over as arrays and solver objects are
reused, the fastest way each offers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnn_repair.exposure.tails.operations import Activation
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.highs import by_columns, new_highs, pass_lp
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.base import Base, base_of
from gnn_repair.oracle.tails.lines import NONLINEAR

MILPS, SECONDS = 10, 5.0
"""A MILP takes up to seconds, so few are asked, and each gives up after so many."""
LP, MILP, GUROBI, EXCLUDED = (
    "highspy LP (ms)",
    "highspy MILP (ms)",
    "gurobipy LP (ms)",
    "LP excludes (%)",
)


@dataclass(frozen=True)
class TriangleModel:
    """max γ as rows: low ≤ A z ≤ high with z = (shares, x of unstable units, γ)."""

    matrix: Floats
    low: Floats
    high: Floats
    upper: Floats
    """[columns]: x ≤ u; shares ≤ 1."""
    units: tuple[Floats, Floats]
    """l and u of the unstable units."""


def peer_figures(
    exposure: TailedExposure, position: Integers, target: Integers, sample: int
) -> dict[str, float | None]:
    """Milliseconds a question of each peer, where it applies."""
    figures: dict[str, float | None] = dict.fromkeys((LP, EXCLUDED, MILP, GUROBI))
    base = base_of(exposure, position)
    numbers = [k for k, op in enumerate(base.graph.operations) if isinstance(op, NONLINEAR)]
    operation = base.graph.operations[numbers[0]] if len(numbers) == 1 else None
    plain = isinstance(operation, Activation) and operation.name == "relu"
    if not plain or operation is None or operation.inputs != (0,) or not sample:
        return figures
    chosen = np.random.default_rng(0).permutation(len(position))[:sample]
    pairs = [(int(position[i]), int(target[i])) for i in chosen]
    figures[LP], excluded = _highs(base, pairs, numbers[0])
    figures[EXCLUDED] = 100 * excluded
    figures[MILP], _ = _highs(base, pairs[:MILPS], numbers[0], exact=True)
    figures[GUROBI] = _gurobi(base, pairs, numbers[0])
    return figures


def _head(base: Base, position: int, number: int) -> tuple[Floats, Floats]:
    """V [C, D] and what is fixed [C] in the logits after the units: linear, so two evaluations."""
    import torch

    rest = base.graph.operations[number + 1 :]
    nodes = torch.from_numpy(base.nodes[position : position + 1]).expand(base.width + 1)
    points = torch.cat([torch.zeros(1, base.width), torch.eye(base.width)]).double()
    values = [points * 0.0]
    for operation in base.graph.operations[:number]:
        values.append(operation.evaluate([values[i] for i in operation.inputs], nodes))
    values.append(points)
    for operation in rest:
        values.append(operation.evaluate([values[i] for i in operation.inputs], nodes))
    logits = values[-1].numpy()
    return (logits[1:] - logits[0]).T, logits[0]


def triangle_model(base: Base, position: int, target: int, number: int) -> TriangleModel:
    """The rows of one question."""
    ends, groups = base.ends[position], base.mass.shape[1]
    owner = np.repeat(np.arange(groups), np.diff(ends))
    vertices = base.table[base.rows[ends[0] : ends[-1]]] * base.mass[position, owner][:, None]
    low, high, fixed = base.low[position], base.high[position], base.fixed[position]
    heads, constant = _head(base, position, number)
    gaps = np.delete(heads[target] - heads, target, axis=0)
    offset = np.delete(constant[target] - constant, target)
    on, open_ = low >= 0, (low < 0) & (high > 0)
    terms, units, rivals = len(vertices), int(open_.sum()), len(gaps)
    y, o, below, above = vertices[:, open_].T, fixed[open_], low[open_], high[open_]
    slope = above / (above - below)
    matrix = np.zeros((rivals + groups + 2 * units, terms + units + 1))
    matrix[:rivals, :terms] = gaps[:, on] @ vertices[:, on].T
    matrix[:rivals, terms:-1] = gaps[:, open_]
    matrix[:rivals, -1] = -1.0
    matrix[rivals + owner, np.arange(terms)] = 1.0
    first = rivals + groups
    matrix[first : first + units, :terms] = -y
    matrix[first + units :, :terms] = -slope[:, None] * y
    for block in (first, first + units):
        matrix[block + np.arange(units), terms + np.arange(units)] = 1.0
    infinite = np.full(max(rivals, units), np.inf)
    present = (np.diff(ends) > 0).astype(float)
    low_rows = [-offset - gaps[:, on] @ fixed[on], present, o, -infinite[:units]]
    high_rows = [infinite[:rivals], present, infinite[:units], slope * (o - below)]
    upper = np.concatenate([np.ones(terms), above, [np.inf]])
    return TriangleModel(
        matrix, np.concatenate(low_rows), np.concatenate(high_rows), upper, (below, above)
    )


def _with_signs(model: TriangleModel) -> TriangleModel:
    """The MILP: a binary for each unstable unit, x ≤ u b and x ≤ y − l (1 − b)."""
    low, high = model.units
    units, (rows, columns) = len(low), model.matrix.shape
    matrix = np.zeros((rows + units, columns + units))
    matrix[:rows, :columns] = model.matrix
    terms, first = columns - 1 - units, rows - 2 * units
    chord = slice(rows - units, rows)  # becomes x − y − l b ≤ −l + o, from the row x − y ≥ o
    matrix[chord, :columns] = model.matrix[first : first + units]
    place = np.arange(units)
    matrix[rows - units + place, columns + place] = -low
    matrix[rows + place, terms + place] = 1.0
    matrix[rows + place, columns + place] = -high
    tops = model.high.copy()
    tops[chord] = model.low[first : first + units] - low
    infinite = np.full(units, -np.inf)
    return TriangleModel(
        matrix, np.concatenate([model.low, infinite]), np.concatenate([tops, np.zeros(units)]),
        np.concatenate([model.upper, np.ones(units)]), model.units,
    )  # fmt: skip


def _highs(
    base: Base, pairs: list[tuple[int, int]], number: int, exact: bool = False
) -> tuple[float, float]:
    """Milliseconds a question with highspy, model included, and the share with γ ≤ 0."""
    highs = new_highs(1e-7)  # highspy's own tolerance: the fastest it offers
    if exact:
        highs.setOptionValue("presolve", "on")
        highs.setOptionValue("solver", "choose")
        highs.setOptionValue("time_limit", SECONDS)
    begin, excluded = time.process_time(), 0
    for position, target in pairs:
        model = triangle_model(base, position, target, number)
        found = run_highs(highs, model, exact)
        excluded += found <= 0
    return 1e3 * (time.process_time() - begin) / len(pairs), excluded / len(pairs)


def run_highs(highs: Any, model: TriangleModel, exact: bool) -> float:
    """The largest γ: of the relaxation, or of the tail itself."""
    gamma = len(model.upper) - 1
    if exact:
        model = _with_signs(model)
    columns = model.matrix.shape[1]
    cost, lower, whole = np.zeros(columns), np.zeros(columns), np.zeros(columns, np.int32)
    cost[gamma], lower[gamma] = -1.0, -np.inf
    whole[gamma + 1 :] = 1
    highs.clearModel()
    matrix = by_columns(model.matrix)
    pass_lp(highs, cost, lower, model.upper, model.low, model.high, matrix, whole)
    highs.run()
    info = highs.getInfo()
    # A MILP that ran out of time still bounds γ from above.
    return -float(info.mip_dual_bound if exact else info.objective_function_value)


def _gurobi(base: Base, pairs: list[tuple[int, int]], number: int) -> float | None:
    """Milliseconds a question with gurobipy's dual simplex, model included."""
    try:
        import gurobipy
    except ImportError:
        return None
    environment = gurobipy.Env(params={"OutputFlag": 0, "Threads": 1, "Method": 1})
    begin = time.process_time()
    for position, target in pairs:
        rows = triangle_model(base, position, target, number)
        model = gurobipy.Model(env=environment)
        low = np.zeros(len(rows.upper))
        low[-1] = -gurobipy.GRB.INFINITY
        cost = np.zeros(len(low))
        cost[-1] = -1.0
        z = model.addMVar(len(low), lb=low, ub=rows.upper, obj=cost)
        for sense, side in ((">", rows.low), ("<", rows.high)):
            kept = np.isfinite(side)
            model.addMConstr(rows.matrix[kept], z, sense, side[kept])
        model.optimize()
    return 1e3 * (time.process_time() - begin) / len(pairs)
