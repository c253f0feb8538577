"""What every model of the gallery is expected to give."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import models

from gnn_repair.exposure import Exposure, expose
from tests.helpers.models import gallery_models as g
from tests.helpers.models.gallery_models import CLASSES, FEATURES, RELATIONS, WIDTH, Head

NODES = 26


def graph(dtype: torch.dtype = torch.float64) -> Data:
    """Random and directed, no parallel entries, no self-loops; the last node is isolated."""
    generator = torch.Generator().manual_seed(17)
    chance = torch.rand(NODES, NODES, generator=generator)
    chance.fill_diagonal_(1)
    chance[-1], chance[:, -1] = 1, 1
    index = (chance < 0.14).nonzero().t().contiguous()
    index = index[:, torch.randperm(index.shape[1], generator=generator)]
    return Data(
        x=torch.randn(NODES, FEATURES, generator=generator, dtype=dtype),
        edge_index=index,
        edge_type=torch.randint(RELATIONS, (index.shape[1],), generator=generator),
    )


@dataclass(frozen=True)
class Entry:
    """A model that gives a tailed exposure."""

    build: Callable[[], nn.Module]
    tail: str
    """The tail's operations in a line; empty: not worth fixing."""
    final: tuple[str, ...] = ("conv2",)
    """The convolutions whose last run is reweighted, in the order of their groups; none: judged by
    the model's own operations, replaced one by one."""
    kind: str = "bounded"
    by_hand: Callable[[Any, Data, list[Tensor]], Tensor] | None = field(default=None)
    """For filters of several hops: the logits from dense operators, one a group."""


def head(after: Any, tail: str, kind: str = "bounded", **keys: Any) -> Entry:
    # Copied, since a model is moved to another precision where it stands.
    return Entry(lambda: Head(*deepcopy([after]), **deepcopy(keys)), tail, kind=kind)


linear = "piecewise linear"

ACTIVATIONS = {
    "ReLU": head(nn.ReLU(), "relu, affine", linear),
    "F.relu in place": head(partial(F.relu, inplace=True), "relu, affine", linear),
    "leaky ReLU": head(nn.LeakyReLU(0.1), "leaky_relu, affine", linear),
    "PReLU": Entry(lambda: Head(nn.PReLU(WIDTH)), "leaky_relu, affine", kind=linear),
    "ELU": head(F.elu, "elu, affine"),
    "SELU": head(F.selu, "elu, affine"),
    "CELU": head(nn.CELU(0.7), "elu, affine"),
    "GELU": head(nn.GELU(), "gelu, affine"),
    "GELU by tanh": head(nn.GELU(approximate="tanh"), "gelu_tanh, affine"),
    "SiLU": head(nn.SiLU(), "silu, affine"),
    "tanh": head(torch.tanh, "tanh, affine"),
    "sigmoid": head(torch.sigmoid, "sigmoid, affine"),
    "ReLU6": head(nn.ReLU6(), "relu, scale, relu, affine", linear),
    "hardtanh": head(nn.Hardtanh(-3, 3), "relu, scale, relu, affine", linear),
    "threshold": head(nn.Threshold(0.1, 0.1), "relu, affine", linear),
    "absolute value": head(torch.abs, "relu, scale, relu, add, affine", linear),
    "hardswish": head(nn.Hardswish(), ""),
    "GLU": head(nn.GLU(), "sigmoid, multiply, affine", width=WIDTH // 2),
    "softplus": head(nn.Softplus(beta=1.5), "softplus, affine"),
    "mish": head(nn.Mish(), "mish, affine"),
    "opaque softplus": head(nn.Softplus(threshold=19), "softplus, affine", "opaque"),
    "where": head(lambda h: torch.where(h > 0, h, 0.1 * h), "", "opaque"),
    "MLP head": head(
        g.mlp(WIDTH, 12, 12, WIDTH, norm=True), "affine, relu, affine, relu, affine", linear
    ),
    "ReLU, log_softmax": head(
        nn.ReLU(), "relu, affine, log_softmax", linear, end=nn.LogSoftmax(-1)
    ),
    "softmax": head(nn.Softmax(-1), "softmax, affine"),
    "sigmoid output": head(nn.Identity(), "sigmoid", end=nn.Sigmoid()),
    "maxout": head(
        lambda h: h.view(-1, 2, WIDTH // 2).amax(1), "maximum, affine", linear, width=WIDTH // 2
    ),
    "square": head(torch.square, "square, affine"),
}

NORMS = {
    "LayerNorm": head(nn.LayerNorm(WIDTH), "layer_norm, affine"),
    "LayerNorm of PyG by node": head(pyg.LayerNorm(WIDTH, mode="node"), "layer_norm, affine"),
    "GroupNorm, ReLU": head(
        nn.Sequential(nn.GroupNorm(2, WIDTH), nn.ReLU()), "layer_norm, relu, affine"
    ),
    "BatchNorm, ReLU": Entry(
        lambda: Head(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU())), "relu, affine", kind=linear
    ),
    "L2 normalise": head(F.normalize, "normalize, affine"),
    "own norm without a floor": head(
        lambda h: h / h.norm(dim=1, keepdim=True), "normalize, affine"
    ),
    "L2 by head": head(
        lambda h: F.normalize(h.view(-1, 2, WIDTH // 2), dim=-1).flatten(1), "normalize, affine"
    ),
    "cosine to prototypes": Entry(g.Cosine, "affine, normalize, affine", ("conv",)),
    "root mean square by hand": Entry(partial(g.ByHand, True), "", ("conv",), "bounded"),
    "standardised by hand": Entry(partial(g.ByHand, False), "", ("conv",), "opaque"),
}

TUNED = {
    f"{title}, jumping {jump or 'none'}": Entry(
        partial(g.Tuned, norm, jump),
        f"{steps}relu{', maximum' * (jump == 'max')}, affine",
        ("convs.2",),
        kind,
    )
    for title, norm, steps, kind in (
        ("BatchNorm", nn.BatchNorm1d, "", linear),
        ("LayerNorm", nn.LayerNorm, "layer_norm, ", "bounded"),
    )
    for jump in ("", "sum", "cat", "max", "mean")
}

CONVOLUTIONS = {
    "GINE-like sum, one layer": Entry(
        lambda: Head(nn.ReLU(), pyg.GINConv(g.mlp(WIDTH, WIDTH, WIDTH))),
        "relu, affine, relu, affine", kind=linear,
    ),
    "gates of hops": Entry(g.HopGates, "", ()),
    "GPS beside attention over its input": Entry(
        lambda: Head(nn.ReLU(), pyg.GPSConv(
            WIDTH, pyg.GCNConv(WIDTH, WIDTH), heads=2, norm="layer_norm",
            norm_kwargs={"mode": "node"},
        )),
        "", (),
    ),
    "UniMP": Entry(g.UniMP, "", ("conv2",)),
    "GAT, ELU": Entry(g.Attended, "elu, affine"),
    "GATv2 averaged, ELU": Entry(partial(g.Attended, pyg.GATv2Conv, False), "elu, affine"),
    "SAGE, ReLU": head(nn.ReLU(), "relu, affine", linear, conv=pyg.SAGEConv(WIDTH, WIDTH)),
    "SAGE normalised": head(
        nn.Identity(), "normalize, affine", conv=pyg.SAGEConv(WIDTH, WIDTH, normalize=True)
    ),
    "TransformerConv with beta": head(
        nn.Identity(), "", conv=pyg.TransformerConv(WIDTH, WIDTH, beta=True)
    ),
    "ResGated, ReLU": head(
        nn.ReLU(), "relu, affine", linear, conv=pyg.ResGatedGraphConv(WIDTH, WIDTH)
    ),
    "ARMA with ReLU": head(
        nn.Identity(), "relu, affine", linear, conv=pyg.ARMAConv(WIDTH, WIDTH, 2, act=nn.ReLU())
    ),
    "GRU over steps": head(nn.Identity(), "", conv=pyg.GatedGraphConv(WIDTH, 2)),
    "relations, ReLU": Entry(g.Relational, "relu, affine", ("conv",) * RELATIONS, linear),
    "gate of both": Entry(partial(g.Gated, True), "", ("conv",)),
    "gate of the input": Entry(partial(g.Gated, False), "scale, relu, affine", ("conv",), linear),
    "in place": Entry(g.InPlace, "", ("conv",), linear),
    "tied": Entry(g.Tied, "relu, affine", ("conv",), linear),
}  # fmt: skip

LIBRARY = {
    "models.GIN": Entry(
        partial(models.GIN, FEATURES, WIDTH, 2, CLASSES), "", ("convs.1",), linear
    ),
    "models.GraphSAGE cat": Entry(
        partial(models.GraphSAGE, FEATURES, WIDTH, 2, CLASSES, jk="cat", norm="batch_norm"),
        "relu, affine", ("convs.1",), linear,
    ),
    "models.GAT max": Entry(
        partial(models.GAT, FEATURES, WIDTH, 2, CLASSES, heads=2, jk="max", act="elu"),
        "elu, maximum, affine", ("convs.1",),
    ),
    "models.GCN lstm": Entry(
        partial(models.GCN, FEATURES, WIDTH, 2, CLASSES, jk="lstm"), "", ("convs.1",)
    ),
    "models.GCN max without activation": Entry(
        partial(models.GCN, FEATURES, WIDTH, 2, CLASSES, jk="max", act=None),
        "maximum, affine", ("convs.1",), linear,
    ),
    "models.GCN gelu": Entry(
        partial(
            models.GCN, FEATURES, WIDTH, 2, CLASSES, jk="last", act="gelu", act_first=True,
            norm="layer_norm", norm_kwargs={"mode": "node"},
        ),
        "gelu, layer_norm, affine", ("convs.1",),
    ),
}  # fmt: skip


def _hidden(net: Any, data: Data) -> Tensor:
    hidden: Tensor = net.conv1(data.x, data.edge_index).relu()
    return hidden


FILTERS = {
    "SGConv, ReLU": Entry(
        lambda: Head(nn.ReLU(), pyg.SGConv(WIDTH, WIDTH, K=2)), "relu, affine", kind=linear,
        by_hand=lambda net, data, ops: net.lin(net.conv2.lin(ops[0] @ _hidden(net, data)).relu()),
    ),
    "APPNP, MLP": Entry(
        lambda: Head(g.mlp(WIDTH, WIDTH, WIDTH), pyg.APPNP(3, 0.2)), "relu, affine", kind=linear,
        by_hand=lambda net, data, ops: net.lin(net.after(ops[0] @ _hidden(net, data))),
    ),
    "TAGConv, tanh": Entry(
        lambda: Head(torch.tanh, pyg.TAGConv(WIDTH, WIDTH, K=2)), "tanh, affine",
        by_hand=lambda net, data, ops: net.lin(
            (sum(lin(op @ _hidden(net, data)) for lin, op in zip(net.conv2.lins, ops, strict=True))
             + net.conv2.bias).tanh()
        ),
    ),
    "MixHopConv, ReLU": Entry(
        lambda: Head(nn.ReLU(), pyg.MixHopConv(WIDTH, WIDTH), width=3 * WIDTH), "relu, affine",
        kind=linear,
        by_hand=lambda net, data, ops: net.lin(
            (torch.cat([lin(op @ _hidden(net, data))
                        for lin, op in zip(net.conv2.lins, ops, strict=True)], 1)
             + net.conv2.bias).relu()
        ),
    ),
}  # fmt: skip


TAILED: dict[str, Entry] = {
    **ACTIVATIONS, **NORMS, **TUNED, **CONVOLUTIONS, **LIBRARY, **FILTERS,
}  # fmt: skip


HELD: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "several aggregators, none a sum": (
        lambda: Head(nn.ReLU(), pyg.SAGEConv(WIDTH, WIDTH, aggr=["max", "std"])),
        "`conv2` (SAGEConv) (scatter_reduce amax)",
    ),
    "PairNorm after ReLU": (
        lambda: Head(nn.Sequential(nn.ReLU(), pyg.PairNorm())), "`after.1` (PairNorm) (mean)",
    ),
    "GraphNorm": (lambda: Head(pyg.GraphNorm(WIDTH)), "`after` (GraphNorm) (scatter_add)"),
    "LayerNorm over the graph": (
        lambda: Head(pyg.LayerNorm(WIDTH)), "`after` (LayerNorm) (mean, std)",
    ),
    "mean over all nodes beside": (
        lambda: Head(lambda h: h.relu() + h.mean(0)), "the forward of Head (mean)",
    ),
}  # fmt: skip
"""What is exposed while statistics over all nodes, and their like, are held by name."""


def built(build: Any, dtype: torch.dtype) -> nn.Module:
    """The model with every parameter and statistic drawn, so that nothing hides behind zeros."""
    model = build().to(dtype).eval()
    generator = torch.Generator().manual_seed(23)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            # Matrices that keep the size of what they map; scales and biases around ½.
            matrix = parameter.dim() > 1
            values = 2 * values / parameter.shape[-1] ** 0.5 if matrix else values / 3 + 0.5
            parameter.copy_(values)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return model


def exposed(name: str, dtype: torch.dtype = torch.float64) -> Exposure:
    exposure = expose(built(TAILED[name].build, dtype), graph(dtype))
    assert exposure.head is not None
    return exposure
