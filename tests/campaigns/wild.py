"""Models as people publish them, on hostile little graphs, judged by running them reweighted.

Every model adds its last messages up through ``edges`` or ``matrix``, which multiply them by what
the judge gives. The judge draws other weights for the terms that an exposure lists, gives the model
λ / α of the messages that the terms *name*, and compares logits. It then samples weights to
contradict the answers, and looks for a way past the mixture that is not held by name. It shares no
code with the package.

python -c "from tests.campaigns.wild import judged; print(judged('gcnii', 0))"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.data import Data
from torch_geometric.utils import scatter

import gnn_repair as gr
from gnn_repair.errors import GnnRepairError
from tests.campaigns import Search

FEATURES, WIDTH, CLASSES = 6, 8, 4
PLACES = 3
"""Where a model adds messages up, at most."""
CLOSE = 1e-9
"""Of the largest logit, in float64."""
SAMPLES, ASKED = 40, 5
"""Weights that are drawn to contradict answers, and nodes that are asked about."""


class Net(nn.Module):
    """A forward with whatever layers it asks for, and a place where its messages are weighed."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.parts, self.tensors = name, nn.ModuleDict(), nn.ParameterDict()
        self.factors: Mapping[int, Tensor] | None = None
        self.places: set[int] = set()
        self.fixed: dict[str, Tensor] = {}

    def forward(self, x: Tensor, edge_index: Tensor, adj: Tensor) -> Tensor:
        return getattr(self, self.name)(x, edge_index, adj)

    def part(self, name: str, make: Callable[[], nn.Module]) -> nn.Module:
        if name not in self.parts:
            self.parts[name] = make().double().eval()
        return self.parts[name]

    def lin(self, name: str, x: Tensor, out: int = WIDTH) -> Tensor:
        return self.part(name, lambda: nn.Linear(x.shape[-1], out))(x)

    def tensor(self, name: str, *shape: int) -> Tensor:
        if name not in self.tensors:
            self.tensors[name] = nn.Parameter(torch.randn(*shape).double() / shape[0] ** 0.5)
        return self.tensors[name]

    def edges(self, message: Tensor, edge_index: Tensor, *places: int) -> Tensor:
        """Messages [E, …] of edges (u → v); of several places those of heads [E, H, …]."""
        places = places or (0,)
        self.places.update(places)
        if self.factors is None:
            return message
        source, target = edge_index
        found = [self.factors[place][target, source] for place in places]
        factor = found[0] if len(places) == 1 else torch.stack(found, 1)
        return message * factor.view(*factor.shape, *[1] * (message.dim() - factor.dim()))

    def matrix(self, matrix: Tensor, place: int = 0) -> Tensor:
        """A matrix [v, u] of weights."""
        self.places.add(place)
        if self.factors is None:
            return matrix
        dense = matrix if matrix.layout == torch.strided else matrix.to_dense()
        return dense * self.factors[place]

    def held(self, name: str, value: Tensor) -> Tensor:
        """A number that stays as it is while messages are reweighted."""
        return self.fixed.setdefault(name, value) if self.factors is None else self.fixed[name]

    @property
    def judged(self) -> bool:
        """Whether a filter shall multiply its powers out, so that these can be weighed."""
        return self.factors is not None


def add_up(message: Tensor, e: Tensor, x: Tensor) -> Tensor:
    """Σ of the messages at every target."""
    return message.new_zeros(len(x), *message.shape[1:]).index_add(0, e[1], message)


def degree(e: Tensor, x: Tensor) -> Tensor:
    return add_up(x.new_ones(e.shape[1]), e, x)


def softmax_of(score: Tensor, e: Tensor, x: Tensor) -> Tensor:
    """Over the edges of every target, as GATs write it by hand."""
    shifted = (score - score.max()).exp()
    return shifted / (add_up(shifted, e, x)[e[1]] + 1e-16)


def by_kind(e: Tensor) -> list[Tensor]:
    """Two relations by the sender's number."""
    return [e[:, e[0] % 2 == kind] for kind in (0, 1)]


def counted(e: Tensor, x: Tensor) -> Tensor:
    """How many edges lead from u to v, [v, u]."""
    ones = x.new_ones(e.shape[1])
    return x.new_zeros(len(x), len(x)).index_put((e[1], e[0]), ones, accumulate=True)


def kinds_of(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long()


class Mixtures(Net):
    """One method per model."""

    # Convolutions by hand

    def gcn_index_add(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        norm = degree(e, x).pow(-0.5)
        norm = norm.masked_fill(norm.isinf(), 0.0)
        weight = (norm[e[0]] * norm[e[1]]).unsqueeze(1)
        h = add_up(weight * self.lin("a", x)[e[0]], e, x).relu()
        return add_up(self.edges(weight * self.lin("b", h, CLASSES)[e[0]], e), e, x).log_softmax(1)

    def gcn_coo(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        values = self.edges(x.new_ones(e.shape[1]), e)
        return torch.sparse_coo_tensor(e.flip(0), values, a.shape) @ self.lin("a", x, CLASSES)

    def gcn_csr(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        return self.matrix(a.to_sparse_csr()) @ self.lin("a", x, CLASSES)

    def gcn_residual_mlp(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("in", x)
        h = h + (a @ self.lin("a", h)).relu()
        h = h + (self.matrix(a) @ self.lin("b", h)).relu()
        return self.lin("out", h, CLASSES)

    def gat_heads_by_hand(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("a", x).view(len(x), 2, 4)
        left, right = ((h * self.tensor(side, 2, 4)).sum(2) for side in ("left", "right"))
        alpha = softmax_of(F.leaky_relu(left[e[0]] + right[e[1]], 0.2), e, x)
        mixed = add_up(self.edges(alpha.unsqueeze(2) * h[e[0]], e, 0, 1), e, x)
        return self.lin("out", mixed.flatten(1), CLASSES)

    def gat_dense_mask(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("a", x)
        score = F.leaky_relu(
            h @ self.tensor("left", WIDTH, 1) + (h @ self.tensor("right", WIDTH, 1)).t()
        )
        alpha = torch.where(a > 0, score, -9e15).softmax(1)
        return F.elu(self.matrix(alpha) @ h) @ self.tensor("out", WIDTH, CLASSES)

    def spgat_sums_divided(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("a", x)
        weight = torch.exp(-F.leaky_relu(self.lin("s", h[e[1]], 1) + self.lin("t", h[e[0]], 1)))
        mixed = add_up(self.edges(weight * h[e[0]], e), e, x) / (add_up(weight, e, x) + 1e-9)
        return self.lin("out", F.elu(mixed), CLASSES)

    def graphsage_normalised(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        mean = add_up(self.edges(x[e[0]], e), e, x) / degree(e, x).clamp(min=1).unsqueeze(1)
        h = self.lin("a", torch.cat([x, mean], 1)).relu()
        return self.lin("out", F.normalize(h, dim=1), CLASSES)

    def gin_batchnorm(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = (1 + self.tensor("eps", 1)) * x + add_up(self.edges(x[e[0]], e), e, x)
        h = self.part("bn", lambda: nn.BatchNorm1d(WIDTH))(self.lin("a", h)).relu()
        return self.lin("out", h, CLASSES)

    def edgeconv_mean(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        message = self.lin("a", torch.cat([x[e[1]], x[e[0]] - x[e[1]]], 1)).relu()
        return self.lin("out", scatter(self.edges(message, e), e[1], 0, len(x), "mean"), CLASSES)

    def gatedgcn(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        gate = torch.sigmoid(self.lin("d", x)[e[1]] + self.lin("e", x)[e[0]])
        above = add_up(self.edges(gate * self.lin("b", x)[e[0]], e), e, x)
        below = add_up(self.edges(gate, e), e, x)
        return self.lin("out", (self.lin("a", x) + above / (below + 1e-6)).relu(), CLASSES)

    def fagcn_signed(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("in", x).relu()
        score = torch.tanh(self.lin("gate", torch.cat([h[e[1]], h[e[0]]], 1), 1))
        return self.lin("out", 0.3 * h + add_up(self.edges(score * h[e[0]], e), e, x), CLASSES)

    def relations_by_bases(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        kind = (e[0] + e[1]) % 3
        weight = torch.einsum(
            "rb,bio->rio", self.tensor("mix", 3, 2), self.tensor("w", 2, FEATURES, CLASSES)
        )
        out = self.lin("root", x, CLASSES)
        for r in range(3):
            part = e[:, kind == r]
            count = degree(part, x).clamp(min=1).unsqueeze(1)
            out = out + add_up(self.edges(x[part[0]], part, r), part, x) / count @ weight[r]
        return out

    def relations_one_above_the_other(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        """As torch-rgcn has them."""
        parts, h, n = by_kind(e), self.lin("a", x), len(x)
        places = torch.cat([torch.stack([r * n + p[1], p[0]]) for r, p in enumerate(parts)], 1)
        numbers = [self.edges(x.new_ones(p.shape[1]), p, r) for r, p in enumerate(parts)]
        both = torch.sparse_coo_tensor(places, torch.cat(numbers), (2 * n, n)) @ h
        weights = self.tensor("w", 2, WIDTH, CLASSES)
        return torch.einsum("rni,rio->no", both.view(2, n, WIDTH), weights)

    def a_batch_of_matrices(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        several = [self.matrix(counted(part, x), r) for r, part in enumerate(by_kind(e))]
        both = torch.stack(several) @ self.lin("a", x)
        return self.lin("out", torch.cat([both[0], both[1]], 1).relu(), CLASSES)

    def adaptive_supports(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        """As AGCRN has them: a stack of a learned adjacency and a given one."""
        learned = (self.tensor("e", len(x), 4) @ self.tensor("e", len(x), 4).t()).relu().softmax(1)
        supports = torch.stack([self.matrix(learned, 0), self.matrix(a, 1)])
        both = torch.einsum("knm,bmc->bknc", supports, self.lin("a", x)[None])[0]
        return torch.einsum("kni,kio->no", both, self.tensor("w", 2, WIDTH, CLASSES))

    def supports_times_rows(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        supports = torch.stack([self.matrix(a, 0), self.matrix(counted(e, x).softmax(1), 1)])
        return (supports @ x @ self.tensor("w", 2, FEATURES, CLASSES)).sum(0)

    def joints_of_a_skeleton(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        """As ST-GCN has them: channels, times and nodes, and the nodes that hear as columns."""
        weight = self.tensor("importance", 2, 1, 1).abs()
        several = torch.stack([self.matrix(counted(p, x), k).t() for k, p in enumerate(by_kind(e))])
        y = self.lin("a", x, 2 * CLASSES).t().reshape(1, 2, CLASSES, 1, len(x))
        return torch.einsum("nkctv,kvw->nctw", y, several * weight)[0, :, 0].t()

    def rows_times_supports(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        several = torch.stack([self.matrix(counted(p, x), k) for k, p in enumerate(by_kind(e))])
        sums = torch.einsum("nwc,kvw->nkvc", self.lin("a", x, CLASSES)[None], several)
        return sums.sum(1)[0]

    def edges_read_by_a_convolution(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        """As DGCNN does: both ends of an edge side by side, read by a convolution of size one."""
        ends = torch.cat([x[e[0]] - x[e[1]], x[e[1]]], 1).t()[None, :, :, None]
        read = self.part("c", lambda: nn.Conv2d(2 * FEATURES, WIDTH, 1))(ends).relu()
        message = self.part("d", lambda: nn.Conv2d(WIDTH, CLASSES, 1))(read)[0, :, :, 0].t()
        return add_up(self.edges(message, e), e, x)

    def words_in_order(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        rnn = self.part("rnn", lambda: nn.LSTM(FEATURES, WIDTH, batch_first=True))
        return self.matrix(a) @ self.lin("out", rnn(x[None])[0][0], CLASSES)

    def words_in_order_and_back(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        rnn = self.part("r", lambda: nn.GRU(FEATURES, 4, batch_first=True, bidirectional=True))
        return self.matrix(a) @ self.lin("out", rnn(x[None])[0][0], CLASSES)

    def a_parent_beside_every_node(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("a", x)
        return self.lin("out", self.matrix(a) @ (h + h[torch.arange(len(x)) // 2]).relu(), CLASSES)

    def messages_of_edges_alone(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        kinds = self.tensor("kinds", 5, WIDTH)[(e[0] + 2 * e[1]) % 5]
        sums = add_up(self.edges(self.lin("m", kinds).relu(), e), e, x)
        return self.lin("out", self.lin("a", x).relu() + sums, CLASSES)

    def a_third_node_in_messages(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, third = self.lin("a", x), (e[0] + e[1]) % len(x)
        message = self.lin("m", torch.cat([h[e[0]], h[e[1]], h[third]], 1), CLASSES)
        return add_up(self.edges(message, e), e, x)

    def rows_by_kind(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, parts = self.lin("a", x), by_kind(e)
        sent = torch.cat([self.edges(h[p[0]], p, r) for r, p in enumerate(parts)])
        rows = torch.cat([2 * p[1] + r for r, p in enumerate(parts)])
        both = sent.new_zeros(2 * len(x), WIDTH).index_add(0, rows, sent) / 3
        return self.lin("out", both.view(len(x), 2 * WIDTH), CLASSES)

    def a_bag_of_neighbours(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        e = e[:, torch.argsort(e[1], stable=True)]
        starts = degree(e, x).cumsum(0).long() - degree(e, x).long()
        weight = self.edges(x.new_ones(e.shape[1]), e)
        h = self.lin("a", x, CLASSES)
        return F.embedding_bag(e[0], h, starts, mode="sum", per_sample_weights=weight)

    def sums_onto_the_root(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        out = self.lin("root", x)
        for r, part in enumerate(by_kind(e)):
            sent = self.edges(self.lin(f"a{r}", x)[part[0]], part, r)
            out = out.scatter_add(0, part[1][:, None].expand(-1, WIDTH), sent)
        return self.lin("out", out.tanh(), CLASSES)

    def products_onto_the_root(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        out = self.lin("root", x, CLASSES)
        for r, part in enumerate(by_kind(e)):
            matrix = self.matrix(counted(part, x), r)
            out = torch.addmm(out, matrix, self.lin(f"a{r}", x, CLASSES), beta=0.5)
        return out

    def a_mean_with_its_base(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        sent = self.edges(self.lin("a", x, CLASSES)[e[0]], e)
        index = e[1][:, None].expand(-1, CLASSES)
        return self.lin("base", x, CLASSES).scatter_reduce(0, index, sent, "mean")

    def nothing_by_nothing(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        total = add_up(self.edges(self.lin("a", x, CLASSES)[e[0]], e), e, x)
        return torch.nan_to_num(total / degree(e, x)[:, None]) + self.lin("b", x, CLASSES)

    def an_adjacency_made_inside(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        made, h = self.matrix(counted(e, x)), self.lin("a", x, CLASSES)
        return (made.unsqueeze(-1) * h.unsqueeze(0)).sum(1)

    def mean_and_deviation(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, count = self.lin("a", x), degree(e, x).clamp(min=1).unsqueeze(1)
        mean = add_up(self.edges(h[e[0]], e, 0), e, x) / count
        square = add_up(self.edges(h[e[0]] ** 2, e, 1), e, x) / count
        return self.lin(
            "out", torch.cat([mean, ((square - mean**2).relu() + 1e-5).sqrt()], 1), CLASSES
        )

    def bilinear_interactions(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("a", x)
        one, two = (add_up(self.edges(h[e[0]] ** k, e, k - 1), e, x) for k in (1, 2))
        return self.lin("out", 0.5 * (one * one - two), CLASSES)

    def log_sum_exp_of_neighbours(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        total = add_up(self.edges(self.lin("a", x)[e[0]].exp(), e), e, x)
        return self.lin("out", (total + 1e-3).log(), CLASSES)

    def equivariant_positions(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        far = x[e[0], :3] - x[e[1], :3]
        message = F.silu(self.lin("e", torch.cat([x[e[1]], x[e[0]], far.square().sum(1, True)], 1)))
        return self.lin("out", torch.cat([x, add_up(self.edges(message, e), e, x)], 1), CLASSES)

    def a_table_of_neighbours(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        order = a.argsort(dim=1, descending=True, stable=True)[:, :4]
        padded = torch.cat([self.lin("a", x), x.new_zeros(1, WIDTH)])
        near = padded[order]
        if self.judged:
            near = near * self.factors[0].gather(1, order).unsqueeze(2)  # type: ignore[index]
        self.places.add(0)
        return self.lin("out", near.mean(1), CLASSES)

    def cumulated_segments(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        order = torch.argsort(e[1], stable=True)
        e = e[:, order]
        lengths = torch.bincount(e[1], minlength=len(x))
        message = self.edges(self.lin("a", x, CLASSES)[e[0]], e)
        return torch.segment_reduce(message, "sum", lengths=lengths, unsafe=True, initial=0)

    def chunks_of_edges(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, out = self.lin("a", x, CLASSES), x.new_zeros(len(x), CLASSES)
        for place, part in enumerate(e.chunk(3, 1)):
            out.index_add_(0, part[1], self.edges(h[part[0]], part, place))
        return out

    def one_node_after_another(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, matrix = self.lin("a", x, CLASSES), self.matrix(a)
        near = [a[v].nonzero().view(-1) for v in range(len(x))]
        return torch.stack([(matrix[v, u].unsqueeze(1) * h[u]).sum(0) for v, u in enumerate(near)])

    # Filters

    def appnp(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("b", self.lin("a", x).relu(), CLASSES)
        if self.judged:
            h, x = torch.eye(len(x)).double(), h
        out = h
        for _ in range(4):
            out = 0.9 * a @ out + 0.1 * h
        self.places.add(0)
        return self.matrix(out) @ x if self.judged else out

    def heat_by_taylor(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, lap = self.lin("a", x, CLASSES), torch.eye(len(x)).double() - a
        if self.judged:
            h, x = torch.eye(len(x)).double(), h
        out, power = h, h
        for k in range(1, 6):
            power = -0.7 * (lap @ power) / k
            out = out + power
        self.places.add(0)
        return self.matrix(out) @ x if self.judged else out

    def heat_by_matrix_exp(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        lap = torch.eye(len(x)).double() - a
        return self.matrix(torch.matrix_exp(-self.tensor("t", 1).abs() * lap)) @ self.lin(
            "a", x, CLASSES
        )

    def gcnii(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = first = self.lin("in", x).relu()
        for layer in (1, 2, 3):
            mixed = 0.9 * ((self.matrix(a) if layer == 3 else a) @ h) + 0.1 * first
            h = (0.4 * mixed @ self.tensor(f"w{layer}", WIDTH, WIDTH) + 0.6 * mixed).relu()
        return self.lin("out", h, CLASSES)

    def h2gcn(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        one = a - torch.diag(torch.diag(a))
        two = ((one @ one) > 0).to(x) * (one == 0)
        ego = self.lin("in", x).relu()
        hidden = torch.cat([one @ ego, two @ ego], 1)
        last = [self.matrix(one, 0) @ hidden, self.matrix(two, 1) @ hidden]
        return self.lin("out", torch.cat([ego, hidden, *last], 1), CLASSES)

    def mixhop(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        far = self.matrix(a @ a, 1) @ self.lin("two", x, CLASSES)
        return self.lin("none", x, CLASSES) + self.matrix(a, 0) @ self.lin("one", x, CLASSES) + far

    def linkx(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        graph = self.matrix(a) @ self.tensor("rows", len(x), WIDTH)
        own = self.lin("x", x).relu()
        return self.lin(
            "out", (self.lin("w", torch.cat([graph, own], 1)) + graph + own).relu(), CLASSES
        )

    def jumping_knowledge_max(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        layers = [(a @ self.lin("a", x)).relu()]
        layers.append((self.matrix(a) @ self.lin("b", layers[0])).relu())
        return self.lin("out", torch.stack(layers).amax(0), CLASSES)

    def acm_channels(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        low = (self.matrix(a, 0) @ self.lin("l", x)).relu()
        high = (self.lin("h", x) - self.matrix(a, 1) @ self.lin("h", x)).relu()
        gates = torch.cat([self.lin("gl", low, 1), self.lin("gh", high, 1)], 1).sigmoid().softmax(1)
        return self.lin("out", gates[:, :1] * low + gates[:, 1:] * high, CLASSES)

    def gru_over_steps(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, cell = self.lin("in", x), self.part("gru", lambda: nn.GRUCell(WIDTH, WIDTH))
        for step in (0, 1):
            h = cell((self.matrix(a) if step else a) @ self.lin("m", h), h)
        return self.lin("out", h, CLASSES)

    def graph_coupled_oscillators(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, speed = self.lin("in", x), x.new_zeros(len(x), WIDTH)
        for step in (0, 1):
            pull = torch.relu((self.matrix(a) if step else a) @ self.lin("w", h))
            speed = speed + 0.5 * (pull - h - 0.3 * speed)
            h = h + 0.5 * speed
        return self.lin("out", h, CLASSES)

    # Attention and learned graphs

    def graphormer(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        n, h = len(x), self.lin("in", x)
        query, key, value = (self.lin(c, h).view(n, 2, 4).transpose(0, 1) for c in "qkv")
        bias = self.tensor("bias", 2)[(a > 0).long()]
        alpha = (query @ key.mT / 2 + bias).softmax(-1)
        if self.judged:
            alpha = torch.stack([self.matrix(alpha[k], k) for k in (0, 1)])
        self.places.update((0, 1))
        h = h + self.lin("o", (alpha @ value).transpose(0, 1).reshape(n, WIDTH))
        return self.lin("out", F.gelu(self.part("ln", lambda: nn.LayerNorm(WIDTH))(h)), CLASSES)

    def gps(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.lin("in", x)
        query, key, value = self.lin("qkv", h, 3 * WIDTH).chunk(3, 1)
        near = h + (self.matrix(a, 0) @ self.lin("l", h)).relu()
        far = h + self.matrix((query @ key.t() / 3).softmax(1), 1) @ value
        return self.lin("out", near + self.part("ln", lambda: nn.LayerNorm(WIDTH))(far), CLASSES)

    def sinkhorn(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        plan = (self.lin("q", x) @ self.lin("k", x).t() / 3).exp()
        for _ in range(3):
            plan = plan / plan.sum(1, keepdim=True)
            plan = plan / plan.sum(0, keepdim=True)
        return self.matrix(plan) @ self.lin("v", x, CLASSES)

    def kernel_attention(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        query, key, value = (
            self.lin("q", x).relu() + 0.1,
            self.lin("k", x).relu() + 0.1,
            self.lin("v", x),
        )
        below = query @ key.sum(0).unsqueeze(1)
        self.places.add(0)
        if self.judged:
            return self.matrix(query @ key.t() / below) @ value @ self.tensor("out", WIDTH, CLASSES)
        return query @ (key.t() @ value) / below @ self.tensor("out", WIDTH, CLASSES)

    def a_learned_graph(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        one, two = (torch.tanh(self.tensor(name, len(x), 3)) for name in ("e1", "e2"))
        learned = (one @ two.t() - two @ one.t()).tanh().relu()
        return self.lin(
            "out", torch.cat([x, self.matrix(learned) @ self.lin("a", x)], 1).relu(), CLASSES
        )

    def a_trained_matrix_of_nodes_from_the_right(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        trained = self.matrix(self.tensor("w", len(x), len(x)))
        return F.linear(self.lin("a", x, CLASSES).t(), trained).t()

    def selected_graphs_multiplied(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        graphs = torch.stack([a, a.t(), torch.eye(len(x)).double()])
        left, right = (self.tensor(c, 3).softmax(0) for c in "lr")
        both = torch.einsum("k,kij->ij", left, graphs) @ torch.einsum("k,kij->ij", right, graphs)
        return self.matrix(both) @ self.lin("a", x, CLASSES)

    # Heads

    def experts(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.matrix(a) @ self.lin("a", x)
        gate = self.lin("gate", h, 2).softmax(1)
        several = torch.stack([self.lin(f"e{k}", h.relu(), CLASSES) for k in (0, 1)], 1)
        return (several * gate.unsqueeze(2)).sum(1)

    def prototypes(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.matrix(a) @ self.lin("a", x)
        return -torch.cdist(h, self.tensor("p", CLASSES, WIDTH)).square()

    def the_two_largest_channels(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.matrix(a) @ self.lin("a", x)
        top = h.topk(2, 1)
        return self.lin("out", torch.zeros_like(h).scatter(1, top.indices, top.values), CLASSES)

    def hyperbolic(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        def bent(u: Tensor) -> Tensor:
            length = u.norm(dim=1, keepdim=True).clamp_min(1e-15)
            return torch.tanh(length) * u / length

        return self.lin("out", bent(self.matrix(a) @ (0.2 * self.lin("a", x))), CLASSES)

    def rounded(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        return self.lin("out", (8 * (self.matrix(a) @ self.lin("a", x))).round() / 8, CLASSES)

    def probabilities_averaged(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        several = [(self.matrix(a, k) @ self.lin(f"a{k}", x, CLASSES)).softmax(1) for k in (0, 1)]
        return torch.stack(several).mean(0)

    def some_rows_divided(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, count = self.lin("a", x, CLASSES), degree(e, x)
        out = add_up(self.edges(h[e[0]], e), e, x)
        out[count > 0] = out[count > 0] / count[count > 0].unsqueeze(1)
        out[count == 0] = h[count == 0]
        return out

    def some_logarithms(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        total = add_up(self.edges(self.lin("a", x, CLASSES).abs()[e[0]], e), e, x)
        return torch.where(degree(e, x).unsqueeze(1) > 0, total.log(), self.lin("r", x, CLASSES))

    # Beside the messages

    def pairnorm(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.matrix(a) @ self.lin("a", x)
        h = h - self.held("mean", h.mean(0))
        return self.lin(
            "out", (h / self.held("size", h.square().sum(1).mean().sqrt())).relu(), CLASSES
        )

    def a_virtual_node(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.matrix(a) @ self.lin("a", x)
        return self.lin(
            "out", h.relu() + self.held("g", self.lin("g", h.mean(0, keepdim=True))), CLASSES
        )

    def views_of_a_graph(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        both = [F.elu(self.matrix(m, k) @ self.lin(f"v{k}", x)) for k, m in enumerate((a, a @ a))]
        z = torch.stack(both, 1)
        weight = self.held("w", self.lin("s", z, 1).tanh().mean(0).softmax(0))
        return self.lin("out", (weight * z).sum(1), CLASSES)

    def attention_to_vectors_of_pairs(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        weight = (self.lin("q", x) @ self.lin("k", x).t()).softmax(1)
        sent = self.lin("v", x, CLASSES)[None] + self.tensor("pair", len(x), len(x), CLASSES)
        return torch.einsum("bij,bijd->bid", self.matrix(weight)[None], sent[None])[0]

    def an_axis_of_a_batch_of_one(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        sent = self.lin("a", x, CLASSES)[None] + self.lin("b", x, CLASSES)[:, None]
        return torch.sum(sent[None] * self.matrix(a)[None, :, :, None], dim=2)[0]

    def a_convolution_over_time(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        series = torch.einsum("vw,wcl->vcl", self.matrix(a), x.view(-1, 2, FEATURES // 2))
        over = self.part("c", lambda: nn.Conv2d(2, CLASSES, (1, FEATURES // 2)))
        return over(series.permute(1, 0, 2)[None])[0, :, :, 0].t()

    def a_random_slope(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        return self.part("r", nn.RReLU)(self.matrix(a) @ self.lin("a", x, CLASSES))

    def a_fresh_norm_of_every_node(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        norm = nn.BatchNorm1d(len(x)).double()  # in training mode, by each node's own channels
        h = norm((a @ self.lin("a", x)).relu()[None])[0]
        return self.matrix(a) @ self.lin("b", h, CLASSES)

    def numbers_in_a_list(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        speed = torch.tensor([0.5 + 0.1 * v for v in range(len(x))]).double()
        moved = speed.repeat_interleave(WIDTH).view(len(x), WIDTH) * (a @ self.lin("a", x))
        return self.matrix(a) @ self.lin("b", moved.relu(), CLASSES) * speed[:, None]

    def scores_of_one_column(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        weight = (self.lin("q", x) @ self.lin("k", x).t()).softmax(1)
        return self.lin("out", self.matrix(weight) @ self.lin("a", x, 1), CLASSES)

    def a_graph_of_one_column(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        return self.lin("out", self.matrix(a) @ self.lin("a", x, 1), CLASSES)

    def blocks_of_rows(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        weight, h = self.matrix(a), self.lin("a", x, CLASSES)
        return torch.cat([weight[:7] @ h, weight[7:] @ h])

    def a_circular_correlation(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        sent, relation = (
            torch.fft.rfft(t) for t in (self.lin("a", x)[e[0]], self.tensor("r", WIDTH))
        )
        turned = torch.fft.irfft(torch.conj(sent) * relation, n=WIDTH)
        return self.lin("b", add_up(self.edges(turned, e), e, x), CLASSES)

    def gates_out_of_flat_rows(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        gates = self.lin("g", a @ x, 2 * WIDTH).sigmoid().reshape(1, -1).chunk(2, 1)[0]
        gated = gates.reshape(len(x), WIDTH) * self.lin("a", x)
        return self.matrix(a) @ self.lin("b", gated, CLASSES)

    def rows_added_to_their_own(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h, some = self.matrix(a) @ self.lin("a", x), torch.arange(0, len(x), 3)
        return self.lin("b", h, CLASSES).index_add_(0, some, self.lin("c", h[some], CLASSES))

    def whitened(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        h = self.matrix(a) @ self.lin("a", x, CLASSES)
        gram = self.held("gram", (h.t() @ h / len(h) + torch.eye(CLASSES).double()).inverse())
        return h @ gram

    def a_histogram_of_neighbours(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        known = x.new_zeros(len(x), 2)
        known.index_put_((e[1], kinds_of(x)[e[0]]), x.new_ones(e.shape[1]), accumulate=True)
        return self.matrix(a) @ self.lin("a", x, CLASSES) + self.lin("k", known, CLASSES)

    def a_count_of_similar_nodes(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        count = ((x @ x.t()) > 1).sum(1, keepdim=True).to(x)
        return self.matrix(a) @ self.lin("a", x, CLASSES) / count.clamp(min=1)

    def a_mean_of_codes(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        codes = torch.eye(2).double()[kinds_of(x)]
        return self.matrix(a) @ self.lin("a", x, CLASSES) + self.lin("c", codes.mean(0), CLASSES)

    def the_best_neighbour(self, x: Tensor, e: Tensor, a: Tensor) -> Tensor:
        best = (a * (1 + x[:, 0].exp())).argmax(1)
        return self.matrix(a) @ self.lin("a", x, CLASSES) + self.lin("b", x[best], CLASSES)


MODELS = [name for name in vars(Mixtures) if not name.startswith("_")]


# The judge ----------------------------------------------------------------------------------------


def graph(seed: int) -> Data:
    """Directed, with loops, nodes without edges and now and then edges that stand there twice."""
    rng = torch.Generator().manual_seed(seed)
    n = int(torch.randint(12, 40, (1,), generator=rng))
    edges = torch.randint(0, n - 2, (2, 3 * n), generator=rng)
    edges = torch.cat([edges, torch.arange(2).repeat(2, 1)], 1).unique(dim=1)
    edges = edges[:, torch.randperm(edges.shape[1], generator=rng)]
    adj = torch.eye(n).double()
    adj[edges[1], edges[0]] = 1.0
    size = adj.sum(1).rsqrt()
    if seed % 3 == 0:
        edges = torch.cat([edges, edges[:, :4]], 1)
    x = torch.randn(n, FEATURES, generator=rng).double()
    return Data(x=x, edge_index=edges, adj=size[:, None] * adj * size)


class Terms:
    """What an exposure says of its messages: who, to whom, in which group, with which weight."""

    def __init__(self, exposure: Any) -> None:
        frame = exposure.to_frame()
        self.node, self.source = (torch.tensor(frame[c].to_numpy()) for c in ("node", "source"))
        names = list(dict.fromkeys(frame["group"]))
        self.groups = len(names)
        self.group = torch.tensor([names.index(name) for name in frame["group"]])
        self.alpha = torch.tensor(frame["coefficient"].to_numpy())
        self.size = exposure.num_nodes
        key = (self.node * self.groups + self.group) * self.size + self.source
        self.pair = key.unique(return_inverse=True)[1]  # parallel messages have one ratio
        self.bag = self.node * self.groups + self.group

    def drawn(self, rng: torch.Generator, corner: bool) -> Tensor:
        """λ / α of admissible λ: at a corner, or anywhere."""
        ratio = torch.rand(int(self.pair.max()) + 1, generator=rng).double() + 1e-3
        ratio = ratio[self.pair] if corner else ratio[self.pair] ** 3
        if corner:
            best = torch.zeros(self.size * self.groups).double()
            ratio = (ratio == best.scatter_reduce(0, self.bag, ratio, "amax")[self.bag]).double()
        before, after = (
            torch.zeros(self.size * self.groups).double().index_add(0, self.bag, weight)
            for weight in (self.alpha, self.alpha * ratio)
        )
        return ratio * (before / after.clamp(min=1e-300))[self.bag]

    def factors(self, ratio: Tensor, places: Sequence[int]) -> dict[int, Tensor]:
        """What the messages of every place are multiplied by; groups stand at these places."""
        made = {place: torch.ones(self.size, self.size).double() for place in range(PLACES)}
        for group, place in enumerate(places):
            part = self.group == group
            made[place][self.node[part], self.source[part]] = ratio[part]
        return made


def run(net: Net, data: Data, factors: Mapping[int, Tensor] | None = None) -> Tensor:
    net.factors = factors
    try:
        with torch.no_grad():
            return net(data.x, data.edge_index, data.adj)
    finally:
        net.factors = None


def gap(told: Tensor, seen: Tensor) -> float:
    """Relative to the largest logit; up to a shift per node where the model ends in log_softmax."""
    size = max(1.0, float(seen.abs().max()))
    plain = float((told - seen).abs().max())
    return min(plain, float((told.log_softmax(1) - seen.log_softmax(1)).abs().max())) / size


def margins(logits: Tensor) -> np.ndarray[Any, Any]:
    rest = [np.delete(logits.numpy(), c, 1).max(1) for c in range(CLASSES)]
    return logits.numpy() - np.stack(rest, 1)


def built(name: str, seed: int) -> tuple[Net, Data]:
    torch.manual_seed(seed)
    net, data = Mixtures(name), graph(seed)
    run(net, data)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    net.fixed.clear()
    run(net, data)
    return net, data


def judged(name: str, seed: int) -> list[str]:
    """Everything that is wrong with what is said about a model."""
    net, data = built(name, seed)
    exposure = gr.expose(net, data, outputs="classes")
    terms, rng = Terms(exposure), torch.Generator().manual_seed(seed)
    ratios = [terms.drawn(rng, corner) for corner in (False, True)]
    best, where = np.inf, tuple[int, ...]()
    for places in _placings(terms.groups, sorted(net.places)):
        worst = max(
            gap(exposure.logits(terms.alpha * r)[0], run(net, data, terms.factors(r, places)))
            for r in ratios
        )
        best, where = min((best, where), (worst, places))
    if gap(exposure.logits()[0], run(net, data)) > CLOSE or not best <= CLOSE:
        return [f"is {best:.1e} off with other weights"]
    found = list(_contradicted(net, data, exposure, terms, where, rng))
    edges = counted(data.edge_index, data.x)[terms.node, terms.source].clamp(min=1)
    if bool((torch.bincount(terms.pair)[terms.pair] > edges).any()):
        found.append("one sender is named for messages of several")
    if set(where) != net.places:
        found.append("some of its messages are in no group")
    if not exposure.held and _leaks(net, data, terms, where):
        found.append("nodes are mixed beside the messages, and nothing is held")
    return found


def _placings(groups: int, places: Sequence[int]) -> Iterable[tuple[int, ...]]:
    return product(places, repeat=groups) if len(places) ** groups < 300 else [tuple(places)]


def _leaks(net: Net, data: Data, terms: Terms, places: Sequence[int]) -> bool:
    """Whether a node moves another one that does not hear it, or where no message is heard."""
    silent = terms.factors(torch.zeros_like(terms.alpha), places)
    silent = {place: torch.zeros_like(factor) for place, factor in silent.items()}
    for node, factors in product((1, 5, 9), (silent, None)):
        other = data.clone()
        other.x[node] = 0.4 - 3 * other.x[node]
        change = run(net, other, factors) - run(net, data, factors)
        moved = change.abs().amax(1) > CLOSE
        moved[node] = False
        if factors is None:
            moved[terms.node[terms.source == node]] = False
        if bool(moved.any()):
            return True
    return False


def _contradicted(
    net: Net, data: Data, exposure: Any, terms: Terms, places: Sequence[int], rng: torch.Generator
) -> Iterable[str]:
    """Answers that sampled weights refute, and weights of a *can* that do not win in the model."""
    nodes = terms.node.unique()[: 7 * ASKED : 7]
    solution = gr.solve(exposure, "all", nodes.numpy(), effort="fast")
    best = np.full((terms.size, CLASSES), -np.inf)
    for corner in [False, True] * (SAMPLES // 2):
        ratio = terms.drawn(rng, corner)
        best = np.maximum(best, margins(run(net, data, terms.factors(ratio, places))))
    parallel = len(terms.pair.unique()) < len(terms.pair)
    for i, (node, target) in enumerate(zip(solution.node, solution.target, strict=True)):
        allowed = CLOSE * max(1.0, float(np.abs(best[node]).max())) + 1e-7
        if solution.verdict[i] == "cannot" and best[node, target] > allowed:
            yield f"{solution[i]}: it wins by {best[node, target]:.3g}"
        if solution.verdict[i] != "can" or parallel:
            continue
        part = slice(solution.indptr[i], solution.indptr[i + 1])
        lam = torch.where(terms.node == int(node), 0.0, terms.alpha)
        lam[torch.as_tensor(solution.terms[part])] = torch.as_tensor(solution.coefficients[part])
        seen = margins(run(net, data, terms.factors(lam / terms.alpha, places)))[node, target]
        if seen < -allowed:
            yield f"{solution[i]}: its weights lose by {-seen:.3g} in the model"


def attempt(name: str, seed: int) -> tuple[int, Counter[str], list[str]]:
    """One model with weights and a graph of one seed."""
    try:
        found = judged(name, seed)
    except GnnRepairError as told:
        found = [f"is refused: {told}"]
    except Exception as error:  # whatever it is, it is a fault
        found = [f"raised {type(error).__name__}: {error}"]
    return 1, Counter([] if found else ["as it should be"]), found


campaign = Search("wild", "models", MODELS, attempt).campaign
