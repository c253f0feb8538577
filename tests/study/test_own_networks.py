"""Networks of the user's own in a study, and the trained models that are kept beside a record."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.nn import GIN, GCNConv, SAGEConv
from typer.testing import CliRunner

import gnn_repair as gr
from gnn_repair.backbones import OwnNetwork, train_own
from gnn_repair.budget import Budget
from gnn_repair.cli.main import app
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.results.protocol import PAPER
from gnn_repair.results.rendering import as_markdown, facts, latex
from gnn_repair.results.store import merge
from gnn_repair.study import Run, Store, Watcher, make_tables, override, run_study
from gnn_repair.study import case as cases
from gnn_repair.study.case import rerun
from tests.helpers.study.tiny import TINY, tiny_graph

# Networks of the user's own in a study: training, records, tables, the page; tails and none.

PROTOCOL = override(PAPER, [*TINY, "backbones.seed=1"])
DATA = tiny_graph()
METHODS = ["oracle", "reweighting", "set_translation", "refit_head"]


class Tailed(nn.Module):
    """GCN, BatchNorm, an activation, a linear head."""

    def __init__(self, features: int, classes: int, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.second = GCNConv(features, 8), GCNConv(8, 8)
        self.norm, self.activation = nn.BatchNorm1d(8), activation
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, classes)

    def forward(self, x, edge_index):
        x = self.drop(self.first(x, edge_index).relu())
        return self.head(self.activation(self.norm(self.second(x, edge_index))))


def relu(features: int, classes: int) -> nn.Module:
    return Tailed(features, classes, nn.ReLU())


def softplus(features: int, classes: int) -> nn.Module:
    return Tailed(features, classes, nn.Softplus(threshold=19))


class Affine(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(features, 8), SAGEConv(8, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x, edge_index):
        return self.head(self.second(self.first(x, edge_index).relu(), edge_index))


NETWORKS = {
    "relu": OwnNetwork(relu, "GCN with ReLU"),
    "softplus": OwnNetwork(softplus),
    "affine": OwnNetwork(Affine),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    store = tmp_path_factory.mktemp("own") / "store"
    given = {"store": store, "methods": METHODS, "protocol": PROTOCOL, "device": "cpu"}
    outcome = gr.run_study({"mine": DATA}, NETWORKS, [0, 2], **given)
    assert not outcome.failures and outcome.stored == 6
    again = gr.run_study({"mine": DATA}, NETWORKS, [0, 2], **given)
    assert (again.already, again.stored) == (6, 0)
    return store, list(Store(store).records(outcome.protocol))


def by_name(records, backbone):
    return [record for record in records if record.backbone == backbone]


def test_records_hold_what_is_proved_and_what_is_not_excluded(done):
    _, records = done
    data = DATA
    for record in by_name(records, "softplus") + by_name(records, "relu"):
        split, test = record.split, record.oracle["test"]
        assert record.stack == [split] and record.members == 1
        frozen = train_own(
            NETWORKS[record.backbone], data, split, device=torch.device("cpu"),
            budget=PROTOCOL.backbones.budget(NETWORKS["relu"].budget), seed=PROTOCOL.backbones.seed,
        )  # fmt: skip
        found = gr.reach(gr.expose(frozen.network, data), data.y, data.test_mask[:, split])
        assert test["reachable"] == found.members[0].true_class.hits
        assert test["possible"] == round(found.members[0].true_class.possible * test["nodes"])
        assert test["reachable_errors"] == found.members[0].error.hits
        assert test["nodes"] == found.members[0].true_class.total
        assert test["undecided"] == found.members[0].true_class.undecided
        for name, mean in (("chance_reach", "chance"), ("excess", "excess")):
            low, high = getattr(found.members[0], mean).low, getattr(found.members[0], mean).high
            assert (test[name], test.get(f"{name}_possible", low)) == pytest.approx((low, high))
        right = (frozen.logits[0].argmax(1) == data.y)[data.test_mask[:, split]]
        assert record.frozen["test"] == pytest.approx(float(right.float().mean()))
        assert set(record.methods) == set(METHODS) - {"oracle"}
    assert any(r.oracle["test"]["undecided"] for r in by_name(records, "softplus"))
    for record in by_name(records, "affine"):
        assert "possible" not in record.oracle["test"]
        assert record.oracle["largest_gap"] < 1e-6


def test_tables_show_an_interval_where_something_is_undecided(done):
    store, records = done
    tables = make_tables(records, ["exposure-oracle"])
    cells = {(f["sheet"], f["row"], f["column"]): f for f in facts(tables)}
    for backbone in NETWORKS:
        own = [record.oracle["test"] for record in by_name(records, backbone)]
        cell, proved = cells["True-class reach (%)", backbone, "mine"], "true_class_reach"
        assert cell["value"] == pytest.approx(50 * sum(o[proved] for o in own))
        wide = 50 * sum(o.get(f"{proved}_possible", o[proved]) for o in own)
        assert (cell["upper"] or cell["value"]) == pytest.approx(wide)
    loose = cells["True-class reach (%)", "softplus", "mine"]
    ends, line = (f"{loose['value']:.1f}", f"{loose['upper']:.1f}"), ("--store", str(store))
    printed = CliRunner().invoke(app, ["study", "tables", "exposure-oracle", *line]).output
    for dash, text in (("–", printed), ("–", as_markdown(tables)), ("--", latex(tables))):
        assert dash.join(ends) in text and "not excluded" in text


def test_training_keeps_the_best_state_with_its_buffers():
    """As a plain loop does, which keeps every state and its validation score."""
    budget = Budget(epochs=15, patience=None, learning_rate=1e-2, weight_decay=5e-4)
    frozen = train_own(NETWORKS["relu"], DATA, 1, device=torch.device("cpu"), budget=budget)
    train, val, scores, states = DATA.train_mask[:, 1], DATA.val_mask[:, 1], [], []
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        network = relu(DATA.num_features, 3)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, weight_decay=5e-4)
        for _ in range(budget.epochs + 1):
            network.eval()
            right = network(DATA.x, DATA.edge_index).argmax(1) == DATA.y
            scores.append(int((right & val).sum()))
            states.append(copy.deepcopy(network.state_dict()))
            network.train()
            optimizer.zero_grad()
            out = network(DATA.x, DATA.edge_index)
            nn.functional.cross_entropy(out[train], DATA.y[train]).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
    best = 1 + scores[1:].index(max(scores[1:]))
    assert int(frozen.best_epoch[0]) == best and int(frozen.epochs_run[0]) == 15
    torch.testing.assert_close(frozen.network.state_dict(), states[best])
    other = states[1 if best == 15 else 15]["norm.running_mean"]
    assert not torch.equal(states[best]["norm.running_mean"], other)


def test_what_cannot_be_run_is_refused_before_the_first_case(tmp_path):
    data = {"mine": DATA}
    with pytest.raises(InputError, match="retrained_backbone trains the backbone again"):
        gr.run_study(
            data, NETWORKS, [0], store=tmp_path, methods=["retrained_backbone"], device="cpu"
        )
    with pytest.raises(InputError, match="with an OwnNetwork"):
        gr.run_study(data, {"mine": Affine(6, 3)}, [0], store=tmp_path, device="cpu")
    with pytest.raises(InputError, match="build is 3; give a function"):
        OwnNetwork(3)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="cannot be built from 6 features and 3 classes"):
        OwnNetwork(lambda features: Affine(features, 3)).network(6, 3)


def test_a_plain_module_is_a_backbone_and_the_study_says_how_it_is_trained(tmp_path, done):
    notes, watcher = [], Watcher()
    watcher.noted = notes.append
    given = {"store": tmp_path, "methods": ["oracle"], "protocol": PROTOCOL, "device": "cpu"}
    models = {"affine": Affine, "gcn": gr.BACKBONES["gcn"]}
    outcome = gr.run_study({"mine": DATA}, models, [0, 2], watcher=watcher, **given)
    assert not outcome.failures and outcome.stored == 4
    assert len(notes) == 1 and notes[0].startswith("affine ")
    made = by_name(Store(tmp_path).records(outcome.protocol), "affine")
    known = by_name(done[1], "affine")
    assert [r.frozen for r in made] == [r.frozen for r in known]
    assert [r.oracle["test"] for r in made] == [r.oracle["test"] for r in known]


# The trained models beside a record: what a page shows is what was trained, without training.
KEPT = ["reweighting", "set_translation", "correct_and_smooth", "evidence_ladder"]
GIVEN = {"protocol": PROTOCOL, "device": "cpu", "datasets": {"mine": DATA}}


def studied(folder, splits, methods, backbones=("gcn",), **more):
    """A small study of these, stored."""
    outcome = run_study(
        {"mine": DATA}, backbones, splits, store=folder, methods=methods, protocol=PROTOCOL,
        device="cpu", **more,
    )  # fmt: skip
    assert not outcome.failures
    return Store(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return studied(tmp_path_factory.mktemp("kept"), [1, 2], KEPT)


@pytest.fixture
def untrained(monkeypatch):
    """Nobody may train."""

    def refused(*arguments, **options):
        raise AssertionError("something was trained")

    monkeypatch.setattr(cases, "train_backbone", refused)
    monkeypatch.setattr(cases, "train_own", refused)
    monkeypatch.setattr(cases, "_fit", refused)


def test_a_kept_run_is_shown_without_training(store, untrained):
    record = store.get(PROTOCOL.digest, Run("mine", "gcn", 1))
    assert set(store.models(PROTOCOL.digest, record.run)) == {"frozen", *KEPT}
    shown = rerun("mine", "gcn", 1, source=store, **GIVEN)
    assert list(shown.repairs) == KEPT
    assert shown.provenance() == "split 1, trained with splits 1 to 2; the stored models"
    test = DATA.test_mask[:, 1]
    for name, fitted in shown.repairs.items():
        right = fitted.predict(shown.exposure) == DATA.y
        assert float(right[test].double().mean()) == record.methods[name]["test"], name
    right = shown.exposure.frozen_logits[0].argmax(1) == DATA.y
    assert float(right[test].double().mean()) == record.frozen["test"]


def test_what_was_not_kept_is_trained_as_before(store):
    shown = rerun("mine", "gcn", 2, source=store, methods=["reweighting"], **GIVEN)
    assert shown.case.splits == (1, 2)
    assert "made again with the same accuracies" in shown.provenance()
    frozen = shown.stored_record.frozen
    for test in (0.125, frozen["test"] - 1e-3):
        worse = replace(shown.stored_record, frozen={**frozen, "test": test})
        assert f"(stored {100 * test:.1f} %)" in replace(shown, stored_record=worse).provenance()
    assert shown.select_split(1).provenance().endswith("; made for this page")
    assert shown.select_split(0) is None
    further = rerun("mine", "gcn", 1, source=store, methods=["refit_head"], **GIVEN)
    assert further.provenance().endswith("the stored models; refit head fitted for this page")


def test_models_travel_with_their_records(store, tmp_path, untrained):
    digest, run = PROTOCOL.digest, Run("mine", "gcn", 1)
    merge([store.root], tmp_path)
    found = Store(tmp_path)
    assert list(found.records(digest)) == list(store.records(digest))
    both = [rerun("mine", "gcn", 1, source=source, **GIVEN) for source in (store, found)]
    assert torch.equal(*(shown.exposure.frozen_logits for shown in both))
    # Another graph under the same name is refused and not shown.
    other = tiny_graph(nodes=61)
    with pytest.raises(FileFormatError, match="another data"):
        rerun("mine", "gcn", 1, source=found, **{**GIVEN, "datasets": {"mine": other}})
    # A record without models takes those of the one it replaces away.
    found.put(found.get(digest, run))
    assert found.models(digest, run) == {}
    # The same record brings its models where they are missing.
    assert merge([store.root], tmp_path).added == 0
    assert found.models(digest, run).keys() == store.models(digest, run).keys() != set()


@pytest.mark.parametrize(("damaged", "left"), [("frozen", ()), ("reweighting", ("frozen",))])
def test_a_damaged_model_is_as_a_missing_one(store, tmp_path, damaged, left):
    """Of a damaged frozen model the repairs are of no use either."""
    merge([store.root], tmp_path)
    found, run = Store(tmp_path), Run("mine", "gcn", 1)
    path = found.models(PROTOCOL.digest, run)[damaged]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=rf"{damaged}\.safetensors") as said:
        shown = rerun("mine", "gcn", 1, source=found, methods=["reweighting"], **GIVEN)
    assert len(said) == 1 and set(left) == set(shown.stored_models) - set(KEPT[1:])
    assert list(shown.repairs) == ["reweighting"]


def gin(width):
    return OwnNetwork(lambda features, classes: GIN(features, width, 2, classes, norm="batch_norm"))


def test_a_network_of_one_s_own_is_kept_too(tmp_path, request):
    store = studied(tmp_path, [1], ["oracle"], {"gin": gin(8)})
    request.getfixturevalue("untrained")
    (record,) = store.records(PROTOCOL.digest)
    shown = rerun("mine", "gin", 1, source=store, backbones={"gin": gin(8)}, **GIVEN)
    assert shown.provenance() == "split 1, trained alone; the stored models"
    right = shown.exposure.frozen_logits[0].argmax(1) == DATA.y
    assert float(right[DATA.test_mask[:, 1]].double().mean()) == record.frozen["test"]
    with pytest.raises(FileFormatError, match="another network's weights"):
        rerun("mine", "gin", 1, source=store, backbones={"gin": gin(9)}, **GIVEN)


@pytest.mark.parametrize(("keep", "kept"), [("none", []), ("first", [0]), ("all", [0, 2])])
def test_splits_that_are_kept_have_models_of_their_own(tmp_path, keep, kept):
    studied(tmp_path, [0], ["temperature_scaling"], keep_models=keep)
    found = studied(tmp_path, [2, 0], ["temperature_scaling"], keep_models=keep)  # resumed
    runs = found.runs(PROTOCOL.digest)
    assert [run.split for run in runs] == [0, 2]
    assert [run.split for run in runs if found.models(PROTOCOL.digest, run)] == kept
    for split in kept:
        shown = rerun("mine", "gcn", split, source=found, **GIVEN)
        assert shown.provenance().endswith("; the stored models")
        taken, masks = shown.repairs["temperature_scaling"], map(shown.mask, ("train", "val"))
        assert "1 member, 1 parameter each" in repr(taken)
        again = gr.TemperatureScaling().fit(shown.exposure, DATA.y, *masks)
        values = [{n: t.cpu() for n, t in one.parameters.items()} for one in (taken, again)]
        torch.testing.assert_close(*values)


def test_models_that_no_file_can_hold_are_not_kept_and_fail_nothing(tmp_path):
    class Odd(GIN):
        def get_extra_state(self):
            return {"no": "tensor"}

        def set_extra_state(self, state):
            pass

    own = OwnNetwork(lambda features, classes: Odd(features, 8, 2, classes))
    store = studied(tmp_path, [0], ["oracle"], {"odd": own})
    assert store.models(PROTOCOL.digest, Run("mine", "odd", 0)) == {}
    with pytest.raises(InputError, match="keep_models is 'some'; choose from all, first, none"):
        studied(tmp_path, [0], ["oracle"], keep_models="some")
