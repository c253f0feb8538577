"""The smallest change of coefficients that makes a class win: an exact counterfactual.

    min ½ Σ_a |λ_a − α_a|   s.t.  λ ∈ Δ_v,  z_c(λ) − z_r(λ) ≥ margin for every rival r

is the mass that must move. Any w ≥ 0 proves a lower bound on it: with s_a = Σ_r w_r (ℓ_c − ℓ_r)
and b_r = margin − (z⁰_c − z⁰_r),

    moved ≥ w·b + Σ_g Σ_{a∈g} α_a min(0, s_a − max_{b∈g} s_b + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from gnn_repair.exposure.pieces import ONE_KIND, NodeNames
from gnn_repair.exposure.value import Exposure
from gnn_repair.highs import TIGHT, new_highs, pass_lp, status_of
from gnn_repair.oracle.fallback import SMALLEST
from gnn_repair.oracle.lps import over_lps
from gnn_repair.oracle.problems import FAILED, STATUS, Floats, Instance, Integers, Tables, instance
from gnn_repair.oracle.solver import solve
from gnn_repair.oracle.witness import Gains, gain_words, gains_of, percent

ALREADY, MOVED, UNREACHABLE, UNSOLVED = "already wins", "moved", "unreachable", "failed"
NEAREST = 1e-2
"""Upper and lower value this close, relative to the upper one, are called the nearest."""
SETTLED = 1000 * TIGHT
"""What an answer may violate, relative to the numbers in question: highspy's tolerance holds for
its scaled numbers, and scaling back costs a few digits."""


@dataclass(frozen=True, eq=False)
class Nearest:
    """One node's nearest winning reweighting."""

    member: int
    node: int
    target: int
    status: str
    """``already wins``, ``moved``, ``unreachable`` (γ < margin) or ``failed``; behind a head
    ``undecided`` instead."""
    moved: float
    """Mass that moves, ½ Σ |λ − α|, behind a head an upper value; NaN without an answer."""
    bound: float
    """What must move at least, proved by ``weights`` or, behind a head, by bounds; 0 where nothing
    is."""
    weights: Floats
    """[C]: w ≥ 0, zero at the target; not normalised. Zero behind a head."""
    terms: Integers
    """The exposure's terms whose coefficient changes."""
    change: Floats
    """λ − α there."""
    sources: Integers
    """The nodes that sent them."""
    mass: float
    """The node's total mass, for comparison."""
    gains: Gains = ()
    """Who gets more weight, and how much, as shares of the mass."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""
    margin: float = np.nan
    """Behind a head: the margin at λ, of the model itself where ``replayed``."""
    replayed: bool | None = None
    """Whether the model itself was run with λ; None: there is no head, and the answer is exact."""
    reason: str = ""
    """Why it is undecided."""

    @property
    def share(self) -> float:
        """The share of the node's mass that moves."""
        return self.moved / self.mass if self.mass else float("nan")

    @property
    def proved(self) -> bool:
        """Whether nothing notably nearer wins."""
        return bool(self.moved - self.bound <= NEAREST * self.moved)

    def __str__(self) -> str:
        head = f"{self.names.node(self.node)}, class {self.target}"
        if self.status != MOVED:
            return f"{head}: {self.status}" + (f" ({self.reason})" if self.reason else "")
        says, limit = "", "and no smaller change is enough"
        if self.replayed is not None:
            says = f" ({'the model itself' if self.replayed else 'its head'} says so)"
            least = f"at least {percent(self.bound / self.mass)} must move"
            limit = least if self.proved else f"not proved nearest: {least}"
        if self.replayed is not None and self.bound <= 0:
            limit = "not proved nearest"
        return (
            f"{head}: {gain_words(self.gains, self.names)} would be enough{says}; "
            f"{percent(self.share)} of the mass moves, {limit}"
        )

    __repr__ = __str__


def nearest(
    exposure: Exposure, target: Tensor, nodes: Tensor | None, margin: float, threads: int | None
) -> tuple[Nearest, ...]:
    """One answer per node, of a model without a head."""
    solution = solve(exposure, target, nodes, threads=threads)
    tables = Tables.of(exposure)
    alpha = exposure.coefficients.double().cpu().numpy()

    def answer(index: int, highs: Any) -> Nearest:
        found = solution[index]
        problem = instance(tables, found.member, int(solution.recipient[index]), found.target)
        frozen = alpha[min(found.member, len(alpha) - 1), problem.terms]
        need = margin - (problem.fixed + frozen @ problem.gaps)
        change, duals = np.zeros(len(frozen)), np.zeros(len(need))
        status, moved, bound = UNSOLVED, np.nan, np.nan
        if need.max() <= 0:
            status, moved, bound = ALREADY, 0.0, 0.0
        elif found.margin < margin:
            status = UNREACHABLE
        elif found.status != STATUS[FAILED]:
            solved = _settled(highs, problem, frozen, need, margin, found.terms)
            if solved is not None:
                status, (moved, bound, change, duals) = MOVED, solved
        used = np.flatnonzero(change)
        weights = np.zeros(len(need) + 1)
        weights[problem.rivals] = duals
        senders = solution.named(tables.sources[tables.rows[problem.terms]].astype(np.int64))
        return Nearest(
            member=found.member,
            node=found.node,
            target=found.target,
            status=status,
            moved=moved,
            bound=bound,
            weights=weights,
            terms=problem.terms[used],
            change=change[used],
            sources=senders[used],
            mass=float(problem.mass.sum()),
            gains=gains_of(senders, frozen, change),
            names=solution.names,
        )

    return tuple(over_lps(len(solution), answer, new_highs, threads))


def closest(highs: Any, problem: Instance, alpha: Floats, margin: float) -> Floats | None:
    """λ − α [K] of the nearest λ whose margins reach ``margin``; None where there is none."""
    need = margin - problem.fixed - alpha @ problem.gaps
    if need.max() <= 0:
        return np.zeros(len(alpha))
    solved = _run(highs, problem, alpha, need, *_lengths(problem, need, problem.terms))
    return None if solved is None else solved[0]


def _run(
    highs: Any, problem: Instance, alpha: Floats, need: Floats, lengths: Floats, unit: float
) -> tuple[Floats, Floats] | None:
    """λ − α [K] and w [R]; None where highspy finds no optimum."""
    _pass(highs, problem, alpha, need, lengths, unit)
    highs.run()
    if status_of(highs) != "Optimal":
        return None
    solution, count = highs.getSolution(), len(alpha)
    values = np.array(solution.col_value)
    change = (values[:count] - values[count:]) * unit / lengths
    return change, np.array(solution.row_dual)[: len(need)].clip(min=0.0) / unit


def moved_bound(problem: Instance, alpha: Floats, need: Floats, duals: Floats) -> float:
    """The lower bound on moved mass that w ≥ 0 [R] proves; ``need`` [R] is b."""
    scores = problem.gaps @ duals
    best = np.full(len(problem.mass), -np.inf)
    np.maximum.at(best, problem.group, scores)
    return float(duals @ need + (alpha * np.minimum(0.0, scores - best[problem.group] + 1)).sum())


def _lengths(problem: Instance, need: Floats, optimum: Integers) -> tuple[Floats, float]:
    """What each term's change is measured by, [K], and the unit: what is needed, or the longest
    message that the oracle uses. Longer ones are shortened to it, so that a message that nobody
    uses sets no scale."""
    sizes = np.abs(problem.gaps).max(1)
    used = float(sizes[np.isin(problem.terms, optimum)].max(initial=0.0))
    unit = max(used, float(need.max()), SMALLEST)
    return np.maximum(sizes, unit), unit


def _settled(
    highs: Any, problem: Instance, alpha: Floats, need: Floats, margin: float, optimum: Integers
) -> tuple[float, float, Floats, Floats] | None:
    """What moves, its bound, λ − α [K] and w [R]; ``optimum`` holds the terms the oracle uses.

    None unless λ is admissible and reaches the margin, and no smaller change is enough.
    """
    lengths, unit = _lengths(problem, need, optimum)
    solved = _run(highs, problem, alpha, need, lengths, unit)
    if solved is None:
        return None
    change, duals = solved
    mass = problem.mass
    # highspy leaves rounding behind; against a huge gap even that may matter.
    active = np.abs(change) * lengths > 1e-12 * mass.max() * unit
    moved, change = float(np.abs(change[active]).sum() / 2), np.where(active, change, 0.0)
    bound, lam = moved_bound(problem, alpha, need, duals), alpha + change
    reached = problem.fixed + lam @ problem.gaps
    sizes = np.abs(problem.fixed) + np.abs(lam) @ np.abs(problem.gaps)
    sums = np.bincount(problem.group, lam, len(mass))
    settled = (
        (reached >= margin - SETTLED * sizes).all()
        and (reached.min() > 0 or margin <= 0)
        and (lam >= -SETTLED * mass[problem.group]).all()
        and (np.abs(sums - mass) <= SETTLED * mass).all()
        # Both ends of the gap are sums over all terms, each with an error of its own.
        and moved - bound <= 10 * SETTLED * mass.sum()
    )
    return (moved, bound, change, duals) if settled else None


def _pass(
    highs: Any, problem: Instance, alpha: Floats, need: Floats, lengths: Floats, unit: float
) -> None:
    """min Σ p over λ = α + p − n: p ≥ 0, 0 ≤ n ≤ α, Σ_g p = Σ_g n, gains ≥ need; p and n are in
    multiples of ``unit / lengths``."""
    count, rivals = problem.gaps.shape
    groups = len(problem.mass)
    index = np.empty((2 * count, rivals + 1), np.int64)
    index[:, :rivals] = np.arange(rivals)
    index[:, rivals] = rivals + np.tile(problem.group, 2)
    share = unit / lengths
    plus = np.concatenate([problem.gaps / lengths[:, None], share[:, None]], axis=1)
    value = np.concatenate([plus, -plus])
    infinite = np.full(count, np.inf)
    pass_lp(
        highs,
        np.concatenate([share, np.zeros(count)]),
        np.zeros(2 * count),
        np.concatenate([infinite, alpha / share]),
        np.concatenate([need / unit, np.zeros(groups)]),
        np.concatenate([np.full(rivals, np.inf), np.zeros(groups)]),
        (np.arange(2 * count + 1) * (rivals + 1), index.ravel(), value.ravel()),
    )
