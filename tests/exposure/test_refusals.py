"""What cannot be exposed, and that the refusal names what is in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import expose
from gnn_repair.exposure import from_model as exposing
from gnn_repair.exposure.record import build as sizes
from gnn_repair.exposure.record import replay as replaying
from tests.helpers.models.convolutions import CASES, NODES, graph
from tests.helpers.models.convolutions import Net as CaseNet
from tests.helpers.models.refused_models import REFUSED, Net


@pytest.fixture
def data() -> Data:
    """Sorted by recipient, as the LSTM aggregator wants it."""
    whole = graph(torch.float32)
    order = torch.argsort(whole.edge_index[1], stable=True)
    return Data(x=whole.x, edge_index=whole.edge_index[:, order])


class Reversible(nn.Module):
    """GroupAddRev frees the memory of its input."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.first, self.rev = nn.Linear(5, 8), pyg.GroupAddRev(pyg.SAGEConv(4, 4), num_groups=2)
        self.after, self.lin = after, nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.after(self.rev(self.first(x), edge_index)))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


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

    exposure = expose(Bipartite(), data)
    assert int(exposure.sources.max()) < NODES and exposure.num_terms == data.edge_index.shape[1]


def test_several_types_of_nodes() -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(3, 5), torch.randn(4, 5)
    with pytest.raises(ExposureRefused, match="Net sends no messages to 'a' nodes"):
        expose(Net(), data, forward=lambda model, data: data["a"].x)


def test_too_many_paths(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(pyg.APPNP(K=4, alpha=0.1), width=6)
    count = expose(model, data).num_terms
    monkeypatch.setattr(sizes, "available_memory", lambda: count * sizes.BYTES_PER_TERM)
    about = rf"make about {count} terms \(0\.0 GiB while exposing, of 0\.0 GiB available\)"
    with pytest.raises(ExposureRefused, match=rf"between 24 nodes {about}; use hops='last'"):
        expose(model, data)
    assert expose(model, data, hops="last").residual is not None
    free = int(count * sizes.BYTES_PER_TERM / sizes.SHARE) + 2
    monkeypatch.setattr(sizes, "available_memory", lambda: free)
    monkeypatch.setattr(sizes, "NOTEWORTHY", count - 1)
    with pytest.warns(UserWarning, match=rf"make about {count} terms"):
        assert expose(model, data).num_terms == count
    monkeypatch.setattr(sizes, "available_memory", lambda: None)
    monkeypatch.setattr(sizes, "LARGEST", count - 1)
    with pytest.raises(ExposureRefused, match=rf"more than {count - 1}; use hops='last'"):
        expose(model, data)


class Renamed(pyg.MessagePassing):
    """Sends ``scale`` × ``h``."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        scale = torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(2))
        return self.propagate(edge_index, h=self.lin(x), scale=scale)

    def message(self, h_j: Tensor, scale: Tensor) -> Tensor:
        return scale.view(-1, 1) * h_j


def test_names_of_arguments_do_not_matter(data: Data) -> None:
    torch.manual_seed(1)
    exposure = expose(Net(Renamed(6, 8)), data)
    expected = torch.rand(data.edge_index.shape[1], generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(exposure.coefficients[0], expected)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv heads", "TAGConv", "MFConv", "GINEConv"])
def test_certification_catches_a_wrong_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """β hides any error at λ = α; only running the model on other coefficients shows it."""
    torch.manual_seed(0)
    net = CaseNet(CASES[name]).double()
    assert expose(net, graph()).residual is not None

    start = exposing.affine_start

    def wrong(*args: Any) -> Any:
        found = start(*args)
        return replace(found, weight=found.weight * 1.001)

    monkeypatch.setattr(exposing, "affine_start", wrong)
    with pytest.raises(ExposureRefused, match=r"read off it by .*no rounding"):
        expose(net, graph())


def test_bad_input(data: Data) -> None:
    with pytest.raises(InputError, match="data is missing"):
        expose(Net())
    with pytest.raises(InputError, match="model is a str"):
        expose("gcn", data)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="hops is 'all'"):
        expose(Net(), data, hops="all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="returns NoneType instead of a tensor"):
        expose(Net(), data, forward=lambda model, data: None)
    with pytest.raises(InputError, match=r"are torch.float32 but its logits torch.bfloat16"):
        expose(Net(), data, forward=lambda model, data: model(data.x, data.edge_index).bfloat16())
    with pytest.raises(InputError, match="NaN or infinite"):
        expose(Net(), data, forward=lambda model, data: model(data.x, data.edge_index) / 0)


def test_reversible_layers_are_exposed_and_leave_their_input_alone(data: Data) -> None:
    """Without the LayerNorm the reversible model is affine; `rev` may read data.x itself."""
    torch.manual_seed(1)
    model = Reversible(nn.Identity()).double().eval()
    wide = Data(x=torch.randn(NODES, 8, dtype=torch.float64), edge_index=data.edge_index)
    model.first = nn.Identity()
    kept = wide.x.clone()
    exposure = expose(model, wide)
    torch.testing.assert_close(wide.x, kept)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    assert model.rev.disable is False
    torch.testing.assert_close(exposure.logits()[0], model(kept.clone(), data.edge_index))


def test_large_features_are_no_nonlinearity(data: Data) -> None:
    torch.manual_seed(1)
    big = Data(x=data.x * 1e30, edge_index=data.edge_index)
    exposure = expose(Net(), big)
    assert exposure.residual is not None and exposure.residual <= 1e-5
    with pytest.raises(InputError, match=r"its weights and data are finite: it overflows torch"):
        expose(Net(end=Times(1e38)), big)


def test_broken_weights_and_data_are_named(data: Data) -> None:
    model = Net()
    with torch.no_grad():
        model.conv1.lin.weight[2, 3] = torch.nan
    with pytest.raises(InputError, match=r"NaN or infinite values, and so does its weight `conv1"):
        expose(model, data)
    data.x[3, 1] = torch.inf
    with pytest.raises(InputError, match=r"NaN or infinite values, and so does data\.x"):
        expose(Net(), data)


@pytest.mark.parametrize("machine", [None, 5, 9])
@pytest.mark.parametrize("container", [None, 5, 9])
def test_the_least_memory_that_is_told_is_what_is_left(
    machine: int | None, container: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reader(told: int | None) -> Any:
        return lambda: int("max" if told is None else told)  # no limit is written as a word

    monkeypatch.setattr(sizes, "_meminfo", reader(machine))
    monkeypatch.setattr(sizes, "_control_group", reader(container))
    told = [one for one in (machine, container) if one is not None]
    assert sizes.available_memory() == (min(told) if told else None)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("gap", [1.0, float("nan")])
def test_a_model_that_differs_at_any_draw_is_not_certified(
    at: int, gap: float, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter([0.0] * at + [gap] + [0.0] * (1 - at))
    monkeypatch.setattr(replaying, "relative_gap", lambda *_: next(given))
    with pytest.raises(ExposureRefused, match=r"no rounding|gives NaN"):
        expose(Net(), data)
