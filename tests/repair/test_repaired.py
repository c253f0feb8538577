"""A repaired model is the model with its repair: on every graph, after saving, with gradients."""

from __future__ import annotations

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, HeteroConv, SAGEConv, SGConv

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.repair import TemperatureScaling
from tests.helpers.repair.repaired_models import KINDS, WIDTH, TwoLayers, fitted_on, graph

SHORT = Budget(10, None, 0.05, 0.0)
CLOSE = {"atol": 2e-5, "rtol": 1e-5}


def repaired_on(model, data, repair=None):
    fitted = fitted_on(model, data, repair or gr.SetTranslation(SHORT, hidden=8))
    return gr.repaired(model, fitted), fitted


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_repair_of_the_models_exposure_on_new_graphs(kind, monkeypatch):
    """In the model's precision; the model is left as it was, and certified once.

    Also on the same graph with other features or edges, and with weights that have changed since.
    """
    torch.manual_seed(0)
    model, data = KINDS[kind]().train(), graph(0, 40)
    turned = Data(x=data.x.flip(0), edge_index=data.edge_index)
    fewer = Data(x=data.x, edge_index=data.edge_index[:, ::2])
    others = data, turned, fewer, graph(1, 25), graph(2, 60)
    before, fitted = copy.deepcopy(model.state_dict()), fitted_on(model.eval(), data)
    assert not fitted.unchanged.any()
    expected = [fitted.member_logits(gr.expose(model, other))[0] for other in others]
    frozen = [model(other.x, other.edge_index) for other in others]
    double = gr.repaired(copy.deepcopy(model), fitted).double()
    repaired = gr.repaired(model.train(), fitted)
    for other, wanted, told in zip(others, expected, frozen, strict=True):
        found = repaired(other.x, other.edge_index)
        assert found.dtype == torch.float32 and (found - told).abs().max() > 1e-3
        torch.testing.assert_close(found.double(), wanted, **CLOSE)
        precise = double(other.x.double(), other.edge_index)
        torch.testing.assert_close(precise, wanted, atol=1e-4, rtol=1e-4)
        monkeypatch.setattr("gnn_repair.exposure.from_model.certify", None)
        changes = repaired.changes(other.x, other.edge_index)
        classes = torch.stack([told.argmax(1), found.argmax(1)], 1)
        moved = (classes[:, 0] != classes[:, 1]).nonzero().view(-1)
        assert changes["node"].tolist() == moved.tolist()
        assert changes[["before", "after"]].to_numpy().tolist() == classes[moved].tolist()
        monkeypatch.undo()
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    free, weight = (
        gr.repaired(model.eval(), fitted.unbound()),
        max(model.parameters(), key=Tensor.numel),
    )
    free(data.x, data.edge_index)
    with torch.no_grad():
        for change in (lambda: weight.mul_(1.5), lambda: setattr(weight, "data", 1.5 * weight)):
            change()
            wanted = fitted.unbound().member_logits(gr.expose(model, data))[0]
            found = free(data.x, data.edge_index).double()
            torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
            with pytest.raises(InputError, match="other weights"):
                repaired(data.x, data.edge_index)


# Gradients of a repaired model's logits for what it is given, against finite differences.

BUDGET = Budget(15, None, 0.05, 0.0)
REPAIRS = {
    "set": gr.SetTranslation(BUDGET, hidden=5),
    "node": gr.NodeTranslation(BUDGET, hidden=5),
    "reweighting": gr.Reweighting(BUDGET, hidden=5),
    "head": gr.RefitHead(BUDGET),
    "temperature": TemperatureScaling(),
}


def double(data):
    data.x = data.x.double()
    return data


def followed(call, given) -> bool:
    given = given.detach().clone().requires_grad_()
    return torch.autograd.gradcheck(call, (given,), fast_mode=True, eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("kind", ["gat", "graphconv"])
def test_gradients_are_those_of_finite_differences(kind, repair):
    torch.manual_seed(0)
    model, data = KINDS[kind]().double().eval(), double(graph(0, 14))
    repaired, fitted = repaired_on(model, data, REPAIRS[repair])
    for mode in (False, True):
        repaired.train(mode)
        assert followed(lambda x: repaired(x, data.edge_index), data.x)
    x = data.x.clone().requires_grad_()
    logits, plain = repaired(x, data.edge_index), repaired(data.x, data.edge_index)
    torch.testing.assert_close(logits, plain)
    torch.testing.assert_close(plain, fitted.member_logits(gr.expose(model, data))[0])
    frozen = repaired.model(x, data.edge_index)
    own, bare = (torch.autograd.grad(z.square().sum(), x)[0] for z in (logits, frozen))
    assert float((own - bare).abs().max()) > 1e-3  # the repair's own part is in it
    assert all(p.grad is None and p.requires_grad for p in repaired.model.parameters())
    assert not plain.requires_grad
    with torch.no_grad():
        assert not repaired(x, data.edge_index).requires_grad


class Weighted(nn.Module):
    """A model that is given edge weights."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.first, self.last = GCNConv(6, 8), last

    def forward(self, x, edge_index, edge_weight):
        return self.last(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


@pytest.mark.parametrize("last", [GCNConv(8, 3), SGConv(8, 3, K=2)])
def test_edge_weights_have_gradients_through_the_coefficients_of_one_hop(last):
    torch.manual_seed(1)
    data = double(graph(3, 12))
    # Of two self-loops of a node GCNConv takes one weight, and PyTorch gives both its gradient.
    data.edge_index = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    data.edge_weight = torch.rand(data.num_edges, dtype=torch.float64) + 0.5
    model = Weighted(last).double().eval()
    repaired = repaired_on(model, data, REPAIRS["reweighting"])[0]

    def call(weight):
        return repaired(data.x, data.edge_index, edge_weight=weight)

    if isinstance(last, GCNConv):
        assert followed(call, data.edge_weight)
    else:
        with pytest.raises(InputError, match="several hops"):
            call(data.edge_weight.clone().requires_grad_())


def test_a_model_that_takes_the_whole_data_and_sparse_features(monkeypatch):
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(40, 3)

        def forward(self, data):
            return self.conv(data.x, data.edge_index)

    torch.manual_seed(2)
    data = graph(5, 20)
    x = torch.zeros(20, 40, dtype=torch.float64)
    x[torch.arange(20), torch.randint(40, (20,))] = 1.0  # multiplied as sparse without gradients
    data.x = x
    model = Whole().double().eval()
    repaired, fitted = repaired_on(model, data, REPAIRS["set"])

    def logits(x):
        return repaired(Data(x=x, edge_index=data.edge_index))

    torch.testing.assert_close(logits(x), fitted.logits(gr.expose(model, data)))
    assert not logits(x).requires_grad
    assert followed(
        logits, x + 0.01 * torch.randn_like(x)
    )  # off the zeros: there states have kinks
    x.requires_grad_()
    sparse = torch.autograd.grad(logits(x).square().sum(), x)[0]
    monkeypatch.setattr("gnn_repair.backbones.graph.SPARSE_BELOW", 0.0)
    assert torch.isfinite(sparse).all()
    torch.testing.assert_close(sparse, torch.autograd.grad(logits(x).square().sum(), x)[0])


def test_dead_states_and_messages_from_oneself_give_finite_gradients():
    torch.manual_seed(0)
    model, data = TwoLayers(GCNConv(6, 8), GATConv(8, 8)).double().eval(), double(graph(0, 16))
    with torch.no_grad():
        model.first.bias.fill_(-0.8)  # many states are exactly zero
    repaired = repaired_on(model, data, REPAIRS["set"])[0]
    assert bool((gr.expose(model, data).state[0] == 0).all(1).any())
    x = data.x.clone().requires_grad_()
    repaired(x, data.edge_index).sum().backward()
    assert torch.isfinite(x.grad).all() and float(x.grad.abs().max()) > 0


LADDER = gr.EvidenceLadder(rungs=("messages",), folds=2, epochs=2)


@pytest.mark.parametrize(
    ("kind", "repair"), [("residual", REPAIRS["node"]), ("gin", REPAIRS["node"]), ("gcn", LADDER)]
)
def test_where_no_gradient_can_be_followed_it_says_so(kind, repair):
    torch.manual_seed(0)
    model, data = KINDS[kind]().eval(), graph(0, 40)
    repaired = repaired_on(model, data, repair)[0]
    with pytest.raises(InputError, match="no gradient"):
        repaired(data.x.clone().requires_grad_(), data.edge_index)
    with torch.no_grad():
        assert repaired(data.x.clone().requires_grad_(), data.edge_index).shape == (40, 3)


# A repaired model as others use it: threads, autocast, other people's files, other forms.


class Network(nn.Module):
    def __init__(self, classes=3, form=None):
        super().__init__()
        self.first, self.last = GCNConv(WIDTH, 8), GCNConv(8, classes)
        self.form = form or (lambda z: z)

    def forward(self, x, edge_index):
        return self.form(self.last(self.first(x, edge_index).relu(), edge_index))


@pytest.fixture
def served():
    torch.manual_seed(0)
    model, data = Network().eval(), graph(0, 40)
    return *repaired_on(model, data), model, data


def test_threads_take_turns(served):
    repaired, _, model, _ = served
    shown = [graph(seed, 20 + seed) for seed in range(4)]

    def call(number):
        one = shown[number % 4]
        return repaired(one.x, one.edge_index)

    expected = [call(number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(call, range(32))):
            torch.testing.assert_close(found, expected[number % 4], **CLOSE)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_autocast_does_not_reach_inside(served):
    repaired, fitted, model, data = served
    expected = repaired(data.x, data.edge_index)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(repaired(data.x, data.edge_index), expected)
        found = fitted.member_logits(gr.expose(model, data))
        again = repaired_on(model, data)[1]
    torch.testing.assert_close(found[0].float(), expected)
    assert torch.equal(again.best_epoch, fitted.best_epoch)
    for name, value in again.parameters.items():
        torch.testing.assert_close(value, fitted.parameters[name], atol=1e-4, rtol=1e-4)


class Wider(Network):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(2, 2)


def test_what_is_no_model_with_its_repair_is_refused(served, tmp_path):
    repaired, fitted, model, data = served
    repaired.save(tmp_path / "f")
    for other in (Wider(), Network(classes=4), KINDS["sgc"]()):
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(InputError, match=r"another model's weights: `.*`"):
            gr.RepairedModel.load(tmp_path / "f", other)
        assert all(torch.equal(before[k], value) for k, value in other.state_dict().items())
    with pytest.raises(InputError, match="model is a type"):
        gr.RepairedModel.load(tmp_path / "f", Network)
    with pytest.raises(InputError, match="another class than Sub"):
        gr.RepairedModel.load(tmp_path / "f", type("Sub", (Network,), {})())
    with pytest.raises(InputError, match=r"other weights, or on the same ones .*unbound\(\)"):
        gr.repaired(Network(), fitted)
    with pytest.raises(InputError, match="model is None; pass"):
        gr.repaired(None, fitted)
    with pytest.raises(InputError, match="fitted is a str"):
        gr.repaired(model, "nothing")
    with pytest.raises(InputError, match="2 members"):
        doubled = {name: torch.cat([v, v]) for name, v in fitted.parameters.items()}
        two = {name: torch.cat([getattr(fitted, name)] * 2) for name in ("best_epoch", "diverged")}
        gr.repaired(model, replace(fitted, parameters=doubled, **two))
    for given in ((data.x,), ("x", data.edge_index)):
        with pytest.raises(
            InputError, match=r"^Network.*(called like that|raised .*itself takes$)"
        ):
            repaired(*given)
    with pytest.raises(InputError, match=r"data\.x"):
        repaired(torch.full_like(data.x, torch.nan), data.edge_index)
    type(model).get_extra_state = lambda self: {"a": 1}
    try:
        with pytest.raises(InputError, match="Network keeps `_extra_state`, a dict"):
            repaired.save(tmp_path / "f")
    finally:
        del type(model).get_extra_state


NOTES = ["rubbish", {}, {"fingerprint": "abc"}, {"fingerprint": [1]}, torch.ones(3)]


def test_every_value_of_a_state_is_a_tensor_with_a_name(served):
    repaired, fitted, model, data = served
    expected = repaired(data.x, data.edge_index)
    state = {name: value.clone() for name, value in repaired.state_dict().items()}
    assert {"repair/parameters/head/2/weight", "repair/best_epoch"} <= state.keys()
    weights = {name: value for name, value in state.items() if name.startswith("model.")}
    # As version 0.2 wrote it: by position, with a dict for the note.
    old = {f"repair_{i}": value for i, value in enumerate(fitted.tensors().values())}
    old |= {**weights, "_extra_state": {"fingerprint": list(fitted.fingerprint)}}
    for given in (state, old):
        other = repaired_on(copy.deepcopy(model), graph(3, 40))[0]
        assert not torch.equal(other(data.x, data.edge_index), expected)
        other.load_state_dict(given)
        assert torch.equal(other(data.x, data.edge_index), expected)
        nn.ModuleList([other]).load_state_dict({f"0.{name}": v for name, v in given.items()})
    assert "repair_0" in old
    for note in (*NOTES, torch.arange(300)):
        with pytest.raises(InputError, match="load what state_dict"):
            repaired.load_state_dict(repaired.state_dict() | {"_extra_state": note})


class Propagation(nn.Module):
    """PPNP: a matrix that the model holds."""

    def __init__(self, layout, nodes=20):
        super().__init__()
        dense = torch.rand(nodes, nodes).gt(0.8).float()
        self.register_buffer("matrix", LAYOUTS[layout](dense / dense.sum(1).clamp(min=1)))
        self.lin = nn.Linear(WIDTH, 3)

    def forward(self, x, edge_index):
        return self.matrix @ self.lin(x)


LAYOUTS = {
    "coo": torch.Tensor.to_sparse_coo,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda matrix: matrix.to_sparse_bsr((2, 2)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_that_holds_a_sparse_matrix(layout, tmp_path):
    torch.manual_seed(0)
    model, data = Propagation(layout).eval(), graph(0, 20)
    repaired, fitted = repaired_on(model, data)
    expected = repaired(data.x, data.edge_index)
    assert torch.equal(repaired(data.x, data.edge_index), expected)
    repaired.save(tmp_path / "f")
    torch.manual_seed(0)
    like = Propagation(layout).eval()
    like.matrix.values().zero_()
    assert gr.expose(like, data).fingerprint != fitted.fingerprint
    loaded = gr.RepairedModel.load(tmp_path / "f", like)
    assert torch.equal(loaded(data.x, data.edge_index), expected)
    for other in (Propagation(layout, 18), Network()):
        with pytest.raises(InputError, match="holds another model's weights: `"):
            gr.RepairedModel.load(tmp_path / "f", other)
    with torch.no_grad():  # what is written in place is noticed
        model.matrix.values().mul_(2)
    with pytest.raises(InputError, match="other weights"):
        repaired(data.x, data.edge_index)


FORMS = {
    "[N]": (1, lambda z: z.squeeze(-1), lambda both: both[:, 1] - both[:, 0]),
    "[N, 1]": (1, lambda z: z, lambda both: (both[:, 1] - both[:, 0]).unsqueeze(1)),
    "log-probabilities": (3, lambda z: z.log_softmax(1), lambda z: z.log_softmax(1)),
    "probabilities": (3, lambda z: z.softmax(1), lambda z: z.softmax(1)),
    "logits": (3, lambda z: z, lambda z: z),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_model_gives_keeps_its_form(form):
    """One logit a node stays one, and log-probabilities stay log-probabilities.

    Logits stay logits, also where those of one node happen to be normalised.
    """
    torch.manual_seed(0)
    columns, own, expected = FORMS[form]
    model, data = Network(columns, own).eval(), graph(0, 40)
    data.y %= max(columns, 2)
    if form == "logits":
        with torch.no_grad():
            model.last.bias -= model(data.x, data.edge_index)[0].logsumexp(0)
    repaired, fitted = repaired_on(model, data)
    assert fitted.fingerprint[0].endswith("softmax") == (form == "probabilities")
    told, found = model(data.x, data.edge_index), repaired(data.x, data.edge_index)
    wanted = expected(fitted.member_logits(gr.expose(model, data))[0])
    torch.testing.assert_close(found.double(), wanted, **CLOSE)
    changed = repaired.changes(data.x, data.edge_index)["node"].tolist()
    before, after = (z > 0 if columns == 1 else z.argmax(1) for z in (told, found))
    assert changed == (before != after).view(-1).nonzero().view(-1).tolist() != []


class ByType(nn.Module):
    """Logits of both node types, or with an order embeddings and a loss around them."""

    def __init__(self, data, order):
        super().__init__()
        kinds = data.edge_types
        self.first, self.last = (
            HeteroConv({kind: SAGEConv((width, width), out) for kind in kinds})
            for width, out in ((WIDTH, 5), (5, 3))
        )
        self.order = order

    def forward(self, x_dict, edge_index_dict):
        hidden = self.first(x_dict, edge_index_dict)
        logits = self.last(hidden, edge_index_dict)
        parts = hidden, logits, sum(z.sum() for z in logits.values())
        return tuple(parts[i] for i in self.order) if self.order else logits


@pytest.mark.parametrize(
    ("order", "labelled"),
    [(None, False), (None, True), *((order, True) for order in itertools.permutations(range(3)))],
)
def test_logits_by_node_type_keep_their_place_and_gradients_of_all_types_are_followed(
    order, labelled
):
    generator, data = torch.Generator().manual_seed(0), HeteroData()
    for kind, size in (("paper", 20), ("author", 15)):
        data[kind].x = torch.randn(size, WIDTH, generator=generator).double()
    for kind in (("author", "writes", "paper"), ("paper", "cites", "paper")):
        ends = [torch.randint(len(data[k].x), (50,), generator=generator) for k in kind[::2]]
        data[kind].edge_index = torch.stack(ends)
    data["paper", "by", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)
    torch.manual_seed(0)
    y, half = torch.arange(20) % 3, torch.arange(20) % 2 == 0
    if labelled:
        data["paper"].y = y
    model, given = ByType(data, order).double().eval(), (data.x_dict, data.edge_index_dict)
    exposure = gr.expose(model, data, node_type="paper")
    fitted = gr.NodeTranslation(SHORT, hidden=8).fit(exposure, y, half, ~half)
    repaired = gr.repaired(model, fitted)
    place = order.index(1) if order else 0  # the dict with a column per class
    found, told = ([out] if order is None else out for out in (repaired(*given), model(*given)))
    assert fitted.node_type == "paper" and len(found) == len(told)
    for i, (mine, other) in enumerate(zip(found, told, strict=True)):
        if i == place:
            torch.testing.assert_close(mine["paper"], fitted.logits(exposure))
            mine, other = mine["author"], other["author"]
        torch.testing.assert_close(mine, other)

    def run(author):
        out = repaired({**data.x_dict, "author": author}, data.edge_index_dict)
        return (out[place] if order else out)["paper"]

    assert followed(run, data["author"].x)


def test_a_tuple_stays_one_and_forward_is_called_with_the_graph(tmp_path):
    torch.manual_seed(0)
    model, data = Network(form=lambda z: (z, z.sum())).eval(), graph(0, 40)
    repaired, fitted = repaired_on(model, data)
    logits, total = repaired(data.x, data.edge_index)
    torch.testing.assert_close(logits.double(), fitted.logits(gr.expose(model, data)))
    assert torch.equal(total, model(data.x, data.edge_index)[1])

    def forward(model, data):
        return model(data.x, data.edge_index)[0]

    half = torch.arange(data.num_nodes) % 2 == 0
    exposure = gr.expose(model, data, forward=forward)
    fitted = gr.NodeTranslation(SHORT, hidden=8).fit(exposure, data.y, half, ~half)
    found = gr.repaired(model, fitted, forward=forward)(data)
    torch.testing.assert_close(found.double(), fitted.logits(exposure))
    remembered = gr.repaired(model, fitted)
    torch.testing.assert_close(remembered(data), found)
    path = tmp_path / "repaired.safetensors"
    remembered.save(path)
    loaded = gr.RepairedModel.load(path, copy.deepcopy(model), forward=forward)
    torch.testing.assert_close(loaded(data), found)
    for without in (
        gr.RepairedModel.load(path, copy.deepcopy(model)),
        gr.repaired(model, copy.deepcopy(fitted)),
    ):
        with pytest.raises(InputError, match="pass forward="):
            without(data)


def test_another_model_in_the_place_of_the_first_is_the_one_that_is_run(served):
    repaired, _, model, data = served
    given = data.x, data.edge_index
    told = repaired(*given)
    repaired.model = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    torch.testing.assert_close(repaired(*given), told)
    repaired.model = copy.deepcopy(repaired.model).double()
    found = repaired(data.x.double(), data.edge_index)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), told, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bound", [True, False])
def test_a_loaded_state_is_what_everything_about_the_module_speaks_of(bound, tmp_path):
    """Calls, changes, files and copies: of the numbers it holds now, not of those it began with."""
    torch.manual_seed(0)
    model, data = KINDS["gat"]().eval(), graph(1, 40)
    head, other = gr.RefitHead(epochs=3), KINDS["gat"]().eval()
    fitted, given = fitted_on(model, data, head), (data.x, data.edge_index)
    moved, scaled = (
        {name: value.flip(-1) * 2 for name, value in part.items()}
        for part in (fitted.parameters, fitted.constants)
    )
    epoch = (fitted.best_epoch + 1) % 3
    changed = replace(fitted, parameters=moved, constants=scaled, best_epoch=epoch)
    source = gr.repaired(model, changed if bound else changed.unbound())
    shell = gr.repaired(other, fitted_on(other, data, head))
    before = shell(*given)
    shell.load_state_dict(source.state_dict())
    assert shell.fitted.fingerprint == (fitted.fingerprint if bound else None)
    shell.save(tmp_path / "file")
    torch.save(shell, tmp_path / "pickle")
    copies = [
        shell, copy.deepcopy(shell), torch.load(tmp_path / "pickle", weights_only=False),
        gr.RepairedModel.load(tmp_path / "file", copy.deepcopy(model)),
        gr.repaired(model, shell.fitted),
    ]  # fmt: skip
    assert not torch.allclose(before, source(*given))
    for one in copies:
        assert torch.equal(one(*given), source(*given))
        assert one.changes(*given).equals(source.changes(*given))
        held = one.fitted.tensors()
        assert held.keys() == source.fitted.tensors().keys()
        for name, value in source.fitted.tensors().items():
            assert torch.equal(held[name].cpu(), value.cpu()), name
