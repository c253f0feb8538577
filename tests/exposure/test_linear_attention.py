"""Linear attention, q (kᵀ v), as the mixture (q kᵀ) v that it is."""

import pytest
import torch
from torch import nn
from torch.nn.functional import elu, normalize
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GPSConv, Polynormer, SGFormer

import gnn_repair as gr
from gnn_repair.exposure.record import analysis
from tests.helpers.models.terms import dense, signed

NODES, HEADS, WIDTH = 15, 2, 8


def graph():
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(NODES, (2, 50), generator=generator)
    x = torch.randn(NODES, 6, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=edges, y=torch.arange(NODES) % 3)


def split(t):
    return t.view(NODES, WIDTH // HEADS, HEADS)


def by_einsum(q, k, v):
    q, k, v = map(split, (q, k, v))
    total = torch.einsum("ndh,dmh->nmh", q, torch.einsum("ndh,nmh->dmh", k, v))
    normaliser = torch.einsum("ndh,dh->nh", q, torch.einsum("ndh->dh", k)).unsqueeze(1)
    return (total / normaliser).reshape(NODES, -1)


def by_matmul(q, k, v):
    q, k, v = (t.view(1, NODES, HEADS, -1).transpose(1, 2) for t in (q, k, v))
    total = q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(2, keepdim=True).mT)
    return total.squeeze(0).transpose(0, 1).reshape(NODES, -1)


def in_other_order(q, k, v):
    order = torch.arange(NODES).flip(0)
    back = (q[order] @ (k.t() @ v)) / (q[order] @ k.sum(0)).unsqueeze(1)
    return back[order.argsort()]


ALONE = {
    "plain": lambda q, k, v: (q @ (k.t() @ v)) / (q @ k.sum(0)).unsqueeze(1),
    "by products": lambda q, k, v: (q @ (k.t() @ v)) / (q * k.sum(0)).sum(1, keepdim=True),
    "from the other side": lambda q, k, v: (q @ (v.t() @ k).t()) / (q @ k.sum(0)).unsqueeze(1),
    "rows in another order": in_other_order,
}
BY_HEAD = {"einsum": by_einsum, "matmul": by_matmul}


class Attention(nn.Module):
    """Linear attention beside a convolution, or alone."""

    def __init__(self, form, beside=False):
        super().__init__()
        torch.manual_seed(1)
        self.q, self.k, self.v = (nn.Linear(6, WIDTH) for _ in range(3))
        self.conv, self.out, self.form = GCNConv(6, WIDTH), nn.Linear(WIDTH, 3), form
        self.beside = beside
        self.double().eval()

    def parts(self, x):
        return elu(self.q(x)) + 1, elu(self.k(x)) + 1, self.v(x)

    def forward(self, x, edge_index):
        mixed = self.form(*self.parts(x))
        return self.out(mixed + self.conv(x, edge_index) if self.beside else mixed)


def attention(q, k):
    weights = q @ k.t()
    return weights / weights.sum(1, keepdim=True)


@pytest.mark.parametrize("name", [*ALONE, *BY_HEAD])
def test_weights_are_those_of_the_whole_matrix_of_each_head(name):
    model, data = Attention({**ALONE, **BY_HEAD}[name]), graph()
    exposure = gr.expose(model, data)
    q, k, _ = model.parts(data.x)
    pairs = [(q, k)]
    if name == "einsum":
        pairs = [(split(q)[..., h], split(k)[..., h]) for h in range(HEADS)]
    elif name == "matmul":
        pairs = list(zip(q.chunk(HEADS, 1), k.chunk(HEADS, 1), strict=True))
    assert exposure.head is None and not exposure.held
    expected = torch.stack([attention(*pair) for pair in pairs]).detach()
    torch.testing.assert_close(dense(exposure), expected)


def test_a_scaled_product_and_signed_kernels_are_exact():
    data = graph()
    scaled = gr.expose(Attention(lambda q, k, v: q @ (k.t() @ v / 7)), data)
    q, k, _ = Attention(None).parts(data.x)
    torch.testing.assert_close(dense(scaled)[0], (q @ k.t() / 7).detach())
    both = gr.expose(Attention(lambda q, k, v: normalize(q - 1) @ (normalize(k - 1).t() @ v)), data)
    weights = (normalize(q - 1) @ normalize(k - 1).t()).detach()
    torch.testing.assert_close(signed(both), weights)


def test_beside_a_convolution_both_are_mixtures():
    exposure = gr.expose(Attention(ALONE["plain"], beside=True), graph())
    assert [group.name for group in exposure.groups] == ["linear attention", "conv"]
    assert not exposure.held


@pytest.mark.parametrize("large", [False, True])
def test_where_it_is_too_large_or_cannot_be_followed_it_is_held_by_name(large, monkeypatch):
    """Running sums of nodes have no head; the convolution beside them does."""
    form = ALONE["plain"] if large else lambda q, k, v: ALONE["plain"](q, k, v).cumsum(0)
    model = Attention(form, beside=True)
    monkeypatch.setattr(analysis, "LINEAR_ATTENTION", NODES**2 - large)
    exposure = gr.expose(model, graph())
    assert [group.name for group in exposure.groups] == ["conv"]
    assert any(part.beside and "mm" in part.operations for part in exposure.held)


class Pyg(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(2)
        self.before, self.after = nn.Linear(6, 8), nn.Linear(8, 3)
        self.model = {
            "SGFormer": lambda: SGFormer(6, 8, 3),
            "Polynormer": lambda: Polynormer(6, 8, 3, local_layers=1, global_layers=1),
            "Performer": lambda: GPSConv(8, GCNConv(8, 8), heads=2, attn_type="performer"),
        }[kind]()
        self.model._global = True
        self.kind = kind
        self.eval()

    def forward(self, x, edge_index):
        if self.kind == "Performer":
            return self.after(self.model(self.before(x), edge_index))
        return self.model(x, edge_index, torch.zeros(len(x), dtype=torch.long))


@pytest.mark.parametrize("kind", ["SGFormer", "Polynormer", "Performer"])
def test_pyg_s_own_models_are_mixtures_over_all_nodes(kind):
    data = graph()
    exposure = gr.expose(Pyg(kind), Data(x=data.x.float(), edge_index=data.edge_index, y=data.y))
    assert any("linear attention" in group.rule for group in exposure.groups)
    assert exposure.segments[:: exposure.num_groups].diff().min() >= NODES
    assert exposure.residual < 1e-5
