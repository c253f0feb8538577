"""What cannot be exposed or is held, and that this is named; awkward models."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import expose
from gnn_repair.exposure import from_model as exposing
from gnn_repair.exposure.record import build as sizes
from gnn_repair.exposure.record import replay as replaying
from tests.helpers.models import product_models
from tests.helpers.models.awkward import (
    AWKWARD,
    CLAIMED,
    Cached,
    Coarse,
    Exposed,
    Filter,
    SingleGraph,
    SparseBuffer,
    called,
    loud,
    ring,
    silenced,
)
from tests.helpers.models.awkward import Net as NetAwkward
from tests.helpers.models.convolutions import CASES, NODES, graph
from tests.helpers.models.convolutions import Net as CaseNet
from tests.helpers.models.refused_models import Net

# What cannot be exposed, and that the refusal names what is in the way.


@pytest.fixture
def data() -> Data:
    """Sorted by recipient, as the LSTM aggregator wants it."""
    whole = graph(torch.float32)
    order = torch.argsort(whole.edge_index[1], stable=True)
    return Data(x=whole.x, edge_index=whole.edge_index[:, order])


class Reversible(nn.Module):
    """GroupAddRev frees the memory of its input."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.first, self.rev = nn.Linear(5, 8), pyg.GroupAddRev(pyg.SAGEConv(4, 4), num_groups=2)
        self.after, self.lin = after, nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.after(self.rev(self.first(x), edge_index)))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_compiled_models(data: Data) -> None:
    model = Net()
    with pytest.raises(ExposureRefused, match=r"the model is compiled.*model\._orig_mod"):
        expose(torch.compile(model), data)
    assert expose(torch.compile(model)._orig_mod, data).residual is not None
    model.conv2 = torch.compile(model.conv2)  # type: ignore[assignment]
    with pytest.raises(ExposureRefused, match=r"`conv2` is compiled by torch\.compile"):
        expose(model, data)
    other = Net()
    other.compile()
    with pytest.raises(ExposureRefused, match="compiled in place"):
        expose(other, data)


def test_a_cache_of_another_graph(data: Data) -> None:
    torch.manual_seed(1)
    model = Net(pyg.SGConv(6, 8, cached=True)).eval()
    model(data.x, data.edge_index.flip(0))
    kept = model.conv2._cached_x
    with pytest.raises(ExposureRefused, match="cached propagation gives other logits"):
        expose(model, data)
    assert model.conv2._cached_x is kept


def test_messages_from_another_node_set(data: Data) -> None:
    class Bipartite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv(5, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv((torch.cat([x, x]), x), edge_index)

    exposure = expose(Bipartite(), data)
    assert int(exposure.sources.max()) < NODES and exposure.num_terms == data.edge_index.shape[1]


def test_several_types_of_nodes() -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(3, 5), torch.randn(4, 5)
    with pytest.raises(ExposureRefused, match="Net sends no messages to 'a' nodes"):
        expose(Net(), data, forward=lambda model, data: data["a"].x)


def test_too_many_paths(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(pyg.APPNP(K=4, alpha=0.1), width=6)
    count = expose(model, data).num_terms
    monkeypatch.setattr(sizes, "available_memory", lambda: count * sizes.BYTES_PER_TERM)
    about = rf"make about {count} terms \(0\.0 GiB while exposing, of 0\.0 GiB available\)"
    with pytest.raises(ExposureRefused, match=rf"between 24 nodes {about}; use hops='last'"):
        expose(model, data)
    assert expose(model, data, hops="last").residual is not None
    free = int(count * sizes.BYTES_PER_TERM / sizes.SHARE) + 2
    monkeypatch.setattr(sizes, "available_memory", lambda: free)
    monkeypatch.setattr(sizes, "NOTEWORTHY", count - 1)
    with pytest.warns(UserWarning, match=rf"make about {count} terms"):
        assert expose(model, data).num_terms == count
    monkeypatch.setattr(sizes, "available_memory", lambda: None)
    monkeypatch.setattr(sizes, "LARGEST", count - 1)
    with pytest.raises(ExposureRefused, match=rf"more than {count - 1}; use hops='last'"):
        expose(model, data)


class Renamed(pyg.MessagePassing):
    """Sends ``scale`` × ``h``."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        scale = torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(2))
        return self.propagate(edge_index, h=self.lin(x), scale=scale)

    def message(self, h_j: Tensor, scale: Tensor) -> Tensor:
        return scale.view(-1, 1) * h_j


def test_names_of_arguments_do_not_matter(data: Data) -> None:
    torch.manual_seed(1)
    exposure = expose(Net(Renamed(6, 8)), data)
    expected = torch.rand(data.edge_index.shape[1], generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(exposure.coefficients[0], expected)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv heads", "TAGConv", "MFConv", "GINEConv"])
def test_certification_catches_a_wrong_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """β hides any error at λ = α; only running the model on other coefficients shows it."""
    torch.manual_seed(0)
    net = CaseNet(CASES[name]).double()
    assert expose(net, graph()).residual is not None

    start = exposing.affine_start

    def wrong(*args: Any) -> Any:
        found = start(*args)
        return replace(found, weight=found.weight * 1.001)

    monkeypatch.setattr(exposing, "affine_start", wrong)
    with pytest.raises(ExposureRefused, match=r"read off it by .*no rounding"):
        expose(net, graph())


def test_bad_input(data: Data) -> None:
    with pytest.raises(InputError, match="data is missing"):
        expose(Net())
    with pytest.raises(InputError, match="model is a str"):
        expose("gcn", data)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="hops is 'all'"):
        expose(Net(), data, hops="all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="returns NoneType instead of a tensor"):
        expose(Net(), data, forward=lambda model, data: None)
    with pytest.raises(InputError, match=r"are torch.float32 but its logits torch.bfloat16"):
        expose(Net(), data, forward=lambda model, data: model(data.x, data.edge_index).bfloat16())
    with pytest.raises(InputError, match="NaN or infinite"):
        expose(Net(), data, forward=lambda model, data: model(data.x, data.edge_index) / 0)


def test_reversible_layers_are_exposed_and_leave_their_input_alone(data: Data) -> None:
    """Without the LayerNorm the reversible model is affine; `rev` may read data.x itself."""
    torch.manual_seed(1)
    model = Reversible(nn.Identity()).double().eval()
    wide = Data(x=torch.randn(NODES, 8, dtype=torch.float64), edge_index=data.edge_index)
    model.first = nn.Identity()
    kept = wide.x.clone()
    exposure = expose(model, wide)
    torch.testing.assert_close(wide.x, kept)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    assert model.rev.disable is False
    torch.testing.assert_close(exposure.logits()[0], model(kept.clone(), data.edge_index))


def test_large_features_are_no_nonlinearity(data: Data) -> None:
    torch.manual_seed(1)
    big = Data(x=data.x * 1e30, edge_index=data.edge_index)
    exposure = expose(Net(), big)
    assert exposure.residual is not None and exposure.residual <= 1e-5
    with pytest.raises(InputError, match=r"its weights and data are finite: it overflows torch"):
        expose(Net(end=Times(1e38)), big)


def test_broken_weights_and_data_are_named(data: Data) -> None:
    model = Net()
    with torch.no_grad():
        model.conv1.lin.weight[2, 3] = torch.nan
    with pytest.raises(InputError, match=r"NaN or infinite values, and so does its weight `conv1"):
        expose(model, data)
    data.x[3, 1] = torch.inf
    with pytest.raises(InputError, match=r"NaN or infinite values, and so does data\.x"):
        expose(Net(), data)


# Awkward models: exposed or refused as the gallery says, and what is known to go wrong.


@pytest.mark.parametrize("name", AWKWARD)
def test_what_must_happen(name: str) -> None:
    case = AWKWARD[name]
    torch.manual_seed(0)
    model, data = case.model(), case.data()
    if isinstance(case.must, Exposed):
        exposure = expose(model, data)
        assert exposure.residual is not None and case.must.mentions in str(exposure)
        assert case.must.runs is None or model.runs <= case.must.runs
        return
    with pytest.raises(ExposureRefused) as refusal:
        expose(model, data)
    for words in case.must.words:
        assert re.search(words, str(refusal.value)), (words, str(refusal.value))
    assert ("tolerance=" in str(refusal.value)) == case.must.excused


def test_the_remedies_work() -> None:
    """What the refusals advise is done, and then the models are exposed."""
    torch.manual_seed(0)

    def cleared(model: Any, data: Data) -> Tensor:
        model.encoder._cached_x = None
        return model(data.x, data.adj)

    assert expose(Cached(), ring(), forward=cleared).residual is not None
    coarse, double = NetAwkward(Coarse()), ring(dtype=torch.float64)
    with pytest.raises(ExposureRefused) as refusal:
        expose(coarse, ring())
    offered = float(re.findall(r"tolerance=(\S+)", str(refusal.value))[0])
    assert expose(coarse, ring(), tolerance=offered).residual <= offered <= 1e-3
    assert expose(coarse.double(), double, tolerance=1e-10).residual is not None


@pytest.mark.parametrize("tolerance", [0.5, 2e-3, -1.0, float("nan"), "large"])
def test_tolerances_beyond_rounding(tolerance: Any) -> None:
    with pytest.raises(InputError, match=r"tolerance is .*float32 explains at most 1e-03"):
        expose(NetAwkward(), ring(), tolerance=tolerance)
    with pytest.raises(InputError, match=r"tolerance is .*float64 explains at most 1e-10"):
        expose(NetAwkward().double(), ring(dtype=torch.float64), tolerance=1e-5)


def test_a_kink_that_probes_miss_makes_a_tail() -> None:
    """Certification meets it, for the graph's mean lies far from most of its nodes."""
    torch.manual_seed(0)
    model, data = SingleGraph(), loud()
    bias = -0.3 * model.enter(data.x).mean(0)
    model.bias.data = torch.stack([bias[0], bias.new_tensor(50.0)])
    exposure = expose(model, data)
    assert exposure.head is not None and claims_hold(exposure, model, data)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("read", [True, False])
def test_sparse_buffers(layout: str, read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their digest is tested elsewhere; nothing else minds them."""
    place = "gnn_repair.exposure.from_model.fingerprint_of_model"
    monkeypatch.setattr(place, lambda *_: ("0" * 16,))
    torch.manual_seed(0)
    model = SparseBuffer(layout, read)
    assert claims_hold(expose(model, ring()), model, ring())


def claims_hold(exposure: Any, model: nn.Module, data: Data) -> bool:
    """Whether the real model without any one node's messages gives what the exposure says.

    By a twentieth of what that changes; a node's own logits are left out, for it keeps its messages
    to itself.
    """
    frozen = called(model, data)
    for node in range(data.num_nodes):
        said, real = silenced(exposure, model, data, node)
        others = torch.arange(len(real)) != node if len(real) == data.num_nodes else slice(None)
        gap, change = (said - real)[others].abs().max(), (real - frozen)[others].abs().max()
        if gap > change / 20:
            return False
    return True


@pytest.mark.parametrize("name", CLAIMED)
def test_what_is_exposed_holds_of_the_model(name: str) -> None:
    case = CLAIMED[name]
    torch.manual_seed(0)
    model, data = case.model(), case.data()
    try:
        exposure = expose(model, data)
    except ExposureRefused:
        return
    assert claims_hold(exposure, model, data) or (case.named and case.named in str(exposure))


@pytest.mark.parametrize(
    "model", [NetAwkward, lambda: NetAwkward(nn.ReLU()), lambda: NetAwkward(nn.GELU()), Filter]
)
def test_the_judge_agrees_where_all_is_well(model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = model()
    assert claims_hold(expose(net, ring()), net, ring())
    assert not claims_hold(expose(net, ring()), model(), ring())


def test_an_assertion_without_words_is_told_by_its_line() -> None:
    def forward(model: Any, data: Data) -> Tensor:
        raise AssertionError

    with pytest.raises(InputError, match="raised AssertionError: raise AssertionError;"):
        expose(NetAwkward(), ring(), forward=forward)


# What lets other nodes' numbers in beside the messages is held, and named.


class Beside(nn.Module):
    """A convolution, a maximum over all nodes and an earlier convolution beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(5, 8), pyg.SAGEConv(8, 8, root_weight=False)
        self.lin = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv1(x, edge_index).relu()
        return self.lin(self.conv2(h, edge_index) + h + h.amax(0))


def test_what_mixes_nodes_beside_the_final_sums_is_named() -> None:
    torch.manual_seed(0)
    source = graph()
    exposure = expose(Beside().double(), Data(x=source.x, edge_index=source.edge_index))
    assert exposure.head is None and [g.name for g in exposure.groups] == ["conv2"]
    assert [(str(part), part.beside) for part in exposure.held] == [
        ("`conv1` (GCNConv) (scatter_add)", False), ("the forward of Beside (amax)", True),
    ]  # fmt: skip
    assert exposure.scope == "model with the forward of Beside (amax) held"
    assert str(exposure).count("held as it is: the forward of Beside (amax)") == 1


def unmentioned(model: nn.Module, data: Data) -> list[tuple[int, int]]:
    """(moved, other) node where the other's features move it, and no term or held part says so.

    Where earlier layers are held, further nodes may move it through them.
    """
    exposure = expose(model, data)
    if exposure.held:
        return []
    owner = exposure.recipients[
        torch.repeat_interleave(exposure.segments[:: exposure.num_groups].diff())
    ]
    source = exposure.sources[exposure.rows.long()].long()
    heard = set(zip(owner.tolist(), source.tolist(), strict=True))
    found = []
    for node in range(0, NODES, 5):
        other = data.clone()
        other.x[node] += 1.0
        with torch.no_grad():
            pair = [model(one.x, one.edge_index) for one in (data, other)]
        moved = ((pair[0] - pair[1]).abs().amax(1) > 1e-12).nonzero().view(-1).tolist()
        found += [(m, node) for m in moved if m != node and (m, node) not in heard]
    return found


class Sneaky(nn.Module):
    """One convolution and something beside it."""

    def __init__(self, beside: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.lin, self.beside = pyg.GCNConv(5, 6), nn.Linear(6, 4), beside
        self.enter = nn.Linear(5, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = self.conv(x, edge_index) + self.beside(self.enter(x), edge_index)
        return self.lin(hidden.relu())


@torch.library.custom_op("tests::shifted", mutates_args=())
def shifted(x: Tensor) -> Tensor:
    """Other nodes' rows, in a shape that says nothing about it."""
    return x.roll(1, 0)


def by_sparse(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.sparse.mm(x.to_sparse(), torch.eye(6, dtype=x.dtype))


TABLE = torch.tensor([[0.1, 0.2], [0.3, 0.5]], dtype=torch.float64)


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


BESIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nothing": lambda x, e: x,
    "a mean over all nodes": lambda x, e: x - x.mean(0),
    "a maximum of neighbours": lambda x, e: x.index_reduce(0, e[1], x[e[0]], "amax"),
    "sorted nodes": lambda x, e: x.sort(0).values,
    "a running sum": lambda x, e: x.cumsum(0),
    "shifted nodes": lambda x, e: x.roll(1, 0),
    "a table of neighbours": lambda x, e: x[e[0][: len(x)]],
    "attention over nodes": lambda x, e: (x @ x.t()).softmax(1) @ x,
    "linear attention": lambda x, e: x.relu() @ (x.relu().t() @ x),
    "a number read by Python": lambda x, e: x * x.mean().item(),
    "a branch on features": lambda x, e: x if x.max() > x.mean() else -x,
    "one node for all": lambda x, e: x + x[3],
    "products of nodes": lambda x, e: (x @ x.t())[:, :6],
    "statistics": lambda x, e: nn.functional.batch_norm(x, None, None, training=True),
    "a running maximum": lambda x, e: x.cummax(0).values,
    "a running logarithm": lambda x, e: x.logcumsumexp(0),
    "an operator of one's own": lambda x, e: shifted(x),
    "a histogram of others": lambda x, e: kinds_around(x, others(e), count=True),
    "which kinds are around": lambda x, e: kinds_around(x, others(e), count=False),
    "a histogram by one list of places": lambda x, e: kinds_counted(x, others(e)),
    "a sum of whole numbers": positive_around,
    "how many are similar": lambda x, e: x * (x @ x.t() > 1).to(x).sum(1, keepdim=True),
    "a table read by kinds of others": lambda x, e: x + TABLE[
        kind_of(x)[e[1][: len(x)]], kind_of(x)[e[0][: len(x)]]
    ].unsqueeze(1),
    "codes gathered by kinds of others": lambda x, e: x.new_ones(len(x), 2).cumsum(1).gather(
        1, kind_of(x)[e[0][: len(x)], None]
    ) * x,
    "a mean of codes": lambda x, e: x + torch.eye(6).to(x)[kind_of(x)].mean(0),
}  # fmt: skip
ALONE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a triangle of channels": lambda x, e: x.tril(),
    "codes by two lists of places": lambda x, e: kinds_around(
        x, torch.stack([torch.arange(len(x))] * 2), count=True
    ),
    "parametric slopes": lambda x, e: nn.functional.prelu(x, x.new_full((6,), 0.1)),
    "sparse features": by_sparse,
    "a conjugate": lambda x, e: torch.complex(x, x).conj().imag,
    "a smooth loss": lambda x, e: nn.functional.huber_loss(x, x.detach() * 0, reduction="none"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_whatever_moves_a_node_is_in_the_mixture_or_named(name: str) -> None:
    torch.manual_seed(0)
    source = graph()
    model = Sneaky(BESIDE[name]).double().eval()
    data = Data(x=source.x, edge_index=source.edge_index)
    try:
        found = unmentioned(model, data)
    except ExposureRefused:
        return
    assert not found


@pytest.mark.parametrize("name", ALONE)
def test_what_keeps_rows_apart_is_not_named(name: str) -> None:
    torch.manual_seed(0)
    source = graph()
    data = Data(x=source.x, edge_index=source.edge_index)
    assert not expose(Sneaky(ALONE[name]).double().eval(), data).held


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_features_are_features(layout: torch.layout) -> None:
    torch.manual_seed(0)
    times = product_models.WAYS["torch.spmm"][1]
    model = product_models.Graphs(times).double().eval()
    model.first.forward = lambda x: times(x, model.first.weight.t())
    x, adj = graph().x.relu(), product_models.dense().to_sparse_coo()
    plain, found = (
        expose(model, {"x": one, "adj": adj}) for one in (x, x.to_sparse(layout=layout))
    )
    assert [str(part) for part in found.held] == [str(part) for part in plain.held]
    torch.testing.assert_close(found.logits(), plain.logits())
    assert found.groups == plain.groups and torch.equal(found.sources, plain.sources)


@pytest.mark.parametrize("machine", [None, 5, 9])
@pytest.mark.parametrize("container", [None, 5, 9])
def test_the_least_memory_that_is_told_is_what_is_left(
    machine: int | None, container: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reader(told: int | None) -> Any:
        return lambda: int("max" if told is None else told)  # no limit is written as a word

    monkeypatch.setattr(sizes, "_meminfo", reader(machine))
    monkeypatch.setattr(sizes, "_control_group", reader(container))
    told = [one for one in (machine, container) if one is not None]
    assert sizes.available_memory() == (min(told) if told else None)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("gap", [1.0, float("nan")])
def test_a_model_that_differs_at_any_draw_is_not_certified(
    at: int, gap: float, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter([0.0] * at + [gap] + [0.0] * (1 - at))
    monkeypatch.setattr(replaying, "relative_gap", lambda *_: next(given))
    with pytest.raises(ExposureRefused, match=r"no rounding|gives NaN"):
        expose(Net(), data)


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
    data = graph()
    data = Data(x=data.x, edge_index=data.edge_index[:, data.edge_index[1] != 3])
    exposure = expose(LoopOverEdges().double(), data)
    assert [str(part) for part in exposure.held] == ["the forward of LoopOverEdges (add)"]
    owner = torch.repeat_interleave(exposure.segments.diff())
    told = torch.stack([exposure.sources[exposure.rows.long()].long(), owner])
    assert sorted(told.t().tolist()) == sorted(data.edge_index.t().tolist())


@pytest.mark.parametrize("place", [(0, 0), (11, 3), (NODES - 1, 1)])
def test_one_number_that_differs_in_another_run_is_enough(
    place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, plain = replaying.rerun_with, graph()
    source = Data(x=plain.x, edge_index=plain.edge_index)

    def spoilt(*given: Any) -> Tensor:
        out = honest(*given).clone()
        out[place] += 2e-11
        return out

    assert expose(Net().double(), source).residual is not None
    monkeypatch.setattr(replaying, "rerun_with", spoilt)
    with pytest.raises(ExposureRefused, match="differs from what was read off it"):
        expose(Net().double(), source)
