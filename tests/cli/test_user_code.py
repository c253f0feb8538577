"""The user's own graphs, backbones and models on the command line, loaded one way."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from gnn_repair.cli import user_code
from gnn_repair.cli.main import app
from gnn_repair.errors import InputError

MODULE = """
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

class Net(torch.nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.conv = GCNConv(features, classes)
    def forward(self, x, edge_index):
        return self.conv(x, edge_index)

def ring():
    torch.manual_seed(0)
    n = 40
    edges = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    edges = torch.cat([edges, edges.flip(0)], 1)
    place = torch.arange(n).unsqueeze(1) % 4
    return Data(x=torch.randn(n, 5), edge_index=edges, y=torch.arange(n) % 3,
                train_mask=place < 2, val_mask=place == 2, test_mask=place == 3)

def broken():
    raise OSError("no such disk")

def wrong():
    return 3

three, gcn = 3, Net
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "plugged.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("plugged", None)


SETTINGS = ["--splits", "0", "--methods", "oracle", "--device", "cpu"]
SETTINGS += ["--set", "backbones.short.epochs=3", "--set", "backbones.long.epochs=3"]


def test_graphs_and_backbones_of_a_module_or_file(folder):
    store, page = str(folder / "store"), str(folder / "page.html")
    graph, net = "plugged.py:ring", "plugged:Net"
    chosen = ["--datasets", graph, "--backbones", f"{net},sgc"]
    ran = CliRunner().invoke(app, ["study", "run", *chosen, *SETTINGS, "--store", store])
    assert ran.exit_code == 0, ran.output
    assert "2 runs stored" in ran.output
    told = CliRunner().invoke(
        app, ["study", "tables", "exposure-oracle", "--store", store, "--format", "json"]
    )
    facts = json.loads(told.output)
    assert {(f["row"], f["column"]) for f in facts} >= {("Net", "ring"), ("sgc", "ring")}
    done = ["--splits", "0", "--methods", "oracle", "--set", "backbones.short.epochs=3"]
    done += ["--set", "backbones.long.epochs=3", "--format", "json", "--store", store]
    listed = CliRunner().invoke(app, ["study", "status", *chosen, *done])
    assert {row["done"] for row in json.loads(listed.output)} == {1}
    case = ["--dataset", graph, "--backbone", net]
    made = CliRunner().invoke(
        app, ["report", "--store", store, *case, "--methods", "oracle", "--out", page]
    )
    assert made.exit_code == 0, made.output
    assert "the stored models" in (folder / "page.html").read_text()
    lost = CliRunner().invoke(app, ["report", "--store", store, "--backbone", "sgc", "--out", page])
    assert isinstance(lost.exception, InputError)
    assert "--dataset FILE.py:ring" in str(lost.exception)


def test_names_of_the_package_are_left_alone():
    assert user_code.datasets(["cora", "builtin"], None, "torch") == ["cora", "builtin"]
    assert user_code.backbones(["gcn", "gat"]) == ["gcn", "gat"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets", "no_such_module:x"], "cannot be imported: ModuleNotFoundError"),
        (["--datasets", "../x:y"], "is no module; give FILE.py:NAME or module:NAME"),
        (["--datasets", "plugged:"], "is not FILE.py:NAME"),
        (["--datasets", "plugged:nothing"], "plugged has no 'nothing'"),
        (["--datasets", "plugged:broken"], "OSError: no such disk"),
        (["--datasets", "plugged:wrong"], "gives a int; give a torch_geometric"),
        (["--backbones", "plugged:three"], "backbone 'three' is int"),
        (["--backbones", "plugged:Net,nett"], "unknown backbone 'nett'"),
        (["--backbones", "plugged:gcn"], "would be the second 'gcn'"),
        (["--datasets", "plugged:ring,again:ring"], "would be the second 'ring'"),
        (["--datasets", "leaving:x"], "cannot be imported: SystemExit: 0"),
        (["--datasets", "wordy:x"], "cannot be imported: ValueError: one two"),
        (["--datasets", "missing.py:x"], "missing.py is no file"),
    ],
)
def test_bad_places_are_one_sentence_and_leave_nothing(folder, arguments, message):
    (folder / "leaving.py").write_text("raise SystemExit(0)")
    (folder / "wordy.py").write_text("raise ValueError('one\\ntwo')")
    (folder / "again.py").write_text("from plugged import ring")
    full = ["study", "run", "--store", "s", "--datasets", "plugged:ring", *SETTINGS, *arguments]
    ran = CliRunner().invoke(app, full)
    assert isinstance(ran.exception, InputError) and message in str(ran.exception)
    assert "\n" not in str(ran.exception)
    assert not (folder / "s").exists()


def test_a_file_hides_no_module_and_is_run_once(folder):
    import random

    text = "import counting_runs\ncounting_runs.RUNS.append(1)\n"
    (folder / "counting_runs.py").write_text("RUNS = []")
    for name in ("random", "two_nets"):
        (folder / f"{name}.py").write_text(text + "class A:\n  pass\nclass B:\n  pass\n")
    with pytest.raises(InputError, match="would hide the module 'random'"):
        user_code.backbones([f"{folder}/random.py:A"])
    assert sys.modules["random"] is random
    try:
        found = user_code.backbones([f"{folder}/two_nets.py:A", f"{folder}/two_nets.py:B"])
        assert sys.modules["counting_runs"].RUNS == [1] and set(found) == {"A", "B"}
    finally:
        for name in ("two_nets", "counting_runs"):
            sys.modules.pop(name, None)
