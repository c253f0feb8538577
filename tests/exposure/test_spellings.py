"""The same aggregation in many spellings: heads, batches, keywords, whole messages.

Every model multiplies its last messages by ``ratio``, one number a recipient, source and head, so
that what an exposure says of a reweighting is compared with the model run on it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.data import Data
from torch_geometric.utils import scatter, softmax

from gnn_repair.exposure import Exposure, expose

NODES, FEATURES, HEADS, WIDTH, CLASSES = 14, 5, 2, 3, 4


def graph() -> Data:
    """Directed, one node isolated, one self-loop, no parallel edges."""
    generator = torch.Generator().manual_seed(8)
    chance = torch.rand(NODES - 1, NODES - 1, generator=generator)
    index = (chance < 0.25).nonzero().t().contiguous()
    x = torch.randn(NODES, FEATURES, generator=generator, dtype=torch.float64)
    adj = torch.zeros(NODES, NODES, dtype=torch.float64)
    adj[index[1], index[0]] = 1.0
    return Data(x=x, edge_index=index, adj=adj + torch.eye(NODES, dtype=torch.float64))


class Spelled(nn.Module):
    """One layer of each kind; ``ratio`` [H, N, N] multiplies what j sends to i."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.enter = nn.Linear(FEATURES, HEADS * WIDTH)
        self.score = nn.Parameter(torch.randn(HEADS, 2 * WIDTH))
        self.leave = nn.Linear(HEADS * WIDTH, CLASSES)
        self.ratio = torch.ones(HEADS, NODES, NODES, dtype=torch.float64)


class Dense(Spelled):
    """Attention of several heads by a dense mask."""

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = self.enter(x).view(NODES, HEADS, WIDTH)
        query = (h * self.score[:, :WIDTH]).transpose(0, 1)
        key = (h * self.score[:, WIDTH:]).transpose(0, 1)
        value = h.transpose(0, 1)
        if self.how == "scaled_dot_product_attention":
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=adj > 0)
            return self.leave(mixed.transpose(0, 1).reshape(NODES, -1))
        scores = (query @ key.transpose(1, 2)) / WIDTH**0.5
        alpha = scores.masked_fill(adj == 0, -1e9).softmax(-1) * self.ratio
        if self.how == "bmm":
            mixed = torch.bmm(alpha, value).transpose(0, 1)
        elif self.how == "matmul":
            mixed = (alpha[None] @ value[None])[0].transpose(0, 1)
        elif self.how == "einsum":
            mixed = torch.einsum("hij,jhd->ihd", alpha, h)
        elif self.how == "einsum, table first":
            mixed = torch.einsum("jhd, hij -> ihd", h, alpha)
        else:  # one matrix on several tables
            mixed = torch.matmul(alpha[:1], value).transpose(0, 1)
        return self.leave(mixed.reshape(NODES, -1))


class Sparse(Spelled):
    """Attention, means and sums of several heads by gathering and adding."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h, (source, target) = self.enter(x).view(NODES, HEADS, WIDTH), edge_index
        if "keywords" in self.how:
            h = h.flatten(1)
            sent = torch.index_select(input=h, dim=0, index=source)
            sent = sent * self.ratio[0, target, source].unsqueeze(1)
            out = self._keywords(torch.zeros_like(h), target, sent)
            return self.leave(out)
        pair = torch.cat([h[source], h[target]], dim=-1)
        alpha = softmax(F.leaky_relu((pair * self.score).sum(-1)), target, num_nodes=NODES)
        weight = (alpha * self.ratio[:, target, source].t()).unsqueeze(-1)
        if self.how == "whole messages":
            sent = (h[source] + 0.3 * h[target]).tanh().flatten(1)
            sent = sent * self.ratio[0, target, source].unsqueeze(1)
            return self.leave(torch.zeros(NODES, 6).double().index_add(0, target, sent))
        if self.how == "index_add_ by head":
            out = torch.zeros_like(h).index_add_(0, target, weight * h[source])
        else:
            out = scatter(weight * h[source, :, :], target, 0, NODES, reduce="sum")
        return self.leave(out.flatten(1))

    def _keywords(self, base: Tensor, target: Tensor, sent: Tensor) -> Tensor:
        index = target.unsqueeze(-1).repeat(1, sent.shape[1])
        if self.how == "scatter_add_ by keywords":
            base.scatter_add_(dim=0, index=index, src=sent)
            return base
        if self.how == "index_add by keywords":
            return base.index_add(dim=0, index=target, source=sent)
        if self.how == "index_put_ by keywords":
            return base.index_put_((target,), sent, accumulate=True)
        return base.scatter_reduce(0, index, src=sent, reduce="mean", include_self=False)


CASES: dict[str, tuple[type[Spelled], str, int]] = {
    **{how: (Dense, how, HEADS) for how in ("bmm", "matmul", "einsum", "einsum, table first")},
    "one matrix, several tables": (Dense, "one", 1),
    **{how: (Sparse, how, HEADS) for how in ("index_add_ by head", "scatter by head")},
    **{
        f"{how} by keywords": (Sparse, f"{how} by keywords", 1)
        for how in ("scatter_add_", "index_add", "index_put_", "scatter_reduce")
    },
    "whole messages": (Sparse, "whole messages", 1),
}


def reweighted(exposure: Exposure) -> tuple[Tensor, Tensor]:
    """Random admissible λ [T], and λ / α by group, recipient and source."""
    draw = torch.rand(1, exposure.num_terms, generator=torch.Generator().manual_seed(1)).double()
    lengths = exposure.segments.diff()
    scale = (exposure.mass / exposure.masses(draw).clamp(min=1e-300)).view(-1)
    lam = draw[0] * torch.repeat_interleave(scale, lengths)
    place = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    groups = len(exposure.groups)
    ratio = torch.ones(HEADS, NODES, NODES, dtype=torch.float64)
    source = exposure.sources[exposure.rows.long()].long()
    ratio[place % groups, place // groups, source] = lam / exposure.coefficients[0].double()
    return lam, ratio


@pytest.mark.parametrize("name", CASES)
def test_every_spelling_is_reweighted_message_by_message(name: str) -> None:
    kind, how, groups = CASES[name]
    torch.manual_seed(2)
    model: Any = kind(how).double()
    data = graph()
    exposure = expose(model, data)
    assert isinstance(exposure, Exposure) and len(exposure.groups) == groups
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
    assert isinstance(exposure, Exposure) and isinstance(other, Exposure)
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
