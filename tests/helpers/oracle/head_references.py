"""The same questions given to HiGHS: triangle relaxations as LPs, tails themselves as MILPs."""

from __future__ import annotations

import numpy as np
import torch
from scipy import optimize

from gnn_repair.exposure.heads.operations import (
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    Maximum,
    Scale,
    Select,
)
from gnn_repair.exposure.value import Exposure


class Model:
    """max γ over shares, pre-activations written out as rows; ReLUs by triangles or binaries."""

    def __init__(self, exposure: Exposure, position: int, target: int, exact: bool) -> None:
        self.exact, self.node = exact, int(exposure.aggregate.recipients[position])
        self.low: list[float] = []
        self.high: list[float] = []
        self.integer: list[int] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        values = [self._aggregate(exposure.aggregate, position)]
        for operation in exposure.head.operations:
            values.append(self._apply(operation, [values[i] for i in operation.inputs]))
        self.gamma = self._variable(-1e6, 1e6)
        for rival in range(len(values[-1])):
            if rival != target:
                row = _sum((1.0, values[-1][target]), (-1.0, values[-1][rival]))
                row[0][self.gamma] = row[0].get(self.gamma, 0.0) - 1.0
                self.rows.append((row[0], -row[1], np.inf))

    def _variable(self, low: float, high: float, whole: int = 0) -> int:
        self.low.append(low)
        self.high.append(high)
        self.integer.append(whole)
        return len(self.low) - 1

    def _aggregate(self, aggregate, position: int):
        """Entries as linear expressions ({variable: coefficient}, constant) of the shares."""
        groups, table = aggregate.num_groups, aggregate.contributions[0].numpy()
        fixed = aggregate.fixed_logits[0, self.node].numpy()
        entries = [({}, float(value)) for value in fixed]
        for g in range(groups):
            first, last = (int(aggregate.segments[position * groups + g + k]) for k in (0, 1))
            if first == last:
                continue
            mass = float(aggregate.mass[0, position, g])
            shares = [self._variable(0.0, 1.0) for _ in range(first, last)]
            self.rows.append((dict.fromkeys(shares, 1.0), 1.0, 1.0))
            for share, row in zip(shares, aggregate.rows[first:last].tolist(), strict=True):
                for entry, value in zip(entries, mass * table[row], strict=True):
                    entry[0][share] = float(value)
        return entries

    def _at(self, constant: torch.Tensor, k: int) -> float:
        return float(constant[k] if constant.dim() == 1 else constant[self.node, k])

    def _apply(self, op, inputs):
        x = inputs[0] if inputs else []
        if isinstance(op, Affine):
            weight = op.weight.tolist()
            return [
                _plus(_sum(*zip(row, x, strict=True)), self._at(op.bias, k))
                for k, row in enumerate(weight)
            ]
        if isinstance(op, Scale):
            return [
                _plus(_sum((self._at(op.factor, k), e)), self._at(op.shift, k))
                for k, e in enumerate(x)
            ]
        if isinstance(op, Select):
            return [x[i] for i in op.index.tolist()]
        if isinstance(op, Constant):
            return [({}, self._at(op.value, k)) for k in range(op.value.shape[-1])]
        if isinstance(op, Add):
            return [
                _sum(*zip(op.factors, parts, strict=True)) for parts in zip(*inputs, strict=True)
            ]
        if isinstance(op, Concatenate):
            return [entry for part in inputs for entry in part]
        if isinstance(op, Maximum):
            best = inputs[0]
            for other in inputs[1:]:
                gains = [
                    self._relu(_sum((1.0, b), (-1.0, a))) for a, b in zip(best, other, strict=True)
                ]
                best = [_sum((1.0, a), (1.0, g)) for a, g in zip(best, gains, strict=True)]
            return best
        assert isinstance(op, Activation) and op.name in ("relu", "leaky_relu"), op.title
        slopes = op.parameter.expand(len(x)).tolist() if op.name == "leaky_relu" else [0.0] * len(x)
        return [_sum((s, e), (1.0 - s, self._relu(e))) for s, e in zip(slopes, x, strict=True)]

    def _relu(self, entry):
        low, high = -self._largest(_sum((-1.0, entry))), self._largest(entry)
        if low >= 0:
            return entry
        if high <= 0:
            return ({}, 0.0)
        x = self._variable(0.0, high)
        below = _sum((-1.0, entry))
        below[0][x] = 1.0
        self.rows.append((below[0], -below[1], np.inf))  # x ≥ y
        if not self.exact:
            chord = _sum((-high / (high - low), entry))
            chord[0][x] = 1.0
            self.rows.append((chord[0], -np.inf, -low * high / (high - low) - chord[1]))
            return ({x: 1.0}, 0.0)
        on = self._variable(0.0, 1.0, 1)
        self.rows.append(({x: 1.0, on: -high}, -np.inf, 0.0))
        above = _sum((-1.0, entry))
        above[0][x], above[0][on] = 1.0, -low
        self.rows.append((above[0], -np.inf, -low - above[1]))  # x ≤ y − l (1 − on)
        return ({x: 1.0}, 0.0)

    def _largest(self, entry) -> float:
        """By the LP of what was written so far: the tightest an LP can say."""
        if not self.low:  # a node without messages has nothing to choose
            return entry[1]
        cost = np.zeros(len(self.low))
        for k, value in entry[0].items():
            cost[k] = -value
        found = self._run(cost, np.zeros(len(self.low)))
        return -found.fun + entry[1]

    def _run(self, cost, whole):
        matrix = np.zeros((len(self.rows), len(self.low)))
        for i, (row, _, _) in enumerate(self.rows):
            for k, value in row.items():
                matrix[i, k] = value
        lower, upper = (np.array([row[k] for row in self.rows]) for k in (1, 2))
        constraints = optimize.LinearConstraint(matrix, lower, upper) if self.rows else ()
        bounds = optimize.Bounds(self.low, self.high)
        options = {"mip_rel_gap": 0.0}
        found = optimize.milp(
            cost, integrality=whole, bounds=bounds, constraints=constraints, options=options
        )
        assert found.status == 0, found.message
        return found

    def solve(self) -> float:
        """The largest γ."""
        cost = np.zeros(len(self.low))
        cost[self.gamma] = -1.0
        return -float(self._run(cost, np.array(self.integer)).fun)


def _sum(*parts):
    out, constant = dict[int, float](), 0.0
    for factor, (row, value) in parts:
        constant += factor * value
        for k, coefficient in row.items():
            out[k] = out.get(k, 0.0) + factor * coefficient
    return out, constant


def _plus(entry, constant: float):
    return entry[0], entry[1] + constant


def triangle(exposure: Exposure, position: int, target: int) -> float:
    """The bound of the triangle relaxation, by HiGHS."""
    return Model(exposure, position, target, exact=False).solve()


def exact(exposure: Exposure, position: int, target: int) -> float:
    """max_λ min_r T_c − T_r, by HiGHS's MILP solved to the end."""
    return Model(exposure, position, target, exact=True).solve()
