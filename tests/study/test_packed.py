"""A study in one file: what goes in comes out, and what is damaged is named."""

from __future__ import annotations

import json

import pytest

from gnn_repair.errors import InputError
from gnn_repair.results.records import StoreWarning
from gnn_repair.results.rendering import RENDERERS
from gnn_repair.results.store import Packed, merge, pack
from gnn_repair.study import PAPER, Run, Store, make_tables, override, read_results
from tests.helpers.study.planted_records import make_record

OTHER = override(PAPER, ["backbones.hidden=64"])


@pytest.fixture
def store(tmp_path):
    held = Store(tmp_path / "store")
    for protocol in (PAPER, OTHER):
        held.begin(protocol)
        for split in range(3):
            test = 0.7 + split / 100
            held.put(make_record("cora", "gcn", split, test, protocol=protocol.digest))
    held.put_failure(PAPER.digest, Run("cora", "gat", 0), "a planted fault", "Traceback")
    return held


@pytest.fixture
def packed(store, tmp_path):
    assert pack(store.root, tmp_path / "study.jsonl") == 6
    return tmp_path / "study.jsonl"


def test_what_goes_in_comes_out(store, packed, tmp_path):
    held = Packed(packed)
    assert held.digests() == store.digests()
    for digest in held.digests():
        assert list(held.records(digest)) == list(store.records(digest))
        assert held.settings(digest) == store.settings(digest)
    merged = merge([packed], tmp_path / "back")
    assert (merged.added, merged.same, merged.kept) == (6, 0, ())
    back = Store(tmp_path / "back")
    for digest in held.digests():
        assert list(back.records(digest)) == list(store.records(digest))
    again = merge([packed, store.root], tmp_path / "back")
    assert (again.added, again.same, again.kept) == (0, 12, ())


def test_a_file_is_read_like_a_store(store, packed):
    from_file, from_store = read_results(packed), read_results(store.root)
    assert from_file.equals(from_store)
    first, second = (
        RENDERERS["markdown"](make_tables(held.records(PAPER.digest)))
        for held in (store, Packed(packed))
    )
    assert first == second
    assert set(read_results(packed, OTHER.digest)["protocol"]) == {OTHER.digest}
    with pytest.raises(InputError, match="holds no result of protocol zzz; it has"):
        read_results(packed, "zzz")


def test_what_a_store_has_already_stays(store, packed):
    store.put(make_record("cora", "gcn", 1, 0.1))
    merged = merge([packed], store.root)
    assert (merged.added, merged.same) == (0, 5)
    assert merged.kept == (Run("cora", "gcn", 1),)
    assert store.get(PAPER.digest, Run("cora", "gcn", 1)).frozen["test"] == 0.1


def test_one_protocol_alone(store, tmp_path):
    assert pack(store.root, tmp_path / "one.jsonl", OTHER.digest) == 3
    assert Packed(tmp_path / "one.jsonl").digests() == [OTHER.digest]
    with pytest.raises(InputError, match="holds no result of protocol zzz"):
        pack(store.root, tmp_path / "none.jsonl", "zzz")
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(
    ("damage", "left", "fault"),
    [
        (lambda lines: lines[:-2], 4, "it lacks 2 of its 6 records"),
        (lambda lines: [*lines[:-1], lines[-1][:50]], 5, "line 7: it is truncated or not JSON"),
        (lambda lines: [*lines, lines[-1]], 6, "line 8: it is there twice"),
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
        held = Packed(packed)
    assert sum(len(list(held.records(digest))) for digest in held.digests()) == left
    assert packed.read_bytes() == broken


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a packed study"),
        (b"\x00" * 100, "is not a packed study"),
        (b"[1]\n", "is not a packed study"),
        (b'{"format": "gnn-repair study", "version": 2}\n', "of version 2, not 1; update"),
        (b'{"format": "gnn-repair study", "version": 1}\n', "has a damaged header"),
    ],
)
def test_what_is_no_packed_study_is_refused(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Packed(path)


def test_settings_that_lie_are_not_used(packed):
    header, *lines = packed.read_text().splitlines()
    words = json.loads(header)
    words["protocols"][PAPER.digest]["backbones"]["hidden"] = 3
    packed.write_text("\n".join([json.dumps(words), *lines]) + "\n")
    assert Packed(packed).settings(PAPER.digest) is None
    with pytest.raises(InputError, match="lacks the settings of protocol"):
        merge([packed], packed.parent / "other")
