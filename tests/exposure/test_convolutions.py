"""Every convolution's exposure against a dense computation of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.record.replay import random_admissible
from tests.helpers.models.convolutions import CASES, NODES, Net, graph

LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}


def dense_groups(exposure: Exposure, coefficients: Tensor) -> list[Tensor]:
    """One [N, N] matrix (recipient × source) per group."""
    places = torch.arange(NODES * exposure.num_groups)
    places = torch.repeat_interleave(places, exposure.segments.diff())
    recipients, groups = places // exposure.num_groups, places % exposure.num_groups
    sources = exposure.sources[exposure.rows].long()
    out = coefficients.new_zeros(exposure.num_groups, NODES, NODES)
    out.index_put_((groups, recipients, sources), coefficients, accumulate=True)
    return list(out)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_exposure_is_the_model(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    torch.manual_seed(5)
    net, data = Net(case).to(dtype).eval(), graph(dtype)
    for parameter in net.parameters():  # zero-initialised biases would hide their loss
        parameter.add_(torch.randn_like(parameter) * 0.1)
    exposure = expose(net, data, hops=case.hops)  # type: ignore[arg-type]
    hidden, limit = net.hidden(data), LIMIT[dtype]

    expected = case.operators(net.conv2, hidden, data)
    found = dense_groups(exposure, exposure.coefficients[0])
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit)

    torch.testing.assert_close(exposure.logits()[0], net(data).double(), rtol=limit, atol=limit)
    assert exposure.residual is not None and exposure.residual <= limit

    reweighted = random_admissible(exposure, seed=9)
    operators = [op.to(dtype) for op in dense_groups(exposure, reweighted)]
    by_hand = net.lin(case.by_hand(net.conv2, hidden, data, operators))
    torch.testing.assert_close(
        exposure.logits(reweighted.unsqueeze(0))[0],
        by_hand.double(),
        rtol=limit * 10,
        atol=limit * 10,
    )


ROOTED = {"SAGEConv", "GraphConv", "ClusterGCNConv", "LEConv", "GINConv", "GINEConv", "RGCNConv"}
ROOTED |= {"FastRGCNConv", "DirGNNConv", "HeteroConv", "ARMAConv", "TransformerConv"}
ROOTED |= {"ResGatedGraphConv", "MFConv"}


@pytest.mark.parametrize("name", CASES)
def test_root_tells_that_the_own_input_enters_beside_the_aggregate(name: str) -> None:
    torch.manual_seed(5)
    exposure = expose(Net(CASES[name]).double(), graph())
    assert exposure.root == (name.split()[0] in ROOTED or "residual" in name)
