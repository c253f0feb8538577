"""Repairs of nonlinear heads, of graph classifiers and of several labels per node."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, SAGEConv, global_add_pool, global_mean_pool

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.datasets import planted_labels
from gnn_repair.errors import InputError
from gnn_repair.f1 import f1_of, micro_scores
from gnn_repair.repair import CorrectAndSmooth, Reweighting, TemperatureScaling
from gnn_repair.repair.base import fitted_of
from gnn_repair.repair.inputs import RepairInputs, alone_logits
from gnn_repair.repair.targets import label_likelihood
from tests.helpers.repair.contract_exposures import world
from tests.helpers.repair.literal import random_parameters
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph


def test_gradients_go_through_a_nonlinear_head() -> None:
    inputs, method = RepairInputs(world("head").exposure), Reweighting(hidden=4)
    p = random_parameters(method, inputs)
    targets = inputs.everyone[:, ::7].contiguous()

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        q = {**p, "scorer.2.weight": weight, "encoder.0.bias": bias}
        logits = method.corrected(q, inputs, method.tables(q, inputs), targets, None)
        return logits.log_softmax(2)[..., 0].sum()

    leaves = [p[name].clone().requires_grad_() for name in ("scorer.2.weight", "encoder.0.bias")]
    assert torch.autograd.gradcheck(loss, leaves, fast_mode=True, eps=1e-7, atol=1e-5)


# Repairs of models that classify graphs: the recipients are graphs, the messages their nodes.

QUICK = Budget(60, None, learning_rate=1e-2, weight_decay=0.0, epoch_zero=True)


class Net(nn.Module):
    """Node vectors are the features, so that what a repair may learn is known."""

    def __init__(self, nonlinear: bool) -> None:
        super().__init__()
        self.conv = GCNConv(6, 6, add_self_loops=True)
        wide = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
        self.head = wide if nonlinear else nn.Linear(12, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.conv(x, edge_index)
        return self.head(torch.cat([global_mean_pool(x, batch), global_add_pool(x, batch)], 1))


def graphs(count: int, seed: int = 0) -> list[Data]:
    """One node a graph shouts its class in the last three features; a decoy shouts another."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        size, label = 4 + number % 4, number % 3
        x = 0.1 * torch.randn(size, 6, generator=generator)
        x[0, label] = 1.0
        x[1, 3 + (label + 1) % 3] = 2.0
        line = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        made.append(Data(x=x, edge_index=line, y=torch.tensor([label])))
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["linear", "tailed"])
def classifier(request) -> tuple:
    data = graphs(90)
    y = torch.cat([graph.y for graph in data])
    torch.manual_seed(1)
    model = Net(request.param).eval()
    train, val = torch.arange(90) < 45, (torch.arange(90) >= 45) & (torch.arange(90) < 60)
    return model, data, gr.expose(model, data), y, train, val


def test_a_node_alone(classifier) -> None:
    """What describes a node: the logits of its graph if every pool heard it alone."""
    model, data, exposure, *_ = classifier
    batch = Batch.from_data_list(data)
    with torch.no_grad():
        x = model.conv(batch.x, batch.edge_index)
        size = torch.bincount(batch.batch)[batch.batch].unsqueeze(1)
        told = model.head(torch.cat([x, size * x], 1)).double()
        mean, total = global_mean_pool(x, batch.batch), global_add_pool(x, batch.batch)
        by_mean = model.head(torch.cat([x, total[batch.batch]], 1)).double()
        by_sum = model.head(torch.cat([mean[batch.batch], size * x], 1)).double()
    node = exposure.sources[exposure.rows.long()].long()
    alone = alone_logits(exposure, node, batch.num_nodes)[0]
    torch.testing.assert_close(alone, told, rtol=1e-4, atol=1e-4)
    # Where each pool's message counts as a sender of its own, the other pool stays as it is.
    slot = torch.repeat_interleave(exposure.segments.diff())
    apart = alone_logits(exposure, torch.arange(len(node)), len(node) + 1)[0]
    for group, said in enumerate((by_mean, by_sum)):
        own = slot % 2 == group
        torch.testing.assert_close(apart[:-1][own], said[node[own]], rtol=1e-4, atol=1e-4)
    assert bool((apart[-1] == 0).all())
    # A node in two pools is one message, described by what both would say of it.
    described = RepairInputs(exposure).messages.rows[0][:, -3:].double()
    torch.testing.assert_close(described, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "repair",
    [
        gr.Reweighting(QUICK, 0.0, hidden=16),
        gr.SetTranslation(QUICK, 0.0, hidden=16),
        gr.NodeTranslation(QUICK, 0.0, hidden=16),
        gr.RefitHead(replace(QUICK, learning_rate=5e-2)),
    ],
)
def test_repairs_learn_what_the_graphs_show(classifier, repair) -> None:
    _, _, exposure, y, train, val = classifier
    fitted, test = repair.fit(exposure, y, train, val), ~(train | val)
    before, after = (
        float((said == y)[test].float().mean())
        for said in (exposure.frozen_logits[0].argmax(1), fitted.predict(exposure))
    )
    assert after > before + 0.2
    part, whole = exposure.restrict(torch.tensor([70, 3])), fitted.member_logits(exposure)
    torch.testing.assert_close(fitted.member_logits(part), whole[:, [70, 3]], rtol=1e-4, atol=1e-4)
    if hasattr(fitted, "coefficients"):
        masses = exposure.masses(fitted.coefficients(exposure))
        torch.testing.assert_close(masses, exposure.mass, rtol=1e-9, atol=0)


def test_a_repaired_module_takes_batches(classifier, tmp_path) -> None:
    model, _, exposure, y, train, val = classifier
    fitted = gr.Reweighting(budget=QUICK, hidden=8).fit(exposure, y, train, val)
    module = gr.repaired(model, fitted)
    other = graphs(20, seed=5)
    wanted = fitted.member_logits(gr.expose(model, other))[0].float()
    batch = Batch.from_data_list(other)
    for _ in range(2):  # the first call probes, the second takes the model apart as known
        found = module(batch.x, batch.edge_index, batch.batch)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    fewer = Batch.from_data_list(other[:7])
    found = module(fewer.x, fewer.edge_index, fewer.batch)
    torch.testing.assert_close(found, wanted[:7], rtol=1e-4, atol=1e-4)
    changed = module.changes(batch.x, batch.edge_index, batch.batch)
    told = gr.expose(model, other).frozen_logits[0].argmax(1)
    assert changed["graph"].tolist() == (told != wanted.argmax(1)).nonzero().view(-1).tolist()
    module.save(tmp_path / "repaired")
    again = gr.RepairedModel.load(tmp_path / "repaired", Net(not isinstance(model.head, nn.Linear)))
    found = again(fewer.x, fewer.edge_index, fewer.batch)
    torch.testing.assert_close(found, wanted[:7], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("repair", [CorrectAndSmooth(), gr.EvidenceLadder()])
def test_what_needs_links_between_recipients_says_so(classifier, repair) -> None:
    with pytest.raises(InputError, match="graphs"):
        repair.fit(*classifier[2:])


# Repairs of several labels a node: their loss, what is selected, what is kept.

BUDGET = Budget(epochs=60, patience=None, learning_rate=1e-2, weight_decay=0.0)
FEW = Budget(epochs=3, patience=None, learning_rate=1e-2, weight_decay=0.0)
REPAIRS = [gr.Reweighting, gr.SetTranslation, gr.NodeTranslation, gr.RefitHead]


class Ear(nn.Module):
    """Listens to its neighbours evenly, then reads every label off with a linear head."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.conv = SAGEConv(labels, labels, root_weight=False, bias=False)
        self.head = nn.Linear(labels, labels)
        for weight in (self.conv.lin_l.weight, self.head.weight):
            nn.init.eye_(weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x, edge_index):
        return self.head(self.conv(x, edge_index))


@pytest.fixture(scope="module")
def data():
    return planted_labels(nodes=240, labels=4)


@pytest.fixture(scope="module")
def exposure(data):
    return gr.expose(Ear(4), data)


def train(repair, data, exposure, y=None, **options):
    labels = data.y if y is None else y
    return repair.fit(exposure, labels, data.train_mask, data.val_mask, device="cpu", **options)


def micro(logits: Tensor, y: Tensor, chosen: Tensor) -> float:
    return f1_of(logits[chosen] > 0, y[chosen]).micro


def test_reweighting_recovers_what_was_planted_and_stays_within_reach(data, exposure):
    reach = gr.solve(exposure, torch.ones(240, 4)).reachable.reshape(240, 4)
    assert (reach == data.evidence.numpy()).all() and (data.y & ~data.evidence).any()
    fitted = train(gr.Reweighting(budget=BUDGET), data, exposure)
    logits = exposure.frozen_logits[0], fitted.member_logits(exposure)[0]
    before, after = (micro(z, data.y, data.test_mask) for z in logits)
    assert before < 0.35 and after > before + 0.3
    right = fitted.predict(exposure) == data.y
    reach = gr.solve(exposure, data.y).reachable.reshape(240, 4)
    assert not (right.numpy() & ~reach).any()


def test_the_loss_is_binary_cross_entropy_over_known_labels():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 3, generator=draw)
    truths = (torch.rand(2, 5, 3, generator=draw) > 0.5).double()
    truths[0, 0, 1] = truths[1, 2] = float("nan")  # one unknown, and all of a node
    for own, true, told in zip(
        logits.flatten(0, 1),
        truths.flatten(0, 1),
        label_likelihood(logits, truths).view(-1),
        strict=True,
    ):
        known = ~true.isnan()
        loss = binary_cross_entropy_with_logits(own[known], true[known].float())
        assert float(-told) == pytest.approx(float(loss) if known.any() else 0.0, abs=1e-6)


def test_f1_is_counted_over_known_pairs_one_by_one():
    """Also of each member's real targets, by which epochs are selected."""
    draw = torch.Generator().manual_seed(0)
    predicted = torch.rand(2, 40, 4, generator=draw) < 0.5
    truths = (torch.rand(2, 40, 4, generator=draw) < 0.5).double()
    truths[torch.rand(2, 40, 4, generator=draw) < 0.4] = torch.nan
    predicted[..., 3] = False
    truths[..., 3] *= 0  # neither there nor predicted
    real = torch.arange(40) < torch.tensor([[40], [17]])

    def share(said: Tensor, true: Tensor) -> float:
        pairs = [(p, t) for p, t in zip(said.tolist(), true.tolist(), strict=True) if t == t]
        hits, wrong = sum(p and t == 1 for p, t in pairs), sum(p != (t == 1) for p, t in pairs)
        return 2 * hits / (2 * hits + wrong) if hits + wrong else 1.0

    scores = micro_scores(predicted, truths, real)
    for said, true, chosen, score in zip(predicted, truths, real, scores, strict=True):
        said, true = said[chosen], true[chosen]
        found = f1_of(said, true)
        assert found.micro == pytest.approx(share(said.flatten(), true.flatten()))
        assert found.macro == pytest.approx(
            sum(share(said[:, k], true[:, k]) for k in range(3)) / 3
        )
        assert float(score) == pytest.approx(found.micro)
    nothing = torch.zeros(1, 2, 2)
    everyone = torch.ones(1, 2, dtype=torch.bool)
    assert micro_scores(nothing.bool(), nothing, everyone).tolist() == [1.0]
    assert micro_scores(nothing == 0, nothing, everyone).tolist() == [0.0]


@pytest.mark.parametrize("kind", REPAIRS)
def test_every_repair_learns_keeps_and_serves(kind, data, exposure, tmp_path):
    fitted = train(kind(budget=FEW), data, exposure, batch_size=50)
    assert fitted.outputs == "labels" and "validation micro-F1" in repr(fitted)
    score = f1_of(fitted.predict(exposure)[data.val_mask], data.y[data.val_mask].double())
    assert fitted.f1[0] == pytest.approx((score.micro, score.macro), abs=1e-6)
    row = fitted.to_frame()[["micro_f1", "macro_f1"]].iloc[0]
    assert tuple(row) == fitted.f1[0]
    fitted.save(tmp_path / "repair")
    again = gr.FittedRepair.load(tmp_path / "repair")
    assert again.f1 == fitted.f1
    assert torch.equal(again.member_logits(exposure), fitted.member_logits(exposure))
    if hasattr(fitted, "shift"):  # labels stand for themselves: nothing is centred
        assert fitted.shift(exposure).sum(2).abs().max() > 1e-3
    module = gr.repaired(Ear(4), fitted)
    served = module(data.x, data.edge_index)
    assert torch.allclose(served.double(), fitted.member_logits(exposure)[0], atol=1e-5)
    moved = ((served > 0) != (exposure.frozen_logits[0] > 0)).nonzero()
    changes = module.changes(data.x, data.edge_index)
    assert changes[["node", "label"]].to_numpy().tolist() == moved.tolist()
    after = (served > 0)[moved[:, 0], moved[:, 1]].tolist()
    assert changes["after"].tolist() == after == (~changes["before"]).tolist()


def test_members_are_scored_on_their_own_known_validation_labels():
    exposure, graph = replace(toy_exposure("gcn"), outputs="labels"), toy_graph()
    y = (torch.arange(90).view(30, 3) * 5 % 7 < 3).double()
    y[::4, 1] = torch.nan
    val = graph.val_mask.clone()
    val[val[:, 1].nonzero()[2:, 0], 1] = False
    fitted = gr.SetTranslation(FEW).fit(exposure, y, graph.train_mask, val, device="cpu")
    said = fitted.predict(exposure)
    found = [f1_of(said[s, val[:, s]], y[val[:, s]]) for s in range(2)]
    for s, score in enumerate(found):
        assert fitted.f1[s] == pytest.approx((score.micro, score.macro), abs=1e-6)
    mean = 50 * sum(score.micro for score in found)
    assert found[0] != found[1] and f"micro-F1 {mean:.1f} %" in repr(fitted)
    unknown = replace(fitted, f1=((0.5, float("nan")), (float("nan"), 1.0)))
    assert str(fitted_of(unknown.header(), unknown.tensors()).f1) == str(unknown.f1)


def test_one_label_alone_can_be_repaired(data):
    class First(Ear):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index)[:, 0]

    y, exposure = data.y[:, 0], gr.expose(First(4), data, outputs="labels")
    fitted = train(gr.SetTranslation(budget=BUDGET), data, exposure, y)
    logits = exposure.frozen_logits[0], fitted.member_logits(exposure)[0]
    before, after = (micro(z, y[:, None], data.test_mask) for z in logits)
    assert after > before + 0.2


def test_a_model_of_probabilities_is_served_with_probabilities(data, exposure):
    class Squashed(Ear):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index).sigmoid()

    squashed, given = gr.expose(Squashed(4), data), (data.x, data.edge_index)
    assert torch.allclose(squashed.frozen_logits, exposure.frozen_logits, atol=1e-5)
    plain, fitted = (train(gr.RefitHead(budget=FEW), data, one) for one in (exposure, squashed))
    again = gr.repaired(Squashed(4), fitted)
    served, other = again(*given), gr.repaired(Ear(4), plain)(*given)
    assert torch.allclose(served, other.sigmoid(), atol=1e-4)
    assert torch.equal(again(*given), served)


def test_unknown_labels_are_not_learned_from(data, exposure):
    y = data.y.double()
    y[data.train_mask] = float("nan")
    with pytest.raises(InputError, match="train of member 0"):
        train(gr.SetTranslation(budget=FEW), data, exposure, y)
    y = data.y.double()
    y[data.val_mask] = float("nan")
    with pytest.raises(InputError, match="val of member 0"):
        train(gr.SetTranslation(budget=FEW), data, exposure, y)
    y = data.y.double()
    y[data.train_mask, 2] = float("nan")
    with pytest.warns(UserWarning, match="label 2"):
        train(gr.SetTranslation(budget=FEW), data, exposure, y)


def test_what_does_not_fit_is_refused_by_name(data, exposure):
    for repair in (gr.EvidenceLadder(), gr.CrossFitted(), TemperatureScaling()):
        with pytest.raises(InputError, match="labels"):
            train(repair, data, exposure)
    with pytest.raises(InputError, match="values"):
        train(gr.Reweighting(), data, replace(exposure, outputs="values"))
    with pytest.raises(InputError, match=r"\[240\] instead of \[240, 4\]"):
        train(gr.Reweighting(), data, exposure, data.y[:, 0])
    fitted = train(gr.SetTranslation(budget=FEW), data, exposure)
    with pytest.raises(InputError, match="outputs='labels'"):
        fitted.member_logits(replace(exposure, outputs="classes"))
