"""What a report collects, against independent computations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.methods import METHODS
from gnn_repair.oracle import reach, solve
from gnn_repair.oracle.metrics import summarise
from gnn_repair.oracle.problems import FAILED
from gnn_repair.repair.baselines import KeptPrediction
from gnn_repair.repair.folds import FittedCrossFit
from gnn_repair.reporting import gather, report
from gnn_repair.reporting.evidence import best_on
from gnn_repair.reporting.figures import hull, plane_of
from gnn_repair.reporting.payload import run_payload
from tests.helpers.report.pages import payload_of
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# Margins, witnesses, and the smallest change.


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


def test_answers_that_are_known_are_used_for_these_nodes_and_for_no_others(monkeypatch):
    exposure, y = make_exposure(groups=2)
    nodes = torch.arange(5, 25)
    found = reach(exposure, y, nodes)
    turned = summarise(exposure, solve(exposure, "all", nodes.flip(0)), y)
    own = gather(exposure, y, nodes, all_classes=True)
    for shown, told in ((nodes, found), (torch.arange(5, 15), found), (nodes, turned)):
        given = gather(exposure, y, shown, all_classes=True, answers=(told, told.changes))
        assert (given.classes.figures is told) == (shown is nodes and told is found)
        rows = [own.nodes.tolist().index(node) for node in given.nodes]
        for name in ("margin", "rival_weights"):
            np.testing.assert_allclose(getattr(given, name), getattr(own, name)[rows], atol=1e-9)
        for name in ("reachable", "share", "chance"):
            expected = getattr(own.classes, name)[rows]
            np.testing.assert_allclose(getattr(given.classes, name), expected, atol=1e-9)
    for name in ("reach", "least_changes", "solve"):
        monkeypatch.setattr(f"gnn_repair.reporting.evidence.{name}", None)
    gather(exposure, y, nodes, all_classes=True, answers=(found, found.changes))


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


@pytest.fixture(scope="module")
def world():
    exposure, y = make_exposure(groups=2, nodes=60)
    return exposure, y, gather(exposure, y, all_classes=True)


def test_every_class_is_asked_and_the_smallest_change_is_admissible_and_wins(world):
    exposure, y, evidence = world
    found, wrong = evidence.classes, ~evidence.right
    solved = gr.solve(exposure, "all")
    reachable = (solved.margin > 1e-7).reshape(-1, 4)[evidence.nodes]
    np.testing.assert_array_equal(found.reachable, reachable)
    for i, node in enumerate(evidence.nodes.tolist()):
        true, predicted = int(evidence.true_class[i]), int(evidence.predictions[node])
        others = [c for c in range(4) if c not in (true, predicted)]
        assert found.chance[i] == found.possible[i] == pytest.approx(reachable[i, others].mean())
        if not wrong[i]:
            continue
        for c in set(range(4)) - {predicted}:
            (one,) = gr.nearest_reweighting(exposure, torch.full_like(y, c), torch.tensor([node]))
            expected = one.share if reachable[i, c] else np.inf
            assert found.share[i, c] == pytest.approx(expected)
        terms = slice(evidence.starts[i], evidence.starts[i + 1])
        lam, alpha = found.nearest[terms], evidence.coefficients[terms]
        if not evidence.reachable[i]:
            np.testing.assert_array_equal(lam, alpha)
            continue
        ends = evidence.segments[2 * i : 2 * i + 3] - evidence.starts[i]
        for low, high in pairwise(ends):
            assert lam[low:high].sum() == pytest.approx(alpha[low:high].sum())
        assert lam.min() >= -1e-12
        assert np.abs(lam - alpha).sum() / 2 / alpha.sum() == pytest.approx(found.share[i, true])
        logits = evidence.fixed_logits[i] + lam @ evidence.contributions[evidence.rows[terms]]
        assert logits[true] > np.delete(logits, true).max()
    assert np.isnan(found.share[evidence.right]).all()


def test_of_too_many_errors_a_sample_is_asked(world, monkeypatch):
    exposure, y, whole = world
    monkeypatch.setattr("gnn_repair.reporting.evidence.MOST_CHANGES", 12)
    some = gather(exposure, y, all_classes=True).classes
    asked = ~np.isnan(some.share).all(1)
    assert 2 <= asked.sum() < (~whole.right).sum()
    np.testing.assert_array_equal(some.share[asked], whole.classes.share[asked])
    np.testing.assert_array_equal(some.chance, whole.classes.chance)


def test_homophily_is_a_share_of_the_labelled_neighbours():
    exposure, y = make_exposure(groups=2)
    y = y.clone()
    y[torch.arange(40) % 3 == 0] = -1
    ends = torch.randint(40, (2, 150), generator=torch.Generator().manual_seed(5))
    for given in (ends, torch.cat([ends, ends.flip(0)], 1)):  # along the edges, both ways
        sent = {(u, v) for u, v in given.t().tolist() if u != v}
        found = gather(exposure, y, edge_index=given)
        assert found.degree.tolist() == [sum(v == n for _, v in sent) for n in found.nodes]
        for node, share in zip(found.nodes, found.homophily, strict=True):
            around = [int(y[u]) for u, v in sent if v == node and y[u] >= 0]
            wanted = around.count(int(y[node])) / len(around) if around else np.nan
            np.testing.assert_equal(share, wanted)


def test_what_is_left_of_rounding_is_no_support():
    evidence = gather(*make_exposure(groups=2))
    dusty = replace(evidence, witness=np.maximum(evidence.witness, 1e-9))
    assert dusty.support.tolist() == evidence.support.tolist()


# Members, repairs, and the best of them.


def test_a_member_of_a_stack_is_gathered_as_it_would_be_alone():
    """Its own column of the mask, its own answers of every kind of repair."""
    exposure, y = make_exposure(members=3, groups=2)
    mask = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    kinds = {"reweighting": Tilted(), "set_translation": Moved(), "mine": torch.rand(40, 4)}
    for member in range(3):
        found = gather(exposure, y, mask, member=member, repairs=kinds)
        alone = gather(exposure.member(member), y, mask[:, member], repairs=kinds)
        for name in ("nodes", "frozen_logits", "margin", "witness", "degree"):
            np.testing.assert_allclose(getattr(found, name), getattr(alone, name), err_msg=name)
        for one, other in zip(found.corrections, alone.corrections, strict=True):
            np.testing.assert_allclose(one.logits, other.logits, err_msg=one.name)


class Folded:
    """A repair of two members that judges itself."""

    nested = torch.tensor([0.0, 1.0])

    def logits(self, exposure):
        return exposure.frozen_logits[:, exposure.recipients]


def test_the_best_repair_is_chosen_on_validation_nodes(tmp_path):
    exposure, y = make_exposure()
    frozen = exposure.frozen_logits[0].float()
    val, test = torch.arange(20), torch.arange(20, 40)
    right = 9.0 * torch.nn.functional.one_hot(y, 4)
    there, here = frozen.clone(), frozen.clone()
    there[val], here[test] = right[val], right[test]

    def best(repairs, told=(exposure, y), **options):
        page = report(*told, tmp_path / "r.html", nodes=test, repairs=repairs, **options)
        return payload_of(page)["run"]["best"]

    repairs = {"here": here, "same": 2 * frozen, "there": there}
    assert best(repairs, val=val) == {"key": "there", "nodes": 20}
    assert best(repairs) is None and best({"same": 2 * frozen}, val=val)["key"] is None
    for member, key in ((0, None), (1, "folded")):  # each member by its own held-out nodes
        found = best({"folded": Folded()}, make_exposure(members=2), member=member, val=val)
        assert found["key"] == key
    several = make_exposure(members=2)  # what the better first member says helps the other alone
    for member, key in ((0, None), (1, "first")):
        first = {"first": 2 * several[0].frozen_logits[0]}
        assert best(first, several, member=member, val=val)["key"] == key


def test_what_learned_from_validation_labels_is_not_chosen_by_them():
    exposure, y = make_exposure()
    perfect, val = 9.0 * torch.nn.functional.one_hot(y, 4).double(), torch.arange(20)
    for name, method in METHODS.items():
        for written in (name, name.replace("_", "-")):
            found = best_on({written: perfect}, exposure, y, val, 0)
            assert found == (name if method.by_default else None)
    for kind in (KeptPrediction, FittedCrossFit):  # whatever its user calls it
        assert best_on({"mine": object.__new__(kind)}, exposure, y, val, 0) is None


# Other kinds of models: behind a nonlinear head, and of graphs.

CLASSES, NODES = 4, 36


class Headed(nn.Module):
    """A convolution of two heads or none, an activation, a linear head."""

    def __init__(self, heads: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = GCNConv(6, 12)
        self.last = GATConv(12, 6, heads=2) if heads else GCNConv(12, 12)
        self.activation = nn.ReLU() if heads else nn.Softplus(threshold=19)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        return self.head(self.activation(self.last(x, edge_index)))


@pytest.mark.parametrize("heads", [False, True])
def test_gathered_logits_are_those_of_the_model_really_run(heads):
    torch.manual_seed(0)
    y, ends = torch.randint(0, CLASSES, (NODES,)), torch.randint(0, NODES, (2, 3 * NODES))
    ends = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    x = torch.randn(NODES, 6) + nn.functional.one_hot(y, 6)
    exposure = gr.expose(Headed(heads), Data(x=x, edge_index=ends, y=y))
    solution, evidence = solve(exposure, y), gather(exposure, y)
    behind = evidence.head
    counts = {word: int((solution.verdict == word).sum()) for word in ("can", "cannot")}
    assert int(behind.proved.sum()) == counts["can"]
    assert int((behind.decided & ~behind.proved).sum()) == counts["cannot"]
    assert heads != (~behind.decided).any()
    run = exposure.replay(solution.dense(exposure)[0]).double().detach().numpy()
    np.testing.assert_allclose(behind.oracle_logits, run[evidence.nodes], rtol=1e-5, atol=1e-5)
    # Every message alone in its group, for a few nodes: the model itself, run that way.
    part = exposure.restrict(torch.from_numpy(evidence.nodes))
    ends, alpha = part.segments.tolist(), part.coefficients[0].double()
    for slot in range(0, len(ends) - 1, 7):
        for term in range(ends[slot], ends[slot + 1]):
            lam = alpha.clone()
            lam[ends[slot] : ends[slot + 1]] = 0.0
            lam[term] = alpha[ends[slot] : ends[slot + 1]].sum()
            node = evidence.nodes[slot // exposure.num_groups]
            said = part.replay(lam)[node].double().detach().numpy()
            np.testing.assert_allclose(behind.alone_logits[term], said, rtol=1e-5, atol=1e-5)
    assert hull(evidence, 0, plane_of(evidence, 0)).shape == (0, 2)
    proved = reach(exposure, y).members[0].true_class
    assert (evidence.reach.reachable, evidence.reach.nodes) == (proved.hits, proved.total)


class Plain(nn.Module):
    """Nodes say their features, after a ReLU where it is asked for."""

    def __init__(self, nonlinear: bool) -> None:
        super().__init__()
        self.nonlinear, self.say = nonlinear, nn.Linear(3, 3, bias=False)
        self.say.weight.data.copy_(torch.eye(3))

    def forward(self, x, edge_index, batch):
        pooled = global_mean_pool(x, batch)
        return self.say(pooled.relu() if self.nonlinear else pooled)


@pytest.mark.parametrize("nonlinear", [False, True])
def test_graphs_and_their_nodes_are_one_numbered_set(nonlinear):
    """Rings in which node 2 alone is for class 0 and all others for class 1."""
    data, starts = [], [0, 5, 11, 18, 26]
    for size in np.diff(starts).tolist():
        x = torch.tensor([[0.0, 1.0, 0.0]]).repeat(size, 1)
        x[2] = torch.tensor([2.0, 0.0, 0.5])
        around = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
        both = torch.cat([around, around.flip(0)], 1)
        data.append(Data(x=x, edge_index=both, y=torch.tensor([0])))
    batch = Batch.from_data_list(data)
    exposure, edges = gr.expose(Plain(nonlinear), data), batch.edge_index
    evidence = gather(exposure, batch.y, torch.tensor([1, 3]), edge_index=edges)
    assert sorted(evidence.nodes.tolist()) == [1, 3]
    assert evidence.labels.tolist() == [0] * 4 + [-1] * batch.num_nodes
    # A node alone gives its graph the class that it is for; nodes of other graphs are not shown.
    for graph in (1, 3):
        votes = evidence.predictions[4 + starts[graph] : 4 + starts[graph + 1]]
        assert votes.tolist() == [1, 1, 0] + [1] * (starts[graph + 1] - starts[graph] - 3)
    ends = {tuple(pair) for pair in evidence.edges.T.tolist()}
    wanted = {(4 + 5 + a, 4 + 5 + b) for a, b in ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5))}
    assert {pair for pair in ends if pair[0] < 4 + 11} == wanted
    owner = np.repeat(evidence.nodes, np.diff(evidence.starts))
    used = evidence.sources[evidence.rows][evidence.witness > 1e-7] - 4
    assert (used - np.array(starts)[owner[evidence.witness > 1e-7]]).tolist() == [2, 2]
    words, arrays = run_payload(evidence, node_names=["a", "b", "c", "d"])
    assert words["names"] == ["a", "b", "c", "d"] and "graph_starts" in arrays
    for ends, named in (([[0], [7]], "different graphs"), ([[0], [26]], "26")):
        with pytest.raises(InputError, match=named):
            gather(exposure, batch.y, edge_index=torch.tensor(ends))


@pytest.mark.parametrize("groups", [1, 2])
def test_permuted_nodes_and_classes_permute_the_page_s_data(groups):
    """Nothing on a page depends on the order in which a graph numbers nodes and classes."""
    exposure, y = make_exposure(groups=groups)
    generator = torch.Generator().manual_seed(1)
    new, named = (torch.randperm(size, generator=generator) for size in (40, 4))  # old to new
    back, old_class = new.argsort(), named.argsort()
    turned = exposure.restrict(back)  # recipients in the order of their new numbers
    turned = replace(
        turned,
        recipients=torch.arange(40),
        sources=new[turned.sources.long()].to(turned.sources.dtype),
        contributions=turned.contributions[:, :, old_class],
        fixed_logits=turned.fixed_logits[:, back][:, :, old_class],
        frozen_logits=turned.frozen_logits[:, back][:, :, old_class],
        state=turned.state[:, back],
    )
    before = gather(exposure, y, all_classes=True)
    after = gather(turned, named[y[back]], all_classes=True)
    place = {int(node): i for i, node in enumerate(after.nodes)}
    rows = [place[int(new[node])] for node in before.nodes]
    plain, moved = (run_payload(one)[1] for one in (before, after))
    for name in ("margins", "degree", "homophily", "support", "chance", "asked"):
        np.testing.assert_allclose(moved[name][rows], plain[name], atol=1e-6, err_msg=name)
    for name in ("frozen_logits", "fixed_logits"):
        np.testing.assert_allclose(moved[name][rows][:, named], plain[name], atol=1e-5)
    np.testing.assert_allclose(after.classes.share[rows][:, named], before.classes.share, atol=1e-6)
    np.testing.assert_array_equal(moved["predictions"][new], named[plain["predictions"].tolist()])
