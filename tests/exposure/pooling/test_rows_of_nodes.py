"""Pools of some of the nodes, of dense batches and of one graph after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from pool_models import CLASSES, SIZES, WIDTH, Body, Pooled, batch_of, mlp, ring
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.utils import to_dense_batch

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure import Exposure, TailedExposure


class ByHand(nn.Module):
    """The larger half of every graph's nodes, found by hand."""

    def forward(self, x: Tensor, edge_index: Tensor, _: None, batch: Tensor) -> tuple[Any, ...]:
        kept = x[:, 0] >= global_mean_pool(x, batch)[batch, 0]
        return x[kept], edge_index[:, :0], None, batch[kept], kept.nonzero().view(-1)


class Kept(Body):
    """Layers that keep some nodes, each followed by a readout; weights can be put in by hand."""

    def __init__(self, layers: list[nn.Module], head: nn.Module, pool: Callable[..., Tensor]):
        super().__init__()
        self.layers, self.head, self.pool = nn.ModuleList(layers), head, pool
        self.weights: list[Tensor] = []
        self.perms: list[Tensor] = []

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, total, self.perms = self.nodes(x, edge_index), 0.0, []
        for number, layer in enumerate(self.layers):
            x, edge_index, _, batch, perm, *_ = layer(x, edge_index, None, batch)
            self.perms.append(perm)
            rows = x * self.weights[number].unsqueeze(1) if self.weights else x
            both = [self.pool(rows, batch), global_max_pool(x, batch)]
            total = total + torch.cat(both, dim=1)
        return self.head(total)


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "top k": lambda: [pyg.TopKPooling(WIDTH, 0.5)],
    "top k twice": lambda: [pyg.TopKPooling(WIDTH, 0.8), pyg.TopKPooling(WIDTH, 0.5)],
    "all, in another order": lambda: [pyg.TopKPooling(WIDTH, 1.0)],
    "SAGPool": lambda: [pyg.SAGPooling(WIDTH, 0.5), pyg.SAGPooling(WIDTH, 0.7)],
    "by hand": lambda: [ByHand()],
}


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_the_nodes_that_are_kept_are_known_and_weighed(name: str, bent: bool) -> None:
    torch.manual_seed(4)
    head = mlp(2 * WIDTH, CLASSES) if bent else nn.Linear(2 * WIDTH, CLASSES)
    model: Any = Kept(LAYERS[name](), head, global_add_pool).double().eval()
    batch = batch_of()
    exposure = gr.expose(model, batch)
    assert isinstance(exposure, TailedExposure if bent else Exposure)
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
    assert all("of the nodes that are kept" in group.rule for group in exposure.groups)


def test_kept_nodes_of_many_batches_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    layers, head = LAYERS["SAGPool"](), nn.Linear(2 * WIDTH, CLASSES)
    model = Kept(layers, head, global_mean_pool).eval()
    graphs = [ring(4 + i % 4, i, i % 3) for i in range(9)]
    whole = gr.expose(model, graphs)
    monkeypatch.setattr("gnn_repair.exposure.pooling.batches.LARGEST", 12)
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


def test_ends_of_edges_are_no_nodes() -> None:
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
    assert exposure.num_groups == 1 and exposure.num_terms == sum(SIZES)
    assert "which are not the 59 nodes" in str(exposure)


# Dense batches and loops -----------------------------------------------------------------------


def with_a_map(x: Tensor, batch: Tensor) -> Tensor:
    """Empty rows are not empty any more: what stands there stays."""
    dense, _ = to_dense_batch(x, batch)
    return (dense + 0.5).tanh().sum(1)


def attended(x: Tensor, batch: Tensor) -> Tensor:
    dense, mask = to_dense_batch(x, batch)
    scores = dense[..., 0].masked_fill(~mask, -1e9).softmax(1)
    return torch.bmm(scores.unsqueeze(1), dense).squeeze(1)


def weighed(x: Tensor, batch: Tensor) -> Tensor:
    dense, mask = to_dense_batch(x, batch)
    scores = dense[..., :1].masked_fill(~mask.unsqueeze(-1), -1e9).softmax(1)
    return (scores * dense).sum(dim=1)


def padded_mean(x: Tensor, batch: Tensor) -> Tensor:
    return to_dense_batch(x, batch)[0].mean(1)


def by_starts(x: Tensor, batch: Tensor) -> Tensor:
    ends = torch.bincount(batch).cumsum(0).tolist()
    return torch.stack([x[a:b].sum(0) for a, b in zip([0, *ends], ends, strict=False)])


def by_splits(x: Tensor, batch: Tensor) -> Tensor:
    parts = torch.split(x, torch.bincount(batch).tolist())
    return torch.cat([part.mean(dim=0, keepdim=True) for part in parts], dim=0)


ROWS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[..., Any]]] = {
    "a map before the sum": (with_a_map, lambda x, n: (x + 0.5).tanh()),
    "attention by a product": (attended, lambda x, n: x * x[:, :1].softmax(0)),
    "attention by a sum": (weighed, lambda x, n: x * x[:, :1].softmax(0)),
    "a mean with empty rows": (padded_mean, lambda x, n: x / max(SIZES)),
    "sums between starts": (by_starts, lambda x, n: x),
    "means of splits": (by_splits, lambda x, n: x / n),
}


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


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (clusters, "pools a dense batch of other rows than nodes, such as clusters, where"),
        (heads_in_a_loop, "pools graph by graph in a loop, where which node"),
    ],
)
def test_rows_behind_which_no_node_stands_are_refused(pool: Any, words: str) -> None:
    torch.manual_seed(1)
    with pytest.raises(ExposureRefused, match=words):
        gr.expose(Pooled(pool).double(), batch_of())


def test_merged_nodes_are_refused() -> None:
    class Merged(Body):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = pyg.EdgePooling(WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x, _, batch, _ = self.layer(self.nodes(x, edge_index), edge_index, batch)
            return self.head(global_mean_pool(x, batch))

    torch.manual_seed(1)
    with pytest.raises(ExposureRefused, match=r"`layer` \(EdgePooling\) leaves \d+ of the 59"):
        gr.expose(Merged().double(), batch_of())
