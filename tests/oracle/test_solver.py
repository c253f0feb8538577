"""Our simplex method against highspy, brute force, exact arithmetic and hostile numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import numba
import numpy as np
import pytest
import torch

from benchmarks.oracle import synthetic
from gnn_repair.oracle import fallback, nearest_reweighting, solve, stable_evidence
from gnn_repair.oracle import lps as lps_own_scale
from gnn_repair.oracle.fallback import solve_exactly
from gnn_repair.oracle.problems import Tables, build_lp
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
from tests.campaigns.lp_families import FAMILIES as FAMILIES_CAMPAIGN
from tests.campaigns.lp_families import draw
from tests.campaigns.lp_judge import intervals, judge, judge_exactly
from tests.helpers.oracle.oracle_cases import exposure_of, random_node
from tests.helpers.oracle.oracle_exact import exact_margin

# Our simplex method against highspy, brute force, exact arithmetic and known answers.

AGAINST_HIGHSPY = (
    "gaussian", "three groups", "low rank", "integers", "cyclic games", "twins",
    "near twins", "equal classes", "planted ties", "single terms", "two classes", "absent groups",
    "at 128 integers", "two thousand terms", "zero coefficients",
)  # fmt: skip


def scale_of(exposure, solution):
    """How large the numbers of each LP are."""
    tables = Tables.from_exposure(exposure)
    lps = zip(solution.member, solution.recipient, solution.target, strict=True)
    return np.array(
        [
            max(problem.scale, np.abs(problem.fixed).max())
            for problem in (build_lp(tables, *(int(i) for i in lp)) for lp in lps)
        ]
    )


@pytest.mark.parametrize("family", AGAINST_HIGHSPY)
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_highspy_and_proves_itself(family, seed):
    exposure, _ = draw(family, seed, 150)
    ours = solve(exposure, "all", threads=1)
    theirs = solve(exposure, "all", method="highs", threads=1)
    verdict = ours.check(exposure)
    assert verdict.ok, verdict
    assert set(ours.status.tolist()) <= {0, 2}, ours
    solved = ~np.isnan(theirs.margin)
    assert solved.mean() > 0.95
    scale = scale_of(exposure, ours)[solved]
    difference = (ours.margin - theirs.margin)[solved] / scale
    np.testing.assert_allclose(difference, 0, atol=2e-7)
    # highspy stops at its tolerance; ours is never worse than that.
    assert difference.min() > -1e-12


@pytest.mark.parametrize("seed", range(6))
def test_matches_exact_rational_arithmetic(seed):
    rng = np.random.default_rng(seed)

    def dyadic(shape):
        return rng.integers(-64, 65, shape) / 16

    nodes = [random_node(rng, [int(k) for k in rng.integers(1, 4, 2)], 3, dyadic) for _ in range(4)]
    for _, parts in nodes:
        for alpha, _ in parts:
            alpha[:] = rng.integers(1, 9, len(alpha)) / 8
    exposure = exposure_of(nodes)
    solution = solve(exposure, "all", threads=1)
    tables = Tables.from_exposure(exposure)
    for i in range(len(solution)):
        problem = build_lp(tables, 0, int(solution.recipient[i]), int(solution.target[i]))
        exact = float(exact_margin(problem))
        assert solution.margin[i] == pytest.approx(exact, abs=1e-13 * problem.scale)
        assert solution.bound[i] == pytest.approx(exact, abs=1e-13 * problem.scale)


def test_known_answers():
    # Rock, paper, scissors: every mixture but the even one loses to something; γ = 0.
    game = np.array([[0.0, 0, -1, 1], [0, 1, 0, -1], [0, -1, 1, 0]])
    # Two messages, each strong against one rival: half and half wins by ½·(3−1) = 1.
    pair = np.array([[0.0, -3, 1, 9], [0, 1, -3, 9]])
    # One dominating message: all mass on it.
    dominant = np.array([[5.0, 1, 2, 3], [0, 1, 2, 3], [4, 1, 2, 3]])
    fixed = np.zeros(4)
    pair_fixed = np.array([0.0, 0, 0, -100])
    exposure = exposure_of(
        [
            (fixed, [(np.full(3, 1 / 3), game)]),
            (pair_fixed, [(np.array([0.9, 0.1]), pair)]),
            (fixed, [(np.array([0.5, 1.0, 0.5]), dominant)]),
        ]
    )
    solution = solve(exposure, torch.zeros(3, dtype=torch.long))
    np.testing.assert_allclose(solution.margin, [0, 1, 2 * (5 - 3)], atol=1e-14)
    np.testing.assert_allclose(solution[0].coefficients, 1 / 3)
    np.testing.assert_allclose(solution[0].rival_weights, [0, 1 / 3, 1 / 3, 1 / 3])
    np.testing.assert_allclose(solution[1].coefficients, 0.5)
    np.testing.assert_allclose(solution[1].rival_weights, [0, 0.5, 0.5, 0], atol=1e-14)
    assert solution[2].terms.tolist() == [5]
    assert solution.reachable.tolist() == [False, True, True]
    assert solution.support.tolist() == [3, 2, 1]


def test_a_planted_optimum_is_recovered():
    """Build D so that chosen λ and w satisfy complementary slackness; γ is then known."""
    rng = np.random.default_rng(3)
    rivals, extra = 5, 400
    share, weights = rng.dirichlet(np.ones(rivals)), rng.dirichlet(np.ones(rivals))
    active = rng.normal(size=(rivals, rivals))
    # Every active column scores the same under w, every rival ends at the same margin under λ.
    active += (0.7 - active @ weights)[:, None]
    fixed = 0.25 - share @ active
    inactive = rng.normal(size=(extra, rivals))
    inactive += (0.7 - rng.exponential(0.5, extra) - 0.01 - inactive @ weights)[:, None]
    gaps = np.concatenate([active, inactive])
    table = np.concatenate([np.zeros((len(gaps), 1)), -gaps], axis=1)
    alpha = rng.random(len(gaps))
    alpha /= alpha.sum()
    order = rng.permutation(len(gaps))
    exposure = exposure_of([(np.append(0.0, -fixed), [(alpha[order], table[order])])])
    solution = solve(exposure, torch.zeros(1, dtype=torch.long))
    assert solution.margin[0] == pytest.approx(0.25, abs=1e-12)
    assert sorted(order[solution.terms]) == list(range(rivals))
    np.testing.assert_allclose(solution.rival_weights[0, 1:], weights, atol=1e-9)
    found = np.zeros(len(gaps))
    found[order[solution.terms]] = solution.coefficients
    np.testing.assert_allclose(found[:rivals], share, atol=1e-9)


def test_an_outlier_beyond_the_sample_changes_nothing():
    """A single column that is a billion times larger than those first looked at."""
    rng = np.random.default_rng(8)
    beta, [(alpha, table)] = random_node(rng, [700], 4)
    for size in (1e3, 1e9):
        huge = table.copy()
        huge[333] = size * np.array([1.0, -1, 2, -2])
        exposure = exposure_of([(beta, [(alpha, huge)])])
        ours = solve(exposure, "all")
        assert ours.check(exposure).ok and set(ours.status.tolist()) == {0}


@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-310, 1e-160, 1e-9, 1e9, 1e160, 1e300])
@pytest.mark.parametrize("count", [5, 20, 300])
def test_a_first_term_of_any_size_is_no_measure_of_the_others(count, size):
    rng = np.random.default_rng(9)
    beta, [(alpha, table)] = random_node(rng, [count], 4)
    table[0] = size * np.array([1.0, -1, 2, -2])
    exposure = exposure_of([(beta, [(alpha / alpha.sum(), table)])])
    ours = solve(exposure, "all")
    assert ours.check(exposure).ok and set(ours.status.tolist()) <= {0, 1}


@pytest.mark.parametrize(("fixed", "size"), [(1.0, 1e-310), (0.0, 1e-310), (1e300, 1e-300)])
def test_a_bound_below_the_margin_is_no_proof(fixed, size):
    """Fixed logits that overflow once the messages' scale is applied may end in the fallback."""
    rng = np.random.default_rng(10)
    nodes = []
    for _ in range(30):
        beta, [(alpha, table)] = random_node(rng, [6], 4)
        nodes.append((fixed * beta, [(alpha, size * table)]))
    exposure = exposure_of(nodes)
    ours = solve(exposure, "all")
    assert ours.check(exposure).ok
    assert (np.abs(ours.gap) <= 1e-12 * np.abs(ours.margin) + 1e-320).all()


def test_any_point_of_the_polytope_stays_below_the_bound():
    exposure, _ = draw("three groups", 2, 360)
    target = torch.arange(exposure.num_nodes) % exposure.num_classes
    solution = solve(exposure, target)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        random = torch.rand(exposure.coefficients.shape, generator=generator).double() ** 8
        scale = exposure.mass / exposure.masses(random)
        lengths = exposure.segments.diff()
        weights = random * scale.view(1, -1).repeat_interleave(lengths, dim=1)
        margins = exposure.margins(target, weights)[0].numpy()
        assert (margins <= solution.bound + 1e-9).all()
    lam = solution.dense(exposure)
    torch.testing.assert_close(exposure.masses(lam), exposure.mass)
    torch.testing.assert_close(exposure.margins(target, lam)[0], torch.from_numpy(solution.margin))


def test_threads_and_batches_do_not_change_a_bit(monkeypatch):
    exposure, _ = draw("sixty classes", 4, 1000)
    one = solve(exposure, "all", threads=1)
    two = solve(exposure, "all", threads=3)
    alone = solve(exposure, "all", torch.tensor([7]), threads=1)
    for name in ("margin", "bound", "rival_weights", "indptr", "terms", "coefficients"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    at = one.node == 7
    np.testing.assert_array_equal(one.margin[at], alone.margin)
    np.testing.assert_array_equal(one.rival_weights[at], alone.rival_weights)


def test_calls_at_the_same_time_and_of_other_sizes_do_not_disturb_each_other():
    """Threads' memory rests between calls; nobody may work in another's."""
    exposures = [synthetic(60, 9, 2, 1500), synthetic(200, 5, 1, 800)]
    alone = [solve(exposure, "all", threads=1) for exposure in exposures]
    asked = [0, 0, 1, 1] * 3
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda i: solve(exposures[i], "all", threads=2), asked))
    for i, found in zip(asked, together, strict=True):
        np.testing.assert_array_equal(found.margin, alone[i].margin)
        np.testing.assert_array_equal(found.coefficients, alone[i].coefficients)


def test_terms_that_do_not_fit_the_copies():
    """More terms than a thread keeps copies of: the rest is copied anew in every pass."""
    exposure, target = synthetic(9000, 9, 2, 2), torch.tensor([0, 8])
    ours = solve(exposure, target, threads=1)
    theirs = solve(exposure, target, method="highs", threads=1)
    assert set(ours.status.tolist()) == {0}
    torch.testing.assert_close(
        torch.from_numpy(ours.margin), torch.from_numpy(theirs.margin), rtol=0, atol=1e-8
    )
    assert ours.check(exposure).ok


# A basis inverted afresh, against NumPy.

CLASSES, GROUPS, TARGET = 6, 2, 5


@numba.njit
def invert(room, groups, slots):
    return refactor(room, groups, slots)


@pytest.mark.parametrize("seed", range(8))
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


# The campaign of hostile LPs: a short sample, and a judge that notices what is wrong.


def test_every_family_in_turn_without_a_fault(monkeypatch):
    monkeypatch.setattr(lps, "BATCH", 60)
    monkeypatch.setattr(lps, "TERMS", 9_000)
    told = []
    result = lps.campaign(11, 0.0, told.append)
    assert result.ok, result.faults
    assert len(FAMILIES_CAMPAIGN) >= 54 and FAMILIES_CAMPAIGN.keys() <= result.details.keys()
    assert result.tried == sum(result.details[name] for name in FAMILIES_CAMPAIGN) > 3000
    answered = [n for name, n in result.details.items() if name.startswith("status: ")]
    assert sum(answered) == result.tried and result.details["status: fallback"] > 0
    assert told == [f"{result.tried:,} LPs, 0 faults"]


@pytest.fixture(scope="module")
def solved():
    exposure, numbers = draw("three groups", 3, 40)
    return numbers, solve(exposure, "all")


def changed(solution, name, place, value):
    array = getattr(solution, name).copy()
    array[place] = value(array[place])
    return replace(solution, **{name: array})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("margin", lambda x: x + 1e-6, "a margin that is not that of λ"),
        ("bound", lambda x: x - 1e-6, "a bound that is not that of w"),
        ("rival_weights", lambda x: 1.5 * x, "λ or w are not admissible"),
        ("rival_weights", lambda x: np.full_like(x, 1 / len(x)), "λ or w are not admissible"),
        ("margin", lambda x: 1.0 if x < 0 else -1.0, "shows that it is not"),
    ],
)
def test_the_judge_notices_a_changed_answer(solved, name, value, text):
    numbers, solution = solved
    assert not list(judge(numbers, solution))
    place = int(np.flatnonzero(np.abs(solution.margin) > 0.1)[0])
    found = list(judge(numbers, changed(solution, name, place, value)))
    assert {i for i, _ in found} == {place} and any(text in words for _, words in found)


@pytest.mark.parametrize("change", [lambda x: 1.01 * x, lambda x: -x])
def test_the_judge_notices_changed_coefficients(solved, change):
    numbers, solution = solved
    found = list(judge(numbers, changed(solution, "coefficients", 0, change)))
    assert (0, "λ or w are not admissible") in found


def test_the_judge_notices_an_optimum_that_is_none(solved):
    """Another admissible w: margin and bound both hold, but they do not meet."""
    numbers, solution = solved
    weights = solution.rival_weights.copy()
    rival = int(np.flatnonzero(weights[0] < 0.5)[-1])
    weights[0] = 0.0
    weights[0, rival if rival != solution.target[0] else rival - 1] = 1.0
    worse = replace(solution, rival_weights=weights)
    bound = solution.bound.copy()
    bound[0] = float(intervals(numbers, worse).high[0])
    worse = replace(worse, bound=bound)
    texts = [text for i, text in judge(numbers, worse) if i == 0]
    assert texts == ["an optimum whose bound and margin do not meet"]
    assert judge_exactly(numbers, worse, 0).startswith("an optimum whose bound")


# Answers certified at their own scale, whatever lies beside them in the LP.

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
    solution, tables = solve(exposure, "all", threads=1), Tables.from_exposure(exposure)
    assert solution.decided.all() and set(solution.status.tolist()) <= {0, 1}
    for i in range(len(solution)):
        problem = build_lp(tables, 0, int(solution.recipient[i]), int(solution.target[i]))
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
        tables = Tables.from_exposure(exposure_of([node]))
        for c in range(3):
            problem = build_lp(tables, 0, 0, c)
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
    problem = build_lp(Tables.from_exposure(one_node(table)), 0, 0, 0)
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
    monkeypatch.setattr(lps_own_scale, "CHUNK", 5)
    one = solve(exposure, "all", threads=1)
    three = solve(exposure, "all", threads=3)
    monkeypatch.setattr(lps_own_scale, "CHUNK", 1)
    each = solve(exposure, "all", threads=1)
    for name in ("margin", "bound", "rival_weights", "terms", "coefficients", "status"):
        np.testing.assert_array_equal(getattr(one, name), getattr(three, name))
        np.testing.assert_array_equal(getattr(one, name), getattr(each, name))
    verdict = one.check(exposure)
    assert verdict.uncertified == verdict.undecided == 0 and verdict.gap < 1e-9


@pytest.mark.parametrize(
    ("family", "seed"), [("integers of 1e12", 23980076), ("dominated by 1e9", 21940067)]
)
def test_the_bound_is_that_of_the_stored_rivals(family, seed):
    """Rounding that is clipped off w moves the bound where one term is huge."""
    _, faults, _ = lps.try_family(family, seed, lps.BATCH)
    assert not faults
