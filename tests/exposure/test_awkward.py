"""Awkward models: exposed or refused as the gallery says, and what is known to go wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import expose
from tests.helpers.models.awkward import (
    AWKWARD,
    CLAIMED,
    Cached,
    Coarse,
    Exposed,
    Filter,
    Net,
    SingleGraph,
    SparseBuffer,
    called,
    loud,
    ring,
    silenced,
)


@pytest.mark.parametrize("name", AWKWARD)
def test_what_must_happen(name: str) -> None:
    case = AWKWARD[name]
    torch.manual_seed(0)
    model, data = case.model(), case.data()
    if isinstance(case.must, Exposed):
        exposure = expose(model, data)
        assert exposure.residual is not None and case.must.mentions in str(exposure)
        assert case.must.runs is None or model.runs <= case.must.runs
        return
    with pytest.raises(ExposureRefused) as refusal:
        expose(model, data)
    for words in case.must.words:
        assert re.search(words, str(refusal.value)), (words, str(refusal.value))
    assert ("tolerance=" in str(refusal.value)) == case.must.excused


def test_the_remedies_work() -> None:
    """What the refusals advise is done, and then the models are exposed."""
    torch.manual_seed(0)

    def cleared(model: Any, data: Data) -> Tensor:
        model.encoder._cached_x = None
        return model(data.x, data.adj)

    assert expose(Cached(), ring(), forward=cleared).residual is not None
    coarse, double = Net(Coarse()), ring(dtype=torch.float64)
    with pytest.raises(ExposureRefused) as refusal:
        expose(coarse, ring())
    offered = float(re.findall(r"tolerance=(\S+)", str(refusal.value))[0])
    assert expose(coarse, ring(), tolerance=offered).residual <= offered <= 1e-3
    assert expose(coarse.double(), double, tolerance=1e-10).residual is not None


@pytest.mark.parametrize("tolerance", [0.5, 2e-3, -1.0, float("nan"), "large"])
def test_tolerances_beyond_rounding(tolerance: Any) -> None:
    with pytest.raises(InputError, match=r"tolerance is .*float32 explains at most 1e-03"):
        expose(Net(), ring(), tolerance=tolerance)
    with pytest.raises(InputError, match=r"tolerance is .*float64 explains at most 1e-10"):
        expose(Net().double(), ring(dtype=torch.float64), tolerance=1e-5)


def test_a_kink_that_probes_miss_makes_a_tail() -> None:
    """Certification meets it, for the graph's mean lies far from most of its nodes."""
    torch.manual_seed(0)
    model, data = SingleGraph(), loud()
    bias = -0.3 * model.enter(data.x).mean(0)
    model.bias.data = torch.stack([bias[0], bias.new_tensor(50.0)])
    exposure = expose(model, data)
    assert exposure.head is not None and claims_hold(exposure, model, data)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("read", [True, False])
def test_sparse_buffers(layout: str, read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their digest is tested elsewhere; nothing else minds them."""
    place = "gnn_repair.exposure.from_model.fingerprint_of_model"
    monkeypatch.setattr(place, lambda *_: ("0" * 16,))
    torch.manual_seed(0)
    model = SparseBuffer(layout, read)
    assert claims_hold(expose(model, ring()), model, ring())


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
    model, data = case.model(), case.data()
    try:
        exposure = expose(model, data)
    except ExposureRefused:
        return
    assert claims_hold(exposure, model, data) or (case.named and case.named in str(exposure))


@pytest.mark.parametrize("model", [Net, lambda: Net(nn.ReLU()), lambda: Net(nn.GELU()), Filter])
def test_the_judge_agrees_where_all_is_well(model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = model()
    assert claims_hold(expose(net, ring()), net, ring())
    assert not claims_hold(expose(net, ring()), model(), ring())


def test_an_assertion_without_words_is_told_by_its_line() -> None:
    def forward(model: Any, data: Data) -> Tensor:
        raise AssertionError

    with pytest.raises(InputError, match="raised AssertionError: raise AssertionError;"):
        expose(Net(), ring(), forward=forward)
