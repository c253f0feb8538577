"""Parts of polytopes: they cover the whole, their bounds hold, and wrong ones are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnn_repair.oracle import solve
from gnn_repair.oracle.heads.bound import base_of, original_shares, region_of, subdivided
from gnn_repair.oracle.heads.branch import corner_points
from tests.helpers.oracle.head_cases import tailed


@pytest.fixture(scope="module")
def exposure():
    return tailed("gelu", 4, 1)


@pytest.fixture(scope="module")
def halved(exposure):
    """A question that halvings decided."""
    solution = solve(exposure, "all")
    terms = np.diff(exposure.aggregate.segments.numpy())[solution.recipient]
    for i in np.flatnonzero((solution.verdict == "cannot") & (terms > 2)).tolist():
        one = solution[i : i + 1]
        if (one.proofs.operation < 0).any():
            return one
    raise AssertionError("no question needed halves")


def test_a_point_of_a_part_is_the_mixture_of_its_original_shares(exposure):
    base = base_of(exposure)
    position = int(np.argmax(np.diff(base.ends)[:, 0]))
    first, last = base.ends[position]
    halvings = ((0, 1, 1), (1, 2, -1), (0, 2, 1))
    part = subdivided(base, np.array([position]), [halvings])
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(last - first)) * base.mass[position, 0]
    own = original_shares(halvings, shares)
    assert own.min() >= 0 and own.sum() == pytest.approx(base.mass[position, 0])
    assert shares @ part.table == pytest.approx(own @ base.table[base.rows[first:last]])
    # Corner 0 is the middle of the middles of 0, 1 and of 1, 2.
    assert original_shares(halvings, np.eye(last - first)[0])[:3] == pytest.approx(
        [0.25, 0.5, 0.25]
    )


def test_intervals_of_a_part_hold_all_of_its_points_and_shrink(exposure):
    base = base_of(exposure)
    position = np.flatnonzero(np.diff(base.ends)[:, 0] > 2)[:4]
    whole = region_of(base, position)
    part = region_of(subdivided(base, position, [((0, 1, 1), (1, 2, 1))] * 4), np.arange(4))
    points, nodes = corner_points(part)
    values, owner = base.graph.values(points, nodes), np.repeat(np.arange(4), np.diff(part.begins))
    for number, (box,) in part.boxes.items():
        inside = values[base.graph.operations[number].inputs[0]]
        assert bool((inside >= box.low[owner]).all()) and bool((inside <= box.high[owner]).all())
        before = whole.boxes[number][0]
        assert bool((box.high - box.low <= before.high - before.low + 1e-12).all())
        assert bool((box.high - box.low < before.high - before.low - 1e-3).any())


def test_the_proof_by_halves_holds(halved, exposure):
    assert halved.check(exposure).ok


@pytest.mark.parametrize("change", ["side", "edge", "no edge", "one half"])
def test_wrong_halves_are_found(halved, exposure, change):
    proofs = halved.proofs
    where = np.flatnonzero(proofs.operation < 0)
    sign, operation, unit = proofs.sign.copy(), proofs.operation.copy(), proofs.unit.copy()
    if change == "side":
        sign[where[0]] *= -1
    elif change == "edge":
        ends = {-1 - operation[where[0]], unit[where[0]]}
        unit[where[0]] = min({0, 1, 2} - ends)
    elif change == "no edge":
        unit[where] = -1 - operation[where]
    else:
        proofs = proofs.take(np.array([0]))
        proofs = replace(
            proofs,
            indptr=np.array([0, 1]),
            weights=proofs.weights[:1],
            slopes=proofs.slopes[:1],
            splits=proofs.splits[:2],
            **{
                name: getattr(proofs, name)[: proofs.splits[1]]
                for name in ("operation", "unit", "sign", "multiplier")
            },
        )
        assert not replace(halved, proofs=proofs).check(exposure).ok
        return
    changed = replace(proofs, sign=sign, operation=operation, unit=unit)
    assert not replace(halved, proofs=changed).check(exposure).ok
