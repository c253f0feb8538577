"""Exposures of sampled subgraphs say the graph's node numbers, and several make one."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GCNConv, SAGEConv

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.errors import ExposureRefused, InputError


class Sage(nn.Module):
    def __init__(self, tail: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(5, 8), SAGEConv(8, 4)
        self.tail = tail

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out.relu() @ torch.eye(4) if self.tail else out


@pytest.fixture(scope="module")
def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, generator=generator)
    edge_index = torch.randint(80, (2, 420), generator=generator)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]].unique(dim=1)
    y = torch.randint(4, (80,), generator=generator)
    return Data(x=x, edge_index=edge_index, y=y)


@pytest.fixture(scope="module")
def model() -> Sage:
    torch.manual_seed(1)
    return Sage().eval()


def batch_of(graph: Data, seeds: Tensor, fanout: int | None = None) -> Data:
    """What a NeighborLoader makes of two hops: seeds first, ``n_id`` and ``batch_size``."""
    generator = torch.Generator().manual_seed(int(seeds[0]))
    known, kept, asked = seeds, [], seeds
    for _ in range(2):
        found = []
        for node in asked.tolist():
            entries = (graph.edge_index[1] == node).nonzero().view(-1)
            order = torch.randperm(len(entries), generator=generator)
            found.append(entries[order[:fanout]])
        entries = torch.cat(found)
        kept.append(entries)
        fresh = graph.edge_index[0, entries].unique()
        asked = fresh[~torch.isin(fresh, known)]
        known = torch.cat([known, asked])
    place = torch.full((80,), -1)
    place[known] = torch.arange(len(known))
    entries = torch.cat(kept).unique()
    return Data(
        x=graph.x[known],
        edge_index=place[graph.edge_index[:, entries]],
        y=graph.y[known],
        n_id=known,
        batch_size=len(seeds),
    )


def test_all_neighbours_give_the_whole_graphs_answers_in_its_numbers(graph, model) -> None:
    whole = gr.expose(model, graph)
    seeds = torch.randperm(80, generator=torch.Generator().manual_seed(4))[:30]
    parts = [gr.expose(model, batch_of(graph, some)) for some in seeds.split(8)]
    assert [part.num_recipients for part in parts] == [8, 8, 8, 6]
    joined = gr.Exposure.concatenate(parts)
    assert torch.equal(joined.n_id[joined.recipients], seeds)
    torch.testing.assert_close(joined.logits()[0], whole.logits()[0, seeds], rtol=1e-5, atol=1e-5)
    here = gr.solve(joined, joined.local(graph.y))
    there = gr.solve(whole, graph.y, seeds)
    order = np.argsort(here.named(here.node))
    other = np.argsort(there.node)
    np.testing.assert_allclose(here.margin[order], there.margin[other], atol=1e-5)
    for node in seeds[:6].tolist():
        (mine,), (theirs,) = here.for_node(node), there.for_node(node)
        assert mine.node == theirs.node == node
        assert set(mine.sources.tolist()) == set(theirs.sources.tolist())
        said = str(mine).replace(" (sampled subgraph)", "")
        assert said.partition(" by ")[0] == str(theirs).partition(" by ")[0]
    assert here.check(joined).ok


@pytest.mark.skipif(
    not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE),
    reason="NeighborLoader samples with pyg-lib or torch-sparse, and neither is installed",
)
def test_batches_of_a_neighbor_loader(graph, model) -> None:
    whole, seeds = gr.expose(model, graph), torch.tensor([31, 7, 55, 2])
    loader = NeighborLoader(graph, [-1, -1], input_nodes=seeds, batch_size=3)
    joined = gr.Exposure.concatenate([gr.expose(model, batch) for batch in loader])
    assert torch.equal(joined.n_id[joined.recipients], seeds)
    torch.testing.assert_close(joined.logits()[0], whole.logits()[0, seeds], rtol=1e-5, atol=1e-5)


def test_frames_and_rankings_say_the_graphs_numbers(graph, model) -> None:
    batch = batch_of(graph, torch.tensor([70, 3, 55]))
    exposure = gr.expose(model, batch)
    assert exposure.recipients.tolist() == [0, 1, 2]
    assert "of a sampled subgraph" in str(exposure)
    entries = exposure.to_frame()
    assert list(entries["node"].unique()) == [70, 3, 55]
    for node, rows in entries.groupby("node"):
        senders = graph.edge_index[0, graph.edge_index[1] == node]
        assert sorted(rows["source"]) == sorted(senders.tolist())
    solution = gr.solve(exposure, batch.y)
    frame = solution.to_frame()
    assert list(frame["node"]) == [70, 3, 55]
    used = set(solution.named(solution.sources).tolist())
    ranked = gr.source_ranking(solution, exposure)
    assert set(ranked["source"]) <= used and used <= set(entries["source"])
    near = gr.nearest_reweighting(exposure, batch.y)
    assert [answer.node for answer in near] == [70, 3, 55]
    assert set(np.concatenate([answer.sources for answer in near])) <= set(entries["source"])


def test_a_sample_is_a_model_of_its_own(graph, model) -> None:
    """Fewer neighbours, other coefficients: the exposure is of the run on the sample."""
    batch = batch_of(graph, torch.tensor([5, 9, 31, 60]), fanout=2)
    exposure = gr.expose(model, batch)
    seen = model(batch.x, batch.edge_index)[:4].double()
    torch.testing.assert_close(exposure.logits()[0], seen, rtol=1e-5, atol=1e-5)
    assert int(exposure.segments.diff().max()) <= 2
    whole = gr.expose(model, graph)
    assert float((seen - whole.logits()[0, batch.n_id[:4]]).abs().max()) > 1e-3


def test_files_keep_the_numbers(graph, model, tmp_path) -> None:
    batch = batch_of(graph, torch.tensor([70, 3, 55]))
    for network in (model, Sage(tail=True).eval()):
        exposure = gr.expose(network, batch)
        exposure.save(tmp_path / "e.safetensors")
        again = type(exposure).load(tmp_path / "e.safetensors")
        assert torch.equal(again.n_id, batch.n_id)
        solution = gr.solve(exposure, batch.y)
        solution.save(tmp_path / "s.safetensors")
        read = type(solution).load(tmp_path / "s.safetensors")
        assert [w.node for w in read] == [70, 3, 55]
        assert read.key_messages() == solution.key_messages()


def test_repairs_learn_from_joined_samples(graph, model) -> None:
    seeds = torch.arange(60)
    joined = gr.Exposure.concatenate(
        [gr.expose(model, batch_of(graph, some)) for some in seeds.split(20)]
    )
    whole = gr.expose(model, graph)
    train, val = torch.arange(80) < 40, (torch.arange(80) >= 40) & (torch.arange(80) < 60)
    assert int(joined.local(train).sum()) == 40  # copies of a node that are no recipients stay out
    budget = Budget(epochs=10, patience=None, learning_rate=0.02, weight_decay=0.0)
    repair = gr.NodeTranslation(budget, dropout=0.0)
    here = repair.fit(joined, joined.local(graph.y), joined.local(train), joined.local(val))
    there = repair.fit(whole, graph.y, train, val)
    torch.testing.assert_close(
        here.logits(joined)[0], there.logits(whole)[0, :60], rtol=1e-3, atol=1e-3
    )


def test_parts_of_other_models_are_refused(graph, model) -> None:
    batch = batch_of(graph, torch.tensor([1, 2]))
    part = gr.expose(model, batch)
    with pytest.raises(InputError, match="part 1 has another fingerprint"):
        gr.Exposure.concatenate([part, gr.expose(Sage().eval(), batch)])
    with pytest.raises(InputError, match="having node numbers"):
        gr.Exposure.concatenate([part, replace(part, n_id=None)])
    with pytest.raises(InputError, match="give a row for each node"):
        part.local(torch.zeros(2))
    with pytest.raises(InputError, match="give a tensor"):
        part.local([1, 2])
    with pytest.raises(InputError, match="n_id has shape"):
        replace(part, n_id=torch.arange(3))
    with pytest.raises(InputError, match="n_id holds negative"):
        replace(part, n_id=-part.n_id)


def test_a_field_of_that_name_that_is_something_else_is_left_alone(graph) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(5, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    for other in (torch.rand(80), torch.arange(3), "names"):
        data = Data(x=graph.x, edge_index=graph.edge_index, n_id=other)
        assert gr.expose(Net().eval(), data).n_id is None
    data = Data(x=graph.x, edge_index=graph.edge_index, n_id=torch.arange(80) + 5)
    exposure = gr.expose(Net().eval(), data)
    assert exposure.num_recipients == 80 and int(exposure.n_id[0]) == 5


def test_every_answer_says_that_it_is_about_a_sample(graph, model) -> None:
    """Without the second hop the bounds are others than the graph's."""
    seeds = torch.tensor([31, 7, 55])
    near = graph.edge_index[:, torch.isin(graph.edge_index[1], seeds)]
    known = torch.cat([seeds, near[0][~torch.isin(near[0], seeds)].unique()])
    place = torch.full((80,), -1)
    place[known] = torch.arange(len(known))
    batch = Data(x=graph.x[known], edge_index=place[near], n_id=known, batch_size=3)
    sampled, whole = gr.expose(model, batch), gr.expose(model, graph)
    y = sampled.local(graph.y)
    answers, truth = gr.solve(sampled, y), gr.solve(whole, graph.y, seeds)
    assert max(abs(answers.bound - truth.bound[np.argsort(np.argsort(seeds))])) > 1e-3
    assert all("(sampled subgraph)" in str(witness) for witness in answers)
    assert "sampled subgraph" in str(gr.reach(sampled, y)) and "sampled" in str(answers)
    assert "sampled" not in str(truth[0])


@pytest.mark.parametrize("given", [0, -1, 81, 2.0, "3", True])
def test_a_count_of_seeds_that_cannot_be_is_refused(graph, model, given) -> None:
    batch = batch_of(graph, torch.tensor([31, 7, 55]))
    batch.batch_size = given
    with pytest.raises(InputError, match=r"data.batch_size is .* beside n_id"):
        gr.expose(model, batch)


class OfBatch(Sage):
    """What calls the graph it is handed ``batch``."""

    def forward(self, batch: Data) -> Tensor:  # type: ignore[override]
        out = super().forward(batch.x, batch.edge_index)
        return out if self.tail else out[: batch.batch_size]


class OfVector(Sage):
    """A model of nodes that asks for a batch vector."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, edge_index) + batch.unsqueeze(1)


@pytest.mark.parametrize("sampled", [True, False])
def test_a_batch_that_is_data_itself_keeps_its_seeds(graph, sampled) -> None:
    seeds = torch.tensor([31, 7, 55])
    batch = batch_of(graph, seeds) if sampled else Data(graph.x, graph.edge_index, batch_size=3)
    with pytest.raises(ExposureRefused, match=r"it gives logits for 3 of .* returns all rows"):
        gr.expose(OfBatch().eval(), batch)
    for model in (OfBatch(tail=True), OfVector()):
        exposure = gr.expose(model.eval(), batch)
        assert exposure.num_recipients == (3 if sampled else 80)
        if sampled:
            assert torch.equal(exposure.n_id[exposure.recipients], seeds)


@pytest.mark.parametrize("tail", [False, True])
def test_labels_and_values_name_the_graphs_nodes(graph, tail, tmp_path) -> None:
    torch.manual_seed(1)
    batch, model = batch_of(graph, torch.tensor([31, 7, 55])), Sage(tail).eval()
    exposure = gr.expose(model, batch, outputs="labels")
    solution = gr.solve(exposure, torch.ones(batch.num_nodes, 4))
    assert sorted(set(solution.to_frame()["node"])) == [7, 31, 55]
    assert len(solution.for_node(55)) == 4 and str(solution.for_node(7)[0]).startswith("node 7, ")
    neighbours = {int(v): set(graph.edge_index[0, graph.edge_index[1] == v].tolist())
                  for v in (31, 7, 55)}  # fmt: skip
    for row in solution.to_frame().to_dict("records"):
        senders = re.findall(r"node (\d+)", row["key_messages"])
        assert senders and set(map(int, senders)) <= neighbours[row["node"]]
    values = gr.value_range(replace_outputs(exposure)).to_frame()
    assert sorted(set(values["node"])) == [7, 31, 55]
    if not tail:
        solution.save(tmp_path / "labels")
        again = type(solution).load(tmp_path / "labels")
        assert again.to_frame().equals(solution.to_frame())
        with pytest.raises(InputError, match="n_id does not name node"):
            replace(solution, n_id=solution.n_id[:2]).save(tmp_path / "short")


def replace_outputs(exposure):
    return replace(exposure, outputs="values")


def test_stable_evidence_names_the_graphs_nodes(graph, model) -> None:
    seeds = torch.tensor([31, 7, 55])
    part, whole = gr.expose(model, batch_of(graph, seeds)), gr.expose(model, graph)
    here = gr.stable_evidence(part, part.local(graph.y), part.recipients, threads=1)
    there = gr.stable_evidence(whole, graph.y, seeds, threads=1)
    assert [one.node for one in here] == [one.node for one in there] == seeds.tolist()
    for mine, theirs in zip(here, there, strict=True):
        assert sorted(mine.sources) == sorted(theirs.sources)
