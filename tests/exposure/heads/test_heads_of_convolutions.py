"""Every convolution with a rule, followed by tanh and a linear layer, against dense algebra."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.record.replay import random_admissible
from tests.helpers.models import convolutions


class Net(convolutions.Net):  # type: ignore[misc,name-defined]
    def forward(self, data):  # type: ignore[no-untyped-def]
        return self.lin(self.call(self.conv2, self.hidden(data), data).tanh())


def dense(exposure: Exposure, coefficients: Tensor) -> list[Tensor]:
    groups, nodes = exposure.num_groups, exposure.num_nodes
    places = torch.repeat_interleave(torch.arange(nodes * groups), exposure.segments.diff())
    sources = exposure.sources[exposure.rows].long()
    out = torch.zeros(groups, nodes, nodes, dtype=torch.float64)
    out.index_put_((places % groups, places // groups, sources), coefficients, accumulate=True)
    return list(out)


@pytest.mark.parametrize("name", convolutions.CASES)
@torch.no_grad()
def test_a_tail_after_every_convolution(name: str) -> None:
    case = convolutions.CASES[name]
    torch.manual_seed(5)
    net, data = Net(case).double().eval(), convolutions.graph()
    for parameter in net.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    exposure = expose(net, data, hops=case.hops)
    assert exposure.head is not None
    for seed in (8, 9):
        coefficients = random_admissible(exposure.aggregate, seed=seed)
        mixed = case.by_hand(net.conv2, net.hidden(data), data, dense(exposure, coefficients))
        expected = net.lin(mixed.tanh())
        found = exposure.logits(coefficients)[0]
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
