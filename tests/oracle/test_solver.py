"""Our simplex method against highspy, brute force, exact arithmetic and known answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.oracle import synthetic
from gnn_repair.oracle import solve
from gnn_repair.oracle.problems import Tables, instance
from tests.helpers.oracle.oracle_cases import exposure_of, families, random_node
from tests.helpers.oracle.oracle_exact import exact_margin

FAMILIES = tuple(families(0))


def scale_of(exposure, solution):
    """How large the numbers of each LP are."""
    tables = Tables.of(exposure)
    lps = zip(solution.member, solution.recipient, solution.target, strict=True)
    return np.array(
        [
            max(problem.scale, np.abs(problem.fixed).max())
            for problem in (instance(tables, *(int(i) for i in lp)) for lp in lps)
        ]
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_highspy_and_proves_itself(family, seed):
    exposure = exposure_of(families(seed)[family])
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
    tables = Tables.of(exposure)
    for i in range(len(solution)):
        problem = instance(tables, 0, int(solution.recipient[i]), int(solution.target[i]))
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


def test_invariances():
    nodes = families(5)["three groups"][:20]
    base = solve(exposure_of(nodes), "all").margin
    rng = np.random.default_rng(0)

    def margins(change):
        return solve(exposure_of([change(node) for node in nodes]), "all").margin

    def shifted(node):
        beta, parts = node
        moved = [(a, t + 100 * rng.normal(size=(len(a), 1))) for a, t in parts]
        return beta + 7.0, moved

    def permuted(node):
        beta, parts = node
        orders = [rng.permutation(len(a)) for a, _ in parts]
        return beta, [(a[o], t[o]) for (a, t), o in zip(parts, orders, strict=True)]

    def split(node):
        beta, parts = node
        return beta, [
            (np.append(a[:-1], [a[-1] / 3, 2 * a[-1] / 3]), np.concatenate([t, t[-1:]]))
            for a, t in parts
        ]

    def scaled(node):
        beta, parts = node
        return 3 * beta, [(3 * a, t) for a, t in parts]

    np.testing.assert_allclose(margins(shifted), base, atol=1e-10)
    np.testing.assert_allclose(margins(permuted), base, atol=1e-12)
    np.testing.assert_allclose(margins(split), base, atol=1e-12)
    np.testing.assert_allclose(margins(scaled), 3 * base, atol=1e-12)


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
    exposure = exposure_of(families(2)["three groups"])
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
    exposure = exposure_of(families(4)["eighteen classes"] * 8)
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


def test_members_solve_their_own_masks():
    nodes = families(6)["one group"][:12]
    first, second = exposure_of(nodes), exposure_of(nodes)
    other = 2 * second.contributions
    both = replace(
        first,
        contributions=torch.cat([first.contributions, other]),
        fixed_logits=torch.cat([first.fixed_logits, first.fixed_logits]),
        frozen_logits=torch.cat(
            [first.frozen_logits, 2 * first.frozen_logits - first.fixed_logits]
        ),
    )
    y = torch.arange(12) % 7
    mask = torch.zeros(12, 2, dtype=torch.bool)
    mask[:5, 0], mask[3:9, 1] = True, True
    solution = solve(both, y, mask)
    assert solution.member.tolist() == [0] * 5 + [1] * 6
    assert solution.node.tolist() == [*range(5), *range(3, 9)]
    single = solve(both.member(1), y, torch.arange(3, 9))
    np.testing.assert_array_equal(solution.margin[5:], single.margin)
    assert solution.check(both).ok


@pytest.mark.parametrize("seed", range(40))
def test_generated_instances_prove_themselves(seed):
    """Shapes and number families drawn at random, each LP certified without any solver."""
    rng = np.random.default_rng(1000 + seed)
    classes, groups = int(rng.integers(2, 12)), int(rng.integers(1, 5))
    kind = rng.choice(["normal", "integer", "sparse", "heavy"])

    def draw(shape):
        normal = rng.normal(size=shape)
        if kind == "integer":
            return np.round(normal)
        if kind == "sparse":
            return normal * (rng.random(shape) < 0.3)
        return normal * (np.exp(3 * rng.normal(size=shape)) if kind == "heavy" else 1)

    top = int(rng.choice([3, 30, 300]))
    nodes = [
        random_node(rng, [int(k) for k in rng.integers(0, top, groups)], classes, draw)
        for _ in range(6)
    ]
    if not any(len(alpha) for _, parts in nodes for alpha, _ in parts):
        nodes[0] = random_node(rng, [1] * groups, classes, draw)
    exposure = exposure_of(nodes)
    solution = solve(exposure, "all", threads=1)
    verdict = solution.check(exposure)
    assert verdict.ok, verdict


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
