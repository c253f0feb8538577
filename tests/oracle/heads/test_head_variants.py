"""Nearest reweightings, needed terms and relaxed masses of models with heads, beside grids of all
admissible coefficients and beside the same questions about an affine model."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.operations import HeadGraph, Scale
from gnn_repair.exposure.value import LAST_HOP, Exposure
from gnn_repair.oracle import (
    nearest_reweighting,
    reach,
    relax,
    relaxed_margins,
    solve,
    stable_evidence,
    summarise,
    value_range,
)
from gnn_repair.oracle.heads.solve import solve_head
from gnn_repair.oracle.problems import CAN, CANNOT, UNDECIDED
from gnn_repair.oracle.questions import relaxed
from gnn_repair.oracle.questions.nearest import Ball
from tests.helpers.oracle.head_cases import CLASSES, NODES, mixture, replay_of, tail_of, tailed

STEPS = 60


def small(kind: str, seed: int) -> Exposure:
    """At most three terms a node, so that a grid sees every λ."""
    aggregate, tail = mixture(seed, widest=4), tail_of(kind, seed)
    logits = tail(aggregate.frozen_logits[0], torch.arange(NODES))
    return aggregate.with_head(tail, logits[None], replay=replay_of(aggregate, tail))


def labels(seed: int) -> torch.Tensor:
    return torch.randint(0, CLASSES, (NODES,), generator=torch.Generator().manual_seed(seed))


def margins_on_grid(exposure: Exposure, node: int, target: int):
    """Shares [P, K ≤ 3] of a simplex, their margins [P] by dense algebra, and the mass."""
    mixed = exposure.aggregate
    first, last = mixed.segments[node], mixed.segments[node + 1]
    rest = np.array([*itertools.product(range(STEPS + 1), repeat=int(last - first) - 1)])
    rest = rest[rest.sum(1) <= STEPS]
    shares = np.concatenate([rest, STEPS - rest.sum(1, keepdims=True)], axis=1) / STEPS
    mass = float(mixed.coefficients[0, first:last].sum())
    messages = mixed.contributions[0, mixed.rows[first:last].long()]
    points = mixed.fixed_logits[0, node] + torch.from_numpy(mass * shares) @ messages
    logits = exposure.head(points, torch.full((len(points),), node)).numpy()
    return shares, logits[:, target] - np.delete(logits, target, 1).max(1), mass


@pytest.mark.parametrize(
    ("kind", "margin"), [("relu", 1e-7), ("mlp", 1e-7), ("relu", 0.3), ("relu", -0.3)]
)
def test_the_nearest_reweighting_beside_a_grid_of_all(kind, margin):
    seen = Counter()
    for seed in (2, 5):
        exposure, y = small(kind, seed), labels(seed)
        ends, asked = exposure.segments.tolist(), range(1, NODES)
        bounds = solve(exposure, y, asked).bound
        answers = nearest_reweighting(exposure, y, asked, margin=margin)
        for found, bound in zip(answers, bounds, strict=True):
            v, target, alpha = found.node, int(y[found.node]), exposure.coefficients[0]
            alpha = alpha[ends[v] : ends[v + 1]].numpy()
            seen[found.status] += 1
            shares, margins, mass = margins_on_grid(exposure, v, target)
            won = margins >= margin
            if found.status == "unreachable":  # which a bound must say
                assert not won.any() and bound < margin
            if found.status != "moved":
                continue
            least = np.abs(mass * shares - alpha).sum(1)[won].min(initial=np.inf) / 2
            assert found.bound <= min(least, found.moved) + 1e-12
            assert found.moved <= least + 1e-9 or found.moved <= least * 1.02
            assert found.proved == (found.moved - found.bound <= 1e-2 * found.moved)
            whole = exposure.coefficients[0].clone()
            whole[found.terms] += torch.from_numpy(found.change)
            assert float(whole.min()) >= -1e-12
            assert float(whole[ends[v] : ends[v + 1]].sum()) == pytest.approx(mass, rel=1e-9)
            said = exposure.replay(whole)[v].double()
            rest = torch.cat([said[:target], said[target + 1 :]]).max()
            assert float(said[target] - rest) == found.margin >= margin
            assert found.replayed and "the model itself says so" in str(found)
            told = re.search(r"at least ([\d.]+) % must move", str(found))
            assert (told is not None) == (found.bound > 0)
            assert told is None or float(told[1]) == pytest.approx(100 * found.bound / mass, 0.06)
    assert min(seen[name] for name in ("moved", "unreachable", "already wins")) >= 3, seen


@pytest.mark.parametrize("kind", ["relu", "mlp", "layer_norm"])
def test_only_bounds_that_are_asked_for_are_proved(kind):
    exposure = tailed(kind, 4, groups=2)
    for below in (1e-7, 0.3):
        whole, part = (solve_head(exposure, "all", below=end) for end in (np.inf, below))
        asked = whole.bound < below
        assert asked.any() and (part.bound[asked] == whole.bound[asked]).all()
        rest = np.isinf(part.bound) | (part.bound == whole.bound)
        assert rest.all() and np.isinf(part.bound[whole.bound > 10 * below]).any()
        np.testing.assert_array_equal(part.margin, whole.margin)


def test_a_ball_holds_every_reweighting_within_its_distance():
    exposure, rng = tailed("relu", 4, groups=2), np.random.default_rng(0)
    d = torch.from_numpy(rng.uniform(0.02, 0.5, NODES))
    around = Ball.of(exposure, torch.arange(NODES), d).around
    bound = solve(around, "all", effort="fast").bound.reshape(NODES, CLASSES)
    ends, mixed = exposure.segments.numpy(), exposure.aggregate
    for v in range(2, NODES):
        for _ in range(12):
            lam = mixed.coefficients[0].clone()
            for g in range(2):
                part = slice(ends[2 * v + g], ends[2 * v + g + 1])
                alpha = lam[part].numpy()
                aim = alpha.sum() * rng.dirichlet(np.full(len(alpha), 0.3))
                far = np.abs(aim - alpha).sum() / 2
                step = min(1.0, float(d[v]) / far) if far else 0.0
                lam[part] = torch.from_numpy(alpha + step * (aim - alpha))
            logits = exposure.logits(lam)[0, v].numpy()
            for c in range(CLASSES):
                assert logits[c] - np.delete(logits, c).max() <= bound[v, c] + 1e-9


@pytest.mark.parametrize("kind", ["relu", "layer_norm"])
def test_a_term_is_needed_where_no_grid_point_wins_without_it(kind):
    counts, exposure = Counter(), small(kind, 7)
    for found in itertools.chain(
        *(stable_evidence(exposure, labels(s), torch.arange(2, NODES)) for s in (7, 8))
    ):
        if found.verdict != "can":
            assert not found.indispensable.any() and "indispensable" not in str(found)
            continue
        shares, margins, _ = margins_on_grid(exposure, found.node, found.target)
        for k, word in enumerate(found.without):
            unused = margins[shares[:, k] == 0]
            if word == "cannot":
                assert not len(unused) or unused.max() <= 1e-7
                assert found.indispensable[k] and not found.interchangeable[k]
            if word == "can":
                # A grid may miss a narrow win, but then comes close to it.
                assert unused.max() > -0.05 and found.interchangeable[k]
            counts[word] += 1
        assert f"{found.indispensable.sum()} indispensable" in str(found)
    assert min(counts["can"], counts["cannot"]) > 3, counts


def test_needed_terms_hang_on_no_order_and_on_no_size_of_the_masses():
    """A node asked twice, every class asked; masses shrunk and messages grown alike."""
    exposure, y = small("relu", 7), labels(7)

    def words(exposure, y, nodes):
        return [(one.node, one.target, *one.without) for one in stable_evidence(exposure, y, nodes)]

    alone = words(exposure, y, [4, 3])
    assert words(exposure, y, [4, 3, 4]) == [*alone, alone[0]]
    assert [row for row in words(exposure, "all", [4, 3]) if row[1] == y[row[0]]] == alone
    mixed, mass = exposure.aggregate, 1e-9
    coefficients, contributions = mixed.coefficients * mass, mixed.contributions / mass
    scaled = replace(mixed, coefficients=coefficients, contributions=contributions)
    replay = replay_of(scaled, exposure.head)
    same = scaled.with_head(exposure.head, exposure.frozen_logits, replay=replay)
    nodes = torch.arange(2, NODES)
    assert words(same, y, nodes) == words(exposure, y, nodes)


def test_relaxed_reach_grows_with_the_slack_and_is_replayed():
    exposure, y = tailed("relu", 3, groups=2), labels(1)
    found = relaxed_margins(exposure, y, range(12), slack=(0.0, 0.25, 1.0))
    proved = [rate.hits for rate in found.rates]
    possible = [rate.hits + rate.undecided for rate in found.rates]
    assert proved == sorted(proved) and possible == sorted(possible) and proved[0] < proved[-1]
    np.testing.assert_array_equal(found.verdict[0], solve(exposure, y, range(12)).verdict)
    loose = relax(exposure, 0.25)
    lam = loose.coefficients[0].double()
    torch.testing.assert_close(loose.replay(lam), exposure.replay(exposure.coefficients[0]))
    assert "ρ = 0.25: reach" in str(found)


@pytest.mark.parametrize("headed", [True, False])
def test_answers_about_the_last_hop_say_so(headed):
    exposure = tailed("relu", 3) if headed else mixture(3)
    y = labels(1) if headed else torch.zeros(NODES, dtype=torch.long)
    (group,) = exposure.groups
    named = replace(group, rule=f"{group.rule}, {LAST_HOP}")
    exposure = replace(exposure, groups=(named,))
    solution = solve(exposure, y)
    assert LAST_HOP in str(solution) and LAST_HOP in str(solution[3])
    assert f"about            the {LAST_HOP}" in str(reach(exposure, y))
    if headed:
        with pytest.raises(InputError, match="is no solution of"):
            summarise(exposure.aggregate, solution, y)


def test_an_operation_without_bounds_is_not_called_nearest():
    found = nearest_reweighting(tailed("opaque", 3), labels(1))
    moved = [answer for answer in found if answer.status == "moved"]
    assert moved and all(answer.bound == 0 and not answer.proved for answer in moved)
    assert str(moved[0]).endswith("not proved nearest")
    assert any(answer.status == "undecided" and answer.reason for answer in found)
    assert all(isinstance(answer.moved, float) for answer in found)


def test_ranges_of_values_far_from_zero_in_the_precision_of_the_model():
    exposure = replace(tailed("relu", 3), outputs="values", replay=None)
    near = value_range(exposure, [4], effort="fast")
    assert not near.lower.scope and not near.upper.scope  # values have no rivals to win against
    head, shift = exposure.head, torch.full((CLASSES,), 1000.0, dtype=torch.float64)
    last = Scale((len(head.operations),), torch.ones_like(shift), shift)
    head = HeadGraph(head.width, (*head.operations, last))
    said = (exposure.frozen_logits + 1000.0).float().double()
    far = value_range(replace(exposure, head=head, frozen_logits=said), [4], effort="fast")
    np.testing.assert_allclose(far.low - 1000, near.low, atol=0.05)
    np.testing.assert_allclose(far.high - 1000, near.high, atol=0.05)


def test_answers_carry_to_every_slack_they_hold_for():
    """All consistent answers at three slacks in all orders: a win at one is a win at every larger,
    an exclusion at one is one at every smaller."""
    for own in itertools.product((CAN, CANNOT, UNDECIDED), repeat=3):
        if any(own[i] == CAN and own[j] == CANNOT for i in range(3) for j in range(i, 3)):
            continue
        told = [
            CAN if CAN in own[: i + 1] else CANNOT if CANNOT in own[i:] else UNDECIDED
            for i in range(3)
        ]
        margin = np.where(np.array(own) == CAN, 1.0, -1.0)
        bound = np.where(np.array(own) == CANNOT, 0.0, 2.0)
        for order in itertools.permutations(range(3)):
            place = list(order)
            carried = [values[place].reshape(3, 1) for values in (margin, bound, np.array(own))]
            relaxed._carry(np.array(order) / 3, *carried)
            assert carried[2].ravel().tolist() == [told[i] for i in order]
            for i, k in enumerate(order):
                assert carried[0][i] == margin[: k + 1].max() and carried[1][i] == bound[k:].min()
