"""General LP solvers behind one interface: highspy (reference and fallback) and gurobipy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gnn_repair.errors import InputError
from gnn_repair.highs import TIGHT, SparseColumns, new_highs, pass_lp, status_of
from gnn_repair.oracle.proof import weigh
from gnn_repair.oracle.status import FAILED, FIXED, OPTIMAL, UNCERTIFIED
from gnn_repair.oracle.tables import Floats, Instance, Integers

ACCEPT = 1e-7
"""Largest accepted gap of a general solver's answer, relative to the numbers it is made of: such
solvers stop at tolerances of 1e-10 on numbers scaled to one, and columns may be shorter."""
LOOSE = 1e-7
"""highspy's own feasibility tolerance, where the tightest is out of reach."""


@dataclass(frozen=True)
class Answer:
    """One LP's answer; see :class:`~gnn_repair.oracle.solution.OracleSolution`."""

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
