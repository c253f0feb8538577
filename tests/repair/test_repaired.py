"""A repaired model is the model with its repair: on every graph, after saving, with gradients."""

from __future__ import annotations

import copy
import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, HeteroConv, SAGEConv, SGConv

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.devices import seeded
from gnn_repair.errors import InputError
from gnn_repair.repair import TemperatureScaling
from gnn_repair.repair.model import in_place
from tests.helpers.repair.repaired_models import CLASSES, KINDS, TwoLayers, fitted_on, graph

# A repaired model is the model with its repair, on every graph and after every way of saving.


@pytest.fixture
def case(request):
    torch.manual_seed(0)
    model, data = KINDS[getattr(request, "param", "gcn")](), graph(0, 40)
    return model.eval(), data, fitted_on(model, data)


@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_it_is_the_repair_of_the_models_exposure_on_new_graphs(case):
    model, data, fitted = case
    repaired = gr.repaired(model, fitted)
    assert not fitted.unchanged.any()
    for other in (data, graph(1, 25), graph(2, 60)):
        expected = fitted.member_logits(gr.expose(model, other))[0]
        found = repaired(other.x, other.edge_index)
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), expected, atol=2e-5)
        assert (found - model(other.x, other.edge_index)).abs().max() > 1e-3


def test_later_graphs_are_not_certified(case, monkeypatch):
    model, data, fitted = case
    repaired = gr.repaired(model, fitted)
    repaired(data.x, data.edge_index)
    monkeypatch.setattr("gnn_repair.exposure.from_model.certify", None)
    other = graph(1, 25)
    assert repaired(other.x, other.edge_index).shape == (25, CLASSES)


@pytest.mark.parametrize("repair", [gr.Reweighting, gr.NodeTranslation, gr.RefitHead])
def test_other_repairs_work_too(case, repair):
    model, data, _ = case
    fitted = fitted_on(model, data, repair(budget=Budget(20, None, 0.05, 0.0)))
    other = graph(1, 25)
    expected = fitted.member_logits(gr.expose(model, other))[0]
    found = gr.repaired(model, fitted)(other.x, other.edge_index)
    assert torch.allclose(found.double(), expected, atol=2e-5)


def test_the_model_is_left_as_it_was(case):
    model, data, fitted = case
    model.train()
    before = copy.deepcopy(model.state_dict())
    repaired = gr.repaired(model, fitted)
    repaired(data.x, data.edge_index)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_changes_are_the_nodes_whose_class_changes(case):
    model, data, fitted = case
    repaired = gr.repaired(model, fitted)
    found = repaired.changes(data.x, data.edge_index)
    before = model(data.x, data.edge_index).argmax(1)
    after = repaired(data.x, data.edge_index).argmax(1)
    assert found["node"].tolist() == (before != after).nonzero().view(-1).tolist()
    assert found["after"].tolist() == after[found["node"].to_numpy()].tolist()
    assert len(found) > 0


def test_double_precision_gives_double_logits(case):
    model, data, fitted = case
    repaired = gr.repaired(model, fitted).double()
    found = repaired(data.x.double(), data.edge_index)
    assert found.dtype == torch.float64
    single = gr.repaired(model.float(), fitted)(data.x, data.edge_index)
    assert torch.allclose(found, single.double(), atol=1e-4)


def test_bad_input_is_one_sentence(case, tmp_path):
    model, data, fitted = case
    torch.manual_seed(7)
    with pytest.raises(InputError, match="other weights"):
        gr.repaired(KINDS["gcn"](), fitted)
    with pytest.raises(InputError, match="pass what a repair's fit gave"):
        gr.repaired(model, "nothing")
    with pytest.raises(InputError, match="cannot be called like that"):
        gr.repaired(model, fitted)(data.x)
    gr.repaired(model, fitted).save(tmp_path / "f")
    with pytest.raises(InputError, match="another model's weights"):
        gr.RepairedModel.load(tmp_path / "f", KINDS["sgc"]())


# Gradients of a repaired model's logits for what it is given, against finite differences.

BUDGET = Budget(15, None, 0.05, 0.0)
REPAIRS = {
    "set": gr.SetTranslation(BUDGET, hidden=5),
    "node": gr.NodeTranslation(BUDGET, hidden=5),
    "reweighting": gr.Reweighting(BUDGET, hidden=5),
    "head": gr.RefitHead(BUDGET),
    "temperature": TemperatureScaling(),
}
MODELS = ("gcn", "gat", "sage", "graphconv")


def planted(kind: str, repair: str) -> tuple[gr.RepairedModel, Data]:
    torch.manual_seed(0)
    model, data = KINDS[kind]().double().eval(), graph(0, 14)
    data.x = data.x.double()
    return gr.repaired(model, fitted_on(model, data, REPAIRS[repair])), data


@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_those_of_finite_differences(kind, repair):
    repaired, data = planted(kind, repair)
    x = data.x.clone().requires_grad_()
    for mode in (False, True):
        repaired.train(mode)
        assert torch.autograd.gradcheck(
            lambda x: repaired(x, data.edge_index), (x,), fast_mode=True, eps=1e-7, atol=1e-5
        )
    logits = repaired(x, data.edge_index)
    torch.testing.assert_close(logits, repaired(data.x, data.edge_index))
    frozen = repaired.model(x, data.edge_index)
    own, plain = (torch.autograd.grad(z.square().sum(), x)[0] for z in (logits, frozen))
    assert float((own - plain).abs().max()) > 1e-3  # the repair's own part is in it
    assert all(p.grad is None and p.requires_grad for p in repaired.model.parameters())


class Weighted(nn.Module):
    """A model that is given edge weights."""

    def __init__(self, last: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.last = GCNConv(6, 8), last or GCNConv(8, 3)

    def forward(self, x, edge_index, edge_weight):
        return self.last(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


def weighted(last: nn.Module | None = None) -> tuple[gr.RepairedModel, Data]:
    torch.manual_seed(1)
    data = graph(3, 12)
    data.x = data.x.double()
    # Of two self-loops of a node GCNConv takes one weight, and PyTorch gives both its gradient.
    data.edge_index = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    data.edge_weight = torch.rand(data.num_edges, dtype=torch.float64) + 0.5
    model = Weighted(last).double().eval()
    return gr.repaired(model, fitted_on(model, data, REPAIRS["reweighting"])), data


def test_edge_weights_have_gradients_through_the_coefficients():
    repaired, data = weighted()
    assert torch.autograd.gradcheck(
        lambda w: repaired(data.x, data.edge_index, w),
        (data.edge_weight.clone().requires_grad_(),),
        fast_mode=True, eps=1e-7, atol=1e-5,
    )  # fmt: skip


def test_a_model_that_takes_the_whole_data_and_sparse_features():
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
    repaired = gr.repaired(model, fitted_on(model, data, REPAIRS["set"]))

    def logits(x):
        return repaired(Data(x=x, edge_index=data.edge_index))

    # Off the zeros: there states have kinks.
    point = (x + 0.01 * torch.randn_like(x)).requires_grad_()
    assert torch.autograd.gradcheck(logits, (point,), fast_mode=True, eps=1e-7, atol=1e-5)
    assert torch.isfinite(torch.autograd.grad(logits(x.requires_grad_()).sum(), x)[0]).all()


def test_dead_states_and_messages_from_oneself_give_finite_gradients():
    torch.manual_seed(0)
    model = TwoLayers(GCNConv(6, 8), GATConv(8, 8)).double().eval()
    with torch.no_grad():
        model.first.bias.fill_(-0.8)  # many states are exactly zero
    data = graph(0, 16)
    data.x = data.x.double()
    repaired = gr.repaired(model, fitted_on(model, data, REPAIRS["set"]))
    state = gr.expose(model, data).state[0]
    assert bool((state == 0).all(1).any())
    x = data.x.clone().requires_grad_()
    repaired(x, data.edge_index).sum().backward()
    assert torch.isfinite(x.grad).all() and float(x.grad.abs().max()) > 0


def test_without_asking_there_is_no_gradient_and_no_cost():
    repaired, data = planted("gcn", "set")
    assert not repaired(data.x, data.edge_index).requires_grad
    with torch.no_grad():
        assert not repaired(data.x.clone().requires_grad_(), data.edge_index).requires_grad


def test_where_none_can_be_followed_it_says_so():
    torch.manual_seed(0)
    for kind in ("residual", "gin"):
        model, data = KINDS[kind]().eval(), graph(0, 20)
        repaired = gr.repaired(model, fitted_on(model, data, REPAIRS["node"]))
        with pytest.raises(InputError, match="no gradient can be followed through"):
            repaired(data.x.clone().requires_grad_(), data.edge_index)
        assert repaired(data.x, data.edge_index).shape == (20, 3)
    repaired, data = weighted(SGConv(8, 3, K=2))
    with pytest.raises(InputError, match="several hops"):
        repaired(data.x, data.edge_index, data.edge_weight.clone().requires_grad_())
    data = graph(0, 40)
    model = KINDS["gcn"]().eval()
    first = torch.arange(40) % 2 == 0
    ladder = gr.EvidenceLadder(rungs=("messages",), folds=2)
    fitted = ladder.fit(gr.expose(model, data), data.y, first, ~first)
    with pytest.raises(InputError, match="Evidence ladder, which is no differentiable"):
        gr.repaired(model, fitted)(data.x.clone().requires_grad_(), data.edge_index)


# A repaired model as others use it: threads, autocast, other people's files, other forms.

WIDTH = 5
SHORT = Budget(10, None, 0.05, 0.0)


class Network(nn.Module):
    def __init__(self, classes=3, form=None):
        super().__init__()
        self.first, self.last = GCNConv(WIDTH, 8), GCNConv(8, classes)
        self.form = form or (lambda z: z)

    def forward(self, x, edge_index):
        return self.form(self.last(self.first(x, edge_index).relu(), edge_index))


def graph_served(seed, nodes, classes=3):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(nodes, (2, 3 * nodes), generator=generator)
    y = torch.randint(classes, (nodes,), generator=generator)
    return Data(x=torch.randn(nodes, WIDTH, generator=generator), edge_index=edges, y=y)


def repaired_on(model, data, repair=None):
    half = torch.arange(data.num_nodes) % 2 == 0
    repair = repair or gr.SetTranslation(budget=SHORT, hidden=8)
    fitted = repair.fit(gr.expose(model, data), data.y, half, ~half)
    return gr.repaired(model, fitted), fitted


@pytest.fixture
def served():
    torch.manual_seed(0)
    model, data = Network().eval(), graph_served(0, 40)
    return *repaired_on(model, data), model, data


def test_threads_take_turns(served):
    repaired, _, model, _ = served
    shown = [graph_served(seed, 20 + seed) for seed in range(4)]
    expected = [repaired(one.x, one.edge_index) for one in shown]
    wrong = []

    def work(first):
        try:
            for number in range(first, first + 8):
                one = shown[number % 4]
                found = repaired(one.x, one.edge_index)
                torch.testing.assert_close(found, expected[number % 4], atol=1e-5, rtol=1e-5)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(parameter.requires_grad for parameter in model.parameters())


def beside(work):
    """Start work in a thread of its own and give it time; the thread and what it returned."""
    told = []
    thread = threading.Thread(target=lambda: told.append(work()))
    thread.start()
    thread.join(0.3)
    return thread, told


def test_another_threads_seed_and_tables_change_nothing_here():
    drawn = threading.Event()

    def draw():
        with seeded(1):
            drawn.wait(10)

    with seeded(0):
        alone = torch.rand(2)
    before = torch.get_rng_state()
    with seeded(0):
        first = torch.rand(1)
        thread, _ = beside(draw)
        assert torch.equal(torch.cat([first, torch.rand(1)]), alone)
    drawn.set()
    thread.join()
    assert torch.equal(torch.get_rng_state(), before)


def test_autocast_does_not_reach_inside(served):
    repaired, fitted, model, data = served
    expected = repaired(data.x, data.edge_index)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(repaired(data.x, data.edge_index), expected)
        exposure = gr.expose(model, data)
        assert torch.equal(
            fitted.member_logits(exposure), fitted.member_logits(gr.expose(model, data))
        )
        again = repaired_on(model, data)[1]
    assert torch.equal(again.best_epoch, fitted.best_epoch)
    torch.testing.assert_close(fitted.member_logits(exposure)[0].float(), expected)


def test_a_file_of_another_model_leaves_the_model_as_it_was(served, tmp_path):
    repaired = served[0]
    repaired.save(tmp_path / "f")

    class Wider(Network):
        def __init__(self):
            super().__init__()
            self.extra = nn.Linear(2, 2)

    for other in (Wider(), Network(classes=4)):
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(InputError, match=r"holds another model's weights: `.*`"):
            gr.RepairedModel.load(tmp_path / "f", other)
        assert all(torch.equal(before[k], value) for k, value in other.state_dict().items())
    with pytest.raises(InputError, match="model is a type"):
        gr.RepairedModel.load(tmp_path / "f", Network)
    with pytest.raises(InputError, match="another class than Sub"):
        gr.RepairedModel.load(tmp_path / "f", type("Sub", (Network,), {})())


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
        other = repaired_on(copy.deepcopy(model), graph_served(3, 40))[0]
        assert not torch.equal(other(data.x, data.edge_index), expected)
        other.load_state_dict(given)
        assert torch.equal(other(data.x, data.edge_index), expected)
        nn.ModuleList([other]).load_state_dict({f"0.{name}": v for name, v in given.items()})
    assert "repair_0" in old


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
    model, data = Propagation(layout).eval(), graph_served(0, 20)
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


def test_a_state_that_no_file_can_hold_is_refused(served, tmp_path):
    repaired = served[0]
    type(repaired.model).get_extra_state = lambda self: {"a": 1}
    try:
        with pytest.raises(InputError, match=r"Network keeps `_extra_state`, a dict"):
            repaired.save(tmp_path / "f")
    finally:
        del type(repaired.model).get_extra_state


@pytest.mark.parametrize(
    "state",
    ["rubbish", {}, {"fingerprint": "abc"}, {"fingerprint": [1]}, torch.ones(3), torch.arange(300)],
)
def test_a_state_without_its_note_is_refused(served, state):
    repaired = served[0]
    whole = repaired.state_dict() | {"_extra_state": state}
    with pytest.raises(InputError, match="load what state_dict"):
        repaired.load_state_dict(whole)


def test_what_the_model_raises_names_the_model(served):
    repaired, _, _, data = served
    with pytest.raises(InputError, match=r"Network, called as here, raised .*itself takes$"):
        repaired("x", data.edge_index)
    with pytest.raises(InputError, match=r"so does data.x; mend the data"):
        repaired(torch.full_like(data.x, torch.nan), data.edge_index)


FORMS = {"[N]": lambda z: z.squeeze(-1), "[N, 1]": lambda z: z}


@pytest.mark.parametrize("form", FORMS)
def test_one_logit_a_node_stays_one(form):
    torch.manual_seed(0)
    model, data = Network(1, FORMS[form]).eval(), graph_served(0, 40, classes=2)
    repaired, fitted = repaired_on(model, data)
    told, found = model(data.x, data.edge_index), repaired(data.x, data.edge_index)
    assert found.shape == told.shape
    both = fitted.member_logits(gr.expose(model, data))[0]
    torch.testing.assert_close(found.view(-1).double(), both[:, 1] - both[:, 0], atol=1e-5, rtol=0)
    changed = repaired.changes(data.x, data.edge_index)["node"].tolist()
    assert changed == ((found > 0) != (told > 0)).view(-1).nonzero().view(-1).tolist() != []


def test_log_probabilities_stay_log_probabilities():
    torch.manual_seed(0)
    model, data = Network(form=lambda z: z.log_softmax(1)).eval(), graph_served(0, 40)
    repaired, fitted = repaired_on(model, data)
    found = repaired(data.x, data.edge_index)
    expected = fitted.member_logits(gr.expose(model, data))[0].log_softmax(1)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


def typed_graph():
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.randn(20, WIDTH, generator=generator).double()
    data["author"].x = torch.randn(15, WIDTH, generator=generator).double()
    for source, name, target in (("author", "writes", "paper"), ("paper", "cites", "paper")):
        ends = (torch.randint(len(data[k].x), (50,), generator=generator) for k in (source, target))
        data[source, name, target].edge_index = torch.stack(list(ends))
    data["paper"].y = torch.arange(20) % 3
    return data


def test_gradients_of_features_by_node_type_are_followed():
    class Typed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = HeteroConv(
                {kind: SAGEConv((WIDTH, WIDTH), 3) for kind in typed_graph().edge_types}
            )

        def forward(self, x_dict, edge_index_dict):
            return self.conv(x_dict, edge_index_dict)["paper"]

    torch.manual_seed(0)
    data, model = typed_graph(), Typed().double().eval()
    half = torch.arange(20) % 2 == 0
    repair = gr.NodeTranslation(budget=SHORT, hidden=8)
    fitted = repair.fit(gr.expose(model, data), data["paper"].y, half, ~half)
    repaired = gr.repaired(model, fitted)

    def run(author):
        return repaired({**data.x_dict, "author": author}, data.edge_index_dict)

    author = data["author"].x.clone().requires_grad_()
    assert run(author).requires_grad
    assert torch.autograd.gradcheck(run, author, fast_mode=True)


class ByType(nn.Module):
    """Logits of both node types, as a dict."""

    def __init__(self):
        super().__init__()
        kinds = [*typed_graph().edge_types, ("paper", "by", "author")]
        self.conv = HeteroConv({kind: SAGEConv((WIDTH, WIDTH), 3) for kind in kinds})

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)


def test_a_dict_by_node_type_stays_one():
    torch.manual_seed(0)
    data = typed_graph()
    data["paper", "by", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)
    model, half = ByType().double().eval(), torch.arange(20) % 2 == 0
    exposure = gr.expose(model, data, node_type="paper")
    fitted = gr.NodeTranslation(budget=SHORT, hidden=8).fit(exposure, data["paper"].y, half, ~half)
    found = gr.repaired(model, fitted)(data.x_dict, data.edge_index_dict)
    assert fitted.node_type == "paper" and set(found) == {"paper", "author"}
    torch.testing.assert_close(found["paper"], fitted.logits(exposure))
    expected = model(data.x_dict, data.edge_index_dict)["author"]
    torch.testing.assert_close(found["author"], expected)


def test_a_tuple_stays_one_and_forward_is_called_with_the_graph(served, tmp_path):
    _, _, _, data = served
    torch.manual_seed(0)
    model = Network(form=lambda z: (z, z.sum())).eval()
    repaired, fitted = repaired_on(model, data)
    logits, total = repaired(data.x, data.edge_index)
    torch.testing.assert_close(logits.double(), fitted.logits(gr.expose(model, data)))
    assert torch.equal(total, model(data.x, data.edge_index)[1])

    def forward(model, data):
        return model(data.x, data.edge_index)[0]

    half = torch.arange(data.num_nodes) % 2 == 0
    exposure = gr.expose(model, data, forward=forward)
    fitted = gr.NodeTranslation(budget=SHORT, hidden=8).fit(exposure, data.y, half, ~half)
    found = gr.repaired(model, fitted, forward=forward)(data)
    remembered = gr.repaired(model, fitted)
    torch.testing.assert_close(remembered(data), found)
    remembered.save(tmp_path / "repaired.safetensors")
    loaded = gr.RepairedModel.load(tmp_path / "repaired.safetensors", copy.deepcopy(model))
    with pytest.raises(InputError, match="made with forward=, which no file holds; pass forward="):
        loaded(data)
    loaded = gr.RepairedModel.load(
        tmp_path / "repaired.safetensors", copy.deepcopy(model), forward=forward
    )
    torch.testing.assert_close(loaded(data), found)
    with pytest.raises(InputError, match="made with forward="):
        gr.repaired(model, copy.deepcopy(fitted))(data)
    torch.testing.assert_close(found.double(), fitted.logits(exposure))


@pytest.mark.parametrize("bound", [True, False])
def test_a_loaded_state_brings_its_binding(served, bound):
    _, fitted, model, data = served
    source = gr.repaired(model, fitted if bound else fitted.unbound())
    torch.manual_seed(9)
    other = Network().eval()
    shell = repaired_on(other, graph_served(3, 30))[0]
    shell.load_state_dict(source.state_dict())
    assert shell.fitted.fingerprint == (fitted.fingerprint if bound else None)
    assert torch.equal(shell(data.x, data.edge_index), source(data.x, data.edge_index))


def test_whole_graphs_are_taken_with_what_in_them_asks_for_gradients():
    class TakesData(Network):
        def forward(self, data):
            return super().forward(data.x, data.edge_index)

    torch.manual_seed(0)
    model, data = TakesData().eval(), graph_served(0, 40)
    repaired, fitted = repaired_on(model, data)
    found = repaired(data)
    assert not found.requires_grad
    expected = fitted.member_logits(gr.expose(model, data))[0]
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)
    data.x.requires_grad_()
    (gradient,) = torch.autograd.grad(repaired(data).sum(), data.x)
    assert float(gradient.abs().max()) > 0


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
    double = repaired(data.x.double(), data.edge_index)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), told, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", [tuple, list])
@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_logits_by_type_are_put_in_their_own_place_among_several_outputs(form, order):
    """Embeddings by type and a loss beside them, in every order."""
    exposure = SimpleNamespace(names=SimpleNamespace(recipient="a"), num_classes=3)
    parts = [
        {"a": torch.zeros(4, 5), "b": torch.ones(2, 5)},
        {"a": torch.zeros(4, 3), "b": torch.ones(2, 3)},
        torch.tensor(1.0),
    ]
    logits = torch.full((4, 3), 7.0)
    found = in_place(form(parts[i] for i in order), logits, exposure)
    assert type(found) is form
    for i, part in zip(order, found, strict=True):
        if i == 1:
            assert part["a"] is logits and part["b"] is parts[1]["b"]
        else:
            assert part is parts[i]


def test_a_loaded_state_is_what_everything_about_the_module_speaks_of(tmp_path):
    """Calls, changes, files and copies: of the numbers it holds now, not of those it began with."""
    torch.manual_seed(0)
    model, data = KINDS["gat"]().eval(), graph(1, 40)
    fitted = fitted_on(model, data)
    given = data.x, data.edge_index
    moved = {n: value.flip(-1) * 2 for n, value in fitted.parameters.items()}
    source = gr.repaired(model, replace(fitted, parameters=moved, best_epoch=fitted.best_epoch + 1))
    shell = gr.repaired(model, fitted)
    before = shell(*given)
    shell.load_state_dict(source.state_dict())
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
            assert torch.equal(held[name], value), name
