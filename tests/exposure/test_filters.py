"""Filters, matrix products and other spellings of an aggregation, against dense algebra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnn_repair import SetTranslation
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.record.replay import random_admissible
from gnn_repair.oracle import reach, solve
from tests.helpers.models.convolutions import NODES, graph
from tests.helpers.models.filter_models import (
    STEPS,
    Filtered,
    Hop,
    K,
    Propagation,
    pagerank,
    plain,
    repeated,
    restarting,
)
from tests.helpers.models.product_models import WAYS, Graphs, coo, dense
from tests.helpers.models.spelled_models import CASES, CLASSES, FEATURES, HEADS, Dense, reweighted
from tests.helpers.models.spelled_models import NODES as NODES_SPELLINGS
from tests.helpers.models.spelled_models import graph as graph_spellings

# Filters of several hops that users write themselves, against dense matrix polynomials.


def hop() -> Tensor:
    """Â dense, [recipient, source], with self-loops where missing."""
    data = plain()
    a = torch.zeros(NODES, NODES, dtype=torch.float64)
    a[data.edge_index[1], data.edge_index[0]] = 1
    a = a + torch.diag((a.diagonal() == 0).double())
    scale = a.sum(1).pow(-0.5)
    return scale.view(-1, 1) * a * scale.view(1, -1)


def power(k: int) -> Tensor:
    return torch.linalg.matrix_power(hop(), k)


def truth(name: str, gamma: Tensor) -> Tensor:
    one, a = torch.eye(NODES, dtype=torch.float64), hop()
    g = gamma.detach().double()
    if name == "pagerank":
        return sum(g[k] * power(k) for k in range(K + 1))  # type: ignore[return-value]
    if name == "restarting":
        out = one
        for _ in range(K):
            out = 0.8 * a @ out + 0.2 * one
        return out
    if name == "repeated":
        return power(K)
    if name == "chebyshev":
        t = [one, -a]
        for _ in range(2, K + 1):
            t.append(-2 * a @ t[-1] - t[-2])
        return sum(g[k] * t[k] for k in range(K + 1))  # type: ignore[return-value]
    low, high = one - a, one + a
    return g[0] * high @ high + 2 * g[1] * low @ high + g[2] * low @ low


def signed(exposure: Exposure, coefficients: Tensor) -> Tensor:
    """All groups' coefficients with their signs as one matrix [recipient, source]."""
    out = torch.zeros(NODES, NODES, dtype=torch.float64)
    count = exposure.num_groups
    places = torch.repeat_interleave(torch.arange(NODES * count), exposure.segments.diff())
    signs = torch.tensor([-1.0 if g.name.endswith("−") else 1.0 for g in exposure.groups])
    values = coefficients.double() * signs[places % count]
    sources = exposure.sources[exposure.rows].long()
    return out.index_put_((places // count, sources), values, accumulate=True)


@pytest.mark.parametrize("head", [False, True], ids=["at the end", "before a head"])
@pytest.mark.parametrize("name", STEPS)
def test_the_whole_filter_is_found(name: str, head: bool) -> None:
    torch.manual_seed(0)
    model, data = Filtered(STEPS[name], head).double().eval(), plain()
    exposure = expose(model, data)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    torch.testing.assert_close(exposure.logits()[0], model(data.x, data.edge_index))
    # What α and ℓ share out is a matter of scale; their product is not.
    expected, found = truth(name, model.prop.gamma), signed(exposure, exposure.coefficients[0])
    scale = float((expected * found).sum() / (found * found).sum())
    torch.testing.assert_close(found * scale, expected, rtol=1e-10, atol=1e-12)
    states = model.lin(data.x).relu()
    contributions = model.head(states) - model.head(torch.zeros_like(states))
    sign = torch.tensor([-1.0 if g.name.endswith("−") else 1.0 for g in exposure.groups])
    for group, part in enumerate(exposure.contributions[0].split(NODES)):
        torch.testing.assert_close(part * sign[group], contributions * scale)
    # Another operator with the same masses, by hand.
    given = random_admissible(exposure, seed=2)
    by_hand = signed(exposure, given) * scale @ contributions
    bias = model.head(torch.zeros(1, states.shape[1], dtype=torch.float64))
    torch.testing.assert_close(exposure.logits(given)[0], by_hand + bias.detach())
    assert {group.name.rstrip(" +−") for group in exposure.groups} == {
        "prop Â⁴" if name == "repeated" else f"prop Σ γₖ Âᵏ, K = {2 if name == 'bernstein' else K}"
    }


def test_products_in_forward() -> None:
    """SGC written with spmm; the first input is no module's, so hop 0 would stay in β."""

    class Simple(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(5, 4)

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            for _ in range(K):
                x = torch.spmm(adj, x)
            return self.lin(x)

    model = Simple().double()
    exposure = expose(model, Data(x=plain().x, adj=hop().to_sparse_coo()))
    torch.testing.assert_close(signed(exposure, exposure.coefficients[0]), power(K))
    last = expose(model, Data(x=plain().x, adj=hop().to_sparse_coo()), hops="last")
    torch.testing.assert_close(signed(last, last.coefficients[0]), hop())
    assert last.scope == "last hop only" and exposure.scope == ""


def test_separate_layers_of_one_operator() -> None:
    """LightGCN: the mean of all hops, each a module of its own."""

    class Light(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.convs = nn.Linear(5, 4), nn.ModuleList(pyg.LGConv() for _ in range(3))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.lin(x)
            total = x
            for conv in self.convs:
                x = conv(x, edge_index)
                total = total + x
            return total / 4

    torch.manual_seed(0)
    model, data = Light().double(), plain()
    exposure = expose(model, data)
    a = torch.zeros(NODES, NODES, dtype=torch.float64)
    a[data.edge_index[1], data.edge_index[0]] = 1
    scale = a.sum(1).pow(-0.5).nan_to_num(posinf=0)
    a = scale.view(-1, 1) * a * scale.view(1, -1)
    found = signed(exposure, exposure.coefficients[0])
    torch.testing.assert_close(found, (torch.eye(NODES) + a + a @ a + a @ a @ a) / 4)
    torch.testing.assert_close(exposure.contributions[0], model.lin(data.x))


def test_a_map_for_every_hop_is_a_group_for_every_hop() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(15, 4)

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            one = adj @ x
            return self.lin(torch.cat([x, one, adj @ one], 1))

    torch.manual_seed(0)
    model, data = Joined().double(), Data(x=plain().x, adj=hop())
    exposure = expose(model, data)
    assert [group.name for group in exposure.groups] == ["Â", "Â²"]
    sizes = exposure.segments.diff().view(-1, 2).sum(0).tolist()
    assert sizes == [int((power(k) != 0).sum()) for k in (1, 2)]
    for place, part in enumerate(exposure.contributions[0].split(NODES)):
        expected = data.x @ model.lin.weight[:, 5 * place + 5 : 5 * place + 10].t()
        torch.testing.assert_close(part, expected)


def test_layers_with_maps_between_them_are_exposed_by_the_last() -> None:
    """No numbers but matrices lie between the hops: no filter of this kind."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.prop = nn.Linear(5, 4), nn.Linear(4, 4), Propagation(repeated)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.prop.steps_once(self.one(x), edge_index)
            return self.prop.steps_once(self.two(x), edge_index)

    Propagation.steps_once = lambda self, x, edge_index: (  # type: ignore[attr-defined]
        lambda index, norm: self.propagate(index, h=x, norm=norm)
    )(*gcn_norm(edge_index, None, x.shape[0], dtype=x.dtype))
    torch.manual_seed(0)
    exposure = expose(Deep().double(), plain())
    torch.testing.assert_close(signed(exposure, exposure.coefficients[0]), hop())
    assert [str(part) for part in exposure.held] == ["`prop` (Propagation) (scatter_add)"]


def test_last_hop_only_is_said() -> None:
    torch.manual_seed(0)
    model = Filtered(pagerank, head=False).double()
    exposure = expose(model, plain(), hops="last")
    torch.testing.assert_close(signed(exposure, exposure.coefficients[0]), hop())
    assert "; last hop only" in exposure.groups[0].rule
    assert [group.name for group in exposure.groups] == ["prop last hop"]
    target = torch.zeros(NODES, dtype=torch.long)
    solution = solve(exposure, target)
    assert str(solution[0]).startswith("node 0, class 0 (last hop only) can")
    assert str(solution).endswith("last hop only")
    assert str(reach(exposure, target)).endswith("about            the last hop only")
    whole = expose(model, plain())
    assert whole.scope == "" and "last hop" not in str(solve(whole, target)[0])


def test_a_nonlinear_step_inside_is_no_filter() -> None:
    def bent(conv: Any, x: Tensor, once: Hop) -> Tensor:
        return once(once(once(x)).relu())

    torch.manual_seed(0)
    exposure = expose(Filtered(bent, head=True).double(), plain())
    assert "`prop` (Propagation)" in str(exposure.held[0])  # the hops before the ReLU are in h
    torch.testing.assert_close(signed(exposure, exposure.coefficients[0]), hop())

    def shifted(conv: Any, x: Tensor, once: Hop) -> Tensor:
        return once(once(x) + 1.0)

    exposure = expose(Filtered(shifted, head=True).double(), plain())
    assert "`prop` (Propagation)" in str(exposure.held[0])

    def ending(conv: Any, x: Tensor, once: Hop) -> Tensor:
        return once(once(x)).relu()

    tailed = expose(Filtered(ending, head=True).double(), plain())
    assert tailed.head is not None and "Â²" in tailed.groups[0].name


def test_a_wrong_filter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """β hides any error at λ = α; running the model with the hops replaced shows it."""
    from gnn_repair.exposure.record import build

    torch.manual_seed(0)
    model, honest = Filtered(restarting, head=True).double(), build.polynomial

    def wrong(*args: Any) -> Any:
        recipients, rows, alpha = honest(*args)
        return recipients, rows.roll(1), alpha

    monkeypatch.setattr(build, "polynomial", wrong)
    with pytest.raises(ExposureRefused, match="differs from what was read off it by"):
        expose(model, plain())


# Models that multiply with a matrix themselves, without MessagePassing.


def found_matrix(exposure: Exposure, coefficients: Tensor) -> Tensor:
    """Signed coefficients of one-block groups as [recipient, source]."""
    out = torch.zeros(NODES, NODES, dtype=torch.float64)
    places = torch.arange(NODES * exposure.num_groups)
    places = torch.repeat_interleave(places, exposure.segments.diff())
    signs = torch.tensor([-1.0 if g.name.endswith("−") else 1.0 for g in exposure.groups])
    values = coefficients * signs[places % exposure.num_groups]
    recipients = places // exposure.num_groups
    sources = exposure.sources[exposure.rows].long()
    return out.index_put_((recipients, sources), values.double(), accumulate=True)


@pytest.mark.parametrize("signed", [False, True], ids=["positive", "signed"])
@pytest.mark.parametrize("way", list(WAYS)[:-1])
def test_a_product_is_an_aggregation(way: str, signed: bool) -> None:
    form, times = WAYS[way]
    torch.manual_seed(0)
    model, matrix = Graphs(times).double().eval(), dense(signed)
    data = Data(x=graph().x, adj=form(matrix))
    exposure = expose(model, data)
    factor = 2 if way == "addmm" else 1
    torch.testing.assert_close(found_matrix(exposure, exposure.coefficients[0]), factor * matrix)
    torch.testing.assert_close(exposure.logits()[0], model(data.x, data.adj))
    assert exposure.residual is not None and exposure.residual <= 1e-12
    assert exposure.num_groups == 1 + signed
    assert all("the matrix's entry" in group.rule for group in exposure.groups)

    # Reweighted by hand: the very matrix with other entries, dense.
    other = found_matrix(exposure, random_admissible(exposure, seed=3))
    hidden = model.second(model.hidden(data.x, data.adj))
    skip = {"addmm": 0.5, "torch.sparse.addmm": 1.0}.get(way, 0.0)
    by_hand = model.lin(other @ hidden + skip * hidden)
    given = random_admissible(exposure, seed=3)
    torch.testing.assert_close(exposure.logits(given)[0], by_hand, rtol=1e-10, atol=1e-10)


def test_vectors_are_products_too() -> None:
    """One output channel, multiplied as a vector: two classes (0, z)."""

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(5, 1)

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            return adj @ self.lin(x).squeeze(1)

    model, data = Scored().double(), Data(x=graph().x, adj=dense())
    exposure = expose(model, data)
    torch.testing.assert_close(found_matrix(exposure, exposure.coefficients[0]), dense())
    torch.testing.assert_close(exposure.contributions[0, :, 1], model.lin(data.x).view(-1))


def test_a_wrong_entry_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certification runs the model: with entries of another matrix it must differ."""
    from gnn_repair.exposure.record import build

    def wrong(*given: Any) -> Any:
        block = honest(*given)
        return replace(block, coefficients=block.coefficients * 1.001)

    honest = build._product_block
    monkeypatch.setattr(build, "_product_block", wrong)
    model, data = Graphs(torch.spmm).double(), Data(x=graph().x, adj=coo(dense()))
    with pytest.raises(ExposureRefused, match=r"reweighted messages in .* the model diff"):
        expose(model, data)


def test_layers_that_are_modules_are_named() -> None:
    class Layer(nn.Module):
        def __init__(self, size: int, out: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(size, out) * 0.3)

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            return torch.spmm(adj, torch.mm(x, self.weight))

    class Net(nn.Module):
        def __init__(self, after: Any) -> None:
            super().__init__()
            self.gc1, self.gc2, self.after = Layer(5, 6), Layer(6, 4), after

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            return self.after(self.gc2(self.gc1(x, adj).relu(), adj))

    torch.manual_seed(0)
    data = SimpleNamespace(x=graph().x, adj=coo(dense()))
    exposure = expose(Net(nn.LogSoftmax(dim=1)).double(), data)
    assert [group.name for group in exposure.groups] == ["gc2"]
    assert "matrix product: α = the matrix's entry" in str(exposure)
    tailed = expose(Net(nn.Tanh()).double(), data)
    assert tailed.head is not None
    assert [operation.title for operation in tailed.head.operations] == ["tanh"]
    relu = Graphs(lambda a, h: torch.relu(a @ h)).double()
    tailed = expose(relu, Data(x=data.x, adj=dense()))
    assert [operation.title for operation in tailed.head.operations] == ["relu", "affine"]


def test_features_that_are_square_are_no_graph() -> None:
    """As many features as nodes: x W is a map of features, and A (x W) the aggregation."""

    class Featureless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(NODES, 4))
            self.wide = nn.Parameter(torch.randn(NODES, NODES))

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            hidden = torch.mm(torch.mm(x, self.wide).relu(), self.weight)
            return torch.mm(adj, hidden)

    torch.manual_seed(0)
    data = Data(x=torch.eye(NODES, dtype=torch.float64), adj=dense())
    exposure = expose(Featureless().double(), data)
    torch.testing.assert_close(found_matrix(exposure, exposure.coefficients[0]), dense())

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(NODES, 4))

        def forward(self, adj: Tensor) -> Tensor:
            return adj @ self.table

    model = Embedded().double()
    exposure = expose(model, Data(adj=dense(), num_nodes=NODES))
    torch.testing.assert_close(exposure.contributions[0], model.table.detach())


def test_products_inside_a_propagate_are_the_propagates() -> None:
    torch.manual_seed(0)
    model = pyg.GCNConv(5, 4).double()
    adj_t = dense().to_sparse_csr()
    exposure = expose(model, Data(x=graph().x, adj_t=adj_t, num_nodes=NODES))
    assert [group.rule.split(":")[0] for group in exposure.groups] == ["GCNConv"]


def test_a_convolution_and_a_product_side_by_side() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = pyg.SAGEConv(5, 4), nn.Linear(5, 4)

        def forward(self, x: Tensor, edge_index: Tensor, adj: Tensor) -> Tensor:
            return self.conv(x, edge_index) + adj @ self.lin(x)

    torch.manual_seed(0)
    data = Data(x=graph().x, edge_index=graph().edge_index, adj=dense())
    exposure = expose(Both().double(), data)
    assert [group.name for group in exposure.groups] == ["conv", "matrix product"]
    assert exposure.residual is not None and exposure.residual <= 1e-12


def test_features_propagated_beforehand() -> None:
    message = r"no aggregation happens in Linear's forward.* pass a forward= that propagates"
    with pytest.raises(ExposureRefused, match=message):
        expose(nn.Linear(5, 4).double(), Data(x=graph().x, edge_index=graph().edge_index))
    data = Data(x=graph().x, adj=dense())
    linear = nn.Linear(5, 4).double()
    exposure = expose(linear, data, forward=lambda net, data: data.adj @ net(data.x))
    torch.testing.assert_close(found_matrix(exposure, exposure.coefficients[0]), dense())


# The same aggregation in many spellings: heads, batches, keywords, whole messages.


@pytest.mark.parametrize("name", CASES)
def test_every_spelling_is_reweighted_message_by_message(name: str) -> None:
    kind, how, groups = CASES[name]
    torch.manual_seed(2)
    model: Any = kind(how).double()
    data = graph_spellings()
    exposure = expose(model, data)
    assert exposure.head is None and len(exposure.groups) == groups and not exposure.scope
    lam, model.ratio = reweighted(exposure)
    with torch.no_grad():
        truth = model(data.x, data.adj if kind is Dense else data.edge_index)
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-9, atol=1e-9)
    assert float((truth - exposure.frozen_logits[0]).abs().max()) > 1e-3


def test_attention_with_a_graph_as_mask_has_its_weights() -> None:
    torch.manual_seed(2)
    model, data = Dense("scaled_dot_product_attention").double(), graph_spellings()
    exposure = expose(model, data)
    by_hand = Dense("bmm").double()
    by_hand.load_state_dict(model.state_dict())
    other = expose(by_hand, data)
    assert exposure.head is None and other.head is None
    torch.testing.assert_close(exposure.frozen_logits, other.frozen_logits)
    torch.testing.assert_close(exposure.coefficients, other.coefficients)
    assert len(exposure.groups) == HEADS


class Trained(nn.Module):
    """A trained matrix of nodes, from either side."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned, self.lin = turned, nn.Linear(FEATURES, CLASSES)
        self.mix = nn.Linear(NODES_SPELLINGS, NODES_SPELLINGS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x)
        return self.mix(h.t()).t() if self.turned else self.mix.weight @ h


def test_a_trained_matrix_of_nodes_is_the_same_from_either_side() -> None:
    torch.manual_seed(3)
    left, right = Trained(False).double(), Trained(True).double()
    right.load_state_dict(left.state_dict())
    data = Data(x=graph_spellings().x)
    one, two = expose(left, data), expose(right, data)
    torch.testing.assert_close(two.coefficients, one.coefficients)
    torch.testing.assert_close(two.contributions, one.contributions)
    assert torch.equal(two.sources, one.sources) and two.num_terms == NODES_SPELLINGS**2


class TwoOutputs(nn.Module):
    """Logits beside their own (log-)softmax, in any order."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.lin = how, nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> tuple[Tensor, ...]:
        z = adj @ self.lin(x)
        probability = z.softmax(1) if "softmax" in self.how.split() else z.log_softmax(1)
        pair = (z, probability)
        return pair[::-1] if "first" in self.how else pair


@pytest.mark.parametrize("how", ["log", "softmax", "first log", "first softmax"])
def test_logits_beside_their_own_softmax_are_the_logits(how: str) -> None:
    torch.manual_seed(3)
    model, data = TwoOutputs(how).double(), graph_spellings()
    exposure = expose(model, data)
    torch.testing.assert_close(exposure.frozen_logits[0], data.adj @ model.lin(data.x).detach())
    assert f"logits are output {int('first' in how)} of its 2" in exposure.called


class Rows(nn.Module):
    """A trained row for every node, as LINKX has them, mixed by the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.lin = nn.Parameter(torch.randn(NODES_SPELLINGS, 6)), nn.Linear(6, CLASSES)

    def forward(self, adj: Tensor) -> Tensor:
        return self.lin(adj @ self.rows)


def test_trained_rows_of_nodes_are_copied() -> None:
    torch.manual_seed(4)
    model, data = Rows().double(), graph_spellings()
    exposure = expose(model, data, forward=lambda model, data: model(data.adj))
    before = exposure.messages.clone()
    assert not exposure.messages.requires_grad and not exposure.state.requires_grad
    with torch.no_grad():
        model.rows.add_(1.0)
    torch.testing.assert_close(exposure.messages, before)


class HopsAddedUp(nn.Module):
    """Â x + Â² x + Â³ x, added up in another way each."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.lin = how, nn.Linear(5, 4)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = self.lin(x)
        hops = [adj @ h, adj @ (adj @ h), adj @ (adj @ (adj @ h))]
        if self.how == "sum of a list":
            return sum(hops)  # type: ignore[return-value]
        out = torch.zeros_like(h)
        for hop in hops:
            out = out.add_(hop) if self.how == "in place" else out + hop
        return out


@pytest.mark.parametrize("how", ["from zeros", "in place", "sum of a list"])
def test_hops_that_are_added_up_from_zero_are_one_filter(how: str) -> None:
    torch.manual_seed(0)
    exposure = expose(HopsAddedUp(how).double(), {"x": plain().x.double(), "adj": hop()})
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    owner = torch.repeat_interleave(exposure.segments.diff())
    dense[owner, exposure.sources[exposure.rows.long()].long()] = exposure.coefficients[0]
    assert exposure.num_groups == 1
    torch.testing.assert_close(dense, power(1) + power(2) + power(3))


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("kind", [pyg.SGConv, pyg.TAGConv, pyg.SSGConv])
def test_the_last_of_several_hops_is_said_to_be_the_last_only(kind: Any, hops: int) -> None:
    more = {"alpha": 0.1} if kind is pyg.SSGConv else {}
    data = plain()
    model = kind(data.num_features, 3, K=hops, **more).double()
    for asked in ("paths", "last"):
        exposure = expose(model, data, hops=asked)
        assert exposure.scope == ("last hop only" if asked == "last" and hops > 1 else "")


class Rest(nn.Module):
    """A product, and what follows it."""

    def __init__(self, rest: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.lin = nn.Linear(FEATURES, CLASSES), nn.Linear(CLASSES, CLASSES)
        self.rest, self.matrix = rest, torch.eye(NODES_SPELLINGS, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self, self.enter(x))


FIRST = torch.arange(NODES_SPELLINGS) < NODES_SPELLINGS // 2


def _rows_set(self: Any, h: Tensor) -> Tensor:
    z = self.matrix @ h
    z[FIRST] = 0.5
    z[-3:] = h[-3:]
    return self.lin(z)


def _in_inference_mode(self: Any, h: Tensor) -> Tensor:
    with torch.inference_mode():
        return self.lin(torch.matmul(self.matrix, h))


def _two_largest(self: Any, h: Tensor) -> Tensor:
    z = self.matrix @ h
    top = z.topk(2, 1)
    return torch.zeros_like(z).scatter(1, top.indices, top.values)


def _from_the_left(self: Any, h: Tensor) -> Tensor:
    matrix = torch.zeros(NODES_SPELLINGS, NODES_SPELLINGS, dtype=torch.float64)
    source, target = self.matrix.t().nonzero().t()
    matrix[source, target] = torch.tensor(self.matrix[target, source].tolist(), dtype=torch.float64)
    return (self.lin(h).t() @ matrix).t()


RESTS: dict[str, tuple[Callable[[Any, Tensor], Tensor], bool]] = {
    "rows set": (_rows_set, False),
    "where by node": (lambda s, h: torch.where(FIRST[:, None], s.matrix @ h, s.lin(h)), False),
    "inference mode": (_in_inference_mode, False),
    "vmap": (lambda s, h: torch.vmap(lambda row: s.lin(row @ h))(s.matrix), False),
    "from the left, made inside": (_from_the_left, False),
    "two largest": (_two_largest, True),
    "distances": (lambda s, h: -torch.cdist(s.matrix @ h, s.lin.weight), True),
}
"""What follows the product, and whether that is nonlinear."""


def test_inference_mode_is_left_where_derivatives_are_needed() -> None:
    with torch.inference_mode():
        model, data = Graphs(lambda a, h: a @ h).double(), Data(x=graph().x, adj=dense())
        exposure = expose(model, data)
        half = torch.arange(NODES) % 2 == 0
        with pytest.raises(InputError, match="inference_mode"):
            SetTranslation(epochs=1).fit(exposure, half.long(), half, ~half)
        with pytest.raises(InputError, match="inference_mode"):
            rest = Rest(RESTS["rows set"][0]).double()
            rest.matrix = graph_spellings().adj
            expose(rest, {"x": graph_spellings().x})


@pytest.mark.parametrize("name", RESTS)
def test_what_follows_a_product_is_followed(name: str) -> None:
    rest, nonlinear = RESTS[name]
    torch.manual_seed(5)
    model, data = Rest(rest).double(), graph_spellings()
    model.matrix = data.adj * torch.rand(NODES_SPELLINGS, NODES_SPELLINGS, dtype=torch.float64)
    exposure = expose(model, {"x": data.x})
    assert (exposure.head is not None) == nonlinear and not exposure.held
    lam, ratio = reweighted(exposure)
    model.matrix = model.matrix * ratio[0]
    with torch.no_grad():
        truth = model(data.x)
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [2.0, -0.5])
def test_a_matrix_may_be_scaled_before_it_is_multiplied(scale):
    class Chebyshev(nn.Module):
        def __init__(self, times):
            super().__init__()
            torch.manual_seed(0)
            self.times, self.out = times, nn.ModuleList(nn.Linear(5, 4) for _ in range(4))

        def forward(self, x, adj):
            terms = [x, -adj @ x]
            for _ in range(2):
                terms.append(self.times(-adj, terms[-1]) - terms[-2])
            return sum(layer(term) for layer, term in zip(self.out, terms, strict=True))

    data = plain()
    adj = torch.zeros(len(data.x), len(data.x)).double().index_put(
        tuple(data.edge_index.flip(0)), torch.ones(data.num_edges).double() / 3, accumulate=True
    )  # fmt: skip
    first, second = (
        expose(Chebyshev(times).double(), {"x": data.x.double(), "adj": adj})
        for times in (lambda a, h: scale * a @ h, lambda a, h: scale * (a @ h))
    )
    assert not first.held
    assert [g.name for g in first.groups] == [g.name for g in second.groups]
    given = random_admissible(second, seed=1)
    assert torch.allclose(first.logits(given), second.logits(given), atol=1e-9)
