"""The generated publications: what was planted is there, and diagnosis and repair find it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from gnn_repair import Exposure, Reweighting, SetTranslation, expose, reach, solve
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


def test_it_is_always_the_same_graph(data: HeteroData) -> None:
    again = generate_publications()
    for kind in data.edge_types:
        assert torch.equal(data[kind].edge_index, again[kind].edge_index)
    for kind in data.node_types:
        torch.testing.assert_close(data[kind].x, again[kind].x, rtol=0, atol=0)
    ends = data["paper", "cites", "paper"].edge_index
    assert bool((ends[0] != ends[1]).all()) and len(torch.unique(ends, dim=1)[0]) == 2700
    assert data["paper"].train_mask.float().mean(0) == pytest.approx([0.5] * 3, abs=0.01)


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
    """Of the margin that a witness gains, nearly all comes through the authors it weighs anew."""
    paper, author = data["paper"], data["author"]
    wrong = exposure.frozen_logits[0].argmax(1) != paper.y
    solution = solve(exposure, paper.y, paper.test_mask[:, 0] & wrong & (paper.experts == 1))
    gained, experts = {group.name: 0.0 for group in exposure.groups}, []
    frame = exposure.to_frame()
    new = solution.dense(exposure)[0].numpy()
    logits = frame.filter(like="logit ").to_numpy()
    for witness in solution:
        if not witness.reachable:
            continue
        rows = np.flatnonzero(frame["node"] == witness.node)
        rival = int(exposure.frozen_logits[0, witness.node].argmax())
        pull = logits[rows, witness.target] - logits[rows, rival]
        change = (new[rows] - frame["coefficient"].to_numpy()[rows]) * pull
        for name, value in zip(frame["group"].iloc[rows], change, strict=True):
            gained[name] += value
        of_authors = rows[(frame["group"].iloc[rows] == WRITES).to_numpy()]
        heaviest = of_authors[new[of_authors].argmax()]
        assert frame["source_type"].iloc[heaviest] == "author"
        experts.append(int(author.field[frame["source"].iloc[heaviest]]) == witness.target)
    assert len(experts) > 40 and np.mean(experts) > 0.95
    assert gained[WRITES] > 0.75 * sum(gained.values())


def test_reweighting_learns_whom_to_trust(data: HeteroData, exposure: Exposure) -> None:
    paper = data["paper"]
    train, val, test = (paper[f"{part}_mask"][:, 0] for part in ("train", "val", "test"))

    def accuracy(predicted: Tensor) -> float:
        return float((predicted == paper.y)[test].float().mean())

    frozen = accuracy(exposure.frozen_logits[0].argmax(1))
    fitted = Reweighting(hidden=32, epochs=100, lr=3e-3).fit(exposure, paper.y, train, val)
    moved = SetTranslation(hidden=32, epochs=100, lr=3e-3).fit(exposure, paper.y, train, val)
    assert accuracy(fitted.predict(exposure)) > frozen + 0.15
    assert accuracy(moved.predict(exposure)) < frozen + 0.05
    # It weighs the senior author, whose message alone tells who it is.
    seniors = torch.zeros(exposure.num_terms, dtype=torch.bool)
    frame = exposure.to_frame()
    authors = torch.tensor((frame["group"] == WRITES).to_numpy())
    source = torch.tensor(frame["source"].to_numpy())
    seniors[authors] = data["author"].senior[source[authors]]
    weighed = fitted.coefficients(exposure)[0]
    assert float(weighed[seniors].mean()) > 2 * float(weighed[authors & ~seniors].mean())
