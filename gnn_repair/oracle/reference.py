"""General LP solvers behind one interface: highspy (reference and fallback) and gurobipy.

Whatever a solver returns is made exactly feasible and proves itself: λ shows a margin, w a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gnn_repair.errors import InputError
from gnn_repair.highs import TIGHT, SparseColumns, new_highs, pass_lp, status_of
from gnn_repair.oracle.problems import (
    FAILED,
    FIXED,
    OPTIMAL,
    UNCERTIFIED,
    Floats,
    Instance,
    Integers,
)
from gnn_repair.published import REACHABLE

ACCEPT = 1e-7
"""Largest accepted gap of a general solver's answer, relative to the numbers it is made of: such
solvers stop at tolerances of 1e-10 on numbers scaled to one, and columns may be shorter."""
LOOSE = 1e-7
"""highspy's own feasibility tolerance, where the tightest is out of reach."""
BLUR = 4e-15
"""How far sums of up to a few dozen numbers may be off, relative to those numbers. An answer that
far from the threshold of reach, or nearer, has not decided it."""
GRAIN = 1e-315
"""Some thousands of the smallest floats, which products of small numbers are rounded to."""


@dataclass(frozen=True)
class Proof:
    """What λ and w show of an LP, and how sure it is."""

    margin: float
    """The worst rival's margin under λ."""
    margin_size: float
    """The size of the numbers it is the sum of."""
    bound: float
    """What no reweighting exceeds, by w."""
    bound_size: float
    """The size of the numbers it is the sum of."""
    certain: float
    """The bound less what rounding may have added to each term's score."""

    def meets(self, accept: float) -> bool:
        """Whether bound and margin meet, up to ``accept`` of the margin's numbers."""
        room = accept * self.margin_size + GRAIN
        above = self.margin - self.bound <= room + BLUR * self.bound_size
        return self.certain - self.margin <= room and above

    def near(self, gamma: float, accept: float) -> bool:
        """Whether ``gamma`` is the margin, up to ``accept`` of its numbers."""
        return abs(self.margin - gamma) <= accept * self.margin_size + GRAIN

    def doubt(self, accept: float) -> str:
        """Why it does not settle the LP; empty if it does."""
        if not self.meets(accept):
            return f"bound and margin differ by {self.bound - self.margin:.1e}"
        blur = BLUR * (self.margin_size + self.bound_size)
        if self.margin - blur > REACHABLE or self.bound + blur <= REACHABLE:
            return ""
        return "bound and margin lie on both sides of the threshold of reach, by their rounding"


def weigh(problem: Instance, coefficients: Floats, duals: Floats) -> Proof:
    """Margin and bound of admissible λ [K] and w [R]."""
    active = coefficients > 0
    gaps, used = problem.gaps[active], coefficients[active]
    reached = problem.fixed + used @ gaps
    worst = int(reached.argmin())
    margin_size = abs(problem.fixed[worst]) + used @ np.abs(gaps[:, worst])
    bound, bound_size = duals @ problem.fixed, duals @ np.abs(problem.fixed)
    certain = bound - BLUR * bound_size
    scores, sizes = problem.gaps @ duals, np.abs(problem.gaps) @ duals
    for g, mass in enumerate(problem.mass):
        own = np.flatnonzero(problem.group == g)
        top = own[scores[own].argmax()]
        bound, bound_size = bound + mass * scores[top], bound_size + mass * sizes[top]
        certain += mass * (scores[own] - BLUR * sizes[own]).max()
    margin = float(reached[worst])
    return Proof(margin, float(margin_size), float(bound), float(bound_size), float(certain))


@dataclass(frozen=True)
class Answer:
    """One LP's answer; see :class:`~gnn_repair.oracle.solution.Solution`."""

    margin: float
    bound: float
    weights: Floats
    """[C]."""
    terms: Integers
    coefficients: Floats
    status: int = OPTIMAL
    reason: str = ""


class Solver(Protocol):
    """Something that solves the exact-mass LP."""

    def solve(self, problem: Instance) -> Answer:
        """A basic optimum, or a failed answer with its reason."""


def failed(problem: Instance, reason: str) -> Answer:
    """No answer."""
    none: Integers = np.empty(0, np.int64)
    weights = np.zeros(len(problem.rivals) + 1)
    return Answer(np.nan, np.nan, weights, none, np.empty(0), FAILED, reason)


def without_terms(problem: Instance) -> Answer:
    """γ of a node with nothing to reweight: its frozen margin."""
    weights = np.zeros(len(problem.rivals) + 1)
    worst = int(problem.fixed.argmin())
    weights[problem.rivals[worst]] = 1.0
    margin, none = float(problem.fixed[worst]), np.empty(0, np.int64)
    return Answer(margin, margin, weights, none, np.empty(0), FIXED)


def finish(problem: Instance, shares: Floats, duals: Floats, accept: float = ACCEPT) -> Answer:
    """Make x and w exactly feasible and let them prove themselves at the scale of the answer.

    Args:
        problem: the LP.
        shares: [K] x = λ / m_g, or λ, feasible up to the solver's tolerance.
        duals: [R] w, likewise.
        accept: the largest gap between bound and margin, relative to the margin's numbers.
    """
    shares, duals = shares.clip(min=0.0), duals.clip(min=0.0)
    totals = np.bincount(problem.group, shares, len(problem.mass))
    total = float(duals.sum())
    if not ((totals > 0) & np.isfinite(totals)).all() or not 0 < total < np.inf:
        return failed(problem, "the solver's answer is not feasible")
    coefficients = shares / totals[problem.group] * problem.mass[problem.group]
    duals = duals / total
    active = coefficients > 0
    proof = weigh(problem, coefficients, duals)
    if not np.isfinite(proof.bound - proof.margin):
        return failed(problem, "the answer's numbers are beyond double precision")
    weights = np.zeros(len(problem.rivals) + 1)
    weights[problem.rivals] = duals
    terms, used = problem.terms[active], coefficients[active]
    answer = Answer(proof.margin, proof.bound, weights, terms, used)
    reason = proof.doubt(accept)
    return replace(answer, status=UNCERTIFIED, reason=reason) if reason else answer


def oracle_matrix(columns: Floats, group: Integers, masses: Floats | None = None) -> SparseColumns:
    """The constraint matrix: K terms, then γ.

    Rows: γ − Σ_a x_a D_{a,r} for the R rivals, then Σ_{a∈g} x_a for the B groups; ``masses`` [K]
    stand for the ones in the latter.
    """
    count, rivals = columns.shape
    index = np.empty((count, rivals + 1), np.int64)
    index[:, :rivals] = np.arange(rivals)
    index[:, rivals] = rivals + group
    ones = np.ones(count) if masses is None else masses
    value = np.concatenate([-columns, ones[:, None]], axis=1)
    start = np.arange(count + 1) * (rivals + 1)
    return (
        np.append(start, start[-1] + rivals),
        np.concatenate([index.ravel(), np.arange(rivals)]),
        np.concatenate([value.ravel(), np.ones(rivals)]),
    )


class Highs:
    """highspy's dual simplex on pre-scaled LPs, one reused object."""

    def __init__(self, tolerance: float = TIGHT) -> None:
        self._highs = new_highs(tolerance)

    def load(self, problem: Instance, unit: float | None = None) -> Floats:
        """Build the scaled LP, min −γ over x and γ; returns what each x_a was divided by, [K].

        Columns longer than ``unit`` (the longest one's length unless given) are shortened to it.
        """
        infinity, unit = np.inf, problem.scale if unit is None else unit
        count, rivals, groups = len(problem.terms), len(problem.rivals), len(problem.mass)
        with np.errstate(over="ignore"):  # a rival infinitely far away is never tight
            fixed = (problem.fixed - problem.fixed.min()) / unit
        columns = problem.columns
        lengths = np.maximum(np.abs(columns).max(1, initial=0.0), unit)
        pass_lp(
            self._highs,
            np.append(np.zeros(count), -1.0),
            np.append(np.zeros(count), -infinity),
            np.full(count + 1, infinity),
            np.concatenate([np.full(rivals, -infinity), np.ones(groups)]),
            np.concatenate([fixed, np.ones(groups)]),
            oracle_matrix(columns / lengths[:, None], problem.group, unit / lengths),
        )
        shorter: Floats = unit / lengths
        return shorter

    def run(self) -> str:
        """Solve what was loaded; returns the model status."""
        self._highs.run()
        return status_of(self._highs)

    def read(self) -> tuple[Floats, Floats]:
        """Primal values of the columns and dual values of the rows."""
        solution = self._highs.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)

    def _run_loosely(self) -> str:
        """Again from scratch with highspy's own tolerances: the tightest can be out of reach."""
        tolerances = ("primal_feasibility_tolerance", "dual_feasibility_tolerance")
        for name in tolerances:
            self._highs.setOptionValue(name, LOOSE)
        self._highs.clearSolver()
        status = self.run()
        for name in tolerances:
            self._highs.setOptionValue(name, TIGHT)
        return status

    def solve(self, problem: Instance) -> Answer:
        """See :class:`Solver`."""
        return self.solve_in_units(problem, None, ACCEPT)

    def solve_in_units(self, problem: Instance, unit: float | None, accept: float) -> Answer:
        """The same with columns shortened to ``unit`` and a gap of one's own choice."""
        if not len(problem.terms):
            return without_terms(problem)
        if not np.isfinite(problem.columns).all():
            return failed(problem, "the LP's numbers are beyond double precision")
        shorter = self.load(problem, unit)
        status = self.run()
        if status != "Optimal":
            status = self._run_loosely()
        if status != "Optimal":
            return failed(problem, f"highspy says {status}")
        values, duals = self.read()
        return finish(problem, values[:-1] * shorter, -duals[: len(problem.rivals)], accept)


class Missing:
    """Stands in for a solver that is not installed: every answer is a failure that says so."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def solve(self, problem: Instance) -> Answer:
        """See :class:`Solver`."""
        return failed(problem, self._reason)


class Gurobi:
    """gurobipy with the paper's settings: one thread, dual simplex, presolve off."""

    def __init__(self) -> None:
        try:
            import gurobipy
        except ImportError as error:
            raise InputError(
                'method "gurobi" needs gurobipy; install it with gnn-repair[gurobi]'
            ) from error
        self._gurobi = gurobipy
        self._environment = gurobipy.Env(params={"OutputFlag": 0, "Threads": 1, "Method": 1})
        self._environment.setParam("Presolve", 0)

    def load(self, problem: Instance) -> tuple[Any, Any, Any]:
        """Build the LP in the matrix interface: model, variables (x, γ) and rows."""
        count, rivals, groups = len(problem.terms), len(problem.rivals), len(problem.mass)
        matrix = np.zeros((rivals + groups, count + 1))
        matrix[:rivals, :count] = -problem.columns.T
        matrix[:rivals, count] = 1.0
        matrix[rivals + problem.group, np.arange(count)] = 1.0
        lower, cost = np.zeros(count + 1), np.zeros(count + 1)
        lower[-1], cost[-1] = -self._gurobi.GRB.INFINITY, 1.0
        senses = np.array(["<"] * rivals + ["="] * groups)
        model = self._gurobi.Model(env=self._environment)
        model.ModelSense = self._gurobi.GRB.MAXIMIZE
        shares = model.addMVar(count + 1, lb=lower, obj=cost)
        ends = np.concatenate([problem.fixed, np.ones(groups)])
        return model, shares, model.addMConstr(matrix, shares, senses, ends)

    def solve(self, problem: Instance) -> Answer:
        """See :class:`Solver`."""
        if not len(problem.terms):
            return without_terms(problem)
        try:
            model, shares, rows = self.load(problem)
            model.optimize()
            if model.Status != self._gurobi.GRB.OPTIMAL:
                return failed(problem, f"gurobipy ends with status {model.Status}")
            return finish(problem, shares.X[:-1], rows.Pi[: len(problem.rivals)])
        except self._gurobi.GurobiError as error:
            return failed(problem, f"gurobipy: {error}")


def highs_solver() -> Solver:
    """highspy, or a stand-in that fails with the reason where it is not installed."""
    try:
        return Highs()
    except ImportError:
        return Missing("highspy is not installed")


def gurobi_solver() -> Solver:
    """gurobipy; raises InputError where it is not installed."""
    return Gurobi()
