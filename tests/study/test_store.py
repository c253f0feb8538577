"""The store and a study in one file: whole or not at all, nothing foreign read, nothing lost."""

from __future__ import annotations

import copy
import errno
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gnn_repair.errors import InputError, ResourceError
from gnn_repair.results.records import RunRecord, StoreWarning, parse_record, unite
from gnn_repair.results.store import PackedResults, merge, pack
from gnn_repair.study import (
    PAPER,
    Run,
    Store,
    export_results,
    make_plan,
    override,
    read_results,
    run_study,
)
from gnn_repair.study.case import Clock, stack_of
from tests.campaigns import store_kills
from tests.helpers.study.planted_records import make_record, stored

# The store: whole files or none, nothing foreign read, nothing lost by merging.

RUN = Run("cora", "gcn", 0)


@pytest.fixture
def store(tmp_path):
    return stored(tmp_path / "store", make_record("cora", "gcn", 0))


def files(store):
    return sorted(p.relative_to(store.root).as_posix() for p in store.root.rglob("*.*"))


def test_a_record_comes_back_and_another_protocol_never_mixes(store):
    record, other = make_record("cora", "gcn", 0), override(PAPER, ["backbones.hidden=64"])
    assert store.get(PAPER.digest, RUN) == record and store.get(other.digest, RUN) is None
    assert list(store.records(PAPER.digest)) == [record]
    assert store.settings(PAPER.digest) == PAPER.settings()
    folder = PAPER.digest
    assert files(store) == [f"{folder}/cora/gcn/split-0.json", f"{folder}/protocol.json"]
    store = stored(store.root, make_record("cora", "gcn", 0, test=0.1), protocol=other)
    assert store.get(PAPER.digest, RUN) == record
    assert store.get(other.digest, RUN).frozen["test"] == 0.1
    assert store.digests() == sorted([PAPER.digest, other.digest])


def test_a_failure_gives_way_to_a_result(store):
    run = Run("cora", "gcn", 5)
    store.put_failure(PAPER.digest, run, "boom", "Traceback …")
    assert store.failure(PAPER.digest, run) == "boom"
    assert [r.split for r in store.records(PAPER.digest)] == [0]
    store.put(make_record("cora", "gcn", 5))
    assert store.failure(PAPER.digest, run) is None


DAMAGE = [
    (lambda text: text[: len(text) // 2], "truncated or not JSON"),
    (lambda text: b"\x00\xff", "truncated or not JSON"),
    (lambda text: "[" * 100_000, "truncated or not JSON"),
    (lambda text: text + " " * 2**20, "more than 1,048,576 bytes"),
    (lambda text: '{"hello": 1}', "not a result of this package"),
    (lambda text: text.replace('"split": 0', '"split": 1'), "its split is 1, not 0"),
    (lambda text: text.replace('"split": 0', '"split": false'), "its split is False, not 0"),
    (lambda text: text.replace('"cora"', '"citeseer"'), "its dataset is 'citeseer'"),
    (lambda text: text.replace(PAPER.digest, "0" * 12), "its protocol is '000000000000'"),
    (lambda text: text.replace('"version": 1', '"version": 9'), "version is 9, newer than 1"),
    (lambda text: text.replace('"methods"', '"other"'), "it has no methods"),
    (lambda text: text.replace('"test": 0.8,', '"test": NaN,'), "NaN or infinity"),
    (lambda text: text.replace('"test": 0.8,', '"test": 1e999,'), "test of frozen is inf"),
    (lambda text: text.replace('"test": 0.8,', '"test": 1.2,'), "accuracy of frozen is 1.2"),
    (lambda text: text.replace('"test": 0.8,', '"test": "0.8",'), "test of frozen is '0.8'"),
    (lambda text: text.replace('"error_reach": 0.5', '"error_reach": 5'), "the error_reach of"),
    (lambda text: text.replace('"nodes": 10', '"nodes": "10"'), "nodes of oracle val is '10'"),
    (lambda text: text.replace('"refit_head": {', '"\\u001b[31m": {'), "it names a method"),
]


def snapshot(folder):
    """Every name below a folder with what lies there."""
    return {
        path.relative_to(folder).as_posix(): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(("damage", "fault"), DAMAGE)
def test_a_damaged_or_foreign_file_is_left_out_and_left_alone(store, damage, fault):
    path = store.path(PAPER.digest, RUN)
    broken = damage(path.read_text())
    path.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
    before, content = snapshot(store.root), path.read_bytes()
    with pytest.warns(StoreWarning, match=f"split-0.json: .*{fault}.*; it is left out"):
        assert store.get(PAPER.digest, RUN) is None
    with pytest.warns(StoreWarning, match=fault):
        assert list(store.records(PAPER.digest)) == []
    with pytest.warns(StoreWarning, match=fault), pytest.raises(InputError, match="no result"):
        read_results(store.root)
    assert snapshot(store.root) == before
    if "newer" in fault:
        with pytest.raises(InputError, match="written by a later version of gnn-repair"):
            store.put(make_record("cora", "gcn", 0))
        with pytest.raises(InputError, match="written by a later version"):
            run_study(["cora"], ["gcn"], [0], store=store.root, work=lambda *given: 1 / 0)
        assert snapshot(store.root) == before
        return
    store.put(make_record("cora", "gcn", 0))
    assert store.get(PAPER.digest, RUN) is not None
    assert path.with_name("split-0.json.damaged").read_bytes() == content


def plant_hostile(folder):
    """Everything that may lie in a folder of results without being one."""
    (folder / "loop").symlink_to("loop")
    (folder / "split-1.json").symlink_to("split-1.json")
    (folder / "split-2.json").mkdir()
    os.mkfifo(folder / "split-3.json")
    with (folder / "split-4.json").open("wb") as file:
        file.truncate(30 * 2**30)
    (folder / "split-00.json").write_text((folder / "split-0.json").read_text())
    (folder / "split-5.json").write_bytes(b"\xff\xfe")
    (folder / "notes.txt").write_text("mine")
    (folder / ".split-6.json.abc").write_text("{")
    (folder / "split-7.json").symlink_to(folder.parent / "absent")
    (folder.parent / "not a backbone!").mkdir()
    (folder.parent.parent / "é").mkdir()
    (folder.parent.parent / "file").write_text("")
    (folder.parents[2] / "ffffffffffff").mkdir()
    (folder.parents[2] / "elsewhere").mkdir()


def test_a_hostile_store_is_read_without_changing_it(store, tmp_path):
    plant_hostile(store.path(PAPER.digest, RUN).parent)
    before = snapshot(store.root)
    with pytest.warns(StoreWarning) as said:
        (record,) = store.records(PAPER.digest)
    assert record.split == 0
    text = "\n".join(str(warning.message) for warning in said)
    for name in ("split-00", "split-1", "split-2", "split-3", "split-4", "split-5", "split-7"):
        assert f"{name}.json: it " in text, name
    for name in ("notes.txt", "not a backbone!", "é", "file", "loop"):
        assert f"{name}: it is not" in text
    with pytest.warns(StoreWarning):
        frame = read_results(store.root, PAPER.digest)
    assert frame["split"].unique().tolist() == [0]
    with pytest.warns(StoreWarning):
        plan = make_plan(store, PAPER, [Run("cora", "gcn", k) for k in range(8)])
    assert (len(plan.done), len(plan.missing)) == (1, 7)
    with pytest.warns(StoreWarning):
        assert export_results(store.root, tmp_path / "all.csv") == len(frame)
    assert snapshot(store.root) == before


def test_a_protocol_file_that_lies_is_left_out_and_kept_aside_when_replaced(store):
    path = store.root / PAPER.digest / "protocol.json"
    lie = json.dumps(override(PAPER, ["backbones.hidden=64"]).settings())
    path.write_text(lie)
    fresh = Store(store.root)
    with pytest.warns(StoreWarning, match="not the protocol its folder is named after"):
        assert fresh.settings(PAPER.digest) is None
    assert path.read_text() == lie
    with pytest.warns(StoreWarning, match="not the protocol its folder is named after"):
        fresh.begin(PAPER)
    assert fresh.settings(PAPER.digest) == PAPER.settings()
    assert path.with_name("protocol.json.damaged").read_text() == lie


@pytest.mark.parametrize("content", [None, '{"a":'])
@pytest.mark.parametrize("changes", [[], ["backbones.hidden=64"]])
def test_lost_settings_are_written_again_by_a_run_that_has_nothing_else_to_do(
    tmp_path, content, changes
):
    protocol = override(PAPER, changes)
    store = stored(tmp_path, make_record("cora", "gcn", 0), protocol=protocol)
    path = store.root / protocol.digest / "protocol.json"
    path.unlink() if content is None else path.write_text(content)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        if changes:
            with pytest.raises(InputError, match=f"{protocol.digest}.* run .*--set"):
                Store(store.root).protocol()
        else:
            assert Store(store.root).protocol() == PAPER
        run_study(["cora"], ["gcn"], [0], store=tmp_path, protocol=protocol)
    assert len(said) == (content is not None)
    assert Store(store.root).protocol() == protocol


def test_a_read_only_store_can_be_read(store):
    path = store.path(PAPER.digest, RUN)
    damaged = path.with_name("split-1.json")
    damaged.write_text("{")
    folders = [path.parent, store.root / PAPER.digest, store.root]
    for folder in folders:
        folder.chmod(0o555)
    try:
        if os.access(path.parent, os.W_OK):
            pytest.skip("this user may write anywhere")
        with pytest.warns(StoreWarning, match="left out"):
            assert len(list(store.records(PAPER.digest))) == 1
        with pytest.raises(InputError, match="choose another"):
            store.put(make_record("cora", "gcn", 2))
        with pytest.raises(InputError, match="choose another folder"):
            store.begin(PAPER)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert damaged.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_old_record_and_no_rubbish(store, monkeypatch, number):
    before = files(store)

    def full(self, target):
        raise OSError(number, "full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        for split in (0, 1):
            with pytest.raises(ResourceError, match="full; make room"):
                store.put(make_record("cora", "gcn", split, test=0.1))
    assert files(store) == before
    assert store.get(PAPER.digest, RUN).frozen["test"] == 0.8


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "é", "a b", "x" * 200, "nul\0"])
def test_names_that_cannot_stand_in_a_path_are_refused(store, name):
    with pytest.raises(InputError, match="use letters, digits"):
        store.path(PAPER.digest, Run(name, "gcn", 0))
    with pytest.raises(InputError, match="use letters, digits"):
        store.path(PAPER.digest, Run("cora", name, 0))


# A study in one file: what goes in comes out, and what is damaged is named.

OTHER = override(PAPER, ["backbones.hidden=64"])


@pytest.fixture
def store_packed(tmp_path):
    records = [make_record("cora", "gcn", split, 0.7 + split / 100) for split in range(3)]
    for protocol in (PAPER, OTHER):
        held = stored(tmp_path / "store", *records, protocol=protocol)
    held.put_failure(PAPER.digest, Run("cora", "gat", 0), "a planted fault", "Traceback")
    return held


@pytest.fixture
def packed(store_packed, tmp_path):
    assert pack(store_packed.root, tmp_path / "study.jsonl") == 6
    return tmp_path / "study.jsonl"


def content(source):
    """Protocols and records; settings with them."""
    return {d: [source.settings(d), *source.records(d)] for d in source.digests()}


def test_what_goes_in_comes_out_and_what_is_there_already_stays(store_packed, packed, tmp_path):
    assert content(PackedResults(packed)) == content(store_packed)
    merged = merge([packed], tmp_path / "back")
    assert (merged.added, merged.same, merged.kept) == (6, 0, ())
    assert content(Store(tmp_path / "back")) == content(store_packed)
    again = merge([packed, store_packed.root], tmp_path / "back")
    assert (again.added, again.same, again.kept) == (0, 12, ())
    store_packed.put(make_record("cora", "gcn", 1, 0.1))
    merged = merge([packed], store_packed.root)
    assert (merged.added, merged.same) == (0, 5)
    assert merged.kept == (Run("cora", "gcn", 1),)
    assert store_packed.get(PAPER.digest, Run("cora", "gcn", 1)).frozen["test"] == 0.1


@pytest.mark.parametrize(
    ("damage", "left", "fault"),
    [
        (lambda lines: lines[:-2], 4, "it lacks 2 of its 6 records"),
        (lambda lines: [*lines[:-1], lines[-1][:50]], 5, "line 7: it is truncated or not JSON"),
        (lambda lines: [*lines, lines[-1]], 6, "line 8: it is there twice"),
        (lambda lines: [*lines, lines[-1].replace(b'"split":2', b'"split":7')], 7, "has 7 records"),
        (lambda lines: [*lines, b"\xff\xfe"], 6, "line 8: it is truncated or not JSON"),
        (lambda lines: [*lines, b"x" * (2**20 + 50)], 6, "line 8: it is truncated"),
        (lambda lines: [lines[0], b"", *lines[1:]], 6, "line 2: it is truncated"),
        (lambda lines: [x.replace(b'"test":0.7,', b'"test":NaN,') for x in lines], 2, "NaN or inf"),
        (lambda lines: [x.replace(b'"split":1', b'"split":-1') for x in lines], 4, "split is -1"),
        (lambda lines: [x.replace(b'"gcn"', b'"../x"') for x in lines], 0, "backbone is '../x'"),
    ],
)
def test_a_damaged_line_is_named_and_left_out(packed, damage, left, fault):
    broken = b"\n".join(damage(packed.read_bytes().rstrip(b"\n").split(b"\n"))) + b"\n"
    packed.write_bytes(broken)
    with pytest.warns(StoreWarning, match=fault):
        held = PackedResults(packed)
    assert sum(len(list(held.records(digest))) for digest in held.digests()) == left
    assert packed.read_bytes() == broken


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (b"", "is not a packed study"),
        (b"\x00" * 100, "is not a packed study"),
        (b"[1]\n", "is not a packed study"),
        (b'{"format": "gnn-repair study", "version": 2}\n', "of version 2, not 1; update"),
        (b'{"format": "gnn-repair study", "version": 1}\n', "has a damaged header"),
    ],
)
def test_what_is_no_packed_study_is_refused_and_settings_that_lie_are_not_used(
    packed, first, message
):
    header, rest = packed.read_bytes().split(b"\n", 1)
    packed.write_bytes(first)
    with pytest.raises(InputError, match=message):
        PackedResults(packed)
    packed.write_bytes(header.replace(b'"hidden":128', b'"hidden":3') + b"\n" + rest)
    assert PackedResults(packed).settings(PAPER.digest) is None
    with pytest.raises(InputError, match="lacks the settings of protocol"):
        merge([packed], packed.parent / "other")


# Records of one frozen model with other methods become one; others do not.


def scores(test):
    return {"train": 0.9, "val": 0.8, "test": test}


@pytest.fixture
def there():
    return RunRecord(
        protocol="p", dataset="cora", backbone="gcn", split=0, graph={"nodes": 5},
        frozen=scores(0.7), stages={"frozen": "f", "a": "1"}, methods={"a": scores(0.75)},
        seconds={"frozen": 1.0, "a": 2.0, "total": 3.0}, stack=[0],
        environment={"revision": "r1", "device": "cpu"},
    )  # fmt: skip


@pytest.fixture
def other(there):
    return replace(
        copy.deepcopy(there),
        methods={"a": scores(0.75), "b": scores(0.6)},
        stages={"frozen": "f", "a": "1", "b": "2"},
        seconds={"frozen": 9.0, "a": 9.0, "b": 4.0, "total": 22.0},
        oracle={"test": {"error_reach": 0.5}},
        environment={"revision": "r2", "device": "cpu"},
    )


def test_methods_and_oracle_are_added(there, other):
    whole = unite(there, other)
    assert whole == replace(
        other,
        seconds={"frozen": 1.0, "a": 2.0, "b": 4.0, "total": 7.0},
        environment=there.environment | {"revision of b": "r2", "revision of oracle": "r2"},
    )
    assert parse_record(whole.as_json()) == whole
    assert unite(whole, other) == whole and unite(whole, there) == whole


@pytest.mark.parametrize(
    "differ",
    [
        lambda there, other: other.frozen.update(test=0.71),
        lambda there, other: other.graph.update(nodes=6),
        lambda there, other: other.stack.append(1),
        lambda there, other: other.methods["a"].update(test=0.1),
        lambda there, other: other.stages.update(a="7"),
        lambda there, other: object.__setattr__(there, "oracle", {"test": {"error_reach": 0.6}}),
    ],
)
def test_what_disagrees_is_not_united(there, other, differ):
    differ(there, other)
    assert unite(there, other) is None


# The campaign against the store: a short sample, and faults planted for it to find.


def test_a_few_kills_lose_nothing():
    """`make campaign ARGS="--only store --minutes 10"` kills some three thousand."""
    found = store_kills.campaign(seed=5, seconds=0.5)
    assert found.name == "store"
    assert found.faults == ()
    assert found.tried == found.details["kills"] >= 1
    assert found.details["written"] >= 1


@pytest.fixture
def root(tmp_path):
    return stored(tmp_path, *(store_kills.make_record(k, 100 + k) for k in range(3))).root


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (lambda path: path.unlink(), "was written and is not there"),
        (lambda path: path.write_bytes(path.read_bytes()[:99]), "truncated or not JSON"),
        (
            lambda path: Store(path.parents[3]).put(store_kills.make_record(0, 55)),
            "holds 55 where 100",
        ),
        (lambda path: path.write_text(path.read_text().replace("100", "99", 1)), "is not whole"),
        (lambda path: (path.parent / "split-01.json").touch(), "is not the name of a result"),
        (lambda path: (path.parent / "split-0.json~").touch(), "was left behind"),
        (lambda path: (path.parent / "split-9.failed.json").write_text("{"), "is torn"),
    ],
)
def test_planted_faults_are_found(root, plant, fault):
    kept = {Run("kills", "writer", split): 100 + split for split in range(3)}
    assert store_kills.check(root, dict(kept), {}, 7) == []
    plant(root / PAPER.digest / "kills" / "writer" / "split-0.json")
    assert any(fault in found for found in store_kills.check(root, dict(kept), {}, 7))
    if "holds" in fault:  # a record that was put in place before its writer could say so
        assert store_kills.check(root, dict(kept), {Run("kills", "writer", 0): 55}, 7) == []


# What a record brings along, and what a run's time and stack are.


def test_models_are_those_of_the_record_that_is_there(store):
    for held in ({"frozen": b"1", "refit_head": b"2"}, {"frozen": b"3"}, {}):
        store.put(replace(make_record("cora", "gcn", 0), models=held))
        found = store.models(PAPER.digest, RUN)
        assert {name: path.read_bytes() for name, path in found.items()} == held


@pytest.mark.parametrize("united", [0, 1])
@pytest.mark.parametrize("brought", [{}, {"frozen": b"9", "refit_head": b"2"}])
def test_merging_brings_models_that_are_lacking_and_leaves_those_that_are_there(
    store, tmp_path, brought, united
):
    """Of the same record, and of one with a further method."""
    record = make_record("cora", "gcn", 0)
    fewer = {name: row for name, row in record.methods.items() if name != "refit_head"}
    own = replace(record, methods=fewer if united else record.methods, models={"frozen": b"1"})
    store.put(own)
    source = stored(tmp_path / "source", replace(record, models=brought))
    assert merge([source.root], store.root).united == united
    assert store.get(PAPER.digest, RUN).methods == record.methods
    models = store.models(PAPER.digest, RUN)
    held = {name: path.read_bytes() for name, path in models.items()}
    assert held == {**brought, "frozen": b"1"}


def test_the_stack_of_a_record_that_does_not_name_it_is_its_case_s(store):
    for backbone, split in (("gcn", 1), ("gat", 0), ("gat", 4)):
        store.put(make_record("cora", backbone, split, members=2))
    store.put(make_record("pubmed", "gcn", 2, members=2))
    record = make_record("cora", "gcn", 1, members=2)
    assert stack_of(store, record) == (0, 1)
    assert stack_of(store, replace(record, members=3)) == (1,)
    assert stack_of(store, replace(record, stack=[7, 1, 3])) == (1, 3, 7)
    store.put(make_record("cora", "gcn", 5, members=2))
    assert stack_of(store, record) == (1,)  # which two of three is not known


def test_shares_of_a_stack_s_time_add_up():
    clock = Clock(torch.device("cpu"))
    clock.seconds |= {"frozen": 6.0, "total": 9.0}
    assert clock.shares(3) == {"frozen": 2.0, "total": 3.0}
