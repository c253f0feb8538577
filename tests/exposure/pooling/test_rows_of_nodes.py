"""Pools of some of the nodes, of dense batches and of one graph after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_add_pool, global_mean_pool
from torch_geometric.utils import to_dense_batch

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused
from tests.helpers.models.pool_models import (
    CLASSES,
    LAYERS,
    ROWS,
    SIZES,
    WIDTH,
    Body,
    Kept,
    Pooled,
    batch_of,
    mlp,
    ring,
)


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_the_nodes_that_are_kept_are_known_and_weighed(name: str, bent: bool) -> None:
    torch.manual_seed(4)
    head = mlp(2 * WIDTH, CLASSES) if bent else nn.Linear(2 * WIDTH, CLASSES)
    model: Any = Kept(LAYERS[name](), head, global_add_pool).double().eval()
    batch = batch_of()
    exposure = gr.expose(model, batch)
    assert (exposure.head is not None) == bool(bent)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    assert exposure.graph_starts is not None
    assert exposure.graph_starts.tolist() == [sum(SIZES[:i]) for i in range(len(SIZES) + 1)]
    model(batch.x, batch.edge_index, batch.batch)
    nodes = [model.perms[0]]
    nodes += [nodes[-1][perm] for perm in model.perms[1:]]
    group = torch.repeat_interleave(exposure.segments.diff()) % exposure.num_groups
    source = exposure.sources[exposure.rows.long()].long()
    raw = exposure.coefficients[0].clone()
    generator = torch.Generator().manual_seed(1)
    for level, known in enumerate(nodes):
        assert sorted(source[group == level].tolist()) == sorted(known.tolist())
        numbers = torch.zeros(batch.num_nodes, dtype=torch.float64)
        numbers[known] = torch.rand(len(known), generator=generator, dtype=torch.float64)
        model.weights.append(numbers[known])
        raw[group == level] = numbers[source[group == level]]
    with torch.no_grad():
        told = model(batch.x, batch.edge_index, batch.batch)
    torch.testing.assert_close(exposure.logits(raw.unsqueeze(0))[0], told, rtol=1e-9, atol=1e-9)


def test_kept_nodes_of_many_batches_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    layers, head = LAYERS["SAGPool"](), nn.Linear(2 * WIDTH, CLASSES)
    model = Kept(layers, head, global_mean_pool).eval()
    graphs = [ring(4 + i % 4, i, i % 3) for i in range(9)]
    whole = gr.expose(model, graphs)
    monkeypatch.setattr("gnn_repair.exposure.calling.LARGEST_BATCH", 12)
    parts = gr.expose(model, graphs)
    torch.testing.assert_close(parts.frozen_logits, whole.frozen_logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(parts.sources[parts.rows.long()], whole.sources[whole.rows.long()])


def test_the_middles_of_clusters_stand_for_them() -> None:
    torch.manual_seed(4)  # PyG's ASAPooling knows single precision only
    layer, head = pyg.ASAPooling(WIDTH, 0.5), nn.Linear(2 * WIDTH, CLASSES)
    model, batch = Kept([layer], head, global_mean_pool).eval(), batch_of(torch.float32)
    exposure = gr.expose(model, batch)
    assert exposure.residual is not None and exposure.residual <= 1e-5
    model(batch.x, batch.edge_index, batch.batch)
    found = exposure.sources[exposure.rows.long()]
    assert sorted(found.tolist()) == sorted(model.perms[0].tolist())


def test_ends_of_edges_are_their_nodes() -> None:
    class Edges(Body):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2 * WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.nodes(x, edge_index)
            sent = global_add_pool(x[edge_index[0]], batch[edge_index[0]])
            return self.head(torch.cat([global_add_pool(x, batch), sent], dim=1))

    torch.manual_seed(0)
    exposure = gr.expose(Edges().double(), batch_of())
    assert exposure.num_groups == 2 and exposure.num_terms == sum(SIZES) * 3
    assert int(exposure.sources.max()) < sum(SIZES)


@pytest.mark.parametrize("centres", [1, 2])
def test_a_graph_is_what_its_centre_hears(centres: int) -> None:
    class Centre(Body):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.head = pyg.GraphConv(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.last(self.nodes(x, edge_index), edge_index)
            first = (batch.diff(prepend=batch[:1] - 1) > 0).nonzero().view(-1)
            return self.head(x[first] if centres == 1 else x[first] * x[first + 1])

    torch.manual_seed(0)
    model, data = Centre().double(), batch_of()
    if centres == 2:
        with pytest.raises(ExposureRefused, match="rows of 2 nodes per graph"):
            gr.expose(model, data)
        return
    exposure = gr.expose(model, data)
    first = exposure.graph_starts[:-1]
    heard = [data.edge_index[0, data.edge_index[1] == node].sort().values for node in first]
    found = exposure.sources[exposure.rows.long()].long().split(exposure.segments.diff().tolist())
    assert all(map(torch.equal, heard, (part.sort().values for part in found)))


# Dense batches and loops -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_a_nodes_part_in_other_forms_of_pools(name: str) -> None:
    pool, part = ROWS[name]
    torch.manual_seed(3)
    model, batch = Pooled(pool).double(), batch_of()
    exposure = gr.expose(model, batch)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    with torch.no_grad():
        nodes = model.nodes(batch.x, batch.edge_index)
        own = torch.cat([part(x, len(x)) for x in nodes.split(SIZES)]) @ model.head.weight.t()
    # α ℓ of a term is its node's part of the logits, up to the mean over classes.
    row = exposure.rows.long()
    found = exposure.coefficients[0].unsqueeze(1) * exposure.contributions[0, row]
    told = own[exposure.sources[row].long()]
    centred = [z - z.mean(1, keepdim=True) for z in (found, told)]
    torch.testing.assert_close(*centred, rtol=1e-9, atol=1e-10)
    assert exposure.num_terms == sum(SIZES)


@pytest.mark.parametrize("form", ["view", "reshape"])
def test_graphs_of_one_size_laid_out_as_a_block(form: str) -> None:
    class Block(Body):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.head(getattr(self.nodes(x, edge_index), form)(-1, 5, WIDTH).mean(dim=1))

    torch.manual_seed(0)
    batch: Any = Batch.from_data_list([ring(5, i, i % 3) for i in range(6)])
    exposure = gr.expose(Block(), batch)
    assert exposure.mass.tolist() == [[[pytest.approx(1)]] * 6]
    assert exposure.sources[exposure.rows.long()].tolist() == list(range(30))


def clusters(x: Tensor, batch: Tensor) -> Tensor:
    dense, _ = to_dense_batch(x, batch)
    return (dense[..., :3].softmax(-1).transpose(1, 2) @ dense).mean(1)


def heads_in_a_loop(x: Tensor, batch: Tensor) -> Tensor:
    return torch.stack([2 * x[batch == g].mean(0) for g in range(int(batch.max()) + 1)])


def test_sums_that_are_scaled_one_by_one_are_refused() -> None:
    torch.manual_seed(1)
    with pytest.raises(ExposureRefused, match="sums for one graph at a time"):
        gr.expose(Pooled(heads_in_a_loop).double(), batch_of())


def pairs(x: Tensor, batch: Tensor) -> Tensor:
    return global_add_pool((x[1:] * x[:-1]).relu(), batch[1:])


@pytest.mark.parametrize(("pool", "kind"), [(clusters, "cluster"), (pairs, "edge")])
def test_rows_that_are_no_nodes_are_called_what_they_are(pool: Any, kind: str) -> None:
    torch.manual_seed(1)
    model, graphs = Pooled(pool).double(), batch_of()
    found = gr.expose(model, graphs)
    frame = found.to_frame()
    assert set(frame["source_type"]) == {kind} and set(frame["node"]) == {-1}
    assert f"per {kind}" in str(found) or f"its number of {kind}s" in str(found)
    assert f"{kind} " in str(gr.solve(found, graphs.y)[0])
    assert found.graph_starts is not None and int(found.graph_starts[-1]) == sum(SIZES)
    several = gr.expose(model, DataLoader(graphs.to_data_list(), batch_size=4))
    if kind == "cluster":  # neighbours in order also cross the graphs of a batch
        for name in ("source_type", "source", "coefficient"):
            assert several.to_frame()[name].tolist() == frame[name].tolist()


def test_merged_nodes_are_clusters() -> None:
    class Merged(Body):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = pyg.EdgePooling(WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x, _, batch, _ = self.layer(self.nodes(x, edge_index), edge_index, batch)
            return self.head(global_mean_pool(x, batch))

    torch.manual_seed(1)
    assert set(gr.expose(Merged().double(), batch_of()).to_frame()["source_type"]) == {"cluster"}


def test_clusters_that_attention_pools_are_those_of_their_graph() -> None:
    """The attention of PyG lays clusters out one above the other, cluster 0 of all graphs first."""
    torch.manual_seed(1)
    pool = Pooled(pyg.aggr.GraphMultisetTransformer(WIDTH, 3, heads=2)).double()
    frame = gr.expose(pool, batch_of()).to_frame()
    assert set(frame["source_type"]) == {"cluster"} and frame["group"].nunique() == 2
    assert (frame["source"] // 3 == frame["graph"]).all()
