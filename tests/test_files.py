"""Saved files: whole or not at all, and never confused."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.errors import FileFormatError
from gnn_repair.files import load_tensors, replacing, save_tensors


def test_tensors_that_share_memory_can_be_saved(tmp_path):
    values = torch.arange(6.0)
    save_tensors(tmp_path / "a", "toy", {"n": 1}, {"all": values, "part": values[2:4]})
    header, tensors = load_tensors(tmp_path / "a", "toy")
    assert header == {"n": 1}
    assert torch.equal(tensors["all"], values)
    assert torch.equal(tensors["part"], values[2:4])
    with pytest.raises(FileFormatError, match="holds toy, not other"):
        load_tensors(tmp_path / "a", "other")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
