"""Certificates, bad input, fallbacks, files and metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.oracle import fallback, lps, solve
from gnn_repair.oracle.problems import FAILED
from tests.helpers.oracle.oracle_cases import exposure_of, families, random_node


@pytest.fixture(scope="module")
def exposure():
    return exposure_of(families(9)["three groups"][:12])


@pytest.fixture(scope="module")
def solution(exposure):
    return solve(exposure, "all")


@pytest.mark.parametrize("method", ["simplex", "highs"])
def test_every_term_says_whose_it_is(method):
    rng = np.random.default_rng(12)
    lengths = ([3, 0, 5], [0, 4, 2], [1, 1, 1], [0, 0, 6])
    exposure = exposure_of([random_node(rng, terms, 4) for terms in lengths])
    found = solve(exposure, "all", method=method)
    rows = exposure.rows.numpy()[found.terms]
    np.testing.assert_array_equal(found.sources, exposure.sources.numpy()[rows])
    owner = np.searchsorted(exposure.segments.numpy(), found.terms, side="right") - 1
    recipient = np.repeat(found.recipient, np.diff(found.indptr))
    np.testing.assert_array_equal(recipient * 3 + found.groups, owner)


def test_other_recipients_are_refused_and_those_that_are_left_answer_alike(exposure):
    part = exposure.restrict(torch.tensor([4, 2]))
    with pytest.raises(InputError, match="node 3 is not among the exposure's recipients"):
        solve(part, "all", torch.tensor([3]))
    full, few = solve(exposure, "all", torch.tensor([2])), solve(part, "all")
    np.testing.assert_array_equal(few.margin[few.node == 2], full.margin)


def test_a_single_class_is_refused():
    with pytest.raises(InputError, match="at least two classes"):
        exposure_of([(np.zeros(1), [(np.ones(1), np.ones((1, 1)))])])


def test_a_node_without_terms_keeps_its_frozen_margin():
    rng = np.random.default_rng(0)
    empty = (np.array([1.0, 3.0, 2.5]), [(np.empty(0), np.empty((0, 3)))])
    exposure = exposure_of([empty, random_node(rng, [4], 3)])
    for method in ("simplex", "highs"):
        solution = solve(exposure, "all", torch.tensor([0]), method=method)
        np.testing.assert_allclose(solution.margin, [-2.0, 0.5, -0.5])
        np.testing.assert_allclose(solution.bound, solution.margin)
        assert solution.support.tolist() == [0, 0, 0]
        assert solution.check(exposure).ok


def give_up_on(numbers):
    """Our solver with a few LPs marked as failed, and every LP of a second attempt."""
    real = lps._solve_chunk

    def chunk(tables, asked, room):
        piece = real(tables, asked, room)
        for k in numbers if len(asked) == 72 else range(len(asked)):
            piece.status[k] = FAILED
            piece.margin[k] = 1e9
        return piece

    return chunk


def test_highspy_takes_over_what_we_give_up_on(monkeypatch, exposure, solution):
    monkeypatch.setattr(lps, "_solve_chunk", give_up_on([0, 5, 40]))
    again = solve(exposure, "all")
    np.testing.assert_allclose(again.margin, solution.margin, atol=1e-8)
    assert np.flatnonzero(again.status == 1).tolist() == [0, 5, 40] == list(again.reasons)
    assert set(again.reasons.values()) == {"highspy, with shortened columns"}
    assert again.check(exposure).ok
    assert "3 fallback" in str(again)


def tired(_, problem, *__):
    return fallback.failed(problem, "too tired")


def test_where_highspy_fails_rational_arithmetic_takes_over(monkeypatch, exposure, solution):
    monkeypatch.setattr(lps, "_solve_chunk", give_up_on([5]))
    monkeypatch.setattr(fallback.Highs, "solve", tired)
    again = solve(exposure, "all")
    assert again.reasons == {5: "rational arithmetic"} and again.status[5] == 1
    np.testing.assert_allclose(again.margin, solution.margin, atol=1e-13)
    assert again.check(exposure).ok


def test_where_all_fail_a_failure_is_a_status(monkeypatch, exposure, solution):
    monkeypatch.setattr(lps, "_solve_chunk", give_up_on([5]))
    monkeypatch.setattr(fallback, "LIMIT", 3)
    monkeypatch.setattr(fallback.Highs, "solve", tired)
    again = solve(exposure, "all")
    assert list(again.reasons) == [5] and "rational arithmetic" in again.reasons[5]
    assert np.isnan(again.margin[5]) and not again.reachable[5] and not again.decided[5]
    assert "no answer" in str(again[5])
    others = np.arange(len(again)) != 5
    np.testing.assert_array_equal(again.margin[others], solution.margin[others])
    verdict = again.check(exposure)
    assert verdict.failed == 1 and not verdict.ok and verdict.gap < 1e-9
