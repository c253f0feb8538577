"""The generated publications: what was planted is there, and diagnosis and repair find it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from gnn_repair import Exposure, Reweighting, expose, reach, solve
from gnn_repair.datasets import generate_publications

WRITES = "author writes paper"


class Averaging(nn.Module):
    """One HeteroConv of SAGE and a linear classifier: it averages each relation's senders."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        into = [kind for kind in data.edge_types if kind[2] == "paper"]
        sizes = {kind: data[kind].num_features for kind in data.node_types}
        convs = {kind: SAGEConv((sizes[kind[0]], sizes["paper"]), 32) for kind in into}
        self.conv, self.lin = HeteroConv(convs), nn.Linear(32, 6)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple, Tensor]) -> Tensor:
        return self.lin(self.conv(x_dict, edge_index_dict)["paper"])


@pytest.fixture(scope="module")
def data() -> HeteroData:
    return generate_publications()


@pytest.fixture(scope="module")
def exposure(data: HeteroData) -> Exposure:
    torch.manual_seed(0)
    model, paper = Averaging(data), data["paper"]
    train = paper.train_mask[:, 0]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        logits = model(data.x_dict, data.edge_index_dict)
        nn.functional.cross_entropy(logits[train], paper.y[train]).backward()
        optimizer.step()
    exposed = expose(model, data)
    assert exposed.head is None
    return exposed


def test_what_was_planted(data: HeteroData) -> None:
    paper, author = data["paper"], data["author"]
    source, target = data["author", "writes", "paper"].edge_index
    agrees = (author.field[source] == paper.y[target]).long()
    counted = torch.zeros(900, dtype=torch.long).index_add_(0, target, agrees)
    torch.testing.assert_close(counted, paper.experts)
    assert torch.bincount(paper.experts).tolist() == [167, 270, 0, 463]
    assert torch.bincount(target).tolist() == [4] * 900
    lead = author.senior[source]
    assert torch.bincount(target[lead], minlength=900).tolist() == [1] * 900
    senior = torch.empty(900, dtype=torch.long)
    senior[target[lead]] = author.field[source[lead]]
    torch.testing.assert_close(senior == paper.y, paper.experts > 0)
    # Outvoted: the three juniors are of one other class.
    for number in torch.nonzero(paper.experts == 1)[:20].view(-1):
        others = author.field[source[(target == number) & ~lead]]
        assert len(set(others.tolist())) == 1 and int(others[0]) != int(paper.y[number])
    ends = data["paper", "cites", "paper"].edge_index
    assert bool((ends[0] != ends[1]).all()) and len(torch.unique(ends, dim=1)[0]) == 2700
    assert paper.train_mask.float().mean(0) == pytest.approx([0.5] * 3, abs=0.01)
    again = generate_publications()
    assert all(torch.equal(data[kind].x, again[kind].x) for kind in data.node_types)
    assert all(torch.equal(data[k].edge_index, again[k].edge_index) for k in data.edge_types)


def test_diagnosis_finds_the_evidence(data: HeteroData, exposure: Exposure) -> None:
    paper = data["paper"]
    test = paper.test_mask[:, 0]
    wrong = test & (exposure.frozen_logits[0].argmax(1) != paper.y)
    rates = {}
    for experts in (1, 0):
        members = reach(exposure, paper.y, wrong & (paper.experts == experts)).members
        rates[experts] = members[0].error.value
    assert rates[1] > 0.9 > 0.4 > rates[0]


def test_witnesses_turn_to_the_relation_with_the_evidence(
    data: HeteroData, exposure: Exposure
) -> None:
    """Of the margin that witnesses gain, most comes through authors; the heaviest are experts."""
    paper, frozen, frame = data["paper"], exposure.frozen_logits[0].argmax(1), exposure.to_frame()
    outvoted = paper.test_mask[:, 0] & (frozen != paper.y) & (paper.experts == 1)
    solution = solve(exposure, paper.y, outvoted)
    node, source = (torch.tensor(frame[name].to_numpy()) for name in ("node", "source"))
    authors = torch.tensor((frame["group"] == WRITES).to_numpy())
    reached = torch.zeros(len(paper.y), dtype=torch.bool)
    reached[solution.node[solution.reachable]] = True
    said = exposure.contributions[0, exposure.rows.long()]
    pull = said.gather(1, paper.y[node, None]) - said.gather(1, frozen[node, None])
    new = solution.dense(exposure)[0]
    gained = (new - exposure.coefficients[0]) * pull[:, 0] * reached[node]
    assert float(gained[authors].sum()) > 0.75 * float(gained.sum())
    right = []
    for number in reached.nonzero().view(-1):
        own = ((node == number) & authors).nonzero().view(-1)
        heaviest = source[own[new[own].argmax()]]
        right.append(int(data["author"].field[heaviest]) == int(paper.y[number]))
    assert len(right) > 40 and np.mean(right) > 0.95


def test_reweighting_learns_whom_to_trust(data: HeteroData, exposure: Exposure) -> None:
    """The senior author, whose message alone tells who it is."""
    paper = data["paper"]
    train, val, test = (paper[f"{part}_mask"][:, 0] for part in ("train", "val", "test"))
    fitted = Reweighting(hidden=16, epochs=60, lr=5e-3).fit(exposure, paper.y, train, val)
    right, before = (
        (said == paper.y)[test].float().mean()
        for said in (fitted.predict(exposure), exposure.frozen_logits[0].argmax(1))
    )
    assert right > before + 0.15
    frame, weighed = exposure.to_frame(), fitted.coefficients(exposure)[0]
    authors = torch.tensor((frame["group"] == WRITES).to_numpy())
    source = torch.tensor(frame["source"].to_numpy())
    senior = data["author"].senior[source[authors]]
    assert float(weighed[authors][senior].mean()) > 2 * float(weighed[authors][~senior].mean())
