"""Decoders that read embeddings a second way, judged by running encoder and decoder as a whole.

The judge shares no code with the package: it hands the last layer other weights for the messages
of one node and runs everything that follows on the embeddings that come of it.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv

import gnn_repair as gr

NODES, WIDTH, INSIDE = 24, 5, 4


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConv(WIDTH, 6), GraphConv(6, INSIDE)

    def forward(self, x, edge_index, edge_weight):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index, edge_weight)


def graph(seed: int) -> Data:
    torch.manual_seed(seed)
    links = torch.randint(0, NODES, (2, 30))
    return Data(
        x=torch.randn(NODES, WIDTH).double(),
        edge_index=torch.randint(0, NODES, (2, 110)),
        edge_weight=torch.rand(110).double() + 0.1,
        edge_label_index=links[:, links[0] != links[1]],
    )


def dot(z, e):
    return (z[e[0]] * z[e[1]]).sum(1)


def dense(data: Data):
    matrix = torch.zeros(NODES, NODES).double()
    matrix[data.edge_index[0], data.edge_index[1]] = 1.0
    return (matrix + matrix.t() + torch.eye(NODES).double()).clamp(max=1)


DECODERS = {
    "a product of all nodes": lambda a: lambda z, e: dot(z, e) + dot(a @ z / 5, e),
    "the mean of all nodes": lambda a: lambda z, e: dot(z, e) + (z[e[0]] * z.mean(0)).sum(1),
    "the largest of all nodes": lambda a: lambda z, e: dot(z - z.max(0).values, e),
    "common neighbours": lambda a: lambda z, e: dot(z, e) + ((a[e[0]] * a[e[1]]) @ z).sum(1),
    "a neighbour of each end": lambda a: lambda z, e: dot(z, e) + z[a.argmax(1)[e[0]]].sum(1),
    "attention to all nodes": lambda a: (
        lambda z, e: dot(z, e) + ((z[e[0]] @ z.t()).softmax(1) @ z)[:, 0]
    ),
    "scores beside their mean": lambda a: lambda z, e: dot(z, e) - dot(z, e).mean(),
}
PLAIN = {
    "none": lambda a: dot,
    "heuristics": lambda a: lambda z, e: dot(z, e) + (a[e[0]] * a[e[1]]).sum(1),
    "the ends' own columns": lambda a: lambda z, e: z[e[0], 0] - z[e[1], 1],
    "a map of all rows": lambda a: lambda z, e: dot(z.relu() @ torch.ones(4, 2).double(), e),
    "both ends at once": lambda a: lambda z, e: z[e.t()].prod(1).sum(1),
    "both ends one after another": lambda a: (
        lambda z, e: z[e.reshape(-1)].view(2, -1, 4).prod(0).sum(1)
    ),
}


def replayed(model, data, decoder, exposure, coefficients, link: int, end: int):
    """The logit of one link when its varied end hears its messages with other weights."""
    node = int(exposure.links[end, link])
    mixture = exposure.mixture
    mixture = getattr(mixture, "aggregate", mixture)
    first, last = (int(mixture.segments[link + more]) for more in (0, 1))
    weight = data.edge_weight.clone()
    mine = (data.edge_index[1] == node).nonzero().view(-1)
    weight[mine] = 0
    senders = mixture.sources[mixture.rows[first:last].long()].tolist()
    assert sorted(senders) == sorted(data.edge_index[0, mine].tolist())
    free = mine.tolist()
    for sender, share in zip(senders, coefficients[first:last].tolist(), strict=True):
        place = next(p for p in free if int(data.edge_index[0, p]) == sender)
        free.remove(place)
        weight[place] = share
    with torch.no_grad():
        return decoder(model(data.x, data.edge_index, weight), data.edge_label_index)[link]


def drawn(exposure, seed: int):
    """Random weights of every link's messages, as heavy as before."""
    mixture = exposure.mixture
    mixture = getattr(mixture, "aggregate", mixture)
    shares = torch.rand(
        1, mixture.num_terms, generator=torch.Generator().manual_seed(seed)
    ).double()
    ratio = mixture.mass / mixture.masses(shares)
    return shares[0] * torch.repeat_interleave(ratio.view(-1), mixture.segments.diff())


def furthest(name: str, seed: int, vary: str):
    data = graph(seed)
    model, decoder = Encoder().double(), {**DECODERS, **PLAIN}[name](dense(data))
    exposure = gr.expose_links(model, data, decoder=decoder, vary=vary)
    lam, end = drawn(exposure, seed), ("source", "target").index(vary)
    expected = exposure.logits(lam)
    seen = [
        replayed(model, data, decoder, exposure, lam, link, end)
        for link in range(exposure.num_links)
    ]
    return exposure, float((torch.stack(seen) - expected).abs().max())


@pytest.mark.parametrize("vary", ["source", "target"])
@pytest.mark.parametrize("name", PLAIN)
def test_without_a_second_way_the_whole_model_says_the_same(name, vary):
    for seed in range(6):
        exposure, gap = furthest(name, seed, vary)
        assert gap <= 1e-12
        assert not [part for part in exposure.mixture.held if part.beside]


@pytest.mark.parametrize("vary", ["source", "target"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_second_way_is_in_the_mixture_or_held_by_name(name, vary):
    for seed in range(6):
        exposure, gap = furthest(name, seed, vary)
        named = [part for part in exposure.mixture.held if part.beside]
        assert gap <= 1e-12 or named
        assert not named or "the decoder" in exposure.mixture.scope
        solution = gr.solve(exposure, "flip", [0])
        assert not named or "held" in str(solution[0])
