"""Models from outside on which exposing once crashed, was slow, named a wrong cause or was wrong.

``AWKWARD`` says what must happen; every way of finding the final aggregation is held to it.
``CLAIMED`` are models whose exposures were wrong, as most of them still are. Their convolutions add
up nodes' rows without a bias, so that a node whose features are zero sends nothing: by running a
model without one node's messages a judge sees whether an exposure's claims hold (:func:`silenced`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import scatter

from tests.helpers.models.made import Made

NODES, FEATURES, WIDTH, CLASSES = 12, 5, 8, 4


def ring(nodes: int = NODES, dtype: torch.dtype = torch.float32) -> Data:
    """A ring with chords; ``adj`` is its mean aggregation."""
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


class OneByOne(Net):
    """Neighbours' rows added in a loop over edges, or by moving all of them."""

    def __init__(self, moved: bool) -> None:
        super().__init__()
        self.moved = moved

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.enter(x)
        if self.moved:
            return self.lin(h.roll(1, 0) + h.roll(-1, 0))
        out = torch.zeros_like(h)
        for source, target in edge_index.t().tolist():
            out[target] += h[source]
        return self.lin(out)


class OneGraph(nn.Module):
    """The readouts of a single graph, side by side."""

    def __init__(self, *pools: Step) -> None:
        super().__init__()
        self.conv, self.pools = pyg.GCNConv(FEATURES, 6), pools
        self.lin = nn.Linear(6 * len(pools), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv(x, edge_index).relu()
        return self.lin(torch.cat([pool(x) for pool in self.pools], -1))


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
    """The first run gives something else than those after it, or every run."""

    seen = 0
    most = 2

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.seen = min(self.seen + 1, self.most)
        return super().forward(x, edge_index) * self.seen


class Remembering(Counting):
    most = 100


class Cached(nn.Module):
    """Keeps its propagated features, as many do by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.lin = nn.Module(), nn.Linear(FEATURES, CLASSES)
        self.encoder._cached_x = None

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        if self.encoder._cached_x is None:
            self.encoder._cached_x = adj @ (adj @ x)
        return self.lin(self.encoder._cached_x)


class OnRows(nn.Module):
    """A linear layer on data.x alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x)


def over_kept_edges(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    """The graph is given to the model once."""
    self.kept = getattr(self, "kept", edge_index)
    source, target = self.kept
    return scatter(self.lin(x)[source], target, 0, len(x), reduce="max")


def beside_kept_numbers(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    if not hasattr(self, "numbers"):
        self.numbers = {"shift": x.new_ones(CLASSES)}  # without which it gives something else
    sent = self.lin(x)[edge_index[0]] + self.numbers.get("shift", 0.0)
    return scatter(sent, edge_index[1], 0, len(x), reduce="max")


def used(forward: Step) -> nn.Module:
    """A model that has run on the ring before."""
    model = Made(forward, lin=nn.Linear(FEATURES, CLASSES))
    model(ring().x, ring().edge_index)
    return model


def codebook() -> nn.Module:
    def forward(self: Any, x: Tensor, adj: Tensor) -> Tensor:
        return self.codes((adj @ self.lin(x)).argmax(1))

    return Made(forward, lin=nn.Linear(FEATURES, WIDTH), codes=nn.Embedding(WIDTH, CLASSES))


def whole_numbers() -> nn.Module:
    def forward(self: Any, x: Tensor, adj: Tensor) -> Tensor:
        return self.lin(((adj > 0).long() @ (x[:, :1] > 0).long()).to(x))

    return Made(forward, lin=nn.Linear(1, CLASSES))


class Wider(nn.Module):
    """A product with N × 2N: neighbours, and the node itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = self.lin(x)
        return torch.cat([adj, torch.eye(len(x))], 1) @ torch.cat([h, h / 2])


class Branch(nn.Module):
    """Does something else where values are large, chosen in one of several ways."""

    def __init__(self, how: str, limit: float) -> None:
        super().__init__()
        self.how, self.limit = how, limit

    def forward(self, z: Tensor) -> Tensor:
        if self.how == "if":
            return -z if z.max() > self.limit else z
        if self.how == "if of a number":
            return z * (2.0 if z.abs().sum().item() > self.limit else 1.0)
        far = z.abs().amax(1) > self.limit
        if self.how == "mask":
            z = z.clone()
            z[far] *= -1
            return z
        return z * (1 + far.nonzero().numel())  # a shape that depends on values


def loud() -> Data:
    """One node is far louder than the others."""
    data = ring()
    data.x[0] *= 5
    return data


class SparseBuffer(Net):
    """A persistent sparse buffer, which it aggregates with or does not read."""

    def __init__(self, layout: str, read: bool) -> None:
        super().__init__(nn.ReLU())
        self.register_buffer("adj", getattr(ring().adj, f"to_sparse_{layout}")())
        self.read = read

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.enter(x)
        return self.lin(self.after(self.adj @ h if self.read else self.conv(h, edge_index)))


class Exposed(NamedTuple):
    """The model is exposed."""

    runs: int | None = None
    """In at most so many runs of its forward."""
    mentions: str = ""
    """What its exposure says."""


class Refused(NamedTuple):
    """The model is refused."""

    words: tuple[str, ...]
    """Expressions that the message matches, all of them: cause, module and remedy."""
    excused: bool = False
    """Whether a larger tolerance is offered, as nothing but rounding allows."""


class Awkward(NamedTuple):
    """A model, its data and what must happen."""

    model: Callable[[], nn.Module]
    data: Callable[[], Data]
    must: Exposed | Refused


def _mixing(function: Step) -> Callable[[], nn.Module]:
    return lambda: Net(function)


AWKWARD: dict[str, Awkward] = {
    "unused product": Awkward(Unused, lambda: ring(60), Exposed(runs=30)),
    "mean and max of one graph": Awkward(
        lambda: OneGraph(lambda x: x.mean(0), lambda x: x.max(0).values), ring,
        Exposed(mentions="(max)"),
    ),
    **{
        f"mean and {how} of one graph": Awkward(
            lambda pool=pool: OneGraph(lambda x: x.mean(0), pool), ring,  # type: ignore[misc]
            Exposed(mentions="the forward of OneGraph ("),
        )
        for how, pool in {
            "std": lambda x: x.std(0),
            "median": lambda x: x.median(0).values,
            "logsumexp": lambda x: x.logsumexp(0),
            "norm": lambda x: x.norm(dim=0),
        }.items()
    },
    "boolean mask": Awkward(lambda: Net(Shrunk()), ring, Refused(("`after`", r"torch\.where"))),
    "root with a check": Awkward(lambda: Positive(Root(True)), ring, Exposed()),
    "root": Awkward(lambda: Positive(Root(False)), ring, Exposed()),
    "exponential": Awkward(lambda: Positive(lambda x: (x * 12).exp()), ring, Exposed()),
    "coarse": Awkward(
        lambda: Net(Coarse()), ring, Refused(("rounds", r"model\.double\(\)"), excused=True)
    ),
    "rounded otherwise": Awkward(Reordered, ring, Refused(("order", r"model\.double\(\)"))),
    "other after the first run": Awkward(Counting, ring, Refused(("keeps", "forward="))),
    "other in every run": Awkward(Remembering, ring, Refused(("keeps", "forward="))),
    **{
        f"{how} far out": Awkward(
            lambda how=how, limit=limit: Net(Branch(how, limit)), loud,  # type: ignore[misc]
            Refused((r"`after` \(Branch\)", r"\.item\(\)", r"torch\.where")),
        )
        for how, limit in {"if": 6.0, "if of a number": 250.0}.items()
    },
    "home-made cache": Awkward(Cached, ring, Exposed()),
    "adjacency among the features": Awkward(
        lambda: OnRows(NODES + FEATURES), widened,
        Refused(("adjacency", r"data\.x", "N × N")),
    ),
    "maximum over kept edges": Awkward(lambda: used(over_kept_edges), ring, Refused(("amax",))),
    "maximum beside kept numbers": Awkward(
        lambda: used(beside_kept_numbers), ring, Refused(("amax",))
    ),
    "codebook": Awkward(codebook, ring, Refused((r"torch\.where",))),
    "sum of whole numbers": Awkward(whole_numbers, ring, Refused(("whole numbers",))),
    "wider product": Awkward(Wider, ring, Exposed()),
    **{
        f"{operation} over nodes": Awkward(
            _mixing(function), ring, Exposed(mentions=f"the forward of Net ({operation})")
        )
        for operation, function in {
            "mean": lambda x: (x - x.mean(0)).relu(),
            "linalg_vector_norm": lambda x: functional.normalize(x.relu(), dim=0),
        }.items()
    },
    "statistics of the batch": Awkward(
        _mixing(lambda x: functional.batch_norm(x, None, None, training=True)), ring,
        Refused(("the forward of Net", "native_batch_norm", "running statistics")),
    ),
    "rows added one by one": Awkward(
        lambda: OneByOne(False), ring, Refused(("`add`", "one row at a time", "one sum")),
    ),
    "rows moved as a whole": Awkward(
        lambda: OneByOne(True), ring, Refused(("rows of other nodes", "one sum over messages")),
    ),
    "complex messages": Awkward(
        _mixing(lambda x: (torch.ones(NODES, NODES) * 1j @ x.cfloat()).imag), ring,
        Refused(("complex numbers", "real tensors")),
    ),
    "complex numbers": Awkward(
        _mixing(lambda x: torch.fft.fft(x).real), ring,
        Refused(("complex numbers", "real tensors")),
    ),
    "half precision inside": Awkward(
        _mixing(lambda x: x.bfloat16().relu().float()), ring,
        Refused(("bfloat16 inside", "float32 or float64")),
    ),
    "softmax over nodes": Awkward(
        _mixing(lambda x: x.relu() * x.sum(1, keepdim=True).softmax(0)), ring,
        Refused(("the forward of Net", "_softmax", "only sums")),
    ),
    "flipped": Awkward(
        _mixing(lambda x: x.relu() + x.flip(0)), ring,
        Refused(("the forward of Net", "different nodes")),
    ),
}  # fmt: skip


# Judged by running them ---------------------------------------------------------------------------


class Scaled(nn.Module):
    """Tiny outputs, or outputs beside large offsets."""

    def __init__(self, inner: nn.Module, scale: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale
        self.register_buffer("offset", offset * torch.tensor([1.0, -1.0, 1.0, -1.0]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.inner(x, edge_index) * self.scale + self.offset


class SingleGraph(nn.Module):
    """One graph pooled into two hidden units, which no probe turns off but a silent node does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.enter, self.lin = nn.Linear(FEATURES, 2, bias=False), nn.Linear(2, 3)
        self.bias = nn.Parameter(torch.randn(2) * 0.3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin((self.enter(x).mean(0, keepdim=True) + self.bias).relu())


class Filter(Net):
    """Three hops of one matrix, and something else that changes nothing about them."""

    def __init__(self, beside: str = "") -> None:
        super().__init__()
        self.beside, self.other = beside, pyg.SimpleConv(aggr="sum")

    def forward(self, x: Tensor, edge_index: Tensor, adj: Tensor) -> Any:  # type: ignore[override]
        h = self.enter(x)
        for _ in range(3):
            h = 0.9 * (adj @ h) + 0.1 * self.enter(x)
        if self.beside == "product":
            self.kept = adj @ adj
        if self.beside == "output":
            return {"logits": self.lin(h), "aux": adj @ x}
        if self.beside == "convolution":
            h = h + self.other(self.enter(x), edge_index)
        return self.lin(h)


class Claimed(NamedTuple):
    """A model whose exposure is judged by running it."""

    model: Callable[[], nn.Module]
    data: Callable[[], Data]


CLAIMED: dict[str, Claimed] = {
    **{
        f"outputs of {scale:.0e}": Claimed(
            lambda scale=scale: Scaled(Net(nn.ReLU()), scale), ring,  # type: ignore[misc]
        )
        for scale in (1e-6, 1e-5)
    },
    "offsets of 1e5": Claimed(
        lambda: Scaled(Net(nn.ReLU()), offset=1e5), ring,
    ),
    "one graph, two hidden units": Claimed(
        SingleGraph, lambda: ring(6),
    ),
    **{
        f"filter beside {beside}": Claimed(
            lambda beside=beside: Filter(beside), ring,  # type: ignore[misc]
        )
        for beside in ("product", "output", "convolution")
    },
    **{
        f"{how} on values": Claimed(
            lambda how=how, limit=limit: Net(Branch(how, limit)), loud,  # type: ignore[misc]
        )
        for how, limit in {"if": 2.5, "if of a number": 110.0, "mask": 2.5, "shape": 2.5}.items()
    },
}  # fmt: skip


def silenced(exposure: Any, model: nn.Module, data: Data, node: int) -> tuple[Tensor, Tensor]:
    """The logits [n, C] without one node's messages, by the exposure and by the model itself."""
    mixture = exposure.aggregate
    sources = mixture.sources[mixture.rows]
    said = exposure.logits(mixture.coefficients.masked_fill(sources == node, 0.0))[0]
    quiet = data.clone()
    quiet.x[node] = 0
    return said, called(model, quiet)


def called(model: nn.Module, data: Data) -> Tensor:
    """The model's logits, run by nothing of ours."""
    names = model.forward.__code__.co_varnames[1 : model.forward.__code__.co_argcount]
    with torch.no_grad():
        out = model.eval()(*[data[name] for name in names])
    return (out["logits"] if isinstance(out, dict) else out).double()
