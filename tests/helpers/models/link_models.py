"""Models of links as people write them."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.nn import GAE, VGAE, GATConv, GCNConv, InnerProductDecoder, SAGEConv

WIDTH, INSIDE = 6, 5


class Encoder(nn.Module):
    def __init__(self, conv=GCNConv, relu=False) -> None:
        super().__init__()
        self.conv1, self.conv2, self.relu = conv(WIDTH, 8), conv(8, INSIDE), relu

    def forward(self, x, edge_index):
        z = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return z.relu() if self.relu else z


class EncodeDecode(Encoder):
    """PyG's example."""

    def encode(self, x, edge_index):
        return self(x, edge_index)

    def decode(self, z, edge_label_index):
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(dim=-1)

    def decode_all(self, z):
        return (z @ z.t() > 0).nonzero().t()


class TrueAndSampled(Encoder):
    """PyG's example of some years ago."""

    def encode(self, x, edge_index):
        return self(x, edge_index)

    def decode(self, z, pos_edge_index, neg_edge_index):
        edge_index = torch.cat([pos_edge_index, neg_edge_index], dim=-1)
        return (z[edge_index[0]] * z[edge_index[1]]).sum(dim=-1)


class Whole(nn.Module):
    """Everything in forward; a linear map of both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(WIDTH, 8), SAGEConv(8, INSIDE)
        self.head = nn.Linear(2 * INSIDE, 1)

    def forward(self, x, edge_index, edge_label_index):
        z = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        source, target = edge_label_index
        return self.head(torch.cat([z[source], z[target]], dim=-1)).squeeze(-1)


class OfTwoRows(nn.Module):
    """OGB's predictor: a perceptron of the product, probabilities at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(INSIDE, 4), nn.Linear(4, 1)

    def forward(self, x_i, x_j):
        return torch.sigmoid(self.lin2(self.lin1(x_i * x_j).relu()))


class OfBothEnds(nn.Module):
    """A perceptron of the ends side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(2 * INSIDE, 4), nn.Linear(4, 1)

    def forward(self, z, edge_label_index):
        row, col = edge_label_index
        return self.lin2(self.lin1(torch.cat([z[row], z[col]], dim=-1)).relu()).view(-1)


class DistMult(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.randn(INSIDE))

    def forward(self, z, edge_index):
        head, tail = z.index_select(0, edge_index[0]), torch.index_select(z, 0, edge_index[1])
        return (head * self.relation * tail).sum(1)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Bilinear(INSIDE, INSIDE, 1)

    def forward(self, z_source, z_target):
        return self.form(z_source, z_target)


class Mean(nn.Module):
    """Means and deviations of VGAE; outside training the mean alone is used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(WIDTH, 8)
        self.mu, self.deviation = GCNConv(8, INSIDE), GCNConv(8, INSIDE)

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index).relu()
        return self.mu(x, edge_index), self.deviation(x, edge_index)


def dot(z, e):
    return z[e].prod(0).sum(1)


def squashed_dot(z, e):
    return torch.sigmoid((z[e[0], :] * z[e[1], :]).sum(1))


EXACT = {
    "encode and decode": (EncodeDecode, None),
    "true and sampled links": (TrueAndSampled, None),
    "linear in forward": (Whole, None),
    "GAE": (lambda: GAE(Encoder(SAGEConv)), None),
    "VGAE": (lambda: VGAE(Mean()), None),
    "attention and inner products": (lambda: Encoder(GATConv), InnerProductDecoder),
    "a function": (Encoder, lambda: dot),
    "a squashed function": (Encoder, lambda: squashed_dot),
    "DistMult": (Encoder, DistMult),
    "bilinear": (Encoder, Bilinear),
}
BENT = {
    "OGB's predictor": (Encoder, OfTwoRows),
    "perceptron of both ends": (lambda: Encoder(GATConv), OfBothEnds),
    "rectified embeddings": (lambda: Encoder(relu=True), lambda: dot),
}
