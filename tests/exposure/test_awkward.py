"""Awkward models: exposed or refused as the gallery says, and what is known to go wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from awkward import AWKWARD, CLAIMED, Exposed, Filter, Net, called, ring, silenced
from torch import nn
from torch_geometric.data import Data

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure import expose


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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.xfail(reason=case.reason, strict=True)] * bool(case.reason)
        )
        for name, case in CLAIMED.items()
    ],
)
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
