"""Questions about heads given to general solvers: what they take, and whether verdicts agree.

:class:`Program` writes every value of a head as a linear function of variables: a node's shares,
the outputs of its unstable ReLUs (with a binary each) and, where the head was multiplied through by
a length σ, σ between its interpolation at the vertices and tangents. Without σ the program *is* the
question. With σ it is a relaxation: its value excludes, and its shares, put into the head, may win.

:class:`TriangleModel` is for timing: heads of one layer of ReLUs, x = relu(y) with y linear in the
shares of a node's terms, as an LP (the triangle relaxation) or as a MILP. Unstable units are
variables, the others linear. Models are handed over as arrays and solver objects are reused, the
fastest way each offers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnn_repair.exposure.heads.operations import (
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    Curved,
    LoweredHead,
    Operation,
    Root,
    Scale,
    Select,
    lower,
)
from gnn_repair.exposure.value import Exposure
from gnn_repair.highs import new_highs, pass_lp
from gnn_repair.oracle.heads.bound import Base, base_of
from gnn_repair.oracle.problems import Floats, Integers
from gnn_repair.oracle.solution import Solution

TANGENTS = 40
"""Mixtures at which σ gets a tangent, besides the vertices; HiGHS needs seconds with many more."""
NEAR = 1e-4
"""Values closer to zero than this tell nothing: HiGHS is exact to 1e-6 of numbers up to a
hundred."""


class Program:
    """max γ over the shares of one node, as rows low ≤ A z ≤ high and bounds of z."""

    def __init__(
        self, exposure: Exposure, lowered: LoweredHead, position: int, target: int
    ) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[int] = []
        self.rows: list[tuple[Floats, float, float]] = []
        self.groups: list[Integers] = []
        self.node = int(exposure.aggregate.recipients[position])
        self.mixture = self._mixture(exposure, position)
        values = [self.mixture]
        for operation in lowered.graph.operations:
            values.append(self._apply(operation, [values[i] for i in operation.inputs]))
        gamma = self._variable(-1e6, 1e6)
        matrix, offset = self._padded(values[-1])
        for rival in range(len(offset)):
            if rival != target:
                row = matrix[target] - matrix[rival]
                row[gamma] = -1.0
                self.rows.append((row, offset[rival] - offset[target], np.inf))
        self.gamma = gamma

    def _variable(self, low: float, high: float, whole: int = 0) -> int:
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.low) - 1

    def _mixture(self, exposure: Exposure, position: int) -> tuple[Floats, Floats]:
        aggregate, columns = exposure.aggregate, list[Floats]()
        for g in range(aggregate.num_groups):
            place = position * aggregate.num_groups + g
            first, last = int(aggregate.segments[place]), int(aggregate.segments[place + 1])
            mass = float(aggregate.mass[0, position, g])
            rows = aggregate.rows[first:last].long()
            columns += list(mass * aggregate.contributions[0, rows].double().numpy())
            shares = np.array([self._variable(0.0, 1.0) for _ in range(first, last)], np.int64)
            if len(shares):
                self.groups.append(shares)
        for shares in self.groups:
            row = np.zeros(len(self.low))
            row[shares] = 1.0
            self.rows.append((row, 1.0, 1.0))
        fixed = aggregate.fixed_logits[0, self.node].double().numpy()
        return np.array(columns).reshape(-1, len(fixed)).T.copy(), fixed

    def _padded(self, value: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        matrix, offset = value
        return np.pad(matrix, ((0, 0), (0, len(self.low) - matrix.shape[1]))), offset

    def _apply(self, op: Operation, inputs: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        padded = [self._padded(value) for value in inputs]
        if isinstance(op, Constant):
            value = self._at(op.value)
            return np.zeros((len(value), len(self.low))), value
        matrix, offset = padded[0]
        if isinstance(op, Affine):
            weight = op.weight.numpy()
            return weight @ matrix, weight @ offset + self._at(op.bias)
        if isinstance(op, Scale):
            factor = self._at(op.factor)
            return factor[:, None] * matrix, factor * offset + self._at(op.shift)
        if isinstance(op, Select):
            index = op.index.numpy()
            return matrix[index], offset[index]
        if isinstance(op, Add):
            pairs = list(zip(op.factors, padded, strict=True))
            return (
                np.sum([f * m for f, (m, _) in pairs], axis=0),
                np.sum([f * o for f, (_, o) in pairs], axis=0),
            )
        if isinstance(op, Concatenate):
            return np.concatenate([m for m, _ in padded]), np.concatenate([o for _, o in padded])
        if isinstance(op, Root):
            return self._root(op, matrix, offset)
        assert isinstance(op, Activation) and op.name == "relu", op.title
        return self._relu(matrix, offset)

    def _at(self, constant: torch.Tensor) -> Floats:
        return np.asarray((constant if constant.dim() == 1 else constant[self.node]).numpy())

    def largest(self, matrix: Floats, offset: Floats) -> Floats:
        """What rows can be at most: one share a group is 1, other variables at their ends."""
        total, rest = offset.copy(), np.ones(matrix.shape[1], bool)
        for shares in self.groups:
            total += matrix[:, shares].max(1)
            rest[shares] = False
        low, high = np.array(self.low)[rest], np.array(self.high)[rest]
        others = matrix[:, rest]
        return np.asarray(total + np.maximum(others, 0) @ high + np.minimum(others, 0) @ low)

    def _relu(self, matrix: Floats, offset: Floats) -> tuple[Floats, Floats]:
        low, high = -self.largest(-matrix, -offset), self.largest(matrix, offset)
        keep = low >= 0
        made, constant = np.where(keep[:, None], matrix, 0.0), np.where(keep, offset, 0.0)
        places = []
        for unit in np.flatnonzero((low < 0) & (high > 0)):
            x, on = self._variable(0.0, float(high[unit])), self._variable(0.0, 1.0, 1)
            row = np.zeros(len(self.low))
            row[: matrix.shape[1]], row[x] = -matrix[unit], 1.0
            self.rows.append((row.copy(), offset[unit], np.inf))  # x ≥ y
            row[on] = -low[unit]
            self.rows.append((row, -np.inf, offset[unit] - low[unit]))  # x ≤ y − l (1 − on)
            cap = np.zeros(len(self.low))
            cap[x], cap[on] = 1.0, -high[unit]
            self.rows.append((cap, -np.inf, 0.0))
            places.append((unit, x))
        made = np.pad(made, ((0, 0), (0, len(self.low) - made.shape[1])))
        for unit, x in places:
            made[unit, x] = 1.0
        return made, constant

    def _root(self, op: Root, matrix: Floats, offset: Floats) -> tuple[Floats, Floats]:
        """σ of one part: at most its interpolation between vertices, at least its tangents."""
        (shares,), width = self.groups, matrix.shape[1]
        corners = (matrix[:, shares] + offset[:, None]).T
        random = np.random.default_rng(0).dirichlet(np.ones(len(corners)), TANGENTS)
        lengths = np.maximum(np.sqrt((corners**2).sum(1) + op.offset), op.floor)
        sigma = self._variable(0.0, float(lengths.max()))
        chord = np.zeros(width + 1)
        chord[shares], chord[sigma] = -lengths, 1.0
        self.rows.append((chord, -np.inf, 0.0))
        for point in (*corners, *(random @ corners)):
            length = np.sqrt(point @ point + op.offset)
            row = np.append(-(point @ matrix) / length, 1.0)
            self.rows.append((row, (point @ (offset - point)) / length + length, np.inf))
        made = np.zeros((1, width + 1))
        made[0, sigma] = 1.0
        return made, np.zeros(1)

    def solve(self, highs: Any) -> tuple[float, Floats, bool]:
        """γ's bound, the best shares found, and whether HiGHS came to the end."""
        count = len(self.low)
        matrix = np.array([np.pad(row, (0, count - len(row))) for row, *_ in self.rows])
        cost = np.zeros(count)
        cost[self.gamma] = -1.0
        low_rows, high_rows = (np.array([row[k] for row in self.rows]) for k in (1, 2))
        highs.clearModel()
        pass_lp(
            highs, cost, np.array(self.low), np.array(self.high), low_rows, high_rows,
            matrix, np.array(self.whole, np.int32),
        )  # fmt: skip
        highs.run()
        ended = highs.modelStatusToString(highs.getModelStatus()) == "Optimal"
        found = np.array(highs.getSolution().col_value)
        # Without an unstable unit there is nothing to branch on: HiGHS then solves an LP.
        info = highs.getInfo()
        bound = info.mip_dual_bound if any(self.whole) else info.objective_function_value
        return -float(bound), np.clip(found, 0.0, 1.0), ended


@dataclass(frozen=True)
class MilpComparison:
    """Our verdicts beside a MILP's."""

    asked: int
    ended: int
    """Programs HiGHS solved to the end."""
    compared: int
    """Of these, whose value says something, and that we decided."""
    contradictions: tuple[str, ...]
    """A sentence for each."""


def compare_with_milp(
    exposure: Exposure, solution: Solution, chosen: Integers, seconds: float = 60.0
) -> MilpComparison | None:
    """Give HiGHS the chosen questions of a solution; None where the head is not for it."""
    assert exposure.head is not None
    lowered = lower(exposure.head)
    if not _fits(lowered, exposure):
        return None
    highs = new_highs(1e-7)
    options = {"presolve": "on", "solver": "choose", "mip_rel_gap": 0.0, "time_limit": seconds}
    for name, value in options.items():
        highs.setOptionValue(name, value)
    ends = exposure.aggregate.segments[:: exposure.aggregate.num_groups].numpy()
    chosen = chosen[np.diff(ends)[solution.recipient[chosen]] > 0]  # else there is no λ to ask for
    ended = compared = 0
    wrong = []
    for i in chosen.tolist():
        target = int(solution.target[i])
        program = Program(exposure, lowered, int(solution.recipient[i]), target)
        bound, shares, done = program.solve(highs)
        ended += done
        verdict = str(solution.verdict[i])
        truth = _truth(exposure, program, target, bound, shares) if done else None
        if truth is None or verdict == "undecided":
            continue
        compared += 1
        if truth != verdict:
            wrong.append(f"node {int(solution.node[i])}: {verdict}, the MILP {truth} ({bound:.3g})")
    return MilpComparison(len(chosen), ended, compared, tuple(wrong))


def _truth(
    exposure: Exposure, program: Program, target: int, bound: float, shares: Floats
) -> str | None:
    """What the program's end says: nothing near zero, or where a relaxation's shares lose."""
    if bound < -NEAR:
        return "cannot"
    if bound <= NEAR:
        return None
    columns, fixed = program.mixture
    own = shares[: columns.shape[1]].copy()
    for group in program.groups:
        own[group] /= own[group].sum()
    point = torch.from_numpy(fixed + columns @ own)[None]
    assert exposure.head is not None
    logits = exposure.head(point, torch.tensor([program.node]))[0].numpy()
    margin = logits[target] - np.delete(logits, target).max()
    return "can" if margin > NEAR else None


def _fits(lowered: LoweredHead, exposure: Exposure) -> bool:
    return not lowered.reason and all(_known(op, exposure) for op in lowered.graph.operations)


def _known(op: Operation, exposure: Exposure) -> bool:
    linear = isinstance(op, Affine | Scale | Select | Constant | Add | Concatenate)
    relu = isinstance(op, Activation) and op.name == "relu"
    return linear or relu or (isinstance(op, Root) and exposure.aggregate.num_groups == 1)


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
    exposure: Exposure, position: Integers, target: Integers, sample: int
) -> dict[str, float | None]:
    """Milliseconds a question of each peer, where it applies."""
    figures: dict[str, float | None] = dict.fromkeys((LP, EXCLUDED, MILP, GUROBI))
    base = base_of(exposure, position)
    numbers = [k for k, op in enumerate(base.graph.operations) if isinstance(op, Curved)]
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
    """The largest γ: of the relaxation, or of the head itself."""
    gamma = len(model.upper) - 1
    if exact:
        model = _with_signs(model)
    columns = model.matrix.shape[1]
    cost, lower, whole = np.zeros(columns), np.zeros(columns), np.zeros(columns, np.int32)
    cost[gamma], lower[gamma] = -1.0, -np.inf
    whole[gamma + 1 :] = 1
    highs.clearModel()
    pass_lp(highs, cost, lower, model.upper, model.low, model.high, model.matrix, whole)
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
