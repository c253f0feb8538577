"""The same aggregation in many spellings: heads, batches, keywords, whole messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import scatter, softmax

from gnn_repair.exposure import Exposure
from tests.helpers.models.gallery_judge import drawn
from tests.helpers.models.terms import dense

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

    def times_ratio(self, weight: Tensor) -> Tensor:
        """Weights [H, N, N], untouched while nothing is reweighted."""
        return weight if bool((self.ratio == 1).all()) else weight * self.ratio


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
        if self.how == "divided by the sum":
            weight = scores.exp() * (adj > 0)
            mixed = torch.bmm(self.times_ratio(weight), value) / weight.sum(-1, keepdim=True)
            return self.leave(mixed.transpose(0, 1).reshape(NODES, -1))
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
        if self.how.startswith("divided"):
            return self._divided(h, (pair * self.score).sum(-1).exp(), source, target)
        alpha = softmax(F.leaky_relu((pair * self.score).sum(-1)), target, num_nodes=NODES)
        weight = (alpha * self.ratio[:, target, source].t()).unsqueeze(-1)
        if self.how == "whole messages":
            sent = (h[source] + 0.3 * h[target]).tanh().flatten(1)
            sent = sent * self.ratio[0, target, source].unsqueeze(1)
            return self.leave(torch.zeros(NODES, 6).double().index_add(0, target, sent))
        if self.how == "heads on the last axis":
            sent = h.mT[source] * weight.mT
            out = torch.zeros(NODES, WIDTH, HEADS).double().index_add(0, target, sent).mT
        elif self.how == "index_add_ by head":
            out = torch.zeros_like(h).index_add_(0, target, weight * h[source])
        else:
            out = scatter(weight * h[source, :, :], target, 0, NODES, reduce="sum")
        return self.leave(out.flatten(1))

    def _divided(self, h: Tensor, weight: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Sums divided by those of their own weights, by head, or by a product with ones."""
        ratio = self.ratio[:, target, source].t()
        if self.how == "divided by head":
            sent = h[source] * weight.unsqueeze(-1)
            out = torch.zeros_like(h).index_add(0, target, sent * ratio.unsqueeze(-1))
            total = torch.zeros(NODES, HEADS).double().index_add(0, target, weight)
            return self.leave((out / (total + 1e-9).unsqueeze(-1)).flatten(1))
        places, size = torch.stack([target, source]), (NODES, NODES)
        matrix = torch.sparse_coo_tensor(places, weight[:, 0], size)
        moved = matrix
        if not bool((ratio == 1).all()):
            moved = torch.sparse_coo_tensor(places, weight[:, 0] * ratio[:, 0], size)
        ones = torch.ones(NODES, 1, dtype=torch.float64)
        return self.leave(moved @ h.flatten(1) / (matrix @ ones + 1e-9))

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
    "divided by the sum of a matrix": (Dense, "divided by the sum", HEADS),
    "divided by a product with ones": (Sparse, "divided by ones", 1),
    **{
        how: (Sparse, how, HEADS)
        for how in (
            "index_add_ by head",
            "scatter by head",
            "divided by head",
            "heads on the last axis",
        )
    },
    **{
        f"{how} by keywords": (Sparse, f"{how} by keywords", 1)
        for how in ("scatter_add_", "index_add", "index_put_", "scatter_reduce")
    },
    "whole messages": (Sparse, "whole messages", 1),
}


def reweighted(exposure: Exposure) -> tuple[Tensor, Tensor]:
    """Other admissible λ [T], and λ / α by group, recipient and source."""
    lam, alpha = drawn(exposure, 1), dense(exposure)
    ratio = torch.ones(HEADS, NODES, NODES, dtype=torch.float64)
    ratio[: len(alpha)] = torch.where(alpha > 0, dense(exposure, lam) / alpha, 1.0)
    return lam, ratio


class OwnMean(pyg.MessagePassing):
    """A mean that the convolution takes itself, as course notebooks write it."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.sent = nn.Linear(5, CLASSES), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.own(x) + self.sent(self.propagate(edge_index, x=(x, x)))

    def message(self, x_j: Tensor) -> Tensor:
        return x_j

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
        return scatter(inputs, index, dim=self.node_dim, dim_size=dim_size, reduce="mean")


def pna(aggregators: Sequence[str]) -> pyg.PNAConv:
    degrees = torch.bincount(torch.bincount(graph().edge_index[1], minlength=NODES))
    scalers = ["identity", "amplification", "attenuation"]
    return pyg.PNAConv(5, CLASSES, list(aggregators), scalers, deg=degrees)


LINEAR: dict[str, Callable[[], nn.Module]] = {
    "PNA, mean and sum": lambda: pna(["mean", "sum"]),
    "SAGE, mean and sum": lambda: pyg.SAGEConv(5, CLASSES, aggr=["mean", "sum"]),
    "an aggregate of its own": OwnMean,
    "EGConv": lambda: pyg.EGConv(5, CLASSES, num_heads=2, num_bases=2),
}
