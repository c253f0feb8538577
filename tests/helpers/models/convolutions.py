"""Every convolution with a rule, redone densely by hand.

Each case says how to build the convolution, which dense matrices [N, N] (recipient × source) its
groups have, and how its output follows from such matrices, in formulas of their own that share
nothing with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

NODES, WIDTH, CLASSES, RELATIONS = 24, 6, 4, 3


def graph(dtype: torch.dtype = torch.float64) -> Data:
    """A random directed graph without duplicate entries; the last two nodes are isolated."""
    generator = torch.Generator().manual_seed(3)
    chance = torch.rand(NODES, NODES, generator=generator)
    chance[-2:], chance[:, -2:] = 1, 1
    index = (chance < 0.15).nonzero().t().contiguous()
    # Shuffled, so that nothing may rely on sorted entries.
    index = index[:, torch.randperm(index.shape[1], generator=generator)]
    count = index.shape[1]
    return Data(
        x=torch.randn(NODES, 5, generator=generator, dtype=dtype),
        edge_index=index,
        edge_weight=torch.rand(count, generator=generator, dtype=dtype) + 0.2,
        signed_weight=torch.randn(count, generator=generator, dtype=dtype),
        edge_attr=torch.randn(count, 3, generator=generator, dtype=dtype),
        edge_type=torch.randint(RELATIONS, (count,), generator=generator),
    )


Call = Callable[[Any, Tensor, Data], Tensor]
Operators = Callable[[Any, Tensor, Data], list[Tensor]]
ByHand = Callable[[Any, Tensor, Data, list[Tensor]], Tensor]


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    operators: Operators
    by_hand: ByHand
    call: Call = lambda conv, x, data: conv(x, data.edge_index)
    width: int = 8
    hops: str = "paths"


class Net(nn.Module):
    """Convolution, ReLU, the convolution under test, linear head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(5, WIDTH)
        self.conv2 = case.build()
        self.lin = nn.Linear(case.width, CLASSES)
        self.call = case.call

    def hidden(self, data: Data) -> Tensor:
        hidden: Tensor = self.conv1(data.x, data.edge_index).relu()
        return hidden

    def forward(self, data: Data) -> Tensor:
        logits: Tensor = self.lin(self.call(self.conv2, self.hidden(data), data))
        return logits


# Dense matrices -------------------------------------------------------------------------------


def dense(data: Data, values: Tensor | None = None) -> Tensor:
    """[N, N, …]: entry (recipient, source)."""
    source, recipient = data.edge_index
    values = torch.ones_like(data.edge_weight) if values is None else values
    out = values.new_zeros(NODES, NODES, *values.shape[1:])
    out[recipient, source] = values
    return out


def loops(adjacency: Tensor, fill: float = 1.0) -> Tensor:
    """With a self-loop of the given value where there is none."""
    missing = adjacency.diagonal() == 0
    return adjacency + torch.diag(missing.to(adjacency) * fill)


def normalised(adjacency: Tensor) -> Tensor:
    scale = adjacency.sum(1).pow(-0.5)
    scale[scale.isinf()] = 0
    return scale.view(-1, 1) * adjacency * scale.view(1, -1)


def gcn(data: Data, weight: Tensor | None = None) -> Tensor:
    return normalised(loops(dense(data, weight)))


def bare(data: Data) -> Tensor:
    return normalised(dense(data))


def row_mean(adjacency: Tensor) -> Tensor:
    return adjacency / (adjacency != 0).sum(1, keepdim=True).clamp(min=1)


def power(matrix: Tensor, exponent: int) -> Tensor:
    return torch.linalg.matrix_power(matrix, exponent)


def heads_of(index: Tensor, attention: Tensor) -> list[Tensor]:
    """Attention [T, H] over its own entries as one dense matrix per head."""
    out = attention.new_zeros(NODES, NODES, attention.shape[1])
    out[index[1], index[0]] = attention
    return list(out.unbind(-1))


def returned_attention(conv: Any, x: Tensor, *extra: Tensor, index: Tensor) -> list[Tensor]:
    _, (entries, attention) = conv(x, index, *extra, return_attention_weights=True)
    return heads_of(entries, attention)


def by_sign(matrix: Tensor) -> list[Tensor]:
    return [part for part in (matrix.clamp(min=0), (-matrix).clamp(min=0)) if bool(part.any())]


def head_outputs(states: Tensor, operators: list[Tensor], concat: bool) -> Tensor:
    """states [N, H, D]."""
    parts = [operator @ states[:, head] for head, operator in enumerate(operators)]
    return torch.cat(parts, 1) if concat else torch.stack(parts).mean(0)


# By hand ---------------------------------------------------------------------------------------


def gat_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    states = conv.lin(x).view(NODES, conv.heads, -1)
    out = head_outputs(states, operators, conv.concat) + conv.bias
    return out if conv.res is None else out + conv.res(x)


def transformer_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    value = conv.lin_value(x).view(NODES, conv.heads, -1)
    pairs = value.expand(NODES, *value.shape)
    if conv.lin_edge is not None:
        vectors = conv.lin_edge(data.edge_attr).view(-1, conv.heads, value.shape[-1])
        pairs = pairs + dense(data, vectors)
    out = torch.einsum("hvu,vuhd->vhd", torch.stack(operators), pairs)
    return out.flatten(1) + conv.lin_skip(x)


def sage_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    sent = conv.lin(x).relu() if conv.project else x
    return conv.lin_l(operators[0] @ sent) + conv.lin_r(x)


def graph_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    return conv.lin_rel(operators[0] @ x) + conv.lin_root(x)


def streams_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    return sum(lin(op @ x) for lin, op in zip(conv.lins, operators, strict=True)) + conv.bias


def mixhop_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    parts = [conv.lins[p](op @ x) for p, op in zip(conv.powers, operators, strict=True)]
    return torch.cat(parts, 1) + conv.bias


def cheb_operators(conv: Any, x: Tensor, data: Data) -> list[Tensor]:
    adjacency = dense(data) - torch.diag(dense(data).diagonal())
    # PyG's Laplacian takes degrees over sources.
    scale = adjacency.sum(0).pow(-0.5)
    scale[scale.isinf()] = 0
    laplacian = torch.eye(NODES, dtype=x.dtype) - scale.view(-1, 1) * adjacency * scale.view(1, -1)
    scaled = 2 * laplacian / (2 * laplacian.max()) - torch.eye(NODES, dtype=x.dtype)
    second = 2 * scaled @ scaled - torch.eye(NODES, dtype=x.dtype)
    second[second.abs() < 1e-14] = 0
    return [torch.eye(NODES, dtype=x.dtype), *by_sign(scaled), *by_sign(second)]


def cheb_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    identity, first_minus, second_plus, second_minus = operators
    streams = [identity, -first_minus, second_plus - second_minus]
    return streams_by_hand(conv, x, data, streams)


def ppr(conv: Any, x: Tensor, data: Data) -> list[Tensor]:
    hop, alpha = gcn(data), conv.alpha
    total = sum(alpha * (1 - alpha) ** k * power(hop, k) for k in range(conv.K))
    return [total + (1 - alpha) ** conv.K * power(hop, conv.K)]


def ssg_operator(conv: Any, x: Tensor, data: Data) -> list[Tensor]:
    powers = sum(power(gcn(data), k) for k in range(1, conv.K + 1))
    return [conv.alpha * torch.eye(NODES, dtype=x.dtype) + (1 - conv.alpha) / conv.K * powers]


def gine_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    pairs = (x.unsqueeze(0) + dense(data, conv.lin(data.edge_attr))).relu()
    return conv.nn(torch.einsum("vu,vud->vd", operators[0], pairs) + (1 + conv.eps) * x)


def relations(conv: Any, x: Tensor, data: Data) -> list[Tensor]:
    kinds = [dense(data, (data.edge_type == r).to(x)) for r in range(RELATIONS)]
    return [row_mean(kind) for kind in kinds]


def rgcn_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    parts = [op @ x @ conv.weight[r] for r, op in enumerate(operators)]
    return sum(parts) + x @ conv.root + conv.bias


def dir_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    inward, outward = operators
    along = conv.conv_in.lin_l(inward @ x)
    against = conv.conv_out.lin_l(outward @ x)
    return conv.alpha * against + (1 - conv.alpha) * along + conv.lin(x)


def hetero() -> nn.Module:
    return pyg.HeteroConv(
        {
            ("node", "cites", "node"): pyg.GCNConv(WIDTH, 8),
            ("node", "likes", "node"): pyg.SAGEConv(WIDTH, 8),
        },
        aggr="sum",
    )


def hetero_call(conv: Any, x: Tensor, data: Data) -> Tensor:
    back = data.edge_index.flip(0)
    edges = {("node", "cites", "node"): data.edge_index, ("node", "likes", "node"): back}
    out: Tensor = conv({"node": x}, edges)["node"]
    return out


def hetero_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    cites, likes = conv.convs.values()
    return operators[0] @ cites.lin(x) + cites.bias + likes.lin_l(operators[1] @ x) + likes.lin_r(x)


def arma_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    parts = [
        op @ (x @ conv.init_weight[k]) + x @ conv.root_weight[0, k] + conv.bias[0, k, 0]
        for k, op in enumerate(operators)
    ]
    return torch.stack(parts).mean(0)


def agnn_operator(conv: Any, x: Tensor, data: Data) -> list[Tensor]:
    similar = nn.functional.normalize(x, dim=1)
    scores = conv.beta * similar @ similar.t()
    return [scores.masked_fill(loops(dense(data)) == 0, -torch.inf).softmax(1)]


def supergat_operators(conv: Any, x: Tensor, data: Data) -> list[Tensor]:
    states = conv.lin(x).view(NODES, conv.heads, -1)
    absent = loops(dense(data)) == 0
    out = []
    for head in range(conv.heads):
        h = states[:, head]
        scores = (h @ conv.att_l[0, head]).view(1, -1) + (h @ conv.att_r[0, head]).view(-1, 1)
        scores = nn.functional.leaky_relu(scores * (h @ h.t()).sigmoid(), conv.negative_slope)
        out.append(scores.masked_fill(absent, -torch.inf).softmax(1))
    return out


def supergat_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    states = conv.lin(x).view(NODES, conv.heads, -1)
    return head_outputs(states, operators, conv.concat) + conv.bias


def fa_operators(conv: Any, x: Tensor, data: Data) -> list[Tensor]:
    scores = (conv.att_l(x).view(1, -1) + conv.att_r(x).view(-1, 1)).tanh()
    return by_sign(scores * gcn(data))


def gcn2_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    out = (1 - conv.alpha) * (operators[0] @ x) + conv.alpha * x
    return (1 - conv.beta) * out + conv.beta * (out @ conv.weight1)


def mf_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    degree = dense(data).sum(1).long().clamp(max=conv.max_degree)
    mixed = operators[0] @ x
    rows = [conv.lins_l[d](mixed[v]) + conv.lins_r[d](x[v]) for v, d in enumerate(degree.tolist())]
    return torch.stack(rows)


def gated_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    gate = (conv.lin_key(x).unsqueeze(1) + conv.lin_query(x).unsqueeze(0)).sigmoid()
    pairs = gate * conv.lin_value(x).unsqueeze(0)
    return torch.einsum("vu,vud->vd", operators[0], pairs) + conv.lin_skip(x) + conv.bias


def pdn_operator(conv: Any, x: Tensor, data: Data) -> list[Tensor]:
    return [gcn(data, conv.mlp(data.edge_attr).squeeze(-1))]


def with_weight(conv: Any, x: Tensor, data: Data) -> Tensor:
    return conv(x, data.edge_index, data.edge_weight)


def with_signed_weight(conv: Any, x: Tensor, data: Data) -> Tensor:
    return conv(x, data.edge_index, data.signed_weight)


def with_attributes(conv: Any, x: Tensor, data: Data) -> Tensor:
    return conv(x, data.edge_index, data.edge_attr)


def with_types(conv: Any, x: Tensor, data: Data) -> Tensor:
    return conv(x, data.edge_index, data.edge_type)


def linear_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    return conv.lin(operators[0] @ x)


def plain_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    return operators[0] @ x


def gcn_by_hand(conv: Any, x: Tensor, data: Data, operators: list[Tensor]) -> Tensor:
    return operators[0] @ conv.lin(x) + conv.bias


CASES: dict[str, Case] = {
    "GCNConv": Case(lambda: pyg.GCNConv(WIDTH, 8), lambda c, x, d: [gcn(d)], gcn_by_hand),
    "GCNConv cached": Case(
        lambda: pyg.GCNConv(WIDTH, 8, cached=True), lambda c, x, d: [gcn(d)], gcn_by_hand
    ),
    "GCNConv edge weights": Case(
        lambda: pyg.GCNConv(WIDTH, 8),
        lambda c, x, d: [gcn(d, d.edge_weight)],
        gcn_by_hand,
        call=with_weight,
    ),
    "GCNConv signed weights": Case(
        lambda: pyg.GCNConv(WIDTH, 8, normalize=False),
        lambda c, x, d: by_sign(dense(d, d.signed_weight)),
        lambda c, x, d, ops: gcn_by_hand(c, x, d, [ops[0] - ops[1]]),
        call=with_signed_weight,
    ),
    "GATConv": Case(
        lambda: pyg.GATConv(WIDTH, 8),
        lambda c, x, d: returned_attention(c, x, index=d.edge_index),
        gat_by_hand,
    ),
    "GATConv heads": Case(
        lambda: pyg.GATConv(WIDTH, 4, heads=3, dropout=0.5),
        lambda c, x, d: returned_attention(c, x, index=d.edge_index),
        gat_by_hand,
        width=12,
    ),
    "GATConv mean, residual, edge_attr": Case(
        lambda: pyg.GATConv(WIDTH, 8, heads=2, concat=False, residual=True, edge_dim=3),
        lambda c, x, d: returned_attention(c, x, d.edge_attr, index=d.edge_index),
        gat_by_hand,
        call=with_attributes,
    ),
    "TransformerConv edge_attr": Case(
        lambda: pyg.TransformerConv(WIDTH, 4, heads=2, edge_dim=3),
        lambda c, x, d: returned_attention(c, x, d.edge_attr, index=d.edge_index),
        transformer_by_hand,
        call=with_attributes,
    ),
    "SAGEConv mean": Case(
        lambda: pyg.SAGEConv(WIDTH, 8), lambda c, x, d: [row_mean(dense(d))], sage_by_hand
    ),
    "SAGEConv sum": Case(
        lambda: pyg.SAGEConv(WIDTH, 8, aggr="sum"), lambda c, x, d: [dense(d)], sage_by_hand
    ),
    "GraphConv mean, edge weights": Case(
        lambda: pyg.GraphConv(WIDTH, 8, aggr="mean"),
        lambda c, x, d: [row_mean(dense(d, d.edge_weight))],
        graph_by_hand,
        call=with_weight,
    ),
    "SGConv": Case(
        lambda: pyg.SGConv(WIDTH, 8, K=2), lambda c, x, d: [power(gcn(d), 2)], linear_by_hand
    ),
    "SGConv last hop": Case(
        lambda: pyg.SGConv(WIDTH, 8, K=2),
        lambda c, x, d: [gcn(d)],
        lambda c, x, d, ops: c.lin(ops[0] @ (gcn(d) @ x)),
        hops="last",
    ),
    "SSGConv": Case(lambda: pyg.SSGConv(WIDTH, 8, alpha=0.2, K=3), ssg_operator, linear_by_hand),
    "TAGConv": Case(
        lambda: pyg.TAGConv(WIDTH, 8, K=2),
        lambda c, x, d: [power(bare(d), k) for k in range(3)],
        streams_by_hand,
    ),
    "MixHopConv": Case(
        lambda: pyg.MixHopConv(WIDTH, 4, powers=[0, 1, 2]),
        lambda c, x, d: [power(gcn(d), p) for p in range(3)],
        mixhop_by_hand,
        width=12,
    ),
    "APPNP": Case(lambda: pyg.APPNP(K=4, alpha=0.1), ppr, plain_by_hand, width=WIDTH),
    "ChebConv": Case(lambda: pyg.ChebConv(WIDTH, 8, K=3), cheb_operators, cheb_by_hand),
    "GINConv": Case(
        lambda: pyg.GINConv(nn.Linear(WIDTH, 8), train_eps=True),
        lambda c, x, d: [dense(d)],
        lambda c, x, d, ops: c.nn(ops[0] @ x + (1 + c.eps) * x),
    ),
    "GINEConv": Case(
        lambda: pyg.GINEConv(nn.Linear(WIDTH, 8), edge_dim=3),
        lambda c, x, d: [dense(d)],
        gine_by_hand,
        call=with_attributes,
    ),
    "RGCNConv": Case(
        lambda: pyg.RGCNConv(WIDTH, 8, RELATIONS), relations, rgcn_by_hand, call=with_types
    ),
    "FastRGCNConv": Case(
        lambda: pyg.FastRGCNConv(WIDTH, 8, RELATIONS), relations, rgcn_by_hand, call=with_types
    ),
    "DirGNNConv": Case(
        lambda: pyg.DirGNNConv(pyg.SAGEConv(WIDTH, 8), alpha=0.3),
        lambda c, x, d: [row_mean(dense(d)), row_mean(dense(d).t())],
        dir_by_hand,
    ),
    "HeteroConv": Case(
        hetero, lambda c, x, d: [gcn(d), row_mean(dense(d).t())], hetero_by_hand, call=hetero_call
    ),
    "ARMAConv": Case(
        lambda: pyg.ARMAConv(WIDTH, 8, num_stacks=2, act=None),
        lambda c, x, d: [bare(d), bare(d)],
        arma_by_hand,
    ),
    "AGNNConv": Case(pyg.AGNNConv, agnn_operator, plain_by_hand, width=WIDTH),
    "SuperGATConv": Case(
        lambda: pyg.SuperGATConv(WIDTH, 4, heads=2), supergat_operators, supergat_by_hand
    ),
    "FAConv": Case(
        lambda: pyg.FAConv(WIDTH, eps=0.2),
        fa_operators,
        lambda c, x, d, ops: (ops[0] - ops[1]) @ x + c.eps * x,
        call=lambda conv, x, data: conv(x, x, data.edge_index),
        width=WIDTH,
    ),
    "GCN2Conv": Case(
        lambda: pyg.GCN2Conv(WIDTH, alpha=0.2, theta=0.5, layer=2),
        lambda c, x, d: [gcn(d)],
        gcn2_by_hand,
        call=lambda conv, x, data: conv(x, x, data.edge_index),
        width=WIDTH,
    ),
    "MFConv": Case(
        lambda: pyg.MFConv(WIDTH, 8, max_degree=3), lambda c, x, d: [dense(d)], mf_by_hand
    ),
    "PDNConv": Case(
        lambda: pyg.PDNConv(WIDTH, 8, edge_dim=3, hidden_channels=4),
        pdn_operator,
        gcn_by_hand,
        call=with_attributes,
    ),
    "ResGatedGraphConv": Case(
        lambda: pyg.ResGatedGraphConv(WIDTH, 8), lambda c, x, d: [dense(d)], gated_by_hand
    ),
}
"""Names start with the class of the convolution they test."""
