"""Saved files: whole or not at all, never confused, and believed only after they were checked."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gnn_repair import atomic
from gnn_repair.atomic import replacing
from gnn_repair.errors import FileFormatError, InputError, ResourceError
from gnn_repair.files import check_fields, load_tensors, parse_json, save_tensors


@pytest.fixture(autouse=True)
def fresh_sweeps():
    """Folders are looked through once a process; each test is to be the first."""
    atomic.sweep.cache_clear()


def save_toy(path: Path) -> dict[str, torch.Tensor]:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False])}
    save_tensors(path, "toy", {"n": 1, "text": "β"}, tensors)
    return tensors


VALUES = torch.arange(6.0)
TENSORS = {
    "scalar": torch.tensor(3.5),
    "one number of stride 0": torch.tensor(2.5).expand(1),
    "empty": torch.empty(0, 4),
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "int64": torch.tensor([-1, 2**62]),
    "int8": torch.tensor([-1, 7, 3], dtype=torch.int8),
    "transposed": torch.arange(6, dtype=torch.int32).view(2, 3).t(),
    "whole": VALUES,
    "memory of another": VALUES[2:4],
    "truth": torch.tensor([True, False]),
}


def test_every_tensor_comes_back_and_is_plain_safetensors(tmp_path):
    save_tensors(tmp_path / "a", "toy", {"n": 1}, TENSORS)
    header, found = load_tensors(tmp_path / "a", "toy")
    assert header == {"n": 1}
    for read in (found, load_file(tmp_path / "a")):
        assert read.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor), name
    assert load_tensors(tmp_path / "a", "new", formerly=("toy",))[0] == header
    with pytest.raises(FileFormatError, match="holds toy, not other"):
        load_tensors(tmp_path / "a", "other")


# Altered content ----------------------------------------------------------------------------------


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    path = tmp_path / "toy"
    tensors = save_toy(path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        bit = 1 << (place % 8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            header, found = load_tensors(path, "toy")
        except FileFormatError:
            continue
        assert header == {"n": 1, "text": "β"}
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    path.write_bytes(whole.replace(b'"F32"', b'"I32"'))  # the same bytes as other numbers
    with pytest.raises(FileFormatError, match="checksum"):
        load_tensors(path, "toy")


def test_files_of_earlier_versions_are_read_but_not_where_a_checksum_is_due(tmp_path):
    metadata = {"kind": "toy", "header": json.dumps({"n": 1})}
    save_file({"a": torch.ones(2)}, tmp_path / "old", metadata=metadata)
    assert load_tensors(tmp_path / "old", "toy")[0] == {"n": 1}
    with pytest.raises(FileFormatError, match="no checksum"):
        load_tensors(tmp_path / "old", "toy", sealed=True)


def described(header: str, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header.encode())) + header.encode() + body


ENTRY = '"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}'


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0", b"\xff" * 8, b"\x03" + b"\0" * 7 + b"\xff\xfe{"),
        described("[" * 100_000),
        described('{"a": 1, "a": 2}'),
        described('{"__metadata__": {"kind": NaN}}'),
        described('{"__metadata__": {"kind": 1e999}}'),
        described('{"__metadata__": {"kind": "\\ud800"}}'),
        described("3"),
        described('{"__metadata__": [1]}'),
        described(f"{{{ENTRY}}}"),
        described(f"{{{ENTRY}}}", b"\0" * 9),
        described(f"{{{ENTRY.replace('[1]', '[2305843009213693952]')}}}", b"\0" * 8),
        described(f"{{{ENTRY.replace('[1]', '[-1]')}}}", b"\0" * 8),
        described(f"{{{ENTRY.replace('F64', 'F13')}}}", b"\0" * 8),
        described(f"{{{ENTRY.replace('F64', 'BOOL').replace('[1]', '[8]')}}}", b"\2" * 8),
    ],
    ids=range(17),
)
def test_what_is_no_such_file_is_one_sentence(content, tmp_path):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"something else, not toy|damaged or") as caught:
        load_tensors(tmp_path / "bad", "toy")
    assert "\n" not in str(caught.value)


def test_truth_values_are_true_or_false(tmp_path):
    metadata = {"kind": "toy", "header": "{}"}
    save_file({"b": torch.tensor([True])}, tmp_path / "old", metadata=metadata)
    content = (tmp_path / "old").read_bytes()
    (tmp_path / "old").write_bytes(content[:-1] + b"\7")
    with pytest.raises(FileFormatError, match="neither true nor false"):
        load_tensors(tmp_path / "old", "toy")


def test_json_is_read_strictly():
    assert parse_json('{"a": [1, 2.5, null, true, "β"]}') == {"a": [1, 2.5, None, True, "β"]}
    for bad in ('{"a": 1, "a": 1}', "[NaN]", "[-Infinity]", "[1e999]", b"\xff", '"\\ud800"', "{"):
        with pytest.raises(InputError, match="cannot be read"):
            parse_json(bad)
    with pytest.raises(InputError, match="nested"):
        parse_json("[" * 100_000)


OF_EVERY_KIND = (True, False, 1, 0, -3, 2.5, 0.0, "", "1", [], [1], {}, {"a": 1}, None)


@pytest.mark.parametrize("hint", [bool, int, float, str, list, dict, None])
@pytest.mark.parametrize("empty", [False, True])
def test_a_named_value_is_of_just_its_kind(hint, empty):
    """A whole number is a number; a truth value is none, and no number is a truth value."""
    kind = type(None) if hint is None else hint
    for value in OF_EVERY_KIND:
        fits = type(value) is kind or (kind is float and type(value) is int)
        fits |= empty and value is None
        if fits:
            hints = {"n": kind | None if empty else kind}
            assert check_fields({"n": value}, hints, "header") == {"n": value}
        else:
            with pytest.raises(InputError, match="its n is"):
                check_fields({"n": value}, {"n": kind | None if empty else kind}, "header")
    for values in ({}, {"n": 1, "m": 1}, [], 3):
        with pytest.raises(InputError, match="header"):
            check_fields(values, {"n": int}, "header")


def test_a_header_that_could_not_be_read_back_is_not_written(tmp_path):
    for header in ({"x": float("nan")}, {"x": {1, 2}}, {"x": "\ud800"}):
        with pytest.raises(InputError):
            save_tensors(tmp_path / "a", "toy", header, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 3, "a\0b", b"bytes"])
def test_what_is_no_path(path):
    with pytest.raises(InputError, match="is no path"):
        load_tensors(path, "toy")
    with pytest.raises(InputError, match="is no path"):
        save_tensors(path, "toy", {}, {})


# Writing ------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_new_files_respect_the_umask_and_replaced_ones_keep_their_permissions(mask, tmp_path):
    (tmp_path / "old").write_text("private")
    (tmp_path / "old").chmod(0o640)
    before = os.umask(mask)
    try:
        for name in ("new", "old"):
            save_toy(tmp_path / name)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "old")]
    assert modes == [0o666 & ~mask, 0o640]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ResourceError),
        (errno.EDQUOT, ResourceError),
        (errno.EIO, ResourceError),
        (errno.EROFS, InputError),
        (errno.EACCES, InputError),
    ],
)
@pytest.mark.parametrize("step", ["open", "fsync"])
def test_a_disk_that_refuses_is_one_sentence_and_loses_nothing(
    number, kind, step, tmp_path, monkeypatch
):
    path = tmp_path / "toy"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic.os, step, refuse)
    with pytest.raises(kind, match=f"cannot write {path}: {os.strerror(number)}; ") as caught:
        save_toy(path)
    monkeypatch.undo()
    assert "\n" not in str(caught.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_places_where_no_file_can_go(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    absent = tmp_path / "absent" / "toy"
    for path in (tmp_path / "folder", tmp_path / "file" / "toy", tmp_path / ("x" * 300), absent):
        with pytest.raises(
            InputError, match=r"; (choose another folder( or name)?|name a file|make it first)$"
        ):
            save_toy(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    path = tmp_path / ("x" * 255)
    save_toy(path)
    assert load_tensors(path, "toy")[0]["n"] == 1


# What killed runs leave behind --------------------------------------------------------------------


def test_what_a_killed_run_left_is_removed_once_it_is_old(tmp_path):
    script = """
        import os, signal, sys
        from pathlib import Path
        from gnn_repair.atomic import replacing
        with replacing(Path(sys.argv[1])) as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "toy"
    path.write_text("old")
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = set(tmp_path.iterdir()) - {path}
    assert path.read_text() == "old"
    save_toy(tmp_path / "other")
    assert left.exists()  # somebody may still be writing it
    foreign = tmp_path / ".other.partial"
    foreign.write_text("")
    for old in (left, foreign):
        os.utime(old, (0, 0))
    atomic.sweep.cache_clear()
    save_toy(tmp_path / "other")
    assert {entry.name for entry in tmp_path.iterdir()} == {"toy", "other", foreign.name}
