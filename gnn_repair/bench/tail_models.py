"""Two-layer GCNs that do not end affinely, trained for a short while, and their exposures."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, Group
from gnn_repair.exposure.tails.operations import (
    Activation,
    Affine,
    Concatenate,
    Constant,
    LayerNorm,
    Operation,
    Scale,
    TailGraph,
)
from gnn_repair.exposure.tails.tailed import TailedExposure

TAILS = ("relu", "bn-residual", "jk-cat", "mlp", "layer-norm", "gelu")
"""What follows the last aggregation, before a linear layer: ReLU; batch norm, a residual and ReLU;
ReLU beside the first layer's output; ReLU, linear, ReLU; a residual, layer norm and ReLU; GELU."""


class TailModel(nn.Module):
    """Two layers of Â h W + b, then one of the TAILS and a linear layer."""

    def __init__(self, features: int, hidden: int, classes: int, tail: str) -> None:
        super().__init__()
        if tail not in TAILS:
            raise InputError(f"there is no tail {tail!r}; choose one of {', '.join(TAILS)}")
        self.tail = tail
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.batch_norm, self.layer_norm = nn.BatchNorm1d(hidden), nn.LayerNorm(hidden)
        self.middle = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden * (2 if tail == "jk-cat" else 1), classes)

    def messages(self, x: Tensor, adjacency: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's output, and what the last aggregation mixes."""
        early = torch.sparse.mm(adjacency, x @ self.first.weight.t()) + self.first.bias
        early = functional.dropout(early.relu(), 0.5, self.training)
        return early, early @ self.second.weight.t()

    def finish(self, aggregate: Tensor, early: Tensor) -> Tensor:
        """The logits from the last aggregation on."""
        a = aggregate + self.second.bias
        if self.tail == "bn-residual":
            a = self.batch_norm(a) + early
        if self.tail == "layer-norm":
            a = self.layer_norm(a + early)
        a = functional.gelu(a) if self.tail == "gelu" else a.relu()
        if self.tail == "mlp":
            a = self.middle(a).relu()
        return self.head(torch.cat([early, a], dim=1) if self.tail == "jk-cat" else a)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        early, messages = self.messages(x, adjacency)
        return self.finish(torch.sparse.mm(adjacency, messages), early)


def trained(data: Data, tail: str, hidden: int, epochs: int, seed: int = 0) -> TailModel:
    """A model trained on split 0, with the parameters of its best validation accuracy."""
    torch.manual_seed(seed)
    model = TailModel(data.x.shape[1], hidden, int(data.y.max()) + 1, tail)
    adjacency = matrix(data, weights(data))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    x, y = data.x.float(), data.y
    train, val = data.train_mask[:, 0], data.val_mask[:, 0]
    best, state = -1.0, model.state_dict()
    for epoch in range(epochs):
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(x, adjacency)[train], y[train]).backward()
        optimizer.step()
        if epoch % 5 == 4 or epoch == epochs - 1:
            model.eval()
            with torch.no_grad():
                right = float((model(x, adjacency).argmax(1) == y)[val].float().mean())
            if right > best:
                best, state = right, {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    return model.eval()


def entries(data: Data) -> tuple[Tensor, Tensor]:
    """Sources and recipients of the entries, sorted by recipient."""
    source, recipient = data.edge_index
    order = (recipient * data.num_nodes + source).argsort(stable=True)
    return source[order], recipient[order]


def weights(data: Data) -> Tensor:
    """Â of the entries: 1 / √(d d′)."""
    source, recipient = entries(data)
    degree = torch.bincount(recipient, minlength=data.num_nodes).double()
    return (degree[source] * degree[recipient]).rsqrt().float()


def matrix(data: Data, values: Tensor) -> Tensor:
    """A sparse N × N matrix with these values on the entries."""
    source, recipient = entries(data)
    index = torch.stack([recipient, source])
    size = (data.num_nodes, data.num_nodes)
    return torch.sparse_coo_tensor(index, values, size, is_coalesced=True, check_invariants=False)


def tail_exposure(model: TailModel, data: Data) -> TailedExposure:
    """The exposure by algebra; its replay runs the model's own modules in float32."""
    with torch.no_grad():
        early, messages = model.messages(data.x.float(), matrix(data, weights(data)))
        logits = model(data.x.float(), matrix(data, weights(data)))
    aggregate = _mixture(data, messages)
    return TailedExposure(
        aggregate, _graph(model, early), logits.double()[None], None, _replay(model, data)
    )


def _replay(model: TailModel, data: Data) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def replay(coefficients: Tensor) -> Tensor:
        early, messages = model.messages(data.x.float(), matrix(data, weights(data)))
        mixed = torch.sparse.mm(matrix(data, coefficients.float()), messages)
        return model.finish(mixed, early)

    return replay


def _mixture(data: Data, messages: Tensor) -> Exposure:
    source, recipient = entries(data)
    alpha, table, nodes = weights(data), messages.double(), data.num_nodes
    counts = torch.bincount(recipient, minlength=nodes)
    mixed = torch.zeros_like(table).index_add(0, recipient, alpha.double()[:, None] * table[source])
    numbers = torch.arange(nodes, dtype=torch.int32)
    return Exposure(
        groups=(Group("Â", "α = Â, h = the source's vector", "normalised adjacency"),),
        recipients=torch.arange(nodes),
        segments=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        rows=source.int(),
        coefficients=alpha[None],
        contributions=table[None],
        fixed_logits=torch.zeros(1, nodes, table.shape[1], dtype=torch.float64),
        frozen_logits=mixed[None],
        state=messages[None],
        messages=messages[None],
        message_rows=numbers,
        sources=numbers,
        origin="TailModel",
    )


def _graph(model: TailModel, early: Tensor) -> TailGraph:
    """The model's tail as operations."""
    made: list[Operation] = []

    def add(operation: Operation) -> int:
        made.append(operation)
        return len(made)

    def number(tensor: Tensor) -> Tensor:
        return tensor.detach().double()

    def unit(value: int, name: str = "relu") -> int:
        return add(Activation((value,), name, torch.zeros((), dtype=torch.float64)))

    width, skip = model.second.out_features, number(early)
    ones, bias = torch.ones(width, dtype=torch.float64), number(model.second.bias)
    if model.tail == "bn-residual":
        norm = model.batch_norm
        assert norm.running_var is not None and norm.running_mean is not None
        factor = number(norm.weight) / (number(norm.running_var) + norm.eps).sqrt()
        shift = (bias - number(norm.running_mean)) * factor + number(norm.bias)
        last = unit(add(Scale((0,), factor, shift + skip)))
    elif model.tail == "layer-norm":
        start, norm_ = add(Scale((0,), ones, bias + skip)), model.layer_norm
        weight, shift = number(norm_.weight), number(norm_.bias)
        last = unit(add(LayerNorm((start,), width, weight, shift, norm_.eps)))
    else:
        last = unit(add(Scale((0,), ones, bias)), "gelu" if model.tail == "gelu" else "relu")
    if model.tail == "mlp":
        middle = Affine((last,), number(model.middle.weight), number(model.middle.bias))
        last = unit(add(middle))
    if model.tail == "jk-cat":
        last = add(Concatenate((add(Constant((), skip)), last)))
    add(Affine((last,), number(model.head.weight), number(model.head.bias)))
    return TailGraph(width, tuple(made))
