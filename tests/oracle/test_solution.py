"""Certificates, bad input, fallbacks, files and metrics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.oracle import Rate, Solution, class_reach, fallback, lps, reach, solve
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


def damaged(solution, name, change):
    array = getattr(solution, name).copy()
    change(array)
    return replace(solution, **{name: array})


def set_first(value):
    def change(array):
        array[0] = value(array[0])

    return change


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("coefficients", set_first(lambda x: x + 0.01), "mass"),
        ("coefficients", set_first(lambda x: -x), "negative"),
        ("margin", set_first(lambda x: x + 1e-3), "margin"),
        ("bound", set_first(lambda x: x - 1e-3), "bound"),
        ("rival_weights", set_first(lambda x: x * 1.1), "mixture"),
        ("rival_weights", set_first(lambda x: np.roll(x, 1)), "bound"),
        ("terms", set_first(lambda x: x + 100), "misplaced"),
    ],
)
def test_the_check_notices_damage(exposure, solution, name, change, field):
    assert solution.check(exposure).ok
    verdict = damaged(solution, name, change).check(exposure)
    assert not verdict.ok
    assert getattr(verdict, field) > 1e-6


def test_the_check_notices_a_support_that_is_too_large(exposure):
    """α itself is feasible but not basic."""
    y = torch.zeros(exposure.num_nodes, dtype=torch.long)
    solution = solve(exposure, y)
    first = solution.node == 0
    count = int(exposure.segments[3])
    alpha = exposure.coefficients[0, :count].numpy()
    assert count > exposure.num_classes + 1
    rest = slice(int(solution.indptr[1]), None)
    wide = replace(
        solution,
        margin=np.where(first, exposure.margins(y)[0].numpy(), solution.margin),
        indptr=solution.indptr
        + np.where(np.arange(len(first) + 1) > 0, count, 0)
        - np.where(np.arange(len(first) + 1) > 0, solution.indptr[1], 0),
        terms=np.concatenate([np.arange(count), solution.terms[rest]]),
        coefficients=np.concatenate([alpha, solution.coefficients[rest]]),
        sources=np.concatenate([np.zeros(count, int), solution.sources[rest]]),
        groups=np.concatenate(
            [np.repeat([0, 1, 2], exposure.segments.diff()[:3]), solution.groups[rest]]
        ),
    )
    verdict = wide.check(exposure)
    assert verdict.oversized == 1 and verdict.margin < 1e-9 and verdict.mass < 1e-9


def test_a_foreign_solution_is_refused(solution):
    other = exposure_of(families(9)["one group"][:2])
    with pytest.raises(InputError, match="does not belong to this exposure"):
        solution.check(other)


def test_saved_and_read_back(tmp_path, exposure, solution):
    path = tmp_path / "solution.safetensors"
    replace(solution, reasons={3: "because"}).save(path)
    again = Solution.load(path)
    np.testing.assert_array_equal(again.margin, solution.margin)
    np.testing.assert_array_equal(again.terms, solution.terms)
    assert again.reasons == {3: "because"} and again.check(exposure).ok
    exposure.save(tmp_path / "exposure.safetensors")
    with pytest.raises(FileFormatError, match="not gnn-repair solution"):
        Solution.load(tmp_path / "exposure.safetensors")


def test_witnesses_read_well():
    exposure = exposure_of(
        [
            (np.zeros(3), [(np.array([1.0, 1.0]), np.array([[3.0, 0, 1], [0.0, 5, 5]]))]),
            (np.zeros(3), [(np.array([1.0, 1.0]), np.array([[0.0, 1, 3], [0, 1, 2]]))]),
        ]
    )
    solution = solve(exposure, torch.zeros(2, dtype=torch.long))
    good, bad = (solution.for_node(v)[0] for v in (0, 1))
    assert str(good) == (
        "node 0, class 0 can win by 4 using node 0 (λ 2); no reweighting exceeds 4"
    )
    assert "cannot win: every reweighting loses by at least 4" in str(bad)
    assert "100.0 % class 2" in str(bad)
    with pytest.raises(InputError, match="node 7 was not solved"):
        solution.for_node(7)
    assert "2 optimal" in str(solution)


def test_other_recipients_are_refused_and_those_that_are_left_answer_alike(exposure):
    part = exposure.restrict(torch.tensor([4, 2]))
    with pytest.raises(InputError, match="node 3 is not among the exposure's recipients"):
        solve(part, "all", torch.tensor([3]))
    full, few = solve(exposure, "all", torch.tensor([2])), solve(part, "all")
    np.testing.assert_array_equal(few.margin[few.node == 2], full.margin)


def test_a_single_class_is_refused():
    with pytest.raises(InputError, match="at least two classes"):
        exposure_of([(np.zeros(1), [(np.ones(1), np.ones((1, 1)))])])


def test_unlabelled_nodes_are_skipped_and_counted(exposure):
    y = torch.tensor([0, -1, 2, -1, 4, 5, 0, 1, 2, 3, 4, 5])
    solution = solve(exposure, y)
    assert solution.skipped == 2
    assert solution.node.tolist() == [0, 2, *range(4, 12)]
    assert "2 without a label skipped" in str(solution)


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


def test_wilson_intervals():
    # Values of the closed formula for 8 of 10 and the one-sided ends.
    assert Rate(8, 10).interval == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert Rate(0, 10).interval == pytest.approx((0.0, 0.2775328), abs=1e-6)
    assert Rate(10, 10).interval[1] == pytest.approx(1.0)
    assert np.isnan(Rate(0, 0).value)


def test_reach_counts_by_hand():
    def node(own, frozen):
        # Class 0 against 1: two messages with the given gaps, α chooses the first.
        table = np.stack([[frozen, 0.0], [own, 0.0]])
        return np.zeros(2), [(np.array([1.0, 1e-9]), table)]

    nodes = [node(1, 1), node(1, -1), node(-2, -1), node(-1, 1), node(1, -3)]
    exposure = exposure_of(nodes)
    y = torch.zeros(5, dtype=torch.long)
    report = reach(exposure, y)
    (only,) = report.members
    assert (only.true_class.hits, only.true_class.total) == (4, 5)
    assert (only.error.hits, only.error.total) == (2, 3)
    assert report.support == only.support == 1.0
    assert report.true_class == report.mean("true_class") == 0.8
    assert report.error == pytest.approx(2 / 3)
    few = reach(exposure, y, torch.tensor([False, True, True, False, False]))
    assert str(few.members[0].error).startswith("50.0 %")


def test_class_reach_is_label_free(exposure, solution):
    found = class_reach(exposure)
    np.testing.assert_array_equal(found.margin.ravel(), solution.margin)
    predicted = exposure.frozen_logits[0].argmax(1).numpy()
    # What the model predicts by a clear margin is within reach: α itself shows it.
    assert found.reachable[np.arange(12), predicted].all()
    assert found.count.tolist() == found.reachable.sum(1).tolist()
    assert "classes within reach of 12 nodes" in str(found)
