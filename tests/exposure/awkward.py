"""Models from outside on which exposing once crashed, was slow, named a wrong cause or was wrong.

``AWKWARD`` says what must happen; every way of finding the final aggregation is held to it.
``WRONG`` are models that are exposed wrongly today. Their convolution adds up nodes' rows without a
bias, so that a node whose features are zero sends nothing: by running a model without one node's
messages a judge sees what the exposure claims of it (:func:`silenced`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.data import Data

NODES, FEATURES, WIDTH, CLASSES = 12, 5, 8, 4


def ring(nodes: int = NODES, dtype: torch.dtype = torch.float32) -> Data:
    """A ring with chords; ``adj`` is its mean aggregation, ``table`` two neighbours of each."""
    generator = torch.Generator().manual_seed(0)
    here = torch.arange(nodes)
    ahead = torch.cat([here + 1, here + 5]) % nodes
    edges = torch.stack([here.repeat(2), ahead])
    edges = torch.cat([edges, edges.flip(0)], 1)
    adj = torch.zeros(nodes, nodes, dtype=dtype)
    adj[edges[1], edges[0]] = 1
    return Data(
        x=torch.randn(nodes, FEATURES, generator=generator, dtype=dtype),
        edge_index=edges,
        adj=adj / adj.sum(1, keepdim=True),
        table=torch.stack([(here + 1) % nodes, (here + 5) % nodes], 1),
    )


def positive() -> Data:
    data = ring()
    data.x = data.x.abs()
    return data


def widened() -> Data:
    """The adjacency matrix stands before the features."""
    data = ring()
    return Data(x=torch.cat([data.adj, data.x], 1), edge_index=data.edge_index)


Step = Callable[..., Any]


class Net(nn.Module):
    """One convolution, which adds up neighbours' rows, and what follows it."""

    def __init__(self, after: nn.Module | Step | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, width, bias=False)
        self.conv = pyg.SimpleConv(aggr="sum")
        self.after = after if after is not None else nn.Identity()
        self.lin = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.after(self.conv(self.enter(x), edge_index)))


class Unused(Net):
    """A product with N columns that nothing reads."""

    runs = 0

    def forward(self, x: Tensor, edge_index: Tensor, adj: Tensor) -> Tensor:  # type: ignore[override]
        self.runs += 1
        self.kept = adj @ adj
        return super().forward(x, edge_index)


class Tracked(Net):
    """The user's features want gradients, and one aggregation is not read."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            self.conv(x, edge_index)
            return super().forward(x, edge_index)


class OneGraph(nn.Module):
    """The readouts of a single graph, side by side."""

    def __init__(self, *pools: Step) -> None:
        super().__init__()
        self.conv, self.pools = pyg.GCNConv(FEATURES, 6), pools
        self.lin = nn.Linear(6 * len(pools), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv(x, edge_index).relu()
        return self.lin(torch.cat([pool(x) for pool in self.pools], -1))


class Tokens(nn.Module):
    """Multi-head attention among a node's own tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.view(-1, 2, 4)
        return self.attention(tokens, tokens, tokens)[0].reshape(-1, 8)


class Shrunk(nn.Module):
    """Rows longer than one are scaled to length one, by a boolean mask."""

    def forward(self, x: Tensor) -> Tensor:
        size = x.norm(dim=1)
        far, out = size > 2, x.clone()
        out[far] = x[far] / size[far].unsqueeze(1)
        return out


class Root(nn.Module):
    """A square root, checked or not."""

    def __init__(self, checked: bool) -> None:
        super().__init__()
        self.checked = checked

    def forward(self, x: Tensor) -> Tensor:
        out = x.sqrt()
        assert not self.checked or not out.isnan().any()
        return out


class Positive(Net):
    """What is aggregated is positive."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.after(self.conv(functional.softplus(self.enter(x)), edge_index)))


class Coarse(nn.Module):
    """Rounds away what float32 does not hold beside large numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 3e3) - 3e3


class Reordered(Net):
    """Attention rounds otherwise where its weights are watched, and the sine amplifies that."""

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = self.enter(x)
        mixed = functional.scaled_dot_product_attention(h, h, h, attn_mask=adj > 0)
        return self.lin((1e5 * mixed).sin())


class Counting(Net):
    """The first run gives something else than those after it."""

    seen = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.seen += 1
        return super().forward(x, edge_index) * (2.0 if self.seen == 1 else 1.0)


class Cached(nn.Module):
    """Keeps its propagated features, as many do by hand."""

    def __init__(self, kept: str = "_cached_x") -> None:
        super().__init__()
        self.name, self.lin = kept, nn.Linear(FEATURES, CLASSES)
        self.encoder = nn.Module()
        setattr(self.encoder, kept, None)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        if getattr(self.encoder, self.name) is None:
            setattr(self.encoder, self.name, adj @ (adj @ x))
        return self.lin(getattr(self.encoder, self.name))


class OnRows(nn.Module):
    """A linear layer on data.x alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x)


class Wider(nn.Module):
    """A product with N × 2N: neighbours, and the node itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = self.lin(x)
        return torch.cat([adj, torch.eye(len(x))], 1) @ torch.cat([h, h / 2])


class SparseBuffer(Net):
    """A persistent sparse buffer, and a mean that reads it."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        adj = ring().adj
        self.register_buffer("adj", getattr(adj, f"to_sparse_{layout}")() if layout else adj)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(torch.sparse.mm(self.adj, self.enter(x)))


class Exposed(NamedTuple):
    """The model is exposed, in at most so many runs of its forward."""

    runs: int | None = None
    mentions: str = ""
    tolerance: float | None = None


class Refused(NamedTuple):
    """The model is refused; the message matches all of these."""

    words: tuple[str, ...]


class Awkward(NamedTuple):
    model: Callable[[], nn.Module]
    data: Callable[[], Data]
    must: Exposed | Refused


def _mixing(function: Step) -> Callable[[], nn.Module]:
    return lambda: Net(function)


AWKWARD: dict[str, Awkward] = {
    "unused product": Awkward(Unused, lambda: ring(60), Exposed(runs=30)),
    "unused aggregation of tracked features": Awkward(Tracked, ring, Exposed()),
    "mean and max of one graph": Awkward(
        lambda: OneGraph(lambda x: x.mean(0), lambda x: x.max(0).values), ring,
        Exposed(mentions="pooled by max"),
    ),
    "mean and min of one graph, kept axes": Awkward(
        lambda: OneGraph(
            lambda x: x.mean(0, keepdim=True), lambda x: torch.min(x, 0, keepdim=True)[0]
        ),
        ring, Exposed(mentions="pooled by min"),
    ),
    **{
        f"mean and {how} of one graph": Awkward(
            lambda pool=pool: OneGraph(lambda x: x.mean(0), pool), ring,  # type: ignore[misc]
            Exposed(mentions=f"pooled by {how}"),
        )
        for how, pool in {
            "std": lambda x: x.std(0),
            "median": lambda x: x.median(0).values,
            "logsumexp": lambda x: x.logsumexp(0),
            "norm": lambda x: x.norm(dim=0),
        }.items()
    },
    "attention over own tokens": Awkward(
        lambda: Net(Tokens()), ring,
        Refused(("bmm", r"`after\.attention`", "scaled_dot_product_attention")),
    ),
    "boolean mask": Awkward(lambda: Net(Shrunk()), ring, Refused(("`after`", r"torch\.where"))),
    "root with a check": Awkward(
        lambda: Positive(Root(True)), ring,
        Refused(("AssertionError", r"assert not self\.checked", "sqrt", "`after`", "clamp")),
    ),
    "root": Awkward(lambda: Positive(Root(False)), ring, Refused(("sqrt", "`after`", "clamp"))),
    "exponential": Awkward(
        lambda: Positive(lambda x: (x * 12).exp()), ring, Refused(("overflows", "exp", "double"))
    ),
    "coarse": Awkward(lambda: Net(Coarse()), ring, Refused(("rounds", r"model\.double\(\)"))),
    "rounded otherwise": Awkward(Reordered, ring, Refused(("order", r"model\.double\(\)"))),
    "other after the first run": Awkward(Counting, ring, Refused(("first run", "forward="))),
    "home-made cache": Awkward(
        Cached, ring, Refused((r"`encoder\._cached_x`", "forward= that clears it"))
    ),
    "home-made cache in a dict": Awkward(
        lambda: Cached("table"), ring, Refused((r"`encoder\.table`", "forward= that clears it"))
    ),
    "adjacency among the features": Awkward(
        lambda: OnRows(NODES + FEATURES), widened,
        Refused(("adjacency", r"data\.x", "N × N")),
    ),
    "features of no graph": Awkward(
        lambda: OnRows(FEATURES), lambda: Data(x=ring().x, edge_index=ring().edge_index),
        Refused(("no aggregation happens", "forward= that propagates")),
    ),
    "wider product": Awkward(Wider, ring, Refused(("`mm` in Wider's forward", "N × N matrix"))),
    **{
        f"{operation} over nodes": Awkward(
            _mixing(function), ring,
            Refused((f"by `{operation}`", "Net's forward", "different nodes", "forward=")),
        )
        for operation, function in {
            "mean": lambda x: (x - x.mean(0)).relu(),
            "linalg_vector_norm": lambda x: functional.normalize(x.relu(), dim=0),
            "softmax": lambda x: x.relu() * x.sum(1, keepdim=True).softmax(0),
            "native_batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
            "flip": lambda x: x.relu() + x.flip(0),
        }.items()
    },
}  # fmt: skip
