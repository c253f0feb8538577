"""The trained models beside a record: what a page shows is what was trained, without training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch_geometric.nn import GIN

from gnn_repair.backbones import OwnNetwork
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.results.store import merge
from gnn_repair.study import PAPER, Run, Store, override, run_study
from gnn_repair.study import case as cases
from gnn_repair.study.case import rerun
from tests.helpers.study.tiny import TINY, tiny_graph

PROTOCOL = override(PAPER, TINY)
METHODS = ["reweighting", "set_translation", "correct_and_smooth", "evidence_ladder"]
DATA = tiny_graph()
GIVEN = {"protocol": PROTOCOL, "device": "cpu", "datasets": {"mine": DATA}}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    run_study(
        {"mine": DATA}, ["gcn"], [1, 2], store=folder, methods=METHODS, protocol=PROTOCOL,
        device="cpu",
    )  # fmt: skip
    return Store(folder)


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
    assert set(store.models(PROTOCOL.digest, record.run)) == {"frozen", *METHODS}
    shown = rerun("mine", "gcn", 1, source=store, **GIVEN)
    assert list(shown.repairs) == METHODS
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
    further = rerun("mine", "gcn", 1, source=store, methods=["refit_head"], **GIVEN)
    assert further.provenance().endswith("the stored models; refit head fitted for this page")


def test_models_travel_with_their_records(store, tmp_path, untrained):
    digest, run = PROTOCOL.digest, Run("mine", "gcn", 1)
    merge([store.root], tmp_path)
    found = Store(tmp_path)
    assert list(found.records(digest)) == list(store.records(digest))
    both = [rerun("mine", "gcn", 1, source=source, **GIVEN) for source in (store, found)]
    assert torch.equal(*(shown.exposure.frozen_logits for shown in both))
    # Another graph under the same name, or a damaged file, is refused and not shown.
    other = tiny_graph(nodes=61)
    with pytest.raises(FileFormatError, match="another data"):
        rerun("mine", "gcn", 1, source=found, **{**GIVEN, "datasets": {"mine": other}})
    path = found.models(digest, run)["reweighting"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileFormatError, match=r"reweighting\.safetensors"):
        rerun("mine", "gcn", 1, source=found, **GIVEN)
    # A record without models takes those of the one it replaces away.
    found.put(found.get(digest, run))
    assert found.models(digest, run) == {}


def test_a_network_of_one_s_own_is_kept_too(tmp_path, request):
    own = OwnNetwork(lambda features, classes: GIN(features, 8, 2, classes, norm="batch_norm"))
    given = {"mine": DATA}, {"gin": own}
    run_study(*given, [1], store=tmp_path, methods=["oracle"], protocol=PROTOCOL, device="cpu")
    request.getfixturevalue("untrained")
    store = Store(tmp_path)
    (record,) = store.records(PROTOCOL.digest)
    shown = rerun("mine", "gin", 1, source=store, backbones={"gin": own}, **GIVEN)
    assert shown.provenance() == "split 1, trained alone; the stored models"
    right = shown.exposure.frozen_logits[0].argmax(1) == DATA.y
    assert float(right[DATA.test_mask[:, 1]].double().mean()) == record.frozen["test"]
    other = OwnNetwork(lambda features, classes: GIN(features, 9, 2, classes, norm="batch_norm"))
    with pytest.raises(FileFormatError, match="another network's weights"):
        rerun("mine", "gin", 1, source=store, backbones={"gin": other}, **GIVEN)


@pytest.mark.parametrize(("keep", "kept"), [("none", []), ("all", [0, 1])])
def test_which_splits_are_kept(tmp_path, keep, kept):
    run_study(
        {"mine": DATA}, ["gcn"], [0, 1], store=tmp_path, methods=["oracle"], protocol=PROTOCOL,
        device="cpu", keep_models=keep,
    )  # fmt: skip
    found = Store(tmp_path)
    runs = found.runs(PROTOCOL.digest)
    assert len(runs) == 2
    assert [run.split for run in runs if found.models(PROTOCOL.digest, run)] == kept
    with pytest.raises(InputError, match="keep_models is 'some'; choose from all, first, none"):
        run_study(["cora"], ["gcn"], [0], store=tmp_path, keep_models="some")


def test_what_no_file_can_hold_is_not_kept_and_fails_nothing(tmp_path):
    class Odd(GIN):
        def get_extra_state(self):
            return {"no": "tensor"}

        def set_extra_state(self, state):
            pass

    own = OwnNetwork(lambda features, classes: Odd(features, 8, 2, classes))
    options = {"methods": ["oracle"], "protocol": PROTOCOL, "device": "cpu"}
    outcome = run_study({"mine": DATA}, {"odd": own}, [0], store=tmp_path, **options)
    assert outcome.stored == 1 and not outcome.failures
    assert Store(tmp_path).models(PROTOCOL.digest, Run("mine", "odd", 0)) == {}


@pytest.mark.parametrize("brings", [True, False])
def test_a_record_that_gets_further_methods_keeps_its_models(store, tmp_path, brings):
    digest, run = PROTOCOL.digest, Run("mine", "gcn", 1)
    whole = store.get(digest, run)
    kept = {name: path.read_bytes() for name, path in store.models(digest, run).items()}
    first, further = Store(tmp_path / "first"), Store(tmp_path / "further")
    halves = {"frozen", *METHODS[:2]}, set(METHODS[2:]) if brings else set()
    for place, methods, models in zip(
        (first, further), (METHODS[:2], METHODS[2:]), halves, strict=True
    ):
        place.begin(store.protocol(digest))
        own = {name: whole.methods[name] for name in methods}
        place.put(replace(whole, methods=own, models={name: kept[name] for name in models}))
    assert merge([further.root], first.root).united == 1
    assert set(first.get(digest, run).methods) == set(METHODS)
    found = {name: path.read_bytes() for name, path in first.models(digest, run).items()}
    assert found == {name: kept[name] for name in halves[0] | halves[1]}
