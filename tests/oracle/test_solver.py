"""Our simplex method against highspy, brute force in fractions, known answers and hostile LPs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numba
import numpy as np
import pytest
import torch

from benchmarks.oracle import synthetic
from gnn_repair.oracle import fallback, nearest_reweighting, solve, stable_evidence
from gnn_repair.oracle import lps as solver
from gnn_repair.oracle.fallback import solve_exactly
from gnn_repair.oracle.problems import UNCERTIFIED, Tables, build_lp
from gnn_repair.oracle.simplex import (
    GAMMA,
    GROUP,
    HEAD,
    HUGE,
    INVERSE,
    OFFSET,
    SLACK,
    TIGHT,
    VALUES,
    new_room,
    refactor,
)
from tests.campaigns import lps
from tests.campaigns.lp_families import FAMILIES, draw
from tests.campaigns.lp_judge import intervals, judge, judge_exactly
from tests.helpers.oracle.oracle_cases import exposure_of, random_node
from tests.helpers.oracle.oracle_exact import exact_margin

ARRAYS = ("margin", "bound", "rival_weights", "indptr", "terms", "coefficients", "status")
FIRST = torch.tensor([0])


def instances(exposure, solution):
    """The LP of each answer, as dense arrays."""
    tables = Tables.from_exposure(exposure)
    asked = zip(solution.member, solution.recipient, solution.target, strict=True)
    return [build_lp(tables, *(int(i) for i in one)) for one in asked]


@pytest.mark.parametrize(
    "family", ["three groups", "integers", "equal classes", "at 128 integers", "two thousand terms"]
)
def test_ours_is_never_worse_than_highspy(family):
    exposure, _ = draw(family, 1, 90)
    ours, theirs = (solve(exposure, "all", threads=1, method=m) for m in ("simplex", "highs"))
    assert ours.check(exposure).ok and theirs.check(exposure).failed < 0.05 * len(theirs)
    assert set(ours.status.tolist()) <= {0, 2}, ours
    solved = ~np.isnan(theirs.margin)
    scale = [max(one.scale, np.abs(one.fixed).max()) for one in instances(exposure, ours)]
    difference = ((ours.margin - theirs.margin) / scale)[solved]
    np.testing.assert_allclose(difference, 0, atol=2e-7)
    assert difference.min() > -1e-12  # highspy stops at its tolerance


def mixed(seed, size, count=40, classes=3):
    """Small integers in one or two groups, a term or two of them ``size`` times larger."""
    rng = np.random.default_rng(seed)
    nodes = []
    for _ in range(count):
        parts = []
        for _ in range(int(rng.integers(1, 3))):
            table = rng.integers(-3, 4, (int(rng.integers(2, 5)), classes)).astype(float)
            table[: int(rng.integers(1, 3))] *= size
            alpha = rng.integers(1, 9, len(table)) / 8
            parts.append((alpha, table[rng.permutation(len(table))]))
        empty = (np.empty(0), np.empty((0, classes)))
        fixed = rng.integers(-3, 4, classes) * float(rng.integers(2))
        nodes.append((fixed, [*parts, empty][:2]))
    return exposure_of(nodes)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e9, 1e12, 1e15])
def test_answers_are_those_of_every_vertex_in_fractions(size):
    """Of numbers of one size and beside huge ones; rational arithmetic finds the same vertex."""
    exposure = mixed(1, size, 24)
    solution = solve(exposure, "all", threads=1)
    assert solution.decided.all() and set(solution.status.tolist()) <= {0, 1}
    assert solution.check(exposure).ok
    for i, problem in enumerate(instances(exposure, solution)):
        best, start = exact_margin(problem), np.unique(problem.group, return_index=True)[1]
        assert solution.reachable[i] == (best > Fraction(1e-7)), solution[i]
        for found in (solution.margin[i], solution.bound[i]):
            assert found == pytest.approx(float(best), abs=1e-12 * problem.scale)
        margin, coefficients, weights = solve_exactly(problem, start)
        assert margin == best and weights.min() >= 0 and weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(np.bincount(problem.group, coefficients), problem.mass)
        reached = (problem.fixed + coefficients @ problem.gaps).min()
        assert reached == pytest.approx(float(best), abs=1e-12 * problem.scale)


def test_rational_arithmetic_does_not_cycle_on_ties():
    table = np.random.default_rng(0).integers(-1, 2, (40, 8)).astype(float)
    exposure = exposure_of([(np.zeros(8), [(np.full(40, 1 / 40), table)])])
    ours = solve(exposure, FIRST)
    exact = solve_exactly(instances(exposure, ours)[0], np.array([39]))
    assert float(exact[0]) == pytest.approx(ours.margin[0], abs=1e-13)


@pytest.mark.parametrize("size", [3e11, 7e15, 1e250])
def test_a_tie_is_told_from_a_win_at_any_size(size):
    """Rock, paper, scissors: rounding alone may be worth more than the threshold, and γ is 0."""
    game = size * np.array([[0.0, 0, -1, 1], [0, 1, 0, -1], [0, -1, 1, 0]])
    exposure = exposure_of([(np.zeros(4), [(np.full(3, 1 / 3), game)])])
    solution = solve(exposure, FIRST)
    assert solution.margin[0] == 0 and not solution.reachable[0] and solution.decided[0]
    np.testing.assert_allclose(solution[0].coefficients, 1 / 3)
    np.testing.assert_allclose(solution[0].rival_weights, [0, 1 / 3, 1 / 3, 1 / 3])
    assert solution.support.tolist() == [3] and solution.check(exposure).ok


def test_what_nobody_certifies_is_not_called_optimal(monkeypatch):
    """No tolerance is small enough to be met: margin and bound stay, and say so; of several answers
    the best of each."""
    tried, by_highs = dict[int, list[Any]](), fallback.Highs.solve

    def noted(self, problem, *given):
        tried.setdefault(id(problem), []).append((by_highs(self, problem, *given), problem))
        return tried[id(problem)][-1][0]

    monkeypatch.setattr(fallback.Highs, "solve", noted)
    monkeypatch.setattr(fallback, "ACCEPT", -1.0)
    exposure = mixed(3, 1e12, count=60)
    solution = solve(exposure, "all", threads=1)
    left = np.flatnonzero(solution.status == 4)
    for i, answers in zip(left, tried.values(), strict=True):
        assert solution.margin[i] >= max(one.margin for one, _ in answers)
        assert solution.bound[i] <= min(one.bound for one, _ in answers)
    verdict = solution.check(exposure)
    assert len(left) and verdict.uncertified == len(left) and not verdict.ok
    for i in left:
        size = 1e-9 * max(1.0, abs(solution.margin[i]))
        assert solution.margin[i] <= solution.bound[i] + size
        assert solution.reasons[int(i)] in str(solution[int(i)])
    decided = (solution.margin > 1e-7) | (solution.bound <= 1e-7)
    np.testing.assert_array_equal(solution.decided[left], decided[left])


def test_the_larger_margin_and_the_smaller_bound_are_of_different_answers():
    both = np.array([[1.0, 0.0], [0.0, 1.0]])
    parts = (both[0], np.array([0]), np.ones(1)), (both[1], np.array([1]), np.full(1, 2.0))
    far, near = (
        fallback.Answer(margin, bound, *part, status=UNCERTIFIED)
        for (margin, bound), part in zip(((-1.0, 3.0), (-7.0, 0.0)), parts, strict=True)
    )
    for pair in ((far, near), (near, far)):
        best = fallback._better(*pair)
        assert (best.margin, best.bound, best.status) == (-1, 0, UNCERTIFIED)
        assert (best.terms, best.coefficients) == (far.terms, far.coefficients)
        assert (best.weights == near.weights).all()


def test_rounding_decides_no_verdict(monkeypatch):
    """Of numbers whose rounding is worth more than the threshold γ lies between margin and bound
    as fractions, whatever floats say."""
    monkeypatch.setattr(fallback, "LIMIT", 0)
    rng, nodes = np.random.default_rng(0), []
    for mass, lead in rng.uniform(1, 2, (60, 2)) * [1, 1e15]:
        nodes.append((np.array([-mass * lead, 0.0]), [(np.array([mass]), np.array([[lead, 0]]))]))
    exposure = exposure_of(nodes)
    solution = solve(exposure, torch.zeros(60, dtype=torch.long), threads=1)
    exact = [exact_margin(problem) for problem in instances(exposure, solution)]
    assert (solution.status == UNCERTIFIED).sum() > 40
    assert any(one > Fraction(1e-7) for one in exact) and min(exact) < 0
    for i in np.flatnonzero(solution.status == UNCERTIFIED):
        assert Fraction(solution.margin[i]) <= exact[i] <= Fraction(solution.bound[i])
        assert not solution.decided[i]


@pytest.mark.parametrize("size", [1e9, 1e15])
def test_a_message_that_nobody_uses_sets_no_scale(size):
    """It carries no α; with and without it γ, the nearest change and needed terms agree."""
    table, alpha = np.array([[2.0, 0, 3], [2, 3, 0], [1, 2, 2]]), np.array([0.5, 0.2, 0.3])
    small = exposure_of([(np.zeros(3), [(alpha, table)])])
    longer = np.append(alpha, 0.0), np.append(table, [[-size, 0, 0]], axis=0)
    large = exposure_of([(np.zeros(3), [longer])])
    both = [solve(e, FIRST).margin[0] for e in (small, large)]
    assert both[1] == pytest.approx(both[0], abs=1e-14)
    both = [nearest_reweighting(e, FIRST, margin=0.1, threads=1)[0] for e in (small, large)]
    assert both[0].status == both[1].status == "moved" and both[1].moved > 0.1
    assert both[1].moved == pytest.approx(both[0].moved, abs=1e-7)
    assert both[1].bound == pytest.approx(both[1].moved, abs=1e-6)
    near, far = (stable_evidence(e, FIRST, [0], epsilon=0.01, threads=1)[0] for e in (small, large))
    np.testing.assert_allclose(far.low[:3], near.low, atol=1e-6)
    np.testing.assert_allclose(far.high[:3], near.high, atol=1e-6)
    assert far.high[3] < 1e-7 and near.indispensable.sum() == 2


# Many at once -------------------------------------------------------------------------------------


def test_any_order_of_lps_gives_the_same_bits(monkeypatch):
    """LPs of all sizes and scales in one call, a few at a time, alone, in one thread and several:
    none reads what another left behind."""
    rng = np.random.default_rng(5)
    nodes = []
    for k in range(60):
        beta, [(alpha, table)] = random_node(rng, [int(rng.choice([3, 40, 140, 300]))], 4)
        table[: k % 3] *= 10.0 ** rng.integers(3, 200)
        mass = 10.0 ** -rng.integers(0, 100 if k % 4 else 1)
        nodes.append((mass * beta, [(mass * alpha, table)]))
    # One whose differences overflow: it must not poison the LPs after it.
    nodes.insert(7, (np.zeros(4), [(np.full(2, 1e-30), np.array([[1.7e308, -1.7e308, 0, 0]] * 2))]))
    exposure = exposure_of(nodes)
    one = solve(exposure, "all", threads=1)
    verdict = one.check(exposure)
    assert verdict.uncertified == verdict.undecided == 0 and verdict.gap < 1e-9
    for chunk, threads in ((5, 1), (5, 3), (1, 1)):
        monkeypatch.setattr(solver, "CHUNK", chunk)
        again = solve(exposure, "all", threads=threads)
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(one, name), getattr(again, name), name)
    alone = solve(exposure, "all", torch.tensor([11]), threads=1)
    for name in ("margin", "bound", "rival_weights", "status"):
        np.testing.assert_array_equal(getattr(one, name)[one.node == 11], getattr(alone, name))


def test_calls_at_the_same_time_and_of_other_sizes_do_not_disturb_each_other():
    """Threads' memory rests between calls; nobody may work in another's."""
    exposures = [synthetic(60, 9, 2, 500), synthetic(200, 5, 1, 300)]
    alone = [solve(exposure, "all", threads=1) for exposure in exposures]
    asked = [0, 0, 1, 1] * 2
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda i: solve(exposures[i], "all", threads=2), asked))
    for i, found in zip(asked, together, strict=True):
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(found, name), getattr(alone[i], name))


# A basis inverted afresh, against NumPy -----------------------------------------------------------

CLASSES, GROUPS, TARGET = 6, 2, 5


@numba.njit
def invert(room, groups, slots):
    return refactor(room, groups, slots)


@pytest.mark.parametrize("seed", range(3))
def test_a_fresh_inverse_is_the_inverse_and_the_target_never_blocks(seed):
    """γ at the first position, rivals 0, 1, 2 tight, two columns a group."""
    generator = np.random.default_rng(seed)
    room = new_room(CLASSES, GROUPS)
    room.entries[:, :4] = generator.uniform(-1, 1, (CLASSES, 4))
    room.entries[TARGET] = 0.0
    room.labels[GROUP, :4] = [0, 0, 1, 1]
    offset = generator.uniform(0, 1, CLASSES)
    room.state[OFFSET, :CLASSES] = offset
    room.state[OFFSET, TARGET] = HUGE
    head = [GAMMA, 0, 2, SLACK - 3, SLACK - 4, SLACK - 5, 1, 3]
    room.places[HEAD, : len(head)] = head
    room.places[TIGHT, GROUPS : GROUPS + 3] = [0, 1, 2]
    room.state[VALUES, [0, TARGET]] = HUGE
    assert invert(room, GROUPS, GROUPS + 3)

    basis = np.zeros((CLASSES + GROUPS, CLASSES + GROUPS))
    for i, variable in enumerate(head):
        if variable == GAMMA:
            basis[:CLASSES, i] = 1.0
        elif variable <= SLACK:
            basis[SLACK - variable, i] = 1.0
        else:
            basis[:CLASSES, i] = -room.entries[:, variable]
            basis[CLASSES + room.labels[GROUP, variable], i] = 1.0
    inverse = np.linalg.inv(basis)
    kept = inverse[:, [CLASSES, CLASSES + 1, 0, 1, 2]].T
    found = room.state[INVERSE : INVERSE + GROUPS + 3, : CLASSES + GROUPS]
    np.testing.assert_allclose(found, kept, atol=1e-10)
    values = inverse @ np.append(offset, np.ones(GROUPS))
    others = [1, 2, 3, 4, 6, 7]
    np.testing.assert_allclose(room.state[VALUES, others], values[others], atol=1e-10)
    assert (room.state[VALUES, [0, TARGET]] == HUGE).all()


def test_a_singular_basis_is_refused():
    room = new_room(CLASSES, GROUPS)
    room.places[HEAD, : CLASSES + GROUPS] = [GAMMA, 0, 0, SLACK - 3, SLACK - 4, SLACK - 5, 0, 0]
    assert not invert(room, GROUPS, GROUPS + 3)


# A short sample of the campaign of hostile LPs, and a judge that notices what is wrong ------------


def test_every_family_in_turn_without_a_fault(monkeypatch):
    monkeypatch.setattr(lps, "BATCH", 60)
    monkeypatch.setattr(lps, "TERMS", 9_000)
    said = []
    result = lps.campaign(11, 0.0, said.append)
    assert result.ok, result.faults
    assert len(FAMILIES) >= 54 and FAMILIES.keys() <= result.details.keys()
    assert result.tried == sum(result.details[name] for name in FAMILIES) > 3000
    answered = {k.removeprefix("status: "): n for k, n in result.details.items() if "status" in k}
    assert sum(answered.values()) == result.tried and answered["fallback"] > 0
    # Hardly any is given up: numbers whose differences overflow, and a few beyond doubles.
    assert answered.get("failed", 0) + answered.get("uncertified", 0) < 0.03 * result.tried
    assert answered["fallback"] < 0.1 * result.tried
    assert said == [f"{result.tried:,} LPs, 0 faults"]


@pytest.mark.parametrize(
    ("family", "seed"), [("integers of 1e12", 23980076), ("dominated by 1e9", 21940067)]
)
def test_the_bound_is_that_of_the_stored_rivals(family, seed):
    """Rounding that is clipped off w moves the bound where one term is huge."""
    _, faults, _ = lps.try_family(family, seed, lps.BATCH)
    assert not faults


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("margin", lambda x: x + 1e-6, "a margin that is not that of λ"),
        ("bound", lambda x: x - 1e-6, "a bound that is not that of w"),
        ("rival_weights", lambda x: 1.5 * x, "λ or w are not admissible"),
        ("rival_weights", lambda x: np.full_like(x, 1 / len(x)), "λ or w are not admissible"),
        ("coefficients", lambda x: 1.01 * x, "λ or w are not admissible"),
        ("coefficients", lambda x: -x, "λ or w are not admissible"),
        ("margin", lambda x: 1.0 if x < 0 else -1.0, "shows that it is not"),
    ],
)
def test_the_judge_notices_a_changed_answer(name, value, text):
    exposure, numbers = draw("three groups", 3, 40)
    solution = solve(exposure, "all")
    assert not list(judge(numbers, solution))
    place = int(np.flatnonzero(np.abs(solution.margin) > 0.1)[0])
    array = getattr(solution, name).copy()
    at = solution.indptr[place] if name == "coefficients" else place
    array[at] = value(array[at])
    found = list(judge(numbers, replace(solution, **{name: array})))
    assert {i for i, _ in found} == {place} and any(text in words for _, words in found)


def test_the_judge_notices_an_optimum_that_is_none():
    """Another admissible w: margin and bound both hold, but they do not meet."""
    exposure, numbers = draw("three groups", 3, 40)
    solution = solve(exposure, "all")
    weights, bound = solution.rival_weights.copy(), solution.bound.copy()
    rival = int(np.flatnonzero(weights[0] < 0.5)[-1])
    weights[0] = 0.0
    weights[0, rival if rival != solution.target[0] else rival - 1] = 1.0
    worse = replace(solution, rival_weights=weights)
    bound[0] = float(intervals(numbers, worse).high[0])
    worse = replace(worse, bound=bound)
    texts = [text for i, text in judge(numbers, worse) if i == 0]
    assert texts == ["an optimum whose bound and margin do not meet"]
    assert judge_exactly(numbers, worse, 0).startswith("an optimum whose bound")
