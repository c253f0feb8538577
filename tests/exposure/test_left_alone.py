"""Whatever comes of it, a user's model, data and PyTorch are left as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import gnn_repair as gr
from gnn_repair.errors import GnnRepairError
from gnn_repair.exposure.links.value import LinkExposure
from tests.helpers.models import link_models, pool_models, typed_models
from tests.helpers.models.convolutions import graph
from tests.helpers.models.filter_models import plain


class Net(nn.Module):
    """Frozen parts in training, a cached filter, dropout, a table that it keeps; fails at will."""

    def __init__(self, end: Callable[[Tensor], Tensor], fails: int = 0, writes: bool = False):
        super().__init__()
        self.conv1, self.norm = pyg.GCNConv(5, 6, cached=True), nn.BatchNorm1d(6)
        self.mid, self.last = pyg.SSGConv(6, 6, 0.1, K=2, cached=True), pyg.GATConv(6, 4)
        self.drop, self.end, self.fails, self.writes = nn.Dropout(0.5), end, fails, writes
        self.kept = {"x": graph().x.sin()}
        self.register_buffer("shift", torch.ones(6))
        self.runs = [0]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.runs[0] += 1
        if self.runs[0] == self.fails:
            raise RuntimeError("not today")
        if self.writes:
            x.mul_(2)
        if "x" not in self.kept:  # never, unless somebody empties it
            self.kept["x"] = x.sin()
        h = self.norm(self.drop(self.conv1(self.kept["x"], edge_index))) + self.shift
        return self.end(self.last(self.mid(h, edge_index).relu(), edge_index))


def net(end: Callable[[Tensor], Tensor] = lambda z: z, **how: Any) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = Net(end, **how).double().train()
    model.norm.eval()
    model.last.lin.weight.requires_grad_(False)
    model.conv1.lin.weight.grad = torch.ones_like(model.conv1.lin.weight)
    return model, plain(), gr.expose


class Keeping(nn.Module):
    """All that convolutions give is kept from the first run on, in three places."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.tables = pyg.SAGEConv(5, 4), pyg.GCNConv(5, 4), [None]
        self.first, self.second = None, {}

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.first is None:
            self.first = self.one(x, edge_index)
        if "h" not in self.second:
            self.second["h"] = self.two(x, edge_index)
        return self.first + self.second["h"]


def keeping() -> tuple[nn.Module, Any, Any]:
    model, data = Keeping().double(), plain()
    with torch.no_grad():
        model(data.x, data.edge_index)
    return model, data, gr.expose


def reversible() -> tuple[nn.Module, Any, Any]:
    """GroupAddRev frees the memory of its input, which here is data.x itself."""
    torch.manual_seed(1)
    steps = [(pyg.GroupAddRev(pyg.SAGEConv(4, 4), num_groups=2), "x, e -> x"), nn.Linear(8, 4)]
    data = {"x": torch.randn(24, 8).double(), "e": plain().edge_index}
    return pyg.Sequential("x, e", steps).double(), data, gr.expose


def linked() -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(5)
    data = Data(x=torch.randn(50, link_models.WIDTH), edge_index=torch.randint(0, 50, (2, 180)))
    data.edge_label_index = torch.tensor([[1, 2], [3, 4]])
    return link_models.Whole().train(), data, gr.expose_links


CALLS: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {
    "affine": net,
    "with a head": lambda: net(torch.tanh),
    "refused": lambda: net(lambda z: z.cumsum(0)),
    "writing into data": lambda: net(writes=True),
    **{f"failing in run {k}": lambda k=k: net(fails=k) for k in (1, 2, 3, 4)},
    "keeping its sums": keeping,
    "reversible": reversible,
    "types": lambda: (*typed_models.build("HeteroConv then ReLU"), gr.expose),
    "graphs": lambda: (
        pool_models.built("jumping knowledge, MLP"), pool_models.batch_of(), gr.expose,
    ),
    "list of graphs": lambda: (
        pool_models.built("mean").float().train(), pool_models.GRAPHS[:4], gr.expose,
    ),
    "links": linked,
    "links, refused": lambda: (*linked()[:2], lambda m, d: gr.expose_links(m, d, decoder=min)),
    "what is expected is wrong": lambda: (
        *net()[:2], lambda m, d: gr.expose(m, d, expected=torch.zeros(24, 4)),
    ),
}  # fmt: skip


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and setting below a value, by where it stands."""
    if isinstance(value, Tensor):
        grad = None if value.grad is None else value.grad.clone()
        yield path, (id(value), value.requires_grad, grad, value.detach().clone())
    elif isinstance(value, dict):
        yield f"{path}.keys", list(value)
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        yield f"{path}.length", len(value)
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}[{number}]")
    elif isinstance(value, nn.Module):
        yield f"{path}.id", id(value)
        yield from leaves({k: v for k, v in vars(value).items() if k != "runs"}, path)
    elif hasattr(value, "to_dict"):
        yield from leaves(value.to_dict(), path)
    elif isinstance(value, int | float | str | bool | type(None)):
        yield path, value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, tuple):
        return all(map(same, one, other))
    return type(one) is type(other) and one == other


def of_torch() -> list[Any]:
    """What else a call could leave behind."""
    return [
        torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_rng_state(),
        torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled, torch.is_autocast_enabled("cpu"),
        len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
        nn.functional.scaled_dot_product_attention, pyg.MessagePassing.propagate,
    ]  # fmt: skip


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_model_data_and_pytorch_are_as_before(name: str, replayed: bool) -> None:
    model, data, call = CALLS[name]()
    if name.startswith(("with a head", "affine")) and replayed:
        with torch.no_grad():
            model.eval()(data.x, data.edge_index)  # which fills the caches
            model.train().norm.eval()
    before, outside = [*leaves([model, data])], of_torch()
    try:
        exposure = call(model, data)
    except (GnnRepairError, RuntimeError, TypeError):
        exposure = None
    exposure = exposure.mixture if isinstance(exposure, LinkExposure) else exposure
    if replayed and exposure is not None and exposure.replay is not None:
        exposure.replay(exposure.coefficients[0])
        with pytest.raises(GnnRepairError):
            exposure.replay(exposure.coefficients[0, 1:])
    after = [*leaves([model, data])]
    assert [place for place, _ in after] == [place for place, _ in before]
    changed = [place for (place, was), (_, now) in zip(before, after, strict=True)
               if not same(was, now)]  # fmt: skip
    assert changed == []
    assert all(map(same, outside, of_torch()))
    assert copy.deepcopy(model).state_dict().keys() == model.state_dict().keys()
