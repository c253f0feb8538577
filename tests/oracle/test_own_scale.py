"""Answers certified at their own scale, whatever lies beside them in the LP."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from gnn_repair.oracle import (
    fallback,
    lps,
    nearest_reweighting,
    solve,
    stable_evidence,
)
from gnn_repair.oracle.fallback import solve_exactly
from gnn_repair.oracle.problems import Tables, instance
from tests.helpers.oracle.oracle_cases import exposure_of, random_node
from tests.helpers.oracle.oracle_exact import exact_margin

FIRST = torch.tensor([0])


def one_node(table, fixed=None, alpha=None):
    table = np.array(table, float)
    alpha = np.full(len(table), 1 / len(table)) if alpha is None else np.array(alpha)
    return exposure_of([(np.zeros(table.shape[1]) if fixed is None else fixed, [(alpha, table)])])


@pytest.mark.parametrize("size", [1e6, 1e9, 1e12, 1e15, 1e100, 1e300])
def test_a_message_that_nobody_uses_sets_no_scale(size):
    exposure = one_node([[2, 0, 3], [2, 3, 0], [-size, 0, 0]])
    solution = solve(exposure, FIRST)
    assert solution.margin[0] == pytest.approx(0.5, abs=1e-14)
    assert solution.bound[0] == pytest.approx(0.5, abs=1e-14)
    np.testing.assert_allclose(solution[0].coefficients, [0.5, 0.5], atol=1e-12)
    assert solution.reachable[0] and solution.check(exposure).ok


def test_the_check_refuses_the_answer_that_the_largest_message_would_excuse():
    """Margin −1 and bound 2: all on the first term, all against the first rival."""
    exposure = one_node([[2, 0, 3], [2, 3, 0], [-1e12, 0, 0]])
    good = solve(exposure, FIRST)
    wrong = replace(
        good,
        margin=np.array([-1.0]),
        bound=np.array([2.0]),
        rival_weights=np.array([[0.0, 1, 0]]),
        indptr=np.array([0, 1]),
        terms=np.array([0]),
        coefficients=np.array([1.0]),
        sources=np.array([0]),
        groups=np.array([0]),
    )
    verdict = wrong.check(exposure)
    assert not verdict.ok and verdict.gap > 0.1
    assert max(verdict.mass, verdict.negative, verdict.mixture, verdict.margin, verdict.bound) == 0


def mixed(seed, size, count=40, classes=3, terms=5):
    """Small integers, a term or two of them ``size`` times larger."""
    rng = np.random.default_rng(seed)
    nodes = []
    for _ in range(count):
        table = rng.integers(-3, 4, (int(rng.integers(2, terms + 1)), classes)).astype(float)
        table[: int(rng.integers(1, 3))] *= size
        table = table[rng.permutation(len(table))]
        fixed = rng.integers(-3, 4, classes) * float(rng.integers(2))
        nodes.append((fixed, [(np.full(len(table), 1 / len(table)), table)]))
    return exposure_of(nodes)


@pytest.mark.parametrize("size", [1e6, 1e9, 1e11, 1e12, 1e15])
def test_reach_beside_huge_messages_is_that_of_exact_arithmetic(size):
    exposure = mixed(1, size)
    solution, tables = solve(exposure, "all", threads=1), Tables.of(exposure)
    assert solution.decided.all() and set(solution.status.tolist()) <= {0, 1}
    for i in range(len(solution)):
        problem = instance(tables, 0, int(solution.recipient[i]), int(solution.target[i]))
        assert solution.reachable[i] == (exact_margin(problem) > Fraction(1e-7)), solution[i]
    assert solution.check(exposure).ok


def test_ties_of_huge_messages_are_told_from_wins():
    """Rock, paper, scissors at 1e12: rounding alone is worth 1e-4, and γ is exactly zero."""
    game = np.array([[0.0, 0, -1, 1], [0, 1, 0, -1], [0, -1, 1, 0]])
    for size in (3e11, 1e12, 7e15, 1e250):
        exposure = one_node(size * game)
        solution = solve(exposure, FIRST)
        assert solution.margin[0] == 0 and not solution.reachable[0] and solution.decided[0]
        assert solution.check(exposure).ok


@pytest.mark.parametrize("seed", range(5))
def test_rational_arithmetic_finds_the_vertex_that_brute_force_finds(seed):
    rng = np.random.default_rng(seed)
    for groups in (1, 2):
        node = random_node(rng, [3] * groups, 3, lambda s: rng.integers(-4, 5, s) / 4)
        for alpha, _ in node[1]:
            alpha[:] = rng.integers(1, 9, len(alpha)) / 8
        tables = Tables.of(exposure_of([node]))
        for c in range(3):
            problem = instance(tables, 0, 0, c)
            found = solve_exactly(problem, np.arange(groups) * 3)
            assert found is not None and found[0] == exact_margin(problem)
            margin, coefficients, weights = found
            sums = np.bincount(problem.group, coefficients)
            np.testing.assert_allclose(sums, problem.mass)
            reached = problem.fixed + coefficients @ problem.gaps
            assert reached.min() == pytest.approx(float(margin), abs=1e-13)
            assert weights.min() >= 0 and weights.sum() == pytest.approx(1)


def test_rational_arithmetic_does_not_cycle_on_ties():
    rng = np.random.default_rng(0)
    table = rng.integers(-1, 2, (40, 8)).astype(float)
    problem = instance(Tables.of(one_node(table)), 0, 0, 0)
    exact = solve_exactly(problem, np.array([39]))
    ours = solve(one_node(table), FIRST)
    assert exact is not None
    assert float(exact[0]) == pytest.approx(ours.margin[0], abs=1e-13)


def test_what_nobody_certifies_is_not_called_optimal(monkeypatch):
    """No tolerance is small enough to be met: margin and bound stay, and say so."""
    monkeypatch.setattr(fallback, "ACCEPT", -1.0)
    exposure = mixed(3, 1e12, count=60)
    solution = solve(exposure, "all", threads=1)
    left = np.flatnonzero(solution.status == 4)
    assert len(left) and solution.check(exposure).uncertified == len(left)
    assert not solution.check(exposure).ok
    for i in left:
        size = 1e-9 * max(1.0, abs(solution.margin[i]))
        assert solution.margin[i] <= solution.bound[i] + size
        assert "not certified" in str(solution[int(i)])
    np.testing.assert_array_equal(
        solution.decided[left], (solution.margin > 1e-7)[left] | (solution.bound <= 1e-7)[left]
    )


@pytest.mark.parametrize("size", [1e9, 1e12, 1e15])
def test_the_nearest_change_and_stable_evidence_do_not_see_what_nobody_uses(size):
    """The dominated message carries next to no α; with and without it the answers agree."""
    table, alpha = [[2.0, 0, 3], [2, 3, 0], [1, 2, 2]], [0.5, 0.2, 0.3]
    small = one_node(table, alpha=alpha)
    large = one_node([*table, [-size, 0, 0]], alpha=[*alpha, 0.0])
    ((near,), (far,)) = (
        nearest_reweighting(e, FIRST, margin=0.1, threads=1) for e in (small, large)
    )
    assert near.status == far.status == "moved"
    assert far.moved == pytest.approx(near.moved, abs=1e-7) and far.moved > 0.1
    assert far.bound == pytest.approx(far.moved, abs=1e-6)
    ((near,), (far,)) = (
        stable_evidence(e, FIRST, [0], epsilon=0.01, threads=1) for e in (small, large)
    )
    np.testing.assert_allclose(far.low[:3], near.low, atol=1e-6)
    np.testing.assert_allclose(far.high[:3], near.high, atol=1e-6)
    assert far.high[3] < 1e-7 and near.indispensable.sum() == 2


def tiny_masses(seed, mass, count=12):
    rng = np.random.default_rng(seed)
    nodes = []
    for _ in range(count):
        beta, [(alpha, table)] = random_node(rng, [150], 5)
        nodes.append((mass * beta, [(mass * alpha / alpha.sum(), table)]))
    return exposure_of(nodes)


@pytest.mark.parametrize("mass", [1e-10, 1e-14, 1e-100])
def test_small_masses_do_not_read_what_another_lp_left_behind(mass):
    """More than 128 terms, so columns are chosen; large LPs before them fill the same memory."""
    rng = np.random.default_rng(0)
    ordinary = [random_node(rng, [200], 5) for _ in range(12)]
    small = tiny_masses(1, mass)
    alone = solve(small, "all", threads=1)
    assert set(alone.status.tolist()) == {0} and alone.check(small).ok
    solve(exposure_of(ordinary), "all", threads=1)
    again = solve(small, "all", threads=1)
    several = solve(small, "all", threads=3)
    for name in ("margin", "bound", "rival_weights", "terms", "coefficients", "status"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(again, name))
        np.testing.assert_array_equal(getattr(alone, name), getattr(several, name))


def test_any_order_of_lps_gives_the_same_bits(monkeypatch):
    """LPs of all sizes and scales in one call, a few at a time, in one thread and in several."""
    rng = np.random.default_rng(5)
    nodes = []
    for k in range(60):
        beta, [(alpha, table)] = random_node(rng, [int(rng.choice([3, 40, 140, 300]))], 4)
        table[: k % 3] *= 10.0 ** rng.integers(3, 200)
        nodes.append((beta, [(alpha * 10.0 ** -rng.integers(0, 30), table)]))
    # One whose differences overflow: it must not poison the LPs after it.
    nodes.insert(7, (np.zeros(4), [(np.full(2, 1e-30), np.array([[1.7e308, -1.7e308, 0, 0]] * 2))]))
    exposure = exposure_of(nodes)
    monkeypatch.setattr(lps, "CHUNK", 5)
    one = solve(exposure, "all", threads=1)
    three = solve(exposure, "all", threads=3)
    monkeypatch.setattr(lps, "CHUNK", 1)
    each = solve(exposure, "all", threads=1)
    for name in ("margin", "bound", "rival_weights", "terms", "coefficients", "status"):
        np.testing.assert_array_equal(getattr(one, name), getattr(three, name))
        np.testing.assert_array_equal(getattr(one, name), getattr(each, name))
    verdict = one.check(exposure)
    assert verdict.uncertified == verdict.undecided == 0 and verdict.gap < 1e-9
