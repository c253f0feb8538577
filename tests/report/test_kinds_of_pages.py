"""Pages of nonlinear heads, of graph classifiers and of ladders; the overview counted again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.oracle import reach, solve
from gnn_repair.reporting import gather, report
from gnn_repair.reporting.figures import hull, plane_of
from gnn_repair.reporting.payload import run_payload
from tests.helpers.report.report_worlds import make_exposure

# The page of models that end in a nonlinear head: what it gathers, and what a browser shows.

CLASSES, NODES = 4, 36


class Tailed(nn.Module):
    """A convolution of two heads or none, an activation, a linear head."""

    def __init__(self, activation: nn.Module, heads: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = GCNConv(6, 12)
        self.last = GATConv(12, 6, heads=2) if heads else GCNConv(12, 12)
        self.activation, self.head = activation, nn.Linear(12, CLASSES)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        return self.head(self.activation(self.last(x, edge_index)))


@pytest.fixture(scope="module")
def graph() -> Data:
    torch.manual_seed(0)
    y = torch.randint(0, CLASSES, (NODES,))
    ends = torch.randint(0, NODES, (2, 3 * NODES))
    ends = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    x = torch.randn(NODES, 6) + nn.functional.one_hot(y, 6)
    return Data(x=x, edge_index=ends, y=y)


@pytest.fixture(scope="module", params=["relu", "softplus", "heads"])
def world(request, graph, tmp_path_factory):
    """An exposure, its labels and solution, and the page's path."""
    activation = nn.Softplus(threshold=19) if request.param == "softplus" else nn.ReLU()
    exposure = expose(Tailed(activation, request.param == "heads"), graph)
    assert exposure.head is not None
    solution = solve(exposure, graph.y)
    path = tmp_path_factory.mktemp("tail") / "report.html"
    repairs = {"mine": torch.randn(NODES, CLASSES)}
    report(exposure, graph.y, path, repairs=repairs, edge_index=graph.edge_index)
    return request.param, exposure, solution, path


def test_gathered_logits_are_those_of_the_model_really_run(world, graph):
    kind, exposure, solution, _ = world
    evidence = gather(exposure, graph.y)
    behind = evidence.head
    counts = {word: int((solution.verdict == word).sum()) for word in ("can", "cannot")}
    assert int(behind.proved.sum()) == counts["can"]
    assert int((behind.decided & ~behind.proved).sum()) == counts["cannot"]
    assert (kind == "softplus") == bool((~behind.decided).any())
    dense = solution.dense(exposure)[0]
    run = exposure.replay(dense).double().detach().numpy()
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
    proved = reach(exposure, graph.y).members[0].true_class
    assert (evidence.reach.reachable, evidence.reach.nodes) == (proved.hits, proved.total)


# The page of a model that classifies graphs: graphs are listed, their nodes drawn.


class Plain(nn.Module):
    """Nodes say their features, after a ReLU where it is asked for."""

    def __init__(self, nonlinear: bool) -> None:
        super().__init__()
        self.nonlinear = nonlinear
        self.say = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            self.say.weight.copy_(torch.eye(3))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        pooled = global_mean_pool(x, batch)
        return self.say(pooled.relu() if self.nonlinear else pooled)


def graphs() -> list[Data]:
    """Rings in which node 2 alone is for class 0 and all others for class 1."""
    made = []
    for number in range(4):
        size = 5 + number
        x = torch.zeros(size, 3)
        x[:, 1] = 1.0
        x[2] = torch.tensor([2.0, 0.0, 0.5])
        around = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
        both = torch.cat([around, around.flip(0)], 1)
        made.append(Data(x=x, edge_index=both, y=torch.tensor([0])))
    return made


@pytest.fixture(params=[False, True], ids=["linear", "tailed"])
def world_graph_page(request: pytest.FixtureRequest) -> Any:
    data = graphs()
    batch = Batch.from_data_list(data)
    return gr.expose(Plain(request.param), data), batch.y, batch


def test_graphs_and_their_nodes_are_one_numbered_set(world_graph_page: Any) -> None:
    exposure, y, batch = world_graph_page
    evidence = gather(exposure, y, torch.tensor([1, 3]), edge_index=batch.edge_index)
    assert sorted(evidence.nodes.tolist()) == [1, 3]
    assert evidence.labels.tolist() == [0] * 4 + [-1] * batch.num_nodes
    # A node alone gives its graph the class that it is for; nodes of other graphs are not shown.
    starts = [0, 5, 11, 18, 26]
    for graph in (1, 3):
        votes = evidence.predictions[4 + starts[graph] : 4 + starts[graph + 1]]
        assert votes.tolist() == [1, 1, 0] + [1] * (starts[graph + 1] - starts[graph] - 3)
    assert evidence.edges is not None
    ends = {tuple(pair) for pair in evidence.edges.T.tolist()}
    wanted = {(4 + 5 + a, 4 + 5 + b) for a, b in ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5))}
    assert {pair for pair in ends if pair[0] < 4 + 11} == wanted
    owner = np.repeat(evidence.nodes, np.diff(evidence.starts))
    used = evidence.sources[evidence.rows][evidence.witness > 1e-7] - 4
    assert (used - np.array(starts)[owner[evidence.witness > 1e-7]]).tolist() == [2, 2]
    words, arrays = run_payload(evidence, node_names=["a", "b", "c", "d"])
    assert words["names"] == ["a", "b", "c", "d"] and "graph_starts" in arrays


def test_edges_between_graphs_are_refused(world_graph_page: Any) -> None:
    exposure, y, _ = world_graph_page
    with pytest.raises(InputError, match="ties nodes of different graphs"):
        gather(exposure, y, edge_index=torch.tensor([[0], [7]]))
    with pytest.raises(InputError, match="names node 26, but the nodes are 0 to 25"):
        gather(exposure, y, edge_index=torch.tensor([[0], [26]]))


# Where the evidence was lost, on the page: what the ladder found, and nothing without one.


# Every figure of the overview, recomputed from the rows of the nodes by code that shares nothing.


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
