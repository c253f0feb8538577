"""Whole models: how they are called, what they end in, how their graph is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import models
from torch_geometric.utils import remove_self_loops, to_torch_coo_tensor, to_torch_csr_tensor

from gnn_repair.backbones import BACKBONES, train_backbone
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.record.replay import random_admissible
from gnn_repair.training import Budget
from tests.helpers.models.convolutions import CASES, NODES, graph, normalised
from tests.helpers.models.convolutions import Net as CaseNet

Change = Callable[[Tensor], Tensor]


def same(value: Tensor) -> Tensor:
    return value


class Net(nn.Module):
    """Two convolutions with something in between, after, and at the end."""

    def __init__(self, conv: nn.Module | None = None, after: Change = same, end: Change = same):
        super().__init__()
        self.conv1 = pyg.GCNConv(5, 6)
        self.conv2 = conv or pyg.GCNConv(6, 8)
        self.after = after
        self.lin = nn.Linear(8, 4)
        self.end = end

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.end(self.lin(self.after(self.conv2(x, edge_index))))


@pytest.fixture
def data() -> Data:
    return graph()


@pytest.fixture
def plain(data: Data) -> Data:
    """Features and entries only, no self-loops."""
    return Data(x=data.x, edge_index=remove_self_loops(data.edge_index)[0])


def double(model: nn.Module) -> nn.Module:
    return model.double()


@pytest.mark.parametrize(
    "build",
    [
        lambda: models.GCN(5, 8, 2, 4, dropout=0.5),
        lambda: models.GCN(5, 8, 3, 4, norm="batch_norm"),
        lambda: models.GraphSAGE(5, 8, 2, 4),
        lambda: models.GAT(5, 8, 2, 4, heads=2, v2=True),
        lambda: models.PMLP(5, 8, 4, 2),
        lambda: models.GraphUNet(5, 8, 4, depth=2),
    ],
    ids=["GCN", "deep GCN", "GraphSAGE", "GATv2", "PMLP", "GraphUNet"],
)
def test_library_models(build: Callable[[], nn.Module], plain: Data) -> None:
    torch.manual_seed(0)
    model = double(build())
    exposure = expose(model, plain)
    with torch.no_grad():
        expected = model.eval()(plain.x, plain.edge_index)
    torch.testing.assert_close(exposure.logits()[0], expected, rtol=1e-12, atol=1e-12)
    assert exposure.residual is not None and exposure.residual <= 1e-12


def by_segment_and_source(exposure: Exposure) -> Tensor:
    """The order of terms that does not depend on how they were found."""
    places = torch.arange(exposure.segments.numel() - 1)
    places = torch.repeat_interleave(places, exposure.segments.diff())
    return torch.argsort(places * exposure.num_nodes + exposure.sources[exposure.rows], stable=True)


# H2GCN's network chains plain mean layers: probing sees the last one, algebra all streams.
@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"h2gcn"}))
def test_agrees_with_our_backbones(name: str) -> None:
    """The same network exposed by probing and by algebra."""
    budget = Budget(epochs=2, patience=None, learning_rate=1e-2, weight_decay=0.0)
    dataset = load_dataset("builtin")
    frozen = train_backbone(name, dataset, splits=[0], budget=budget, device="cpu")
    algebra, probed = expose(frozen), expose(frozen.network(), frozen.data)
    assert probed.root == algebra.root
    torch.testing.assert_close(probed.segments, algebra.segments)
    ours, theirs = by_segment_and_source(probed), by_segment_and_source(algebra)
    torch.testing.assert_close(
        probed.coefficients[:, ours], algebra.coefficients[:, theirs], rtol=1e-4, atol=1e-6
    )
    # Contributions may differ by a constant (a bias inside h), which mass and β balance.
    reweighted = random_admissible(probed, seed=3)
    aligned = torch.empty_like(reweighted)
    aligned[theirs] = reweighted[ours]
    found, expected = probed.logits(reweighted[None]), algebra.logits(aligned[None])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_and_skip_connections(data: Data) -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.skip = pyg.GCNConv(5, 8), nn.Linear(5, 8)
            self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)
            self.norm.running_mean, self.norm.running_var = torch.randn(8), torch.rand(8) + 0.5
            self.lin = nn.Linear(8, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.dropout(self.norm(self.conv(x, edge_index))) + self.skip(x).relu()
            return self.lin(h)

    torch.manual_seed(0)
    model = double(Skipping())
    exposure = expose(model, data)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    scale = model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()
    expected = model.lin(model.conv.lin(data.x) * scale) - model.lin.bias
    torch.testing.assert_close(exposure.contributions[0], expected)


def test_the_embedding_is_what_the_last_linear_layer_reads(data: Data) -> None:
    torch.manual_seed(0)
    model = double(Net(end=lambda z: z.log_softmax(1))).eval()
    exposure = expose(model, data)
    assert exposure.embedding is not None
    logits = model.lin(exposure.embedding[0])
    expected = model(data.x, data.edge_index)
    torch.testing.assert_close(logits.log_softmax(1), expected)
    without = expose(double(models.GCN(5, 8, 2, 4)), Data(x=data.x, edge_index=data.edge_index))
    assert without.embedding is None  # its last linear map comes before the aggregation


def test_log_softmax_head_holds_up_to_a_shift(data: Data) -> None:
    torch.manual_seed(0)
    plain = double(Net()).eval()
    headed = double(Net(end=lambda z: z.log_softmax(1))).eval()
    headed.load_state_dict(plain.state_dict())
    left, right = expose(plain, data), expose(headed, data)
    assert "log_softmax" in right.fixed and "log_softmax" not in left.fixed
    coefficients = random_admissible(left, seed=4).unsqueeze(0)
    truth, found = left.logits(coefficients)[0], right.logits(coefficients)[0]
    torch.testing.assert_close(found.log_softmax(1), truth.log_softmax(1))


def test_parallel_convolutions_and_a_nonlinear_one(data: Data) -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (pyg.GCNConv(5, 8) for _ in range(3))
            self.lin = nn.Linear(8, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            first, second = self.a(x, edge_index), self.b(x[:, :5].sin(), edge_index)
            return self.lin(first + second + self.c(x, edge_index).relu())

    torch.manual_seed(0)
    model = double(Parallel())
    exposure = expose(model, data)
    assert [group.name for group in exposure.groups] == ["a", "b", "c"]
    assert exposure.head is not None and not exposure.held
    # The two groups read different inputs, which stand in columns of their own.
    torch.testing.assert_close(exposure.state[0], torch.cat([data.x, data.x.sin()], 1))
    torch.testing.assert_close(exposure.messages[0, :NODES, :5], data.x)
    assert not exposure.messages[0, :NODES, 5:].any()


def test_shared_convolution_exposes_its_last_use(data: Data) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.GCNConv(5, 5)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(self.conv(x, edge_index).tanh(), edge_index)

    torch.manual_seed(0)
    model = double(Shared())
    exposure = expose(model, data)
    hidden = model.conv(data.x, data.edge_index).tanh()
    torch.testing.assert_close(exposure.state[0], hidden)
    expected = hidden @ model.conv.lin.weight.t()
    torch.testing.assert_close(exposure.contributions[0], expected)


def expected_dense(plain: Data) -> Tensor:
    adjacency = torch.eye(NODES, dtype=torch.float64)
    adjacency[plain.edge_index[1], plain.edge_index[0]] = 1
    return normalised(adjacency)


@pytest.mark.parametrize("form", ["csr", "coo", "EdgeIndex"])
def test_other_forms_of_the_graph(form: str, plain: Data) -> None:
    torch.manual_seed(0)
    model = double(Net())
    expected = expose(model, plain)
    if form == "EdgeIndex":
        size = (NODES, NODES)
        given = EdgeIndex(plain.edge_index, sparse_size=size).sort_by("col").values
        other = Data(x=plain.x, edge_index=given, num_nodes=NODES)
    else:
        make = to_torch_csr_tensor if form == "csr" else to_torch_coo_tensor
        other = Data(x=plain.x, adj_t=make(plain.edge_index.flip(0), size=NODES), num_nodes=NODES)
        other.adj_t = other.adj_t.to(torch.float64)
    found = expose(model, other)
    torch.testing.assert_close(found.mass, expected.mass)
    torch.testing.assert_close(found.fixed_logits, expected.fixed_logits)
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    recipients = found.terms_by_recipient.recipients.long()
    dense[recipients, found.rows.long()] = found.coefficients[0]
    torch.testing.assert_close(dense, expected_dense(plain))


def test_target_to_source(data: Data) -> None:
    torch.manual_seed(0)
    model = double(Net(pyg.SAGEConv(6, 8, flow="target_to_source")))
    exposure = expose(model, data)
    degree = torch.bincount(data.edge_index[0], minlength=NODES)
    torch.testing.assert_close(exposure.segments.diff(), degree)


def test_gradients_cut_off(data: Data) -> None:
    """W is then found by running along each channel."""
    torch.manual_seed(0)
    model = double(Net())
    expected = expose(model, data)

    def forward(net: nn.Module, data: Data) -> Tensor:
        with torch.no_grad():
            return net(data.x, data.edge_index)

    found = expose(model, data, forward=forward)
    torch.testing.assert_close(found.contributions, expected.contributions)


def test_the_model_is_left_as_it_was(data: Data) -> None:
    model = double(Net(pyg.SGConv(6, 8, cached=True), after=torch.relu)).train()
    model.conv1.eval()
    model.lin.weight.requires_grad_(False)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    for after in (torch.relu, same):  # refused, then exposed
        model.after = before[""]["after"] = after
        try:
            expose(model, data)
        except Exception as refused:
            assert after is torch.relu, refused
        assert model.training and not model.conv1.training
        assert not model.lin.weight.requires_grad and model.conv2.lin.weight.requires_grad
        for name, module in model.named_modules():
            assert dict(vars(module)).keys() == before[name].keys()
        assert model.conv2._cached_x is None and model.conv2.cached


@pytest.mark.parametrize(
    ("conv", "names"),
    [
        (lambda: pyg.SAGEConv(5, 4), ["SAGEConv"]),
        (lambda: pyg.TAGConv(5, 4, K=2), ["I", "Â", "Â²"]),
        (lambda: pyg.GCN2Conv(5, alpha=0.1), None),
    ],
    ids=["one hop", "several hops", "needs another argument"],
)
def test_a_convolution_alone(
    conv: Callable[[], nn.Module], names: list[str] | None, plain: Data
) -> None:
    if names is None:
        with pytest.raises(InputError, match="forward needs `x_0`"):
            expose(conv(), plain)
        return
    exposure = expose(double(conv()), plain)
    assert [group.name for group in exposure.groups] == names
    assert exposure.residual is not None and exposure.residual <= 1e-12


def test_a_model_that_knows_its_graph(data: Data) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x, data.edge_index)

    assert expose(double(Fixed()), data).num_terms == data.edge_index.shape[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["GCNConv", "GATConv heads", "TAGConv", "MFConv", "GINEConv"])
def test_on_a_gpu(name: str, data: Data) -> None:
    torch.manual_seed(0)
    net = CaseNet(CASES[name]).double().eval()
    expected = expose(net, data)
    found = expose(net.cuda(), data.cuda())
    assert found.rows.is_cuda and found.residual is not None and found.residual <= 1e-12
    torch.testing.assert_close(found.logits().cpu(), expected.logits())
    torch.testing.assert_close(found.mass.cpu(), expected.mass)


def test_relations_of_one_node_type(data: Data) -> None:
    class Related(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kinds = {("n", kind, "n"): pyg.SAGEConv(5, 4) for kind in ("a", "b")}
            self.conv = pyg.HeteroConv(kinds)

        def forward(self, x_dict: dict, edge_index_dict: dict) -> Tensor:
            return self.conv(x_dict, edge_index_dict)["n"]

    hetero = HeteroData()
    hetero["n"].x = data.x
    hetero["n", "a", "n"].edge_index = data.edge_index
    hetero["n", "b", "n"].edge_index = data.edge_index.flip(0)[:, :20]
    exposure = expose(double(Related()), hetero)
    lengths = exposure.segments.diff().view(-1, 2).sum(0)
    assert lengths.tolist() == [data.edge_index.shape[1], 20]


def test_zero_weights_are_no_terms(data: Data) -> None:
    data.edge_weight[::3] = 0
    model = double(Net(pyg.GraphConv(6, 8)))
    exposure = expose(
        model,
        data,
        forward=lambda net, data: net.lin(
            net.conv2(net.conv1(data.x, data.edge_index), data.edge_index, data.edge_weight)
        ),
    )
    assert exposure.num_terms == int((data.edge_weight > 0).sum())
    assert bool((exposure.coefficients > 0).all())
