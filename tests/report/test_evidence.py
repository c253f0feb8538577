"""What a report collects, against independent computations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from gnn_repair.oracle import reach, solve
from gnn_repair.oracle.metrics import summarise
from gnn_repair.oracle.problems import FAILED
from gnn_repair.reporting import gather
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure


def best_margin(exposure, member: int, node: int, c: int) -> float:
    """γ of one node by a general LP solver."""
    groups = exposure.num_groups
    ends = exposure.segments[node * groups : (node + 1) * groups + 1].tolist()
    rows = exposure.rows[ends[0] : ends[-1]].long()
    table = exposure.contributions[member, rows].numpy()
    beta = exposure.fixed_logits[member, node].numpy()
    rivals = [r for r in range(exposure.num_classes) if r != c]
    bounds = [(None, None)] + [(0, None)] * len(rows)
    upper = [[1.0, *(table[:, r] - table[:, c])] for r in rivals]
    equal, mass = [], []
    for low, high in pairwise(ends):
        if high > low:
            row = np.zeros(1 + len(rows))
            row[1 + low - ends[0] : 1 + high - ends[0]] = 1
            equal.append(row)
            mass.append(float(exposure.coefficients[member, low:high].sum()))
    cost = [-1.0] + [0.0] * len(rows)
    found = linprog(cost, upper, [beta[c] - beta[r] for r in rivals], equal, mass, bounds=bounds)
    return -found.fun


@pytest.mark.parametrize("groups", [1, 3])
def test_margins_and_witnesses_are_those_of_an_independent_solver(groups):
    exposure, y = make_exposure(groups=groups, members=2)
    evidence = gather(exposure, y, member=1)
    expected = [best_margin(exposure, 1, int(v), int(y[v])) for v in evidence.nodes]
    np.testing.assert_allclose(evidence.margin, expected, atol=1e-8)
    for i, node in enumerate(evidence.nodes):
        terms = slice(evidence.starts[i], evidence.starts[i + 1])
        table = evidence.contributions[evidence.rows[terms]]
        logits = evidence.fixed_logits[i] + evidence.witness[terms] @ table
        own = logits[y[node]]
        assert own - np.delete(logits, y[node]).max() == pytest.approx(expected[i], abs=1e-8)


def test_errors_come_first_by_margin():
    exposure, y = make_exposure()
    evidence = gather(exposure, y)
    wrong = ~evidence.right
    errors = int(wrong.sum())
    assert wrong[:errors].all() and 0 < errors < len(wrong)
    assert (np.diff(evidence.margin[:errors]) <= 0).all()
    assert (np.diff(evidence.margin[errors:]) <= 0).all()


def test_answers_that_are_known_are_used_for_these_nodes_and_for_no_others():
    exposure, y = make_exposure(groups=2)
    nodes = torch.arange(5, 25)
    found = reach(exposure, y, nodes)
    turned = summarise(exposure, solve(exposure, "all", nodes.flip(0)), y)
    own = gather(exposure, y, nodes, others=True)
    for shown, told in ((nodes, found), (torch.arange(5, 15), found), (nodes, turned)):
        given = gather(exposure, y, shown, others=True, answers=(told, told.changes))
        assert (given.classes.figures is told) == (shown is nodes and told is found)
        rows = [own.nodes.tolist().index(node) for node in given.nodes]
        for name in ("margin", "rival_weights"):
            np.testing.assert_allclose(getattr(given, name), getattr(own, name)[rows], atol=1e-9)
        for name in ("reachable", "share", "chance"):
            expected = getattr(own.classes, name)[rows]
            np.testing.assert_allclose(getattr(given.classes, name), expected, atol=1e-9)


def test_a_node_without_an_answer_has_no_margin_and_no_rivals(monkeypatch):
    exposure, y = make_exposure()
    solution = solve(exposure, y)
    failed = solution.status.copy()
    failed[3] = FAILED
    lost = replace(solution, status=failed)
    monkeypatch.setattr("gnn_repair.reporting.evidence.solve", lambda *_: lost)
    evidence = gather(exposure, y)
    (unsolved,) = np.flatnonzero(np.isnan(evidence.margin))
    assert evidence.nodes[unsolved] == 3 and not evidence.rival_weights[unsolved].any()
    assert evidence.reach.nodes == 39


def test_repairs_of_every_kind():
    exposure, y = make_exposure(groups=2)
    own = torch.randn(40, 4)
    repairs = {"reweighting": Tilted(), "set-translation": Moved(), "mine": own}
    evidence = gather(exposure, y, torch.arange(10, 30), repairs=repairs)
    tilted, moved, mine = evidence.corrections
    assert [c.kind for c in evidence.corrections] == ["coefficients", "shift", "logits"]
    assert [c.title for c in evidence.corrections] == ["Reweight", "Set translation", "mine"]
    nodes = torch.from_numpy(evidence.nodes)
    for correction, full in ((tilted, Tilted()), (moved, Moved())):
        expected = full.logits(exposure)[0, nodes].numpy()
        np.testing.assert_allclose(correction.logits, expected, atol=1e-10)
    np.testing.assert_allclose(mine.logits, own[nodes].double().numpy())
    alpha, lam = evidence.coefficients, tilted.coefficients
    ends = evidence.segments
    np.testing.assert_allclose(np.add.reduceat(lam, ends[:-1]), np.add.reduceat(alpha, ends[:-1]))


def test_degree_and_homophily_come_from_the_graph():
    exposure, y = make_exposure(nodes=6)
    y = torch.tensor([0, 0, 1, 1, 0, -1])
    edges = torch.tensor([[0, 1, 0, 2, 0, 0, 5, 3, 3], [1, 0, 2, 0, 0, 5, 0, 2, 2]])
    evidence = gather(exposure, y, edge_index=edges)
    rows = zip(evidence.nodes, evidence.degree, evidence.homophily, strict=True)
    found = {int(node): (int(degree), share) for node, degree, share in rows}
    assert found[0] == (3, 0.5)  # 1 shares its class, 2 does not, 5 has none
    assert found[2] == (2, 0.5)
    assert found[4][0] == 0 and np.isnan(found[4][1])
    assert 5 not in found and evidence.unlabelled == 1
