"""The campaign of hostile LPs: a short sample, and a judge that notices what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnn_repair.oracle import solve
from tests.campaigns import lps
from tests.campaigns.lp_families import FAMILIES, draw
from tests.campaigns.lp_judge import intervals, judge, judge_exactly


def test_every_family_in_turn_without_a_fault(monkeypatch):
    monkeypatch.setattr(lps, "BATCH", 60)
    monkeypatch.setattr(lps, "TERMS", 9_000)
    told = []
    result = lps.campaign(11, 0.0, told.append)
    assert result.ok, result.faults
    assert len(FAMILIES) >= 54 and FAMILIES.keys() <= result.details.keys()
    assert result.tried == sum(result.details[name] for name in FAMILIES) > 3000
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
