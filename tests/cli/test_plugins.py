"""Datasets and backbones from modules and from entry points of other packages."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from typer.testing import CliRunner

from gnn_repair.cli import plugins
from gnn_repair.cli.main import app
from gnn_repair.cli.plugins import Plugins
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

DATASETS = {"ring": ring, "broken": broken, "wrong": lambda: 3}
BACKBONES = {"net": Net, "three": 3}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "plugged.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    import sys

    sys.modules.pop("plugged", None)


def entries(monkeypatch, **groups):
    """Pretend that packages with such entry points are installed."""
    made = EntryPoints(
        EntryPoint(name, value, f"gnn_repair.{kind}s")
        for kind, values in groups.items()
        for name, value in values.items()
    )
    monkeypatch.setattr(plugins, "entry_points", lambda group: made.select(group=group))


SETTINGS = ["--splits", "0", "--methods", "oracle", "--device", "cpu"]
SETTINGS += ["--set", "backbones.short.epochs=3", "--set", "backbones.long.epochs=3"]


def test_a_module_brings_graphs_and_backbones(folder):
    store, page = str(folder / "store"), str(folder / "page.html")
    chosen = ["--plugin", "plugged", "--datasets", "ring,builtin", "--backbones", "net,sgc"]
    ran = CliRunner().invoke(app, ["study", "run", *chosen, *SETTINGS, "--store", store])
    assert ran.exit_code == 0, ran.output
    assert "4 runs stored" in ran.output
    told = CliRunner().invoke(
        app, ["study", "tables", "exposure-oracle", "--store", store, "--format", "json"]
    )
    facts = json.loads(told.output)
    assert {(f["row"], f["column"]) for f in facts} >= {("net", "ring"), ("sgc", "ring")}
    case = ["--dataset", "ring", "--backbone", "net", "--plugin", "plugged"]
    made = CliRunner().invoke(
        app, ["report", "--store", store, *case, "--methods", "oracle", "--out", page]
    )
    assert made.exit_code == 0, made.output
    assert "the stored models" in (folder / "page.html").read_text()
    listed = CliRunner().invoke(app, ["data", "list", "--plugin", "plugged", "--format", "json"])
    rows = {row["dataset"]: row for row in json.loads(listed.output)}
    assert rows["ring"]["source"] == "--plugin plugged" and rows["cora"]["nodes"] == 2708


def test_installed_packages_bring_theirs_by_entry_points(folder, monkeypatch):
    entries(
        monkeypatch,
        dataset={"ring": "plugged:ring", "gone": "plugged:nothing"},
        backbone={"net": "plugged:Net"},
    )
    found = Plugins().datasets(["ring"], None, "torch")
    assert found["ring"].num_nodes == 40
    assert Plugins().backbones(["net"])["net"].title == "net"
    assert Plugins().backbones(["gcn"]) == ["gcn"]
    with pytest.raises(InputError, match="dataset 'gone' of an entry point cannot be loaded"):
        Plugins().datasets(["gone"], None, "torch")
    assert ("dataset", "ring", "an entry point") in Plugins().listed()
    ran = CliRunner().invoke(
        app,
        ["study", "run", "--datasets", "ring", "--backbones", "net", *SETTINGS, "--store", "s"],
    )
    assert ran.exit_code == 0, ran.output


def test_entry_points_are_not_asked_for_what_the_package_has(monkeypatch):
    def never(group):
        raise AssertionError("asked")

    monkeypatch.setattr(plugins, "entry_points", never)
    assert Plugins().datasets(["cora", "builtin"], None, "torch") == ["cora", "builtin"]
    assert Plugins().backbones(["gcn", "gat"]) == ["gcn", "gat"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plugin", "no_such_module"], "cannot be imported: ModuleNotFoundError"),
        (["--plugin", "../x.py"], "give a module's name"),
        (["--plugin", "plugged", "--datasets", "broken"], "OSError: no such disk"),
        (["--plugin", "plugged", "--datasets", "wrong"], "gives a int; give a torch_geometric"),
        (["--plugin", "plugged", "--backbones", "three"], "three is a int"),
        (["--plugin", "plugged", "--backbones", "nett"], "unknown backbone 'nett'"),
        (["--plugin", "taken"], "which the package has already"),
        (["--plugin", "odd"], "DATASETS of odd is no mapping"),
        (["--plugin", "leaving"], "cannot be imported: SystemExit: 0"),
        (["--plugin", "wordy"], "cannot be imported: ValueError: one two"),
        (["--plugin", "plugged", "--plugin", "again"], "both have a dataset 'ring'"),
    ],
)
def test_bad_plugins_are_one_sentence_and_leave_nothing(folder, arguments, message):
    (folder / "taken.py").write_text("BACKBONES = {'gcn': 3}")
    (folder / "odd.py").write_text("DATASETS = [1]")
    (folder / "leaving.py").write_text("raise SystemExit(0)")
    (folder / "wordy.py").write_text("raise ValueError('one\\ntwo')")
    (folder / "again.py").write_text("from plugged import DATASETS")
    full = ["study", "run", "--store", "s", "--datasets", "ring", *SETTINGS, *arguments]
    ran = CliRunner().invoke(app, full)
    assert isinstance(ran.exception, InputError) and message in str(ran.exception)
    assert "\n" not in str(ran.exception)
    assert not (folder / "s").exists()


def test_two_packages_of_one_name_are_told_apart(folder, monkeypatch):
    both = EntryPoints(
        EntryPoint("ring", f"{module}:ring", "gnn_repair.datasets")
        for module in ("plugged", "elsewhere")
    )
    monkeypatch.setattr(plugins, "entry_points", lambda group: both.select(group=group))
    with pytest.raises(InputError, match="both have a dataset 'ring'"):
        Plugins().datasets(["ring"], None, "torch")
    with pytest.raises(InputError, match="no dataset 'rings'"):
        CliRunner().invoke(
            app, ["study", "run", "--datasets", "rings", "--store", "s"], catch_exceptions=False
        )


def test_a_file_hides_no_module_and_is_run_once(folder):
    import random
    import sys

    text = "import counting_runs\ncounting_runs.RUNS.append(1)\n"
    (folder / "counting_runs.py").write_text("RUNS = []")
    for name in ("random", "two_nets"):
        (folder / f"{name}.py").write_text(text + "class A:\n  pass\nclass B:\n  pass\n")
    with pytest.raises(InputError, match="would hide the module 'random'"):
        Plugins().backbones([f"{folder}/random.py:A"])
    assert sys.modules["random"] is random
    try:
        found = Plugins().backbones([f"{folder}/two_nets.py:A", f"{folder}/two_nets.py:B"])
        assert sys.modules["counting_runs"].RUNS == [1] and set(found) == {"A", "B"}
    finally:
        for name in ("two_nets", "counting_runs"):
            sys.modules.pop(name, None)
