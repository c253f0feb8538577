"""What lets other nodes' numbers in beside the messages is held, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.utils import scatter, softmax

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure import expose
from gnn_repair.exposure.record import reductions
from gnn_repair.exposure.record import replay as replaying
from tests.helpers.models import filter_models, spelled_models
from tests.helpers.models.convolutions import NODES, graph
from tests.helpers.models.filter_models import plain
from tests.helpers.models.gallery_judge import drawn
from tests.helpers.models.spelled_models import CLASSES, pna, reweighted
from tests.helpers.models.terms import dense
from tests.helpers.refusals import refused


@torch.library.custom_op("tests::shifted", mutates_args=())
def shifted(x: Tensor) -> Tensor:
    """Other nodes' rows, in a shape that says nothing about it."""
    return x.roll(1, 0)


def to_zero(x: Tensor) -> Tensor:
    return (
        torch.zeros(1)
        .double()
        .scatter_reduce(0, torch.zeros(NODES, dtype=torch.long), x[:, 0], "amax")
    )


def others(edge_index: Tensor) -> Tensor:
    """Edges that the convolution does not have."""
    return torch.stack([edge_index[0], edge_index[1].flip(0)])


def kind_of(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long()


def kinds_around(x: Tensor, edge_index: Tensor, count: bool) -> Tensor:
    """How often neighbours of a kind are there, or whether, written by two lists of places."""
    one = x.new_ones(edge_index.shape[1])
    places = (edge_index[1], kind_of(x)[edge_index[0]])
    return torch.zeros_like(x).index_put(places, one, accumulate=count)


def kinds_counted(x: Tensor, edge_index: Tensor) -> Tensor:
    places = 6 * edge_index[1] + kind_of(x)[edge_index[0]]
    return x.new_zeros(x.numel()).index_add(0, places, x.new_ones(len(places))).view_as(x)


def positive_around(x: Tensor, edge_index: Tensor) -> Tensor:
    known = (x > 0).long()
    return torch.zeros_like(known).index_add(0, edge_index[1], known[edge_index[0]]).to(x)


def share_by_mask(x: Tensor) -> Tensor:
    written = x.new_zeros(len(x))
    written[x[:, 0] > 0] = 1.0
    return written.mean()


Besides = Callable[[Tensor, Tensor], Any]
TABLE = torch.tensor([[0.1, 0.2], [0.3, 0.5]], dtype=torch.float64)
CODES = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
COUNTS: dict[str, tuple[Besides, list[str]]] = {
    "a histogram of others": (lambda x, e: kinds_around(x, others(e), count=True), ["index_put"]),
    "which kinds are around": (lambda x, e: kinds_around(x, others(e), count=False), ["index_put"]),
    "a histogram by one list of places": (lambda x, e: kinds_counted(x, others(e)), ["index_add"]),
    "a sum of whole numbers": (positive_around, ["index_add"]),
    "a table read by kinds of others": (
        lambda x, e: x + TABLE[kind_of(x)[e[1][: len(x)]], kind_of(x)[e[0][: len(x)]]].unsqueeze(1),
        ["index"],
    ),
    "codes gathered by kinds of others": (
        lambda x, e: x * CODES.expand(len(x), 2).gather(1, kind_of(x)[e[0][: len(x)], None]),
        ["gather"],
    ),
    "a share written by a mask": (lambda x, e: x * share_by_mask(x), ["mean"]),
    "positions": (lambda x, e: x * (x[:, 0] > 0).nonzero().to(x).mean(), ["nonzero"]),
    "numbers that a mask picks": (
        lambda x, e: x * torch.arange(len(x)).to(x)[x[:, 0] > 0].sum(),
        ["sum"],
    ),
    "a mean of codes": (lambda x, e: x + torch.eye(6).to(x)[kind_of(x)].mean(0), ["mean"]),
}
NAMED: dict[str, Besides] = {
    "mean": lambda x, e: x - x.mean(0),
    "index_reduce amax": lambda x, e: x.index_reduce(0, e[1], x[e[0]], "amax"),
    "scatter_reduce amax": lambda x, e: to_zero(x),
    "sort": lambda x, e: x.sort(0).values,
    "cumsum": lambda x, e: x.cumsum(0),
    "roll": lambda x, e: x.roll(1, 0),
    "flip": lambda x, e: x.flip(0),
    "cat": lambda x, e: torch.cat([x[1:], x[:1]]),
    "index": lambda x, e: x[e[0][: len(x)]],
    "add": lambda x, e: x + x[3],
    "native_batch_norm": lambda x, e: nn.functional.batch_norm(x, None, None, training=True),
    "cummax": lambda x, e: x.cummax(0).values,
    "logcumsumexp": lambda x, e: x.logcumsumexp(0),
    "shifted": lambda x, e: shifted(x),
}
READ: dict[str, Callable[[Tensor], Any]] = {
    "a comparison": lambda h: bool(h.max() > 1),
    "if": lambda h: 2.0 if (h > 50).any() else 1.0,
    "all": lambda h: (h > -50).all().item(),
    "a number": lambda h: h.mean().item(),
    "float": lambda h: float(h[0, 0]),
    "a count": lambda h: float(int((h[:, 0] > 0).sum())),
    "equal": lambda h: torch.equal(h, -h),
    "close": lambda h: torch.allclose(h, -h),
    "truth of one": lambda h: torch.is_nonzero(h[3, 2]),
    "numpy": lambda h: np.asarray(h.detach()).mean(),
    "numpy()": lambda h: h.detach().numpy().max(),
    "tolist": lambda h: max(map(max, h.tolist())),
}
"""Numbers that Python reads, and what it does with them is not recorded."""
APART: dict[str, Besides] = {
    "nothing": lambda x, e: x,
    "a triangle of channels": lambda x, e: x.tril(),
    "codes by two lists of places": lambda x, e: kinds_around(
        x, torch.stack([torch.arange(len(x))] * 2), count=True
    ),
    "parametric slopes": lambda x, e: nn.functional.prelu(x, x.new_full((6,), 0.1)),
    "sparse features": lambda x, e: torch.sparse.mm(x.to_sparse(), torch.eye(6, dtype=x.dtype)),
    "a conjugate": lambda x, e: torch.complex(x, x).conj().imag,
    "a smooth loss": lambda x, e: nn.functional.huber_loss(x, x.detach() * 0, reduction="none"),
    "the number of nodes": lambda x, e: x * len(x),
    "a size": lambda x, e: x * (x.shape[0] / 10),
    "whether any is missing": lambda x, e: x * (1.0 + bool(torch.isnan(x).any())),
}
"""What keeps rows apart."""
CASES: dict[str, tuple[Besides, list[str]]] = {
    **{name: (how, [name]) for name, how in NAMED.items()},
    **{n: (lambda x, e, h=h: x * (1 + float(h(x))), ["item"]) for n, h in READ.items()},  # type: ignore[misc]
    **{name: (how, []) for name, how in APART.items()},
    **COUNTS,
}


class Beside(nn.Module):
    """One convolution, and something beside it; or before it, where it makes its messages."""

    def __init__(self, beside: Besides, bent: bool, before: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = pyg.SAGEConv(6, 6, root_weight=not before)
        self.enter, self.lin = nn.Linear(5, 6), nn.Linear(6, 4)
        self.beside, self.bent, self.before = beside, bent, before
        self.double().eval()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enter(x)
        if self.before:
            hidden = self.conv(x + self.beside(x, edge_index), edge_index)
        else:
            hidden = self.conv(x, edge_index) + self.beside(x, edge_index)
        return self.lin(hidden.relu() if self.bent else hidden)


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_moves_a_node_beside_its_messages_is_named(name: str, bent: bool) -> None:
    how, operations = CASES[name]
    exposure = expose(Beside(how, bent), plain())
    assert [group.name for group in exposure.groups] == ["conv"]
    assert [op for part in exposure.held for op in part.operations] == operations
    assert all(part.beside and str(part) in exposure.scope for part in exposure.held)


@pytest.mark.parametrize("name", ["nothing", "mean", "add"])
def test_what_a_sum_starts_from_is_beside_it(name: str) -> None:
    class Started(Beside):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.enter(x)
            started = self.beside(x, edge_index)
            return self.lin(started.index_add(0, edge_index[1], x[edge_index[0]]))

    how, operations = CASES[name]
    held = expose(Started(how, False), plain()).held
    assert [op for part in held if part.beside for op in part.operations] == operations


@pytest.mark.parametrize("name", [*READ, *(name for name in NAMED if "amax" not in name)])
def test_what_moves_messages_is_named_as_before_them(name: str) -> None:
    how, operations = CASES[name]
    exposure = expose(Beside(how, False, before=True), plain())
    found = [(op, part.beside) for part in exposure.held for op in part.operations]
    assert found == [(op, name in READ) for op in operations]


def test_attention_beside_a_convolution_is_a_mixture() -> None:
    exposure = expose(Beside(lambda x, e: (x @ x.t()).softmax(1) @ x, True), plain())
    assert [group.name for group in exposure.groups] == ["conv", "matrix product"]
    assert bool((dense(exposure)[1] > 0).all())
    with refused("no row for every node", kind=ExposureRefused):
        expose(Beside(lambda x, e: (x @ x.t())[:, :6], True), plain())


class Several(nn.Module):
    """A convolution, a maximum over all nodes and an earlier convolution beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(5, 8), pyg.SAGEConv(8, 8, root_weight=False)
        self.lin = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv1(x, edge_index).relu()
        return self.lin(self.conv2(h, edge_index) + h + h.amax(0))


def test_parts_are_named_where_they_stand() -> None:
    torch.manual_seed(0)
    exposure = expose(Several().double(), plain())
    assert exposure.head is None and [g.name for g in exposure.groups] == ["conv2"]
    assert [(str(part), part.beside) for part in exposure.held] == [
        ("`conv1` (GCNConv) (scatter_add)", False), ("the forward of Several (amax)", True),
    ]  # fmt: skip
    assert exposure.scope == "model with the forward of Several (amax) held"
    assert str(exposure).count("held as it is: the forward of Several (amax)") == 1


class LoopOverEdges(nn.Module):
    """A layer that adds one row at a time to a table of zeros, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.lin = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.enter(x)
        out = torch.zeros_like(h)
        for source, target in edge_index.t().tolist():
            out[target] += h[source]
        sent = self.lin(out.tanh())[edge_index[0]]
        return torch.zeros(len(x), 4, dtype=x.dtype).index_add(0, edge_index[1], sent)


def test_rows_that_python_adds_one_by_one_are_an_earlier_layer() -> None:
    torch.manual_seed(0)
    data = plain()
    data.edge_index = data.edge_index[:, data.edge_index[1] != 3]
    exposure = expose(LoopOverEdges().double(), data)
    assert [str(part) for part in exposure.held] == ["the forward of LoopOverEdges (add)"]
    told = dense(exposure)[0].nonzero().flip(1)
    assert sorted(told.tolist()) == sorted(data.edge_index.t().tolist())


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_features_are_features(layout: torch.layout) -> None:
    torch.manual_seed(0)
    times = filter_models.WAYS["torch.spmm"][1]
    model = filter_models.Graphs(times).double().eval()
    model.first.forward = lambda x: times(x, model.first.weight.t())
    x, adj = graph().x.relu(), filter_models.weighed().to_sparse_coo()
    usual, found = (
        expose(model, {"x": one, "adj": adj}) for one in (x, x.to_sparse(layout=layout))
    )
    assert [str(part) for part in found.held] == [str(part) for part in usual.held]
    torch.testing.assert_close(found.logits(), usual.logits())
    assert found.groups == usual.groups and torch.equal(found.sources, usual.sources)


# Aggregates that are no plain sum or mean: what messages add is reweighted, the rest held ---------


@pytest.mark.parametrize("name", ["mean, max and sum", "softmax", "softmax at a heat"])
def test_what_is_no_sum_is_held_as_the_model_has_it(name: str) -> None:
    torch.manual_seed(1)
    heat = 0.4 if "heat" in name else 1.0
    several = ["mean", "max", "sum"]
    soft = pyg.aggr.SoftmaxAggregation(t=heat, learn=heat != 1.0)
    model = pyg.SAGEConv(5, CLASSES, aggr=soft if "soft" in name else several).double()
    data = spelled_models.graph()
    exposure = expose(model, data)
    lam, ratio = reweighted(exposure)
    source, target = data.edge_index
    x, count = data.x[source], spelled_models.NODES
    sent = x * ratio[0, target, source].unsqueeze(1)
    if "soft" in name:
        weights = softmax(x * torch.as_tensor(soft.t).detach(), target, num_nodes=count)
        mixed = scatter(weights * sent, target, 0, count, reduce="sum")
    else:
        pairs = zip((sent, x, sent), several, strict=True)
        mixed = torch.cat([scatter(rows, target, 0, count, reduce=how) for rows, how in pairs], 1)
        assert "held as it is: the forward of SAGEConv (scatter_reduce amax)" in str(exposure)
    truth = (model.lin_l(mixed) + model.lin_r(data.x)).detach()
    assert exposure.head is None
    torch.testing.assert_close(exposure.logits(lam)[0], truth, rtol=1e-9, atol=1e-9)


def test_a_head_after_held_parts_is_replayed_with_them() -> None:
    torch.manual_seed(1)
    conv, lin = pna(["mean", "max", "std"]), nn.Linear(CLASSES, CLASSES)
    steps = [(conv, "x, e -> x"), nn.ReLU(), lin]
    model, data = pyg.Sequential("x, e", steps).double(), spelled_models.graph()
    exposure = expose(model, data, forward=lambda m, d: m(d.x, d.edge_index))
    assert exposure.head is not None
    assert [part.operations for part in exposure.held] == [("scatter_reduce amax",)]
    lam = drawn(exposure, 3)
    told = exposure.logits(lam)[0]
    torch.testing.assert_close(exposure.replay(lam), told, rtol=1e-9, atol=1e-9)
    assert float((told - exposure.frozen_logits[0]).abs().max()) > 1e-4


# Certificates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [0, 1])
@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("place", [(0, 0), (NODES - 1, 1)])
def test_one_number_that_differs_at_one_draw_is_enough(
    place: tuple[int, int], bent: bool, draw: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, model = replaying.rerun_with, Beside(APART["nothing"], bent)
    for by, words in ((0.0, ()), (2e-11, ("differs", "tolerance=")), (torch.nan, ("NaN",))):
        runs = iter(range(3))

        def spoilt(*given: Any, by: float = by, runs: Any = runs) -> Tensor:
            out = honest(*given).clone()
            out[place] += by if next(runs) == draw else 0.0
            return out

        monkeypatch.setattr(replaying, "rerun_with", spoilt)
        if not words:
            assert expose(model, plain()).residual is not None
            continue
        with refused(*words, kind=ExposureRefused):
            expose(model, plain())


def test_what_the_lowest_pytorch_does_not_declare_mixes_no_nodes(monkeypatch) -> None:
    declared = reductions._is_declared
    undeclared = {"leaky_relu", "_conj_physical"}  # of PyTorch 2.11, as against 2.13
    monkeypatch.setattr(
        reductions,
        "_is_declared",
        lambda func: declared(func) and reductions.plain_name(func) not in undeclared,
    )
    layers = [(pyg.GATConv(5, 5), "x, edge_index -> x"), nn.LeakyReLU(), nn.Linear(5, 4)]
    exposure = expose(pyg.Sequential("x, edge_index", layers).double(), graph())
    assert exposure.head is not None and "leaky_relu" not in str(exposure.held)


def test_weights_that_are_orthonormal_are_weights() -> None:
    """Fewer vectors than nodes are no eigenvectors of a graph, wherever they multiply."""

    class Orthogonal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = pyg.GCNConv(5, 6)
            self.lin = nn.utils.parametrizations.orthogonal(nn.Linear(6, 6))
            self.register_buffer("turn", torch.linalg.qr(torch.randn(6, 6))[0])

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin((self.turn @ self.conv(x, edge_index).t()).t())

    exposure = expose(Orthogonal().double(), plain())
    assert exposure.scope == "" and exposure.head is None and not exposure.held


def test_a_module_at_two_places_keeps_its_name_and_class() -> None:
    class Inner(nn.Module):
        def __init__(self, conv: nn.Module) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    class Outer(Inner):
        def __init__(self) -> None:
            super().__init__(pyg.GATConv(5, 4, heads=2))
            self.inner = Inner(self.conv)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.inner(x, edge_index)

    names = [group.name for group in expose(Outer().double(), plain()).groups]
    assert names == ["inner.conv head 0", "inner.conv head 1"]
