"""Sums that are written in several steps.

Each model names its sums itself, as dense matrices and what they multiply; the exposure must give
the same logits under weights that it never saw.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import gnn_repair as gr
from tests.helpers.models.terms import dense

NODES, WIDTH, CLASSES = 14, 5, 3


def graph():
    torch.manual_seed(2)
    edges = torch.cat([torch.randint(NODES - 2, (2, 30)), torch.tensor([[1, 1], [2, 2]])], 1)
    kinds = torch.randint(2, (edges.shape[1],))
    x = torch.randn(NODES, WIDTH, dtype=torch.float64)
    return Data(x=x, edge_index=edges, edge_type=kinds, y=torch.randint(CLASSES, (NODES,)))


def counts(edges, size=NODES):
    return torch.zeros(size, size).double().index_put(
        (edges[1], edges[0]), torch.ones(edges.shape[1]).double(), accumulate=True
    )  # fmt: skip


def in_place(w, x, edges, kinds, y):
    out = torch.zeros(NODES, CLASSES).double()
    for r in range(2):
        out.index_add_(0, edges[1, kinds == r], (x @ w[r])[edges[0, kinds == r]])
    return out / 2, [(counts(edges[:, kinds == r]) / 2, x @ w[r]) for r in range(2)]


def onto_the_root(w, x, edges, kinds, y):
    out = x @ w[0]
    for r in range(2):
        source, target = edges[:, kinds == r]
        out = out.scatter_add(0, target[:, None].expand(-1, CLASSES), (x @ w[r])[source])
    return out.tanh(), [(counts(edges[:, kinds == r]), x @ w[r]) for r in range(2)]


def by_products(w, x, edges, kinds, y):
    out = x @ w[0]
    for r in range(2):
        out = torch.addmm(out, counts(edges[:, kinds == r]), x @ w[r], beta=0.5)
    scales = (0.5, 1.0)
    return out, [(counts(edges[:, kinds == r]) * scales[r], x @ w[r]) for r in range(2)]


def mean_with_the_base(w, x, edges, kinds, y):
    index = edges[1][:, None].expand(-1, CLASSES)
    out = (x @ w[1]).scatter_reduce(0, index, (x @ w[0])[edges[0]], "mean")
    adjacency = counts(edges)
    return out, [(adjacency / (adjacency.sum(1, keepdim=True) + 1), x @ w[0])]


def nothing_by_nothing(w, x, edges, kinds, y):
    adjacency = counts(edges)
    total = torch.zeros(NODES, CLASSES).double().index_add(0, edges[1], (x @ w[0])[edges[0]])
    degree = torch.zeros(NODES).double().index_add(0, edges[1], torch.ones(len(edges[1])).double())
    out = torch.nan_to_num(total / degree[:, None]) + x @ w[1]
    return out, [(adjacency / adjacency.sum(1, keepdim=True).clamp(min=1), x @ w[0])]


def adjacency_made_inside(w, x, edges, kinds, y):
    adjacency = counts(edges)
    out = (adjacency.unsqueeze(-1) * (x @ w[0]).unsqueeze(0)).sum(1)
    return out, [(adjacency, x @ w[0])]


def labels_beside(w, x, edges, kinds, y):
    adjacency, codes = counts(edges), one_hot(y, CLASSES).double()
    return adjacency @ (x @ w[0]) + adjacency @ codes, [
        (adjacency, x @ w[0]), (adjacency, codes)
    ]  # fmt: skip


class Model(nn.Module):
    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.form, self.w = form, nn.Parameter(torch.randn(2, WIDTH, CLASSES).double())

    def forward(self, x, edge_index, edge_type, y):
        return self.form(self.w, x, edge_index, edge_type, y)[0]


SUMS = (
    in_place, onto_the_root, by_products, mean_with_the_base, nothing_by_nothing,
    adjacency_made_inside,
)  # fmt: skip


@pytest.mark.parametrize("form", SUMS)
def test_every_step_is_reweighted(form):
    data, model = graph(), Model(form)
    exposure = gr.expose(model, data)
    given = data.x, data.edge_index, data.edge_type, data.y
    with torch.no_grad():
        logits, parts = form(model.w, *given)
    assert exposure.num_groups == len(parts)
    assert torch.allclose(exposure.logits()[0], logits, atol=1e-12)
    assert not any(part.beside for part in exposure.held)
    torch.manual_seed(4)
    other = exposure.coefficients[0] * torch.rand(exposure.num_terms)
    shift = torch.zeros_like(logits)
    for g in range(len(parts)):  # by how much each weight grows; a scale may stand in h instead
        old, new = (dense(exposure, c)[g] for c in (exposure.coefficients[0], other))
        own = [(a, h) for a, h in parts if bool(((a > 0) == (old > 0)).all())]
        assert len(own) == 1
        adjacency, states = own[0]
        shift += (adjacency * (new / old.clamp(min=1e-300) - 1)) @ states
    moved = exposure.logits(other)[0]
    plain = form is not onto_the_root
    moved = moved - logits if plain else moved.atanh() - logits.atanh()
    assert torch.allclose(moved, shift, atol=1e-9)


def test_labels_of_neighbours_are_messages():
    model, data = Model(labels_beside), graph()
    exposure = gr.expose(model, data)
    assert exposure.num_groups == 2 and not exposure.held
    one = exposure.restrict([3])
    assert sorted(one.mass[0, 0].tolist()) == [float((data.edge_index[1] == 3).sum())] * 2


def test_messages_to_and_from_an_appended_node():
    class Hub(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.hub = GCNConv(WIDTH, CLASSES), nn.Parameter(torch.randn(1, WIDTH))

        def forward(self, x, edge_index):
            each = torch.arange(NODES)
            hub = torch.full((NODES,), NODES)
            edges = torch.cat([edge_index, torch.stack([each, hub]), torch.stack([hub, each])], 1)
            return self.conv(torch.cat([x, self.hub]), edges)[:NODES]

    data = graph()
    exposure = gr.expose(Hub().double(), data)
    assert exposure.num_recipients == NODES and int(exposure.sources.max()) < NODES
    assert exposure.residual <= 1e-12
