"""Frozen backbones: their networks, files, shapes and checks."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv

from benchmarks.training import plain_loop
from gnn_repair.backbones import BACKBONES, Frozen, Shape, train_backbone
from gnn_repair.backbones.train import OwnNetwork, load_network, train_own
from gnn_repair.errors import DeviceError, FileFormatError, InputError, SplitError
from gnn_repair.exposure.from_model import expose_frozen
from gnn_repair.training import SHORT, Budget

# The frozen value: what it holds, what it refuses to load, and clear errors before training.

BUDGET = replace(SHORT, epochs=3)
SMALL = Shape(hidden=16, heads=4)


def frozen_of(name, graph, **options):
    return train_backbone(BACKBONES[name](SMALL), graph, device="cpu", budget=BUDGET, **options)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_pyg_network_of_a_member_gives_its_logits_embedding_and_state(name, graph):
    frozen = frozen_of(name, graph)
    for member in range(frozen.num_members):
        network = frozen.network(member)
        assert not network.training
        torch.testing.assert_close(network(graph.x, graph.edge_index), frozen.logits[member])
        torch.testing.assert_close(
            network.classifier(frozen.embedding[member]), frozen.logits[member]
        )
    shared = name in ("sgc", "mixhop", "h2gcn")
    assert frozen.state.shape[0] == (1 if shared else 3)
    if shared:
        assert torch.equal(frozen.state[0], graph.x)


def test_a_member_alone_is_that_member_in_every_field(graph):
    frozen = replace(frozen_of("gat", graph, splits=[2, 0, 1]), diverged=torch.arange(3) == 1)
    frozen = replace(frozen, best_epoch=torch.arange(3), epochs_run=torch.arange(3) + 1)
    for member, split in enumerate((2, 0, 1)):
        alone = frozen.member(member)
        assert frozen.member(member - 3).splits == (split,)
        assert alone.splits == (split,)
        for name in ("logits", "best_epoch", "epochs_run", "diverged"):
            assert torch.equal(getattr(alone, name)[0], getattr(frozen, name)[member]), name
        for name, value in frozen.parameters.items():
            assert torch.equal(alone.parameters[name][0], value[member])
        mask = graph.test_mask[:, split]
        right = (frozen.logits[member].argmax(1) == graph.y)[mask].float().mean()
        accuracies = alone.accuracy(graph.test_mask)[0], frozen.accuracy(graph.test_mask)[member]
        torch.testing.assert_close(torch.stack(accuracies), right.expand(2))
        assert frozen.accuracy(mask)[member] == right
        names = "backbone", "data", "seed", "budget"
        assert all(getattr(alone, name) is getattr(frozen, name) for name in names)
    for beyond in (3, -4):
        for call in (frozen.member, frozen.network):
            with pytest.raises(InputError, match=f"member {beyond}"):
                call(beyond)


def test_accuracy_takes_masks_by_split_and_by_member(graph):
    frozen = frozen_of("gcn", graph, splits=[2, 0])
    expected = frozen.accuracy(graph.test_mask)
    torch.testing.assert_close(frozen.accuracy(graph.test_mask[:, [2, 0]]), expected)
    four = torch.cat([graph.test_mask, graph.test_mask], 1)[:, :4]
    nobody = graph.test_mask & False
    for wrong in (graph.test_mask[:5], graph.test_mask.float(), four, nobody):
        with pytest.raises(SplitError, match="mask"):
            frozen.accuracy(wrong)


class Own(nn.Module):
    """With buffers of its own, and what training and evaluation do differently."""

    def __init__(self, features, classes):
        super().__init__()
        self.first, self.last = GCNConv(features, 8), GCNConv(8, classes)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.3)

    def forward(self, x, edge_index):
        return self.last(self.dropout(self.norm(self.first(x, edge_index)).relu()), edge_index)


OWN = OwnNetwork(Own)


def network_of(graph, **changes):
    """Of an early epoch: later ones are worse in validation and not kept."""
    graph.y[graph.val_mask[:, 1]] = graph.y[graph.val_mask[:, 1]].flip(0)
    budget = replace(Budget(12, None, 0.3, 0.02, clip=0.5), **changes)
    return train_own(OWN, graph, 1, device=torch.device("cpu"), budget=budget), budget


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_network_of_ones_own_is_the_best_of_a_plain_loop(decoupled, graph, tmp_path):
    trained, budget = network_of(graph, decoupled=decoupled)
    assert 0 < int(trained.best_epoch) < int(trained.epochs_run) == 12
    torch.manual_seed(0)
    network = OWN.network(12, 3).double()
    best = plain_loop(network, graph, 1, budget)
    state = trained.network.state_dict()
    same = [torch.allclose(state[name].double(), value.double()) for name, value in best.items()]
    assert all(same) != decoupled  # whose decay is another one
    expected = OWN.logits(trained.network, graph).unsqueeze(0).detach()
    torch.testing.assert_close(trained.logits, expected, rtol=0, atol=0)
    trained.save(tmp_path / "network")
    again = load_network(tmp_path / "network", OWN, graph)
    assert again.splits == (1,) and torch.equal(again.logits, trained.logits)
    for name in ("best_epoch", "epochs_run", "diverged"):
        assert torch.equal(getattr(again, name), getattr(trained, name))
    patient, _ = network_of(graph, patience=2, decoupled=decoupled)
    assert int(patient.epochs_run) == int(patient.best_epoch) + 2
    torch.manual_seed(0)  # labels of which the untrained network knows those of validation
    graph.y = OWN.logits(OWN.network(12, 3).double().eval(), graph).argmax(1)
    for zero in (False, True):
        kept = train_own(
            OWN, graph, 1, device=torch.device("cpu"), budget=replace(budget, epoch_zero=zero)
        )
        assert (int(kept.best_epoch) == 0) == zero


@pytest.mark.parametrize("what", ["y", "x", "edge_index", "logits", "nan"])
def test_a_network_of_other_data_or_logits_is_refused(what, graph, tmp_path):
    (trained, _), other = network_of(graph), graph.clone()
    if what == "y":
        other.y = 1 - graph.y.clamp(max=1)
    elif what == "x":
        other.x = graph.x + 1e-9
    elif what == "edge_index":
        other.edge_index = graph.edge_index.flip(1)
    else:
        wrong = trained.logits.clone()
        wrong[0, 5, 1] = torch.nan if what == "nan" else 3 + wrong[0, 5, 1]
        trained = replace(trained, logits=wrong)
    trained.save(tmp_path / "network")
    with pytest.raises(InputError):
        load_network(tmp_path / "network", OWN, other)


CHANGES = {
    "another data": {}, "damaged": {}, "does not exist": {}, "not give its logits": {},
    "float32": {},
    "another backbone": {"like": BACKBONES["sage"](SMALL)},
    "another shape": {"like": BACKBONES["gcn"](Shape(hidden=8, heads=4))},
    "another budget": {"budget": replace(BUDGET, clip=1.0)},
    "another seed": {"seed": 1},
}  # fmt: skip


@pytest.mark.parametrize("named", CHANGES)
def test_a_file_that_does_not_match_is_refused(named, graph, tmp_path):
    path = tmp_path / "model.safetensors"
    frozen = frozen_of("gcn", graph)
    frozen.save(path)
    asked = {"data": graph, "like": BACKBONES["gcn"](SMALL), "budget": BUDGET, "seed": 0}
    assert Frozen.load(path, **asked).num_members == 3
    if named == "another data":
        graph.y[4] = 0
    elif named in ("not give its logits", "float32"):
        frozen = replace(frozen, logits=1 + frozen.logits * 2)
        single = {name: value.float() for name, value in frozen.parameters.items()}
        (replace(frozen, parameters=single) if named == "float32" else frozen).save(path)
    elif named == "damaged":
        path.write_bytes(path.read_bytes()[:-100])
    elif named == "does not exist":
        path.unlink()
    with pytest.raises(FileFormatError, match=named):
        Frozen.load(path, **asked | CHANGES[named])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_an_absent_gpu_is_named(graph):
    with pytest.raises(DeviceError, match="no GPU is available"):
        train_backbone("gcn", graph, device="cuda")


def test_a_full_gpu_says_which_knob_to_turn(graph, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("gnn_repair.backbones.train.fit", full)
    with pytest.raises(DeviceError, match="pass fewer splits at a time"):
        frozen_of("gcn", graph)


def test_a_class_absent_from_training_works_with_a_warning(graph):
    graph.train_mask[graph.y == 2, 1] = False
    with pytest.warns(UserWarning, match="split 1 trains without any node of class 2"):
        frozen = frozen_of("gcn", graph, splits=[1])
    assert frozen.logits.shape == (1, 36, 3)


def test_a_diverging_split_is_reported(graph):
    wild = replace(SHORT, epochs=40, learning_rate=1e300)
    with pytest.warns(UserWarning, match="split 2 diverged after epoch"):
        frozen = train_backbone("gcn", graph, splits=[2], device="cpu", budget=wild)
    assert bool(frozen.diverged[0]) and "diverged: splits 2" in str(frozen)
    assert bool(frozen.logits.isfinite().all())


@pytest.mark.parametrize("name", BACKBONES)
def test_copies_are_the_same_value_and_nothing_in_it_changes(name, graph, tmp_path):
    frozen = frozen_of(name, graph, splits=[1, 2])
    frozen.embedding  # noqa: B018 - what is derived must not be in the way
    torch.save(frozen, tmp_path / "frozen.pt")
    frozen.save(tmp_path / "file")
    copies = (
        frozen,
        pickle.loads(pickle.dumps(frozen)),
        copy.deepcopy(frozen),
        torch.load(tmp_path / "frozen.pt", weights_only=False),
        Frozen.load(tmp_path / "file", graph, frozen.backbone, BUDGET, 0),
    )
    for again in copies:
        assert torch.equal(again.logits, frozen.logits)
        assert torch.equal(again.embedding, frozen.embedding)
        assert again.backbone.shape == frozen.backbone.shape and again.splits == (1, 2)
        assert not any(value.requires_grad for value in again.parameters.values())
        with pytest.raises(dataclasses.FrozenInstanceError):
            again.logits = None
        with pytest.raises(TypeError):
            again.parameters["classifier.bias"] = None
    assert len([*tmp_path.iterdir()]) == 2


BRIEF = Budget(1, None, 0.01, 0.0)


def test_overlapping_masks_are_refused(graph):
    graph.val_mask[:, 2] |= graph.train_mask[:, 2]
    with pytest.raises(SplitError, match=r"overlap: node .* of split 2"):
        train_backbone("gcn", graph, device="cpu", budget=BRIEF)


def test_numpy_numbers_name_splits_and_nobody_needs_a_test_mask(graph):
    del graph.test_mask
    backbone = BACKBONES["gcn"](Shape(hidden=4))
    frozen = train_backbone(backbone, graph, torch.tensor([2, 0]).numpy(), budget=BRIEF)
    assert frozen.splits == (2, 0)
    assert all(type(split) is int for split in frozen.splits)


# The documentation's ninth backbone works as written.

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "backbone.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not installed")
def test_the_worked_example(graph):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "class TransformThenPropagate" in block)
    names: dict = {}
    exec(code, names)
    backbone = names["TransformThenPropagate"](Shape(hidden=16))
    budget = replace(SHORT, epochs=3)
    frozen = train_backbone(backbone, graph, range(2), device="cpu", budget=budget)
    for member in range(2):
        expected = frozen.network(member)(graph.x, graph.edge_index)
        torch.testing.assert_close(frozen.logits[member], expected)
    exposure = expose_frozen(frozen)
    torch.testing.assert_close(exposure.logits(), frozen.logits)
