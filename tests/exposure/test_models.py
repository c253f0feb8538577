"""Whole models: how they end, how their graph is given, what describes a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import models
from torch_geometric.utils import (
    remove_self_loops,
    scatter,
    softmax,
    to_torch_coo_tensor,
    to_torch_csr_tensor,
)

from benchmarks.scale import MODELS, bench_scale, generated_graph
from benchmarks.scale import Net as NetScale
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.record import recorder
from tests.campaigns import wild
from tests.campaigns.kinds import cases, judged
from tests.helpers.models import spelled_models
from tests.helpers.models.convolutions import CASES, NODES, gcn, graph, normalised
from tests.helpers.models.convolutions import Net as CaseNet
from tests.helpers.models.made import Made
from tests.helpers.models.spelled_models import CLASSES
from tests.helpers.models.terms import dense


def plain() -> Data:
    """Features and entries only, no self-loops."""
    return Data(x=graph().x, edge_index=remove_self_loops(graph().edge_index)[0])


class Model(nn.Module):
    """Modules in one forward ``how(model, x, edge_index)``, in double precision."""

    def __init__(self, how: Callable[..., Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.how = how
        for name, module in modules.items():
            self.add_module(name, module)
        self.double().eval()

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        return self.how(self, x, edge_index)


def two_layers(conv: nn.Module | None = None, end: Callable[[Tensor], Tensor] = lambda z: z) -> Any:
    torch.manual_seed(0)
    modules = {"conv1": pyg.GCNConv(5, 6), "conv2": conv or pyg.GCNConv(6, 8)}
    return Model(
        lambda m, x, e: end(m.lin(m.conv2(m.conv1(x, e).relu(), e))),
        **modules, lin=nn.Linear(8, 4),
    )  # fmt: skip


# How they end -------------------------------------------------------------------------------------


def test_the_embedding_is_what_the_last_linear_layer_reads() -> None:
    model, data = two_layers(end=lambda z: z.log_softmax(1)), plain()
    exposure = expose(model, data)
    assert exposure.embedding is not None
    logits = model.lin(exposure.embedding[0])
    torch.testing.assert_close(logits.log_softmax(1), model(data.x, data.edge_index))
    without = expose(models.GCN(5, 8, 2, 4).double(), data)
    assert without.embedding is None  # its last linear map comes before the aggregation


def test_inputs_of_parallel_convolutions_stand_in_columns_of_their_own() -> None:
    torch.manual_seed(0)
    model = Model(
        lambda m, x, e: m.lin(m.a(x, e) + m.b(x.sin(), e) + m.c(x, e).relu()),
        **{name: pyg.GCNConv(5, 8) for name in "abc"}, lin=nn.Linear(8, 4),
    )  # fmt: skip
    exposure, x = expose(model, plain()), plain().x
    assert [group.name for group in exposure.groups] == ["a", "b", "c"]
    assert exposure.head is not None and not exposure.held
    torch.testing.assert_close(exposure.state[0], torch.cat([x, x.sin()], 1))
    empty = torch.zeros_like(x)
    expected = torch.cat([torch.cat([x, empty], 1), torch.cat([empty, x.sin()], 1)])
    read = exposure.messages[0, exposure.message_rows.long()]
    torch.testing.assert_close(read, torch.cat([expected, expected[:NODES]]))


class Held(nn.Module):
    """Two weights of one shape, and buffers that are sparse or plain."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = (nn.Parameter(torch.randn(5, 4)) for _ in range(2))
        self.register_buffer("adj", graph().x[:, :1].sin().expand(-1, NODES).to_sparse())
        self.register_buffer("shift", torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        adj = self.adj.to(x.dtype)
        return adj @ (x @ self.one) + x @ self.two + self.shift


class Another(Held):
    """The same by another name."""


def test_a_fingerprint_is_of_weights_by_name_and_of_the_way_of_exposure() -> None:
    def of(model: nn.Module, **settings: Any) -> tuple[str, ...]:
        dtype = model.shift.dtype
        return expose(model, {"x": graph(dtype).x}, **settings).fingerprint

    known = of(Held())
    assert known == of(Held().double()) == of(Held())
    seen = {known, of(Another()), of(Held(), hops="last")}
    for name in Held().state_dict():
        model = Held()
        with torch.no_grad():
            getattr(model, name).mul_(1.5)
        seen.add(of(model))
    model = Held()
    model.one, model.two = model.two, model.one
    assert len(seen | {of(model)}) == 8


# How their graph is given -------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csr", "coo", "EdgeIndex"])
def test_other_forms_of_the_graph(form: str) -> None:
    model, data = two_layers(), plain()
    expected = expose(model, data)
    if form == "EdgeIndex":
        given = EdgeIndex(data.edge_index, sparse_size=(NODES, NODES)).sort_by("col").values
        other = Data(x=data.x, edge_index=given, num_nodes=NODES)
    else:
        make = to_torch_csr_tensor if form == "csr" else to_torch_coo_tensor
        matrix = make(data.edge_index.flip(0), size=NODES).to(torch.float64)
        other = Data(x=data.x, adj_t=matrix, num_nodes=NODES)
    found = expose(model, other)
    torch.testing.assert_close(found.fixed_logits, expected.fixed_logits)
    adjacency = torch.eye(NODES, dtype=torch.float64)
    adjacency[data.edge_index[1], data.edge_index[0]] = 1
    for exposure in (found, expected):
        torch.testing.assert_close(dense(exposure)[0], normalised(adjacency))


def test_an_edge_index_times_rows_is_its_adjacency() -> None:
    def forward(self: Any, x: Tensor, edge_index: Any) -> Tensor:
        return edge_index @ self.lin(x)

    data = plain()
    ends = data.edge_index.unique(dim=1)
    given = EdgeIndex(ends.contiguous(), sparse_size=(NODES, NODES)).sort_by("row").values
    model = Made(forward, lin=nn.Linear(5, 4))
    exposure = expose(model, Data(x=data.x.float(), edge_index=given))
    wanted = torch.zeros(NODES, NODES, dtype=torch.float64).index_put((ends[0], ends[1]), ONE)
    torch.testing.assert_close(dense(exposure)[0], wanted)


ONE = torch.ones((), dtype=torch.float64)


def test_target_to_source() -> None:
    exposure = expose(two_layers(pyg.SAGEConv(6, 8, flow="target_to_source")), plain())
    found = dense(exposure)[0].nonzero().t()
    expected = plain().edge_index
    assert sorted(found.t().tolist()) == sorted(expected.t().tolist())


def test_values_of_a_sparse_graph_are_weights_where_it_is_multiplied_with() -> None:
    class Multiplying(pyg.SAGEConv):
        """PyG shares what it compiles for one among all convolutions of a class."""

    torch.manual_seed(1)
    model, data = Multiplying(5, CLASSES).double(), spelled_models.graph()
    weights, size = torch.rand(data.edge_index.shape[1]).double() + 0.5, (spelled_models.NODES,) * 2
    adj = torch.sparse_coo_tensor(data.edge_index.flip(0), weights, size).coalesce()
    given = {"x": data.x, "adj_t": adj.to_sparse_csr()}
    exposure = expose(model, given, forward=lambda m, d: m(d["x"], d["adj_t"]))
    assert exposure.head is None
    count = (adj.to_dense() != 0).sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(dense(exposure)[0], adj.to_dense() / count)


def test_zero_weights_are_no_terms() -> None:
    data = graph()
    data.edge_weight[::3] = 0
    exposure = expose(pyg.GraphConv(5, 4).double(), data)
    assert exposure.num_terms == int((data.edge_weight > 0).sum())
    expected = torch.zeros(NODES, NODES, dtype=torch.float64)
    expected[data.edge_index[1], data.edge_index[0]] = data.edge_weight
    torch.testing.assert_close(dense(exposure)[0], expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["GCNConv", "GATConv heads", "TAGConv", "MFConv", "GINEConv"])
def test_on_a_gpu(name: str) -> None:
    torch.manual_seed(0)
    net, data = CaseNet(CASES[name]).double().eval(), graph()
    expected = expose(net, data)
    found = expose(net.cuda(), data.cuda())
    assert found.rows.is_cuda and found.residual is not None and found.residual <= 1e-12
    torch.testing.assert_close(found.logits().cpu(), expected.logits())
    torch.testing.assert_close(found.mass.cpu(), expected.mass)


# What repairs see of a message and its recipient --------------------------------------------------


def heard(sent: Tensor, size: Tensor, recipient: Tensor) -> Tensor:
    """What arrives at every node, averaged by size; 0 where nothing does."""
    rows = []
    for node in range(NODES):
        own = recipient == node
        rows.append((size[own, None] * sent[own]).sum(0) / size[own].sum().clamp(min=1e-300))
    return torch.stack(rows)


def test_a_recipient_of_entry_messages_is_its_mean_incoming_message() -> None:
    """GINEConv sends relu(x_j + e); LEConv, with signed weights, differences of both ends."""
    torch.manual_seed(0)
    data, net = graph(), CaseNet(CASES["GINEConv"]).double().eval()
    source, recipient = data.edge_index
    conv = pyg.LEConv(5, 4).double()
    signed = Model(lambda m, x, e: m.conv(x, e, data.signed_weight), conv=conv)
    sent = {
        net: (net.hidden(data)[source] + net.conv2.lin(data.edge_attr)).relu(),
        signed: conv.lin1(data.x)[source] - conv.lin2(data.x)[recipient],
    }
    sizes = {net: torch.ones(len(source)).double(), signed: data.signed_weight.abs()}
    for model, messages in sent.items():
        exposure = expose(model, data)
        torch.testing.assert_close(exposure.messages[0], messages)
        expected = heard(messages, sizes[model], recipient)
        torch.testing.assert_close(exposure.state[0], expected)


def test_senders_and_recipients_with_inputs_of_their_own() -> None:
    """conv((a, b)): messages are a's rows, the recipient's state is b's."""
    torch.manual_seed(0)
    model = Model(lambda m, x, e: m.conv((x.sin(), x.cos()), e), conv=pyg.SAGEConv(5, 4))
    exposure = expose(model, plain())
    torch.testing.assert_close(exposure.messages[0], plain().x.sin())
    torch.testing.assert_close(exposure.state[0], plain().x.cos())


def test_messages_from_another_node_set() -> None:
    model = Model(lambda m, x, e: m.conv((torch.cat([x, x]), x), e), conv=pyg.SAGEConv(5, 4))
    exposure = expose(model, plain())
    assert exposure.num_terms == plain().num_edges and int(exposure.sources.max()) < NODES


# Aggregates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["conv", "attention", "sparse"])
def test_hyperedges_send_as_clusters_and_not_as_any_of_their_nodes(how: str) -> None:
    torch.manual_seed(0)
    node = torch.tensor([0, 1, 2, 2, 3, 4, 4, 5, 6, 7])
    edge = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])

    def attended(m: Model, x: Tensor, e: Tensor) -> Tensor:
        sums = scatter(m.lin(x)[e[0]], e[1], 0, 3)
        weight = softmax(m.score(sums)[e[1]], e[0], num_nodes=8)
        return scatter(weight * sums[e[1]], e[0], 0, 8)

    def multiplied(m: Model, x: Tensor, e: Tensor) -> Tensor:
        of_node = scatter(torch.ones(10).double(), e[0], 0, 8)[e[0]]
        matrix = torch.sparse_coo_tensor(e, 1 / of_node, (8, 3))
        return matrix @ (torch.sparse_coo_tensor(e.flip(0), torch.ones(10).double()) @ m.lin(x))

    model = {
        "attention": Model(attended, lin=nn.Linear(5, 4), score=nn.Linear(4, 1)),
        "conv": Model(lambda m, x, e: m.conv(x, e), conv=pyg.HypergraphConv(5, 4)),
        "sparse": Model(multiplied, lin=nn.Linear(5, 4)),
    }[how]
    data = Data(x=torch.randn(8, 5).double(), edge_index=torch.stack([node, edge]))
    exposure = expose(model, data)
    frame = exposure.to_frame()
    assert (exposure.names.recipient, exposure.names.senders) == (
        "node",
        (("node", 8), ("cluster", 3)),
    )
    pairs = zip(frame["node"], frame["source_type"], frame["source"], strict=True)
    assert sorted(pairs) == sorted(
        (v, "cluster", e) for v, e in zip(*data.edge_index.tolist(), strict=True)
    )
    assert [part.beside for part in exposure.held] == [False]
    mass = exposure.coefficients.view(-1)[frame["node"].to_numpy() == 2]
    assert float(mass.sum()) == pytest.approx(1) and len(mass) == 2


@pytest.mark.parametrize(("axis", "held"), [(0, True), (1, False)])
def test_a_fourier_transform_over_nodes_is_held_and_one_of_channels_is_none(axis, held) -> None:
    def forward(m: Model, x: Tensor, e: Tensor) -> Tensor:
        return m.conv(torch.fft.fft(x, dim=axis).real, e)

    parts = expose(Model(forward, conv=pyg.SAGEConv(5, 4, root_weight=False)), plain()).held
    assert any("_fft" in name for part in parts for name in part.operations) == held


def test_rows_that_are_added_to_their_own_nodes_twice_are_summed_up() -> None:
    twice = torch.tensor([0, 3, 0])
    model = Model(
        lambda m, x, e: m.lin(x).index_add(0, twice, m.other(x[twice])),
        lin=nn.Linear(5, 4), other=nn.Linear(5, 4),
    )  # fmt: skip
    frame = expose(model, plain()).to_frame()
    assert frame[["node", "source"]].to_numpy().tolist() == [[0, 0], [0, 0], [3, 3]]


def test_signed_messages_narrower_than_the_classes_leave_the_bias_fixed() -> None:
    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        signed = torch.where(source > target, -0.5, 1.0).to(x)
        weight = torch.stack([signed, 2 * signed, 3 * signed], dim=1).unsqueeze(2)
        sent = weight * self.lin(x).view(-1, 3, 2)[source]  # three heads of two channels
        return self.head(scatter(sent, target, dim_size=len(x)).flatten(1))

    torch.manual_seed(1)
    model = Model(forward, lin=nn.Linear(5, 6), head=nn.Linear(6, CLASSES))
    exposure = expose(model, spelled_models.graph())
    assert exposure.num_groups == 6
    everywhere = model.head.bias.detach().expand(spelled_models.NODES, CLASSES)
    torch.testing.assert_close(exposure.fixed_logits[0], everywhere)


@pytest.mark.parametrize("conv", [pyg.GCNConv, pyg.SAGEConv])
def test_what_messages_contribute_is_in_double_precision_of_a_float32_model(conv: Any) -> None:
    torch.manual_seed(0)
    data, last, linear = spelled_models.graph(), conv(5, 8), nn.Linear(8, CLASSES)
    x = data.x = data.x.float()
    model = pyg.Sequential("x, edge_index", [(last, "x, edge_index -> x"), linear])
    exposure = expose(model, data)
    weight = linear.weight.double()
    if conv is pyg.GCNConv:
        told = last.lin(x).double() @ weight.t()
    else:
        told = x.double() @ (weight @ last.lin_l.weight.double()).t()
    assert exposure.coefficients.dtype == torch.float32
    expected = told[exposure.sources.long()].detach()
    torch.testing.assert_close(exposure.contributions[0], expected, rtol=1e-13, atol=1e-13)


# Large graphs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_small_run_of_the_benchmark(model: str) -> None:
    (row,) = bench_scale(
        (200,), models=[model], degree=10, features=4, hidden=8, classes=3, apart=False
    )
    assert (row["nodes"], row["terms"], row["targets"]) == (200, 2000, 10)
    assert (row["model"], row["threads"]) == (model, torch.get_num_threads())
    assert row["residual"] is None or row["residual"] <= 1e-5
    assert row["peak at the end (GiB)"] >= row["peak (GiB)"] > 0 and 0 < row["reach"] <= 1


def same(one: Exposure, other: Exposure) -> None:
    for name in ("segments", "rows", "sources", "coefficients", "contributions", "fixed_logits"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))


def test_large_tables_are_compared_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    data, model = generated_graph(nodes=200, entries=2000, features=4), NetScale(4, 8, 3).eval()
    usual = expose(model, data)
    monkeypatch.setattr("gnn_repair.exposure.pieces.NUMBERS", 50)
    large = expose(model, data)
    assert large.residual is not None and large.residual <= 1e-5
    same(large, usual)
    torch.testing.assert_close(large.logits(), usual.logits(), rtol=0, atol=1e-6)
    torch.testing.assert_close(large.masses(large.coefficients), usual.mass)


def test_tables_of_single_terms_are_formed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """MFConv's W differs by node, so its contributions are formed term by term."""
    torch.manual_seed(0)
    net = CaseNet(CASES["MFConv"]).double()
    usual = expose(net, graph())
    monkeypatch.setattr("gnn_repair.exposure.heads.logit_form.CHUNK", 7)
    same(expose(net, graph()), usual)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ["GCNConv", "GATConv", "SAGEConv", "APPNP"])
def test_on_large_graphs_less_is_kept_and_the_exposure_is_the_same(
    kind: str, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    edges = torch.cat([torch.randint(20, (2, 60)), torch.arange(20).repeat(2, 1)], 1).unique(dim=1)
    adjacency = torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), (20, 20))
    last = pyg.APPNP(3, 0.1) if kind == "APPNP" else getattr(pyg, kind)(8, 8)
    steps = [(pyg.SAGEConv(5, 8), "x, e -> x"), nn.ReLU(), (last, "x, e -> x")]
    model = pyg.Sequential("x, e", steps).eval()
    data = {"x": torch.randn(20, 5), "e": adjacency.coalesce().to_sparse_csr() if sparse else edges}
    usual = expose(model, data)
    monkeypatch.setattr(recorder, "KEPT_ALWAYS", 0)
    same(expose(model, data), usual)


# A sample of the campaign of spellings ------------------------------------------------------------

SPELLINGS = cases()
HELD = {
    "mean of all beside", "maximum beside", "mean of all authors beside", "set to set",
    "virtual node read out", "centre node joined", "two centres times the pool",
    "mean and largest", "read out early", "first node beside", "less the batch's mean",
}  # fmt: skip
UNSUPPORTED = {
    "two centres", "differences of running sums", "graphs attend to each other",
    "appended virtual nodes",
}  # fmt: skip
LINKS = {
    "norm before, encode and decode": "exact",
    "columns of both, encode and decode": "exact",
    "gathered, in one forward": "exact",
    "attention between ends, encode and decode": "exact",
    "NCN, encode and decode": "held",
    "completed common neighbours, encode and decode": "held",
    "attention to what is near, in one forward": "held",
    "end of the next link, encode and decode": "held",
    "largest of all, in one forward": "held",
    "beside the mean link, encode and decode": "held",
    "all pairs, encode and decode": "refused",
}
OTHERS = [name for name in SPELLINGS if not name.startswith("links") and "perceptron" not in name]


@pytest.mark.parametrize("name", [*OTHERS, *(f"links: {name}" for name in LINKS)])
def test_what_is_exact_what_is_held_and_what_is_unsupported(name: str) -> None:
    plain = name.partition(": ")[2]
    kind = "held" if plain in HELD else "refused" if plain in UNSUPPORTED else "exact"
    assert judged(SPELLINGS[name], seed=2) == LINKS.get(plain, kind)


def test_as_many_graphs_as_the_largest_has_nodes_are_no_adjacency() -> None:
    assert SPELLINGS["graphs: padded by hand, turned"](56) == "exact"  # five of five nodes each


@pytest.mark.parametrize("name", wild.MODELS)
def test_models_as_people_publish_them(name: str) -> None:
    assert wild.judged(name, seed=2) == []


def test_a_sum_in_single_precision_inside_a_model_in_double_is_rounded_as_such() -> None:
    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv.float()(x.float(), edge_index) * self.scale

    model = Made(forward, conv=pyg.GCNConv(5, 4))
    model.scale = nn.Parameter(torch.ones(4).double())
    exposure = expose(model, graph())
    assert exposure.frozen_logits.dtype == torch.float64 and 0 < exposure.residual < 1e-5


def test_relations_without_an_edge_keep_their_numbers() -> None:
    """Group names count all relations, and a graph without edges has no messages."""
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 3, 4, 2], [1, 2, 3, 4, 0, 0]])
    kinds = torch.tensor([0, 0, 0, 2, 2, 2])
    typed = Data(x=torch.randn(5, 4), edge_index=edges, edge_type=kinds)
    names = [group.name for group in expose(pyg.RGCNConv(4, 3, 3).eval(), typed).groups]
    assert [name.rpartition(" ")[2] for name in names] == ["0", "2"]
    empty = Data(x=typed.x, edge_index=edges[:, :0])
    model = pyg.SAGEConv(4, 3).eval()
    alone = expose(model, empty)
    assert alone.num_terms == 0
    torch.testing.assert_close(alone.logits()[0].float(), model(empty.x, empty.edge_index))


def test_a_convolution_of_size_one_mixes_no_nodes() -> None:
    net, data = wild.built("edges_read_by_a_convolution", 0)
    assert expose(net, data).held == ()


class Diffusion(nn.Module):
    """As DCRNN has it: input and state side by side in two hops of a given matrix."""

    def __init__(self, batched: bool) -> None:
        super().__init__()
        self.batched, self.lin, self.out = batched, nn.Linear(18, 4), nn.Linear(4, 3)
        self.register_buffer("support", gcn(graph()))

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 4, dtype=x.dtype)
        first = torch.cat([x[:, :2], state], 1)
        if self.batched:  # [B, N, C] laid out as [N, C B]
            first = first[None].permute(1, 2, 0).reshape(len(x), -1)
        second = self.support @ first
        hops = torch.stack([first, second, 2 * self.support @ second - first])
        return self.out(self.lin(hops.permute(1, 2, 0).reshape(len(x), -1)).tanh())


def test_a_batch_axis_that_is_moved_away_changes_nothing() -> None:
    torch.manual_seed(0)
    plain = Diffusion(batched=False).double()
    other = Diffusion(batched=True).double()
    other.load_state_dict(plain.state_dict())
    one, two = (expose(model, Data(x=graph().x.double())) for model in (plain, other))
    torch.testing.assert_close(two.logits(), one.logits())
    hop = other.support
    torch.testing.assert_close(two.mass[0], torch.stack([hop.sum(1), 2 * (hop @ hop).sum(1)], 1))


def test_a_pool_that_stands_outside_data_is_the_same_pool() -> None:
    batch = torch.arange(3).repeat_interleave(8)
    pool = nn.functional.one_hot(batch).t().double()
    data = Data(x=graph().x.double()[:24], batch=batch, num_graphs=3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(data.num_features, 2)).double()
    exposure = expose(model, data, forward=lambda m, d: torch.mm(pool, m(d.x)))
    assert exposure.num_terms == 24 and torch.equal(exposure.sources.long(), torch.arange(24))
