"""Nothing is fetched but what the user asks for: Python's own audit of sockets says so."""

from __future__ import annotations

import sys

import pytest
import torch

import gnn_repair as gr
from gnn_repair.cli import main
from gnn_repair.errors import DatasetError
from gnn_repair.study import PAPER, Store
from tests.helpers.study.planted_records import make_record
from tests.helpers.study.tiny import TINY

HEARD: list[str] | None = None
"""Where attempts to reach anybody are noted; None: nobody listens."""


def listen(event, arguments):
    if HEARD is not None and event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        HEARD.append(f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}")
        raise OSError("the network is closed for this test")


sys.addaudithook(listen)


@pytest.fixture
def heard(monkeypatch):
    noted: list[str] = []
    monkeypatch.setattr(sys.modules[__name__], "HEARD", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield noted
    torch.set_num_threads(before)


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gnn-repair", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_the_demo_goes_the_whole_way_and_reaches_nobody(heard, monkeypatch, tmp_path, capsys):
    """It trains, exposes, asks the oracle, repairs, stores and reports."""
    monkeypatch.setattr("gnn_repair.cli.demo.SETTINGS", TINY)
    assert call(monkeypatch, "demo", "--report", str(tmp_path / "page.html")) == 0
    assert heard == []
    told = capsys.readouterr()
    for part in ("The built-in graph", "Exposure of GCN on builtin", "chance", "Set translation"):
        assert part in told.out
    assert "builtin × gcn: 2 splits in" in told.err and "All of it took" in told.out
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    # One model per page: the nodes are of the very run whose accuracies the overview shows.
    assert text.startswith("<!DOCTYPE html>")
    assert "trained with splits 0 to 1; the stored models" in text
    for address in ("http://", "https://", "//cdn", "@import"):
        assert address not in text.replace("http://www.w3.org/", "")


def test_looking_around_reaches_nobody(heard, monkeypatch, tmp_path):
    held = Store(tmp_path / "store")
    held.begin(PAPER)
    held.put(make_record("cora", "gcn", 0))
    store = ("--store", str(held.root))
    root = ("--root", str(tmp_path / "no-data"))
    assert call(monkeypatch, "data", "list", *root) == 0
    assert call(monkeypatch, "data", "check", *root) == 0
    assert call(monkeypatch, "study", "status", *store) == 0
    assert call(monkeypatch, "study", "tables", *store) == 0
    assert call(monkeypatch, "study", "export", str(tmp_path / "a.csv"), *store) == 0
    assert heard == []


def test_a_dataset_that_is_asked_for_is_looked_for(heard, tmp_path):
    with pytest.raises(DatasetError, match="cannot be downloaded"):
        gr.load_dataset("minesweeper", tmp_path)
    assert heard
    assert all("github.com" in entry for entry in heard)
