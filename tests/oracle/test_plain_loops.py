"""The vectorised loops give what plain ones give, whatever the length."""

from __future__ import annotations

import inspect
from functools import cache

import numba
import numpy as np
import pytest

from gnn_repair.oracle.workspace import (
    DUAL,
    GROUP,
    HUGE,
    INVERSE,
    LOOSE,
    MASS,
    STEP,
    STRIDE,
    TERM,
    TIGHT,
    VALUES,
    new_room,
)
from tools.plain_simplex import loops

VECTORISED, PLAIN = loops("gnn_repair.oracle.vectors"), loops("tools.plain_simplex")


@cache
def callable_from_python(loop):
    """Compiled kernels can only be called from compiled code."""
    names = ", ".join(inspect.signature(loop.py_func).parameters)
    scope = {"loop": loop}
    exec(f"def outer({names}):\n    return loop({names})", scope)
    return numba.njit(scope["outer"])


def both(name, make):
    """What both forms return for arguments made twice, and the arguments afterwards."""
    results = []
    for loop in (VECTORISED[name], PLAIN[name]):
        arguments = make()
        results.append((callable_from_python(loop)(*arguments), arguments))
    return results


def test_both_have_the_same_loops_with_the_same_arguments():
    private = {name for name in VECTORISED if name.startswith("_")}
    assert set(VECTORISED) - private == set(PLAIN)
    for name, loop in PLAIN.items():
        assert inspect.signature(loop.py_func) == inspect.signature(VECTORISED[name].py_func)


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 31, 33])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("copy_row", (0, 2)),
        ("set_multiple", (1, -1.5, 2)),
        ("add_multiple", (1, 0.3, 2)),
    ],
)
def test_rows_are_combined_alike(name, arguments, count):
    (_, ours), (_, plain) = both(name, lambda: (numbers(count, 3, 64), *arguments, count))
    np.testing.assert_allclose(ours[0][:, :count], plain[0][:, :count], rtol=1e-14)
    np.testing.assert_array_equal(ours[0][:, count + 8 :], plain[0][:, count + 8 :])


@pytest.mark.parametrize("count", [1, 8, 13])
def test_rows_are_exchanged_alike(count):
    made = both("exchange_and_divide", lambda: (numbers(count, 4, 32), 1, 3, count, 0.7))
    (_, ours), (_, plain) = made
    np.testing.assert_allclose(ours[0][:, :count], plain[0][:, :count], rtol=1e-14)
    start = numbers(count, 4, 32)
    np.testing.assert_allclose(ours[0][1, :count], start[3, :count] / 0.7, rtol=1e-14)
    np.testing.assert_array_equal(ours[0][3, :count], start[1, :count])


@pytest.mark.parametrize("count", [1, 8, 21, 64])
def test_extremes_and_sums_are_alike(count):
    def padded():
        values = numbers(count, 5, count + STRIDE)
        values[:, count:] = 0.0
        return values

    assert both("largest", lambda: (padded(), count))[0][0] == np.abs(padded()).max()
    closed = both("close_and_top", lambda: (padded()[0], 0, count))
    assert closed[0][0] == closed[1][0] == padded()[0, :count].max()
    top = closed[0][0]
    place = int(padded()[0, :count].argmax())
    found = both("find", lambda: (padded()[0], 0, top))
    assert found[0][0] == found[1][0] == place
    made = both("add_up", lambda: (padded(), count, np.zeros(count + STRIDE)))
    for longest, arguments in made:
        np.testing.assert_allclose(longest, (padded() ** 2).sum(0).max(), rtol=1e-13)
        np.testing.assert_allclose(arguments[2][:count], padded()[:, :count].sum(0), atol=1e-13)


def test_a_number_that_is_none_is_infinitely_long():
    def broken():
        values = numbers(0, 3, 40)
        values[1, 2] = np.nan
        return values, 5, np.zeros(40)

    assert [result for result, _ in both("add_up", broken)] == [np.inf, np.inf]


CLASSES, GROUPS, SLOTS = 5, 2, 4


def room_of(seed):
    """A room in the middle of an LP with ten columns."""
    room, generator = new_room(CLASSES, GROUPS, widest=10), np.random.default_rng(seed)
    size = CLASSES + GROUPS
    room.entries[:, :10] = generator.normal(size=(CLASSES, 10))
    room.labels[GROUP, :10], room.labels[TERM, :10] = [0] * 6 + [1] * 4, np.arange(10)
    room.state[INVERSE : INVERSE + SLOTS, :size] = generator.normal(size=(SLOTS, size))
    room.state[VALUES, :size] = generator.uniform(0, 1, size)
    room.state[STEP, :size] = generator.normal(size=size)
    room.state[LOOSE, :CLASSES] = [1, 0, 1, 0, 1]
    room.state[DUAL, :SLOTS], room.state[MASS, :GROUPS] = generator.normal(size=SLOTS), [1.5, 0.5]
    room.places[TIGHT, GROUPS:SLOTS] = [1, 3]
    room.buffer[:10] = generator.normal(size=10)
    return room


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_columns_are_w_times_d(seed):
    start = room_of(seed)
    expected = start.buffer[:10] + start.state[DUAL, 2:4] @ start.entries[[1, 3], :10]
    for best, (room, *_) in both("add_scores", lambda: (room_of(seed), GROUPS, 10, SLOTS)):
        np.testing.assert_allclose(room.buffer[:10], expected, rtol=1e-12)
        np.testing.assert_allclose(best, expected.max(), rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_ratio_test_is_alike(seed):
    start, size = room_of(seed).state, CLASSES + GROUPS
    falls = start[STEP, :size] > 0.1
    ratios = np.where(falls, (start[VALUES, :size] + 0.01) / start[STEP, :size], HUGE)
    for shortest, _ in both("shortest_step", lambda: (room_of(seed).state, size, 0.01, 0.1)):
        np.testing.assert_allclose(shortest, ratios.min(), rtol=1e-14)
    length = ratios.min()
    blocks = start[VALUES, :size] <= length * start[STEP, :size]
    near = np.where(blocks, start[STEP, :size], 0.0)
    made = both("steepest_within", lambda: (room_of(seed).state, size, length, np.zeros(64)))
    for steepest, arguments in made:
        assert steepest == max(near.max(), 0.0)
        np.testing.assert_array_equal(arguments[3][:size], near)
