"""One graph alone in the forms that models of graphs are given it, and refusals by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MemPooling, SAGEConv, aggr, global_mean_pool, to_hetero
from torch_geometric.utils import segment

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused, InputError
from tests.helpers.models.pool_models import CLASSES, SIZES, WIDTH, Body, Pooled, batch_of, ring


def alone(size: int = 6) -> Data:
    graph = ring(size, 3, 0)
    graph.x = graph.x.double()
    return graph


class ByStarts(Body):
    """A forward of the whole batch that reads where its graphs start."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, data: Any) -> Tensor:
        return self.head(segment(self.nodes(data.x, data.edge_index), data.ptr, reduce="mean"))


def test_a_graph_alone_becomes_a_batch_where_the_model_reads_one() -> None:
    torch.manual_seed(0)
    model, graph = ByStarts().double(), alone()
    exposure = gr.expose(model, graph)
    assert exposure.num_recipients == 1 and exposure.num_terms == 6
    with torch.no_grad():
        told = model.head(model.nodes(graph.x, graph.edge_index).mean(0))
    torch.testing.assert_close(exposure.frozen_logits[0, 0], told, rtol=1e-12, atol=1e-12)


def test_what_fails_as_a_batch_too_is_told_as_it_was() -> None:
    class Broken(ByStarts):
        def forward(self, data: Any) -> Tensor:
            raise ValueError(f"no such thing in {type(data).__name__}")

    with pytest.raises(InputError, match="ValueError: no such thing in Data;"):
        gr.expose(Broken().double(), alone())


class Bare(Body):
    """The numbers of one graph without an axis for graphs."""

    def __init__(self, outputs: int, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head, self.end = nn.Linear(WIDTH, outputs), end

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.end(self.head(self.nodes(x, edge_index).mean(dim=0)))


@pytest.mark.parametrize(
    ("outputs", "end", "columns"),
    [(CLASSES, lambda z: z, CLASSES), (1, lambda z: z.squeeze(), 2), (1, lambda z: z, 2)],
)
def test_the_numbers_of_one_graph_may_come_bare(outputs: int, end: Any, columns: int) -> None:
    torch.manual_seed(0)
    model, graph = Bare(outputs, end).double(), alone()
    exposure = gr.expose(model, graph)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    assert tuple(exposure.frozen_logits.shape) == (1, 1, columns)
    with torch.no_grad():
        told = model(graph.x, graph.edge_index).reshape(-1)
    found = exposure.frozen_logits[0, 0]
    torch.testing.assert_close(found[-outputs:], told, rtol=1e-12, atol=1e-12)
    graph.y = torch.randn(1).double()
    if outputs == 1:
        assert gr.expose(model, graph).outputs == "values"


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (lambda: aggr.MedianAggregation(), r"\(MedianAggregation\) mixes nodes by `sort`"),
        (
            lambda: aggr.LSTMAggregation(WIDTH, WIDTH),
            "reads the nodes of a graph in order",
        ),
        (
            lambda: aggr.MLPAggregation(WIDTH, WIDTH, 7, num_layers=1),
            "reads the nodes of a graph in order",
        ),
    ],
)
def test_aggregations_that_are_no_sums_are_named(pool: Any, words: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ExposureRefused, match=words):
        gr.expose(Pooled(pool()).double(), batch_of())


def test_clusters_of_a_memory_are_named() -> None:
    class Memory(Body):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.head = MemPooling(WIDTH, WIDTH, 1, 2), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.head(self.memory(self.nodes(x, edge_index), batch)[0].mean(1))

    torch.manual_seed(0)
    found = gr.expose(Memory().double(), batch_of())
    assert set(found.to_frame()["source_type"]) == {"cluster"} and found.num_terms == 2 * len(SIZES)


class Dropping(nn.Module):
    """What to_hetero traces in training, with a dropout that it then never leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.dropout(x, p=0.5, training=self.training)
        return self.conv(x, edge_index)


def test_a_dropout_that_tracing_made_eternal_is_named() -> None:
    from torch_geometric.data import HeteroData

    torch.manual_seed(0)
    data = HeteroData()
    data["a"].x, data["a"].y = torch.randn(9, 4), torch.arange(9) % 3
    data["a", "to", "a"].edge_index = torch.randint(0, 9, (2, 30))
    with pytest.warns(UserWarning, match="training"):
        model = to_hetero(Dropping(), data.metadata()).eval()
    model(data.x_dict, data.edge_index_dict)
    with pytest.raises(ExposureRefused, match=r"write training=True into F\.dropout for good"):
        gr.expose(model, data)


def test_a_pool_that_changes_by_itself_is_refused() -> None:
    torch.manual_seed(0)
    model = Pooled(lambda x, b: global_mean_pool(x * (1 + torch.rand(1).double()), b)).double()
    with pytest.raises(ExposureRefused, match=r"depend on self\.training$"):
        gr.expose(model, batch_of())


def test_the_state_of_a_graph_of_one_node_is_that_node() -> None:
    torch.manual_seed(0)
    lonely = Data(x=torch.randn(1, 5).double(), edge_index=torch.zeros(2, 0, dtype=torch.long))
    batch: Any = Batch.from_data_list([lonely, alone(4)], exclude_keys=["y", "u"])
    model = Pooled(global_mean_pool).double()
    exposure = gr.expose(model, batch)
    with torch.no_grad():
        nodes = model.nodes(batch.x, batch.edge_index)
    torch.testing.assert_close(exposure.state[0, 0], nodes[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(exposure.state[0, 1], nodes[1:].mean(0), rtol=1e-12, atol=1e-12)
