"""The census of further styles: what each of them gives, or the cause of its refusal."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from tests.helpers.models import census_models as c
from tests.helpers.models.census_models import CLASSES, FEATURES, WIDTH

NODES = 24
AFFINE, TAILED = "affine", "tail"


@dataclass(frozen=True)
class Style:
    """One way to write a model."""

    build: Callable[[Data], Any]
    gives: str
    """``affine``, ``tail``, or a part of the sentence it is refused with."""
    forward: Callable[..., Any] | None = None


def graph(dtype: torch.dtype = torch.float64) -> Data:
    """Random and directed, with self-loops, edge features and labels."""
    generator = torch.Generator().manual_seed(5)
    chance = torch.rand(NODES, NODES, generator=generator)
    chance.fill_diagonal_(0)
    index = (chance < 0.16).nonzero().t().contiguous()
    return Data(
        x=torch.randn(NODES, FEATURES, generator=generator, dtype=dtype),
        edge_index=index,
        edge_attr=torch.rand(index.shape[1], 3, generator=generator, dtype=dtype),
        y=torch.arange(NODES) % CLASSES,
    )


def degrees(data: Data) -> torch.Tensor:
    return torch.bincount(torch.bincount(data.edge_index[1], minlength=NODES))


def adjacency(data: Data) -> torch.Tensor:
    dense = torch.zeros(NODES, NODES, dtype=data.x.dtype)
    dense[data.edge_index[1], data.edge_index[0]] = 1.0
    return dense / dense.sum(1, keepdim=True).clamp(min=1)


def pna(aggregators: list[str]) -> Callable[[Data], nn.Module]:
    def build(data: Data) -> nn.Module:
        more = {"aggregators": aggregators, "scalers": ["identity", "amplification"]}
        return c.Two(pyg.PNAConv, deg=degrees(data), **more)

    return build


def several(*aggregators: str) -> Callable[[Data], nn.Module]:
    """SAGEConv with several aggregators side by side."""
    return lambda data: c.Two(pyg.SAGEConv, aggr=list(aggregators))


def plain(kind: Callable[..., nn.Module], *args: Any, **more: Any) -> Callable[[Data], nn.Module]:
    return lambda data: kind(*args, **more)


def rows_of_graph(data: Data) -> nn.Module:
    data.adj = adjacency(data)
    return c.AdjacencyRows(NODES)


def sequential(data: Data) -> nn.Module:
    return pyg.Sequential(
        "x, edge_index",
        [
            (pyg.GCNConv(FEATURES, WIDTH), "x, edge_index -> x"), nn.ReLU(),
            (pyg.GCNConv(WIDTH, WIDTH), "x, edge_index -> x"), nn.ReLU(),
            nn.Linear(WIDTH, CLASSES),
        ],
    )  # fmt: skip


def hetero(data: Data) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.HeteroConv({("a", "to", "a"): pyg.SAGEConv(FEATURES, CLASSES)})

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            return self.conv(x_dict, edge_index_dict)

    return Net()


STYLES: dict[str, Style] = {
    "PNA, mean and sum": Style(pna(["mean", "sum"]), AFFINE),
    "PNA with max and std": Style(pna(["mean", "max", "std"]), TAILED),
    "SAGE with mean and sum": Style(several("mean", "sum"), AFFINE),
    "SAGE with softmax aggregation": Style(plain(c.Two, pyg.SAGEConv, aggr="softmax"), AFFINE),
    "SAGE with median": Style(plain(c.Two, pyg.SAGEConv, aggr="median"), "`sort`"),
    "F.layer_norm": Style(plain(c.Functional), TAILED),
    "einsum experts": Style(plain(c.Einsum), TAILED),
    "index_select": Style(plain(c.Selected), TAILED),
    "weight_norm": Style(plain(c.WeightNorm, weight_norm), TAILED),
    "spectral_norm by parametrization": Style(
        plain(c.WeightNorm, parametrizations.spectral_norm), TAILED
    ),
    "MultiheadAttention over layers": Style(plain(c.HopAttention), TAILED),
    "MultiheadAttention over nodes": Style(plain(c.NodeAttention), AFFINE),
    "softmax over hops": Style(plain(c.HopSoftmax), TAILED),
    "JK lstm": Style(plain(c.Jumping, "lstm"), TAILED),
    "JK max": Style(plain(c.Jumping, "max"), TAILED),
    "BatchNorm": Style(plain(c.Normed, nn.BatchNorm1d(WIDTH)), TAILED),
    "PairNorm": Style(plain(c.Normed, pyg.PairNorm()), TAILED),
    "GraphNorm": Style(plain(c.Normed, pyg.GraphNorm(WIDTH)), TAILED),
    "InstanceNorm of PyG": Style(plain(c.Normed, pyg.InstanceNorm(WIDTH)), "`norm` (InstanceNorm)"),
    "MessageNorm": Style(plain(c.Normed, pyg.MessageNorm(True), "message"), TAILED),
    "returns a dict with logits": Style(plain(c.Answer, "dict"), TAILED),
    "returns (logits, embedding)": Style(plain(c.Answer, "tuple"), TAILED),
    "returns (embedding, logits)": Style(plain(c.Answer, "embedding first"), TAILED),
    "returns a dataclass": Style(plain(c.Answer, "dataclass"), TAILED),
    "returns a list": Style(plain(c.Answer, "list"), TAILED),
    "dense adjacency as a buffer": Style(lambda data: c.DenseBuffer(adjacency(data)), TAILED),
    "index_add by hand": Style(plain(c.ByScatter, "index_add"), TAILED),
    "scatter_add by hand": Style(plain(c.ByScatter, "scatter_add"), TAILED),
    "scatter mean by hand": Style(plain(c.ByScatter, "mean"), TAILED),
    "attention by hand": Style(plain(c.ByScatter, "attention"), TAILED),
    "scatter max by hand": Style(plain(c.ByScatter, "max"), "`scatter_reduce` (amax)"),
    "edge messages by hand": Style(plain(c.ByScatter, "edge"), TAILED),
    "gated by hand, statement form": Style(plain(c.ByScatter, "statement"), TAILED),
    "index_add by hand, nothing after": Style(plain(c.PlainEnd, "index_add"), AFFINE),
    "linear end, root weights": Style(plain(c.Two, pyg.SAGEConv), AFFINE),
    "NNConv": Style(
        lambda data: c.EdgeFeatures(pyg.NNConv(WIDTH, WIDTH, nn.Linear(3, WIDTH * WIDTH))), TAILED
    ),
    "Sequential of PyG": Style(sequential, TAILED),
    "DataParallel": Style(lambda data: nn.DataParallel(c.Functional()).cpu(), TAILED),
    "TorchScript": Style(
        lambda data: torch.jit.script(nn.Sequential(nn.Linear(6, 4))), "TorchScript"
    ),
    "torch.compile": Style(lambda data: torch.compile(c.Functional()), "_orig_mod"),
    "a pair unpacked, logits beside their log_softmax": Style(plain(c.Unpacked), AFFINE),
    "hops detached in place": Style(lambda data: c.Detached(adjacency(data)), TAILED),
    "linear layer on adjacency rows": Style(rows_of_graph, TAILED),
    "EGConv": Style(plain(c.Two, pyg.EGConv, num_heads=2, num_bases=2), AFFINE),
    "EGConv with several aggregators": Style(
        plain(c.Two, pyg.EGConv, num_heads=2, aggregators=["sum", "mean", "max"]), AFFINE
    ),
    "loop over nodes": Style(plain(c.Unseen, "loop"), AFFINE),
    "MultiheadAttention with the graph as mask": Style(plain(c.Unseen, "attention"), AFFINE),
    "HeteroConv": Style(hetero, "node types"),
    "half precision": Style(lambda data: c.Half().half(), "convert it with model.float()"),
}


HALF = {"half precision": torch.float16}


def built(name: str):
    torch.manual_seed(3)
    data = graph(HALF.get(name, torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old spellings of weight_norm, and TorchScript
        model = STYLES[name].build(data)
    if name not in HALF and name != "TorchScript":
        model = model.to(torch.float64)
    return model.eval(), data
