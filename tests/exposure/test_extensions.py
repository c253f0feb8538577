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


def by_scatter(x, index, how):
    return extension("torch_scatter").scatter(x, index, dim=0, dim_size=NODES, reduce=how)


def by_csr(x, index, how):
    return extension("torch_scatter").segment_csr(x, pointers(index), reduce=how)


def by_coo(x, index, how):
    return extension("torch_scatter").segment_coo(x, index, dim_size=NODES, reduce=how)


class Net(nn.Module):
    """Sums over neighbours in a spelling of one's own, plain, with attention, or beside a max."""

    def __init__(self, total, how="sum", weights=None, beside=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.score = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 1)
        self.total, self.how, self.weights, self.beside = total, how, weights, beside

    def forward(self, x, edge_index):
        source, target = edge_index
        x = self.total(self.first(x)[source], target, self.how).relu()
        message = self.last(x)[source]
        if self.weights is not None:
            message = message * self.weights(self.score(x)[source].view(-1), target).unsqueeze(1)
        out = self.total(message, target, self.how)
        return out if self.beside is None else out + self.beside(x[source][:, :3], target)


def softmax_by_torch(score, index):
    score = score.exp()
    return score / torch.zeros(NODES).double().index_add(0, index, score)[index]


def softmax_by_scatter(score, index):
    return extension("torch_scatter").scatter_softmax(score, index, dim=0)


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize("total", [by_scatter, by_csr, by_coo])
def test_sums_of_torch_scatter_are_those_of_torch(total, how):
    extension("torch_scatter")
    found, twin = (gr.expose(Net(one, how).double(), graph()) for one in (total, by_torch))
    assert found.residual <= 1e-12
    for name in ("segments", "coefficients", "fixed_logits", "frozen_logits"):
        torch.testing.assert_close(getattr(found, name), getattr(twin, name), atol=1e-12, rtol=0)
    same = [e.sources[e.rows.long()] for e in (found, twin)]
    assert torch.equal(*same)


def test_attention_by_scatter_softmax():
    extension("torch_scatter")
    found = gr.expose(Net(by_scatter, weights=softmax_by_scatter).double(), graph())
    twin = gr.expose(Net(by_torch, weights=softmax_by_torch).double(), graph())
    torch.testing.assert_close(found.coefficients, twin.coefficients, atol=1e-12, rtol=0)
    assert found.residual <= 1e-12


@pytest.mark.parametrize("kind", ["scatter_max", "segment_csr"])
def test_a_maximum_beside_a_sum_is_held_by_name(kind):
    scatter = extension("torch_scatter")

    def largest(x, index):
        if kind == "scatter_max":
            return scatter.scatter_max(x, index, dim=0, dim_size=NODES)[0]
        return scatter.segment_csr(x, pointers(index), reduce="max")

    found = gr.expose(Net(by_torch, beside=largest).double(), graph())
    (held,) = [part for part in found.held if part.beside]
    assert any("max" in name for name in held.operations)


def test_gathers_by_pointers_name_their_rows():
    scatter = extension("torch_scatter")

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(5, 3)

        def forward(self, x, edge_index):
            middle = scatter.segment_csr(x[edge_index[0]], pointers(edge_index[1]), reduce="mean")
            back = scatter.gather_csr(self.lin(middle), pointers(edge_index[1]))
            return by_torch(back, edge_index[0], "sum")

    data = graph()
    found = gr.expose(Pooled().double(), data)
    assert found.residual <= 1e-12
    senders = found.sources[found.rows.long()].sort().values.tolist()
    assert senders == data.edge_index[1].sort().values.tolist()


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize("valued", [False, True])
def test_products_of_torch_sparse_are_those_of_torch(how, valued):
    sparse = extension("torch_sparse")
    data = graph()
    source, target = data.edge_index
    weight = torch.rand(len(source)).double() + 0.1 if valued else None
    matrix = sparse.SparseTensor(row=target, col=source, value=weight, sparse_sizes=(NODES, NODES))

    class Product(nn.Module):
        def __init__(self, by_torch_alone) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last, self.plain = nn.Linear(5, 6), nn.Linear(6, 3), by_torch_alone

        def total(self, x):
            if not self.plain:
                return sparse.matmul(matrix, x, reduce=how)
            x = x[source] if weight is None else x[source] * weight.unsqueeze(1)
            return by_torch(x, target, how)

        def forward(self, x, edge_index):
            return self.total(self.last(self.total(self.first(x)).relu()))

    found, twin = (gr.expose(Product(plain).double(), data) for plain in (False, True))
    assert found.residual <= 1e-12
    torch.testing.assert_close(found.coefficients, twin.coefficients, atol=1e-12, rtol=0)
    assert torch.equal(*[e.sources[e.rows.long()] for e in (found, twin)])


@pytest.mark.parametrize("conv", [GCNConv, SAGEConv])
def test_convolutions_of_pyg_take_their_paths_through_the_extensions(conv):
    sparse = extension("torch_sparse")

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv1, self.conv2 = conv(5, 6), conv(6, 3)

        def forward(self, x, adj_t):
            return self.conv2(self.conv1(x, adj_t).relu(), adj_t)

    data = graph()
    source, target = data.edge_index
    matrix = sparse.SparseTensor(row=target, col=source, sparse_sizes=(NODES, NODES))
    found = gr.expose(Two().double(), Data(x=data.x, adj_t=matrix))
    twin = gr.expose(
        Two().double(), data, forward=lambda model, data: model(data.x, data.edge_index)
    )
    assert found.residual <= 1e-12
    torch.testing.assert_close(found.frozen_logits, twin.frozen_logits, atol=1e-12, rtol=0)
    assert found.num_terms == twin.num_terms
