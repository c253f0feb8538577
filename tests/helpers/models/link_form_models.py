"""Further ways of asking about links: in the graph, between types, with more than a graph."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphConv, HeteroConv, SAGEConv

NODES, WIDTH = 30, 5


RATES = ("user", "rates", "movie")


BACK = ("movie", "rated by", "user")


def graph() -> Data:
    torch.manual_seed(5)
    links = torch.randint(0, NODES, (2, 20))
    return Data(
        x=torch.randn(NODES, WIDTH).double(),
        edge_index=torch.randint(0, NODES, (2, 100)),
        edge_label_index=links[:, links[0] != links[1]],
    )


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(WIDTH, 6), SAGEConv(6, 4)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def product(z, links):
    return (z[links[0]] * z[links[1]]).sum(-1)


class OfData(Embedding):
    def forward(self, data):
        return product(super().forward(data.x, data.edge_index), data.edge_label_index)


class TrueAndSampled(Embedding):
    def forward(self, x, edge_index, pos_edge_index, neg_edge_index):
        z = super().forward(x, edge_index)
        return product(z, pos_edge_index), product(z, neg_edge_index)


class OfTrueGraph(Embedding):
    def forward(self, x, train_pos_edge_index, edge_label_index):
        z = super().forward(x, train_pos_edge_index)
        return z, product(z, edge_label_index)


class TwoClasses(Embedding):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 2)

    def both(self, x, edge_index, links):
        z = Embedding.forward(self, x, edge_index)
        return self.head(torch.cat([z[links[0]], z[links[1]]], dim=1))

    def forward(self, x, edge_index, edge_label_index):
        return self.both(x, edge_index, edge_label_index).log_softmax(1)


def ratings() -> HeteroData:
    torch.manual_seed(3)
    data = HeteroData()
    data["user"].x, data["movie"].x = torch.randn(9, 4).double(), torch.randn(12, 3).double()
    edges = torch.unique(torch.stack([torch.randint(9, (50,)), torch.randint(12, (50,))]), dim=1)
    data[RATES].edge_index, data[BACK].edge_index = edges, edges.flip(0).contiguous()
    for kind in (RATES, BACK):
        data[kind].edge_weight = torch.rand(edges.shape[1]).double() + 0.1
    data[RATES].edge_label_index = torch.stack([torch.arange(8), torch.arange(3, 11)])
    return data


class Ratings(nn.Module):
    """Layers whose weights can be handed in, so that reweighting needs none of our code."""

    def __init__(self, bent: bool = False) -> None:
        super().__init__()
        first = {RATES: GraphConv((4, 3), 6), BACK: GraphConv((3, 4), 6)}
        self.conv1 = HeteroConv(first)
        self.conv2 = HeteroConv({kind: GraphConv((6, 6), 5) for kind in first})
        self.bent = bent

    def embeddings(self, x_dict, edge_index_dict, edge_weight_dict, first=None):
        given = {} if first is None else {"edge_weight_dict": first}
        found = self.conv1(x_dict, edge_index_dict, **given)
        hidden = {kind: x.relu() for kind, x in found.items()}
        return self.conv2(hidden, edge_index_dict, edge_weight_dict=edge_weight_dict)

    def forward(self, x_dict, edge_index_dict, edge_weight_dict, edge_label_index):
        z = self.embeddings(x_dict, edge_index_dict, edge_weight_dict)
        user, movie = z["user"][edge_label_index[0]], z["movie"][edge_label_index[1]]
        return (user.tanh() * movie if self.bent else user * movie).sum(1)


class RatingsOfData(Ratings):
    def forward(self, data):
        return super().forward(
            data.x_dict, data.edge_index_dict, data.edge_weight_dict, data[RATES].edge_label_index
        )
