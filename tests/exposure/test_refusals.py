"""What cannot be exposed, and that the refusal names what is in the way; awkward models."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import expose
from gnn_repair.exposure import from_model as exposing
from gnn_repair.exposure.record import build
from tests.helpers.models import awkward
from tests.helpers.models.awkward import AWKWARD, CLAIMED, Exposed, called, ring, silenced
from tests.helpers.models.convolutions import CASES, graph
from tests.helpers.models.convolutions import Net as CaseNet
from tests.helpers.models.refused_models import Net
from tests.helpers.models.terms import dense
from tests.helpers.refusals import refused


def data() -> Data:
    whole = graph(torch.float32)
    return Data(x=whole.x, edge_index=whole.edge_index)


def in_place() -> nn.Module:
    model = Net()
    model.compile()
    return model


def compiled_layer() -> nn.Module:
    model = Net()
    model.conv2 = torch.compile(model.conv2)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: torch.compile(Net()), ("the model", "compiled", "model._orig_mod")),
        (compiled_layer, ("`conv2`", "torch.compile")),
        (in_place, ("the model", "compiled in place")),
        (lambda: torch.jit.script(nn.Linear(5, 4)), ("the model", "TorchScript")),
    ],
)
def test_compiled_models(model: Callable[[], Any], words: tuple[str, ...]) -> None:
    with refused(*words, kind=ExposureRefused):
        expose(model(), data())
    assert expose(torch.compile(Net())._orig_mod, data()).residual is not None


def test_a_cache_of_another_graph() -> None:
    torch.manual_seed(1)
    model, own = Net(pyg.SGConv(6, 8, cached=True)).eval(), data()
    model(own.x, own.edge_index.flip(0))
    kept = model.conv2._cached_x
    with refused("cached propagation", "cache", kind=ExposureRefused):
        expose(model, own)
    assert model.conv2._cached_x is kept


def test_weights_that_were_never_trained() -> None:
    with refused("`conv2.lin.weight`", "never trained", "train"):
        expose(Net(pyg.GCNConv(-1, 8)), data())


def test_node_types_that_hear_nothing() -> None:
    typed = HeteroData()
    typed["a"].x, typed["b"].x = torch.randn(3, 5), torch.randn(4, 5)
    with refused("Net", "'a'", kind=ExposureRefused):
        expose(Net(), typed, forward=lambda model, data: data["a"].x)


def test_too_many_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(pyg.APPNP(K=4, alpha=0.1), width=6)
    count = expose(model, data()).num_terms
    bytes_of, enough = count * build.BYTES_PER_TERM, int(count * build.BYTES_PER_TERM / build.SHARE)
    about = ("24 nodes", f"about {count} terms", "hops='last'")
    monkeypatch.setattr(build, "available_memory", lambda: bytes_of)
    with refused(*about, "GiB available", kind=ExposureRefused):
        expose(model, data())
    assert expose(model, data(), hops="last").residual is not None
    monkeypatch.setattr(build, "available_memory", lambda: enough + 2)
    monkeypatch.setattr(build, "NOTEWORTHY", count - 1)
    with pytest.warns(UserWarning, match=f"about {count} terms"):
        assert expose(model, data()).num_terms == count
    monkeypatch.setattr(build, "available_memory", lambda: None)
    monkeypatch.setattr(build, "LARGEST", count - 1)
    with refused(*about, f"more than {count - 1}", kind=ExposureRefused):
        expose(model, data())


@pytest.mark.parametrize("machine", [None, 5, 9])
@pytest.mark.parametrize("container", [None, 5, 9])
def test_the_least_memory_that_is_told_is_what_is_left(
    machine: int | None, container: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "/proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {machine or 'much'} kB\n",
        "/sys/fs/cgroup/memory.max": str(container * 1024 + 7) if container else "max",
        "/sys/fs/cgroup/memory.current": "7",
    }
    monkeypatch.setattr(Path, "read_text", lambda self, *_, **__: told[str(self)])
    known = [1024 * one for one in (machine, container) if one is not None]
    assert build.available_memory() == min(known, default=None)


def test_numbers_that_are_too_large_or_none_are_named() -> None:
    torch.manual_seed(1)
    big, model = data(), Net()
    big.x = big.x * 1e30
    exposure = expose(model, big)  # large features are no nonlinearity
    assert exposure.residual is not None and exposure.residual <= 1e-5
    with refused("finite", "overflows torch.float32", "model.double()"):
        expose(Net(end=lambda z: z * 1e38), big)
    broken = data()
    broken.x[3, 1] = torch.inf
    with refused("NaN", "data.x"):
        expose(model, broken)
    told = Net(end=nn.BatchNorm1d(4))
    told.end.running_mean[1] = torch.nan
    with refused("NaN", "`end.running_mean`"):
        expose(told, data())
    with torch.no_grad():
        model.conv1.lin.weight[2, 3] = torch.nan
    with refused("NaN", "`conv1.lin.weight`"):
        expose(model, data())


# Wrong readings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCNConv", "GATConv heads", "TAGConv", "MFConv", "GINEConv"])
def test_a_wrong_reading_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """β hides any error at λ = α; running the model with the messages replaced shows it."""
    torch.manual_seed(0)
    net, honest = CaseNet(CASES[name]).double(), exposing.affine_start
    assert expose(net, graph()).residual is not None

    def wrong(*args: Any) -> Any:
        found = honest(*args)
        return replace(found, weight=found.weight * 1.001)

    monkeypatch.setattr(exposing, "affine_start", wrong)
    with refused("differs", kind=ExposureRefused):
        expose(net, graph())


# Awkward models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AWKWARD)
def test_what_must_happen(name: str) -> None:
    case = AWKWARD[name]
    torch.manual_seed(0)
    model, given = case.model(), case.data()
    if isinstance(case.must, Exposed):
        exposure = expose(model, given)
        assert exposure.residual is not None and case.must.mentions in str(exposure)
        assert case.must.runs is None or model.runs <= case.must.runs
        return
    with pytest.raises(ExposureRefused) as refusal:
        expose(model, given)
    for words in case.must.words:
        assert re.search(words, str(refusal.value)), (words, str(refusal.value))
    assert ("tolerance=" in str(refusal.value)) == case.must.excused


def test_the_remedies_work() -> None:
    """What the refusals advise is done, and then the models are exposed."""
    torch.manual_seed(0)

    def cleared(model: Any, data: Data) -> Tensor:
        model.encoder._cached_x = None
        return model(data.x, data.adj)

    assert expose(awkward.Cached(), ring(), forward=cleared).residual is not None
    coarse, double = awkward.Net(awkward.Coarse()), ring(dtype=torch.float64)
    with pytest.raises(ExposureRefused) as refusal:
        expose(coarse, ring())
    offered = float(re.findall(r"tolerance=(\S+)", str(refusal.value))[0])
    assert expose(coarse, ring(), tolerance=offered).residual <= offered <= 1e-3
    assert expose(coarse.double(), double, tolerance=1e-10).residual is not None


@pytest.mark.parametrize("tolerance", [0.5, 2e-3, -1.0, float("nan"), "large"])
def test_tolerances_beyond_rounding(tolerance: Any) -> None:
    with refused("tolerance", "torch.float32", "1e-03"):
        expose(awkward.Net(), ring(), tolerance=tolerance)
    with refused("tolerance", "torch.float64", "1e-10"):
        expose(awkward.Net().double(), ring(dtype=torch.float64), tolerance=1e-5)


def claims_hold(exposure: Any, model: nn.Module, data: Data) -> bool:
    """Whether the real model without any one node's messages gives what the exposure says.

    By a twentieth of what that changes; a node's own logits are left out, for it keeps its messages
    to itself.
    """
    frozen = called(model, data)
    for node in range(data.num_nodes):
        said, real = silenced(exposure, model, data, node)
        others = torch.arange(len(real)) != node if len(real) == data.num_nodes else slice(None)
        gap, change = (said - real)[others].abs().max(), (real - frozen)[others].abs().max()
        if gap > change / 20:
            return False
    return True


@pytest.mark.parametrize("name", CLAIMED)
def test_what_is_exposed_holds_of_the_model(name: str) -> None:
    case = CLAIMED[name]
    torch.manual_seed(0)
    model, given = case.model(), case.data()
    try:
        exposure = expose(model, given)
    except ExposureRefused:
        return
    assert claims_hold(exposure, model, given)


@pytest.mark.parametrize("after", [None, nn.ReLU(), nn.GELU(), "filter"])
def test_the_judge_agrees_where_all_is_well(after: Any) -> None:
    torch.manual_seed(0)
    one, other = (awkward.Filter() if after == "filter" else awkward.Net(after) for _ in range(2))
    assert claims_hold(expose(one, ring()), one, ring())
    assert not claims_hold(expose(one, ring()), other, ring())


def test_a_kink_that_probes_miss_makes_a_head() -> None:
    """Certification meets it, for the graph's mean lies far from most of its nodes."""
    torch.manual_seed(0)
    model, given = awkward.SingleGraph(), awkward.loud()
    bias = -0.3 * model.enter(given.x).mean(0)
    model.bias.data = torch.stack([bias[0], bias.new_tensor(50.0)])
    exposure = expose(model, given)
    assert exposure.head is not None and claims_hold(exposure, model, given)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("read", [True, False])
def test_sparse_buffers(layout: str, read: bool) -> None:
    torch.manual_seed(0)
    model, given = awkward.SparseBuffer(layout, read), ring()
    exposure = expose(model, given)
    assert claims_hold(exposure, model, given)
    assert float(dense(exposure).sum()) == pytest.approx(12.0 if read else 48.0)


@pytest.mark.parametrize("shown", [lambda x: x, lambda x: x[:, :1], lambda x: x.view(-1)])
def test_a_model_that_writes_into_data(shown: Callable[[Tensor], Tensor]) -> None:
    def forward(model: Any, data: Data) -> Tensor:
        shown(data.x).mul_(2)
        return model(data.x, data.edge_index)

    with refused("data.x", "`mul_`", "new tensor", kind=ExposureRefused):
        expose(Net(), data(), forward=forward)
    with pytest.raises(InputError):
        expose(Net(), None)
