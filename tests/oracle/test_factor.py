"""A basis inverted afresh, against NumPy."""

from __future__ import annotations

import numba
import numpy as np
import pytest

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
