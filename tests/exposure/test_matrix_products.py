"""Models that multiply with a matrix themselves, without MessagePassing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.record.replay import random_admissible
from tests.helpers.models.convolutions import NODES, graph
from tests.helpers.models.product_models import WAYS, Graphs, coo, dense


def found_matrix(exposure: Exposure, coefficients: Tensor) -> Tensor:
    """Signed coefficients of one-block groups as [recipient, source]."""
    out = torch.zeros(NODES, NODES, dtype=torch.float64)
    places = torch.arange(NODES * exposure.num_groups)
    places = torch.repeat_interleave(places, exposure.segments.diff())
    signs = torch.tensor([-1.0 if g.name.endswith("−") else 1.0 for g in exposure.groups])
    values = coefficients * signs[places % exposure.num_groups]
    recipients = places // exposure.num_groups
    sources = exposure.sources[exposure.rows].long()
    return out.index_put_((recipients, sources), values.double(), accumulate=True)


@pytest.mark.parametrize("signed", [False, True], ids=["positive", "signed"])
@pytest.mark.parametrize("way", list(WAYS)[:-1])
def test_a_product_is_an_aggregation(way: str, signed: bool) -> None:
    form, times = WAYS[way]
    torch.manual_seed(0)
    model, matrix = Graphs(times).double().eval(), dense(signed)
    data = Data(x=graph().x, adj=form(matrix))
    exposure = expose(model, data)
    factor = 2 if way == "addmm" else 1
    torch.testing.assert_close(found_matrix(exposure, exposure.coefficients[0]), factor * matrix)
    torch.testing.assert_close(exposure.logits()[0], model(data.x, data.adj))
    assert exposure.residual is not None and exposure.residual <= 1e-12
    assert exposure.num_groups == 1 + signed
    assert all("the matrix's entry" in group.rule for group in exposure.groups)

    # Reweighted by hand: the very matrix with other entries, dense.
    other = found_matrix(exposure, random_admissible(exposure, seed=3))
    hidden = model.second(model.hidden(data.x, data.adj))
    skip = {"addmm": 0.5, "torch.sparse.addmm": 1.0}.get(way, 0.0)
    by_hand = model.lin(other @ hidden + skip * hidden)
    given = random_admissible(exposure, seed=3)
    torch.testing.assert_close(exposure.logits(given)[0], by_hand, rtol=1e-10, atol=1e-10)


def test_vectors_are_products_too() -> None:
    """One output channel, multiplied as a vector: two classes (0, z)."""

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(5, 1)

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            return adj @ self.lin(x).squeeze(1)

    model, data = Scored().double(), Data(x=graph().x, adj=dense())
    exposure = expose(model, data)
    torch.testing.assert_close(found_matrix(exposure, exposure.coefficients[0]), dense())
    torch.testing.assert_close(exposure.contributions[0, :, 1], model.lin(data.x).view(-1))


def test_a_wrong_entry_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certification runs the model: with entries of another matrix it must differ."""
    from gnn_repair.exposure.record import build

    def wrong(*given: Any) -> Any:
        block = honest(*given)
        return replace(block, coefficients=block.coefficients * 1.001)

    honest = build._product_block
    monkeypatch.setattr(build, "_product_block", wrong)
    model, data = Graphs(torch.spmm).double(), Data(x=graph().x, adj=coo(dense()))
    with pytest.raises(ExposureRefused, match=r"reweighted messages in .* the model diff"):
        expose(model, data)


def test_layers_that_are_modules_are_named() -> None:
    class Layer(nn.Module):
        def __init__(self, size: int, out: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(size, out) * 0.3)

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            return torch.spmm(adj, torch.mm(x, self.weight))

    class Net(nn.Module):
        def __init__(self, after: Any) -> None:
            super().__init__()
            self.gc1, self.gc2, self.after = Layer(5, 6), Layer(6, 4), after

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            return self.after(self.gc2(self.gc1(x, adj).relu(), adj))

    torch.manual_seed(0)
    data = SimpleNamespace(x=graph().x, adj=coo(dense()))
    exposure = expose(Net(nn.LogSoftmax(dim=1)).double(), data)
    assert [group.name for group in exposure.groups] == ["gc2"]
    assert "matrix product: α = the matrix's entry" in str(exposure)
    tailed = expose(Net(nn.Tanh()).double(), data)
    assert tailed.head is not None
    assert [operation.title for operation in tailed.head.operations] == ["tanh"]
    relu = Graphs(lambda a, h: torch.relu(a @ h)).double()
    tailed = expose(relu, Data(x=data.x, adj=dense()))
    assert [operation.title for operation in tailed.head.operations] == ["relu", "affine"]


def test_features_that_are_square_are_no_graph() -> None:
    """As many features as nodes: x W is a map of features, and A (x W) the aggregation."""

    class Featureless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(NODES, 4))
            self.wide = nn.Parameter(torch.randn(NODES, NODES))

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            hidden = torch.mm(torch.mm(x, self.wide).relu(), self.weight)
            return torch.mm(adj, hidden)

    torch.manual_seed(0)
    data = Data(x=torch.eye(NODES, dtype=torch.float64), adj=dense())
    exposure = expose(Featureless().double(), data)
    torch.testing.assert_close(found_matrix(exposure, exposure.coefficients[0]), dense())

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(NODES, 4))

        def forward(self, adj: Tensor) -> Tensor:
            return adj @ self.table

    model = Embedded().double()
    exposure = expose(model, Data(adj=dense(), num_nodes=NODES))
    torch.testing.assert_close(exposure.contributions[0], model.table.detach())


def test_products_inside_a_propagate_are_the_propagates() -> None:
    torch.manual_seed(0)
    model = pyg.GCNConv(5, 4).double()
    adj_t = dense().to_sparse_csr()
    exposure = expose(model, Data(x=graph().x, adj_t=adj_t, num_nodes=NODES))
    assert [group.rule.split(":")[0] for group in exposure.groups] == ["GCNConv"]


def test_a_convolution_and_a_product_side_by_side() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = pyg.SAGEConv(5, 4), nn.Linear(5, 4)

        def forward(self, x: Tensor, edge_index: Tensor, adj: Tensor) -> Tensor:
            return self.conv(x, edge_index) + adj @ self.lin(x)

    torch.manual_seed(0)
    data = Data(x=graph().x, edge_index=graph().edge_index, adj=dense())
    exposure = expose(Both().double(), data)
    assert [group.name for group in exposure.groups] == ["conv", "matrix product"]
    assert exposure.residual is not None and exposure.residual <= 1e-12


def test_features_propagated_beforehand() -> None:
    message = r"no aggregation happens in Linear's forward.* pass a forward= that propagates"
    with pytest.raises(ExposureRefused, match=message):
        expose(nn.Linear(5, 4).double(), Data(x=graph().x, edge_index=graph().edge_index))
    data = Data(x=graph().x, adj=dense())
    linear = nn.Linear(5, 4).double()
    exposure = expose(linear, data, forward=lambda net, data: data.adj @ net(data.x))
    torch.testing.assert_close(found_matrix(exposure, exposure.coefficients[0]), dense())
