"""The protocol, its digest, and what a stored result depends on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from gnn_repair.backbones import BACKBONES
from gnn_repair.budget import LONG, SHORT
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.methods import METHODS
from gnn_repair.repair.folds import build_repair
from gnn_repair.results.protocol import BackboneProtocol, differences, digest_of, with_changes
from gnn_repair.results.records import VERSIONS, stage_keys
from gnn_repair.results.store import current_methods
from gnn_repair.study import (
    INDEPENDENT,
    PAPER,
    Protocol,
    Run,
    Store,
    make_plan,
    override,
    read_protocol,
)
from gnn_repair.study.case import build_backbone
from tests.helpers.study.planted_records import make_record, stored

# The protocol: the paper's numbers, their digest, and changing them.


def leaves(tree, where=""):
    for name, value in tree.items():
        if isinstance(value, dict) and name != "sizes":
            yield from leaves(value, f"{where}{name}.")
        else:
            yield f"{where}{name}"


def changes():
    """Every leaf with each of a few values that it can take and the paper does not."""
    for leaf in leaves(PAPER.settings()):
        for value in ("3", "0.25", "true", "false", "numpy", "listed", "[]", "{cora=7}"):
            try:
                protocol = override(PAPER, [f"{leaf}={value}"])
            except InputError:
                continue
            if protocol != PAPER:
                yield f"{leaf}={value}", protocol


def test_every_change_has_a_digest_of_its_own_and_is_found_again_by_its_differences():
    seen = {Protocol().digest: PAPER}
    for assignment, protocol in changes():
        assert seen.setdefault(protocol.digest, protocol) == protocol, assignment
        assert with_changes(PAPER, protocol.differences()) == protocol
    assert {a.partition("=")[0] for a, _ in changes()} == set(leaves(PAPER.settings()))
    assert seen.keys() > {PAPER.digest} and all(len(digest) == 12 for digest in seen)
    shuffled = dict(reversed(PAPER.settings().items()))
    assert digest_of(differences(shuffled)) == PAPER.digest
    fewer = dataclasses.replace(PAPER, batches=dataclasses.replace(PAPER.batches, sizes={}))
    assert fewer.differences() == {"batches": {"sizes": {"squirrel": None, "amazon-ratings": None}}}
    assert with_changes(PAPER, fewer.differences()) == fewer
    assert fewer.digest != PAPER.digest


def test_assignments_and_files_change_what_they_name(tmp_path):
    changed = override(PAPER, ["backbones.short.epochs=5", "backbones.dropout=0"])
    assert changed.backbones.short == dataclasses.replace(PAPER.backbones.short, epochs=5)
    assert isinstance(changed.backbones.dropout, float) and changed.backbones.dropout == 0
    assert changed.repairs == PAPER.repairs
    sizes = override(PAPER, ["batches.sizes.cora=4"]).batches.sizes
    assert sizes == {**PAPER.batches.sizes, "cora": 4}
    path = tmp_path / "protocol.toml"
    path.write_text('[backbones]\nhidden = 64\n[backbones.long]\npatience = "none"\n')
    same = ["backbones.hidden=64", "backbones.long.patience=none"]
    for base in (PAPER, changed):
        assert read_protocol(path, base) == override(base, same)


BAD = """nonsense backbones.hidden=wide backbones.hidden=1.5 backbones.hidden=-1
backbones.hidden=0 backbones.hidden=65537 backbones.heads=0 repairs.hidden=0 repairs.dropout=2
repairs.dropout=1 repairs.dropout=-1 backbones.dropout=nan backbones.dropout=true
repairs.reweighting.learning_rate=inf repairs.reweighting.learning_rate=0
repairs.reweighting.weight_decay=-inf backbones.short.epochs=0 backbones.short.patience=0
backbones.short.clip=0 backbones.short.decoupled=1 backbones.seed=-1 backbones.self_loops=two
oracle.reachable_above=nan batches.size=0 batches.sizes.cora=0 batches.sizes.cora=many
batches.sizes=3 batches.backbones=3 data.draw=dice version=0 repairs.smoothing_layers=0
backbones.short.epochs=9999999999"""


@pytest.mark.parametrize("assignment", BAD.split())
def test_bad_assignments_are_named(assignment):
    name, _, value = assignment.partition("=")
    with pytest.raises(InputError, match=f"{name}.* is ") as caught:
        override(PAPER, [assignment])
    assert value.lower() in str(caught.value).lower().replace(".0;", ";")


ENDS = ("0", "1", "2147483647", "5e-324", "0.9999999", "1.7e308", "none", "true", "false")


@pytest.fixture(scope="module")
def exposure():
    ring = torch.stack([torch.arange(4), torch.arange(1, 5) % 4])
    return expose(GCNConv(3, 2), Data(x=torch.ones(4, 3), edge_index=ring))


@pytest.mark.parametrize("end", ENDS)
def test_what_a_study_accepts_its_methods_accept(end, exposure):
    """Each setting at the ends of its range: everything that reads it can be built."""
    built = 0
    for leaf in leaves(PAPER.settings()):
        try:
            protocol = override(PAPER, [f"{leaf}={end}"])
        except InputError:
            continue
        for method in METHODS.values():
            if leaf in method.settings or leaf.rpartition(".")[0] in method.settings:
                build_repair(method, protocol.repairs, exposure)
                built += 1
        if leaf.startswith("backbones.") and not leaf.endswith(("hidden", "heads")):
            for backbone in BACKBONES.values():
                build_backbone(backbone, protocol.backbones).network(3, 2)
    assert built


def test_a_protocol_built_by_hand_is_checked_too_and_numbers_of_numpy_are_plain():
    for build, name in (
        (lambda: BackboneProtocol(hidden=0), "hidden"),
        (lambda: BackboneProtocol(short=None), "budget"),
        (lambda: Protocol(backbones=None), "backbones"),
        (lambda: dataclasses.replace(PAPER, version="2"), "version"),
        (lambda: override(None, []), "Protocol"),
        (lambda: override(PAPER, "backbones.hidden=64"), "backbones.hidden"),
    ):
        with pytest.raises(InputError, match=name):
            build()
    own = BackboneProtocol(hidden=np.int64(64), dropout=np.float32(0.25))
    typed = override(PAPER, ["backbones.hidden=64", "backbones.dropout=0.25"])
    assert Protocol(backbones=own).digest == typed.digest


# What a stored result depends on: stage by stage, and on differences from the paper alone.

LEGACY = "f5ac0ef9f0b2"
"""What the folder of the independent protocol was called when the whole tree was hashed."""


def legacy_tree(protocol=INDEPENDENT):
    """Settings as they were written before the choices of the data and the start had names."""
    tree = protocol.settings()
    del tree["data"], tree["backbones"]["self_loops"], tree["backbones"]["zero_stream_biases"]
    del tree["repairs"]["evidence_ladder"]
    return tree


def moved(assignment, dataset="cora", backbone="sgc"):
    """Stages whose key a setting changes."""
    before = stage_keys(PAPER, dataset, backbone)
    after = stage_keys(override(PAPER, [assignment]), dataset, backbone)
    return {stage for stage in before if before[stage] != after[stage]}


EVERYTHING = {"frozen", "oracle", *METHODS}
LEARNED = {"reweighting", "set_translation", "node_translation"}
UNSEEDED = {"correct_and_smooth", "temperature_scaling", "label_propagation"}


@pytest.mark.parametrize(
    ("assignment", "stages"),
    [
        ("backbones.hidden=64", EVERYTHING),
        ("backbones.long.epochs=7", EVERYTHING),
        ("backbones.long.patience=none", EVERYTHING),
        ("backbones.short.epochs=7", set()),
        ("oracle.reachable_above=1e-6", {"oracle"}),
        ("repairs.seed=1", EVERYTHING - {"frozen", "oracle"} - UNSEEDED),
        ("batches.size=32", LEARNED),
        ("batches.sizes.pubmed=32", set()),
        ("batches.sizes.cora=32", LEARNED),
        ("batches.sizes.cora=64", set()),
        ("batches.backbones=mixhop", LEARNED),
    ],
)
def test_a_setting_moves_the_stages_that_read_it(assignment, stages):
    assert moved(assignment) == stages


def test_a_repair_is_built_anew_by_just_the_settings_that_its_key_names(exposure):
    """With less in a key, old records would pass for new ones."""

    def built(protocol):
        held = {name: build_repair(m, protocol.repairs, exposure) for name, m in METHODS.items()}
        return {name: (type(repair), repair.settings()) for name, repair in held.items()}

    usual, seen = built(PAPER), 0
    for assignment, protocol in changes():
        if assignment.startswith("repairs."):
            found = built(protocol)
            changed = {name for name in METHODS if found[name] != usual[name]}
            assert changed == moved(assignment) & METHODS.keys(), assignment
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("hidden", [4, 64, 128, 300])
def test_the_control_has_as_many_numbers_as_the_repair_it_controls(hidden, exposure):
    settings = override(PAPER, [f"repairs.hidden={hidden}"]).repairs
    width, classes = exposure.state.shape[2], exposure.num_classes
    first, second = (
        build_repair(METHODS[name], settings, exposure).num_parameters(width, classes)
        for name in ("set_translation", "node_translation")
    )
    assert 2 * abs(first - second) <= width + 2 * classes + 1


def test_a_backbone_depends_on_the_budget_it_is_trained_on():
    for name, backbone in BACKBONES.items():
        short = moved("backbones.short.epochs=7", backbone=name) == EVERYTHING
        long = moved("backbones.long.epochs=7", backbone=name) == EVERYTHING
        assert (short, long) == (backbone.budget == SHORT, backbone.budget == LONG), name
    assert moved("backbones.short.epochs=7", backbone="mine") == EVERYTHING
    assert moved("backbones.long.epochs=7", backbone="mine") == EVERYTHING
    own = dataclasses.replace(SHORT, epochs=7)
    assert PAPER.backbones.budget(own) is own


def test_a_further_setting_with_its_default_changes_no_address():
    """The tree of a later version has fields of its own on every level."""
    paper = PAPER.settings()
    later = {**paper, "extra": 3, "backbones": {**paper["backbones"], "residual": False}}
    assert differences(PAPER.settings(), later) == {}
    assert differences(later, later) == {}
    changes = override(PAPER, ["backbones.hidden=64"])
    assert differences(changes.settings(), later) == changes.differences()


def test_a_stage_of_another_version_is_made_anew_and_no_other(tmp_path, monkeypatch):
    """A further method is such a stage."""
    for stage in VERSIONS:  # records without keys are of the time when all were 1
        monkeypatch.setitem(VERSIONS, stage, 1)
    whole = make_record("cora", "gcn", 0, stages=stage_keys(PAPER, "cora", "gcn"))
    whole = dataclasses.replace(whole, methods={**whole.methods, "theirs": {"test": 0.5}})
    store = stored(tmp_path, whole, make_record("cora", "gcn", 1))
    runs = [Run("cora", "gcn", 0), Run("cora", "gcn", 1)]

    def current():
        return [set(current_methods(r, PAPER)) for r in store.records(PAPER.digest)]

    everything = {"oracle", *METHODS}
    assert len(make_plan(store, PAPER, runs).done) == 2
    monkeypatch.setitem(METHODS, "ours", METHODS["reweighting"])
    monkeypatch.setitem(VERSIONS, "ours", 1)
    assert current() == [everything | {"theirs"}, everything]
    monkeypatch.setitem(VERSIONS, "reweighting", 2)
    everything -= {"reweighting"}
    assert current() == [everything | {"theirs"}, everything]
    assert make_plan(store, PAPER, runs, ["oracle", "set_translation"]).cases == ()
    assert make_plan(store, PAPER, runs, ["reweighting"]).done == ()
    before = stage_keys(PAPER, "cora", "gcn")
    monkeypatch.setitem(VERSIONS, "frozen", 2)
    assert not before.items() & stage_keys(PAPER, "cora", "gcn").items()
    assert current() == [set(), set()]


@pytest.fixture
def legacy(tmp_path):
    """A store as earlier versions wrote it: the whole tree hashed, no keys in the records."""
    assert digest_of(legacy_tree()) == LEGACY
    folder = tmp_path / "store" / LEGACY
    place = folder / "cora" / "gcn"
    place.mkdir(parents=True)
    (folder / "protocol.json").write_text(json.dumps(legacy_tree(), indent=1))
    for split in range(3):
        record = make_record("cora", "gcn", split, 0.8 + split / 100, protocol=LEGACY)
        held = record.as_json()
        del held["stages"], held["stack"]
        (place / f"split-{split}.json").write_text(json.dumps(held))
    return Store(tmp_path / "store")


def test_a_store_of_earlier_versions_is_read_as_what_it_holds(legacy):
    names = sorted(path.as_posix() for path in Path(legacy.root).rglob("*"))
    assert legacy.digests() == [INDEPENDENT.digest]
    assert legacy.settings(INDEPENDENT.digest) == legacy_tree()
    found = list(legacy.records(INDEPENDENT.digest))
    assert [record.frozen["test"] for record in found] == pytest.approx([0.80, 0.81, 0.82])
    assert {record.protocol for record in found} == {INDEPENDENT.digest}
    runs = [Run("cora", "gcn", split) for split in range(4)]
    plan = make_plan(legacy, INDEPENDENT, runs)
    assert (len(plan.done), len(plan.missing)) == (3, 1)
    assert legacy.resolve(LEGACY) == INDEPENDENT.digest
    assert sorted(path.as_posix() for path in Path(legacy.root).rglob("*")) == names


def test_what_is_written_now_goes_before_what_was_written_then(legacy):
    records = make_record("cora", "gcn", 1, 0.5), make_record("cora", "gcn", 3, 0.6)
    legacy = stored(legacy.root, *records, protocol=INDEPENDENT)
    found = {r.split: r.frozen["test"] for r in legacy.records(INDEPENDENT.digest)}
    assert found == pytest.approx({0: 0.80, 1: 0.5, 2: 0.82, 3: 0.6})
    assert sorted(path.name for path in legacy.root.iterdir()) == sorted(
        [LEGACY, INDEPENDENT.digest]
    )


def test_another_protocol_of_earlier_versions_keeps_its_own_address(tmp_path):
    other = override(INDEPENDENT, ["backbones.hidden=64"])
    name = digest_of(legacy_tree(other))
    folder = tmp_path / name
    folder.mkdir()
    (folder / "protocol.json").write_text(json.dumps(legacy_tree(other)))
    assert Store(tmp_path).digests() == [other.digest]
    assert other.digest not in (name, PAPER.digest, INDEPENDENT.digest)
