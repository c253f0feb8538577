"""Nearest reweighting, stable evidence, relaxed masses and needed sources against other LPs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import linprog

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import ONE_KIND
from gnn_repair.highs import new_highs
from gnn_repair.oracle import nearest_reweighting, relax, relaxed_margins, solve, stable_evidence
from gnn_repair.oracle.problems import UNCERTIFIED, Tables, build_lp
from gnn_repair.oracle.questions import nearest
from gnn_repair.oracle.questions.nearest import moved_bound
from gnn_repair.oracle.questions.stable import without_each_source
from gnn_repair.oracle.witness import describe_gains
from gnn_repair.repair.baselines import sources_to_recipients
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.reporting.evidence import gather
from tests.campaigns.lp_families import draw
from tests.helpers.oracle.oracle_cases import behind_identity, exposure_of
from tests.helpers.oracle.oracle_scipy import group_rows, margin_by_scipy

# Nearest reweighting, stable evidence and relaxed masses against independent LPs.


def setting(family, count, seed=0):
    whole, _ = draw(family, seed, 9 * count)
    exposure = whole.restrict(range(count))
    return exposure, torch.arange(exposure.num_nodes) % exposure.num_classes


@pytest.mark.parametrize("family", ["gaussian", "three groups", "absent groups", "integers"])
def test_the_nearest_reweighting_is_nearest(family):
    exposure, y = setting(family, 15)
    tables, alpha = Tables.from_exposure(exposure), exposure.coefficients[0].numpy()
    answers = nearest_reweighting(exposure, y, margin=0.1, threads=1)
    kinds = {answer.status for answer in answers}
    assert "moved" in kinds and "failed" not in kinds
    for answer in answers:
        problem = build_lp(tables, 0, answer.node, answer.target)
        frozen = alpha[problem.terms]
        lam = frozen.copy()
        lam[answer.terms - problem.terms[:1]] += answer.change
        if answer.status == "unreachable":
            assert solve(exposure, y, torch.tensor([answer.node])).margin[0] < 0.1
            continue
        margin = (problem.fixed + lam @ problem.gaps).min()
        assert margin >= 0.1 - 1e-9 and lam.min(initial=0) >= -1e-9
        sums = np.bincount(problem.group, lam, len(problem.mass))
        np.testing.assert_allclose(sums, problem.mass, atol=1e-8)
        assert answer.moved == pytest.approx(_nearest_by_scipy(problem, frozen, 0.1), abs=1e-7)
        assert answer.bound == pytest.approx(answer.moved, abs=1e-7)
        need = 0.1 - (problem.fixed + frozen @ problem.gaps)
        proved = moved_bound(problem, frozen, need, answer.weights[problem.rivals])
        assert answer.bound == pytest.approx(max(proved, 0.0), abs=1e-12)


def _nearest_by_scipy(problem, alpha, margin):
    """min Σ t over λ and t ≥ |λ − α|, halved: a different formulation."""
    count = len(alpha)
    eye = np.eye(count)
    limits = np.block([[-problem.gaps.T, 0 * problem.gaps.T], [eye, -eye], [-eye, -eye]])
    right = np.concatenate([problem.fixed - margin, alpha, -alpha])
    masses = np.hstack([group_rows(problem), np.zeros((len(problem.mass), count))])
    cost = np.concatenate([np.zeros(count), np.full(count, 0.5)])
    return linprog(cost, limits, right, masses, problem.mass, method="highs").fun


@pytest.mark.parametrize("need", [1e-3, 1e-6, 1e-9, 1e-11])
def test_the_nearest_of_small_changes_is_nearest_beside_what_moves(need):
    """As much less moves as is needed less: the same program in other units."""
    rng = np.random.default_rng(int(-np.log10(need)))
    for _ in range(20):
        alpha, table = rng.uniform(0.5, 1, 9), rng.normal(size=(9, 4))
        lead = np.append(0, need * rng.random(3))
        moved = []
        for size in (1, 1e-4 / need):  # little enough that no message loses all of its weight
            exposure = exposure_of([(size * lead - alpha @ table, [(alpha, table)])])
            y = torch.tensor([0])
            (found,) = nearest_reweighting(exposure, y, margin=0.1 * size * need, threads=1)
            if found.status == "unreachable":
                break
            assert found.status == "moved" and found.proved
            rounding = max(1e-6, 1e-14 / need)
            assert found.bound == pytest.approx(found.moved, rel=rounding)
            moved.append(found.moved / size)
        else:
            assert moved[0] == pytest.approx(moved[1], rel=rounding)


def test_a_change_that_is_not_proved_nearest_is_not_called_so():
    exposure, y = setting("gaussian", 15)
    found = next(a for a in nearest_reweighting(exposure, y, margin=0.1) if a.status == "moved")
    assert found.proved and "no smaller change is enough" in str(found)
    loose = replace(found, bound=0.98 * found.moved)
    assert not loose.proved and "not proved nearest: at least" in str(loose)
    assert str(replace(found, bound=0.0)).endswith("not proved nearest")


@pytest.mark.parametrize("best", [5e-8, 2e-7, 5e-7, 2e-6])
@pytest.mark.parametrize("tail", [False, True])
def test_what_the_oracle_calls_reachable_has_a_nearest_reweighting(best, tail):
    """γ is ``best``, on the second message alone."""
    table = np.array([[0.0, 1], [best, 0]])
    exposure = exposure_of([(np.zeros(2), [(np.full(2, 0.5), table)])])
    exposure = behind_identity(exposure) if tail else exposure
    (verdict,) = solve(exposure, torch.tensor([0])).verdict
    (found,) = nearest_reweighting(exposure, torch.tensor([0]))
    assert (verdict, found.status) == (
        ("can", "moved") if best > 1e-7 else ("cannot", "unreachable")
    )


def test_any_weights_bound_the_moved_mass_from_below():
    exposure, y = setting("three groups", 6)
    tables, alpha = Tables.from_exposure(exposure), exposure.coefficients[0].numpy()
    rng = np.random.default_rng(0)
    for answer in nearest_reweighting(exposure, y, threads=1):
        if answer.status != "moved":
            continue
        problem = build_lp(tables, 0, answer.node, answer.target)
        frozen = alpha[problem.terms]
        need = 1e-7 - (problem.fixed + frozen @ problem.gaps)
        for _ in range(50):
            weights = rng.exponential(0.2, len(need))
            assert moved_bound(problem, frozen, need, weights) <= answer.moved + 1e-9
        assert f"{100 * answer.moved / problem.mass.sum():.2g} % of the mass moves" in str(answer)
        now, then = np.zeros((2, exposure.num_nodes))
        np.add.at(now, tables.sources[tables.rows[problem.terms]], frozen / frozen.sum())
        np.add.at(then, answer.sources, answer.change / frozen.sum())
        for source, before, after in answer.gains:
            assert (before, after) == pytest.approx((now[source], now[source] + then[source]))
        assert {source for source, *_ in answer.gains} == set(np.flatnonzero(then > 1e-9))


@pytest.mark.parametrize("family", ["gaussian", "three groups", "twins"])
def test_stable_evidence_matches_separate_lps(family):
    exposure, y = setting(family, 3, seed=2)
    tables = Tables.from_exposure(exposure)
    for found in stable_evidence(exposure, y, torch.arange(3), epsilon=0.05, threads=1):
        problem = build_lp(tables, 0, found.node, found.target)
        count = len(problem.terms)
        for a in range(count):
            ends = [_extreme_by_scipy(problem, a, sign, found.margin - 0.05) for sign in (1, -1)]
            assert found.low[a] == pytest.approx(ends[0], abs=1e-6)
            assert found.high[a] == pytest.approx(ends[1], abs=1e-6)
            notable = 0.01 * problem.mass[problem.group[a]]  # of its own group
            assert found.indispensable[a] == (found.low[a] > notable)
            some = found.high[a] > notable >= found.low[a]
            assert found.interchangeable[a] == some


def _extreme_by_scipy(problem, a, sign, floor):
    count = len(problem.terms)
    cost = np.zeros(count)
    cost[a] = sign
    answer = linprog(
        cost,
        -problem.gaps.T,
        problem.fixed - floor,
        group_rows(problem),
        problem.mass,
        method="highs",
    )
    return sign * answer.fun


def test_planted_evidence_is_told_apart():
    """One message nobody can replace, two equal ones that can replace each other; a group of a
    hundredth of the other's mass, whose one term is all of it."""
    table = np.array([[0.0, -4, 4], [0, 4, -4], [0, 4, -4], [0, 1, 1]])
    parts = [(np.full(4, 0.25), table), (np.array([0.005]), np.array([[1.0, 0, 0]]))]
    for groups in (1, 2):
        exposure = exposure_of([(np.zeros(3), parts[:groups])])
        (found,) = stable_evidence(exposure, torch.tensor([0]), [0], epsilon=1e-3, threads=1)
        last = [True] * (groups - 1)
        assert found.indispensable.tolist() == [True, False, False, False, *last]
        assert found.interchangeable.tolist()[:4] == [False, True, True, False]
        assert found.high[1] == pytest.approx(0.5, abs=1e-2)
        assert f"{groups} indispensable terms: node 0" in str(found)
    with pytest.raises(InputError, match="epsilon must be positive"):
        stable_evidence(exposure, torch.tensor([0]), torch.tensor([0]), epsilon=0)


@pytest.mark.parametrize(
    ("fixed", "mass", "table", "low"),
    [
        # Moving a share s to the second message costs 10 s: s may be 1e-4.
        ([0.0, 1], 1.0, [[0.0, 0], [-10, 0]], [0.9999, 0]),
        ([0.0, 1], 1.0, [[0.0, 0]], [1.0]),
        ([0.0, 0], 1e-8, [[1.0, 0], [-1e6, 0]], [0.9, 0]),
        ([0.0, 0], 1e-8, [[1.0, 0]], [1.0]),
        ([0.0, 1], 1e-8, [[0.0, 0], [-1e6, 0]], [0.9, 0]),
    ],
)
def test_messages_of_zero_and_small_masses_are_indispensable(fixed, mass, table, low):
    alpha = np.full(len(table), mass / len(table))
    exposure = exposure_of([(np.array(fixed), [(alpha, np.array(table))])])
    (found,) = stable_evidence(exposure, torch.tensor([0]), [0], epsilon=1e-3, threads=1)
    np.testing.assert_allclose(found.low / mass, low, atol=1e-6)
    np.testing.assert_allclose(found.high / mass, [1.0, *[1 - low[0]][: len(low) - 1]], atol=1e-6)
    assert found.indispensable.tolist() == [True, False][: len(low)]


def test_a_range_that_highspy_does_not_find_is_undecided(monkeypatch):
    def tired():
        highs = new_highs()
        highs.setOptionValue("simplex_iteration_limit", 0)
        return highs

    monkeypatch.setattr("gnn_repair.oracle.questions.stable.new_highs", tired)
    exposure, y = setting("gaussian", 3, seed=2)
    for found in stable_evidence(exposure, y, [0, 1, 2], epsilon=0.05, threads=1):
        low, high = np.isnan(found.low), np.isnan(found.high)
        assert low.any() and f", {(low | high).sum()} undecided" in str(found)
        assert (high & ~low).any() or not high.any()
        assert not (found.indispensable | found.interchangeable)[low].any()


@pytest.mark.parametrize("family", ["three groups", "absent groups"])
@pytest.mark.parametrize("between", [False, True])
def test_relaxed_margins_match_ranged_lps(family, between):
    exposure, y = setting(family, 10)
    tables = Tables.from_exposure(exposure)
    slacks = (0.0, 0.2, 1.0)
    found = relaxed_margins(exposure, y, slack=slacks, between_groups=between, threads=1)
    for k, rho in enumerate(slacks):
        for i, node in enumerate(found.node):
            problem = build_lp(tables, 0, int(node), int(found.target[i]))
            expected = margin_by_scipy(problem, rho, between)
            assert found.margin[k, i] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert (np.diff(found.margin, axis=0) >= -1e-9).all()
    np.testing.assert_allclose(found.bound, found.margin, atol=1e-9)
    told = str(found)
    assert f"ρ = 0.2: mean γ {found.margin[1].mean():.4g}, reach" in told
    assert ("between groups" in told) == between


@pytest.mark.parametrize("between", [False, True])
def test_a_relaxed_exposure_is_the_same_model_whose_null_term_is_nobodys_message(between):
    """Zero contribution, zero message, no sender; who needs senders refuses."""
    whole, y = setting("three groups", 6)
    full = replace(whole, messages=torch.ones_like(whole.messages))
    for slack in (0.5, 1.0):
        other = relax(full, slack, between)
        torch.testing.assert_close(other.logits(), full.logits())
        torch.testing.assert_close(other.frozen_logits, full.frozen_logits)
        null = other.sources[other.rows.long()] < 0
        # One null term a node and group, with a share of the group's mass.
        mass = full.mass[0].sum(1) if between else full.mass[0].reshape(-1)
        torch.testing.assert_close(other.coefficients[0, null], slack * mass)
        rows = other.rows[null].long()
        assert float(other.contributions[:, rows].abs().sum()) == 0
        assert float(other.messages[:, other.message_rows[rows].long()].abs().sum()) == 0
        others = other.message_rows[other.rows[~null].long()].long()
        assert float(other.messages[:, others].min()) == 1
    for refused in (RepairInputs, lambda one: gather(one, y)):
        with pytest.raises(InputError, match="nobody sent"):
            refused(other)
    torch.testing.assert_close(sources_to_recipients(other), sources_to_recipients(full))
    found = solve(relax(setting("absent groups", 12)[0], 0.5, between), "all")
    for answer in found:
        named = "no message (λ" in str(answer)
        assert named == (answer.reachable and bool((answer.sources < 0).any()))
        assert "node -1" not in str(answer)
    assert (found.sources < 0).any()
    with pytest.raises(InputError, match="slack must lie between 0 and 1"):
        relax(full, 1.5)


def test_a_nearest_change_may_give_to_nobody():
    """All of the mass may be dropped; what is dropped goes to the null term."""
    exposure = exposure_of([(np.array([1.0, 0]), [(np.ones(1), np.array([[0.0, 2]]))])])
    (answer,) = nearest_reweighting(relax(exposure, 1.0), torch.tensor([0]), margin=0.5, threads=1)
    # The frozen margin is 1 − 2·1; a margin of ½ leaves mass ¼.
    assert answer.moved == pytest.approx(0.75)
    assert "giving 88 % of the weight (now 50 %) to no message" in str(answer)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        (
            ((3, 0.14, 0.40), (0, 0.1, 0.10001), (4, 0.1, 0.10001)),
            "40 % of the weight (now 14 %) to node 3 and a little more to 2 more senders",
        ),
        (
            ((3, 0.14, 0.40), (0, 0.1, 0.10001)),
            "(now 14 %) to node 3 and a little more to 1 more sender",
        ),
        (((7, 0.0312, 0.0314),), "3.14 % of the weight (now 3.12 %) to node 7"),
        (((7, 0.317, 0.3172),), "31.72 % of the weight (now 31.70 %) to node 7"),
        (((7, 0.04, 0.23),), "23 % of the weight (now 4.0 %) to node 7"),
        (
            ((8, 0, 1), (7, 0.031, 0.104)),
            "100 % of the weight (now 0 %) to node 8 and 10 % of the weight (now 3.1 %) to node 7",
        ),
    ],
)
def test_gains_have_as_many_digits_as_tell_them_apart(gains, said):
    assert said in describe_gains(gains, ONE_KIND)


def test_views_are_written_as_csv_and_may_be_empty(tmp_path):
    exposure, y = setting("gaussian", 12)
    solution = solve(exposure, y)
    ranked = gr.source_ranking(solution, exposure, indispensable=True, csv=tmp_path / "s.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "s.csv"), ranked)
    confusion = gr.confusion_by_reach(solution, exposure, y, csv=str(tmp_path / "c.csv"))
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "c.csv"), confusion)
    with pytest.raises(InputError):
        gr.source_ranking(solution, exposure, csv=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.csv", "s.csv"]
    lost = solution.taken(np.flatnonzero(solution.excluded))
    assert len(lost) and without_each_source(lost, exposure).empty
    none = gr.source_ranking(lost, exposure, indispensable=True)
    assert none.empty and none.columns.tolist() == ranked.columns.tolist()


def test_a_change_is_called_unreachable_only_where_the_bound_says_so(monkeypatch):
    exposure, y = setting("gaussian", 15)
    known = nearest_reweighting(exposure, y, margin=0.1, threads=1)

    def doubted(*given, **named):
        found = solve(*given, **named)
        low = found.margin - 10  # a λ far from the best, whose bound is still proved
        return replace(found, margin=low, status=np.full_like(found.status, UNCERTIFIED))

    monkeypatch.setattr(nearest, "solve", doubted)
    again = nearest_reweighting(exposure, y, margin=0.1, threads=1)
    assert {one.status for one in known} >= {"moved", "unreachable"}
    assert [one.status for one in again] == [one.status for one in known]
