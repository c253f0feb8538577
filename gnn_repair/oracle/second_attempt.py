"""LPs whose first answer did not certify itself: solved again, more carefully at every step.

Without the terms that others dominate, by our own method; by highspy, with long columns shortened;
in rational arithmetic. What none of them settles keeps the best pair of proofs and is called
uncertified: γ lies between its margin and its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gnn_repair.oracle.answers import Piece
from gnn_repair.oracle.dominance import undominated
from gnn_repair.oracle.exact_simplex import solve_exactly
from gnn_repair.oracle.proof import Proof, weigh
from gnn_repair.oracle.reference_solvers import (
    Answer,
    Highs,
    failed,
    finish,
    highs_solver,
)
from gnn_repair.oracle.status import FAILED, FALLBACK, OPTIMAL, UNCERTIFIED
from gnn_repair.oracle.tables import (
    Floats,
    Instance,
    Integers,
    Problems,
    Tables,
    instance,
    on_terms,
)
from gnn_repair.thresholds import REACHABLE

ACCEPT = 1e-10
"""Largest accepted gap, relative to the answer's own numbers: a tenth of what the check accepts."""
UNITS = 3
"""Lengths of columns tried with highspy; each is the size of the answer before. What three do not
settle is left to exact arithmetic."""
SMALLEST = 1e-290
"""Of a length, so that nothing divided by it overflows needlessly."""


def second_attempts(
    tables: Tables,
    asked: Problems,
    weights: Floats,
    solve_reduced: Callable[[Tables, Problems], Piece],
) -> list[Answer]:
    """An answer for each LP of ``asked``.

    Args:
        tables: the exposure's.
        asked: the LPs.
        weights: [L, C] the w of the first attempts, where they have one.
        solve_reduced: our own method, for LPs on fewer terms.
    """
    lps = [
        instance(tables, int(s), int(p), int(c))
        for s, p, c in zip(asked.member, asked.position, asked.target, strict=True)
    ]
    kept = [undominated(problem) for problem in lps]
    found = _without_dominated(tables, asked, lps, kept, solve_reduced)
    highs = highs_solver()
    for i, problem in enumerate(lps):
        if found[i].status == FAILED:
            reduced, first = problem.part(kept[i]), weights[i][problem.rivals]
            if all(np.isfinite(x).all() for x in (reduced.columns, reduced.fixed)):
                found[i] = _carefully(reduced, first, found[i], highs)
            else:
                found[i] = failed(problem, "its differences are beyond double precision")
    return found


def _without_dominated(
    tables: Tables,
    asked: Problems,
    lps: Sequence[Instance],
    kept: Sequence[NDArray[np.bool_]],
    solve_reduced: Callable[[Tables, Problems], Piece],
) -> list[Answer]:
    """Our own method on the terms that are kept; a failed answer where that does not settle it."""
    found = [failed(problem, "our simplex method did not converge") for problem in lps]
    fewer = np.array([i for i, keep in enumerate(kept) if not keep.all()], np.int64)
    if not len(fewer):
        return found
    reduced, terms = _reduced(tables, asked, fewer, [lps[i].terms[kept[i]] for i in fewer])
    lone = Problems(asked.member[fewer], np.arange(len(fewer)), asked.target[fewer])
    piece = solve_reduced(reduced, lone)
    ends = np.append(0, np.cumsum(piece.counts))
    for k, i in enumerate(fewer):
        if piece.status[k] == OPTIMAL:
            part = slice(ends[k], ends[k + 1])
            numbers = float(piece.margin[k]), float(piece.bound[k]), piece.weights[k]
            answer = Answer(*numbers, terms[piece.terms[part]], piece.coefficients[part])
            reason = f"solved again without {int((~kept[i]).sum())} dominated terms"
            found[i] = replace(answer, status=FALLBACK, reason=reason)
    return found


def _reduced(
    tables: Tables, asked: Problems, chosen: Integers, terms: Sequence[Integers]
) -> tuple[Tables, Integers]:
    """Tables with a recipient for each chosen LP, on the given terms only, and these terms."""
    joined = np.concatenate(terms)
    owner = np.repeat(np.arange(len(chosen)), [len(part) for part in terms])
    return on_terms(tables, asked.position[chosen], owner, joined), joined


def _carefully(reduced: Instance, weights: Floats, best: Answer, solver: object) -> Answer:
    """highspy in several units, then rational arithmetic; the best of them if none certifies."""
    if isinstance(solver, Highs):
        unit = _first_unit(reduced, weights)
        for _ in range(UNITS):
            answer = solver.solve_in_units(reduced, unit, ACCEPT)
            if answer.status == OPTIMAL:
                return replace(answer, status=FALLBACK, reason="highspy, with shortened columns")
            best = _better(best, answer)
            if answer.status == FAILED:
                break
            unit = max(_proof_of(reduced, answer).margin_size, SMALLEST)
    return _better(best, _exactly(reduced, best))


def _better(one: Answer, other: Answer) -> Answer:
    """The answer that says more: settled, then with the smaller gap, then the later."""
    if other.status == FAILED or one.status == FAILED:
        return one if other.status == FAILED and one.status != FAILED else other
    if UNCERTIFIED not in (one.status, other.status):
        return other
    settled = one.status != UNCERTIFIED
    closer = one.status == other.status and one.bound - one.margin < other.bound - other.margin
    return one if settled or closer else other


def _first_unit(problem: Instance, weights: Floats) -> float:
    """A typical length: of each group's best term under the first attempt's w, or the median."""
    lengths = np.abs(problem.columns).max(1)
    if np.isfinite(weights).all() and weights.sum() > 0:
        scores = problem.gaps @ weights
        return max(float(lengths[_best_terms(problem, scores)].max()), SMALLEST)
    return max(float(np.median(lengths)), SMALLEST)


def _best_terms(problem: Instance, values: Floats) -> Integers:
    """[B]: the place of the term with the largest value in each group."""
    places = [np.flatnonzero(problem.group == g) for g in range(len(problem.mass))]
    return np.array([own[values[own].argmax()] for own in places])


def _proof_of(problem: Instance, answer: Answer) -> Proof:
    coefficients = np.zeros(len(problem.terms))
    coefficients[np.searchsorted(problem.terms, answer.terms)] = answer.coefficients
    return weigh(problem, coefficients, answer.weights[problem.rivals])


def _exactly(problem: Instance, best: Answer) -> Answer:
    """γ in rational arithmetic, with λ and w rounded; uncertified where they do not show it."""
    exact = solve_exactly(problem, _start(problem, best))
    if exact is None:
        return failed(problem, f"{best.reason}; too large or not finite for rational arithmetic")
    answer = finish(problem, exact.coefficients, exact.weights, ACCEPT)
    if answer.status == FAILED:
        return answer
    try:
        margin = float(exact.margin)
    except OverflowError:
        return failed(problem, "the margin is beyond double precision")
    proof = _proof_of(problem, answer)
    if not proof.meets(ACCEPT) or not proof.near(margin, ACCEPT):
        reason = "λ and w, rounded to floats, do not show the margin that rational arithmetic found"
        return replace(answer, status=UNCERTIFIED, reason=reason)
    # Rounding λ and w must not move γ across the threshold, so the exact one is stated.
    stated = margin if exact.margin > REACHABLE else min(margin, REACHABLE)
    return replace(
        answer, margin=stated, bound=stated, status=FALLBACK, reason="rational arithmetic"
    )


def _start(problem: Instance, best: Answer) -> Integers:
    """A term of every group: the one with the largest λ, or the best worst margin."""
    start = _best_terms(problem, problem.gaps.min(1))
    places = np.searchsorted(problem.terms, best.terms)
    for place in places[np.argsort(best.coefficients, kind="stable")]:
        start[problem.group[place]] = place
    return start
