"""Node types: which is classified, how models of several are called, what they say of one."""

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
from gnn_repair.exposure.calling import choose_arguments
from gnn_repair.exposure.pieces import NodeNames
from tests.helpers.models.made import Made
from tests.helpers.models.typed_models import (
    CLASSES,
    SIZES,
    WIDTHS,
    OwnWrapper,
    build,
    first_run,
    graph,
)

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")


@pytest.mark.parametrize(
    ("name", "labelled", "asked", "expected"),
    [
        ("own wrapper", ["paper"], None, "paper"),
        ("own wrapper", ["paper"], "author", "author"),
        ("logits for every type", ["venue"], None, "venue"),
        ("HeteroConv by sum", [], None, "paper"),  # as many rows as there are papers
        ("HeteroConv by sum", ["author", "paper"], None, "paper"),
        ("logits for every type", [], "venue", "output 0 .*, output 1 .*forward="),
        ("own wrapper", [], None, "'paper', 'author', 'venue' could .* node_type='paper'"),
        ("own wrapper", ["paper", "author"], None, "'paper', 'author' could .* node_type='paper'"),
    ],
)
def test_which_type_is_classified(name: str, labelled: Any, asked: Any, expected: str) -> None:
    model, data = build(name)
    del data["paper"].y
    for kind in labelled:
        data[kind].y = torch.arange(SIZES[kind]) % CLASSES
    if expected not in SIZES:
        with pytest.raises(InputError, match=expected):
            expose(model, data, node_type=asked)
        return
    exposure, told = expose(model, data, node_type=asked), first_run(model, data)
    order = [expected, *(kind for kind in SIZES if kind != expected)]
    assert exposure.names == NodeNames(expected, tuple((kind, SIZES[kind]) for kind in order))
    told = told[0] if isinstance(told, tuple) else told
    told = told[expected] if isinstance(told, dict) else told
    torch.testing.assert_close(exposure.frozen_logits[0], told, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", ["papers", 3, ("paper",)])
def test_a_type_that_there_is_not(wrong: Any) -> None:
    with pytest.raises(InputError, match="choose one of 'paper', 'author', 'venue'"):
        expose(*build("own wrapper"), node_type=wrong)


def test_types_in_a_graph_without_types() -> None:
    data = Data(x=torch.randn(4, 3), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(InputError, match=r"node_type is 'paper', .* leave it out"):
        expose(pyg.GCNConv(3, 2), data, node_type="paper")
    with pytest.raises(InputError, match=r"x_dict and edge_index_dict, .* pass a HeteroData"):
        expose(build("own wrapper")[0], data)


def test_a_type_that_the_model_says_nothing_of_or_sends_nothing_to() -> None:
    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Any:
        edges = edge_index_dict["paper", "rev_writes", "author"]
        author = self.conv((x_dict["paper"], x_dict["author"]), edges)
        return {"paper": self.lin(x_dict["paper"]), "author": author}

    conv = SAGEConv((WIDTHS["paper"], WIDTHS["author"]), CLASSES)
    model = Made(forward, conv=conv, lin=nn.Linear(WIDTHS["paper"], CLASSES)).double()
    with pytest.raises(InputError, match=r"'venue', only for 'paper', 'author'; .* node_type="):
        expose(model, graph(), node_type="venue")
    with pytest.raises(ExposureRefused, match=r"no messages to 'paper' nodes; .* 'author'"):
        expose(model, graph())


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
    with pytest.raises(InputError, match="expected="):
        expose(model, data, expected=1 - first_run(model, data).argmax(1).clamp(max=1))


def test_types_without_features_are_as_large_as_edges_say() -> None:
    model, data = build("embeddings")
    plain = {"x_dict": {"paper": data["paper"].x}, "edge_index_dict": data.edge_index_dict}
    found, whole = expose(model, plain, node_type="paper"), expose(model, data)
    both = data["author", "writes", "paper"].edge_index[0], data["paper", "rev_writes", "author"]
    largest = max(int(both[0].max()), int(both[1].edge_index[1].max()))
    assert dict(found.names.senders)["author"] == largest + 1
    names = ["node", "group", "source_type", "source", "coefficient"]
    assert found.to_frame()[names].equals(whole.to_frame()[names])


def test_what_was_never_trained_or_holds_no_numbers() -> None:
    data = graph()
    with pytest.raises(InputError, match="never trained"):
        expose(OwnWrapper(data).double(), data)
    model, data = build("own wrapper")
    data["author"].x[3, 1] = float("nan")
    with pytest.raises(InputError, match=r"data\.author\.x"):
        expose(model, data)


def test_the_message_behind_a_term_is_what_its_sender_is_in_columns_of_its_type() -> None:
    data = graph()
    convs = {
        kind: SAGEConv((WIDTHS[kind[0]], WIDTHS[kind[2]]), CLASSES) for kind in data.edge_types
    }
    model = Made(lambda self, x_dict, edge_index_dict: self.conv(x_dict, edge_index_dict),
                 conv=HeteroConv(convs))  # fmt: skip
    exposure = expose(model.double(), data)
    frame, first, told = exposure.to_frame(), 0, []
    for kind, width in WIDTHS.items():
        wide = torch.zeros(SIZES[kind], sum(WIDTHS.values())).double()
        wide[:, first : first + width] = data[kind].x
        first += width
        told.append(wide)
    rows = exposure.rows.long()
    behind = exposure.messages[0, exposure.message_rows[rows].long()]
    torch.testing.assert_close(behind, torch.cat(told)[exposure.sources[rows].long()])
    torch.testing.assert_close(exposure.state[0], told[0])
    for (kind, *_), lin in ((k, convs[k].lin_l) for k in data.edge_types if k[2] == "paper"):
        own = frame[frame["source_type"] == kind]
        said = torch.tensor(own.filter(like="logit ").to_numpy())
        sent = lin.weight @ data[kind].x[own["source"].to_numpy()].t()
        torch.testing.assert_close(said, sent.detach().t(), rtol=0, atol=1e-12)


# Arguments by name --------------------------------------------------------------------------------


def model_of(signature: str) -> nn.Module:
    """A model whose forward has these parameters."""
    names: dict[str, Any] = {}
    exec(f"def forward(self, {signature}): ...", names)
    return type("Model", (nn.Module,), {"forward": names["forward"]})()


BOTH = "x_dict, edge_index_dict"


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (BOTH, BOTH),
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
        (f"{BOTH}, ntype", f"{BOTH}, ntype='paper'"),
        (f"{BOTH}, y_dict=None", BOTH),
        (f"{BOTH}, w_dict=None", f"{BOTH}, w_dict=edge_attr_dict"),
        (f"{BOTH}, edge_attr_dict=None", f"{BOTH}, edge_attr_dict"),
        (f"{BOTH}, edge_weight_dict=None", f"{BOTH}, edge_weight_dict=edge_attr_dict"),
        (f"{BOTH}, year_dict", f"{BOTH}, year_dict"),
        (f"{BOTH}, metadata", f"{BOTH}, metadata=data.metadata()"),
        (f"{BOTH}, seed", f"{BOTH}, seed"),
        (f"{BOTH}, other=1", BOTH),
    ],
)
def test_arguments_by_name(signature: str, words: str) -> None:
    data = graph()
    data["paper"].year, data.seed = torch.arange(30), 7
    for kind in data.edge_types:
        data[kind].edge_attr = torch.ones(data[kind].edge_index.shape[1], 2)
    arguments, told = choose_arguments(model_of(signature), data, "paper")
    assert told == f"forward({words})"
    for name, value in arguments().items():
        source = dict(word.split("=") for word in words.split(", ") if "=" in word).get(name, name)
        if source in ("x_dict", "data", "year_dict"):
            kind = {"x_dict": "x", "year_dict": "year"}.get(source)
            held = value["paper"].x if kind is None else value["paper"]
            assert held is data["paper"][kind or "x"]
        if isinstance(value, dict):  # made anew, since models write into what they get
            assert arguments()[name] is not value


def test_what_is_missing_is_named_and_what_could_be_two_things_is_no_guess() -> None:
    for signature, name in ((f"{BOTH}, pos_dict", "pos_dict"), ("a, b, c", "c")):
        with pytest.raises(InputError, match=f"'{name}', .* forward="):
            choose_arguments(model_of(signature), graph(), "paper")
    data = graph()
    for kind in data.edge_types:
        data[kind].edge_attr = data[kind].edge_weight = torch.ones(3)
    told = choose_arguments(model_of(f"{BOTH}, e_dict=None"), data, None)[1]
    assert told == f"forward({BOTH})"


# Outputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logits_first", [True, False])
@pytest.mark.parametrize("labels", [False, True])
def test_logits_beside_embeddings_of_every_type(logits_first: bool, labels: bool) -> None:
    torch.manual_seed(0)
    data, sizes = HeteroData(), {"a": 6, "b": 9}
    data["a"].x, data["b"].x = torch.randn(6, 2), torch.randn(9, 3)
    data["b"].y = torch.arange(9) % 3 if not labels else (torch.rand(9, 3) > 0.4).long()
    kinds = [("a", "to", "b"), ("b", "to", "a"), ("b", "near", "b")]
    for kind in kinds:
        ends = [torch.randint(0, sizes[k], (20,)) for k in (kind[0], kind[2])]
        data[kind].edge_index = torch.stack(ends)

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Any:
        hidden = self.conv(x_dict, edge_index_dict)
        both = (self.head(hidden["b"]), hidden)[:: 1 if logits_first else -1]
        return torch.zeros(15, 3), *both  # rows of all nodes, as wide as logits

    conv = HeteroConv({kind: SAGEConv((-1, -1), 5) for kind in kinds})
    model = Made(forward, conv=conv, head=nn.Linear(5, 3))
    told = model(data.x_dict, data.edge_index_dict)[1 if logits_first else 2].detach().double()
    exposure = expose(model, data)
    assert exposure.outputs == ("labels" if labels else "classes")
    torch.testing.assert_close(exposure.frozen_logits[0], told, rtol=1e-6, atol=1e-6)


def test_whole_graphs_of_several_types_are_refused_by_name() -> None:
    def forward(self: Any, data: Any) -> Tensor:
        return self.head(global_mean_pool(data["paper"].x.float(), data["paper"].batch))

    graphs, model = [graph(seed) for seed in range(4)], Made(forward, head=nn.Linear(6, 2))
    for node_type in (None, "paper"):
        with pytest.raises(ExposureRefused, match=r"4 graphs .*to_homogeneous"):
            expose(model, Batch.from_data_list(graphs), node_type=node_type)
    with pytest.raises(InputError, match=r"4 graphs, .* pass one"):
        expose(model, graphs)
