"""Exposures of sampled subgraphs say the graph's node numbers, and several make one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused
from tests.helpers.refusals import refused

NODES, SEEDS = 80, torch.tensor([70, 3, 55])


class Sage(nn.Module):
    def __init__(self, head: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv1, self.conv2, self.head = SAGEConv(5, 8), SAGEConv(8, 4), head
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out.relu() @ torch.eye(4) if self.head else out


def drawn() -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, 5, generator=generator)
    edges = torch.randint(NODES, (2, 420), generator=generator)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    return Data(x=x, edge_index=edges, y=torch.randint(4, (NODES,), generator=generator))


GRAPH, MODEL = drawn(), Sage()


def batch_of(seeds: Tensor, fanout: int | None = None, hops: int = 2) -> Data:
    """What a NeighborLoader makes: seeds first, ``n_id`` and ``batch_size``."""
    generator = torch.Generator().manual_seed(int(seeds[0]))
    known, kept, asked = seeds, [], seeds
    for _ in range(hops):
        for node in asked.tolist():
            entries = (GRAPH.edge_index[1] == node).nonzero().view(-1)
            order = torch.randperm(len(entries), generator=generator)
            kept.append(entries[order[:fanout]])
        fresh = GRAPH.edge_index[0, torch.cat(kept)].unique()
        asked = fresh[~torch.isin(fresh, known)]
        known = torch.cat([known, asked])
    place = torch.full((NODES,), -1)
    place[known] = torch.arange(len(known))
    edges = place[GRAPH.edge_index[:, torch.cat(kept).unique()]]
    return Data(
        x=GRAPH.x[known], edge_index=edges, y=GRAPH.y[known], n_id=known, batch_size=len(seeds)
    )


def neighbours(node: int) -> set[int]:
    return set(GRAPH.edge_index[0, GRAPH.edge_index[1] == node].tolist())


@pytest.fixture(scope="module")
def whole() -> gr.Exposure:
    return gr.expose(MODEL, GRAPH)


def joined(seeds: Tensor, size: int) -> gr.Exposure:
    return gr.Exposure.concatenate([gr.expose(MODEL, batch_of(s)) for s in seeds.split(size)])


def test_all_neighbours_give_the_whole_graphs_answers_in_its_numbers(whole) -> None:
    seeds = torch.randperm(NODES, generator=torch.Generator().manual_seed(4))[:30]
    part = joined(seeds, 8)
    assert torch.equal(part.n_id[part.recipients], seeds)
    torch.testing.assert_close(part.logits()[0], whole.logits()[0, seeds], rtol=1e-5, atol=1e-5)
    here, there = gr.solve(part, part.local(GRAPH.y)), gr.solve(whole, GRAPH.y, seeds)
    order, other = np.argsort(here.named(here.node)), np.argsort(there.node)
    np.testing.assert_allclose(here.margin[order], there.margin[other], atol=1e-5)
    for node in seeds[:6].tolist():
        (mine,), (theirs,) = here.for_node(node), there.for_node(node)
        assert mine.node == theirs.node == node
        assert set(mine.sources.tolist()) == set(theirs.sources.tolist())
        said = str(mine).replace(" (sampled subgraph)", "")
        assert said.partition(" by ")[0] == str(theirs).partition(" by ")[0]
    assert here.check(part).ok
    stable = [gr.stable_evidence(part, part.local(GRAPH.y), part.recipients[:3], threads=1),
              gr.stable_evidence(whole, GRAPH.y, seeds[:3], threads=1)]  # fmt: skip
    assert [one.node for one in stable[0]] == [one.node for one in stable[1]] == seeds[:3].tolist()
    for mine, theirs in zip(*stable, strict=True):
        assert sorted(mine.sources) == sorted(theirs.sources)


@pytest.mark.skipif(
    not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE),
    reason="NeighborLoader samples with pyg-lib or torch-sparse, and neither is installed",
)
def test_batches_of_a_neighbor_loader(whole) -> None:
    loader = NeighborLoader(GRAPH, [-1, -1], input_nodes=SEEDS, batch_size=2)
    part = gr.Exposure.concatenate([gr.expose(MODEL, batch) for batch in loader])
    assert torch.equal(part.n_id[part.recipients], SEEDS)
    torch.testing.assert_close(part.logits()[0], whole.logits()[0, SEEDS], rtol=1e-5, atol=1e-5)


def test_frames_and_rankings_say_the_graphs_numbers() -> None:
    batch = batch_of(SEEDS)
    exposure = gr.expose(MODEL, batch)
    assert exposure.recipients.tolist() == [0, 1, 2]
    assert "of a sampled subgraph" in str(exposure)
    entries = exposure.to_frame()
    for node, rows in entries.groupby("node"):
        assert set(rows["source"]) == neighbours(node)
    solution = gr.solve(exposure, batch.y)
    assert list(solution.to_frame()["node"]) == list(entries["node"].unique()) == SEEDS.tolist()
    used = set(solution.named(solution.sources).tolist())
    ranked = gr.source_ranking(solution, exposure)
    assert set(ranked["source"]) <= used and used <= set(entries["source"])
    near = gr.nearest_reweighting(exposure, batch.y)
    assert [answer.node for answer in near] == SEEDS.tolist()
    assert set(np.concatenate([answer.sources for answer in near])) <= set(entries["source"])


@pytest.mark.parametrize(("fanout", "hops"), [(2, 2), (None, 1)])
def test_a_sample_is_a_model_of_its_own(whole, fanout: int | None, hops: int) -> None:
    """Fewer neighbours, or none of theirs: other logits and bounds than the graph's, as is said."""
    batch = batch_of(SEEDS, fanout, hops)
    exposure = gr.expose(MODEL, batch)
    seen = MODEL(batch.x, batch.edge_index)[:3].double()
    torch.testing.assert_close(exposure.logits()[0], seen, rtol=1e-5, atol=1e-5)
    assert fanout is None or int(exposure.segments.diff().max()) <= fanout
    assert float((seen - whole.logits()[0, SEEDS]).abs().max()) > 1e-3
    y = exposure.local(GRAPH.y)
    answers, truth = gr.solve(exposure, y), gr.solve(whole, GRAPH.y, SEEDS)
    assert all("(sampled subgraph)" in str(witness) for witness in answers)
    assert "sampled" not in str(truth[0])


@pytest.mark.parametrize("outputs", ["classes", "labels", "values"])
def test_every_answer_says_that_it_is_about_a_sample(whole, outputs: Any) -> None:
    exposure = gr.expose(MODEL, batch_of(SEEDS), outputs=outputs)
    y = exposure.local(GRAPH.y) if outputs == "classes" else torch.ones(exposure.num_nodes, 4)
    answers: list[Any] = [gr.solve(exposure, y)]
    if outputs == "classes":
        asked = y, exposure.recipients[:1]
        near, stable = gr.nearest_reweighting, gr.stable_evidence
        answers += [gr.class_reach(exposure), gr.oracle.relaxed_margins(exposure, y)]
        answers += [near(exposure, *asked)[0], stable(exposure, *asked)[0]]
    else:
        answers.append(gr.value_range(exposure))
    diagnosis = gr.diagnose(exposure, y=y, nodes=exposure.recipients)
    answers += [diagnosis, diagnosis.summary(), diagnosis._repr_html_()]
    answers += [diagnosis.explain(node) for node in SEEDS.tolist()]
    answers += [] if outputs == "values" else [gr.reach(exposure, y)]
    assert all("sampled subgraph" in str(answer) for answer in answers), answers
    assert set(diagnosis.to_frame()["scope"]) == {"sampled subgraph"}
    all_of_it = gr.diagnose(whole, y=GRAPH.y, nodes=SEEDS)
    assert "scope" not in all_of_it.to_frame() and "about the" not in str(all_of_it)


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("outputs", ["classes", "labels"])
def test_answers_and_files_name_the_graphs_nodes(head: bool, outputs: Any, tmp_path) -> None:
    batch, model = batch_of(SEEDS), Sage(head)
    exposure = gr.expose(model, batch, outputs=outputs)
    exposure.save(tmp_path / "e")
    assert torch.equal(gr.Exposure.load(tmp_path / "e").n_id, batch.n_id)
    y = batch.y if outputs == "classes" else torch.ones(batch.num_nodes, 4)
    solution = gr.solve(exposure, y)
    if not solution.parts:
        solution.save(tmp_path / "s")
        again = type(solution).load(tmp_path / "s")
        assert again.to_frame().equals(solution.to_frame())
        assert [one.node for one in again] == [one.node for one in solution]
        assert again.key_messages() == solution.key_messages()
    assert set(solution.to_frame()["node"]) == set(SEEDS.tolist())
    assert str(solution.for_node(55)[0]).startswith("node 55, ")
    for row in solution.to_frame().to_dict("records"):
        senders = re.findall(r"node (\d+)", row["key_messages"])
        assert senders and set(map(int, senders)) <= neighbours(row["node"])
    values = gr.value_range(replace(exposure, outputs="values")).to_frame()
    assert set(values["node"]) == set(SEEDS.tolist())
    if outputs == "labels" and not head:
        with refused("n_id", "node"):
            replace(solution, n_id=solution.n_id[:2]).save(tmp_path / "short")


@pytest.mark.parametrize(
    "other", [torch.rand(NODES), torch.arange(3), "names", torch.ones(NODES) > 0]
)
def test_a_field_of_that_name_that_is_something_else_is_left_alone(other: Any) -> None:
    data = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, n_id=other)
    assert gr.expose(MODEL, data).n_id is None
    data.batch_size = 3  # says that it was sampled
    with refused("data.n_id", f"each of the {NODES} nodes", "batch_size"):
        gr.expose(MODEL, data)


@pytest.mark.parametrize("outputs", ["classes", "labels", "values"])
def test_what_is_of_the_whole_graph_is_brought_to_the_sample(outputs: Any) -> None:
    batch = batch_of(SEEDS)
    exposure = gr.expose(MODEL, batch, outputs=outputs)
    y, mask = GRAPH.y if outputs == "classes" else torch.ones(NODES, 4), torch.ones(NODES) > 0
    own = exposure.local(y)
    with refused(f"y has {NODES} rows for the {batch.num_nodes} nodes", "exposure.local(y)"):
        gr.diagnose(exposure, batch, y)
    assert len(gr.diagnose(exposure, batch, own).to_frame()) == 3 * own[0].numel()
    with refused(f"nodes has {NODES} rows", "exposure.local(nodes)"):
        gr.diagnose(exposure, batch, own, mask)
    if outputs != "values":
        part, rest = exposure.recipients[:1], exposure.recipients[1:]
        for given, name in (((y, part, rest), "y"), ((own, mask, rest), "train")):
            with refused(f"exposure.local({name})"):
                gr.SetTranslation(epochs=1).fit(exposure, *given)


def test_parts_that_cannot_be_joined_are_told_why() -> None:
    bent = gr.expose(Sage(head=True), batch_of(SEEDS))
    for parts, words in (
        ([bent], ("nonlinear head", "frames")),
        ([], ("nothing",)),
        ([bent, 3], ("part 1", "int")),
    ):
        with refused("cannot be joined", *words):
            gr.Exposure.concatenate(parts)


@pytest.mark.parametrize("given", [0, -1, 81, 2.0, "3", True])
def test_a_count_of_seeds_that_cannot_be_is_refused(given: Any) -> None:
    batch = batch_of(SEEDS)
    batch.batch_size = given
    with refused("data.batch_size", "n_id"):
        gr.expose(MODEL, batch)


class OfBatch(Sage):
    """What calls the graph it is handed ``batch``."""

    def forward(self, batch: Data) -> Tensor:  # type: ignore[override]
        out = super().forward(batch.x, batch.edge_index)
        return out if self.head else out[: batch.batch_size]


class OfVector(Sage):
    """A model of nodes that asks for a batch vector."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, edge_index) + batch.unsqueeze(1)


@pytest.mark.parametrize("sampled", [True, False])
def test_a_batch_that_is_data_itself_keeps_its_seeds(sampled: bool) -> None:
    batch = batch_of(SEEDS) if sampled else Data(GRAPH.x, GRAPH.edge_index, batch_size=3)
    with refused("3 of", "forward=", kind=ExposureRefused):
        gr.expose(OfBatch(), batch)
    for model in (OfBatch(head=True), OfVector()):
        exposure = gr.expose(model, batch)
        assert exposure.num_recipients == (3 if sampled else NODES)
        assert not sampled or torch.equal(exposure.n_id[exposure.recipients], SEEDS)
    batch.n_id, batch.batch_size = torch.arange(batch.num_nodes) + 5, None
    assert gr.expose(OfVector(), batch).num_recipients == batch.num_nodes
