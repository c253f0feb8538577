"""Lists, datasets and loaders of graphs; one graph alone; refusals by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
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
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader, DenseDataLoader
from torch_geometric.nn import (
    DenseGCNConv,
    GCNConv,
    MemPooling,
    SAGEConv,
    aggr,
    global_mean_pool,
    to_hetero,
)
from torch_geometric.utils import segment, to_dense_adj, to_dense_batch

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import calling as batches
from tests.helpers.models.pool_models import (
    CLASSES,
    GRAPHS,
    MODELS,
    SIZES,
    WIDTH,
    Body,
    NodesFirst,
    Pooled,
    batch_of,
    ring,
)

# Lists, datasets and loaders of graphs: one exposure over all of them, whatever the batches.

STYLES = ("sum beside mean", "jumping knowledge, MLP", "attributes of the graph", "max beside mean")


def doubled() -> list[Data]:
    graphs = [graph.clone() for graph in GRAPHS]
    for graph in graphs:
        graph.x, graph.u = graph.x.double(), graph.u.double()
    return graphs


def forms() -> dict[str, Any]:
    graphs = doubled()
    return {
        "list": graphs,
        "loader": DataLoader(graphs, batch_size=3),
        "batches": [Batch.from_data_list(graphs[:4]), Batch.from_data_list(graphs[4:])],
        "graphs and batches": [*graphs[:2], Batch.from_data_list(graphs[2:5]), *graphs[5:]],
    }


def built(name: str) -> nn.Module:
    torch.manual_seed(11)
    return MODELS[name].build().double().eval()


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("form", forms())
def test_batches_of_graphs_make_one_exposure(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "LARGEST_BATCH", 12)  # three graphs in each
    model, whole = built(name), batch_of()
    once, found = gr.expose(model, whole), gr.expose(model, forms()[form])
    assert found.residual is not None and found.residual <= 1e-12
    assert once.graph_starts is not None and found.graph_starts is not None
    assert torch.equal(found.graph_starts, once.graph_starts)
    assert [group.name for group in found.groups] == [group.name for group in once.groups]
    assert torch.equal(found.segments, once.segments)
    assert torch.equal(found.sources[found.rows.long()], once.sources[once.rows.long()])
    drawn = torch.rand(1, once.num_terms, dtype=torch.float64, generator=torch.manual_seed(3))
    torch.testing.assert_close(found.logits(drawn), once.logits(drawn), rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(found.frozen_logits, once.frozen_logits, rtol=1e-9, atol=1e-9)
    if found.head is not None:
        assert found.replay is not None
        torch.testing.assert_close(
            found.replay(drawn[0]), once.logits(drawn)[0], rtol=1e-9, atol=1e-9
        )
    some = found.restrict([7, 2])
    torch.testing.assert_close(some.logits()[0], once.frozen_logits[0, [7, 2]], rtol=0, atol=1e-9)


class Stored(Dataset[Data]):
    """Somebody's own dataset."""

    def __len__(self) -> int:
        return len(GRAPHS)

    def __getitem__(self, i: int) -> Data:
        return doubled()[i]


@pytest.mark.parametrize(
    "form", [Stored, lambda: Subset(doubled(), range(len(GRAPHS))), lambda: iter(doubled())]
)
def test_datasets_and_generators_hold_graphs(form: Callable[[], Any]) -> None:
    model, told = built("mean"), gr.expose(built("mean"), doubled()).frozen_logits
    torch.testing.assert_close(gr.expose(model, form()).frozen_logits, told)
    assert str(gr.diagnose(model, form())) == str(gr.diagnose(model, doubled()))


@pytest.mark.parametrize("held", ["pos", "z", ""])
def test_graphs_without_features(held: str) -> None:
    class Of(Body):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, edge_index: Tensor, batch: Tensor, **more: Tensor) -> Tensor:
            x = torch.stack([batch + i for i in range(5)], 1).double().sin()
            x = x + sum(value.view(len(x), -1).sum(1, keepdim=True) for value in more.values())
            return self.head(global_mean_pool(self.nodes(x, edge_index), batch))

    torch.manual_seed(0)
    model, graphs = Of().double(), doubled()
    for graph in graphs:
        if held:
            graph[held] = graph.x
        del graph.x

    def forward(net: nn.Module, data: Any) -> Tensor:
        return net(data.edge_index, data.batch, **({held: data[held]} if held else {}))

    exposure = gr.expose(model, graphs, forward=forward)
    assert exposure.num_recipients == len(GRAPHS) and exposure.num_terms == sum(SIZES)


def test_no_graphs_and_models_of_one_graph_are_named() -> None:
    for none in ([], iter([]), Subset(doubled(), [])):
        with pytest.raises(InputError, match="data holds no graphs; pass at least one"):
            gr.expose(built("mean"), none)
    torch.manual_seed(0)
    with pytest.raises(
        ExposureRefused, match="takes the 11 graphs of data for one: expose one gra"
    ):
        gr.expose(Bare(CLASSES, lambda z: z).double(), doubled())
    with pytest.raises(InputError, match="data is 11 graphs, which are exposed one at a time"):
        gr.expose_links(built("mean"), doubled())


@pytest.mark.parametrize("sampler", [None, SubsetRandomSampler([0, 4]), "weighted"])
def test_a_loader_that_shuffles_is_a_question(sampler: Any) -> None:
    if sampler == "weighted":
        sampler = WeightedRandomSampler([1.0] * len(GRAPHS), 3)
    loader = DataLoader(doubled(), batch_size=3, shuffle=sampler is None, sampler=sampler)
    with pytest.raises(InputError, match="the loader shuffles its graphs"):
        gr.expose(built("mean"), loader)


class EveryThird(Sampler[int]):
    """An order of one's own."""

    def __iter__(self) -> Iterator[int]:
        return iter([9, 6, 3, 0])

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("form", ["sampler", "plain"])
def test_a_loader_with_an_order_of_its_own(form: str) -> None:
    model, graphs = built("mean"), doubled()
    loader: Any = DataLoader(graphs, batch_size=3, sampler=EveryThird())
    if form == "plain":  # PyTorch's own loader, with a function that makes batches
        loader = PlainLoader(
            [graphs[i] for i in EveryThird()],  # type: ignore[arg-type]
            batch_size=3,
            collate_fn=Batch.from_data_list,
        )
    exposure, whole = gr.expose(model, loader), gr.expose(model, graphs)
    wanted = whole.frozen_logits[0, [9, 6, 3, 0]]
    torch.testing.assert_close(exposure.frozen_logits[0], wanted, rtol=1e-12, atol=1e-12)


def test_an_empty_loader_is_named() -> None:
    with pytest.raises(InputError, match="the loader holds no graphs"):
        gr.expose(built("mean"), DataLoader([], batch_size=3))


class Counting(GCNConv):
    """Counts how often it is run."""

    runs = 0

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        self.runs += 1
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("name", ["mean", "mean, MLP", "sum beside mean"])
def test_a_model_runs_three_times(name: str) -> None:
    model: Any = built(name)
    model.conv1 = Counting(5, 6).double()
    gr.expose(model, batch_of())
    # Recorded, and twice on reweighted messages.
    assert model.conv1.runs == 3


def test_a_graph_alone_is_a_batch_of_one() -> None:
    model, graph = built("mean"), doubled()[4]
    exposure = gr.expose(model, graph)
    with torch.no_grad():
        told = model(graph.x, graph.edge_index, torch.zeros(len(graph.x), dtype=torch.long))
    torch.testing.assert_close(exposure.frozen_logits[0], told, rtol=1e-12, atol=1e-12)
    assert exposure.recipients.tolist() == [0]


def test_what_is_expected_is_of_all_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LARGEST_BATCH", 12)
    model, whole = built("mean"), batch_of()
    with torch.no_grad():
        told = model(whole.x, whole.edge_index, whole.batch).argmax(1)
    gr.expose(model, doubled(), expected=told)
    told[9] = (told[9] + 1) % 3
    with pytest.raises(InputError, match=r"at 1 of 11 graphs .the first is graph 9"):
        gr.expose(model, doubled(), expected=told)


class Nodes(nn.Module):
    """A node classifier, for which several graphs are one with several parts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(5, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


def test_node_classifiers_on_several_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    exposure = gr.expose(Nodes().double(), doubled())
    assert exposure.graph_starts is None and exposure.num_nodes == sum(SIZES)
    monkeypatch.setattr(batches, "LARGEST_BATCH", 12)
    with pytest.raises(InputError, match="Nodes classifies nodes, and data is"):
        gr.expose(Nodes().double(), doubled())


def test_answers_and_changes_name_graphs() -> None:
    batch = batch_of()
    exposure = gr.expose(built("sum beside mean"), batch)
    classes = torch.zeros(exposure.num_nodes, dtype=torch.long)
    frame = gr.solve(exposure, classes, [2, 0]).to_frame()
    assert sorted(frame["graph"]) == [0, 2] and "node" not in frame


def write_tu(folder: Path) -> None:
    """Two triangles and a path in the files of TUDataset."""
    raw = folder / "TINY" / "raw"
    raw.mkdir(parents=True)
    links = [(1, 2), (2, 3), (3, 1), (4, 5), (5, 6), (6, 4), (7, 8), (8, 9), (9, 10)]
    both = [*links, *[(b, a) for a, b in links]]
    (raw / "TINY_A.txt").write_text("".join(f"{a}, {b}\n" for a, b in both))
    indicator = [1] * 3 + [2] * 3 + [3] * 4
    (raw / "TINY_graph_indicator.txt").write_text("".join(f"{i}\n" for i in indicator))
    (raw / "TINY_graph_labels.txt").write_text("0\n0\n1\n")
    (raw / "TINY_node_labels.txt").write_text("".join(f"{i % 5}\n" for i in range(10)))


def test_a_dataset_of_pyg_is_exposed_as_it_is(tmp_path: Path) -> None:
    write_tu(tmp_path)
    dataset = TUDataset(str(tmp_path), "TINY")
    torch.manual_seed(0)
    model = NodesFirst()
    exposure = gr.expose(model, dataset)
    assert exposure.graph_starts is not None
    assert exposure.graph_starts.tolist() == [0, 3, 6, 10]
    with torch.no_grad():
        told = model.eval()(Batch.from_data_list(list(dataset)))
    torch.testing.assert_close(exposure.frozen_logits[0].float(), told)


# One graph alone in the forms that models of graphs are given it, and refusals by name.


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
        (lambda: aggr.LSTMAggregation(WIDTH, WIDTH), "reads the nodes of a graph in order"),
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


@pytest.mark.parametrize("kinds", [("values", "binary"), ("binary", "values")])
def test_the_first_batch_says_what_the_outputs_of_all_are(kinds: tuple[str, str]) -> None:
    """By itself a batch whose numbers happen to be zeros and ones would be taken for classes."""
    told = {"values": torch.tensor([0.3, -1.7, 2.5]), "binary": torch.tensor([0.0, 1.0, 1.0])}
    graphs = doubled()[:6]
    for graph, y in zip(graphs, torch.cat([told[kind] for kind in kinds]), strict=True):
        graph.y = y.view(1).double()
    model = Pooled(global_mean_pool).double()
    model.head = nn.Linear(WIDTH, 1).double()
    parts = [Batch.from_data_list(graphs[:3]), Batch.from_data_list(graphs[3:])]
    alone = [gr.expose(model, part).outputs for part in parts]
    assert alone[0] != alone[1]
    assert gr.expose(model, parts).outputs == alone[0]


# Dense batches ------------------------------------------------------------------------------------


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = DenseGCNConv(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return self.out(self.conv(x, adj).relu().sum(1))


def as_dense(data: Data) -> tuple[Tensor, Tensor]:
    return to_dense_batch(data.x, data.batch)[0], to_dense_adj(data.edge_index, data.batch).double()


def test_dense_batches_are_made_of_a_batch_inside() -> None:
    model, batch = Dense().double(), Batch.from_data_list(doubled())
    x, adj = as_dense(batch)
    same = [Data(x=one, adj=a) for one, a in zip(x, adj, strict=True)]
    forms = {"x": x, "adj": adj}, Data(x=x, adj=adj), DenseDataLoader(same, batch_size=3)
    for data in forms:
        with pytest.raises(ExposureRefused, match="data is a dense batch of graphs, x"):
            gr.expose(model, data)
    exposure = gr.expose(model, batch, forward=lambda model, data: model(*as_dense(data)))
    torch.testing.assert_close(exposure.logits()[0], model(x, adj))
