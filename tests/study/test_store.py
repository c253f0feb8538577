"""The store: whole files or none, nothing foreign read, nothing lost by merging."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from gnn_repair.errors import InputError, ResourceError
from gnn_repair.results.records import StoreWarning
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
from tests.helpers.study.planted_records import fake_case, make_record

RUN = Run("cora", "gcn", 0)


@pytest.fixture
def store(tmp_path):
    held = Store(tmp_path / "store")
    held.begin(PAPER)
    held.put(make_record("cora", "gcn", 0))
    return held


def files(store):
    return sorted(p.relative_to(store.root).as_posix() for p in store.root.rglob("*.*"))


def test_a_record_comes_back(store):
    record = make_record("cora", "gcn", 0)
    found = store.get(PAPER.digest, RUN)
    assert found == record
    assert list(store.records(PAPER.digest)) == [found]
    assert store.settings(PAPER.digest) == PAPER.settings()
    folder = PAPER.digest
    assert files(store) == [f"{folder}/cora/gcn/split-0.json", f"{folder}/protocol.json"]


def test_another_protocol_never_mixes(store):
    other = override(PAPER, ["backbones.hidden=64"])
    assert store.get(other.digest, RUN) is None
    store.begin(other)
    store.put(make_record("cora", "gcn", 0, test=0.1, protocol=other.digest))
    assert store.get(PAPER.digest, RUN).frozen["test"] == 0.8
    assert store.get(other.digest, RUN).frozen["test"] == 0.1
    assert store.digests() == sorted([PAPER.digest, other.digest])


DAMAGE = [
    (lambda text: text[: len(text) // 2], "truncated or not JSON"),
    (lambda text: b"\x00\xff", "truncated or not JSON"),
    (lambda text: "[" * 100_000, "truncated or not JSON"),
    (lambda text: text + " " * 2**20, "more than 1,048,576 bytes"),
    (lambda text: '{"hello": 1}', "not a result of this package"),
    (lambda text: text.replace('"split": 0', '"split": 1'), "its split is 1, not 0"),
    (lambda text: text.replace('"cora"', '"citeseer"'), "its dataset is 'citeseer'"),
    (lambda text: text.replace(PAPER.digest, "0" * 12), "its protocol is '000000000000'"),
    (lambda text: text.replace('"version": 1', '"version": 9'), "version is 9, newer than 1"),
    (lambda text: text.replace('"methods"', '"other"'), "it has no methods"),
    (lambda text: text.replace('"test": 0.8,', '"test": NaN,'), "NaN or infinity"),
    (lambda text: text.replace('"test": 0.8,', '"test": 1e999,'), "test of frozen is inf"),
    (lambda text: text.replace('"test": 0.8,', '"test": 1.2,'), "accuracy of frozen is 1.2"),
    (lambda text: text.replace('"test": 0.8,', '"test": "0.8",'), "test of frozen is '0.8'"),
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
    with pytest.warns(StoreWarning, match=fault):
        assert read_results(store.root).empty
    assert snapshot(store.root) == before
    if "newer" in fault:
        with pytest.raises(InputError, match="written by a later version of gnn-repair"):
            store.put(make_record("cora", "gcn", 0))
        with pytest.raises(InputError, match="written by a later version"):
            run_study(["cora"], ["gcn"], [0], store=store.root, work=fake_case)
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


def test_a_full_disk_leaves_the_old_record_and_no_rubbish(store, monkeypatch):
    before = files(store)

    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(ResourceError, match="No space left on device; make room"):
            store.put(make_record("cora", "gcn", 0, test=0.1))
        with pytest.raises(ResourceError, match="No space left"):
            store.put(make_record("cora", "gcn", 1))
    assert files(store) == before
    assert [p for p in store.root.rglob(".*") if p.is_file()] == []
    assert store.get(PAPER.digest, RUN).frozen["test"] == 0.8


def test_a_failure_gives_way_to_a_result(store):
    run = Run("cora", "gcn", 5)
    store.put_failure(PAPER.digest, run, "boom", "Traceback …")
    assert store.failure(PAPER.digest, run) == "boom"
    assert store.get(PAPER.digest, run) is None
    assert [r.split for r in store.records(PAPER.digest)] == [0]
    store.put(make_record("cora", "gcn", 5))
    assert store.failure(PAPER.digest, run) is None


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "é", "a b", "x" * 200, "nul\0"])
def test_names_that_cannot_stand_in_a_path_are_refused(store, name):
    with pytest.raises(InputError, match="use letters, digits"):
        store.path(PAPER.digest, Run(name, "gcn", 0))
    with pytest.raises(InputError, match="use letters, digits"):
        store.path(PAPER.digest, Run("cora", name, 0))
