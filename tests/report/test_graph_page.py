"""The page of a model that classifies graphs: graphs are listed, their nodes drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.reporting import gather
from gnn_repair.reporting.payload import run_payload
from tests.helpers.report.browser import missing


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
def world(request: pytest.FixtureRequest) -> Any:
    data = graphs()
    batch = Batch.from_data_list(data)
    return gr.expose(Plain(request.param), data), batch.y, batch


def test_graphs_and_their_nodes_are_one_numbered_set(world: Any) -> None:
    exposure, y, batch = world
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


def test_edges_between_graphs_are_refused(world: Any) -> None:
    exposure, y, _ = world
    with pytest.raises(InputError, match="ties nodes of different graphs"):
        gather(exposure, y, edge_index=torch.tensor([[0], [7]]))
    with pytest.raises(InputError, match="names node 26, but the nodes are 0 to 25"):
        gather(exposure, y, edge_index=torch.tensor([[0], [26]]))


@pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")
def test_the_witness_is_what_is_coloured(browser: Any, world: Any, tmp_path: Path) -> None:
    exposure, y, batch = world
    page = gr.report(exposure, y, tmp_path / "page.html", edge_index=batch.edge_index)
    browser.open(page, "#node=1")
    found = browser.driver.execute_script(
        "return [...document.querySelectorAll('#neighbourhood [data-lambda]')]"
        ".map((mark) => [Number(mark.dataset.lambda), mark.textContent])"
    )
    lines = browser.driver.execute_script(
        "return document.querySelectorAll('#neighbourhood line').length"
    )
    facts = browser.text("#node-head")
    tip = browser.run("return document.querySelector('#neighbourhood [data-lambda]').tip()")
    browser.open(page)
    story, words = browser.text("#story-sentence"), browser.text("#overview")
    heading, errors = browser.text("#subtitle"), browser.messages()
    assert sorted(found) == sorted([[float(k == 2), str(k)] for k in range(6)])
    assert lines == 6 and not errors
    assert story.startswith("4 of 4 graphs are wrong; for 4 of them the evidence was there")
    assert heading.startswith("4 graphs, 4 of them")
    assert "test nodes" not in words and "homophily" not in words
    assert facts.startswith("Graph 1") and "nodes 6" in facts
    assert not [line for line in tip if "unlabelled" in line]
