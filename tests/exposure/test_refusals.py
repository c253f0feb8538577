"""What cannot be exposed, and that the refusal names what is in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from convolutions import CASES, NODES, graph
from convolutions import Net as CaseNet
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import models

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import expose
from gnn_repair.exposure.probes import Tail, find_tail


class Net(nn.Module):
    """``after`` follows the last convolution, ``end`` the linear head."""

    def __init__(
        self, conv: Any = None, after: Any = None, end: Any = None, width: int = 8
    ) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(5, 6)
        self.conv2 = conv or pyg.GCNConv(6, 8)
        self.after = after or nn.Identity()
        self.lin = nn.Linear(width, 4)
        self.end = end or nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.end(self.lin(self.after(self.conv2(x, edge_index))))


@pytest.fixture
def data() -> Data:
    """Sorted by recipient, as the LSTM aggregator wants it."""
    whole = graph(torch.float32)
    order = torch.argsort(whole.edge_index[1], stable=True)
    return Data(x=whole.x, edge_index=whole.edge_index[:, order])


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(5, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return pyg.global_mean_pool(self.conv(x, edge_index), None)


Build = Callable[[], nn.Module]

REFUSED: dict[str, tuple[Build, str]] = {
    "pair norm": (
        lambda: Net(after=pyg.PairNorm()),
        r"the PairNorm `after` after.*mixes the values of different nodes",
    ),
    "mean over nodes": (
        lambda: Net(end=MeanFree()),
        r"the MeanFree `end` after.*mixes the values of different nodes",
    ),
    "max aggregator": (
        lambda: Net(pyg.SAGEConv(6, 8, aggr="max")),
        r"`conv2` \(SAGEConv\) aggregates by max, which is not a weighted sum",
    ),
    "LSTM aggregator": (
        lambda: Net(pyg.SAGEConv(6, 8, aggr="lstm")),
        r"`conv2` \(SAGEConv\) aggregates by .*, which is not a weighted sum",
    ),
    "own aggregation": (
        lambda: Net(pyg.EGConv(6, 8, num_heads=2)),
        r"`conv2` \(EGConv\) aggregates in a way of its own",
    ),
    "models.EdgeCNN": (
        lambda: models.EdgeCNN(5, 8, 2, 4),
        r"`convs.1` \(EdgeConv\) aggregates by max",
    ),
    "pooling": (Pooled, rf"returns a tensor of shape \[1, 4\] for {NODES} nodes.*pool"),
    "no messages": (lambda: models.MLP([5, 8, 4]), "MLP has no PyG MessagePassing layer"),
    "random in evaluation": (
        lambda: Functional(nn.functional.dropout),
        "change from run to run in evaluation",
    ),
    "not connected": (lambda: Net(after=Zero()), r"do not depend on what `conv2` \(GCNConv\)"),
}


class Functional(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(5, 6), pyg.GCNConv(6, 8)
        self.lin, self.function = nn.Linear(8, 4), function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.lin(self.function(self.conv2(x, edge_index)))


class MeanFree(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Zero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_what_is_in_the_way(name: str, data: Data) -> None:
    build, message = REFUSED[name]
    torch.manual_seed(1)
    forward = (lambda model, data: model(data.x)) if name == "no messages" else None
    with pytest.raises(ExposureRefused, match=message):
        expose(build(), data, forward=forward)


def test_compiled_models(data: Data) -> None:
    model = Net()
    with pytest.raises(ExposureRefused, match=r"the model is compiled.*model\._orig_mod"):
        expose(torch.compile(model), data)
    assert expose(torch.compile(model)._orig_mod, data).residual is not None
    model.conv2 = torch.compile(model.conv2)  # type: ignore[assignment]
    with pytest.raises(ExposureRefused, match=r"`conv2` is compiled by torch\.compile"):
        expose(model, data)
    other = Net()
    other.compile()
    with pytest.raises(ExposureRefused, match="compiled in place"):
        expose(other, data)


def test_a_cache_of_another_graph(data: Data) -> None:
    torch.manual_seed(1)
    model = Net(pyg.SGConv(6, 8, cached=True)).eval()
    model(data.x, data.edge_index.flip(0))
    kept = model.conv2._cached_x
    with pytest.raises(ExposureRefused, match="cached propagation gives other logits"):
        expose(model, data)
    assert model.conv2._cached_x is kept


def test_messages_from_another_node_set(data: Data) -> None:
    class Bipartite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv(5, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv((torch.cat([x, x]), x), edge_index)

    with pytest.raises(ExposureRefused, match=f"receives from {2 * NODES} nodes"):
        expose(Bipartite(), data)


def test_several_types_of_nodes() -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(3, 5), torch.randn(4, 5)
    with pytest.raises(ExposureRefused, match="data has 2 types of nodes"):
        expose(Net(), data, forward=lambda model, data: data["a"].x)


def test_too_many_paths(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(pyg.APPNP(K=4, alpha=0.1), width=6)
    monkeypatch.setattr("gnn_repair.exposure.rules.hops.LARGEST", 200)
    with pytest.raises(ExposureRefused, match=r"could make \d+ terms; use hops='last'"):
        expose(model, data)
    assert expose(model, data, hops="last").residual is not None


def test_a_wrong_rule_falls_back_and_a_tight_tolerance_refuses(data: Data) -> None:
    class Doubled(pyg.GCNConv):  # inherits a rule that its message function breaks
        def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
            return 2 * edge_weight.view(-1, 1) * x_j.sin()

    exposure = expose(Net(Doubled(6, 8)), data)
    assert "generic rule" in exposure.groups[0].rule
    with pytest.raises(ExposureRefused, match=r"differs from β \+ Σ λ ℓ by .*tolerance="):
        expose(Net(), data, tolerance=0.0)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv heads", "TAGConv", "MFConv", "GINEConv"])
def test_certification_catches_a_wrong_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """β hides any error at λ = α; only running the model on other coefficients shows it."""
    torch.manual_seed(0)
    net = CaseNet(CASES[name]).double()
    assert expose(net, graph()).residual is not None

    def wrong(*args: Any) -> Tail:
        tail = find_tail(*args)
        return replace(tail, weight=tail.weight * 1.001)

    monkeypatch.setattr("gnn_repair.exposure.final_aggregation.find_tail", wrong)
    monkeypatch.setattr("gnn_repair.exposure.final_aggregation.tail_error", lambda *_: 0.0)
    with pytest.raises(ExposureRefused, match=r"the model differs from β \+ Σ λ ℓ by"):
        expose(net, graph())


def test_bad_input(data: Data) -> None:
    with pytest.raises(InputError, match="data is missing"):
        expose(Net())
    with pytest.raises(InputError, match="model is a str"):
        expose("gcn", data)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="hops is 'all'"):
        expose(Net(), data, hops="all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="returns tuple instead of a tensor"):
        expose(Net(), data, forward=lambda model, data: (model(data.x, data.edge_index), 1))  # type: ignore[arg-type,return-value]
    with pytest.raises(InputError, match="at least two classes"):
        expose(Net(), data, forward=lambda model, data: model(data.x, data.edge_index)[:, :1])
    with pytest.raises(InputError, match=r"computes in torch.bfloat16; convert it"):
        expose(Net(), data, forward=lambda model, data: model(data.x, data.edge_index).bfloat16())
    with pytest.raises(InputError, match="NaN or infinite"):
        expose(Net(), data, forward=lambda model, data: model(data.x, data.edge_index) / 0)
