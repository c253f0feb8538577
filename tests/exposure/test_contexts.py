"""What repairs see of a message and its recipient, and the draws that certify: values pinned."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.record.replay import random_admissible
from tests.helpers.models.convolutions import CASES, NODES, Net, graph
from tests.helpers.models.planted import GROUPS, matrices, pieces
from tests.helpers.models.planted import NODES as PLANTED


def test_draws_keep_every_mass_and_differ() -> None:
    exposure = Exposure(**pieces()).member(1)
    first, second = (random_admissible(exposure, seed=seed) for seed in (0, 1))
    ends, expected = exposure.segments.tolist(), matrices()[1].sum(2).t()
    for draw in (first, second):
        assert bool((draw >= 0).all())
        for place in range(PLANTED * GROUPS):
            total = float(draw[ends[place] : ends[place + 1]].sum())
            assert abs(total - float(expected.reshape(-1)[place])) < 1e-12
    assert float((first - second).abs().max()) > 0.1
    assert float((first - exposure.coefficients[0]).abs().max()) > 0.1


def test_a_recipient_of_entry_messages_is_its_mean_incoming_message() -> None:
    """GINEConv sends relu(x_j + e): the state is the mean of what arrives, 0 where nothing does."""
    torch.manual_seed(0)
    data, net = graph(), Net(CASES["GINEConv"]).double().eval()
    exposure, hidden = expose(net, data), net.hidden(data)
    source, recipient = data.edge_index
    sent = (hidden[source] + net.conv2.lin(data.edge_attr)).relu()
    torch.testing.assert_close(exposure.messages[0], sent)
    for node in range(NODES):
        arriving = sent[recipient == node]
        mean = arriving.mean(0) if len(arriving) else torch.zeros_like(sent[0])
        torch.testing.assert_close(exposure.state[0, node], mean)


def test_signed_entry_messages_are_averaged_by_size() -> None:
    """LEConv with signed weights: what arrives at a node, averaged by size."""
    torch.manual_seed(0)
    data = graph()

    class Signed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.LEConv(5, 4)

        def forward(self, x: Tensor, edge_index: Tensor, signed_weight: Tensor) -> Tensor:
            return self.conv(x, edge_index, signed_weight)

    model = Signed().double()
    exposure = expose(model, data)
    source, recipient = data.edge_index
    sent = model.conv.lin1(data.x)[source] - model.conv.lin2(data.x)[recipient]
    size = data.signed_weight.abs().unsqueeze(1)
    total = torch.zeros_like(exposure.state[0]).index_add_(0, recipient, size * sent)
    mass = torch.zeros(len(total), 1).double().index_add_(0, recipient, size)
    torch.testing.assert_close(exposure.state[0], total / mass.clamp(min=1e-300))
    torch.testing.assert_close(exposure.messages[0], sent)


def test_senders_and_recipients_with_inputs_of_their_own() -> None:
    """conv((a, b)): messages are a's rows, the recipient's state is b's."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv(5, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv((x.sin(), x.cos()), edge_index)

    torch.manual_seed(0)
    data = Data(x=graph().x, edge_index=graph().edge_index)
    exposure = expose(Pair().double(), data)
    torch.testing.assert_close(exposure.messages[0], data.x.sin())
    torch.testing.assert_close(exposure.state[0], data.x.cos())
