"""The same aggregation in many spellings: heads, batches, keywords, whole messages.

Every model multiplies its last messages by ``ratio``, one number a recipient, source and head, so
that what an exposure says of a reweighting is compared with the model run on it.
"""

from __future__ import annotations

from collections.abc import Callable
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
    assert exposure.head is None and len(exposure.groups) == groups and not exposure.scope
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


class Rest(nn.Module):
    """A product, and what follows it."""

    def __init__(self, rest: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.lin = nn.Linear(FEATURES, CLASSES), nn.Linear(CLASSES, CLASSES)
        self.rest, self.matrix = rest, torch.eye(NODES, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self, self.enter(x))


FIRST = torch.arange(NODES) < NODES // 2


def _rows_set(self: Any, h: Tensor) -> Tensor:
    z = self.matrix @ h
    z[FIRST] = 0.5
    z[-3:] = h[-3:]
    return self.lin(z)


def _in_inference_mode(self: Any, h: Tensor) -> Tensor:
    with torch.inference_mode():
        return self.lin(torch.matmul(self.matrix, h))


def _two_largest(self: Any, h: Tensor) -> Tensor:
    z = self.matrix @ h
    top = z.topk(2, 1)
    return torch.zeros_like(z).scatter(1, top.indices, top.values)


def _from_the_left(self: Any, h: Tensor) -> Tensor:
    matrix = torch.zeros(NODES, NODES, dtype=torch.float64)
    source, target = self.matrix.t().nonzero().t()
    matrix[source, target] = torch.tensor(self.matrix[target, source].tolist(), dtype=torch.float64)
    return (self.lin(h).t() @ matrix).t()


RESTS: dict[str, tuple[Callable[[Any, Tensor], Tensor], bool]] = {
    "rows set": (_rows_set, False),
    "where by node": (lambda s, h: torch.where(FIRST[:, None], s.matrix @ h, s.lin(h)), False),
    "inference mode": (_in_inference_mode, False),
    "vmap": (lambda s, h: torch.vmap(lambda row: s.lin(row @ h))(s.matrix), False),
    "from the left, made inside": (_from_the_left, False),
    "two largest": (_two_largest, True),
    "distances": (lambda s, h: -torch.cdist(s.matrix @ h, s.lin.weight), True),
}
"""What follows the product, and whether that is nonlinear."""


@pytest.mark.parametrize("name", RESTS)
def test_what_follows_a_product_is_followed(name: str) -> None:
    rest, nonlinear = RESTS[name]
    torch.manual_seed(5)
    model, data = Rest(rest).double(), graph()
    model.matrix = data.adj * torch.rand(NODES, NODES, dtype=torch.float64)
    exposure = expose(model, {"x": data.x})
    assert (exposure.head is not None) == nonlinear and not exposure.held
    lam, ratio = reweighted(exposure)
    model.matrix = model.matrix * ratio[0]
    with torch.no_grad():
        truth = model(data.x)
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-9, atol=1e-9)


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
