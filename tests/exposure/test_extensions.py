"""Models written with torch_scatter, torch_sparse and pyg-lib, where these are installed.

`make test-extensions` builds what can be built and runs this file. Each model has a twin in plain
PyTorch with the same weights: groups, sources and coefficients have to be the same.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv

import gnn_repair as gr

NODES = 20


def extension(name: str):
    return pytest.importorskip(name, reason=f"{name} is not installed; see make test-extensions")


def graph() -> Data:
    torch.manual_seed(3)
    edges = torch.unique(torch.randint(0, NODES, (2, 90)), dim=1)
    edges = edges[:, torch.argsort(edges[1], stable=True)]  # by recipient, as segments need it
    return Data(x=torch.randn(NODES, 5).double(), edge_index=edges)


def pointers(index):
    counts = torch.bincount(index, minlength=NODES)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def by_torch(x, index, how):
    out = torch.zeros(NODES, x.shape[1]).double().index_add(0, index, x)
    count = torch.bincount(index, minlength=NODES).clamp(min=1)
    return out / count.unsqueeze(1) if how == "mean" else out


def softmax_by_torch(score, index):
    score = score.exp()
    return score / torch.zeros(NODES).double().index_add(0, index, score)[index]


def by_scatter(x, index, how):
    return extension("torch_scatter").scatter(x, index, dim=0, dim_size=NODES, reduce=how)


TOTALS = {
    "scatter": by_scatter,
    "csr": lambda x, index, how: extension("torch_scatter").segment_csr(
        x, pointers(index), reduce=how
    ),
    "coo": lambda x, index, how: extension("torch_scatter").segment_coo(
        x, index, dim_size=NODES, reduce=how
    ),
}


class Net(nn.Module):
    """Sums over neighbours in a spelling of one's own, plain, with attention, or beside a max."""

    def __init__(self, total, how="sum", weights=None, beside=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.score = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 1)
        self.total, self.how, self.weights, self.beside = total, how, weights, beside
        self.double()

    def forward(self, x, edge_index):
        source, target = edge_index
        x = self.total(self.first(x)[source], target, self.how).relu()
        message = self.last(x)[source]
        if self.weights is not None:
            message = message * self.weights(self.score(x)[source].view(-1), target).unsqueeze(1)
        out = self.total(message, target, self.how)
        return out if self.beside is None else out + self.beside(x[source][:, :3], target)


def alike(found, twin) -> None:
    assert found.residual <= 1e-12
    for name in ("segments", "coefficients", "fixed_logits", "frozen_logits"):
        torch.testing.assert_close(getattr(found, name), getattr(twin, name), atol=1e-12, rtol=0)
    assert torch.equal(*[e.sources[e.rows.long()] for e in (found, twin)])


@pytest.mark.parametrize("how", ["sum", "mean", "attention"])
@pytest.mark.parametrize("total", TOTALS)
def test_sums_of_torch_scatter_are_those_of_torch(total, how):
    scatter, reduce = extension("torch_scatter"), "sum" if how == "attention" else how
    pair = [None, None]
    if how == "attention":
        pair = [lambda s, i: scatter.scatter_softmax(s, i, dim=0), softmax_by_torch]
    nets = [Net(TOTALS[total], reduce, pair[0]), Net(by_torch, reduce, pair[1])]
    alike(*[gr.expose(net, graph()) for net in nets])


@pytest.mark.parametrize("kind", ["scatter_max", "segment_csr"])
def test_a_maximum_beside_a_sum_is_held_by_name(kind):
    scatter = extension("torch_scatter")

    def largest(x, index):
        if kind == "scatter_max":
            return scatter.scatter_max(x, index, dim=0, dim_size=NODES)[0]
        return scatter.segment_csr(x, pointers(index), reduce="max")

    found = gr.expose(Net(by_torch, beside=largest), graph())
    (held,) = [part for part in found.held if part.beside]
    assert any("max" in name for name in held.operations)


def test_gathers_by_pointers_name_their_rows():
    scatter = extension("torch_scatter")

    class Pooled(nn.Linear):
        def forward(self, x, edge_index):
            ends = pointers(edge_index[1])
            middle = scatter.segment_csr(x[edge_index[0]], ends, reduce="mean")
            back = scatter.gather_csr(super().forward(middle), ends)
            return by_torch(back, edge_index[0], "sum")

    data = graph()
    found = gr.expose(Pooled(5, 3).double(), data)
    assert found.residual <= 1e-12
    senders = found.sources[found.rows.long()].sort().values.tolist()
    assert senders == data.edge_index[1].sort().values.tolist()


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize("valued", [False, True])
def test_products_of_torch_sparse_are_those_of_torch(how, valued):
    sparse, data = extension("torch_sparse"), graph()
    source, target = data.edge_index
    weight = torch.rand(len(source)).double() + 0.1 if valued else None
    matrix = sparse.SparseTensor(row=target, col=source, value=weight, sparse_sizes=(NODES, NODES))

    class Product(nn.Module):
        def __init__(self, by_torch_alone) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last, self.plain = nn.Linear(5, 6), nn.Linear(6, 3), by_torch_alone
            self.double()

        def total(self, x):
            if not self.plain:
                return sparse.matmul(matrix, x, reduce=how)
            x = x[source] if weight is None else x[source] * weight.unsqueeze(1)
            return by_torch(x, target, how)

        def forward(self, x, edge_index):
            return self.total(self.last(self.total(self.first(x)).relu()))

    alike(*[gr.expose(Product(plain), data) for plain in (False, True)])


@pytest.mark.parametrize("conv", [GCNConv, SAGEConv])
def test_convolutions_of_pyg_take_their_paths_through_the_extensions(conv):
    sparse, data = extension("torch_sparse"), graph()
    torch.manual_seed(0)
    conv1, conv2 = conv(5, 6).double(), conv(6, 3).double()

    def forward(model, data):
        return conv2(conv1(data.x, data.edges).relu(), data.edges)

    source, target = data.edge_index
    matrix = sparse.SparseTensor(row=target, col=source, sparse_sizes=(NODES, NODES))
    model = nn.ModuleList([conv1, conv2])
    found, twin = (
        gr.expose(model, Data(x=data.x, edges=edges), forward=forward)
        for edges in (matrix, data.edge_index)
    )
    assert found.residual <= 1e-12 and found.num_terms == twin.num_terms
    torch.testing.assert_close(found.frozen_logits, twin.frozen_logits, atol=1e-12, rtol=0)
