"""What lets other nodes' numbers in beside the messages is held, and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure import expose
from tests.helpers.models.convolutions import NODES, graph


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
    assert exposure.scope == "model with the forward of Beside held"
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
    "one node for all": lambda x, e: x + x[3],
    "products of nodes": lambda x, e: (x @ x.t())[:, :6],
    "statistics": lambda x, e: nn.functional.batch_norm(x, None, None, training=True),
}  # fmt: skip


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
