"""What the certificate's clauses compute, against plain loops and at both sides of every bound."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.oracle import certificate, solve
from gnn_repair.oracle.certificate import UNDERFLOW, _Claims
from gnn_repair.oracle.metrics import _by_class
from gnn_repair.oracle.problems import Tables, as_whole, check_number
from gnn_repair.oracle.rates import Rate
from gnn_repair.oracle.solution import Solution
from gnn_repair.published import ACTIVE, REACHABLE
from tests.helpers.oracle.oracle_cases import exposure_of, members_exposure

CLASSES, GROUPS = 3, 2
SEGMENTS = np.array([0, 2, 5, 6, 6])
"""Recipient 0 has terms 0-1 and 2-4, recipient 1 has term 5 and lacks the second group."""


def tables(seed=0, members=2):
    """Two members; table rows and sources in an order of their own."""
    rng = np.random.default_rng(seed)
    mass = np.array([[0.5, 2.0], [3.0, 0.0]])
    return Tables(
        nodes=np.array([4, 7]),
        segments=SEGMENTS,
        rows=rng.permutation(6).astype(np.int32),
        sources=(10 + rng.permutation(6)).astype(np.int32),
        contributions=rng.normal(size=(members, 6, CLASSES)),
        mass=np.stack([mass * (1 + s) for s in range(members)]),
        fixed_logits=rng.normal(size=(members, 8, CLASSES)),
    )


def claims(held, supports, seed=1, **changes):
    """LPs (member, position, target, [(term, group, share)]) with random rival weights."""
    rng = np.random.default_rng(seed)
    member, position, target = (np.array([lp[i] for lp in supports]) for i in range(3))
    weights = rng.dirichlet(np.ones(CLASSES - 1), len(supports))
    full = np.stack([np.insert(w, c, 0.0) for w, c in zip(weights, target, strict=True)])
    beta = held.fixed_logits[member, held.nodes[position]]
    counts = [len(lp[3]) for lp in supports]
    term, group = (np.array([e[i] for lp in supports for e in lp[3]], np.int64) for i in (0, 1))
    part = Solution(
        member=member,
        recipient=position,
        node=held.nodes[position],
        target=target,
        margin=np.zeros(len(target)),
        bound=np.zeros(len(target)),
        status=np.zeros(len(target), np.int8),
        indptr=np.append(0, np.cumsum(counts)),
        terms=term,
        coefficients=changes.pop("share", np.array([e[2] for lp in supports for e in lp[3]])),
        sources=changes.pop("source", held.sources[held.rows[term]].astype(np.int64)),
        groups=group,
    )
    fixed = beta[np.arange(len(target)), target, None] - beta
    values = {"weights": full, "mass": held.mass[member, position], "fixed": fixed}
    return _Claims(part, None, **{**values, **changes})


SUPPORTS = [
    (0, 0, 1, [(0, 0, 0.5), (3, 1, 2.0)]),
    (1, 0, 2, [(1, 0, 1.0), (2, 1, 1.5), (4, 1, 2.5)]),
    (1, 1, 0, [(5, 0, 6.0)]),
]


def test_margins_and_bounds_are_those_of_plain_loops():
    for seed in range(5):
        held = tables(seed)
        made = claims(held, SUPPORTS, seed)
        worst, size = certificate._reached(held, made)
        limit, width, tied = certificate._limits(held, made)
        for i, (member, position, target, support) in enumerate(SUPPORTS):
            table = held.contributions[member][held.rows]
            margins, sizes = {}, {}
            for rival in set(range(CLASSES)) - {target}:
                parts = [share * (table[t, target] - table[t, rival]) for t, _, share in support]
                parts.append(made.fixed[i, rival])
                margins[rival], sizes[rival] = sum(parts), sum(map(abs, parts))
            lowest = min(margins, key=margins.get)
            assert worst[i] == pytest.approx(margins[lowest])
            assert size[i] == pytest.approx(sizes[lowest])
            fixed = made.weights[i] * made.fixed[i]
            bound, own = fixed.sum(), np.abs(fixed).sum()
            for group in range(GROUPS):
                low, high = SEGMENTS[position * GROUPS + group :][:2]
                if high > low:
                    parts = made.weights[i] * (table[low:high, [target]] - table[low:high])
                    best = parts.sum(1).argmax()
                    bound += made.mass[i, group] * parts[best].sum()
                    own += made.mass[i, group] * np.abs(parts[best]).sum()
            assert limit[i] == pytest.approx(bound)
            assert width[i] == pytest.approx(own)
            assert tied[i] == pytest.approx(own)


def test_ties_within_rounding_count_at_the_largest_size():
    """Two rivals, two terms: equal results made of small and of large numbers."""
    held = tables()
    held.contributions[0, held.rows[:2]] = [[1.0, 0.0, 1.0], [2.0, 0.0, 2.0]]
    lp = [(0, 0, 0, [(0, 0, 0.25), (1, 0, 0.25)])]
    fixed = np.array([[0.0, -100.0, -99.25]])
    made = claims(held, lp, fixed=fixed)
    worst, size = certificate._reached(held, made)
    # Rival 1: 0.25 + 0.5 − 100; rival 2: 0 + 0 − 99.25, the same sum of smaller numbers.
    assert (worst[0], size[0]) == (-99.25, 100.75)
    below = claims(held, lp, fixed=fixed + np.array([[0.0, 1e-9, 0.0]]))
    assert certificate._reached(held, below)[1][0] == 99.25


def test_admissible_by_hand():
    held = tables()
    fine = claims(held, SUPPORTS)
    assert certificate._admissible(fine) == pytest.approx((0.0, 0.0, 0.0))
    share = fine.part.coefficients.copy()
    share[0] += 0.01  # of a mass of one half
    assert certificate._admissible(claims(held, SUPPORTS, share=share))[0] == pytest.approx(0.02)
    share[0], share[1] = -0.05, 2.1  # −0.05 of one half; 0.1 too much of 2
    found = certificate._admissible(claims(held, SUPPORTS, share=share))
    assert found[:2] == pytest.approx((1.1, 0.1))
    for place, value, negative, mixture in [
        ((1, 0), fine.weights[1, 0] - 1.5, 1.5 - fine.weights[1, 0], 1.5),
        ((0, 1), 0.25, 0.0, 0.25),
    ]:
        weights = fine.weights.copy()
        weights[place] = value
        found = certificate._admissible(claims(held, SUPPORTS, weights=weights))
        assert found == pytest.approx((0.0, negative, mixture))
    # The target's own weight, while the sum is one.
    weights = fine.weights.copy()
    weights[0] = [0.5, 0.125, 0.375]
    assert certificate._admissible(claims(held, SUPPORTS, weights=weights))[2] == 0.125
    # λ in a group that has no mass counts as it is.
    stray = [(1, 1, 0, [(5, 0, 6.0), (5, 1, 0.25)])]
    assert certificate._admissible(claims(held, stray))[0] == 0.25


@pytest.mark.parametrize(
    ("position", "entries", "wrong"),
    [
        (0, [(0, 0), (1, 0), (2, 1), (4, 1)], False),
        (0, [(2, 0)], True),
        (0, [(1, 1)], True),
        (0, [(5, 1)], True),
        (1, [(5, 0)], False),
        (1, [(4, 0)], True),
        (0, [(1, 0), (0, 0)], True),
        (0, [(0, 0), (0, 0)], True),
    ],
)
def test_places(position, entries, wrong):
    held = tables()
    lp = (0, position, 0, [(term, group, 0.1) for term, group in entries])
    # The first LP ends behind where the second begins, which is no fault.
    made = claims(held, [(0, 1, 0, [(5, 0, 3.0)]), lp])
    assert certificate._misplaced(held, made).tolist() == [False, wrong]
    renamed = claims(held, [lp], source=np.full(len(entries), 99))
    assert certificate._misplaced(held, renamed).tolist() == [True]


@pytest.mark.parametrize(
    ("mass", "active", "large"),
    [
        # C = 3: at most C + B − 2 in all, C − 1 in a group.
        ((1.0, 1.0), (2, 1), False),
        ((1.0, 1.0), (1, 2), False),
        ((1.0, 1.0), (2, 2), True),
        ((1.0, 1.0), (3, 0), True),
        ((1.0, 0.0), (2, 0), False),
        ((1.0, 0.0), (2, 1), True),
        ((0.5, 0.0), (3, 0), True),
        ((0.0, 0.0), (2, 0), False),
        ((0.0, 0.0), (0, 0), False),
    ],
)
def test_supports(mass, active, large):
    held = tables()
    entries = [(0, g, 2 * ACTIVE) for g in range(GROUPS) for _ in range(active[g])]
    idle = [(0, 0, ACTIVE), (0, 1, 0.0)]  # not above the threshold: not active
    made = claims(held, [(0, 0, 0, entries + idle)], mass=np.array([mass]))
    assert certificate._oversized(made).tolist() == [large]


def test_errors_are_relative_and_underflow_is_none():
    relative = certificate._relative
    assert relative(np.array([0.5, -3.0]), np.array([1.0, 4.0])) == 0.75
    assert relative(np.array([UNDERFLOW, -UNDERFLOW / 2]), np.zeros(2)) == 0.0
    assert relative(np.array([3 * UNDERFLOW]), np.array([4 * UNDERFLOW])) == pytest.approx(0.5)
    with np.errstate(all="ignore"):
        assert relative(np.array([1.0]), np.zeros(1)) > 1e300
        assert relative(np.array([math.nan]), np.ones(1)) == math.inf
    assert relative(np.empty(0), np.empty(0)) == 0.0


@pytest.mark.parametrize("rate", [Rate(0, 5), Rate(5, 5), Rate(1, 3)])
def test_intervals_stay_between_nothing_and_everything(rate):
    low, high = rate.interval
    assert 0 <= low <= rate.value <= high <= 1
    assert (low == 0) is (rate.hits == 0) and (high == 1) is (rate.hits == rate.total)


def test_a_class_at_the_threshold_is_not_within_reach():
    margin = np.array([[REACHABLE, 2 * REACHABLE, -1.0], [0.0, 1.0, 1.0]])
    solution = solve(exposure_of([(np.zeros(3), [(np.ones(1), np.eye(3)[:1])])] * 2), "all")
    edge = replace(solution, margin=margin.ravel(), bound=margin.ravel())
    found = _by_class(edge, 3)
    assert found.reachable.tolist() == [[False, True, False], [False, True, True]]
    assert found.count.tolist() == [1, 2]
    assert str(found) == "classes within reach of 2 nodes: 1: 50.0 %, 2: 50.0 %"


def test_numbers_that_are_none():
    assert check_number(3, "x") == 3.0 and check_number(np.float32(0.5), "x") == 0.5
    assert as_whole(np.int64(3), "x") == 3
    for value in (True, "1", math.nan, math.inf, None):
        with pytest.raises(InputError, match="x must be a finite number"):
            check_number(value, "x")
    for value in (True, np.True_, 1.0, "1", None):
        with pytest.raises(InputError, match="x must be a whole number"):
            as_whole(value, "x")


def test_margins_by_class():
    exposure = members_exposure()
    y = torch.tensor([2, -1, 3, 0])
    solution = solve(exposure, y)
    full = solution.by_class(3, 4)
    assert full.shape == (3, 4, 4) and solution.skipped == 3 and solution[1:3].skipped == 0
    for i in range(len(solution)):
        where = solution.member[i], solution.recipient[i], solution.target[i]
        assert full[where] == solution.margin[i]
    assert np.isnan(full).sum() == 3 * (16 - 3)
    with pytest.raises(InputError, match="exposure is a str"):
        solution.dense("exposure")
    with pytest.raises(InputError, match='fill must be "frozen" or "zero"'):
        solution.dense(exposure, "one")
