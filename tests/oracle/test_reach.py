"""Reach counted by hand, frames against rows computed by hand, and a first day's slips."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import gnn_repair as gr
from gnn_repair import published
from gnn_repair.errors import InputError
from gnn_repair.oracle import ClassReach, Reach, confusion_by_reach, reach, solve, source_ranking
from gnn_repair.oracle.problems import FAILED, UNCERTIFIED, Problems, Tables, instance, problems
from gnn_repair.reporting.evidence import chosen_nodes
from gnn_repair.results.protocol import OracleProtocol
from tests.campaigns.lp_families import Numbers
from tests.campaigns.lp_families import exposure_of as exposure_of_frames
from tests.helpers.oracle.oracle_cases import exposure_of, members, random_node

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


def failing(solution, places, status=FAILED):
    codes, margin = solution.status.copy(), solution.margin.copy()
    codes[places] = status
    if status == FAILED:
        margin[places] = np.nan
    return replace(solution, status=codes, margin=margin)


def test_uncertified_answers_count_where_they_decide():
    whole = solve(two_members(), Y, MASK)
    open_ = failing(whole, np.arange(5), UNCERTIFIED)
    wide = replace(open_, bound=np.array([3.0, 1, 1e-7, 1.1e-7, 3]))
    assert wide.decided.tolist() == [True, True, True, False, True]
    assert replace(wide, status=whole.status).decided.all()
    assert not failing(whole, np.arange(5)).decided.any()
    assert wide.decided_at(1.5).tolist() == [False, True, True, True, True]


def judged(node, target):
    """γ of a class and the least mass that must move for it, by scipy from the node's numbers."""
    beta, parts = node
    alpha, table = (np.concatenate(items) for items in zip(*parts, strict=True))
    groups = np.repeat(np.arange(len(parts)), [len(a) for a, _ in parts])
    member = (groups == np.arange(len(parts))[:, None]).astype(float)
    rivals = np.delete(np.arange(len(beta)), target)
    gaps = (table[:, [target]] - table[:, rivals]).T
    fixed = beta[target] - beta[rivals]
    count = len(alpha)
    best = linprog(
        np.append(np.zeros(count), -1.0),
        A_ub=np.hstack([-gaps, np.ones((len(rivals), 1))]),
        b_ub=fixed,
        A_eq=np.hstack([member, np.zeros((len(parts), 1))]),
        b_eq=member @ alpha,
        bounds=[(0, None)] * count + [(None, None)],
    )
    change = linprog(
        np.append(np.ones(count), np.zeros(count)),
        A_ub=np.hstack([-gaps, gaps]),
        b_ub=fixed + gaps @ alpha - 1e-7,
        A_eq=np.hstack([member, -member]),
        b_eq=np.zeros(len(parts)),
        bounds=[(0, None)] * count + [(0, a) for a in alpha],
    )
    return -best.fun, change.fun / alpha.sum() if change.status == 0 else np.inf


def test_chance_ranks_and_least_changes_by_brute_force():
    rng = np.random.default_rng(5)
    nodes = [random_node(rng, [4, 3], 5) for _ in range(24)]
    nodes = [(np.append(beta[:4], -50.0), parts) for beta, parts in nodes]  # 4 is never predicted
    exposure, y = exposure_of(nodes), torch.from_numpy(rng.integers(0, 4, 24))
    y[7] = -1
    found = reach(exposure, y)
    answers = [[judged(node, c) for c in range(5)] for node in nodes]
    predicted = exposure.frozen_logits[0].argmax(1).tolist()
    own, shares, counts, ranks, by_change, all_shares = [], [], [], [], [], []
    for v, label in enumerate(y.tolist()):
        can = [answers[v][c][0] > 1e-7 for c in range(5)]
        others = [can[c] for c in range(5) if c not in (label, predicted[v])]
        if label >= 0:
            all_shares.append(np.mean(others))
        if label >= 0 and label != predicted[v]:
            rest = [c for c in range(5) if c not in (label, predicted[v])]
            own.append(can[label])
            shares.append(np.mean(others))
            counts.append(sum(can))
            ranks.append(1 + sum(answers[v][c][0] > answers[v][label][0] for c in rest))
            least = [answers[v][c][1] for c in range(5)]
            tied = [least[c] == least[label] for c in rest]
            by_change.append(1 + sum(least[c] < least[label] for c in rest) + sum(tied) / 2)
            row = np.flatnonzero(found.changes.node == v)[0]
            mine = found.changes.share[row, [*rest, label]]
            np.testing.assert_allclose(mine, [least[c] for c in [*rest, label]], atol=1e-6)
    assert 0 < np.mean(shares) < np.mean(own) < 1 and len(own) > 10 and found.skipped == 1
    assert found.error == pytest.approx(np.mean(own))
    assert found.chance.low == found.chance.high == pytest.approx(np.mean(shares))
    assert found.true_class_chance.low == pytest.approx(np.mean(all_shares))
    assert found.excess.low == pytest.approx(np.mean(own) - np.mean(shares))
    assert found.classes_per_error.low == pytest.approx(np.mean(counts))
    assert found.rank.low == found.rank.high == pytest.approx(np.mean(ranks))
    assert found.changes.rank.low == pytest.approx(np.mean(by_change))
    assert f"chance {100 * np.mean(shares):.1f} %" in str(found)
    frame = found.changes.to_frame()
    assert frame["true_class"].iloc[-1] == pytest.approx(np.mean(own))
    assert frame["chance"].iloc[-1] == pytest.approx(np.mean(shares))


def table_of(reachable, true, predicted, decided=None, member=None, node=None):
    """A Reach of planted verdicts; γ is 1 where a class can win and −1 where it cannot."""
    can = np.asarray(reachable, bool)
    known = np.ones_like(can) if decided is None else np.asarray(decided, bool)
    rows = np.arange(len(can))
    margin = np.where(can & known, 1.0, -1.0)
    classes = ClassReach(
        np.zeros(len(can), np.int64) if member is None else member,
        rows if node is None else node,
        margin,
        np.where(known, margin, 1.0),
        can & known,
        known,
    )
    members = int(classes.member.max()) + 1
    witnesses = SimpleNamespace(support=np.ones(len(can)))
    return Reach(classes, np.asarray(true), np.asarray(predicted), witnesses, 0, "", members)


def test_the_bootstrap_is_paired_and_draws_whole_nodes():
    rng = np.random.default_rng(0)
    flag = rng.random(400) < 0.3
    can = np.stack([flag, np.ones(400, bool), flag], 1)  # class 2 can win exactly where class 0 can
    nothing, one = np.zeros(400, int), np.ones(400, int)
    found = table_of(can, nothing, one)
    half = 1.96 * (flag.mean() * (1 - flag.mean()) / 400) ** 0.5
    low, high = found.chance.interval
    assert (high - low) / 2 == pytest.approx(half, rel=0.12)
    assert (low + high) / 2 == pytest.approx(flag.mean(), abs=half / 4)
    assert found.excess.low == 0 and found.excess.interval == (0, 0)
    # The same node in two members is no second node; another node is.
    both, twice = np.concatenate([can, can]), np.concatenate
    args = twice([nothing, nothing]), twice([one, one])
    member, node = np.repeat([0, 1], 400), np.tile(np.arange(400), 2)
    same = table_of(both, *args, member=member, node=node).chance.interval
    assert same == pytest.approx((low, high))
    other = table_of(both, *args, node=np.arange(800)).chance.interval
    assert other[1] - other[0] == pytest.approx((high - low) / 2**0.5, rel=0.12)


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
    asked = problems(exposure, y)
    assert isinstance(asked, Problems) and len(asked) == 9 and asked.skipped == 3
    assert asked.member.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert asked.position.tolist() == [0, 2, 3] * 3 and asked.target.tolist() == [2, 3, 0] * 3
    mask = torch.zeros(4, 3, dtype=torch.bool)
    mask[3, 0] = mask[1, 1] = mask[0, 2] = mask[2, 2] = True
    asked = problems(exposure, y, mask)
    assert (asked.member.tolist(), asked.position.tolist()) == ([0, 2, 2], [3, 0, 2])
    assert asked.skipped == 1
    every = problems(exposure, "all", torch.tensor([3, 1]))
    assert every.position.tolist() == ([3] * 4 + [1] * 4) * 3
    assert every.target.tolist() == [0, 1, 2, 3] * 6 and every.skipped == 0
    part = exposure.restrict(torch.tensor([3, 1]))
    few = problems(part, y, torch.tensor([3]))
    assert few.position.tolist() == [0] * 3 and few.target.tolist() == [0] * 3


@pytest.mark.parametrize("shared", [False, True])
def test_an_instance_holds_its_members_numbers(shared):
    exposure, _ = members(shared)
    tables = Tables.of(exposure)
    for s in range(3):
        problem = instance(tables, s, 2, 1)
        low, middle, high = (int(exposure.segments[i]) for i in (4, 5, 6))
        rows = exposure.contributions[s, low:high]
        others = rows[:, [0, 2, 3]]
        np.testing.assert_array_equal(problem.gaps, (rows[:, [1]] - others).numpy())
        beta = exposure.fixed_logits[s, 2]
        np.testing.assert_array_equal(problem.fixed, (beta[1] - beta[[0, 2, 3]]).numpy())
        np.testing.assert_array_equal(problem.mass, exposure.mass[0 if shared else s, 2].numpy())
        assert problem.group.tolist() == [0] * (middle - low) + [1] * (high - middle)
        assert problem.terms.tolist() == list(range(low, high))
        assert problem.rivals.tolist() == [0, 2, 3]
        columns = problem.gaps * problem.mass[problem.group][:, None]
        np.testing.assert_array_equal(problem.columns, columns)
        size = np.abs(columns).max()
        assert size <= problem.scale < 2 * size
    assert tables.counts(np.array([2, 0])).tolist() == [5, 5]
    where = tables.origin(np.array([2, 2, 0]), np.array([low, high - 1, 0]))
    assert where[1].tolist() == [0, 1, 0]
    assert where[0].tolist() == exposure.sources[[low, high - 1, 0]].tolist()


def test_margins_by_class():
    exposure, _ = members()
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
