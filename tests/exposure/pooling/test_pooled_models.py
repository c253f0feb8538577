"""Pools of every style: the nodes' parts are theirs, and rows that are no nodes are called so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, aggr, global_add_pool, global_mean_pool
from torch_geometric.utils import softmax, to_dense_batch

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused, InputError
from tests.campaigns.kinds import batch, drawn
from tests.helpers.models.made import Made
from tests.helpers.models.pool_models import (
    CLASSES,
    GRAPHS,
    LAYERS,
    MODELS,
    ROWS,
    SIZES,
    WIDTH,
    Alone,
    Body,
    Kept,
    OtherNames,
    Pooled,
    batch_of,
    built,
    mlp,
    one,
    ring,
)


def of_nodes(forward: Callable[..., Any], wide: int = WIDTH, **layers: nn.Module) -> Any:
    """A model with ``self.nodes``, ``self.head`` and further layers, in double precision."""
    torch.manual_seed(0)
    model = Made(forward, body=Body(), head=nn.Linear(wide, CLASSES), **layers)
    model.__dict__["nodes"] = model.body.nodes
    return model.double()


REPEATED = [
    name
    for name, case in MODELS.items()
    if isinstance(case.build(), Pooled)
    # Weights of a pool that are computed from all rows change where rows are repeated; a maximum
    # does not, and neither does one of the marks' columns.
    and name not in ("softmax by channel", "Set2Set", "GraphNorm")
]


@pytest.mark.parametrize("name", REPEATED)
def test_coefficients_weigh_what_repeated_nodes_weigh(name: str) -> None:
    model, batch = built(name), batch_of()
    exposure = gr.expose(model, batch)
    generator = torch.Generator().manual_seed(7)
    draws = [torch.randint(n, (n,), generator=generator).bincount(minlength=n) for n in SIZES]
    count = torch.cat(draws)  # as many rows in a graph as it has nodes
    with torch.no_grad():
        nodes = model.nodes(batch.x, batch.edge_index)
        if "max" in name:  # held fixed: what is repeated comes after what it was
            count = count.clamp(min=1) * 0 + 1
        again = model.pool(nodes.repeat_interleave(count, 0), batch.batch.repeat_interleave(count))
        told = model.end(model.head(again))
    told = told[0] if isinstance(told, tuple) else told
    told = torch.stack([torch.zeros_like(told), told], 1) if told.dim() == 1 else told
    raw = exposure.coefficients * count[exposure.sources[exposure.rows.long()].long()]
    share = exposure.mass / exposure.masses(raw)
    normal = torch.tensor([mass is one for mass in MODELS[name].masses])
    scale = torch.where(normal, share, 1.0).flatten().repeat_interleave(exposure.segments.diff())
    found = exposure.logits(raw * scale)[0]
    found = found.softmax(1) if "softmax" in name else found
    torch.testing.assert_close(found, told, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("size", [4, 7])
def test_one_graph_without_a_batch(size: int, by_hand: bool) -> None:
    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.nodes(x, edge_index)
        return self.head(x.sum(0, keepdim=True) / x.size(0))

    torch.manual_seed(2)
    model, graph = of_nodes(forward) if by_hand else Alone().double(), ring(size, 3, 0)
    graph.x = graph.x.double()
    exposure = gr.expose(model, graph)
    assert exposure.mass.item() == pytest.approx(1)
    assert exposure.groups[0].rule.startswith("mean pool")
    weights = torch.rand(size, dtype=torch.float64)
    with torch.no_grad():
        nodes = model.nodes(graph.x, graph.edge_index)
        told = model.eval().head((weights / weights.sum() @ nodes).unsqueeze(0))
    found = exposure.logits((weights / weights.sum()).unsqueeze(0))[0]
    torch.testing.assert_close(found, told, rtol=1e-10, atol=1e-10)


def test_what_repairs_see_of_a_graph_and_its_nodes() -> None:
    """Its mean, of a graph of one node that node; whatever the pool."""
    lonely = ring(1, 1, 0)
    lonely.edge_index = torch.zeros(2, 0, dtype=torch.long)
    model, data = built("sum"), Batch.from_data_list([lonely, *GRAPHS[:3]])
    data.x, data.u = data.x.double(), data.u.double()
    exposure = gr.expose(model, data)
    with torch.no_grad():
        nodes = model.nodes(data.x, data.edge_index)
    torch.testing.assert_close(exposure.messages[0], nodes, rtol=1e-12, atol=1e-12)
    mean = global_mean_pool(nodes, data.batch)
    torch.testing.assert_close(exposure.state[0], mean, rtol=1e-12, atol=1e-12)


def test_graphs_are_counted_whatever_their_number_and_the_name_of_their_batch() -> None:
    for count in (1, 2, len(GRAPHS)):
        torch.manual_seed(0)
        exposure = gr.expose(OtherNames().double(), batch_of(count=count))
        assert exposure.num_recipients == count and exposure.num_terms == sum(SIZES[:count])
        assert "batch_idx=data.batch" in exposure.called and "a graph as" in exposure.called
        noun = "graph" if count == 1 else "graphs"
        assert f"{count} {noun} with {sum(SIZES[:count])} nodes, 2 classes" in str(exposure)


def test_which_pools_are_groups() -> None:
    """A sum over all nodes beside one over some; one that a later pool reads is none."""

    def thinned(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.nodes(x, edge_index)
        few, _, _, where, *_ = self.layer(x, edge_index, None, batch)
        both = [global_mean_pool(x, batch), global_mean_pool(few, where)]
        return self.head(torch.cat(both, dim=1))

    def gated(x: Tensor, batch: Tensor) -> Tensor:
        whole = global_add_pool(x, batch)[batch]
        return torch.cat([global_mean_pool(y, batch) for y in (x.sin() + whole, x)], dim=1)

    layer = pyg.TopKPooling(WIDTH, 0.5)
    found = gr.expose(of_nodes(thinned, 2 * WIDTH, layer=layer), batch_of())
    kept = sum((size + 1) // 2 for size in SIZES)
    assert found.num_groups == 2 and found.num_terms == sum(SIZES) + kept
    found = gr.expose(Pooled(gated, wide=2 * WIDTH).double(), batch_of())
    assert [group.rule[:9] for group in found.groups] == ["mean pool", "mean pool"]
    assert found.residual is not None and found.residual <= 1e-12


def test_gates_that_add_up_to_less_than_one_are_no_attention() -> None:
    torch.manual_seed(0)
    model = Pooled(lambda x, batch: global_add_pool(x * (x[:, :1].sigmoid() / 10), batch))
    exposure = gr.expose(model.double(), batch_of())
    assert float(exposure.mass.max()) < 1
    assert exposure.groups[0].rule.startswith("weighted pool: α = a weight")


# One weight per node in the pools of all layers ---------------------------------------------------


class EveryLayer(nn.Module):
    """A mean of the nodes, a sum, a mean, beside attention if asked; weights w of nodes in all."""

    def __init__(self, bent: bool, attention: bool = False) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(5 if i == 0 else 4, 4) for i in range(3)])
        self.lins = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
        self.joined, self.score = nn.Linear(16 if attention else 12, 3), nn.Linear(4, 1)
        self.bent, self.attention = bent, attention

    def forward(self, x, edge_index, batch, w=1.0):
        read = []
        for number, conv in enumerate(self.convs):
            x = conv(x, edge_index).relu()
            pool = global_add_pool if number == 1 else global_mean_pool
            read.append(pool(x * w, batch))
        if self.attention:
            read.append(global_add_pool(x * softmax(self.score(x), batch), batch))
        if self.bent:
            return self.joined(torch.cat(read, 1).relu())
        return sum(lin(part) for lin, part in zip(self.lins, read, strict=False))


def exposed(bent: bool, attention: bool = False):
    data = batch(2)
    torch.manual_seed(3)
    model = EveryLayer(bent, attention).double()
    return model, data, gr.expose(model, data, outputs="classes")


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("corner", [False, True])
def test_a_node_has_one_weight_in_the_model_itself(bent, corner, tmp_path: Path):
    model, data, exposure = exposed(bent)
    tied = exposure.tied()
    assert exposure.num_groups == 3 and tied.num_groups == 1
    assert "tied()" in str(exposure) and "one weight per sender" in str(tied)
    assert torch.equal(tied.frozen_logits, exposure.frozen_logits)
    torch.testing.assert_close(tied.logits(), exposure.logits(), rtol=0, atol=1e-14)
    assert torch.equal(tied.mass[..., 0], exposure.mass[..., 0])  # that of the first
    torch.manual_seed(4)
    weight = drawn(tied.aggregate, corner)
    factor = torch.ones(data.num_nodes, 1).double()
    factor[tied.sources[tied.rows.long()].long(), 0] = weight / tied.coefficients[0]
    with torch.no_grad():
        seen = model(data.x, data.edge_index, data.batch, factor)
    torch.testing.assert_close(tied.logits(weight)[0], seen, rtol=0, atol=1e-12)
    if bent:
        tied.save(tmp_path / "tied")
        for one in (tied, gr.Exposure.load(tmp_path / "tied").bind(model, data)):
            torch.testing.assert_close(one.replay(weight), seen, rtol=0, atol=1e-12)


def test_other_weights_stay_their_own_and_repairs_of_tied_ones_fit_no_others():
    tied = exposed(True, attention=True)[2].tied()
    names = ["mean pool 1 + sum pool + mean pool 2", "attention pool"]
    assert [group.name for group in tied.groups] == names
    with pytest.raises(InputError, match="no two groups"):
        tied.tied()
    model, data, exposure = exposed(False)
    fitted = gr.Reweighting(epochs=2).fit(exposure.tied(), data.y, train=[0, 1, 2], val=[3, 4])
    with pytest.raises(InputError, match="other weights"):
        fitted.logits(exposure)
    with pytest.raises(InputError, match="tied exposure"):
        gr.repaired(model, fitted)


def two_sums(apart: float) -> nn.Module:
    def forward(self: Any, x: Tensor, batch: Tensor) -> Tensor:
        other = 1 + apart * torch.arange(len(x), dtype=x.dtype)[:, None].cos()
        return self.a(global_mean_pool(x, batch)) + self.b(global_add_pool(x * other, batch))

    return Made(forward, a=nn.Linear(5, 3), b=nn.Linear(5, 3))


def two_clusterings() -> nn.Module:
    """Pairs of nodes: neighbours in number, or one of each half of a graph; numbered alike."""

    def forward(self: Any, x: Tensor, batch: Tensor) -> Tensor:
        half = batch.bincount() // 2
        start, place = half.cumsum(0) - half, torch.arange(len(x))
        local = place - 2 * start[batch]
        pairs = start[batch] + local // 2, start[batch] + local % half[batch]
        graph_of = torch.arange(len(half)).repeat_interleave(half)
        return sum(
            lin(global_mean_pool(global_mean_pool(x, pair).relu(), graph_of))
            for lin, pair in zip((self.a, self.b), pairs, strict=True)
        )

    return Made(forward, a=nn.Linear(5, 3), b=nn.Linear(5, 3))


@pytest.mark.parametrize(
    "build", [two_clusterings, *(lambda k=k: two_sums(10.0**k) for k in (-9, -6, -3))]
)
def test_what_differs_a_little_or_bears_numbers_of_others_is_not_tied(build: Any) -> None:
    torch.manual_seed(0)
    assert gr.expose(two_sums(0.0).double(), batch(2), outputs="classes").tied().num_groups == 1
    exposure = gr.expose(build().double(), batch(2), outputs="classes")
    group = torch.repeat_interleave(exposure.segments.diff()) % exposure.num_groups
    assert torch.equal(*(exposure.sources[exposure.rows[group == g].long()] for g in (0, 1)))
    with pytest.raises(InputError, match="no two groups"):
        exposure.tied()


# Some of the nodes, dense batches, one graph after another ----------------------------------------


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
    model = Kept(LAYERS["SAGPool"](), nn.Linear(2 * WIDTH, CLASSES), global_mean_pool).eval()
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
    def forward(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, (source, _) = self.nodes(x, edge_index), edge_index
        both = [global_add_pool(x, batch), global_add_pool(x[source], batch[source])]
        return self.head(torch.cat(both, dim=1))

    exposure = gr.expose(of_nodes(forward, 2 * WIDTH), batch_of())
    sources = exposure.sources[exposure.rows.long()]
    assert exposure.num_groups == 2
    assert torch.bincount(sources).tolist() == [1 + 2] * sum(SIZES)  # on a ring


@pytest.mark.parametrize("centres", [1, 2])
def test_a_graph_is_what_its_centre_hears(centres: int) -> None:
    def forward(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.last(self.nodes(x, edge_index), edge_index)
        first = (batch.diff(prepend=batch[:1] - 1) > 0).nonzero().view(-1)
        return self.head(x[first] if centres == 1 else x[first] * x[first + 1])

    model, data = of_nodes(forward, last=pyg.GraphConv(WIDTH, WIDTH)), batch_of()
    if centres == 2:
        with pytest.raises(ExposureRefused, match="rows of 2 nodes per graph"):
            gr.expose(model, data)
        return
    exposure = gr.expose(model, data)
    first = exposure.graph_starts[:-1]
    heard = [data.edge_index[0, data.edge_index[1] == node].sort().values for node in first]
    found = exposure.sources[exposure.rows.long()].long().split(exposure.segments.diff().tolist())
    assert all(map(torch.equal, heard, (part.sort().values for part in found)))


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
    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(getattr(self.nodes(x, edge_index), form)(-1, 5, WIDTH).mean(dim=1))

    batch: Any = Batch.from_data_list([ring(5, i, i % 3) for i in range(6)])
    exposure = gr.expose(of_nodes(forward).float(), batch)
    assert exposure.mass.tolist() == [[[pytest.approx(1)]] * 6]
    assert exposure.sources[exposure.rows.long()].tolist() == list(range(30))


def test_sums_that_are_scaled_one_by_one_are_refused() -> None:
    def scaled(x: Tensor, batch: Tensor) -> Tensor:
        return torch.stack([2 * x[batch == g].mean(0) for g in range(int(batch.max()) + 1)])

    with pytest.raises(ExposureRefused, match="one graph at a time"):
        gr.expose(Pooled(scaled).double(), batch_of())


# Rows that are no nodes ---------------------------------------------------------------------------


def clusters(x: Tensor, batch: Tensor, count: int = 3) -> Tensor:
    dense, _ = to_dense_batch(x, batch)
    return (dense[..., :count].softmax(-1).transpose(1, 2) @ dense).mean(1)


def pairs(x: Tensor, batch: Tensor) -> Tensor:
    return global_add_pool((x[1:] * x[:-1]).relu(), batch[1:])


def merged() -> nn.Module:
    def forward(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, _, batch, _ = self.layer(self.nodes(x, edge_index), edge_index, batch)
        return self.head(global_mean_pool(x, batch))

    return of_nodes(forward, layer=pyg.EdgePooling(WIDTH))


def memory() -> nn.Module:
    def forward(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(self.memory(self.nodes(x, edge_index), batch)[0].mean(1))

    return of_nodes(forward, memory=pyg.MemPooling(WIDTH, WIDTH, 1, 2))


NO_NODES: dict[str, tuple[Callable[[], Any], str, int | None]] = {
    "clusters": (lambda: Pooled(clusters), "cluster", 3),
    "pairs": (lambda: Pooled(pairs), "edge", None),
    "merged": (merged, "cluster", None),
    "memory": (memory, "cluster", 2),
    # PyG's attention lays clusters out one above the other, cluster 0 of all graphs first.
    "attention": (
        lambda: Pooled(aggr.GraphMultisetTransformer(WIDTH, 3, heads=2)), "cluster", 3,
    ),
}  # fmt: skip
"""Models, what their rows are, and how many of them a graph has."""


@pytest.mark.parametrize("name", NO_NODES)
def test_rows_that_are_no_nodes_are_called_what_they_are(name: str) -> None:
    build, kind, count = NO_NODES[name]
    torch.manual_seed(1)
    model, graphs = build().double(), batch_of()
    found = gr.expose(model, graphs)
    frame = found.to_frame()
    assert set(frame["source_type"]) == {kind} and set(frame["node"]) == {-1}
    assert f"{kind} " in " ".join(map(str, gr.solve(found, "all", [0, 1], effort="fast")))
    assert found.graph_starts is not None and int(found.graph_starts[-1]) == sum(SIZES)
    if count is not None:
        assert (frame["source"] // count == frame["graph"]).all()
        several = gr.expose(model, DataLoader(graphs.to_data_list(), batch_size=4)).to_frame()
        assert several[["source_type", "source"]].equals(frame[["source_type", "source"]])
        assert several["coefficient"].tolist() == pytest.approx(frame["coefficient"].tolist())


@pytest.mark.parametrize("counts", [(2, 3), (3, 2)])
def test_pools_of_different_numbers_of_clusters_name_all_of_them(counts: tuple[int, int]) -> None:
    torch.manual_seed(1)
    model = Pooled(lambda x, batch: sum(clusters(x, batch, k) for k in counts)).double()
    found = gr.expose(model, batch_of())
    frame, graphs = found.to_frame(), len(SIZES)
    assert dict(found.names.senders)["cluster"] == 3 * graphs
    for (_, group), k in zip(frame.groupby("group", sort=False), counts, strict=True):
        assert group["source"].tolist() == list(range(k * graphs))


def _shares(e: Tensor, batch: Tensor) -> Tensor:
    w = e[:, :1].exp()
    return w / w.new_zeros(int(batch.max()) + 1, 1).index_add(0, batch, w)[batch]


GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shares by index_add": _shares,
    "shares graph by graph": lambda e, batch: torch.cat(
        [part.softmax(0) for part in e[:, :1].split(batch.bincount().tolist())]
    ),
    "a head of several": lambda e, batch: softmax(e, batch)[:, 1:],
    "mean of heads": lambda e, batch: softmax(e, batch).mean(1, keepdim=True),
    "one less a sigmoid": lambda e, batch: 1 - e[:, :1].sigmoid(),
    "tanh from zero to one": lambda e, batch: (e[:, :1].tanh() + 1) / 2,
    "logistic by hand": lambda e, batch: 1 / (1 + (-e[:, :1]).exp()),
    "square": lambda e, batch: e[:, :1] ** 2,
    "clamp": lambda e, batch: e[:, :1].clamp(min=0),
    "times itself": lambda e, batch: e[:, :1] * e[:, :1],
    "cube of a sigmoid": lambda e, batch: e[:, :1].sigmoid() ** 3,
    "power of two": lambda e, batch: 2 ** e[:, :1],
    "less than a limit": lambda e, batch: 1 - e[:, :1].clamp(0, 1),
    "from minus five to five": lambda e, batch: 5 + nn.functional.hardtanh(e[:, :1], -5, 5),
    "elu": lambda e, batch: nn.functional.elu(e[:, :1]) + 1,
    "gathered": lambda e, batch: e.sigmoid().gather(1, (batch % 2)[:, None]),
    "copied": lambda e, batch: softmax(e[:, :1], batch).expand(-1, WIDTH),
}


@pytest.mark.parametrize("name", GATES)
def test_gates_that_cannot_be_negative_are_coefficients(name: str) -> None:
    torch.manual_seed(4)
    gate, batch = nn.Linear(WIDTH, 2).double(), batch_of()
    kept = []

    def pooled(x: Tensor, graphs: Tensor) -> Tensor:
        kept.append(GATES[name](2 * gate(x), graphs))
        return global_add_pool(kept[-1] * x, graphs)

    exposure = gr.expose(Pooled(pooled).double(), batch)
    weights = kept[0][:, 0].detach()
    torch.testing.assert_close(exposure.coefficients[0], weights[weights > 0])


def _after_a_deep_network(x: Tensor) -> Tensor:
    """Deeper than Python's stack."""
    for _ in range(1000):
        x = x.atan()
    return x[:, :1].log1p() + 0.5


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "a norm": lambda x: 1 / (x.square().sum(1, keepdim=True).sqrt() + 1e-6),
    "of both signs": lambda x: x[:, :1] - 0.5,
    "from minus four to six": lambda x: 1 + nn.functional.hardtanh(4 * (x[:, :1] - 2), -5, 5),
    "a weight times a sign": lambda x: x[:, :1].sigmoid() * (x[:, 1:2] - 0.5),
    "odd power": lambda x: (x[:, :1] - 0.5) ** 3,
    "signed numbers, written": lambda x: torch.zeros_like(x[:, :1]).index_put(
        (torch.arange(len(x)),), x[:, :1] - 0.5, True
    ),
    "after a deep network": _after_a_deep_network,
}


@pytest.mark.parametrize("name", SCALES)
def test_what_is_no_weight_stays_with_the_rows(name: str) -> None:
    def pooled(x: Tensor, graphs: Tensor) -> Tensor:
        return global_add_pool(x * SCALES[name](x), graphs)

    exposure = gr.expose(Pooled(pooled).double(), batch_of())
    assert bool((exposure.coefficients == 1).all())


def test_a_gate_that_is_never_positive_is_a_group_of_its_own_sign() -> None:
    def pooled(x: Tensor, graphs: Tensor) -> Tensor:
        return global_add_pool(x * -x[:, :1].sigmoid(), graphs)

    (group,) = gr.expose(Pooled(pooled).double(), batch_of()).groups
    assert group.name.endswith("−")


def test_empty_rows_of_a_dense_batch_of_edges_are_no_messages() -> None:
    def pooled(x: Tensor, graphs: Tensor) -> Tensor:
        a, b = edges
        dense, there = to_dense_batch(x[a] * x[b], graphs[a])
        return dense.sum(1) / there.sum(1, keepdim=True)

    data = batch_of()
    edges = data.edge_index[:, data.batch[data.edge_index[0]].argsort(stable=True)]
    exposure = gr.expose(Pooled(pooled).double(), data)
    assert exposure.num_terms == edges.shape[1]
    torch.testing.assert_close(exposure.mass, torch.ones_like(exposure.mass))
