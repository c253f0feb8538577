"""Reach counted by hand, frames against rows computed by hand, and a first day's slips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import gnn_repair as gr
from gnn_repair import published
from gnn_repair.errors import InputError
from gnn_repair.oracle import confusion_by_reach, reach, solve, source_ranking
from gnn_repair.oracle.problems import Problems, pose_problems
from gnn_repair.reporting.evidence import chosen_nodes
from gnn_repair.results.protocol import OracleProtocol
from tests.campaigns.lp_families import Numbers
from tests.campaigns.lp_families import exposure_of as exposure_of_frames
from tests.helpers.oracle.oracle_cases import exposure_of, members

# Reach counted by hand: members that differ, LPs without an answer, and what is printed.


def node(best, frozen):
    """Class 0 against 1: a message with margin ``frozen``, all of α's, and one with ``best``."""
    return np.zeros(2), [(np.array([1.0, 0.0]), np.array([[frozen, 0.0], [best, 0.0]]))]


def two_members():
    """Member 0: wrong at nodes 1 and 2, of which 1 is within reach. Member 1, with the opposite
    messages and twice the mass: wrong at nodes 0 and 3, of which 3 is within reach."""
    first = exposure_of([node(1, 1), node(1, -1), node(-2, -1), node(-1, 1)])
    return replace(
        first,
        coefficients=torch.cat([first.coefficients, 2 * first.coefficients]),
        contributions=torch.cat([first.contributions, -first.contributions]),
        fixed_logits=torch.cat([first.fixed_logits] * 2),
        frozen_logits=torch.cat([first.frozen_logits, -2 * first.frozen_logits]),
    )


Y = torch.zeros(4, dtype=torch.long)
MASK = torch.tensor([[1, 1], [1, 0], [1, 0], [0, 1]], dtype=torch.bool)


def test_a_member_without_errors_has_no_error_reach():
    exposure, mask = two_members(), MASK.clone()
    mask[1:3, 0] = False
    found = reach(exposure, Y, mask)
    assert np.isnan(found.members[0].error.value) and found.error == 0.5
    assert "mean over 1 of 2 members (1 of 2 in all)" in str(found)
    mask[:, 1] = False
    assert "error reach      –" in str(reach(exposure, Y, mask)) and len(found.changes.true) == 2


def test_one_threshold_everywhere():
    protocol = OracleProtocol()
    assert protocol.reachable_above == published.REACHABLE == 1e-7
    assert protocol.active_above == published.ACTIVE == 1e-7
    solution = solve(two_members(), Y, MASK)
    edge = replace(solution, margin=np.array([1e-7, 1.0001e-7, -1, 0, np.nan]))
    assert edge.reachable.tolist() == [False, True, False, False, False]
    assert edge[0].reachable is False and edge[1].reachable is True
    thin = replace(solution, coefficients=np.array([1e-7, 1.0001e-7, 1, 0, 2]))
    assert thin.support.tolist() == [0, 1, 1, 0, 1]
    assert solution.active_above(1.5).tolist() == [0, 0, 0, 1, 1]


def test_problems_are_ordered_and_skip_what_has_no_label():
    exposure, _ = members()
    y = torch.tensor([2, -1, 3, 0])
    asked = pose_problems(exposure, y)
    assert isinstance(asked, Problems) and len(asked) == 9 and asked.skipped == 3
    assert asked.member.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert asked.position.tolist() == [0, 2, 3] * 3 and asked.target.tolist() == [2, 3, 0] * 3
    mask = torch.zeros(4, 3, dtype=torch.bool)
    mask[3, 0] = mask[1, 1] = mask[0, 2] = mask[2, 2] = True
    asked = pose_problems(exposure, y, mask)
    assert (asked.member.tolist(), asked.position.tolist()) == ([0, 2, 2], [3, 0, 2])
    assert asked.skipped == 1
    every = pose_problems(exposure, "all", torch.tensor([3, 1]))
    assert every.position.tolist() == ([3] * 4 + [1] * 4) * 3
    assert every.target.tolist() == [0, 1, 2, 3] * 6 and every.skipped == 0
    part = exposure.restrict(torch.tensor([3, 1]))
    few = pose_problems(part, y, torch.tensor([3]))
    assert few.position.tolist() == [0] * 3 and few.target.tolist() == [0] * 3


# Frames of exposures, solutions and reach against rows computed by hand.


@pytest.fixture
def exposure():
    """Three recipients with two, one and two terms; three classes."""
    table = np.array(
        [[3.0, 0, 0], [0, 3.0, 0], [0, 0, 2.0], [0, 4.0, 0], [0, 0, 1.0]]
    )  # classes 0 and 1 are there for node 0, 2 for node 1, 1 and 2 for node 2
    alpha = np.array([0.25, 0.75, 1.0, 0.5, 0.5])
    lengths = np.array([[2], [1], [2]], np.int64)
    return exposure_of_frames(Numbers(lengths, alpha, table, np.zeros((3, 3))))


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
def two_members_frames():
    """One recipient, two messages and two rivals; the members' α and frozen answers differ."""
    table = np.array([[2.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    lengths = np.array([[2]], np.int64)
    halves = [
        exposure_of_frames(Numbers(lengths, np.array(alpha), table * size, np.zeros((1, 3))))
        for alpha, size in (((0.9, 0.1), 1.0), ((0.2, 0.8), 2.0))
    ]
    stacked = {
        name: torch.cat([getattr(half, name) for half in halves])
        for name in ("coefficients", "contributions", "fixed_logits", "frozen_logits")
    }
    return replace(halves[0], **stacked)


def test_every_member_has_its_own_terms(two_members_frames):
    for member, alpha, size in ((0, [0.9, 0.1], 1.0), (1, [0.2, 0.8], 2.0)):
        frame = two_members_frames.to_frame(member=member)
        assert frame["coefficient"].tolist() == pytest.approx(alpha)
        assert frame["logit 2"].tolist() == pytest.approx([3 * size, 0])


def test_the_largest_weight_comes_first():
    table = np.array([[2.0, 0.0, 4.0], [2.0, 3.0, 0.0]])
    lengths = np.array([[2], [0]], np.int64)
    exposure = exposure_of_frames(Numbers(lengths, np.array([0.5, 0.5]), table, np.zeros((2, 3))))
    solution = solve(exposure, torch.tensor([0, 0]), [0])
    # 2 − 3 (1 − λ) = 2 − 4 λ: λ = 3/7, so node 1 has more.
    assert solution.key_messages() == ["node 1 (λ 0.5714), node 0 (λ 0.4286)"]


def test_a_sender_of_several_messages_is_named_once():
    """Two heads with masses 0.3 and 0.2 hear nodes 0 and 1; both want node 0."""
    table = np.array([[1.0, 0], [0, 1], [1, 0], [0, 2]])
    lengths, alpha = np.array([[2, 2], [0, 0]], np.int64), np.array([0.0, 0.3, 0.1, 0.1])
    exposure = exposure_of_frames(Numbers(lengths, alpha, table, np.zeros((2, 2))))
    assert exposure.sources[exposure.rows.long()].tolist() == [0, 1, 0, 1]
    assert solve(exposure, torch.tensor([0, 0]), [0]).key_messages() == ["node 0 (λ 0.5)"]


def test_a_source_heard_by_two_heads_is_still_alone():
    table, lengths = np.array([[3.0, 0.0], [2.0, 0.0]]), np.array([[1, 1]], np.int64)
    heads = exposure_of_frames(Numbers(lengths, np.array([0.5, 0.5]), table, np.zeros((1, 2))))
    (row,) = source_ranking(solve(heads, [0]), heads).to_dict("records")
    assert (row["source"], row["witnesses"], row["alone"]) == (0, 1, 1)
    assert (row["mass"], row["gained"]) == (pytest.approx(1.0), pytest.approx(0.0))


def test_answers_about_labels_are_not_ranked(exposure):
    from gnn_repair.oracle import solve

    labels = replace(exposure, outputs="labels")
    with pytest.raises(InputError, match="about labels, and this is about classes"):
        source_ranking(solve(labels, torch.ones(3, 3)), labels)


# Slips of a first day: the sentence says what to do instead.


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    data = Data(x=torch.randn(12, 4), edge_index=torch.randint(12, (2, 40)))
    data.y = torch.randint(3, (12,))
    return data, gr.expose(GCN(4, 8, 2, 3), data)


def test_masks_of_several_splits(case):
    data, exposure = case
    masks = torch.ones(12, 10, dtype=torch.bool)
    with pytest.raises(InputError, match=r"pass the column of one split, such as mask\[:, 0\]"):
        gr.reach(exposure, data.y, masks)
    assert gr.reach(exposure, data.y, masks[:, 0]).true_class >= 0
    with pytest.raises(InputError) as caught:
        gr.reach(exposure, data.y, masks[:5, 0])
    assert "split" not in str(caught.value)


def test_labels_in_a_column(case):
    data, exposure = case
    with pytest.raises(InputError, match=r"pass y\.flatten\(\)"):
        gr.solve(exposure, data.y[:, None])
    with pytest.raises(InputError) as caught:
        gr.solve(exposure, torch.zeros(12, 3, dtype=torch.long))
    assert "flatten" not in str(caught.value)


def test_a_class_in_place_of_a_model(case):
    with pytest.raises(InputError, match="model is the class GCN; pass a trained instance"):
        gr.expose(GCN, case[0])


def test_a_path_and_labels_that_changed_places(case):
    data, exposure = case
    with pytest.raises(InputError, match=r"^Tensor is no path; give a string or a Path$"):
        gr.report(exposure, "report.html", data.y)


@pytest.mark.parametrize("nodes", [[2, 5], (2, 5), np.array([2, 5]), np.arange(12) % 3 == 2])
def test_lists_and_arrays_of_nodes_are_taken_everywhere(case, nodes):
    data, exposure = case
    numbers = torch.as_tensor(nodes)
    wanted = numbers.nonzero().view(-1) if numbers.dtype == torch.bool else numbers
    assert chosen_nodes(exposure, nodes, 0).tolist() == wanted.tolist()
    assert gr.solve(exposure, data.y, nodes).node.tolist() == wanted.tolist()


@pytest.mark.parametrize("nodes", ["2", [[1], [2, 3]], [None]])
def test_what_is_no_list_of_nodes_is_named(case, nodes):
    with pytest.raises(InputError, match=r"^nodes is .* a mask \[N\] or node numbers"):
        chosen_nodes(case[1], nodes, 0)


def test_no_reachable_class_has_no_support():
    torch.manual_seed(1)
    data = Data(x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    model = GCN(2, 4, 2, 2)
    with torch.no_grad():
        model.convs[-1].bias.copy_(torch.tensor([5.0, 0.0]))  # class 0 always wins
    exposure = gr.expose(model, data)
    target = torch.ones(3, dtype=torch.long)
    solution = gr.solve(exposure, target)
    assert not np.any(solution.reachable)
    for value in (gr.reach(exposure, target), solution):
        assert "nan" not in str(value)
    assert "support          –" in str(gr.reach(exposure, target))
