"""Frames and sentences of reach against rows computed by hand, and a first day's slips.

The figures themselves are recomputed in test_enumerated.py.
"""

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
from gnn_repair.oracle.rates import RESAMPLES, resample_sums
from gnn_repair.reporting.evidence import chosen_nodes
from gnn_repair.results.protocol import OracleProtocol
from tests.helpers.oracle.oracle_cases import as_members, small_exposure


def two_members():
    """Class 0 against 1. Member 0 is wrong at nodes 1 and 2, of which 1 is within reach. Member 1,
    with the opposite messages and twice the mass: wrong at nodes 0 and 3, of which 3 is."""
    pairs = [(1, 1), (-1, 1), (-1, -2), (1, -1)]  # what α has, and what another message says
    table = [[x, 0] for pair in pairs for x in pair]
    lengths, alpha = [[2]] * 4, np.array([1.0, 0.0] * 4)
    pairs = ((alpha, table), (2 * alpha, -np.array(table)))
    return as_members([small_exposure(lengths, *pair) for pair in pairs])


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
    assert "no errors" in str(reach(exposure, Y, mask).changes)


def test_one_threshold_everywhere():
    protocol = OracleProtocol()
    assert protocol.reachable_above == published.REACHABLE == 1e-7
    assert protocol.active_above == published.ACTIVE == 1e-7
    solution = solve(two_members(), Y, MASK)
    edge = replace(solution, margin=np.array([1e-7, 1.0001e-7, -1, 0, np.nan]))
    assert edge.reachable.tolist() == [False, True, False, False, False]
    assert edge[0].reachable is False and edge[1].reachable is True
    # A bound of just the threshold excludes, whatever is not certified.
    open_ = np.full(5, 4, np.int8)
    bound = np.array([1e-7, 1.0001e-7, 1e-7, 0, 1])
    loose = replace(solution, margin=np.full(5, -1.0), bound=bound, status=open_)
    assert loose.excluded.tolist() == [True, False, True, True, False]
    thin = replace(solution, coefficients=np.array([1e-7, 1.0001e-7, 1, 0, 2]))
    assert thin.support.tolist() == [0, 1, 1, 0, 1]
    assert solution.active_above(1.5).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("scale", "small"), [(0, False), (2e-9, True), (0.9e-4, True), (1.1e-4, False)]
)
@pytest.mark.parametrize("outputs", ["classes", "labels"])
def test_answers_about_logits_too_small_for_the_threshold_say_so(scale, small, outputs):
    whole = replace(two_members(), outputs=outputs)  # whose logits are 2, beside 0
    names = ("contributions", "fixed_logits", "frozen_logits")
    parts = {name: getattr(whole, name) * scale / 2 for name in names}
    if scale and outputs == "classes":  # what all classes have is no difference
        parts |= {name: parts[name] + 1 for name in names[1:]}
    exposure = replace(whole, **parts)
    words = f"logits of scale {scale:.1g}, where a win takes 1e-07" if small else ""
    assert exposure.scope == words
    solution = solve(exposure, Y if outputs == "classes" else True)
    assert words in str(solution) and words in str(solution[0])
    assert replace(exposure, outputs="values").scope == ""


# Frames of exposures, solutions and reach.


@pytest.fixture
def exposure():
    """Three recipients with two, one and two terms: classes 0 and 1 are there for node 0, 2 for
    node 1, 1 and 2 for node 2."""
    table = [[3, 0, 0], [0, 3, 0], [0, 0, 2], [0, 4, 0], [0, 0, 1]]
    return small_exposure([[2], [1], [2]], [0.25, 0.75, 1.0, 0.5, 0.5], table)


TRUE = torch.tensor([0, 0, 1])
"""Node 0: predicted 1, can be 0. Node 1: predicted 2, cannot be 0. Node 2: right."""


def test_a_solution_has_a_row_an_lp(exposure):
    frame = solve(exposure, TRUE).to_frame(exposure)
    names = ["node", "predicted", "class", "support", "verdict", "status"]
    assert frame[names].to_numpy().tolist() == [
        [0, 1, 0, 1, "can", "optimal"],
        [1, 2, 0, 1, "cannot", "optimal"],
        [2, 1, 1, 1, "can", "optimal"],
    ]
    assert frame["frozen_margin"].tolist() == pytest.approx([0.75 - 2.25, -2, 2 - 0.5])
    for name in ("margin", "bound"):
        assert frame[name].tolist() == pytest.approx([3, -2, 4])
    assert frame["key_messages"][0] == "node 0 (λ 1)"


def test_an_exposure_has_a_row_a_term_and_every_member_its_own():
    table = [[3, 0, 0], [0, 3, 0], [0, 0, 2], [0, 4, 0], [0, 0, 1]]
    halves = [
        small_exposure([[2], [1], [2]], alpha, size * np.array(table))
        for alpha, size in (([0.25, 0.75, 1.0, 0.5, 0.5], 1), ([0.5, 0.5, 2.0, 0.1, 0.9], 2))
    ]
    both = as_members(halves)
    for member, alpha, size in ((0, [0.5, 0.5, 0.25, 0.75], 1), (1, [0.1, 0.9, 0.5, 0.5], 2)):
        frame = both.to_frame([2, 0], member=member)
        assert frame["node"].tolist() == [2, 2, 0, 0]
        assert frame["coefficient"].tolist() == alpha
        assert frame["source"].tolist() == [0, 1, 0, 1]  # terms 3, 4, 0 and 1, modulo three nodes
        assert frame["logit 1"].tolist() == [4 * size, 0, 0, 3 * size]
        assert set(frame["group"]) == {"group 0"}
    assert len(both.to_frame()) == both.num_terms


def test_foreign_solutions_and_questions_are_refused(exposure):
    solution = solve(exposure, TRUE)
    with pytest.raises(InputError, match="another exposure"):
        source_ranking(solution, exposure.restrict([0]))
    with pytest.raises(InputError, match="true class"):
        confusion_by_reach(solution, exposure, torch.full((3,), -1))
    labels = replace(exposure, outputs="labels")
    with pytest.raises(InputError, match="about labels, and this is about classes"):
        source_ranking(solve(labels, torch.ones(3, 3)), labels)


def test_notebooks_get_words_and_a_table_and_no_markup(exposure):
    solution = solve(exposure, "all")
    assert "<table" in solution._repr_html_() and "more rows" not in solution._repr_html_()
    many = solve(two_members(), "all")._repr_html_()  # 16 rows, of which 10 are shown
    assert many.count("<tr") == 11 and "6 more rows" in many
    assert "<table" in reach(exposure, TRUE)._repr_html_()
    named = exposure.__class__.__name__
    assert named in exposure._repr_html_() and "<table" not in exposure._repr_html_()


def test_draws_of_many_different_nodes_are_drawn_once_each():
    """They are drawn in several parts."""
    nodes = np.arange(5000)
    sums = resample_sums(nodes, np.sqrt(nodes + 1.0)[:, None])[:, 0, 0]
    assert len(np.unique(sums)) == len(sums) == RESAMPLES
    # A node is drawn with all its members.
    both = resample_sums(nodes.repeat(2), np.ones((10000, 1)) * nodes.repeat(2)[:, None],
                         np.tile([0, 1], 5000))[..., 0]  # fmt: skip
    assert (both[:, 0] == both[:, 1]).all() and both.std() > 0


def test_a_source_heard_by_two_heads_is_still_alone():
    heads = small_exposure([[1, 1]], [0.5, 0.5], [[3, 0], [2, 0]])
    (row,) = source_ranking(solve(heads, [0]), heads).to_dict("records")
    assert (row["source"], row["witnesses"], row["alone"]) == (0, 1, 1)
    assert (row["mass"], row["gained"]) == (pytest.approx(1.0), pytest.approx(0.0))


def test_no_reachable_class_has_no_support():
    """Class 0 always wins."""
    heard = small_exposure([[1]] * 3, [1.0] * 3, np.zeros((3, 2)), [[5, 0]] * 3)
    solution, figures = (ask(heard, torch.ones(3, dtype=torch.long)) for ask in (solve, reach))
    assert not np.any(solution.reachable)
    assert "nan" not in str(solution) + str(figures)
    assert "support          –" in str(figures)


# Slips of a first day: the sentence says what to do instead.


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    data = Data(x=torch.randn(12, 4), edge_index=torch.randint(12, (2, 40)))
    data.y = torch.randint(3, (12,))
    return data, gr.expose(GCN(4, 8, 2, 3), data)


def test_what_is_nearly_right_is_told_how_to_be(case):
    data, exposure = case
    masks, table = torch.ones(12, 10, dtype=torch.bool), torch.zeros(12, 3, dtype=torch.long)
    for call, remedy in (
        (lambda: reach(exposure, data.y, masks), r"mask\[:, 0\]"),
        (lambda: solve(exposure, data.y[:, None]), r"pass y\.flatten\(\)"),
        (lambda: gr.expose(GCN, data), "model is the class GCN; pass a trained instance"),
        (lambda: gr.report(exposure, "report.html", data.y), "Tensor is no path"),
        (lambda: solve(exposure, data.y, threshold=0.5), "labels and threshold"),
        (lambda: solve(exposure, data.y, labels=[0]), "labels and threshold"),
        *((lambda n=n: chosen_nodes(exposure, n, 0), "nodes is") for n in ("2", [[1], [2, 3]])),
    ):
        with pytest.raises(InputError, match=remedy):
            call()
    # Where the remedy is none it is not given.
    for call, remedy in (
        (lambda: reach(exposure, data.y, masks[:5, 0]), "split"),
        (lambda: solve(exposure, table), "flatten"),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert remedy not in str(caught.value)
    assert reach(exposure, data.y, masks[:, 0]).true_class >= 0
