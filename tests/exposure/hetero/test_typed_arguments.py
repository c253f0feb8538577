"""Arguments by name, counts of nodes, and the coefficients of attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv, global_mean_pool

from gnn_repair import expose
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.calling import typed_arguments
from tests.helpers.models.typed_models import build, graph


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
    with pytest.raises(InputError, match="data is 4 graphs of several node types, which are expos"):
        expose(Whole(), graphs)
