"""Verdicts of nonlinear heads against random λ, the triangle LP and a MILP solved to the end."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.exposure.heads.operations import lower
from gnn_repair.oracle import nearest_reweighting, solve
from gnn_repair.oracle.heads import branch
from gnn_repair.oracle.heads import solve as head_solve
from gnn_repair.oracle.heads.bound import base_of, original_shares, subdivide
from gnn_repair.oracle.heads.branch import Leaf, Tree, bound_leaves
from tests.helpers.oracle.head_cases import (
    CLASSES,
    KINDS,
    NODES,
    PIECEWISE,
    margins_at,
    random_coefficients,
    tailed,
)
from tests.helpers.oracle.head_references import exact, triangle

ASKED = 6
"""Nodes that every kind of tail is asked about, each for all classes."""
LOOSE = {"mlp": 0.6, "group_norm": 0.6, "layer_norm_gelu": 0.65, "softmax_gate": 0.95}
"""Decided at least: two layers of random weights, products of two moving values."""


@pytest.mark.parametrize("kind", KINDS)
def test_most_is_decided_and_proved_and_no_reweighting_contradicts_it(kind):
    exposure = tailed(kind, 2, groups=1 + len(kind) % 3)
    multiplied = lower(exposure.head).scale is not None
    assert multiplied == (kind in ("layer_norm", "layer_norm_jk", "normalize"))
    hard = kind in ("mlp", "layer_norm_gelu", "group_norm")  # cases take long to check
    effort = "fast" if hard else "normal"
    solution = solve(exposure, "all", torch.arange(ASKED), effort=effort)
    least = 1.0 if kind in PIECEWISE else 0.8
    assert solution.decided.mean() >= LOOSE.get(kind, least), solution
    assert 0 < solution.reachable.sum() < len(solution)
    assert (solution.margin[solution.verdict == "can"] > 1e-7).all()
    assert (solution.bound[solution.verdict == "cannot"] <= 1e-7).all()
    bound, rng = solution.bound.reshape(ASKED, CLASSES), np.random.default_rng(5)
    for _ in range(12):
        coefficients = random_coefficients(exposure.aggregate, rng)
        for c in range(CLASSES):
            margin = margins_at(exposure, coefficients, c)[:ASKED]
            assert (margin <= bound[:, c] + 1e-12).all()
    part = solution[:: 1 if solution.proofs.count < 120 else 5]  # cases take a while to recompute
    assert bool(part.check(exposure)), part.check(exposure)


@pytest.mark.parametrize("kind", PIECEWISE)
def test_verdicts_are_those_of_a_milp_solved_to_the_end(kind):
    for seed in range(1 if kind == "mlp" else 2):
        exposure = tailed(kind, 30 + seed, 1 + seed % 2)
        solution = solve(exposure, "all", effort="normal" if kind != "mlp" else 0.05)
        # Those that were hard come first: they are what a mistake would show at.
        for i in np.argsort(-solution.status, kind="stable")[:2]:
            wanted = exact(exposure, int(solution.recipient[i]), int(solution.target[i]))
            if abs(wanted) > 1e-5:  # HiGHS itself is good to about 1e-6
                assert solution.verdict[i] != ("cannot" if wanted > 0 else "can")
            assert solution.margin[i] <= wanted + 1e-4
            assert solution.bound[i] >= wanted - 1e-5


@pytest.mark.parametrize("kind", ["bn_residual", "jk_cat", "gin"])
def test_rounds_of_lines_end_at_the_triangle_relaxation(kind):
    exposure = tailed(kind, 3, 2)
    base = base_of(exposure)
    for position in range(2, 5):
        tree = Tree(position, 1, -np.inf, np.inf, 3)
        bound_leaves(base, [(tree, Leaf())], 12)
        wanted = triangle(exposure, position, 1)
        assert wanted - 1e-7 <= tree.bound <= wanted + 1e-2 * max(1.0, abs(wanted))


def test_a_node_without_messages_is_judged_as_it_stands():
    exposure = tailed("layer_norm", 4)
    solution, logits = solve(exposure, "all", torch.tensor([0])), exposure.frozen_logits[0, 0]
    wanted = [float(z - np.delete(logits.numpy(), c).max()) for c, z in enumerate(logits)]
    np.testing.assert_allclose(solution.margin, wanted, atol=1e-5)
    np.testing.assert_allclose(solution.bound, wanted, atol=1e-5)
    assert solution.reachable.sum() == 1 and solution.decided.all()


@pytest.mark.parametrize("how", ["a solver that gives up", "derivatives class by class"])
def test_what_the_search_is_helped_by_costs_no_verdict(how, monkeypatch):
    exposure = tailed("relu", 5)
    wanted = solve(exposure, "all")
    original = branch.solve_tables

    def failing(*args):
        piece = original(*args)
        piece.status[::3] = 3
        return piece

    if how == "a solver that gives up":
        monkeypatch.setattr(branch, "solve_tables", failing)
        found = solve(exposure, "all", effort="full")
    else:  # as where many points stand side by side
        monkeypatch.setattr(head_solve, "TOGETHER", 0)
        found = solve(exposure, "all")
        np.testing.assert_allclose(found.margin, wanted.margin, atol=1e-9)
    assert found.check(exposure).ok
    both = found.decided & wanted.decided
    np.testing.assert_array_equal(found.verdict[both], wanted.verdict[both])


def test_what_the_model_does_not_confirm_is_not_claimed():
    exposure = tailed("relu", 7)
    frozen = exposure.frozen_logits[0]
    solution = solve(replace(exposure, replay=lambda coefficients: frozen), "all")
    predicted = frozen.argmax(1).numpy()
    np.testing.assert_array_equal(solution.reachable, predicted[solution.node] == solution.target)
    doubted = np.flatnonzero(~solution.decided)
    assert len(doubted) and all("does not confirm" in solution.reasons[i] for i in doubted)
    sure = 100 * torch.eye(CLASSES)[torch.arange(NODES) % CLASSES]
    contradicted = solve(replace(exposure, replay=lambda coefficients: sure), "all")
    honest = solve(exposure, "all")
    wins = contradicted.target == contradicted.node % CLASSES
    excluded = wins & honest.excluded & (honest.status == 6)
    assert excluded.any() and (contradicted.verdict[excluded] == "undecided").all()
    assert "which its head excludes" in contradicted.reasons[int(np.flatnonzero(excluded)[0])]


def test_an_unknown_operation_is_named_and_wins_are_still_found():
    exposure = tailed("opaque", 3)
    solution = solve(exposure, "all")
    assert set(solution.verdict) == {"can", "undecided"}
    said = str(solution[int(np.flatnonzero(~solution.decided)[0])])
    assert "no bound is known for the operation softplus" in said and "inf" not in said
    assert np.isinf(solution.bound).all() and solution.check(exposure).ok


class Chooses(torch.nn.Module):
    """A code per node, by the largest sum: constant in pieces, so without slopes."""

    def forward(self, x, adj):
        largest = (adj @ x).argmax(1, keepdim=True)
        return (largest == torch.arange(CLASSES)).double() @ (2 * torch.eye(CLASSES).double())


def test_a_head_that_only_chooses_is_asked_by_running_it():
    rng = torch.Generator().manual_seed(0)
    x, adj = (torch.randn(9, k, generator=rng).double() for k in (CLASSES, 9))
    exposure = expose(Chooses(), Data(x=x, adj=adj.abs()), outputs="classes")
    solution = solve(exposure, "all")
    assert set(solution.verdict) <= {"can", "undecided"} and solution.check(exposure).ok
    wins = solution.target == exposure.frozen_logits[0].argmax(1).numpy()[solution.node]
    assert (solution.verdict[wins] == "can").all()
    near = nearest_reweighting(exposure, torch.tensor(solution.target[: 9 * CLASSES : CLASSES]))
    assert len(near)


def test_effort_is_a_word_or_seconds_and_limits_cases():
    exposure = tailed("relu", 15, 2)
    fast, full = (solve(exposure, "all", effort=word) for word in ("fast", "full"))
    assert fast.decided.sum() < full.decided.sum() == len(full)
    assert "effort" in fast.reasons[int(np.flatnonzero(~fast.decided)[0])]
    agree = fast.decided
    np.testing.assert_array_equal(fast.verdict[agree], full.verdict[agree])
    assert solve(exposure, "all", effort=5.0).decided.all()
    few = solve(exposure, "all", effort=head_solve.EffortLimit(4))
    assert fast.decided.sum() < few.decided.sum() < len(few)
    cases = np.diff(few.proofs.indptr)
    # Three may each be split once more.
    assert 1 < cases.max() <= 6 < np.diff(full.proofs.indptr).max()
    assert f"{cases[~few.decided].max()} cases leave it open" in " ".join(few.reasons.values())
    with pytest.raises(InputError, match="effort must be"):
        solve(exposure, "all", effort="much")
    with pytest.raises(InputError, match='by method "simplex"'):
        solve(exposure, "all", method="highs")


@pytest.mark.parametrize("ticks", [2, 5])
def test_time_is_given_for_each_question_and_shared_by_all(ticks, monkeypatch):
    """A clock that ticks whenever it is read, once for each chunk of one question: of n questions
    with a second each, n / ticks are bounded before the time is over."""
    exposure, clock, bounded = tailed("relu", 15, 2), itertools.count(0, ticks), []
    plain = head_solve._relax_chunk

    def counted(questions, chosen, *more):
        bounded.append(chosen)
        plain(questions, chosen, *more)

    monkeypatch.setattr(head_solve, "CHUNK", 1)
    monkeypatch.setattr(head_solve, "working_seconds", lambda: float(next(clock)))
    monkeypatch.setattr(head_solve, "_relax_chunk", counted)
    found = solve(exposure, "all", range(10), effort=head_solve.EffortLimit(1, 1.0))
    assert len(bounded) == len(found) // ticks


# Parts of polytopes: they cover the whole, and wrong ones are found.


@pytest.fixture(scope="module")
def exposure():
    return tailed("gelu", 4, 1)


@pytest.fixture(scope="module")
def halved(exposure):
    """A question that halvings decided."""
    solution = solve(exposure, "all")
    terms = np.diff(exposure.aggregate.segments.numpy())[solution.recipient]
    for i in np.flatnonzero((solution.verdict == "cannot") & (terms > 2)).tolist():
        one = solution[i : i + 1]
        if (one.proofs.operation < 0).any():
            return one
    raise AssertionError("no question needed halves")


def test_a_point_of_a_part_is_the_mixture_of_its_original_shares(exposure):
    base = base_of(exposure)
    position = int(np.argmax(np.diff(base.ends)[:, 0]))
    first, last = base.ends[position]
    halvings = ((0, 1, 1), (1, 2, -1), (0, 2, 1))
    part = subdivide(base, np.array([position]), [halvings])
    shares = np.random.default_rng(0).dirichlet(np.ones(last - first)) * base.mass[position, 0]
    own = original_shares(halvings, shares)
    assert own.min() >= 0 and own.sum() == pytest.approx(base.mass[position, 0])
    assert shares @ part.table == pytest.approx(own @ base.table[base.rows[first:last]])
    # Corner 0 is the middle of the middles of 0, 1 and of 1, 2.
    corner = original_shares(halvings, np.eye(last - first)[0])[:3]
    assert corner == pytest.approx([0.25, 0.5, 0.25])


def test_wrong_halves_are_found(halved, exposure):
    """Another side, another edge, and one that is none; that both halves must be there is said of
    cases in general (test_head_solution.py)."""
    assert halved.check(exposure).ok
    proofs = halved.proofs
    where = np.flatnonzero(proofs.operation < 0)
    first, second = -1 - proofs.operation[where[0]], proofs.unit[where[0]]
    for name, place, value in (
        ("sign", where[0], -proofs.sign[where[0]]),
        ("unit", where[0], min({0, 1, 2} - {first, second})),
        ("unit", where, -1 - proofs.operation[where]),
    ):
        array = getattr(proofs, name).copy()
        array[place] = value
        assert not replace(halved, proofs=replace(proofs, **{name: array})).check(exposure).ok


def test_one_error_of_a_check_is_enough():
    exposure = tailed("relu", 5)
    found = solve(exposure, "all", range(4)).check(exposure)
    assert found.ok
    for name in ("mass", "negative", "margin", "excess", "rewritten"):
        for wrong in (1e-2, np.inf, np.nan):
            assert not replace(found, **{name: wrong}).ok, (name, wrong)
    for name in ("unconfirmed", "unproved"):
        assert not replace(found, **{name: 1}).ok and "NOT" in str(replace(found, **{name: 1}))
