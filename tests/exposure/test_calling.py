"""How a model is called, and what its outputs are read as."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, GraphConv, HeteroConv, SAGEConv, global_add_pool, models

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.calling import EXPECTED_SLACK, check_expected
from gnn_repair.exposure.pieces import EXACT
from gnn_repair.repair.model import in_place
from tests.helpers.models.convolutions import NODES, graph
from tests.helpers.models.output_models import NODES as NODES_OUTPUTS
from tests.helpers.models.output_models import Network, several
from tests.helpers.models.output_models import graph as graph_outputs

# How a model is called: an exposure must be of the model as its user runs it.


def bare(**more: Any) -> Data:
    whole = graph()
    return Data(x=whole.x, edge_index=whole.edge_index, **more)


def weights(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    count = graph().edge_index.shape[1]
    return torch.rand(count, generator=generator, dtype=torch.float64) + 0.2


def built(forward: Any, conv: nn.Module | None = None) -> nn.Module:
    """A model of one convolution and a head, with this forward(self, …)."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv or pyg.GraphConv(5, 6)
            self.lin = nn.Linear(6, 4)

    Model.forward = forward  # type: ignore[method-assign]
    return Model().double().eval()


def by_default(self: Any, x: Tensor, edge_index: Tensor, edge_weight: Any = None) -> Tensor:
    return self.lin(self.conv(x, edge_index, edge_weight))


def agrees(exposure: Exposure, logits: Tensor) -> None:
    torch.testing.assert_close(exposure.logits()[0], logits.double(), rtol=1e-10, atol=1e-10)


def in_order(exposure: Exposure, data: Data, values: Tensor) -> None:
    """The coefficients are these weights, entry by entry."""
    order = torch.argsort(data.edge_index[1], stable=True)
    torch.testing.assert_close(exposure.coefficients[0], values[order])


@pytest.mark.parametrize("key", ["edge_attr", "edge_weight", "weight", "w", "my_edge_norm"])
def test_the_only_candidate_fills_a_defaulted_weight(key: str) -> None:
    data, model = bare(**{key: weights()}), built(by_default)
    exposure = expose(model, data)
    agrees(exposure, model(data.x, data.edge_index, weights()))
    in_order(exposure, data, weights())
    filled = "edge_weight" if key == "edge_weight" else f"edge_weight=data.{key}"
    assert exposure.called == f"forward(x, edge_index, {filled})"
    assert f"  called as forward(x, edge_index, {filled})\n" in str(exposure)


def test_a_column_is_passed_as_a_vector() -> None:
    data, model = bare(edge_attr=weights().view(-1, 1)), built(by_default, pyg.GCNConv(5, 6))
    exposure = expose(model, data)
    agrees(exposure, model(data.x, data.edge_index, weights()))
    assert "edge_weight=data.edge_attr.squeeze(1)" in exposure.called


@pytest.mark.parametrize("name", ["edge_attr", "edge_attrs", "edge_features", "weight", "w"])
def test_weights_under_other_names(name: str) -> None:
    scope: dict[str, Any] = {}
    source = f"def forward(self, x, edge_index, {name}=None):\n    return by(self, x, edge_index, "
    exec(source + f"{name})", {"by": by_default}, scope)  # the parameter's name is the test
    data, model = bare(edge_weight=weights()), built(scope["forward"])
    agrees(expose(model, data), model(data.x, data.edge_index, weights()))


def test_two_candidates_are_a_question() -> None:
    data = bare(edge_attr=weights(), my_edge_norm=weights(2))
    with pytest.raises(
        InputError, match=r"takes `edge_weight`, which data.edge_attr or data.my_edge_norm could"
    ):
        expose(built(by_default), data)
    said = expose(
        built(by_default),
        data,
        forward=lambda net, data: net(data.x, data.edge_index, data.my_edge_norm),
    )
    in_order(said, data, weights(2))
    assert said.called == "given by forward="

    def needed(self: Any, x: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
        return by_default(self, x, edge_index, w)

    with pytest.raises(InputError, match=r"needs `w`, which data.edge_attr or data.my_edge_norm"):
        expose(built(needed), data)

    # Where neither makes a difference there is nothing to ask.
    def ignoring(self: Any, x: Tensor, edge_index: Tensor, edge_weight: Any = None) -> Tensor:
        return by_default(self, x, edge_index)

    assert "edge_weight left at default" in expose(built(ignoring), data).called


def test_its_own_name_comes_first() -> None:
    data = bare(edge_attr=weights(), edge_weight=weights(2))
    in_order(expose(built(by_default), data), data, weights(2))


def test_a_library_model_that_ignores_the_argument_of_that_name() -> None:
    """models.GCN takes edge_weight and edge_attr, and reads the former alone."""
    torch.manual_seed(0)
    model = models.GCN(5, 8, 2, 4).double().eval()
    data = bare(edge_attr=weights())
    exposure = expose(model, data)
    agrees(exposure, model(data.x, data.edge_index, edge_weight=weights()))
    assert "edge_weight=data.edge_attr" in exposure.called


def test_vectors_are_no_weights_and_types_no_vectors() -> None:
    count = graph().edge_index.shape[1]
    data = bare(edge_attr=torch.randn(count, 3, dtype=torch.float64))
    exposure = expose(built(by_default), data)
    agrees(exposure, built(by_default)(data.x, data.edge_index))
    assert exposure.called == "forward(x, edge_index); edge_weight left at default"
    kinds = torch.arange(count) % 3

    def typed(self: Any, x: Tensor, edge_index: Tensor, edge_type: Any = None) -> Tensor:
        kind = torch.zeros(count, dtype=torch.long) if edge_type is None else edge_type
        return self.lin(self.conv(x, edge_index, kind))

    data = bare(edge_weight=weights(), rel=kinds)
    model = built(typed, pyg.RGCNConv(5, 6, 3))
    agrees(expose(model, data), model(data.x, data.edge_index, kinds))
    assert "edge_type=data.rel" in expose(model, data).called


def test_what_data_holds_under_a_parameters_name_is_passed() -> None:
    def placed(self: Any, x: Tensor, edge_index: Tensor, pos: Any = None, n_id: Any = None) -> Any:
        shift = 0 if pos is None else pos.sum(1, keepdim=True)
        return self.lin(self.conv(x + shift, edge_index)) * (1 if n_id is None else 2)

    places = torch.randn(NODES, 2, dtype=torch.float64)
    data = bare(pos=places, n_id=torch.arange(NODES))
    model = built(placed)
    agrees(expose(model, data), model(data.x, data.edge_index, places, data.n_id))


def test_labels_are_passed_only_when_said() -> None:
    def shown(self: Any, x: Tensor, edge_index: Tensor, y: Any = None) -> Tensor:
        return self.lin(self.conv(x if y is None else x + y.view(-1, 1), edge_index))

    labels = torch.arange(NODES) % 4
    with pytest.raises(InputError, match="takes `y`, which data has and which changes the logits"):
        expose(built(shown), bare(y=labels))

    def losing(self: Any, x: Tensor, edge_index: Tensor, y: Any = None) -> Tensor:
        logits = self.lin(self.conv(x, edge_index))
        return logits if y is None else nn.functional.cross_entropy(logits, y)

    assert expose(built(losing), bare(y=labels)).called == "forward(x, edge_index)"


def test_a_cache_does_not_hide_what_the_weights_do() -> None:
    """models.GCN with cached convolutions: every trial starts from the cache as it was."""
    model = models.GCN(5, 8, 2, 4, cached=True).double().eval()
    data = bare(edge_attr=weights())
    exposure = expose(model, data)
    assert all(conv._cached_edge_index is None for conv in model.convs)
    agrees(exposure, model(data.x, data.edge_index, edge_weight=weights()))


def test_two_graphs_are_a_question() -> None:
    def plainly(self: Any, x: Tensor, edges: Tensor) -> Tensor:
        return self.lin(self.conv(x, edges))

    other = torch.sparse_coo_tensor(
        graph().edge_index.flip(0), weights(), (NODES, NODES)
    ).coalesce()
    data = bare(adj_t=other)
    with pytest.raises(InputError, match=r"takes `edges`, which data.edge_index or data.adj_t"):
        expose(built(plainly), data)

    def transposed(self: Any, x: Tensor, adj_t: Tensor) -> Tensor:
        return self.lin(self.conv(x, adj_t))

    model = built(transposed)
    agrees(expose(model, data), model(data.x, other))


def test_a_model_that_holds_its_data() -> None:
    data = bare()

    def alone(self: Any) -> Tensor:
        return self.lin(self.conv(data.x, data.edge_index))

    model = built(alone)
    for exposure in (expose(model), expose(model, data)):
        agrees(exposure, model())
        assert exposure.called == "forward()"


@pytest.mark.parametrize("graph", ["data", "graph", "g"])
@pytest.mark.parametrize("order", ["{0}, {1}", "{1}, {0}"])
@pytest.mark.parametrize("edges", ["", ".edge_index"])
def test_a_graph_beside_features_is_data_or_its_edges(graph: str, order: str, edges: str) -> None:
    scope: dict[str, Any] = {}
    signature = order.format(graph, "feats")
    source = f"def forward(self, {signature}):\n    return by(self, feats, {graph}{edges})"
    exec(source, {"by": by_default}, scope)  # the parameters' names are the test
    data, model = bare(), built(scope["forward"])
    if (graph, order, edges) == ("data", "{0}, {1}", ""):
        with pytest.raises(InputError, match=r"forward\(data, feats=data.x\), raised"):
            expose(model, data)
        return
    exposure = expose(model, data)
    agrees(exposure, by_default(model, data.x, data.edge_index))
    given = graph if graph == "data" and edges else f"{graph}=data{'' if edges else '.edge_index'}"
    assert exposure.called == f"forward({order.format(given, 'feats=data.x')})"


def test_data_that_does_not_fit_the_model_is_named() -> None:
    edges = graph().edge_index
    for changed, words in (
        ({"x": graph().x.float()}, r"data.x is torch.float32 and the model's weights are torch.fl"),
        ({"x": graph().x[:, :3]}, r"data.x has 3 features per node and `conv.lin_rel` takes 5"),
        ({"x": graph().x.to("meta")}, r"data.x is on meta and the model's weights are on cpu; bri"),
        ({"edge_index": edges + 9}, r"edge_index names node 28, but the nodes are 0 to 23"),
        ({"edge_index": edges.double()}, r"edge_index is torch.float64 of shape"),
        ({"edge_index": edges.t()}, r"give integer node numbers of shape \[2, edges\]"),
    ):
        fields = {"x": graph().x, "edge_index": edges, **changed}
        with pytest.raises(InputError, match=words):
            expose(built(by_default), Data(**fields))


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda z: z[:17], r"gives logits for 17 of 24.* forward= that returns all rows"),
        (lambda z: z[:9, 0], r"gives logits for 9 of 24"),
        (lambda z: z[None], r"model\(\.\.\.\)\.squeeze\(0\)"),
        (lambda z: z[:3], r"one per link of edge_label_index: use expose_links"),
        (lambda z: z[:3, 0], r"one per link of edge_label_index: use expose_links"),
        (lambda z: z.sum(), r"that returns the logits"),
    ],
)
def test_outputs_without_a_row_per_node_say_what_to_do(end: Any, words: str) -> None:
    def cut(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return end(self.lin(self.conv(x, edge_index)))

    labels, links = torch.arange(NODES) % 4, torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(gr.GnnRepairError, match=words):
        expose(built(cut), bare(y=labels, edge_label_index=links))


def test_data_of_other_kinds() -> None:
    data, model = bare(edge_attr=weights()), built(by_default)
    expected = model(data.x, data.edge_index, weights())
    fields = {"x": data.x, "edge_index": data.edge_index, "edge_attr": weights()}
    agrees(expose(model, fields), expected)
    agrees(expose(model, SimpleNamespace(**fields)), expected)
    pair = (data.x, data.edge_index)
    agrees(expose(model, pair, forward=lambda net, pair: net(*pair, weights())), expected)
    agrees(expose(model, forward=lambda net, _: net(*pair, weights())), expected)
    with pytest.raises(InputError, match=r"data is a tuple; pass a PyG Data"):
        expose(model, pair)


class Few(InMemoryDataset):
    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(graphs)


def test_a_dataset_of_one_graph_or_two() -> None:
    data, model = bare(), built(by_default)
    alone = model(data.x, data.edge_index)
    agrees(expose(model, Few([data])), alone)
    agrees(expose(model, Few([data, data])), torch.cat([alone, alone]))


def test_layers_of_a_sampler() -> None:
    torch.manual_seed(0)

    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([pyg.SAGEConv(5, 6), pyg.SAGEConv(6, 4)])

        def forward(self, x: Tensor, adjs: Any) -> Tensor:
            for i, (edge_index, _, size) in enumerate(adjs):
                x = self.convs[i]((x, x[: size[1]]), edge_index)
                x = x.relu() if i == 0 else x
            return x

    data, model = bare(), Sampled().double().eval()
    exposure = expose(model, data)
    hidden = model.convs[0](data.x, data.edge_index).relu()
    agrees(exposure, model.convs[1](hidden, data.edge_index))
    assert "adjs=the whole graph at each of 2 layers" in exposure.called


def test_a_sequential_of_pyg_names_its_inputs() -> None:
    torch.manual_seed(0)
    layers = [(pyg.GraphConv(5, 6), "x, edge_index, w -> h"), (nn.Linear(6, 4), "h -> z")]
    model = pyg.Sequential("x, edge_index, w", layers).double().eval()
    data = bare(edge_weight=weights())
    agrees(expose(model, data), model(data.x, data.edge_index, weights()))


def test_calls_that_cannot_be_made() -> None:
    def anything(self: Any, *args: Tensor) -> Tensor:
        return by_default(self, *args)

    with pytest.raises(InputError, match=r"takes \*args, which says not what to pass"):
        expose(built(anything), bare())

    def failing(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return x.nonsense

    with pytest.raises(InputError, match=r"called as forward\(x, edge_index\), raised Attribute"):
        expose(built(failing), bare())
    with pytest.raises(InputError, match=r"called as given by forward=, raised KeyError: 'no'"):
        expose(built(by_default), bare(), forward=lambda net, data: {}["no"])


def test_expected_logits_and_predictions() -> None:
    data, model = bare(my=weights()), built(by_default)
    plain = model(data.x, data.edge_index)
    weighted = model(data.x, data.edge_index, weights())
    other = int((plain.argmax(1) != weighted.argmax(1)).sum())
    assert 0 < other < NODES
    for expected in (plain, plain.float(), plain.detach().numpy(), plain.argmax(1),
                     plain.argmax(1).tolist()):  # fmt: skip
        agrees(expose(model, data, expected=expected), plain)
    called = r"called as forward\(x, edge_index\)"
    with pytest.raises(InputError, match=rf"{called} predicts otherwise .* at {other} of {NODES}"):
        expose(model, data, expected=weighted.argmax(1))
    moved = int(((plain - weighted).abs().amax(1) > 0).sum())
    with pytest.raises(InputError, match=rf"gives other logits .* at {moved} of {NODES} nodes"):
        expose(model, data, expected=weighted)
    slight = plain.clone()
    slight[7, 2] += 1e-9 * max(1, float(plain[7].abs().max()))
    with pytest.raises(InputError, match=rf"at 1 of {NODES} nodes \(the first is node 7\)"):
        expose(model, data, expected=slight)
    with pytest.raises(InputError, match=r"expected has shape \[3\] and holds torch.int64; pass"):
        expose(model, data, expected=[1, 2, 3])
    with pytest.raises(InputError, match="expected is a str"):
        expose(model, data, expected="mine")


@pytest.mark.parametrize("form", ["squeezed", "column"])
def test_one_logit_a_node_is_two_classes(form: str) -> None:
    def binary(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.lin(self.conv(x, edge_index))
        return z.squeeze(-1) if form == "squeezed" else z

    model = built(binary)
    model.lin = nn.Linear(6, 1).double()
    data = bare()
    exposure = expose(model, data)
    z = model(data.x, data.edge_index).view(-1)
    agrees(exposure, torch.stack([torch.zeros_like(z), z], 1))
    table = model.conv.lin_rel.weight.t() @ model.lin.weight.t()
    expected = torch.cat([torch.zeros(NODES, 1), data.x @ table], 1)
    torch.testing.assert_close(exposure.contributions[0], expected.double())
    torch.testing.assert_close(exposure.embedding[0], model.conv(data.x, data.edge_index))
    assert "; its one logit z a node as the two classes (0, z)" in str(exposure)
    assert expose(model, data, expected=z > 0).num_classes == 2
    assert expose(model, data, expected=z).num_classes == 2
    with pytest.raises(InputError, match="other logits"):
        expose(model, data, expected=-z)


def test_logits_among_other_outputs() -> None:
    def pair(self: Any, x: Tensor, edge_index: Tensor) -> Any:
        return 3, self.lin(self.conv(x, edge_index)), x.sum()

    model, data = built(pair), bare()
    exposure = expose(model, data)
    agrees(exposure, model(data.x, data.edge_index)[1])
    assert exposure.called == "forward(x, edge_index); logits are output 1 of its 3"

    def named(self: Any, x: Tensor, edge_index: Tensor) -> Any:
        return {"loss": x.sum(), "logits": self.lin(self.conv(x, edge_index))}

    def tupled(self: Any, x: Tensor, edge_index: Tensor) -> Any:
        h = self.conv(x, edge_index)
        return namedtuple("Out", ["hidden", "logits"])(h, self.lin(h))

    for form in (named, tupled):
        assert "logits are output 'logits' of its 2" in expose(built(form), data).called
    output = built(tupled)(data.x, data.edge_index)
    kept = in_place(output, output.logits + 1, expose(built(tupled), data))
    assert torch.equal(kept.logits, output.logits + 1) and kept.hidden is output.hidden

    def several(self: Any, x: Tensor, edge_index: Tensor) -> Any:
        h = self.conv(x, edge_index)
        return h, self.lin(h)

    with pytest.raises(InputError, match=r"output 0 \[24, 6\], output 1 \[24, 4\]; pass forward="):
        expose(built(several), data)

    def decided(self: Any, x: Tensor, edge_index: Tensor) -> Any:
        return self.lin(self.conv(x, edge_index)).argmax(1)

    with pytest.raises(InputError, match=r"returns torch.int64 \(predictions have no margins\)"):
        expose(built(decided), data)


# What a model's outputs are read as: classes, labels or values, and never one for another.


def test_a_lone_output_is_a_value_where_y_says_so_and_two_classes_otherwise():
    squeeze = Network(1, lambda z: z.squeeze(-1))
    value = gr.expose(squeeze, graph_outputs(torch.randn(NODES_OUTPUTS)))
    assert value.outputs == "values"
    assert "its outputs are values, as data.y says" in value.called
    classes = gr.expose(squeeze, graph_outputs(torch.randint(0, 2, (NODES_OUTPUTS,))))
    assert classes.num_classes == 2
    assert "as the two classes (0, z)" in classes.called
    told = gr.expose(squeeze, graph_outputs(torch.randn(NODES_OUTPUTS)), outputs="classes")
    assert told.num_classes == 2
    label = gr.expose(squeeze, graph_outputs(), outputs="labels")
    assert (label.num_classes, label.outputs) == (1, "labels")
    assert torch.equal(label.contributions[..., 0], told.contributions[..., 1])


@pytest.mark.parametrize(
    ("y", "kind"),
    [
        (several(3), "labels"),
        (several(3).long(), "labels"),
        (several(3).bool(), "labels"),
        (several(3).masked_fill(several(3) == 1, float("nan")), "labels"),
        (nn.functional.one_hot(torch.arange(NODES_OUTPUTS) % 3).float(), "classes"),
        (torch.arange(NODES_OUTPUTS) % 3, "classes"),
        (torch.randn(NODES_OUTPUTS, 3), "values"),
        (several(4), "classes"),
        (None, "classes"),
    ],
)
def test_what_y_says(y, kind):
    assert gr.expose(Network(3), graph_outputs(y)).outputs == kind


def test_a_shift_common_to_all_outputs_is_none_for_classes_only():
    """log_softmax moves every label's logit, and no class's margin."""
    model = Network(3, lambda z: z.log_softmax(1))
    assert gr.expose(model, graph_outputs()).head is None
    bent = gr.expose(model, graph_outputs(), outputs="labels")
    assert bent.head is not None
    assert torch.allclose(bent.frozen_logits[0].exp().sum(1), torch.ones(NODES_OUTPUTS).double())


def test_edge_weights_are_the_coefficients_of_a_regression():
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GraphConv(6, 1)

        def forward(self, x, edge_index, edge_weight):
            return self.conv(x, edge_index, edge_weight).squeeze()

    data = graph_outputs(torch.randn(NODES_OUTPUTS), torch.float64)
    data.edge_weight = torch.rand(150).double() + 0.1
    model = Weighted().double()
    exposure = gr.expose(model, data)
    assert exposure.residual <= 1e-12
    ranges = gr.value_range(exposure)
    message = model.conv.lin_rel(data.x).squeeze().detach() - model.conv.lin_rel.bias.detach()
    for node in (3, 17):
        own = data.edge_index[1] == node
        heard = message[data.edge_index[0, own]]
        root = model.conv.lin_root(data.x[node]).item() + model.conv.lin_rel.bias.item()
        mass = float(data.edge_weight[own].sum())
        assert ranges.low[node] == pytest.approx(root + mass * float(heard.min()), abs=1e-12)
        assert ranges.high[node] == pytest.approx(root + mass * float(heard.max()), abs=1e-12)


def test_expected_outputs_are_compared():
    model, data = Network(3), graph_outputs(several(3))
    right = model(data.x, data.edge_index).detach()
    assert gr.expose(model, data, expected=right).outputs == "labels"
    with pytest.raises(InputError, match="gives other logits"):
        gr.expose(model, data, expected=right + 1)
    squeeze, one = Network(1, lambda z: z.squeeze(-1)), graph_outputs(torch.randn(NODES_OUTPUTS))
    value = squeeze(one.x, one.edge_index).detach()
    assert gr.expose(squeeze, one, expected=value).outputs == "values"
    assert gr.expose(squeeze, one, expected=value, outputs="classes").num_classes == 2
    with pytest.raises(InputError, match="gives other logits"):
        gr.expose(squeeze, one, expected=value + 1)
    with pytest.raises(InputError, match="choose 'classes', 'labels' or 'values'"):
        gr.expose(model, data, outputs="label")


def with_unknown(columns):
    y = several(columns)
    y[::3, 1] = -1
    return y


@pytest.mark.parametrize(
    ("columns", "y", "kind"),
    [
        (5, with_unknown(5), "labels"),
        (5, with_unknown(5).long(), "labels"),
        (5, several(5) * 2 - 1, "values"),  # no zero among them: what −1 says is not clear
        (1, torch.arange(NODES_OUTPUTS) % 9, "classes"),  # one against the rest
        (1, torch.arange(NODES_OUTPUTS) % 9 * 1.0, "values"),
        (1, torch.arange(NODES_OUTPUTS) % 2, "classes"),
        (1, torch.arange(NODES_OUTPUTS).unsqueeze(1) % 2 * 1.0, "classes"),
        (1, torch.arange(NODES_OUTPUTS) % 3 - 1, "classes"),
        (1, (torch.arange(NODES_OUTPUTS) % 2 * 2 - 1).double(), "values"),
        (2, torch.linspace(-1, 1, NODES_OUTPUTS), "values"),
        (2, torch.linspace(-1, 1, NODES_OUTPUTS).unsqueeze(1), "values"),
        (3, torch.arange(NODES_OUTPUTS) % 3, "classes"),
        (3, (torch.arange(NODES_OUTPUTS) % 3).float(), "classes"),
        (3, torch.zeros(NODES_OUTPUTS, 3, 2), "classes"),
    ],
)
def test_what_y_says_that_the_outputs_are(columns, y, kind):
    assert gr.expose(Network(columns), graph_outputs(y)).outputs == kind


def test_labels_of_which_some_are_minus_one_are_asked_about():
    y = with_unknown(5)
    exposure = gr.expose(Network(5), graph_outputs(y))
    solution = gr.solve(exposure, y)
    assert solution.skipped == int((y == -1).sum()) == 14
    assert len(solution) == NODES_OUTPUTS * 5 - 14 and solution.check(exposure).ok


# Labels and values of whole graphs, and of nodes of one of several types.


class Pooled(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(4, 6), nn.Linear(6, outputs)

    def nodes(self, x, edge_index):
        return self.conv(x, edge_index).relu()

    def forward(self, x, edge_index, batch):
        out = self.head(global_add_pool(self.nodes(x, edge_index), batch))
        return out.squeeze(-1) if out.shape[1] == 1 else out


def graphs(columns: int) -> list[Data]:
    torch.manual_seed(1)
    found = []
    for _ in range(20):
        size = int(torch.randint(3, 7, (1,)))
        y = torch.randn(1) if columns == 1 else (torch.rand(1, columns) > 0.5).float()
        edges = torch.randint(0, size, (2, 2 * size))
        found.append(Data(x=torch.randn(size, 4).double(), edge_index=edges, y=y.double()))
    return found


def test_a_graphs_value_lies_between_its_nodes_extremes():
    many, model = graphs(1), Pooled(1).double()
    exposure = gr.expose(model, many)
    assert exposure.outputs == "values"
    assert exposure.residual <= 1e-12
    ranges = gr.value_range(exposure)
    assert all(ranges.check(exposure))
    batch = Batch.from_data_list(many)
    with torch.no_grad():
        alone = model.nodes(batch.x, batch.edge_index) @ model.head.weight[0]
        bias = float(model.head.bias)
    for i in range(20):
        own = alone[batch.batch == i]
        assert ranges.low[i] == pytest.approx(bias + len(own) * float(own.min()), abs=1e-12)
        assert ranges.high[i] == pytest.approx(bias + len(own) * float(own.max()), abs=1e-12)
    assert ranges.sentence(0).startswith("graph 0, value 0 is ")
    in_parts = gr.expose(model, DataLoader(many, batch_size=7))
    assert in_parts.outputs == "values"
    assert gr.value_range(in_parts).high == pytest.approx(ranges.high, abs=1e-12)


def test_labels_of_graphs_are_reached_repaired_and_served(tmp_path):
    many, model = graphs(3), Pooled(3).double()
    exposure = gr.expose(model, many)
    y = torch.cat([graph.y for graph in many])
    solution = gr.solve(exposure, y)
    assert solution.check(exposure).ok
    assert str(solution[0]).startswith("graph 0, label 0 ")
    part = torch.arange(20) % 2 == 0
    budget = gr.SetTranslation().budget
    fitted = gr.SetTranslation(budget=type(budget)(3, None, 1e-2, 0.0)).fit(
        exposure, y, part, ~part, device="cpu"
    )
    batch = Batch.from_data_list(many)
    served = gr.repaired(model, fitted)(batch.x, batch.edge_index, batch.batch)
    assert torch.allclose(served, fitted.logits(exposure), atol=1e-9)
    solution.save(tmp_path / "graphs")
    assert str(type(solution).load(tmp_path / "graphs")[0]) == str(solution[0])


def test_labels_of_one_of_several_node_types():
    torch.manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(30, 4).double(), torch.randn(20, 3).double()
    writes = torch.stack([torch.randint(0, 20, (90,)), torch.randint(0, 30, (90,))])
    data["author", "writes", "paper"].edge_index = writes
    data["paper"].y = (torch.rand(30, 3) > 0.5).double()

    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kinds = {kind: SAGEConv((3, 4), 3) for kind in data.edge_types}
            self.conv = HeteroConv(kinds)

        def forward(self, x_dict, edge_index_dict):
            return self.conv(x_dict, edge_index_dict)["paper"]

    model = Typed().double()
    exposure = gr.expose(model, data)
    assert exposure.outputs == "labels"
    solution = gr.solve(exposure, torch.ones(30, 3))
    assert solution.check(exposure).ok
    conv = next(iter(model.conv.convs.values()))
    with torch.no_grad():
        said = data["author"].x @ conv.lin_l.weight.t()
        fixed = conv.lin_r(data["paper"].x) + conv.lin_l.bias
    for i in range(len(solution)):
        node, label = int(solution.node[i]), int(solution.target[i])
        heard = said[writes[0, writes[1] == node], label]
        loudest = float(heard.max()) if heard.numel() else 0.0
        assert solution.margin[i] == pytest.approx(float(fixed[node, label]) + loudest, abs=1e-12)
    assert "author" in str(solution[int(solution.reachable.argmax())])


@pytest.mark.parametrize("huge", [1.0, 1e3, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_huge_row_excuses_no_other_beyond_its_share_of_the_mean(huge, dtype) -> None:
    logits = torch.ones(100, 3, dtype=dtype)
    logits[0] = huge
    slack = EXPECTED_SLACK * max(EXACT[dtype], 4 * torch.finfo(dtype).eps) * float(logits.mean())
    for times, fits in ((0.5, True), (3.0, False)):
        theirs = logits.double().clone()
        theirs[7, 1] += times * slack
        theirs = theirs.to(dtype)
        if fits:
            check_expected(theirs, logits, False, "forward(x)")
        else:
            with pytest.raises(InputError, match=r"at 1 of 100 nodes \(the first is node 7\)"):
                check_expected(theirs, logits, False, "forward(x)")
