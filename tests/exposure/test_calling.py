"""How a model is called: an exposure must be of the model as its user runs it."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.nn import models

from gnn_repair.errors import ExposureRefused, GnnRepairError, InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.calling import EXPECTED_SLACK, check_expected
from gnn_repair.exposure.pieces import EXACT
from gnn_repair.repair.model import in_place
from tests.helpers.models.convolutions import NODES, graph
from tests.helpers.models.terms import dense
from tests.helpers.refusals import refused

ENTRIES = graph().edge_index.shape[1]
OTHER_GRAPH = graph().edge_index.flip(0)
W1, W2 = (
    torch.rand(ENTRIES, generator=torch.Generator().manual_seed(k), dtype=torch.float64) + 0.2
    for k in (1, 2)
)
KINDS, LABELS = torch.arange(ENTRIES) % 3, torch.arange(NODES) % 4
POINTS = torch.linspace(-1, 1, 2 * NODES, dtype=torch.float64).view(-1, 2).square()
LINKS = torch.zeros(2, 3, dtype=torch.long)
ADJACENCY = torch.sparse_coo_tensor(OTHER_GRAPH, W1, (NODES, NODES)).coalesce()


def bare(**more: Any) -> Data:
    whole = graph()
    return Data(x=whole.x, edge_index=whole.edge_index, **more)


def written(signature: str, result: str = "", conv: nn.Module | None = None) -> nn.Module:
    """A model of one convolution and a linear layer, with this forward: names are what is tested.

    Unless given, it gives the convolution of features, edges and weights.
    """
    torch.manual_seed(0)
    scope: dict[str, Any] = {"F": nn.functional, "Out": namedtuple("Out", ["hidden", "logits"])}
    result = result or f"self.lin(self.conv({signature.replace('=None', '')}))"
    exec(f"def forward(self, {signature}):\n    return {result}", scope)

    class Model(nn.Module):
        forward = scope["forward"]

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = conv or pyg.GraphConv(5, 6), nn.Linear(6, 4)

    return Model().double().eval()


WEIGHTED = "x, edge_index, edge_weight=None"
PLAIN = "self.lin(self.conv(x, edge_index))"


def agrees(exposure: Exposure, logits: Tensor) -> None:
    torch.testing.assert_close(exposure.logits()[0], logits.double(), rtol=1e-10, atol=1e-10)


# What data fills ----------------------------------------------------------------------------------


def filling() -> dict[str, tuple[nn.Module, Data, dict[str, Any], str]]:
    """By name: model, data, what is passed beside features and edges, and that in words."""
    found: dict[str, Any] = {}
    for key in ("edge_attr", "edge_weight", "weight", "w", "my_edge_norm"):
        said = "edge_weight" if key == "edge_weight" else f"edge_weight=data.{key}"
        found[f"data.{key}"] = (written(WEIGHTED), bare(**{key: W1}), {"edge_weight": W1}, said)
    for name in ("edge_attr", "edge_attrs", "edge_features", "weight", "w"):
        model = written(f"x, edge_index, {name}=None")
        found[f"parameter {name}"] = (model, bare(edge_weight=W1), {name: W1}, f"{name}=data.edge_")
    masks = {"edge_mask": W1, "edge_label": W2, "edge_time": W1, "edge_kept": KINDS > 0}
    column, vectors = W1.view(-1, 1), torch.stack([W1, W2], 1)
    gcn = written(WEIGHTED, conv=pyg.GCNConv(5, 6))
    whole, cached = (models.GCN(5, 8, 2, 4, cached=kept).double().eval() for kept in (False, True))
    weight, attribute = {"edge_weight": W1}, "edge_weight=data.edge_attr"
    ignoring, left = written(WEIGHTED, PLAIN), "; edge_weight left at default"
    typed = written(
        "x, edge_index, edge_type=None",
        f"self.lin(self.conv(x, edge_index, (x.new_zeros({ENTRIES}).long()"
        " if edge_type is None else edge_type)))",
        pyg.RGCNConv(5, 6, 3),
    )
    places = written(
        "x, edge_index, pos=None, n_id=None",
        "self.lin(self.conv(x + (0 if pos is None else pos.sum(1, keepdim=True)), edge_index))"
        " * (1 if n_id is None else 2)",
    )
    loss = f"F.cross_entropy({PLAIN}, y)"
    losing = written("x, edge_index, y=None", f"{loss} if y is not None else {PLAIN}")
    at = {"pos": POINTS, "n_id": torch.arange(NODES)}
    layers = [(pyg.GraphConv(5, 6), "x, edge_index, w -> h"), (nn.Linear(6, 4), "h -> z")]
    sequential = pyg.Sequential("x, edge_index, w", layers).double().eval()
    return found | {
        "a column as a vector": (gcn, bare(edge_attr=column), weight, f"{attribute}.squeeze(1)"),
        "its own name first": (written(WEIGHTED), bare(edge_attr=W2, edge_weight=W1), weight, ""),
        "two that are ignored": (ignoring, bare(edge_attr=W1, my_edge_norm=W2), {}, left),
        "a model of PyG that reads one": (whole, bare(edge_attr=W1), weight, attribute),
        "a cache": (cached, bare(edge_attr=W1), weight, attribute),
        "masks are no weights": (written(WEIGHTED), bare(**masks), {}, "forward(x, edge_index)"),
        "vectors are no weights": (written(WEIGHTED), bare(edge_attr=vectors), {}, left),
        "types": (typed, bare(edge_weight=W1, rel=KINDS), {"edge_type": KINDS}, "data.rel"),
        "names of one's own": (places, bare(**at), at, "pos, n_id"),
        "labels of a loss": (losing, bare(y=LABELS), {}, "forward(x, edge_index)"),
        "a sequential": (sequential, bare(edge_weight=W1), {"w": W1}, "w=data.edge_weight"),
    }


FILLING = filling()


@pytest.mark.parametrize("name", FILLING)
def test_what_data_fills(name: str) -> None:
    model, data, passed, said = FILLING[name]
    exposure = expose(model, data)
    assert said in exposure.called and f"  called as {exposure.called}\n" in str(exposure)
    assert name != "a cache" or all(conv._cached_edge_index is None for conv in model.convs)
    agrees(exposure, model(data.x, data.edge_index, **passed))
    if isinstance(getattr(model, "conv", None), pyg.GraphConv) and passed:
        expected = torch.zeros(NODES, NODES, dtype=torch.float64)
        expected[data.edge_index[1], data.edge_index[0]] = passed.get("edge_weight", W1)
        assert name == "names of one's own" or torch.equal(dense(exposure)[0], expected)


EDGES = graph().edge_index
BOTH = "data.edge_attr", "data.my_edge_norm"
SHIFTED = f"self.lin(self.conv(x + y.view(-1, 1), edge_index)) if y is not None else {PLAIN}"
ASKED: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "two weights": (WEIGHTED, "", {"edge_attr": W1, "my_edge_norm": W2},
                    ("`edge_weight`", *BOTH, "forward=")),
    "two weights that are needed": ("x, edge_index, w", "", {"edge_attr": W1, "my_edge_norm": W2},
                                    ("`w`", *BOTH, "forward=")),
    "labels": ("x, edge_index, y=None", SHIFTED, {"y": LABELS},
               ("`y`", "changes the logits", "forward=")),
    "two graphs": ("x, edges", "", {"adj_t": ADJACENCY},
                   ("`edges`", "data.edge_index", "data.adj_t", "forward=")),
    "nothing fits": ("x, edge_index, w", "", {}, ("`w`", "x", "forward=")),
    "anything": ("*args", "", {}, ("*args", "forward=")),
    "a failure": ("x, edge_index", "x.nonsense", {},
                  ("forward(x, edge_index)", "AttributeError", "nonsense", "forward=")),
    "another type": (WEIGHTED, "", {"x": graph().x.float()},
                     ("data.x", "torch.float32", ".to(torch.float64)")),
    "another width": (WEIGHTED, "", {"x": graph().x[:, :3]},
                      ("data.x has 3", "`conv.lin_rel` takes 5")),
    "another device": (WEIGHTED, "", {"x": graph().x.to("meta")},
                       ("data.x", "meta", "cpu", ".to(")),
    "unknown nodes": (WEIGHTED, "", {"edge_index": EDGES + 9},
                      ("edge_index", "node 28", "0 to 23")),
    "real numbers as edges": (WEIGHTED, "", {"edge_index": EDGES.double()},
                              ("edge_index", "torch.float64", "integer")),
    "edges in rows": (WEIGHTED, "", {"edge_index": EDGES.t()}, ("edge_index", "[2, edges]")),
    "no nodes": (WEIGHTED, "", {"x": graph().x[:0], "edge_index": EDGES[:, :0]},
                 ("no node to classify", "at least one")),
    "two outputs": ("x, edge_index", f"(self.conv(x, edge_index), {PLAIN})", {},
                    ("output 0 [24, 6]", "output 1 [24, 4]", "forward=")),
    "predictions": ("x, edge_index", f"{PLAIN}.argmax(1)", {}, ("torch.int64", "forward=")),
    "no output": ("x, edge_index", "None", {}, ("NoneType", "forward=")),
}  # fmt: skip
"""Signature and result of a model, what data holds beside features and edges, and what is said."""


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_about(name: str) -> None:
    signature, result, fields, words = ASKED[name]
    with refused(*words):
        expose(written(signature, result), Data(**({"x": graph().x, "edge_index": EDGES} | fields)))


def test_what_the_user_says_is_done() -> None:
    model, data = written(WEIGHTED), bare(edge_attr=W1, my_edge_norm=W2)
    exposure = expose(model, data, forward=lambda m, d: m(d.x, d.edge_index, d.my_edge_norm))
    agrees(exposure, model(data.x, data.edge_index, W2))
    assert exposure.called == "given by forward="
    with refused("given by forward=", "KeyError", "'no'"):
        expose(model, data, forward=lambda m, d: {}["no"])


@pytest.mark.parametrize("holder", ["data", "graph", "g"])
@pytest.mark.parametrize("order", ["{0}, {1}", "{1}, {0}"])
@pytest.mark.parametrize("edges", ["", ".edge_index"])
def test_a_graph_beside_features_is_data_or_its_edges(holder: str, order: str, edges: str) -> None:
    signature = order.format(holder, "feats")
    data = bare()
    model = written(signature, f"self.lin(self.conv(feats, {holder}{edges}))")
    if (holder, order, edges) == ("data", "{0}, {1}", ""):
        with refused("forward(data, feats=data.x)", "forward="):
            expose(model, data)
        return
    exposure = expose(model, data)
    agrees(exposure, model.lin(model.conv(data.x, data.edge_index)))
    given = (
        holder if holder == "data" and edges else f"{holder}=data{'' if edges else '.edge_index'}"
    )
    assert exposure.called == f"forward({order.format(given, 'feats=data.x')})"


class Sampled(nn.Module):
    """Layers of a neighbour sampler."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.SAGEConv(5, 6), pyg.SAGEConv(6, 4)])

    def forward(self, x: Tensor, adjs: Any) -> Tensor:
        for i, (edge_index, _, size) in enumerate(adjs):
            x = self.convs[i]((x, x[: size[1]]), edge_index)
            x = x.relu() if i == 0 else x
        return x


def test_graphs_in_other_places() -> None:
    """A matrix, at each of the layers, or held by the model itself."""
    data, matrix = bare(), bare(adj_t=ADJACENCY)
    transposed = written("x, adj_t")
    agrees(expose(transposed, matrix), transposed(data.x, ADJACENCY))
    sampled = Sampled().double().eval()
    exposure, layer = expose(sampled, data), (data.edge_index, None, (NODES, NODES))
    agrees(exposure, sampled(data.x, [layer, layer]))
    assert "adjs=the whole graph at each of 2 layers" in exposure.called
    alone = written("", "self.lin(self.conv(*self.held))")
    alone.held = data.x, data.edge_index
    for exposure in (expose(alone), expose(alone, data)):
        agrees(exposure, alone())
        assert exposure.called == "forward()"


class Few(InMemoryDataset):
    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(graphs)


def test_data_of_other_kinds() -> None:
    data, model = bare(edge_attr=W1), written(WEIGHTED)
    pair, expected = (data.x, data.edge_index), model(data.x, data.edge_index, W1)
    fields = {"x": data.x, "edge_index": data.edge_index, "edge_attr": W1}
    agrees(expose(model, fields), expected)
    agrees(expose(model, SimpleNamespace(**fields)), expected)
    agrees(expose(model, pair, forward=lambda net, pair: net(*pair, W1)), expected)
    agrees(expose(model, forward=lambda net, _: net(*pair, W1)), expected)
    agrees(expose(model, Few([data])), expected)
    agrees(expose(model, Few([data, data])), torch.cat([expected, expected]))
    with refused("tuple", "PyG Data", "forward="):
        expose(model, pair)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("[:17]", ("17 of 24", "forward=")),
        ("[:9, 0]", ("9 of 24", "forward=")),
        ("[None]", (".squeeze(0)",)),
        (".t()", ("model(...).t()",)),
        ("[:3]", ("edge_label_index", "expose_links")),
        ("[:3, 0]", ("edge_label_index", "expose_links")),
        (".sum()", ("forward=", "returns the logits")),
    ],
)
def test_outputs_without_a_row_per_node_say_what_to_do(end: str, words: tuple[str, ...]) -> None:
    with refused(*words, kind=GnnRepairError):
        expose(written("x, edge_index", PLAIN + end), bare(y=LABELS, edge_label_index=LINKS))


# Logits among other outputs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "place"),
    [
        (f"(3, {PLAIN}, x.sum())", "1 of its 3"),
        (f"{{'loss': x.sum(), 'logits': {PLAIN}}}", "'logits' of its 2"),
        (f"Out(self.conv(x, edge_index), {PLAIN})", "'logits' of its 2"),
        (f"({PLAIN}, {PLAIN}.log_softmax(1))", "0 of its 2"),
        (f"({PLAIN}, {PLAIN}.softmax(1))", "0 of its 2"),
        (f"({PLAIN}.log_softmax(1), {PLAIN})", "1 of its 2"),
        (f"({PLAIN}.softmax(1), {PLAIN})", "1 of its 2"),
        (f"({PLAIN}[:, :3], {PLAIN})", "1 of its 2"),
    ],
)
def test_logits_among_other_outputs(result: str, place: str) -> None:
    """By name, alone with a row per node, beside their own softmax, or by their columns."""
    model, data = written("x, edge_index", result), bare()
    data.y = LABELS if ":3" in result else None
    exposure = expose(model, data)
    agrees(exposure, model.lin(model.conv(data.x, data.edge_index)))
    assert exposure.head is None
    assert exposure.called == f"forward(x, edge_index); logits are output {place}"
    output = model(data.x, data.edge_index)
    if hasattr(output, "_asdict"):
        kept = in_place(output, output.logits + 1, exposure)
        assert torch.equal(kept.logits, output.logits + 1) and kept.hidden is output.hidden


# What is expected ---------------------------------------------------------------------------------


def test_expected_logits_and_predictions() -> None:
    data, model = bare(my=W1), written(WEIGHTED)
    plain, weighted = model(data.x, data.edge_index), model(data.x, data.edge_index, W1)
    classes = plain.argmax(1)
    for expected in (plain, plain.float(), plain.detach().numpy(), classes, classes.tolist()):
        agrees(expose(model, data, expected=expected), plain)
    other = (classes != weighted.argmax(1)).nonzero().view(-1).tolist()
    moved = ((plain - weighted).abs().amax(1) > 0).nonzero().view(-1).tolist()
    assert 0 < len(other) < len(moved) <= NODES
    for expected, where in ((weighted.argmax(1), other), (weighted, moved)):
        told = f"at {len(where)} of {NODES} nodes", f"is node {where[0]}"
        with refused("forward(x, edge_index)", *told, "forward="):
            expose(model, data, expected=expected)
    with refused("[3]", "torch.int64", "[24, 4]"):
        expose(model, data, expected=[1, 2, 3])
    with refused("str", "expected"):
        expose(model, data, expected="mine")


@pytest.mark.parametrize("by", [torch.nan, torch.inf, -torch.inf, 1.0, -1.0, 1e-6, -1e-6])
@pytest.mark.parametrize("node", [0, 13, 23])
def test_one_wrong_number_of_what_is_expected_is_found(by: float, node: int) -> None:
    logits = torch.randn(24, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for place in range(4):
        told = logits.clone()
        told[node, place] += by
        with refused("at 1 of 24 graphs", f"is graph {node})"):
            check_expected(told, logits, False, "forward(x)", noun="graph")


@pytest.mark.parametrize("huge", [1.0, 1e3, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_huge_row_excuses_no_other_beyond_its_share_of_the_mean(
    huge: float, dtype: torch.dtype
) -> None:
    logits = torch.ones(100, 3, dtype=dtype)
    logits[0] = huge
    slack = EXPECTED_SLACK * max(EXACT[dtype], 4 * torch.finfo(dtype).eps) * float(logits.mean())
    within, beyond = (logits.double().clone() for _ in range(2))
    within[7, 1] += 0.5 * slack
    beyond[7, 1] += 3 * slack
    check_expected(within.to(dtype), logits, False, "forward(x)")
    with refused("at 1 of 100 nodes", "is node 7)"):
        check_expected(beyond.to(dtype), logits, False, "forward(x)")


# Calls that are none ------------------------------------------------------------------------------


def test_calls_that_are_none() -> None:
    model, data = written("x, edge_index"), bare()
    for words, call in {
        ("data", "missing"): lambda: expose(model),
        ("Model", "instance"): lambda: expose(type(model), data),
        ("str", "Frozen"): lambda: expose("gcn", data),
        ("hops", "'all'", "'paths'", "'last'"): lambda: expose(model, data, hops="all"),
        ("node_type", "'paper'", "HeteroData"): lambda: expose(model, data, node_type="paper"),
        ("outputs", "'label'", "'labels'"): lambda: expose(model, data, outputs="label"),
        ("`x_0`", "forward="): lambda: expose(pyg.GCN2Conv(5, alpha=0.1), data),
        ("an OrderedDict",): lambda: expose(model.state_dict(), data),
        ("forward is a str", "function"): lambda: expose(model, data, forward="x"),
        ("data.x", "int64", "data.x = data.x.to(torch.float32)"): lambda: expose(
            pyg.GCNConv(data.num_features, 4), Data(x=data.x.long(), edge_index=data.edge_index)
        ),
        ("data.x", "NumPy", "torch.from_numpy(data.x)"): lambda: expose(
            model, Data(x=data.x.numpy(), edge_index=data.edge_index)
        ),
        ("no logit", "at least one output"): lambda: expose(
            model, data, forward=lambda model, data: model(data.x, data.edge_index)[:, :0]
        ),
    }.items():
        with refused(*words):
            call()


def test_what_cannot_be_told_from_a_run() -> None:
    """An assertion without words, a half precision, numbers that are none."""
    model, data = written("x, edge_index"), bare()

    def asserting(model: Any, data: Data) -> Tensor:
        raise AssertionError

    with refused("AssertionError", "raise AssertionError;", "forward=") as caught:
        expose(model, data, forward=asserting)
    assert "pass forward=" not in str(caught.value)
    with refused("torch.float64", "torch.bfloat16", "autocast"):
        expose(model, data, forward=lambda m, d: m(d.x, d.edge_index).bfloat16())
    with refused("NaN"):
        expose(model, data, forward=lambda m, d: m(d.x, d.edge_index) / 0)
    with pytest.raises((ExposureRefused, InputError)):
        expose(model.half(), bare())
