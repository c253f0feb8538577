"""The same aggregation in many spellings: heads, batches, keywords, whole messages.

Every model multiplies its last messages by ``ratio``, one number a recipient, source and head, so
that what an exposure says of a reweighting is compared with the model run on it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnn_repair.exposure import expose
from tests.helpers.models.spelled_models import (
    CASES,
    CLASSES,
    FEATURES,
    HEADS,
    NODES,
    Dense,
    graph,
    reweighted,
)


@pytest.mark.parametrize("name", CASES)
def test_every_spelling_is_reweighted_message_by_message(name: str) -> None:
    kind, how, groups = CASES[name]
    torch.manual_seed(2)
    model: Any = kind(how).double()
    data = graph()
    exposure = expose(model, data)
    assert exposure.head is None and len(exposure.groups) == groups
    lam, model.ratio = reweighted(exposure)
    with torch.no_grad():
        truth = model(data.x, data.adj if kind is Dense else data.edge_index)
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-9, atol=1e-9)
    assert float((truth - exposure.frozen_logits[0]).abs().max()) > 1e-3


def test_attention_with_a_graph_as_mask_has_its_weights() -> None:
    torch.manual_seed(2)
    model, data = Dense("scaled_dot_product_attention").double(), graph()
    exposure = expose(model, data)
    by_hand = Dense("bmm").double()
    by_hand.load_state_dict(model.state_dict())
    other = expose(by_hand, data)
    assert exposure.head is None and other.head is None
    torch.testing.assert_close(exposure.frozen_logits, other.frozen_logits)
    torch.testing.assert_close(exposure.coefficients, other.coefficients)
    assert len(exposure.groups) == HEADS


class TwoOutputs(nn.Module):
    """Logits beside their own (log-)softmax, in any order."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.lin = how, nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> tuple[Tensor, ...]:
        z = adj @ self.lin(x)
        probability = z.softmax(1) if "softmax" in self.how.split() else z.log_softmax(1)
        pair = (z, probability)
        return pair[::-1] if "first" in self.how else pair


@pytest.mark.parametrize("how", ["log", "softmax", "first log", "first softmax"])
def test_logits_beside_their_own_softmax_are_the_logits(how: str) -> None:
    torch.manual_seed(3)
    model, data = TwoOutputs(how).double(), graph()
    exposure = expose(model, data)
    torch.testing.assert_close(exposure.frozen_logits[0], data.adj @ model.lin(data.x).detach())
    assert f"logits are output {int('first' in how)} of its 2" in exposure.called


class Rows(nn.Module):
    """A trained row for every node, as LINKX has them, mixed by the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.lin = nn.Parameter(torch.randn(NODES, 6)), nn.Linear(6, CLASSES)

    def forward(self, adj: Tensor) -> Tensor:
        return self.lin(adj @ self.rows)


def test_trained_rows_of_nodes_are_copied() -> None:
    torch.manual_seed(4)
    model, data = Rows().double(), graph()
    exposure = expose(model, data, forward=lambda model, data: model(data.adj))
    before = exposure.messages.clone()
    assert not exposure.messages.requires_grad and not exposure.state.requires_grad
    with torch.no_grad():
        model.rows.add_(1.0)
    torch.testing.assert_close(exposure.messages, before)
