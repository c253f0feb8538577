"""Filters of several hops that users write themselves, against dense matrix polynomials."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.record.replay import random_admissible
from gnn_repair.oracle import reach, solve
from tests.helpers.models.convolutions import NODES
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
