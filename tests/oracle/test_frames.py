"""Frames of exposures, solutions and reach against rows computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.oracle import confusion_by_reach, reach, solve, source_ranking
from tests.campaigns.lp_families import Numbers, exposure_of


@pytest.fixture
def exposure():
    """Three recipients with two, one and two terms; three classes."""
    table = np.array(
        [[3.0, 0, 0], [0, 3.0, 0], [0, 0, 2.0], [0, 4.0, 0], [0, 0, 1.0]]
    )  # classes 0 and 1 are there for node 0, 2 for node 1, 1 and 2 for node 2
    alpha = np.array([0.25, 0.75, 1.0, 0.5, 0.5])
    lengths = np.array([[2], [1], [2]], np.int64)
    return exposure_of(Numbers(lengths, alpha, table, np.zeros((3, 3))))


TRUE = torch.tensor([0, 0, 1])
"""Node 0: predicted 1, can be 0. Node 1: predicted 2, cannot be 0. Node 2: right."""


def test_a_solution_has_a_row_an_lp(exposure):
    frame = solve(exposure, TRUE).to_frame(exposure)
    assert frame["node"].tolist() == [0, 1, 2]
    assert frame["predicted"].tolist() == [1, 2, 1]
    assert frame["frozen_margin"].tolist() == pytest.approx([0.75 - 2.25, -2, 2 - 0.5])
    assert frame["class"].tolist() == [0, 0, 1]
    assert frame["verdict"].tolist() == ["can", "cannot", "can"]
    assert frame["margin"].tolist() == pytest.approx([3, -2, 4])
    assert frame["bound"].tolist() == pytest.approx([3, -2, 4])
    assert frame["support"].tolist() == [1, 1, 1]
    assert frame["key_messages"][0] == "node 0 (λ 1)"
    assert frame["status"].tolist() == ["optimal"] * 3


def test_an_exposure_has_a_row_a_term(exposure):
    frame = exposure.to_frame([2, 0])
    assert frame["node"].tolist() == [2, 2, 0, 0]
    assert frame["coefficient"].tolist() == [0.5, 0.5, 0.25, 0.75]
    assert frame["source"].tolist() == [0, 1, 0, 1]  # terms 3, 4, 0 and 1, modulo three nodes
    assert frame["logit 1"].tolist() == [4, 0, 0, 3]
    assert set(frame["group"]) == {"group 0"}
    assert len(exposure.to_frame()) == exposure.num_terms


def test_foreign_solutions_and_questions_are_refused(exposure):
    solution = solve(exposure, TRUE)
    with pytest.raises(InputError, match="another exposure"):
        source_ranking(solution, exposure.restrict([0]))
    with pytest.raises(InputError, match="true class"):
        confusion_by_reach(solution, exposure, torch.full((3,), -1))


def test_notebooks_get_words_and_a_table_and_no_markup(exposure):
    solution = solve(exposure, "all")
    assert "<table" in solution._repr_html_() and "more rows" not in solution._repr_html_()
    assert "<table" in reach(exposure, TRUE)._repr_html_()
    named = exposure.__class__.__name__
    assert named in exposure._repr_html_() and "<table" not in exposure._repr_html_()


@pytest.fixture
def two_members():
    """One recipient, two messages and two rivals; the members' α and frozen answers differ."""
    table = np.array([[2.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    lengths = np.array([[2]], np.int64)
    halves = [
        exposure_of(Numbers(lengths, np.array(alpha), table * size, np.zeros((1, 3))))
        for alpha, size in (((0.9, 0.1), 1.0), ((0.2, 0.8), 2.0))
    ]
    stacked = {
        name: torch.cat([getattr(half, name) for half in halves])
        for name in ("coefficients", "contributions", "fixed_logits", "frozen_logits")
    }
    return replace(halves[0], **stacked)


def test_every_member_has_its_own_terms(two_members):
    for member, alpha, size in ((0, [0.9, 0.1], 1.0), (1, [0.2, 0.8], 2.0)):
        frame = two_members.to_frame(member=member)
        assert frame["coefficient"].tolist() == pytest.approx(alpha)
        assert frame["logit 2"].tolist() == pytest.approx([3 * size, 0])


def test_rankings_and_confusions_are_each_member_s_own(two_members):
    solution = solve(two_members, torch.tensor([0]))
    # λ is (½, ½) for both: 0.4 beyond α for the first member's second term, 0.3 for the other's
    # first. Both messages are node 0's here.
    ranked = source_ranking(solution, two_members)
    assert ranked["gained"].tolist() == pytest.approx([0.7])
    found = confusion_by_reach(solution, two_members, torch.tensor([0]))
    # z = (2, 0.3, 2.7) of the first member, (4, 4.8, 1.2) of the second.
    assert sorted(zip(found["predicted"], found["can"], strict=True)) == [(1, 1), (2, 1)]


def test_the_largest_weight_comes_first():
    table = np.array([[2.0, 0.0, 4.0], [2.0, 3.0, 0.0]])
    lengths = np.array([[2], [0]], np.int64)
    exposure = exposure_of(Numbers(lengths, np.array([0.5, 0.5]), table, np.zeros((2, 3))))
    solution = solve(exposure, torch.tensor([0, 0]), [0])
    # 2 − 3 (1 − λ) = 2 − 4 λ: λ = 3/7, so node 1 has more.
    assert solution.key_messages() == ["node 1 (λ 0.5714), node 0 (λ 0.4286)"]


def test_a_sender_of_several_messages_is_named_once():
    """Two heads with masses 0.3 and 0.2 hear nodes 0 and 1; both want node 0."""
    table = np.array([[1.0, 0], [0, 1], [1, 0], [0, 2]])
    lengths, alpha = np.array([[2, 2], [0, 0]], np.int64), np.array([0.0, 0.3, 0.1, 0.1])
    exposure = exposure_of(Numbers(lengths, alpha, table, np.zeros((2, 2))))
    assert exposure.sources[exposure.rows.long()].tolist() == [0, 1, 0, 1]
    assert solve(exposure, torch.tensor([0, 0]), [0]).key_messages() == ["node 0 (λ 0.5)"]


def test_a_source_heard_by_two_heads_is_still_alone():
    table, lengths = np.array([[3.0, 0.0], [2.0, 0.0]]), np.array([[1, 1]], np.int64)
    heads = exposure_of(Numbers(lengths, np.array([0.5, 0.5]), table, np.zeros((1, 2))))
    (row,) = source_ranking(solve(heads, [0]), heads).to_dict("records")
    assert (row["source"], row["witnesses"], row["alone"]) == (0, 1, 1)
    assert (row["mass"], row["gained"]) == (pytest.approx(1.0), pytest.approx(0.0))


def test_answers_about_labels_are_not_ranked(exposure):
    from gnn_repair.oracle import solve

    labels = replace(exposure, outputs="labels")
    with pytest.raises(InputError, match="about labels, and this is about classes"):
        source_ranking(solve(labels, torch.ones(3, 3)), labels)
