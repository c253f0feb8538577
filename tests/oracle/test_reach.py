"""Reach counted by hand: members that differ, LPs without an answer, and what is printed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle_cases import exposure_of
from test_certificate import members

from gnn_repair import thresholds
from gnn_repair.oracle import Rate, class_reach, reach, solve_oracle, summarise
from gnn_repair.oracle.counting import ReachCounts, count_reach, mean_over_members
from gnn_repair.oracle.status import FAILED, UNCERTIFIED
from gnn_repair.oracle.tables import Problems, Tables, instance, problems
from gnn_repair.reporting.evidence import gather
from gnn_repair.reporting.overview import case_of_run
from gnn_repair.study.measures import summarise_oracle
from gnn_repair.study.protocol import OracleProtocol


def flags(text):
    return np.array([letter == "x" for letter in text])


def test_counts_by_hand():
    counts = count_reach(
        reachable=flags("xx.x.x"),
        wrong=flags("x.xx.x"),
        active=np.array([1, 2, 4, 8, 16, 32]),
        decided=flags("xxx.xx"),
    )
    assert counts == ReachCounts(
        nodes=5, reachable=3, errors=3, reachable_errors=2, active=1 + 2 + 32, undecided=1
    )
    assert counts.true_class_reach == 3 / 5
    assert counts.error_reach == 2 / 3
    assert counts.support == 35 / 3
    none = count_reach(flags(".."), flags(".."), np.zeros(2, int), flags(".x"))
    assert (none.nodes, none.undecided, none.true_class_reach) == (1, 1, 0.0)
    assert np.isnan(none.error_reach) and np.isnan(none.support)


def test_the_mean_leaves_out_members_without_the_figure():
    assert mean_over_members([0.5, float("nan"), 1.0]) == 0.75
    assert np.isnan(mean_over_members([float("nan")]))


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


def test_reach_is_the_mean_over_members():
    exposure = two_members()
    # Member 0 at nodes 0, 1, 2: margins 1, 1, −1; member 1 at nodes 0, 3: margins −2, 2.
    solution = solve_oracle(exposure, Y, MASK)
    np.testing.assert_allclose(solution.margin, [1, 1, -1, -2, 2])
    found = summarise(exposure, solution)
    assert [(m.true_class, m.error) for m in found.members] == [
        (Rate(2, 3), Rate(1, 2)),
        (Rate(1, 2), Rate(1, 2)),
    ]
    assert found.true_class == pytest.approx((2 / 3 + 1 / 2) / 2) != pytest.approx(3 / 5)
    assert found.error == 0.5 and found.support == 1.0 and found.undecided == 0
    text = str(reach(exposure, Y, MASK)).split("\n")
    assert text == [
        "true-class reach 58.3 %, mean over 2 members (3 of 5 in all)",
        "error reach      50.0 %, mean over 2 members (2 of 4 in all)",
        "support          1.00 active terms on average",
    ]
    assert found.rows()[-1] == {
        "member": "mean",
        "true-class reach": "58.3 %",
        "error reach": "50.0 %",
        "support": 1.0,
        "undecided": 0,
    }
    assert found.rows()[1]["member"] == "1" and "(1 of 2)" in found.rows()[1]["error reach"]


def test_a_member_without_errors_has_no_error_reach():
    exposure, mask = two_members(), MASK.clone()
    mask[1:3, 0] = False
    found = reach(exposure, Y, mask)
    assert np.isnan(found.members[0].error.value) and found.error == 0.5
    assert "mean over 1 of 2 members (1 of 2 in all)" in str(found)
    mask[:, 1] = False
    assert "error reach      nan %" in str(reach(exposure, Y, mask))


def failing(solution, places, status=FAILED):
    codes, margin = solution.status.copy(), solution.margin.copy()
    codes[places] = status
    if status == FAILED:
        margin[places] = np.nan
    return replace(solution, status=codes, margin=margin)


def test_lps_without_an_answer_count_nowhere():
    exposure = two_members()
    whole = solve_oracle(exposure, Y, MASK)
    # Node 2 of member 0, an error out of reach.
    found = summarise(exposure, failing(whole, [2]))
    assert found.members[0].true_class == Rate(2, 2) and found.members[0].error == Rate(1, 1)
    assert found.members[0].undecided == 1 == found.undecided
    assert found.true_class == (1 + 0.5) / 2
    assert str(found).endswith("undecided        1 LPs, which are in no figure above")
    assert found.rows()[0]["undecided"] == 1


def test_uncertified_answers_count_where_they_decide():
    whole = solve_oracle(two_members(), Y, MASK)
    open_ = failing(whole, np.arange(5), UNCERTIFIED)
    wide = replace(open_, bound=np.array([3.0, 1, 1e-7, 1.1e-7, 3]))
    assert wide.decided.tolist() == [True, True, True, False, True]
    assert replace(wide, status=whole.status).decided.all()
    assert not failing(whole, np.arange(5)).decided.any()
    assert wide.decided_at(1.5).tolist() == [False, True, True, True, True]


def test_study_and_report_count_alike():
    """The same figures from metrics, from a study's summary and from a report."""
    exposure = two_members()
    found = reach(exposure, Y, MASK)
    none = torch.zeros_like(MASK)
    summaries = summarise_oracle(exposure, Y, none, MASK, OracleProtocol()).summaries
    for s, summary in enumerate(summaries):
        member, test = found.members[s], summary["test"]
        assert test["true_class_reach"] == member.true_class.value
        assert test["error_reach"] == member.error.value and test["support"] == member.support
        assert (test["nodes"], test["undecided"]) == (member.true_class.total, 0)
        assert summary["val"]["true_class_reach"] is None
        evidence = gather(exposure, Y, MASK, member=s)
        assert evidence.reach == member.counts
        case = case_of_run(evidence, "toy", "gcn")
        assert case["reach"]["true_class_reach"] == [100 * member.true_class.value]
        assert case["reach"]["error_reach"] == [100 * member.error.value]


def test_a_report_counts_nodes_without_an_answer_nowhere(monkeypatch):
    exposure = two_members()
    solution = failing(solve_oracle(exposure, Y, MASK), [2])
    evidence = gather(exposure, Y, MASK, member=0, solution=solution)
    assert evidence.reach == summarise(exposure, solution).members[0].counts
    torn = failing(solve_oracle(exposure, Y, MASK), [2], UNCERTIFIED)
    torn = replace(torn, bound=np.full(5, 9.0))
    # Such bounds are no solution of this exposure, which a report would say first.
    monkeypatch.setattr("gnn_repair.reporting.evidence.check_solution", lambda *_: None)
    assert np.isnan(gather(exposure, Y, MASK, member=0, solution=torn).margin).sum() == 1


def test_one_threshold_everywhere():
    protocol = OracleProtocol()
    assert protocol.reachable_above == thresholds.REACHABLE == 1e-7
    assert protocol.active_above == thresholds.ACTIVE == 1e-7
    solution = solve_oracle(two_members(), Y, MASK)
    edge = replace(solution, margin=np.array([1e-7, 1.0001e-7, -1, 0, np.nan]))
    assert edge.reachable.tolist() == [False, True, False, False, False]
    assert edge[0].reachable is False and edge[1].reachable is True
    thin = replace(solution, coefficients=np.array([1e-7, 1.0001e-7, 1, 0, 2]))
    assert thin.support.tolist() == [0, 1, 1, 0, 1]
    assert solution.active_above(1.5).tolist() == [0, 0, 0, 1, 1]


def test_class_reach_by_member():
    exposure, solution = members()
    found = class_reach(exposure)
    assert found.margin.shape == (12, 4)
    for k in range(12):
        assert (found.member[k], found.node[k]) == (k // 4, k % 4)
        np.testing.assert_array_equal(found.margin[k], solution.margin[4 * k : 4 * k + 4])
    counts = found.count
    assert counts.tolist() == [(row > 1e-7).sum() for row in found.margin]
    share = 100 * (counts == counts[0]).mean()
    assert f"{counts[0]}: {share:.1f} %" in str(found) and "12 nodes" in str(found)


def test_rates():
    # Wilson's ends are where a binomial of that probability lies 1.96 deviations away.
    for p in Rate(3, 7).interval:
        assert abs(3 / 7 - p) == pytest.approx(1.959963984540054 * (p * (1 - p) / 7) ** 0.5)
    assert Rate(3, 7).interval[0] < 3 / 7 < Rate(3, 7).interval[1]
    assert str(Rate(1234, 2000)) == "61.7 % [59.5, 63.8] (1,234 of 2,000)"
    assert np.isnan(Rate(0, 0).interval).all() and Rate(3, 7).value == 3 / 7


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


def test_an_instance_without_a_group():
    empty = (np.empty(0), np.empty((0, 3)))
    exposure = exposure_of([(np.zeros(3), [empty, (np.ones(2), np.ones((2, 3))), empty])])
    problem = instance(Tables.of(exposure), 0, 0, 2)
    assert problem.group.tolist() == [0, 0] and problem.mass.tolist() == [2.0]
    assert problem.scale == 1.0 and problem.part(np.array([False, True])).terms.tolist() == [1]
