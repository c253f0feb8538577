"""The store: whole files or none, nothing foreign read, nothing lost by merging."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from planted import make_record

from gnn_repair.errors import InputError, ResourceError
from gnn_repair.study import PAPER, Run, Store, override
from gnn_repair.study.store import StoreWarning

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
    assert {name: found[name] for name in record} == record
    assert list(store.records(PAPER.digest)) == [found]
    assert store.settings(PAPER.digest) == PAPER.settings()
    folder = PAPER.digest
    assert files(store) == [f"{folder}/cora/gcn/split-0.json", f"{folder}/protocol.json"]


def test_another_protocol_never_mixes(store):
    other = override(PAPER, ["backbones.hidden=64"])
    assert store.get(other.digest, RUN) is None
    store.begin(other)
    store.put(make_record("cora", "gcn", 0, test=0.1, protocol=other.digest))
    assert store.get(PAPER.digest, RUN)["frozen"]["test"] == 0.8
    assert store.get(other.digest, RUN)["frozen"]["test"] == 0.1
    assert store.digests() == sorted([PAPER.digest, other.digest])


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda text: text[: len(text) // 2], "truncated or not JSON"),
        (lambda text: "", "truncated or not JSON"),
        (lambda text: "[1, 2]", "truncated or not JSON"),
        (lambda text: "\x00\xff", "truncated or not JSON"),
        (lambda text: "[" * 100_000, "truncated or not JSON"),
        (lambda text: '{"hello": 1}', "not a result of this package"),
        (lambda text: text.replace('"split": 0', '"split": 1'), "its split is 1, not 0"),
        (lambda text: text.replace('"cora"', '"citeseer"'), "its dataset is 'citeseer'"),
        (lambda text: text.replace(PAPER.digest, "0" * 12), "its protocol is '000000000000'"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "format version is 9"),
        (lambda text: text.replace('"methods"', '"other"'), "it has no methods"),
    ],
)
def test_a_damaged_or_foreign_file_is_set_aside(store, damage, fault):
    path = store.path(PAPER.digest, RUN)
    broken = damage(path.read_text())
    path.write_text(broken)
    with pytest.warns(StoreWarning, match=fault):
        assert store.get(PAPER.digest, RUN) is None
    aside = path.with_name("split-0.json.damaged")
    assert not path.exists()
    assert aside.read_text() == broken
    assert list(store.records(PAPER.digest)) == []
    store.put(make_record("cora", "gcn", 0))
    assert store.get(PAPER.digest, RUN) is not None


def test_a_protocol_file_that_lies_is_set_aside(store):
    path = store.root / PAPER.digest / "protocol.json"
    path.write_text(json.dumps(override(PAPER, ["backbones.hidden=64"]).settings()))
    with pytest.warns(StoreWarning, match="not the protocol its folder is named after"):
        store.begin(PAPER)
    assert store.settings(PAPER.digest) == PAPER.settings()


def test_stores_merge_by_copying(store, tmp_path):
    other = Store(tmp_path / "other")
    other.begin(PAPER)
    other.put(make_record("cora", "gcn", 1, test=0.7))
    other.put(make_record("pubmed", "sgc", 0, test=0.6))
    shutil.copytree(other.root, store.root, dirs_exist_ok=True)
    found = {(r["dataset"], r["split"]): r["frozen"]["test"] for r in store.records(PAPER.digest)}
    assert found == {("cora", 0): 0.8, ("cora", 1): 0.7, ("pubmed", 0): 0.6}


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
        with pytest.warns(StoreWarning, match="ignored"):
            assert len(list(store.records(PAPER.digest))) == 1
        with pytest.raises(InputError, match="choose another"):
            store.put(make_record("cora", "gcn", 2))
        with pytest.raises(InputError, match="choose another folder"):
            store.begin(PAPER)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert damaged.exists()


def test_a_file_that_cannot_be_set_aside_is_ignored(store, monkeypatch):
    path = store.path(PAPER.digest, RUN)
    path.write_text("{")

    def refuse(self, target):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.warns(StoreWarning, match="ignored"):
        assert store.get(PAPER.digest, RUN) is None
    assert path.exists()


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
    assert store.get(PAPER.digest, RUN)["frozen"]["test"] == 0.8


def test_a_failure_gives_way_to_a_result(store):
    run = Run("cora", "gcn", 5)
    store.put_failure(PAPER.digest, run, "boom", "Traceback …")
    assert store.failure(PAPER.digest, run) == "boom"
    assert store.get(PAPER.digest, run) is None
    assert [r["split"] for r in store.records(PAPER.digest)] == [0]
    store.put(make_record("cora", "gcn", 5))
    assert store.failure(PAPER.digest, run) is None


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "é", "a b", "x" * 200, "nul\0"])
def test_names_that_cannot_stand_in_a_path_are_refused(store, name):
    with pytest.raises(InputError, match="use letters, digits"):
        store.path(PAPER.digest, Run(name, "gcn", 0))
    with pytest.raises(InputError, match="use letters, digits"):
        store.path(PAPER.digest, Run("cora", name, 0))


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; name a folder"):
        Store(tmp_path / "file")
