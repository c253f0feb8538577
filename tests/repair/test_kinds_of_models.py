"""Repairs of nonlinear heads, of graph classifiers and of several labels per node."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, SAGEConv, global_add_pool, global_mean_pool

import gnn_repair as gr
from gnn_repair.datasets import planted_labels
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.f1 import f1_of, micro_scores
from gnn_repair.repair import (
    CorrectAndSmooth,
    EvidenceLadder,
    FittedRepair,
    Reweighting,
    TemperatureScaling,
)
from gnn_repair.repair.inputs import RepairInputs, alone_logits
from gnn_repair.repair.targets import label_likelihood
from gnn_repair.training import Budget

# Repairs of models whose last aggregation is followed by a nonlinear head.

NODES = 120


class Headed(nn.Module):
    """Heads side by side, a skip connection, LayerNorm, ReLU, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(5, 8), pyg.GATConv(8, 4, heads=2, bias=False)
        self.skip, self.norm, self.lin = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.lin(self.norm(self.conv2(x, edge_index) + self.skip(x)).relu())


def world(
    dtype: torch.dtype = torch.float64, nodes: int = NODES
) -> tuple[nn.Module, Data, Exposure]:
    torch.manual_seed(4)
    edges = torch.randint(nodes, (2, 5 * nodes))
    data = Data(x=2 * torch.randn(nodes, 5, dtype=dtype), edge_index=edges)
    model = Headed().to(dtype).eval()
    with torch.no_grad():  # so that every class is said somewhere
        model.lin.bias -= model(data.x, data.edge_index).mean(0)
    exposure = expose(model, data)
    assert exposure.head is not None
    return model, data, exposure


def masks(nodes: int = NODES) -> tuple[Tensor, Tensor]:
    place = torch.arange(nodes) % 4
    return place < 2, place == 2


def labels(exposure: Exposure) -> Tensor:
    """What the model would say if it listened to messages by their first channel."""
    pull = 3 * exposure.messages[0, exposure.message_rows[exposure.rows].long(), 0].sign()
    tilted = exposure.coefficients.double() * pull.double().exp()
    share = exposure.mass / exposure.masses(tilted)
    lam = tilted * torch.repeat_interleave(share.flatten(1), exposure.segments.diff(), dim=1)
    return exposure.logits(lam)[0].argmax(1)


def short(method, epochs: int = 3, zero: bool = False):  # type: ignore[no-untyped-def]
    return replace(
        method, budget=replace(method.budget, epochs=epochs, learning_rate=0.02, epoch_zero=zero)
    )


@pytest.mark.parametrize("given", [True, False])
def test_the_ladder_is_climbed_before_a_head(given, tmp_path) -> None:
    _, data, exposure = world()
    y = labels(exposure)
    ladder = short(EvidenceLadder(hidden=8, folds=2))
    fitted = ladder.fit(exposure, y, *masks(), data=data if given else None, device="cpu")
    assert len(fitted.candidates) == (10 if given else 5)
    logits = fitted.member_logits(exposure)
    fitted.save(tmp_path / "ladder")
    torch.testing.assert_close(
        FittedRepair.load(tmp_path / "ladder").member_logits(exposure), logits
    )


def test_reweighting_is_what_the_model_does_with_these_coefficients() -> None:
    model, data, exposure = world()
    y = labels(exposure)
    fitted = short(Reweighting(hidden=8), epochs=8).fit(exposure, y, *masks(), device="cpu")
    lam = fitted.coefficients(exposure)
    torch.testing.assert_close(exposure.masses(lam), exposure.mass, rtol=1e-12, atol=0)
    assert float((lam - exposure.coefficients).abs().max()) > 1e-3
    # As in training: the mixture formed by the kernels, then the head.
    inputs, method = RepairInputs(exposure), fitted.repair
    p = {name: value.double() for name, value in fitted.parameters.items()}
    trained = method.corrected(p, inputs, method.tables(p, inputs), inputs.everyone, None)
    torch.testing.assert_close(trained, fitted.member_logits(exposure), rtol=1e-9, atol=1e-9)
    # And by hand: attention replaced by λ in the convolution itself.
    torch.testing.assert_close(
        fitted.member_logits(exposure)[0], by_hand(model, data, exposure, lam)
    )


def by_hand(model: nn.Module, data: Data, exposure: Exposure, lam: Tensor) -> Tensor:
    with torch.no_grad():
        x = model.conv1(data.x, data.edge_index).relu()
        heads = model.conv2.lin(x).view(NODES, 2, 4)
        mixed = torch.zeros_like(heads)
        for place in range(2 * NODES):
            for term in range(int(exposure.segments[place]), int(exposure.segments[place + 1])):
                source = int(exposure.sources[exposure.rows[term]])
                mixed[place // 2, place % 2] += lam[0, term] * heads[source, place % 2]
        return model.lin(model.norm(mixed.flatten(1) + model.skip(x)).relu())


def test_gradients_go_through_the_head() -> None:
    _, _, exposure = world()
    inputs, method = RepairInputs(exposure), Reweighting(hidden=4)
    generator = torch.Generator().manual_seed(0)
    p = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in method.initial(inputs).items()
    }
    targets = inputs.everyone[:, ::7].contiguous()

    def loss(weight: Tensor) -> Tensor:
        q = {**p, "scorer.2.weight": weight}
        logits = method.corrected(q, inputs, method.tables(q, inputs), targets, None)
        return logits.log_softmax(2)[..., 0].sum()

    weight = p["scorer.2.weight"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(weight), weight)
    for place in range(4):
        step = torch.zeros_like(weight)
        step[0, place] = 1e-6
        numeric = ((loss(weight + step) - loss(weight - step)) / 2e-6).detach()
        assert float(slope[0, place, 0]) == pytest.approx(float(numeric), rel=1e-5, abs=1e-7)


def test_reweighting_finds_a_planted_preference() -> None:
    _, _, exposure = world(torch.float32, 400)
    y, (train, val) = labels(exposure), masks(400)
    test = ~train & ~val
    frozen = (exposure.frozen_logits[0].argmax(1) == y)[test].double().mean()
    budget = Budget(epochs=120, patience=None, learning_rate=0.02, weight_decay=0.0)
    fitted = Reweighting(budget=budget, hidden=16).fit(exposure, y, train, val, device="cpu")
    right = (fitted.predict(exposure) == y)[test].double().mean()
    assert float(frozen) < 0.85 and float(right) > float(frozen) + 0.08


# Repairs of models that classify graphs: the recipients are graphs, the messages their nodes.

QUICK = Budget(epochs=60, patience=None, learning_rate=1e-2, weight_decay=0.0, epoch_zero=True)


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
def world_graph_classifiers(request: pytest.FixtureRequest) -> Any:
    data = graphs(90)
    y = torch.cat([graph.y for graph in data])
    torch.manual_seed(1)
    model = Net(request.param).eval()
    train, val = torch.arange(90) < 45, (torch.arange(90) >= 45) & (torch.arange(90) < 60)
    return model, data, gr.expose(model, data), y, train, val


def test_a_node_alone(world_graph_classifiers: Any) -> None:
    """What describes a node: the logits of its graph if every pool heard it alone."""
    model, data, exposure, *_ = world_graph_classifiers
    batch = Batch.from_data_list(data)
    with torch.no_grad():
        x = model.conv(batch.x, batch.edge_index)
        size = torch.bincount(batch.batch)[batch.batch].unsqueeze(1)
        told = model.head(torch.cat([x, size * x], 1)).double()
        mean, total = global_mean_pool(x, batch.batch), global_add_pool(x, batch.batch)
        by_mean = model.head(torch.cat([x, total[batch.batch]], 1)).double()
        by_sum = model.head(torch.cat([mean[batch.batch], size * x], 1)).double()
    alone = alone_logits(exposure, exposure.sources, batch.num_nodes)[0]
    torch.testing.assert_close(alone, told, rtol=1e-4, atol=1e-4)
    # Where each pool's message counts as a sender of its own, the other pool stays as it is.
    slot = torch.repeat_interleave(exposure.segments.diff())
    row, node = exposure.rows.long(), exposure.sources[exposure.rows.long()].long()
    rows = exposure.contributions.shape[1] if exposure.head is None else len(row)
    apart = alone_logits(exposure, torch.arange(rows), rows + 1)[0]
    for group, said in enumerate((by_mean, by_sum)):
        own = slot % 2 == group
        torch.testing.assert_close(apart[row[own]], said[node[own]], rtol=1e-4, atol=1e-4)
    assert bool((apart[-1] == 0).all())


def test_a_node_in_two_pools_is_one_message(world_graph_classifiers: Any) -> None:
    """It is described once, by what both pools would say of it, whichever comes first."""
    _, _, exposure, *_ = world_graph_classifiers
    described = RepairInputs(exposure).messages.rows[0][:, -3:].double()
    alone = alone_logits(exposure, exposure.sources, int(exposure.graph_starts[-1]))[0]
    assert len(described) == len(alone)
    torch.testing.assert_close(described, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [gr.Reweighting, gr.SetTranslation, gr.NodeTranslation])
def test_repairs_learn_what_the_graphs_show(world_graph_classifiers: Any, kind: Any) -> None:
    _, _, exposure, y, train, val = world_graph_classifiers
    repair = kind(budget=QUICK, hidden=16, dropout=0.0)
    fitted = repair.fit(exposure, y, train, val)
    test = ~(train | val)
    before = (exposure.frozen_logits[0].argmax(1) == y)[test].float().mean()
    after = (fitted.predict(exposure) == y)[test].float().mean()
    assert after > before + 0.2
    if kind is gr.Reweighting:
        weights = fitted.coefficients(exposure)
        torch.testing.assert_close(exposure.masses(weights), exposure.mass, rtol=1e-9, atol=0)


def test_a_repaired_module_takes_batches(world_graph_classifiers: Any, tmp_path: Path) -> None:
    model, _, exposure, y, train, val = world_graph_classifiers
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


def test_refitted_heads_and_temperatures(world_graph_classifiers: Any) -> None:
    _, _, exposure, y, train, val = world_graph_classifiers
    budget = Budget(epochs=200, patience=None, learning_rate=5e-2, weight_decay=0.0)
    fitted = gr.RefitHead(budget=budget).fit(exposure, y, train, val)
    right = (fitted.predict(exposure) == y)[~(train | val)].float().mean()
    assert right > 0.8  # the head's input says the class linearly
    TemperatureScaling().fit(exposure, y, train, val)


@pytest.mark.parametrize("repair", [CorrectAndSmooth(), gr.EvidenceLadder()])
def test_what_needs_links_between_recipients_says_so(
    world_graph_classifiers: Any, repair: Any
) -> None:
    _, _, exposure, y, train, val = world_graph_classifiers
    with pytest.raises(InputError, match="this exposure classifies graphs, which have none"):
        repair.fit(exposure, y, train, val)


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


def test_the_planted_evidence_is_what_is_within_reach(data, exposure):
    solution = gr.solve(exposure, torch.ones(240, 4))
    assert (solution.reachable.reshape(240, 4) == data.evidence.numpy()).all()
    lost = data.y & ~data.evidence
    assert lost.any()
    assert not solution.reachable.reshape(240, 4)[lost.numpy()].any()


def test_reweighting_recovers_what_was_planted_and_stays_within_reach(data, exposure):
    fitted = gr.Reweighting(budget=BUDGET).fit(
        exposure, data.y, data.train_mask, data.val_mask, device="cpu"
    )
    logits = exposure.frozen_logits, fitted.member_logits(exposure)
    before, after = (f1_of(z[0, data.test_mask] > 0, data.y[data.test_mask]).micro for z in logits)
    assert before < 0.35
    assert after > before + 0.3
    reach = gr.solve(exposure, data.y)
    right = fitted.predict(exposure).numpy() == data.y.numpy()
    assert not (right & ~reach.reachable.reshape(240, 4)).any()


def test_the_loss_is_binary_cross_entropy_over_known_labels():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 3, generator=draw)
    truths = (torch.rand(2, 5, 3, generator=draw) > 0.5).double()
    told = nn.functional.binary_cross_entropy_with_logits(
        logits, truths.float(), reduction="none"
    ).mean(2)
    assert torch.allclose(-label_likelihood(logits, truths), told, atol=1e-6)
    truths[0, 0, 1] = float("nan")
    own = nn.functional.binary_cross_entropy_with_logits(
        logits[0, 0, [0, 2]], truths[0, 0, [0, 2]].float()
    )
    assert float(-label_likelihood(logits, truths)[0, 0]) == pytest.approx(float(own))
    truths[0, 0] = float("nan")
    assert float(label_likelihood(logits, truths)[0, 0]) == 0


def test_selection_is_by_micro_f1_of_each_members_own_targets():
    truths = torch.tensor([[[1.0, 0], [1, 1], [float("nan"), 0]]]).expand(2, -1, -1)
    predicted = torch.tensor([[[True, True], [True, False], [True, False]]]).expand(2, -1, -1)
    real = torch.tensor([[True, True, True], [True, False, False]])
    assert micro_scores(predicted, truths, real).tolist() == pytest.approx([4 / 6, 2 / 3])
    false = torch.tensor([[[True, False], [False, False]]])
    everyone = torch.ones(1, 2, dtype=torch.bool)
    assert micro_scores(false, torch.zeros(1, 2, 2), everyone).tolist() == [0.0]
    nothing = torch.zeros(1, 2, 2)
    assert micro_scores(nothing.bool(), nothing, everyone).tolist() == [1.0]


@pytest.mark.parametrize("kind", REPAIRS)
def test_every_repair_learns_keeps_and_serves(kind, data, exposure, tmp_path):
    fitted = kind(budget=FEW).fit(
        exposure, data.y, data.train_mask, data.val_mask, device="cpu", batch_size=50
    )
    assert fitted.outputs == "labels"
    assert "labels" in repr(fitted)
    assert "validation micro-F1" in repr(fitted)
    val = fitted.predict(exposure)[data.val_mask]
    score = f1_of(val, data.y[data.val_mask].double())
    assert fitted.f1[0] == pytest.approx((score.micro, score.macro), abs=1e-6)
    assert fitted.to_frame()["micro_f1"].tolist() == [fitted.f1[0][0]]
    fitted.save(tmp_path / "repair")
    again = gr.FittedRepair.load(tmp_path / "repair")
    assert again.f1 == fitted.f1
    assert torch.equal(again.member_logits(exposure), fitted.member_logits(exposure))
    module = gr.repaired(Ear(4), fitted)
    served = module(data.x, data.edge_index)
    assert torch.allclose(served.double(), fitted.member_logits(exposure)[0], atol=1e-5)
    changes = module.changes(data.x, data.edge_index)
    moved = (served > 0) != (exposure.frozen_logits[0] > 0)
    assert len(changes) == int(moved.sum())
    if len(changes):
        first = changes.iloc[0]
        assert bool(moved[first["node"], first["label"]])


def test_a_shift_of_labels_is_not_centred(data, exposure):
    fitted = gr.SetTranslation(budget=FEW).fit(
        exposure, data.y, data.train_mask, data.val_mask, device="cpu"
    )
    assert fitted.shift(exposure).sum(2).abs().max() > 1e-3


def test_one_label_alone_can_be_repaired(data):
    class First(Ear):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index)[:, 0]

    y = data.y[:, 0]
    exposure = gr.expose(First(4), data, outputs="labels")
    fitted = gr.SetTranslation(budget=BUDGET).fit(
        exposure, y, data.train_mask, data.val_mask, device="cpu"
    )
    logits, test = (exposure.frozen_logits, fitted.member_logits(exposure)), data.test_mask
    before, after = (f1_of(z[0, test] > 0, y[test, None]) for z in logits)
    assert after.micro > before.micro + 0.2
    assert after.micro == pytest.approx(after.macro)


def test_a_model_of_probabilities_is_served_with_probabilities(data, exposure):
    class Squashed(Ear):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index).sigmoid()

    squashed = gr.expose(Squashed(4), data)
    assert torch.allclose(squashed.frozen_logits, exposure.frozen_logits, atol=1e-5)
    masks = (data.train_mask, data.val_mask)
    plain = gr.RefitHead(budget=FEW).fit(exposure, data.y, *masks, device="cpu")
    fitted = gr.RefitHead(budget=FEW).fit(squashed, data.y, *masks, device="cpu")
    served = gr.repaired(Squashed(4), fitted)(data.x, data.edge_index)
    other = gr.repaired(Ear(4), plain)(data.x, data.edge_index)
    assert torch.allclose(served, other.sigmoid(), atol=1e-4)
    again = gr.repaired(Squashed(4), fitted)
    assert torch.equal(again(data.x, data.edge_index), again(data.x, data.edge_index))


def test_unknown_labels_are_not_learned_from(data, exposure):
    y = data.y.double()
    y[data.train_mask] = float("nan")
    with pytest.raises(InputError, match="no node of train of member 0 has a known label"):
        gr.SetTranslation(budget=FEW).fit(exposure, y, data.train_mask, data.val_mask, device="cpu")
    y = data.y.double()
    y[:, 2] = float("nan")
    fitted = gr.SetTranslation(budget=FEW)
    with pytest.warns(UserWarning, match="no training node has label 2"):
        fitted.fit(exposure, y, data.train_mask, data.val_mask, device="cpu")


def test_what_does_not_fit_is_refused_by_name(data, exposure):
    masks = (data.train_mask, data.val_mask)
    with pytest.raises(InputError, match="outputs are labels, which this repair cannot learn"):
        gr.EvidenceLadder().fit(exposure, data.y, *masks)
    with pytest.raises(InputError, match="outputs are labels, which this repair cannot learn"):
        gr.CrossFitted().fit(exposure, data.y, *masks)
    with pytest.raises(InputError, match="outputs are values"):
        gr.Reweighting().fit(replace(exposure, outputs="values"), data.y, *masks)
    with pytest.raises(InputError, match=r"y has shape \[240\] instead of \[240, 4\]"):
        gr.Reweighting().fit(exposure, data.y[:, 0], *masks)
    fitted = gr.SetTranslation(budget=FEW).fit(exposure, data.y, *masks, device="cpu")
    with pytest.raises(InputError, match=r"are labels but .*with outputs='labels'"):
        fitted.member_logits(replace(exposure, outputs="classes"))


def test_f1_is_counted_over_known_pairs_one_by_one():
    draw = torch.Generator().manual_seed(0)
    predicted = torch.rand(40, 4, generator=draw) < 0.5
    truths = (torch.rand(40, 4, generator=draw) < 0.5).double()
    truths[torch.rand(40, 4, generator=draw) < 0.4] = torch.nan
    predicted[:, 3] = False
    truths[:, 3] *= 0  # neither there nor predicted
    pairs = [
        [(p, t) for p, t in zip(said, true, strict=True) if t == t]
        for said, true in zip(predicted.t().tolist(), truths.t().tolist(), strict=True)
    ]

    def share(chosen):
        hits, wrong = sum(p and t == 1 for p, t in chosen), sum(p != (t == 1) for p, t in chosen)
        return 2 * hits / (2 * hits + wrong)

    found = f1_of(predicted, truths)
    assert found.micro == pytest.approx(share(list(itertools.chain(*pairs))))
    assert found.macro == pytest.approx(sum(share(own) for own in pairs[:3]) / 3)
    real = torch.ones(1, 40, dtype=torch.bool)
    scores = micro_scores(predicted[None], truths[None], real)
    assert scores.tolist() == pytest.approx([found.micro])
