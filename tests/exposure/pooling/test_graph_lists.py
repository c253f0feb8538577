"""Lists, datasets and loaders of graphs; one graph alone; dense batches; refusals by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader as PlainLoader
from torch.utils.data import (
    Dataset,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader, DenseDataLoader
from torch_geometric.nn import (
    DenseGCNConv,
    GCNConv,
    SAGEConv,
    aggr,
    global_mean_pool,
    to_hetero,
)
from torch_geometric.utils import segment, to_dense_adj, to_dense_batch

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import calling as batches
from tests.helpers.models.made import Made
from tests.helpers.models.pool_models import (
    CLASSES,
    GRAPHS,
    MODELS,
    SIZES,
    WIDTH,
    Body,
    Pooled,
    batch_of,
    doubled,
    ring,
)

# One exposure over all graphs, whatever the batches -----------------------------------------------


class Stored(Dataset[Data]):
    """Somebody's own dataset."""

    def __len__(self) -> int:
        return len(GRAPHS)

    def __getitem__(self, i: int) -> Data:
        return doubled()[i]


class EveryThird(Sampler[int]):
    """An order of one's own."""

    def __iter__(self) -> Iterator[int]:
        return iter([9, 6, 3, 0])

    def __len__(self) -> int:
        return 4


def of_pyg() -> InMemoryDataset:
    dataset = InMemoryDataset()
    dataset._data, dataset.slices = InMemoryDataset.collate(doubled())
    return dataset


def by_hand() -> PlainLoader[Data]:
    """PyTorch's own loader, with a function that makes batches."""
    graphs = [doubled()[i] for i in EveryThird()]
    return PlainLoader(graphs, batch_size=3, collate_fn=Batch.from_data_list)  # type: ignore[arg-type]


SOME = list(EveryThird())
FORMS: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "list": (doubled, []),
    "loader": (lambda: DataLoader(doubled(), batch_size=3), []),
    "batches": (lambda: [Batch.from_data_list(doubled()[k : k + 6]) for k in (0, 6)], []),
    "graphs and batches": (
        lambda: [*doubled()[:2], Batch.from_data_list(doubled()[2:5]), *doubled()[5:]], [],
    ),
    "dataset": (Stored, []),
    "dataset of PyG": (of_pyg, []),
    "part of a dataset": (lambda: Subset(doubled(), SOME), SOME),
    "generator": (lambda: iter(doubled()), []),
    "loader with an order": (
        lambda: DataLoader(doubled(), batch_size=3, sampler=EveryThird()), SOME,
    ),
    "loader of batches": (
        lambda: DataLoader(doubled(), batch_sampler=[SOME[:3], SOME[3:]]), SOME,
    ),
    "loader that drops the last": (
        lambda: DataLoader(doubled(), batch_size=4, drop_last=True), list(range(8)),
    ),
    "loader of PyTorch": (by_hand, SOME),
}  # fmt: skip
"""What makes them, and the numbers of the graphs that they hold; empty: all."""
STYLES = ("sum beside mean", "jumping knowledge, MLP", "attributes of the graph", "max beside mean")


def built(name: str) -> Any:
    torch.manual_seed(11)
    return MODELS[name].build().double().eval()


@pytest.mark.parametrize(
    ("name", "form"), [(STYLES[2], form) for form in FORMS] + [(name, "list") for name in STYLES]
)
def test_batches_of_graphs_make_one_exposure(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, chosen = FORMS[form]
    model, graphs = built(name), doubled()
    whole = Batch.from_data_list([graphs[i] for i in chosen] if chosen else graphs)
    once = gr.expose(model, whole)
    monkeypatch.setattr(batches, "LARGEST_BATCH", 12)  # three graphs in each
    found = gr.expose(model, make())
    assert found.residual is not None and found.residual <= 1e-12
    assert once.graph_starts is not None and found.graph_starts is not None
    assert torch.equal(found.graph_starts, once.graph_starts)
    assert [group.name for group in found.groups] == [group.name for group in once.groups]
    assert torch.equal(found.segments, once.segments)
    assert torch.equal(found.sources[found.rows.long()], once.sources[once.rows.long()])
    drawn = torch.rand(1, once.num_terms, dtype=torch.float64, generator=torch.Generator())
    told = once.logits(drawn)
    torch.testing.assert_close(found.logits(drawn), told, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.frozen_logits, once.frozen_logits, rtol=1e-9, atol=1e-9)
    if found.head is not None:
        assert found.replay is not None
        torch.testing.assert_close(found.replay(drawn[0]), told[0], rtol=1e-9, atol=1e-9)
    some = found.restrict([3, 2])
    torch.testing.assert_close(some.logits()[0], once.frozen_logits[0, [3, 2]], rtol=0, atol=1e-9)
    frame = gr.solve(found, torch.zeros(whole.num_graphs).long(), [2, 0]).to_frame()
    assert sorted(frame["graph"]) == [0, 2] and "node" not in frame


@pytest.mark.parametrize(
    "form", ["dataset", "generator", "loader with an order", "loader of batches"]
)
def test_a_diagnosis_reads_labels_of_every_form(form: str) -> None:
    make, chosen = FORMS[form]
    whole = Batch.from_data_list([doubled()[i] for i in chosen or range(len(GRAPHS))])
    assert str(gr.diagnose(built("mean"), make())) == str(gr.diagnose(built("mean"), whole))


def test_a_loader_follows_what_it_was_told_to() -> None:
    def forward(self: Any, x: Tensor, edge_index: Tensor, x_batch: Tensor) -> Tensor:
        return self.head(global_mean_pool(self.body.nodes(x, edge_index), x_batch))

    torch.manual_seed(0)
    model = Made(forward, body=Body(), head=nn.Linear(WIDTH, CLASSES)).double()
    loader = DataLoader(doubled()[:4], batch_size=2, follow_batch=["x"])
    exposure = gr.expose(model, loader)
    assert exposure.segments.diff().tolist() == SIZES[:4]


@pytest.mark.parametrize("held", ["pos", "z", ""])
def test_graphs_without_features(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LARGEST_BATCH", 1000 if held else 12)  # once and in turns

    def features(self: Any, edge_index: Tensor, batch: Tensor, **more: Tensor) -> Tensor:
        x = torch.stack([batch + i for i in range(5)], 1).double().sin()
        x = x + sum(value.view(len(x), -1).sum(1, keepdim=True) for value in more.values())
        return self.head(global_mean_pool(self.body.nodes(x, edge_index), batch))

    def forward(net: nn.Module, data: Any) -> Tensor:
        return net(data.edge_index, data.batch, **({held: data[held]} if held else {}))

    model, graphs = Made(features, body=Body(), head=nn.Linear(WIDTH, CLASSES)), doubled()
    for graph in graphs:
        if held:
            graph[held] = graph.x
        del graph.x
    exposure = gr.expose(model.double(), graphs, forward=forward)
    assert exposure.num_recipients == len(GRAPHS) and exposure.num_terms == sum(SIZES)
    assert exposure.forward is forward  # by which a repaired model is called


def one_row(end: Callable[[Tensor], Tensor] = lambda z: z, outputs: int = CLASSES) -> Any:
    """The numbers of one graph without an axis for graphs."""

    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return end(self.head(self.body.nodes(x, edge_index).mean(dim=0)))

    torch.manual_seed(0)
    return Made(forward, body=Body(), head=nn.Linear(WIDTH, outputs)).double()


@pytest.mark.parametrize("none", [[], iter([]), Subset([], []), DataLoader([], batch_size=3)])
def test_no_graphs_are_named(none: Any) -> None:
    with pytest.raises(InputError, match="holds no graphs; pass"):
        gr.expose(built("mean"), none)


def test_models_of_one_graph_and_of_links_take_one() -> None:
    with pytest.raises(ExposureRefused, match="11 graphs of data for one: expose one"):
        gr.expose(one_row(), doubled())
    with pytest.raises(InputError, match=r"data is 11 graphs, .* pass one"):
        gr.expose_links(built("mean"), doubled())


@pytest.mark.parametrize(
    "sampler", [None, SubsetRandomSampler([0, 4]), WeightedRandomSampler([1.0] * len(GRAPHS), 3)]
)
def test_a_loader_that_shuffles_is_a_question(sampler: Any) -> None:
    loader = DataLoader(doubled(), batch_size=3, shuffle=sampler is None, sampler=sampler)
    with pytest.raises(InputError, match="shuffle=False"):
        gr.expose(built("mean"), loader)


def test_what_is_expected_is_of_all_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LARGEST_BATCH", 12)
    model, whole = built("mean"), batch_of()
    with torch.no_grad():
        told = model(whole.x, whole.edge_index, whole.batch).argmax(1)
    gr.expose(model, doubled(), expected=told)
    told[9] = (told[9] + 1) % 3
    for data in (doubled(), whole):
        with pytest.raises(InputError, match=r"at 1 of 11 graphs .the first is graph 9"):
            gr.expose(model, data, expected=told)


def test_node_classifiers_on_several_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several graphs are one with several parts to them."""

    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)

    model = Made(forward, conv=GCNConv(5, 3)).double()
    exposure = gr.expose(model, doubled())
    assert exposure.graph_starts is None and exposure.num_nodes == sum(SIZES)
    monkeypatch.setattr(batches, "LARGEST_BATCH", 12)
    with pytest.raises(InputError, match=r"classifies nodes, .* pass one"):
        gr.expose(model, doubled())


@pytest.mark.parametrize("kinds", [("values", "binary"), ("binary", "values")])
def test_the_first_batch_says_what_the_outputs_of_all_are(kinds: tuple[str, str]) -> None:
    """By itself a batch whose numbers happen to be zeros and ones would be taken for classes."""
    told = {"values": torch.tensor([0.3, -1.7, 2.5]), "binary": torch.tensor([0.0, 1.0, 1.0])}
    graphs = doubled()[:6]
    for graph, y in zip(graphs, torch.cat([told[kind] for kind in kinds]), strict=True):
        graph.y = y.view(1).double()
    model = Pooled(global_mean_pool, nn.Linear(WIDTH, 1)).double()
    parts = [Batch.from_data_list(graphs[:3]), Batch.from_data_list(graphs[3:])]
    alone = [gr.expose(model, part).outputs for part in parts]
    assert alone[0] != alone[1]
    assert gr.expose(model, parts).outputs == alone[0]


# One graph alone ----------------------------------------------------------------------------------


def alone(size: int = 6) -> Data:
    graph = ring(size, 3, 0)
    graph.x = graph.x.double()
    return graph


def by_starts(self: Any, data: Any) -> Tensor:
    """A forward of the whole batch that reads where its graphs start."""
    return self.head(segment(self.body.nodes(data.x, data.edge_index), data.ptr, reduce="mean"))


def by_numbers(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    return self.head(global_mean_pool(self.body.nodes(x, edge_index), batch))


@pytest.mark.parametrize("forward", [by_starts, by_numbers])
def test_a_graph_alone_becomes_a_batch_where_the_model_reads_one(forward: Any) -> None:
    torch.manual_seed(0)
    model, graph = Made(forward, body=Body(), head=nn.Linear(WIDTH, CLASSES)).double(), alone()
    exposure = gr.expose(model, graph)
    assert exposure.recipients.tolist() == [0] and exposure.num_terms == 6
    with torch.no_grad():
        told = model.head(model.body.nodes(graph.x, graph.edge_index).mean(0))
    torch.testing.assert_close(exposure.frozen_logits[0, 0], told, rtol=1e-12, atol=1e-12)


def test_what_fails_as_a_batch_too_is_told_as_it_was() -> None:
    def forward(self: Any, data: Any) -> Tensor:
        raise ValueError(f"no such thing in {type(data).__name__}")

    with pytest.raises(InputError, match="ValueError: no such thing in Data;"):
        gr.expose(Made(forward, body=Body()).double(), alone())


@pytest.mark.parametrize(
    ("outputs", "end", "columns"),
    [(CLASSES, lambda z: z, CLASSES), (1, lambda z: z.squeeze(), 2), (1, lambda z: z, 2)],
)
def test_the_numbers_of_one_graph_may_come_bare(outputs: int, end: Any, columns: int) -> None:
    model, graph = one_row(end, outputs), alone()
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
        return
    graph.y = torch.arange(6)  # of nodes, so that these are asked for
    with pytest.raises(ExposureRefused, match="row of logits per node"):
        gr.expose(model, graph)


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (aggr.MedianAggregation(), r"\(MedianAggregation\) takes quantiles"),
        (aggr.LSTMAggregation(WIDTH, WIDTH), "nodes of a graph in order"),
        (aggr.MLPAggregation(WIDTH, WIDTH, 7, num_layers=1), "nodes of a graph in order"),
        (lambda x, b: global_mean_pool(x * (1 + torch.rand(1).double()), b), r"self\.training$"),
    ],
)
def test_pools_that_are_no_sums_or_change_by_themselves_are_named(pool: Any, words: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ExposureRefused, match=words):
        gr.expose(Pooled(pool).double(), batch_of())


class Dropping(nn.Module):
    """What to_hetero traces in training, with a dropout that it then never leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.dropout(x, p=0.5, training=self.training)
        return self.conv(x, edge_index)


def test_a_dropout_that_tracing_made_eternal_is_named() -> None:
    torch.manual_seed(0)
    data = HeteroData()
    data["a"].x, data["a"].y = torch.randn(9, 4), torch.arange(9) % 3
    data["a", "to", "a"].edge_index = torch.randint(0, 9, (2, 30))
    with pytest.warns(UserWarning, match="training"):
        model = to_hetero(Dropping(), data.metadata()).eval()
    model(data.x_dict, data.edge_index_dict)
    with pytest.raises(ExposureRefused, match=r"training=True into F\.dropout"):
        gr.expose(model, data)


def as_dense(data: Any) -> tuple[Tensor, Tensor]:
    return to_dense_batch(data.x, data.batch)[0], to_dense_adj(data.edge_index, data.batch).double()


def test_dense_batches_are_made_of_a_batch_inside() -> None:
    def forward(self: Any, x: Tensor, adj: Tensor) -> Tensor:
        return self.out(self.conv(x, adj).relu().sum(1))

    model = Made(forward, conv=DenseGCNConv(5, 6), out=nn.Linear(6, CLASSES)).double()
    batch = Batch.from_data_list(doubled())
    x, adj = as_dense(batch)
    same = [Data(x=one, adj=a) for one, a in zip(x, adj, strict=True)]
    for data in ({"x": x, "adj": adj}, Data(x=x, adj=adj), DenseDataLoader(same, batch_size=3)):
        with pytest.raises(ExposureRefused, match=r"dense batch of graphs, x .* forward="):
            gr.expose(model, data)
    exposure = gr.expose(model, batch, forward=lambda model, data: model(*as_dense(data)))
    torch.testing.assert_close(exposure.logits()[0], model(x, adj))
