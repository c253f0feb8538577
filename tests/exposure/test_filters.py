"""Filters, matrix products and other spellings of an aggregation, against dense algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from gnn_repair import SetTranslation
from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure import expose
from gnn_repair.exposure.record import analysis
from gnn_repair.exposure.record.replay import random_admissible
from gnn_repair.oracle import reach, solve
from tests.helpers.models import filter_models, spelled_models
from tests.helpers.models.convolutions import NODES, bare, gcn, graph
from tests.helpers.models.filter_models import (
    STEPS,
    Filtered,
    K,
    pagerank,
    plain,
)
from tests.helpers.models.gallery_judge import drawn
from tests.helpers.models.made import Made
from tests.helpers.models.spelled_models import CASES, Dense, reweighted
from tests.helpers.models.terms import dense, signed
from tests.helpers.refusals import refused

ONE = torch.eye(NODES, dtype=torch.float64)


HOP, OWN = gcn(graph()), bare(graph())
"""Â, with self-loops where missing, and as the edges have them."""


def polynomial(*powers: float, of: Tensor = HOP) -> Tensor:
    return sum(c * torch.linalg.matrix_power(of, k) for k, c in enumerate(powers))  # type: ignore[return-value]


def truth(name: str, gamma: Tensor) -> Tensor:
    g = gamma.detach().double()
    if name == "pagerank":
        return polynomial(*g.tolist())
    if name == "restarting":
        return polynomial(*[0.2 * 0.8**k for k in range(K)], 0.8**K)
    if name == "repeated":
        return polynomial(*[0.0] * K, 1.0)
    if name == "chebyshev":
        t = [ONE, -HOP]
        for _ in range(2, K + 1):
            t.append(-2 * HOP @ t[-1] - t[-2])
        return sum(g[k] * t[k] for k in range(K + 1))  # type: ignore[return-value]
    low, high = ONE - HOP, ONE + HOP
    return g[0] * high @ high + 2 * g[1] * low @ high + g[2] * low @ low


class Forward(nn.Module):
    """Linear layers, a propagation, and what a function makes of them."""

    def __init__(self, forward: Callable[..., Tensor], *widths: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lins = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.convs, self.how = nn.ModuleList(pyg.LGConv() for _ in range(3)), forward
        self.matrix = HOP
        self.double()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.how(self, x, edge_index, self.matrix)


def by_modules(self: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
    """LightGCN: the mean of all hops, each a module of its own."""
    total = x = self.lins[0](x)
    for conv in self.convs:
        x = conv(x, edges)
        total = total + x
    return total / 4


def added_up(start: Callable[[Tensor], Tensor], add: Callable[..., Tensor]) -> Any:
    def forward(self: Any, x: Tensor, _: Tensor, a: Tensor) -> Tensor:
        h = self.lins[0](x)
        out = start(h)
        for hop in (a @ h, a @ (a @ h), a @ (a @ (a @ h))):
            out = add(out, hop)
        return out

    return forward


def chebyshev(times: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """T₂ of an operator that is scaled before, or after, it is multiplied."""
    return lambda self, x, _, a: times(-a, -a @ (h := self.lins[0](x))) - h


FILTERS: dict[str, tuple[Any, Tensor | None]] = {
    **{
        f"{name}, {'head' * head}": (Filtered(how, head), None)  # by its own γ
        for name, how in STEPS.items()
        for head in (False, True)
    },
    "products": (lambda m, x, _, a: m.lins[0](a @ (a @ (a @ x))), polynomial(0, 0, 0, 1)),
    "modules": (by_modules, polynomial(0.25, 0.25, 0.25, 0.25, of=OWN)),
    "from zeros": (added_up(torch.zeros_like, torch.add), polynomial(0, 1, 1, 1)),
    "stacked": (
        lambda m, x, _, a: torch.stack([h := m.lins[0](x), a @ h, a @ (a @ h)], 1).mean(1),
        polynomial(1 / 3, 1 / 3, 1 / 3),
    ),
    "stacked in front": (
        lambda m, x, _, a: torch.stack([a @ (h := m.lins[0](x)), a @ (a @ h)]).sum(0),
        polynomial(0, 1, 1),
    ),
    "in place": (added_up(torch.zeros_like, Tensor.add_), polynomial(0, 1, 1, 1)),
    "from the number 0": (added_up(lambda h: 0, lambda a, b: a + b), polynomial(0, 1, 1, 1)),
    "scaled before": (chebyshev(lambda a, h: 2.0 * a @ h), polynomial(-1, 0, 2)),
    "scaled after": (chebyshev(lambda a, h: 2.0 * (a @ h)), polynomial(-1, 0, 2)),
    "divided before": (chebyshev(lambda a, h: (a / -2.0) @ h), polynomial(-1, 0, -0.5)),
    "subtracted": (
        lambda m, x, _, a: torch.sub(a @ (h := m.lins[0](x)), a @ (a @ h), alpha=0.25),
        polynomial(0, 1, -0.25),
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_is_found_however_it_is_written(name: str) -> None:
    how, expected = FILTERS[name]
    model, data = how if expected is None else Forward(how, 5, 4), plain()
    if expected is None:
        expected = truth(name.partition(",")[0], model.double().eval().prop.gamma)
    exposure = expose(model, data)
    found = signed(exposure)
    # What α and ℓ share out is a matter of scale; their product is not.
    scale = float((expected * found).sum() / (found * found).sum())
    torch.testing.assert_close(found * scale, expected, rtol=1e-10, atol=1e-12)
    assert exposure.scope == "" and not exposure.held and exposure.residual <= 1e-12
    # Another operator with the same masses, by hand.
    given, states = drawn(exposure, 2), exposure.contributions[0, :NODES]
    sign = -1.0 if exposure.groups[0].name.endswith("−") else 1.0
    by_hand = signed(exposure, given) @ (states * sign) + exposure.fixed_logits[0]
    torch.testing.assert_close(exposure.logits(given)[0], by_hand)
    assert expose(model, data, hops="last").scope == "last hop only"


class Kept(nn.Module):
    """Two hops over entries that stand on the model, of one table or of several side by side."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        index = HOP.nonzero().t()
        self.heads, self.lin = heads, nn.Linear(5, 4)
        share = 0.5 ** torch.arange(heads).double()  # each head has weights of its own
        self.graph = {"index": index, "weights": HOP[index[0], index[1]].unsqueeze(1) * share}

    def forward(self, x: Tensor) -> Tensor:
        (to, of), weights = self.graph["index"], self.graph["weights"]
        h = self.lin(x).view(len(x), self.heads, -1)
        for _ in range(2):
            h = torch.zeros_like(h).index_add(0, to, weights.unsqueeze(-1) * h[of])
        return h.flatten(1)


@pytest.mark.parametrize("heads", [1, 2])
def test_entries_that_stand_on_the_model_are_the_graphs_too(heads: int) -> None:
    torch.manual_seed(0)
    exposure = expose(Kept(heads).double(), {"x": plain().x})
    assert exposure.num_groups == heads and exposure.scope == "" and not exposure.held
    for group in range(heads):
        weights = torch.zeros(NODES, NODES, dtype=torch.float64)
        frame = exposure.to_frame()
        frame = frame[frame["group"] == exposure.groups[group].name]
        places = torch.tensor(frame[["node", "source"]].to_numpy()).t()
        weights[places[0], places[1]] = torch.tensor(frame["coefficient"].to_numpy())
        torch.testing.assert_close(weights, polynomial(0, 0, 0.25**group))


@pytest.mark.parametrize(
    ("steps", "held"),
    [
        (lambda conv, x, once: once(once(once(x)).relu()), True),  # in h are the hops before
        (lambda conv, x, once: once(once(x) + 1.0), True),
        (lambda conv, x, once: once(once(x)).relu(), False),
    ],
)
def test_a_nonlinear_step_inside_is_no_filter(steps: Any, held: bool) -> None:
    torch.manual_seed(0)
    exposure = expose(Filtered(steps, head=True).double(), plain())
    assert [part.title for part in exposure.held] == ["`prop` (Propagation)"] * held
    torch.testing.assert_close(signed(exposure), HOP if held else HOP @ HOP)
    assert (exposure.head is None) == held


def test_hops_that_are_stacked_for_something_else_too_keep_groups_of_their_own() -> None:
    torch.manual_seed(0)

    def how(m: Any, x: Tensor, _: Any, a: Tensor) -> Tensor:
        hops = torch.stack([a @ (h := m.lins[0](x)), a @ (a @ h)], 1)
        return hops.mean(1) + (hops * hops.softmax(1)).sum(1)

    exposure = expose(Forward(how, 5, 4), plain())
    assert exposure.num_groups == 2 and exposure.head is not None and not exposure.held


def test_answers_about_the_last_hop_say_so() -> None:
    torch.manual_seed(0)
    model, target = Filtered(pagerank, head=False).double(), torch.zeros(NODES, dtype=torch.long)
    exposure = expose(model, plain(), hops="last")
    torch.testing.assert_close(signed(exposure), HOP)
    assert "; last hop only" in exposure.groups[0].rule
    assert [group.name for group in exposure.groups] == ["prop last hop"]
    solution = solve(exposure, target)
    assert str(solution[0]).startswith("node 0, class 0 (last hop only) can")
    assert str(solution).endswith("last hop only")
    assert "last hop only" in str(reach(exposure, target))
    assert "last hop" not in str(solve(expose(model, plain()), target)[0])


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("kind", [pyg.SGConv, pyg.TAGConv, pyg.SSGConv])
def test_the_last_of_several_hops_is_said_to_be_the_last_only(kind: Any, hops: int) -> None:
    more = {"alpha": 0.1} if kind is pyg.SSGConv else {}
    model = kind(5, 3, K=hops, **more).double()
    for asked in ("paths", "last"):
        exposure = expose(model, plain(), hops=asked)
        assert exposure.scope == ("last hop only" if asked == "last" and hops > 1 else "")


# Products -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("negative", [False, True], ids=["positive", "signed"])
@pytest.mark.parametrize("way", list(filter_models.WAYS)[:-1])
def test_a_product_is_an_aggregation(way: str, negative: bool) -> None:
    form, times = filter_models.WAYS[way]
    torch.manual_seed(0)
    model, matrix = filter_models.Graphs(times).double().eval(), filter_models.weighed(negative)
    data = Data(x=graph().x, adj=form(matrix))
    exposure = expose(model, data)
    torch.testing.assert_close(signed(exposure), (2 if way == "addmm" else 1) * matrix)
    torch.testing.assert_close(exposure.logits()[0], model(data.x, data.adj))
    assert exposure.residual is not None and exposure.residual <= 1e-12
    assert exposure.num_groups == 1 + negative
    assert all("the matrix's entry" in group.rule for group in exposure.groups)
    # Reweighted by hand: the very matrix with other entries, dense.
    given = random_admissible(exposure, seed=3)
    hidden = model.second(model.hidden(data.x, data.adj))
    skip = {"addmm": 0.5, "torch.sparse.addmm": 1.0}.get(way, 0.0)
    by_hand = model.lin(signed(exposure, given) @ hidden + skip * hidden)
    torch.testing.assert_close(exposure.logits(given)[0], by_hand, rtol=1e-10, atol=1e-10)


def test_what_a_product_is_added_to_is_scaled_as_the_model_scales_it() -> None:

    def added(model: Any, x: Tensor, _: Tensor, a: Tensor) -> Tensor:
        return torch.addmm(model.lins[0](x), a, model.lins[1](x[:, :4]), beta=0.5, alpha=2.0)

    model = Forward(added, 5, 4, 4)
    exposure = expose(model, plain())
    torch.testing.assert_close(dense(exposure)[0], 2 * HOP)
    torch.testing.assert_close(exposure.fixed_logits[0], 0.5 * model.lins[0](plain().x).detach())


def rows_set(self: Any, x: Tensor, _: Tensor, a: Tensor) -> Tensor:
    h = self.lins[0](x)
    z = a @ h
    z[:9] = 0.5
    z[-3:] = h[-3:]
    return z


def in_inference_mode(self: Any, x: Tensor, _: Tensor, a: Tensor) -> Tensor:
    with torch.inference_mode():
        return self.lins[0](torch.matmul(a, x))


def from_the_left(self: Any, x: Tensor, _: Tensor, a: Tensor) -> Tensor:
    matrix = torch.zeros(NODES, NODES, dtype=torch.float64)
    source, target = a.t().nonzero().t()
    matrix[source, target] = torch.tensor(a[target, source].tolist(), dtype=torch.float64)
    return (self.lins[0](x).t() @ matrix).t()


SQUARE = torch.linspace(-1, 1, NODES * NODES, dtype=torch.float64).view(NODES, NODES)
WIDE = torch.linspace(-1, 1, NODES * 4, dtype=torch.float64).view(NODES, 4)
PRODUCTS: dict[str, Any] = {
    "a vector": lambda m, x, _, a: a @ m.lins[0](x)[:, 0],
    # As many features as nodes: x W is a map of features, and A (x W) the aggregation.
    "square features": lambda m, x, _, a: a @ ((ONE @ SQUARE).relu() @ WIDE * m.lins[0].bias),
    "maps between": lambda m, x, _, a: a @ m.lins[0](HOP @ x[:, :5]),
    "where by node": lambda m, x, _, a: torch.where(
        (torch.arange(NODES) < 9)[:, None], a @ m.lins[0](x), 0.5
    ),
    "rows set": rows_set,
    "inference mode": in_inference_mode,
    "vmap": lambda m, x, _, a: torch.vmap(lambda row: m.lins[0](row @ x))(a),
    "from the left, made inside": from_the_left,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_is_multiplied_with_what(name: str) -> None:
    model, data = Forward(PRODUCTS[name], 5, 4), plain()
    exposure = expose(model, data)
    torch.testing.assert_close(dense(exposure)[0], HOP)
    assert exposure.head is None and not any(part.beside for part in exposure.held)
    lam = drawn(exposure, 5)
    model.matrix = dense(exposure, lam)[0]
    truth = model(data.x, data.edge_index)
    truth = torch.stack([0 * truth, truth], 1) if truth.dim() == 1 else truth
    torch.testing.assert_close(exposure.logits(lam)[0], truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [lambda weight: weight, lambda weight: weight[:NODES]])
def test_a_model_of_the_graph_alone(rows: Callable[[Tensor], Tensor]) -> None:
    """Messages are rows of its weight, or of a view of it."""
    model = Forward(lambda m, adj, *_: adj @ rows(m.lins[0].weight), 4, NODES)
    exposure = expose(model, Data(adj=HOP, num_nodes=NODES), forward=lambda m, d: m(d.adj, None))
    torch.testing.assert_close(exposure.contributions[0], model.lins[0].weight.detach())
    before = exposure.messages.clone()
    assert not exposure.messages.requires_grad and not exposure.state.requires_grad
    with torch.no_grad():
        model.lins[0].weight.add_(1.0)  # which goes on learning
    assert torch.equal(exposure.messages, before) and torch.equal(exposure.state, before)


class Layer(nn.Module):
    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, out) * 0.3)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return torch.spmm(adj, torch.mm(x, self.weight))


@pytest.mark.parametrize(
    ("end", "follows"), [(nn.LogSoftmax(dim=1), None), (nn.Tanh(), ["tanh"]), (nn.ReLU(), ["relu"])]
)
def test_layers_that_are_modules_are_named(end: nn.Module, follows: list[str] | None) -> None:
    torch.manual_seed(0)
    model = Forward(lambda m, x, *_: m.end(m.gc2(m.gc1(x, m.adj).relu(), m.adj)), 5, 4)
    model.gc1, model.gc2, model.end, model.adj = Layer(5, 6), Layer(6, 4), end, HOP.to_sparse_coo()
    exposure = expose(model.double(), plain())
    assert [group.name for group in exposure.groups] == ["gc2"]
    assert "matrix product: α = the matrix's entry" in str(exposure)
    assert (exposure.head and [one.title for one in exposure.head.operations]) == follows


def test_features_propagated_beforehand() -> None:
    linear = nn.Linear(5, 4).double()
    with refused("no aggregation", "Linear", "forward=", kind=ExposureRefused):
        expose(linear, plain())
    exposure = expose(linear, plain(), forward=lambda net, data: HOP @ net(data.x))
    torch.testing.assert_close(dense(exposure)[0], HOP)


def test_inference_mode_is_left_where_derivatives_are_needed() -> None:
    with torch.inference_mode():
        exposure = expose(Forward(lambda m, x, _, a: a @ m.lins[0](x), 5, 4), plain())
        half = torch.arange(NODES) % 2 == 0
        with refused("inference_mode"):
            SetTranslation(epochs=1).fit(exposure, half.long(), half, ~half)
        with refused("inference_mode"):
            solve(
                expose(Forward(lambda m, x, _, a: (a @ m.lins[0](x)).relu(), 5, 4), plain()), "all"
            )


EIGENVALUES, EIGENVECTORS = torch.linalg.eigh(ONE - HOP)
SPECTRAL: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "a column of numbers": lambda u, f, h: u @ (f[:, None] * (u.t() @ h)),
    "behind": lambda u, f, h: u @ ((u.t() @ h) * f.unsqueeze(1)),
    "scaled vectors": lambda u, f, h: (u * f) @ (u.t() @ h),
    "turned": lambda u, f, h: u @ (f[:, None] * (h.t() @ u).t()),
    "one matrix": lambda u, f, h: u @ torch.diag(f) @ u.t() @ h,
}


@pytest.mark.parametrize("count", [7, NODES])
@pytest.mark.parametrize("name", SPECTRAL)
def test_filters_in_a_spectral_basis_have_nodes_as_senders(name: str, count: int) -> None:
    basis, kept = EIGENVECTORS[:, :count].contiguous(), EIGENVALUES[:count].contiguous()

    def forward(model: Any, x: Tensor, *_: Any) -> Tensor:
        filtered = SPECTRAL[name](basis, model.lins[0].bias[0] - kept, model.lins[1](x))
        return filtered.relu() if count == NODES else filtered

    model = Forward(forward, 5, 4)
    model.lins.append(nn.Linear(5, 4).double())
    exposure = expose(model, plain())
    factors = model.lins[0].bias[0].detach() - kept
    torch.testing.assert_close(signed(exposure), basis @ torch.diag(factors) @ basis.t())
    assert (exposure.head is None) == (count < NODES)


def test_vectors_of_a_basis_are_never_taken_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "LINEAR_ATTENTION", NODES)  # pairs; beyond, none are formed
    model = Forward(lambda m, x, *_: SPECTRAL["behind"](EIGENVECTORS, EIGENVALUES, x), 5, 4)
    with refused("mm", kind=ExposureRefused):
        expose(model, plain())


# The same aggregation in many spellings -----------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_every_spelling_is_reweighted_message_by_message(name: str) -> None:
    kind, how, groups = CASES[name]
    torch.manual_seed(2)
    model: Any = kind(how).double()
    data = spelled_models.graph()
    exposure = expose(model, data)
    assert exposure.head is None and len(exposure.groups) == groups and not exposure.scope
    lam, model.ratio = reweighted(exposure)
    with torch.no_grad():
        truth = model(data.x, data.adj if kind is Dense else data.edge_index)
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-9, atol=1e-9)
    assert float((truth - exposure.frozen_logits[0]).abs().max()) > 1e-3


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "hops", [lambda: pyg.TAGConv(6, 6, 2), lambda: pyg.ChebConv(6, 6, 3)], ids=["TAG", "Cheb"]
)
def test_a_filter_of_an_earlier_layer_over_the_same_features_is_held(hops, gated) -> None:
    """Two filters read the same rows; one feeds another layer, or that layer's own rows too."""

    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        skip, gate = self.skip(x, edge_index), self.gate(x, edge_index).sigmoid()
        return skip + self.last(gate * x if gated else gate, edge_index)

    torch.manual_seed(2)
    data = graph()
    data.x = torch.randn(NODES, 6).double()
    exposure = expose(Made(forward, skip=hops(), gate=hops(), last=hops()).double(), data)
    assert {group.name.split()[0] for group in exposure.groups} == {"skip", "last"}
    (held,) = exposure.held
    assert held.title.startswith("`gate`") and not held.beside


def stepped(step: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def steps(a: Tensor, h: Tensor) -> Tensor:
        z = h
        for _ in range(K):
            z = step(a, z, h)
        return z

    return steps


def scale(a: Tensor) -> Tensor:
    """A diagonal matrix that the model makes of the graph it is given."""
    return torch.diag(a.sum(1).pow(-0.5))


def written(a: Tensor, h: Tensor) -> Tensor:
    out = torch.zeros_like(a)
    torch.mm(scale(a), a, out=out)
    return out @ h


RESTARTED = polynomial(*[0.2 * 0.8**k for k in range(K)], 0.8**K)
ROWS = scale(HOP) @ HOP
GIVEN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = {
    "lerp": (stepped(lambda a, z, h: torch.lerp(a @ z, h, 0.2)), RESTARTED),
    "addmm": (stepped(lambda a, z, h: torch.addmm(h, a, z, beta=0.2, alpha=0.8)), RESTARTED),
    "sparse addmm": (
        stepped(lambda a, z, h: torch.sparse.addmm(h, a.to_sparse(), z, beta=0.2, alpha=0.8)),
        RESTARTED,
    ),
    "D A D": (lambda a, h: (scale(a) @ a @ scale(a)) @ h, ROWS @ scale(HOP)),
    # A product with a diagonal matrix scales rows, of messages or of what they add up to.
    "one after another": (lambda a, h: scale(a) @ (a @ (scale(a) @ h)), ROWS),
    "sparse": (
        lambda a, h: scale(a).to_sparse() @ (a @ torch.mm(scale(a).to_sparse_csr(), h)), ROWS,
    ),
    "D A": (lambda a, h: torch.sparse.mm(scale(a).to_sparse(), a.to_sparse()) @ h, ROWS),
    "D A of CSR": (lambda a, h: (scale(a).to_sparse_csr() @ a.to_sparse_csr()) @ h, ROWS),
    "D A written": (written, ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_made_of_a_given_matrix_is_an_aggregation(name: str) -> None:
    made, expected = GIVEN[name]
    torch.manual_seed(3)
    model = Made(lambda self, x, adj: made(adj, self.lin(x)), lin=nn.Linear(5, 3)).double()
    exposure = expose(model, {"x": torch.randn(NODES, 5).double(), "adj": HOP})
    assert exposure.scope == "" and exposure.num_groups == 1 and not exposure.held
    torch.testing.assert_close(dense(exposure)[0], expected, rtol=1e-12, atol=1e-14)
    assert exposure.num_terms == int((expected != 0).sum())


def test_nodes_that_share_no_hyperedge_send_nothing() -> None:
    """H (Hᵀ x) of a given incidence is (H Hᵀ) x: exact zeros are no messages."""

    def forward(self: Any, x: Tensor, hyper: Tensor) -> Tensor:
        return hyper @ (hyper.t() @ self.lin(x))

    torch.manual_seed(3)
    hyper = (torch.rand(15, 6) < 0.2).double()
    hyper[torch.arange(15), torch.arange(15) % 6] = 1
    data = {"x": torch.randn(15, 5).double(), "hyper": hyper}
    exposure = expose(Made(forward, lin=nn.Linear(5, 3)).double(), data)
    wanted = hyper @ hyper.t()
    torch.testing.assert_close(dense(exposure)[0], wanted)
    assert exposure.num_terms == int((wanted != 0).sum())
    assert "spectral" not in str(exposure) and "attention" not in str(exposure)


def test_a_product_with_the_identity_may_be_of_features() -> None:
    """Codes of nodes are the identity, too; so it scales nothing, and a self-loop is a message."""

    def forward(self: Any, x: Tensor, adj: Tensor, own: Tensor) -> Tensor:
        h = x @ self.weight
        return adj @ h + own @ h

    torch.manual_seed(3)
    a, eye = (torch.rand(9, 9) < 0.3).double(), torch.eye(9).double()
    model = Made(forward)
    model.weight = nn.Parameter(torch.randn(9, 3).double())
    exposure = expose(model, {"x": eye, "adj": a, "own": eye.clone()})
    torch.testing.assert_close(dense(exposure), torch.stack([a, eye]))
