"""Node types: how models of them are called, and whose messages arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv, global_mean_pool

from gnn_repair import expose
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.calling import typed_arguments
from gnn_repair.exposure.pieces import NodeNames
from tests.helpers.models.typed_models import (
    CLASSES,
    HIDDEN,
    SIZES,
    WIDTHS,
    Heads,
    OwnWrapper,
    build,
    first_run,
    graph,
)

# Which type is classified, how the model is called, and whose messages are whose.

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")


def without_labels(data: HeteroData) -> HeteroData:
    del data["paper"].y
    return data


def test_labels_decide() -> None:
    model, data = build("own wrapper")
    assert expose(model, data).names.recipient == "paper"


def test_the_output_decides_where_there_are_no_labels() -> None:
    model, data = build("HeteroConv by sum")
    assert expose(model, without_labels(data)).names.recipient == "paper"


def test_the_user_decides() -> None:
    model, data = build("own wrapper")
    exposure = expose(model, data, node_type="author")
    assert exposure.names == NodeNames("author", (("author", 18), ("paper", 30), ("venue", 7)))
    torch.testing.assert_close(
        exposure.frozen_logits[0], first_run(model, data)["author"], rtol=0, atol=1e-12
    )
    assert [group.name for group in exposure.groups] == ["paper rev_writes author"]
    assert set(exposure.to_frame()["source_type"]) == {"paper"}


def test_doubt_is_a_question() -> None:
    model, data = build("own wrapper")
    choices = "'paper', 'author', 'venue' could be the one that is classified"
    with pytest.raises(InputError, match=rf"{choices}; say which with node_type='paper'"):
        expose(model, without_labels(data))
    data["paper"].y, data["author"].y = torch.zeros(30).long(), torch.zeros(18).long()
    with pytest.raises(InputError, match="'paper', 'author' could be the one"):
        expose(model, data)


@pytest.mark.parametrize("wrong", ["papers", 3, ("paper",)])
def test_a_type_that_there_is_not(wrong: Any) -> None:
    model, data = build("own wrapper")
    with pytest.raises(InputError, match="choose one of 'paper', 'author', 'venue'"):
        expose(model, data, node_type=wrong)


def test_types_in_a_graph_without_types() -> None:
    data = Data(x=torch.randn(4, 3), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(InputError, match="data is a Data without types of nodes; leave it out"):
        expose(pyg.GCNConv(3, 2), data, node_type="paper")
    model, _ = build("own wrapper")
    with pytest.raises(InputError, match=r"takes x_dict and edge_index_dict, .* pass a HeteroData"):
        expose(model, data)


def test_a_type_that_the_model_says_nothing_of() -> None:
    class OfPapers(OwnWrapper):
        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            return {"paper": super().forward(x_dict, edge_index_dict)["paper"]}

    data = graph()
    model = OfPapers(data).double()
    first_run(model, data)
    with pytest.raises(InputError, match="returns nothing for 'author', only for 'paper'"):
        expose(model, data, node_type="author")


def test_nobody_sends_to_the_type() -> None:
    class Outward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv((WIDTHS["paper"], WIDTHS["author"]), CLASSES)
            self.lin = nn.Linear(WIDTHS["paper"], CLASSES)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            edges = edge_index_dict["paper", "rev_writes", "author"]
            author = self.conv((x_dict["paper"], x_dict["author"]), edges)
            return {"paper": self.lin(x_dict["paper"]), "author": author}

    with pytest.raises(ExposureRefused, match=r"sends no messages to 'paper' nodes; .* 'author'"):
        expose(Outward().double(), graph())


def test_a_plain_dict_and_a_forward() -> None:
    model, data = build("HeteroConv by mean")
    whole = expose(model, data)
    plain = {"x_dict": data.x_dict, "edge_index_dict": data.edge_index_dict}
    for exposure in (
        expose(model, plain),
        expose(model, data, forward=lambda m, d: m(d.x_dict, d.edge_index_dict)),
        expose(model, data, expected=first_run(model, data)),
    ):
        assert exposure.names == whole.names
        torch.testing.assert_close(exposure.coefficients, whole.coefficients, rtol=0, atol=0)
    assert whole.called == "forward(x_dict, edge_index_dict); logits of 'paper'"
    with pytest.raises(InputError, match="predicts otherwise than expected="):
        expose(model, data, expected=1 - first_run(model, data).argmax(1).clamp(max=1))


def test_a_type_as_an_argument_and_a_missing_one() -> None:
    class Asked(Heads):
        def forward(self, x_dict: Any, edge_index_dict: Any, target_type: str) -> Tensor:  # type: ignore[override]
            return self.heads[target_type](self.conv(x_dict, edge_index_dict)[target_type])

    class Needing(OwnWrapper):
        def forward(self, x_dict: Any, edge_index_dict: Any, time_dict: Any) -> Any:  # type: ignore[override]
            return super().forward(x_dict, edge_index_dict)

    data = graph()
    model = Asked(data).double()
    model(data.x_dict, data.edge_index_dict, "paper")
    exposure = expose(model, data)
    assert exposure.called.startswith("forward(x_dict, edge_index_dict, target_type='paper')")
    with pytest.raises(InputError, match="needs 'time_dict', which data does not have"):
        expose(Needing(data), data)


def test_weights_of_edges() -> None:
    class Weighted(nn.Module):
        def __init__(self, data: HeteroData) -> None:
            super().__init__()
            convs = {
                kind: pyg.GraphConv((WIDTHS[kind[0]], WIDTHS[kind[2]]), CLASSES)
                for kind in data.edge_types
            }
            self.conv = pyg.HeteroConv(convs)

        def forward(self, x_dict: Any, edge_index_dict: Any, edge_weight_dict: Any = None) -> Any:
            return self.conv(x_dict, edge_index_dict, edge_weight_dict=edge_weight_dict)

    data = graph()
    for kind in data.edge_types:
        count = data[kind].edge_index.shape[1]
        data[kind].edge_weight = torch.linspace(0.5, 2, count, dtype=torch.float64)
    exposure = expose(Weighted(data).double(), data)
    assert "edge_weight_dict" in exposure.called
    frame = exposure.to_frame()
    kind = ("author", "writes", "paper")
    ends = zip(*data[kind].edge_index.tolist(), data[kind].edge_weight.tolist(), strict=True)
    rows = frame[frame["group"] == "author writes paper"]
    seen = dict(
        zip(zip(rows["source"], rows["node"], strict=True), rows["coefficient"], strict=True)
    )
    assert seen == pytest.approx({(source, target): weight for source, target, weight in ends})


def test_a_model_that_was_never_run() -> None:
    data = graph()
    model = OwnWrapper(data).double()
    with pytest.raises(InputError, match="had no values before this run, so it was never trained"):
        expose(model, data)


def test_broken_numbers_are_named() -> None:
    model, data = build("own wrapper")
    data["author"].x[3, 1] = float("nan")
    with pytest.raises(InputError, match=r"so does data\.author\.x"):
        expose(model, data)


class OneLayer(nn.Module):
    """Logits Σ_r mean_r (W_r x) + R x by hand-readable weights."""

    def __init__(self, data: HeteroData, widths: dict[str, int]) -> None:
        super().__init__()
        convs = {
            kind: pyg.SAGEConv((widths[kind[0]], widths[kind[2]]), CLASSES, bias=False)
            for kind in data.edge_types
        }
        self.conv = pyg.HeteroConv(convs)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        return self.conv(x_dict, edge_index_dict)


def test_contributions_and_contexts_by_hand() -> None:
    data = graph()
    model = OneLayer(data, WIDTHS).double()
    exposure = expose(model, data)
    assert exposure.head is None
    frame = exposure.to_frame()
    convs = {" ".join(kind): conv for kind, conv in model.conv.convs.items()}
    for group, rows in frame.groupby("group"):
        sender = group.split()[0]
        x = data[sender].x[rows["source"].to_numpy()]
        expected = x @ convs[group].lin_l.weight.t()
        seen = torch.tensor(rows.filter(like="logit ").to_numpy())
        torch.testing.assert_close(seen, expected.detach(), rtol=0, atol=1e-12)
    # Papers stand in the first columns, authors and venues in columns of their own.
    papers, authors = WIDTHS["paper"], WIDTHS["author"]
    state, messages = exposure.state[0], exposure.messages[0]
    torch.testing.assert_close(state[:, :papers], data["paper"].x)
    assert state.shape[1] == sum(WIDTHS.values()) and not bool(state[:, papers:].any())
    row = int(exposure.rows[(frame["source_type"] == "author").to_numpy().argmax()])
    behind = messages[int(exposure.message_rows[row])]
    number = int(exposure.sources[row]) - SIZES["paper"]
    torch.testing.assert_close(behind[papers : papers + authors], data["author"].x[number])
    assert int((behind != 0).sum()) == authors


def test_types_of_equal_size_are_kept_apart() -> None:
    """Papers and texts, one to one: a text's own messages are behind it, not the paper's."""
    data, count = HeteroData(), 12
    generator = torch.Generator().manual_seed(0)
    for kind in ("paper", "text", "word"):
        data[kind].x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    data["paper"].y = torch.arange(count) % CLASSES
    same = torch.arange(count).repeat(2, 1)
    data["text", "of", "paper"].edge_index = same
    data["word", "in", "text"].edge_index = torch.randint(count, (2, 40), generator=generator)
    data["paper", "like", "paper"].edge_index = torch.randint(count, (2, 30), generator=generator)
    data["text", "near", "text"].edge_index = torch.randint(count, (2, 30), generator=generator)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                OneLayer(data, dict.fromkeys(data.node_types, 4)) for _ in range(1)
            )
            self.words = pyg.SAGEConv((4, 4), 4)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            edges = edge_index_dict["word", "in", "text"]
            text = self.words((x_dict["word"], x_dict["text"]), edges)
            return self.layers[0]({**x_dict, "text": text}, edge_index_dict)

    exposure = expose(Two().double(), data)
    assert [g.name for g in exposure.groups] == ["text of paper", "paper like paper"]
    frame = exposure.to_frame()
    own = frame[frame["group"] == "text of paper"]
    assert (own["source"] == own["node"]).all() and (own["source_type"] == "text").all()
    assert exposure.residual is not None and exposure.residual <= 1e-12


def test_two_layers_into_papers_are_told_apart() -> None:
    """Where papers speak to nobody, both layers' aggregates are final, and the names say which."""
    data = graph()
    for kind in list(data.edge_types):
        if kind[0] == "paper":
            del data[kind]

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = {**WIDTHS, "paper": HIDDEN}
            self.first = pyg.HeteroConv(
                {k: pyg.SAGEConv((WIDTHS[k[0]], WIDTHS[k[2]]), HIDDEN) for k in data.edge_types}
            )
            self.second = OneLayer(data, widths)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            paper = self.first(x_dict, edge_index_dict)["paper"]
            return self.second({**x_dict, "paper": paper}, edge_index_dict)["paper"]

    exposure = expose(Deep().double(), data)
    assert [group.name for group in exposure.groups] == [
        "author writes paper (first)",
        "venue publishes paper (first)",
        "author writes paper (second.conv)",
        "venue publishes paper (second.conv)",
    ]
    assert exposure.residual is not None and exposure.residual <= 1e-12


def test_a_relation_without_edges_and_nodes_without_any() -> None:
    model, data = build("own wrapper")
    data["venue", "publishes", "paper"].edge_index = torch.empty(2, 0, dtype=torch.long)
    kept = data["author", "writes", "paper"].edge_index
    data["author", "writes", "paper"].edge_index = kept[:, kept[1] != 4]
    exposure = expose(model, data)
    assert [g.name for g in exposure.groups] == ["author writes paper", "paper cites paper"]
    assert not (exposure.to_frame([4])["source_type"] == "author").any()


# Arguments by name, counts of nodes, and the coefficients of attention.


def model_of(signature: str) -> nn.Module:
    """A model whose forward has these parameters."""
    names: dict[str, Any] = {}
    exec(f"def forward(self, {signature}): ...", names)
    return type("Model", (nn.Module,), {"forward": names["forward"]})()


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("x_dict, edge_index_dict", "x_dict, edge_index_dict"),
        ("x, edge_index", "x, edge_index"),
        ("features, adj", "features=x_dict, adj=edge_index_dict"),
        ("h_dict, edges", "h_dict=x_dict, edges=edge_index_dict"),
        ("first, second", "first=x_dict, second=edge_index_dict"),
        ("data", "data"),
        ("batch", "batch=data"),
        ("hetero_data, x_dict", "hetero_data=data, x_dict"),
        ("graph", "graph=data"),
        ("graph, target_type", "graph=data, target_type='paper'"),
        ("g, h", "g=edge_index_dict, h=x_dict"),
        ("x_dict, edge_index_dict, ntype", "x_dict, edge_index_dict, ntype='paper'"),
        ("x_dict, edge_index_dict, y_dict=None", "x_dict, edge_index_dict"),
        ("x_dict, edge_index_dict, w_dict=None", "x_dict, edge_index_dict, w_dict=edge_attr_dict"),
        ("x_dict, edge_index_dict, year_dict", "x_dict, edge_index_dict, year_dict"),
        ("x_dict, edge_index_dict, metadata", "x_dict, edge_index_dict, metadata=data.metadata()"),
        ("x_dict, edge_index_dict, seed", "x_dict, edge_index_dict, seed"),
        ("x_dict, edge_index_dict, other=1", "x_dict, edge_index_dict"),
    ],
)
def test_arguments_by_name(signature: str, words: str) -> None:
    data = graph()
    data["paper"].year, data.seed = torch.arange(30), 7
    for kind in data.edge_types:
        data[kind].edge_attr = torch.ones(data[kind].edge_index.shape[1], 2)
    arguments, told = typed_arguments(model_of(signature), data, "paper")
    assert told == f"forward({words})"
    given = arguments()
    for name, value in given.items():
        if "=x_dict" in f"{name}={words.partition(name + '=')[2].partition(',')[0]}":
            assert value.keys() == data.x_dict.keys() and value["paper"] is data["paper"].x
        if name in ("data", "batch", "graph", "hetero_data"):
            assert value["paper"].x is data["paper"].x
    dicts = [name for name, value in given.items() if isinstance(value, dict)]
    assert all(arguments()[name] is not given[name] for name in dicts)  # made anew


def test_what_is_missing_is_named() -> None:
    for signature, name in (("x_dict, edge_index_dict, pos_dict", "pos_dict"), ("a, b, c", "c")):
        with pytest.raises(InputError, match=f"needs '{name}', which data does not have"):
            typed_arguments(model_of(signature), graph(), "paper")


def test_several_vectors_of_edges_are_no_guess() -> None:
    data = graph()
    for kind in data.edge_types:
        data[kind].edge_attr = data[kind].edge_weight = torch.ones(3)
    signature = "x_dict, edge_index_dict, e_dict=None"
    assert typed_arguments(model_of(signature), data, None)[1] == "forward(x_dict, edge_index_dict)"


@pytest.mark.parametrize("name", ["HeteroConv of GAT", "HAN", "HGT", "edge vectors"])
def test_attention_is_the_coefficient(name: str) -> None:
    """Heads differ, and each sums to one: within a relation, with HGT over all of them."""
    model, data = build(name)
    exposure = expose(model, data)
    frame = exposure.to_frame()
    frame["head"] = frame["group"].str.extract(r"head (\d)$")[0]
    frame["relation"] = frame["group"].str.replace(r" head \d$", "", regex=True)
    within = ["node", "head"] if name == "HGT" else ["node", "head", "relation"]
    sums = frame.groupby(within)["coefficient"].sum()
    assert sums.to_numpy() == pytest.approx(1.0, abs=1e-9)
    assert all("α = attention" in group.rule for group in exposure.groups)
    heads = frame.pivot_table("coefficient", ["node", "relation", "source"], "head")
    assert float((heads["0"] - heads["1"]).abs().max()) > 1e-3


class Beside(nn.Module):
    """Logits of one type beside embeddings of all of them."""

    def __init__(self, logits_first: bool, outputs: int = 3) -> None:
        super().__init__()
        kinds = [("a", "to", "b"), ("b", "to", "a"), ("b", "near", "b")]
        self.conv = HeteroConv({kind: SAGEConv((-1, -1), 5) for kind in kinds})
        self.head, self.logits_first = nn.Linear(5, outputs), logits_first

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        hidden = self.conv(x_dict, edge_index_dict)
        both = (self.head(hidden["b"]), hidden)
        return both if self.logits_first else both[::-1]


@pytest.mark.parametrize("logits_first", [True, False])
@pytest.mark.parametrize("labels", [False, True])
def test_logits_beside_embeddings_of_every_type(logits_first: bool, labels: bool) -> None:
    torch.manual_seed(0)
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(6, 2), torch.randn(9, 3)
    data["b"].y = torch.arange(9) % 3 if not labels else (torch.rand(9, 3) > 0.4).long()
    for kind in [("a", "to", "b"), ("b", "to", "a"), ("b", "near", "b")]:
        sizes = {"a": 6, "b": 9}
        ends = [torch.randint(0, sizes[k], (20,)) for k in (kind[0], kind[2])]
        data[kind].edge_index = torch.stack(ends)
    model = Beside(logits_first)
    told = model(data.x_dict, data.edge_index_dict)[0 if logits_first else 1].detach().double()
    exposure = expose(model, data)
    assert exposure.outputs == ("labels" if labels else "classes")
    torch.testing.assert_close(exposure.frozen_logits[0], told, rtol=1e-6, atol=1e-6)


def test_whole_graphs_of_several_types_are_refused_by_name() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 2)

        def forward(self, data: Any) -> Any:
            return self.head(global_mean_pool(data["paper"].x.float(), data["paper"].batch))

    graphs = [graph(seed) for seed in range(4)]
    batch = Batch.from_data_list(graphs)
    for node_type in (None, "paper"):
        with pytest.raises(ExposureRefused, match="a row for each of the 4 graphs of a batch with"):
            expose(Whole(), batch, node_type=node_type)
    with pytest.raises(InputError, match="data is 4 graphs, which are expos"):
        expose(Whole(), graphs)
