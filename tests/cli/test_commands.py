"""``data``, ``doctor``, completion and user code on the command line; nothing is fetched."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click import Context
from typer.main import get_command
from typer.testing import CliRunner

import gnn_repair as gr
from gnn_repair.catalog import DATASETS, Statistics
from gnn_repair.cli import options, user_code
from gnn_repair.cli.main import app
from gnn_repair.errors import DatasetError, InputError
from gnn_repair.oracle import Solution
from gnn_repair.study import INDEPENDENT, PAPER, Store, override
from tests.helpers.study.planted_records import make_record, stored
from tests.helpers.study.tiny import TINY

# ``gnn-repair data`` and ``demo`` as a user meets them: output and exit codes.


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GNN_REPAIR_DATA", raising=False)


@pytest.fixture
def graph(tmp_path, monkeypatch) -> Path:
    """A root where squirrel-filtered is a path of 20 nodes; the registry expects just that."""
    parts = np.stack([np.random.default_rng(split).permutation(20) for split in range(10)])
    root, spec = tmp_path / "data", DATASETS["squirrel-filtered"]
    path = root / spec.files[0].path
    path.parent.mkdir(parents=True)
    masks = {"train_masks": parts < 10, "test_masks": parts >= 15}
    masks["val_masks"] = ~masks["train_masks"] & ~masks["test_masks"]
    held = {"node_features": np.ones((20, 3), dtype=np.float32), "node_labels": np.arange(20) % 2}
    np.savez(path, **held, **masks, edges=np.stack([np.arange(19), np.arange(1, 20)], axis=1))
    statistics = Statistics(20, 2 * 19 + 20, 3, 2, (50, 25, 25))
    expected = dataclasses.replace(spec, statistics=statistics)
    monkeypatch.setitem(DATASETS, "squirrel-filtered", expected)
    return root


def rows_of(run, *line):
    """Exit code, the JSON rows by dataset, and what is said beside them."""
    code, out, err = run(*line, "--format", "json")
    return code, {row["dataset"]: row for row in json.loads(out)}, err


def test_a_listing_has_a_row_per_dataset_and_says_which_files_are_here(run, graph):
    first = graph / DATASETS["cora"].files[0].path
    first.parent.mkdir(parents=True)
    first.touch()
    code, rows, _ = rows_of(run, "data", "list", "--root", str(graph))
    assert code == 0 and list(rows) == list(DATASETS)
    found = {name: row["files"] for name, row in rows.items() if row["files"] != "missing"}
    some = f"1 of {len(DATASETS['cora'].files)} present"
    assert found == {"cora": some, "squirrel-filtered": "present", "builtin": "none needed"}
    code, out, _ = run("data", "list")
    assert code == 0 and all(name in out for name in DATASETS)  # none is cut off


def test_check_passes_what_is_right_and_reports_what_is_missing(run, graph):
    code, rows, _ = rows_of(run, "data", "check", "--root", str(graph))
    assert code == 0
    assert rows["cora"]["status"] == "missing"
    assert rows["builtin"]["status"] == "ok"
    assert rows["squirrel-filtered"] == {
        "dataset": "squirrel-filtered",
        "nodes": 20,
        "entries": 58,
        "features": 3,
        "classes": 2,
        "splits": 10,
        "train": 10,
        "val": 5,
        "test": 5,
        "checksums": "no published checksum",
        "status": "ok",
    }


def test_check_notices_a_damaged_cache(run, graph, tmp_path):
    line = ("data", "check", "squirrel-filtered", "--root", str(graph))
    assert run(*line)[0] == 0
    (entry,) = (tmp_path / "cache").rglob("*.safetensors")
    content = bytearray(entry.read_bytes())
    content[-1] ^= 1  # one node moves into or out of a mask
    entry.write_bytes(content)
    code, rows, err = rows_of(run, *line)
    row = rows["squirrel-filtered"]
    assert code == 1 and err == ""
    assert row["status"].startswith("differs: ") and str(entry) in row["status"]
    assert (row["nodes"], row["train"]) == (20, 10)
    assert run(*line)[0] == 0


def test_a_damaged_file_is_named_with_its_checksum_and_a_named_dataset_must_be_there(run, tmp_path):
    file, root = DATASETS["minesweeper"].files[0], tmp_path / "data"
    (root / file.path).parent.mkdir(parents=True)
    (root / file.path).write_bytes(b"PK")
    code, rows, err = rows_of(run, "data", "check", "--root", str(root))
    assert code == 2
    assert rows["minesweeper"]["status"].startswith("differs: ")
    assert str(file.sha256) in err
    below_a_file = str(root / file.path / "root")
    code, _, err = run("data", "check", "roman-empire", "--root", below_a_file)
    assert code == 2 and "roman_empire.npz (20,401,489 bytes)" in err


# ``gnn-repair doctor`` looks things up, tries them, and says what is wrong.


def examined(run, *more):
    """Exit code and rows by subject."""
    code, out, _ = run("doctor", "--format", "json", *more)
    return code, {row["subject"]: row for row in json.loads(out)}


def test_a_sound_installation_is_called_so(run, tmp_path):
    code, rows = examined(run, "--root", str(tmp_path))
    assert code == 0 and not any(row["wrong"] for row in rows.values())
    assert rows["torch"]["found"] == metadata.version("torch")
    assert rows["data"]["found"].startswith("1 of ") and str(tmp_path) in rows["data"]["found"]
    assert rows["one LP"]["found"] == "margin 0.5, known to be 0.5"
    assert "pytest" not in rows  # only those who work on the package need it
    code, out, _ = run("doctor")
    assert code == 0 and "✗" not in out and out.count("✓") == len(rows)


def test_an_old_package_a_wrong_oracle_and_a_blind_check_are_found(run, monkeypatch):
    """0.9 is older than 0.60, 0.4.4 than 0.4.5, and 2.100 newer than 2.11."""
    import gnn_repair.oracle as oracle

    solve, version = oracle.solve, metadata.version
    versions = {"numba": "0.9.12", "safetensors": "0.4.4", "torch": "2.100.0"}

    def off(exposure, targets):
        answer = solve(exposure, targets)
        return dataclasses.replace(answer, margin=answer.margin + 1e-6)

    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name) or version(name))
    monkeypatch.setattr(oracle, "solve", off)
    monkeypatch.setattr(Solution, "check", lambda self, exposure: True)
    code, rows = examined(run)
    wrong = {subject for subject, row in rows.items() if row["wrong"]}
    assert code == 1 and wrong == {"numba", "safetensors", "one LP", "one certificate"}


WITHOUT_TORCH = """
import subprocess
import sys
sys.modules["torch"] = None  # what a missing or broken PyTorch looks like to an import
sys.argv = ["gnn-repair", *sys.argv[1:]]
from gnn_repair.cli import main
main()
"""


def test_a_missing_pytorch_is_a_finding_and_named_by_other_commands():
    ended, other = (
        subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *line], capture_output=True, text=True)
        for line in (("doctor", "--format", "json"), ("data", "check", "builtin"))
    )
    rows = {row["subject"]: row for row in json.loads(ended.stdout)}
    assert ended.returncode == 1 and not ended.stderr
    assert rows["Python"]["wrong"] is None
    for subject in ("devices", "one LP", "one certificate"):
        assert "torch" in rows[subject]["found"] and rows[subject]["wrong"] == "install it anew"
    assert other.returncode == 1
    assert other.stderr.startswith("gnn-repair: a package cannot be imported (import of torch ")
    assert other.stderr.count("\n") == 1 and "gnn-repair doctor" in other.stderr


# What the shell offers for the names a command takes.


@pytest.mark.parametrize(
    ("offer", "typed", "expected"),
    [
        (options.offer_dataset, "squirrel", ["squirrel", "squirrel-filtered"]),
        (options.offer_datasets, "pa", ["paper"]),
        (options.offer_datasets, "cora,ci", ["cora,citeseer"]),
        (options.offer_datasets, "cora,cor", []),
        (options.offer_datasets, "cora,pa", []),
        (options.offer_datasets, "squirrel-filtered,sq", ["squirrel-filtered,squirrel"]),
        (options.offer_backbones, "gcn,mix", ["gcn,mixhop"]),
        (options.offer_protocol, "in", ["independent"]),
        (options.offer_methods, "ora", ["oracle"]),
        (options.offer_methods, "oracle,set", ["oracle,set_translation"]),
    ],
)
def test_names_are_offered(offer, typed, expected):
    assert offer(typed) == expected


FIRST = {"dataset": "actor", "backbone": "gcn", "methods": "oracle", "protocol": "paper"}
FIRST |= {"datasets": "actor", "backbones": "gcn"}


def parameters(command):
    """Of a command and those below it."""
    inner = getattr(command, "commands", {}).values()
    return [*command.params, *(found for one in inner for found in parameters(one))]


def test_every_option_that_takes_names_offers_them():
    command = get_command(app)
    taking = [one for one in parameters(command) if one.name in FIRST]
    for one in taking:
        assert one.shell_complete(Context(command), "")[0].value == FIRST[one.name], one.name
    assert len(taking) == 14


def test_the_shell_is_answered():
    asked = {"COMP_WORDS": "gnn-repair study tables full", "COMP_CWORD": "3"}
    code = "from gnn_repair.cli import app; app(prog_name='gnn-repair')"
    environment = os.environ | asked | {"_GNN_REPAIR_COMPLETE": "complete_bash"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert said.stdout == b"full-controls\n"


# Nothing is fetched but what the user asks for: Python's own audit of sockets says so.

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


def test_the_demo_goes_the_whole_way_and_reaches_nobody(heard, run, monkeypatch, tmp_path):
    """It trains, exposes, asks the oracle, repairs, stores and reports; a second one only shows."""
    monkeypatch.setattr("gnn_repair.cli.demo.SETTINGS", TINY)
    line = ("demo", "--report", str(tmp_path / "page.html"), "--store", str(tmp_path / "store"))
    code, out, err = run(*line)
    assert code == 0 and heard == []
    for part in ("The built-in graph", "Exposure of GCN on builtin", "chance", "Set translation"):
        assert part in out
    assert "builtin × gcn: 2 splits in" in err and "All of it took" in out
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    # One model per page: the nodes are of the very run whose accuracies the overview shows.
    assert text.startswith("<!DOCTYPE html>")
    assert "trained with splits 0 to 1; the stored models" in text
    for address in ("http://", "https://", "//cdn", "@import"):
        assert address not in text.replace("http://www.w3.org/", "")
    first, second = Store(tmp_path / "store").records(override(PAPER, TINY).digest)
    means = [
        50 * (first.number(*place) + second.number(*place))
        for place in (("oracle", "true_class_reach"), ("oracle", "chance_reach"),
                      ("frozen", "test"), ("refit_head", "test"))
    ]  # fmt: skip
    for said in (*map("{:.1f}".format, means), f"{means[3] - means[2]:+.1f}"):
        assert said in out
    code, out, _ = run(*line, "--format", "json")
    sheets = {fact["sheet"] for fact in json.loads(out)}
    assert code == 0
    assert {"Frozen", "Set translation", "Error reach (%)", "Macro means"} <= sheets


def test_looking_around_reaches_nobody(heard, run, tmp_path):
    held = stored(tmp_path / "store", make_record("cora", "gcn", 0))
    store = ("--store", str(held.root))
    root = ("--root", str(tmp_path / "no-data"))
    assert run("data", "list", *root)[0] == 0
    assert run("data", "check", *root)[0] == 0
    assert run("study", "status", *store)[0] == 0
    assert run("study", "tables", *store)[0] == 0
    assert run("study", "export", str(tmp_path / "a.csv"), *store)[0] == 0
    assert heard == []


def test_a_dataset_that_is_asked_for_is_looked_for(heard, tmp_path):
    with pytest.raises(DatasetError, match="cannot be downloaded"):
        gr.load_dataset("minesweeper", tmp_path)
    assert heard
    assert all("github.com" in entry for entry in heard)


# The user's own graphs, backbones and models on the command line, loaded one way.

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

def made():
    print("loading")
    data = ring()
    return Net(5, 3), data, data.test_mask

three, gcn = 3, Net

def long():
    torch.manual_seed(0)
    y, edges = torch.rand(1020, 2), torch.randint(1020, (2, 3000))
    return Net(5, 2), Data(x=torch.randn(1020, 5), edge_index=edges, y=y), range(1000, 1020)

def labelled():
    model, data, nodes = long()
    data.y = data.y.round()
    return model, data, nodes

def valued():
    model, data, nodes = long()
    return model, data, nodes[:8]

def stopped():
    raise KeyboardInterrupt
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "plugged.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("plugged", None)


SETTINGS = ["--splits", "0", "--methods", "oracle", "--set", "backbones.short.epochs=3"]
SETTINGS += ["--set", "backbones.long.epochs=3"]


def test_graphs_and_backbones_of_a_module_or_file(folder):
    def said(*line):
        ran = CliRunner().invoke(app, [*line, "--store", "store"])
        assert ran.exit_code == 0, ran.output
        return ran.output

    graph, net = "plugged.py:ring", "plugged:Net"
    chosen, form = ["--datasets", graph, "--backbones", f"{net},sgc"], ("--format", "json")
    assert "2 runs stored" in said("study", "run", *chosen, *SETTINGS, "--device", "cpu")
    facts = json.loads(said("study", "tables", "exposure-oracle", *form))
    assert {(f["row"], f["column"]) for f in facts} >= {("Net", "ring"), ("sgc", "ring")}
    listed = json.loads(said("study", "status", *chosen, *SETTINGS, *form))
    assert [row["done"] for row in listed] == [1, 1]
    said("report", "--dataset", graph, "--backbone", net, "--methods", "oracle", "--out", "p.html")
    assert "the stored models" in (folder / "p.html").read_text()
    lost = ["report", "--store", "store", "--backbone", "sgc", "--out", "p.html"]
    with pytest.raises(InputError, match="--dataset FILE"):
        CliRunner().invoke(app, lost, catch_exceptions=False)


def test_what_a_module_prints_is_no_part_of_the_answer(folder, run):
    code, out, err = run("diagnose", "plugged.py:made", "--format", "json")
    rows = json.loads(out)["rows"]
    assert code == 0 and len(rows) == 10
    assert "loading" in err
    # People see the errors, the nearest first and those out of reach last.
    errors = [row for row in rows if row["verdict"] != "right"]
    assert {row["mass_moved"] is None for row in errors} == {True, False}
    errors.sort(key=lambda row: row["mass_moved"] or 2.0)
    words = map(str.split, run("diagnose", "plugged.py:made")[1].splitlines())
    listed = [int(line[0]) for line in words if line and line[0].isdecimal()]
    assert listed == [row["node"] for row in errors]
    with pytest.raises(InputError, match="effort must be one of"):
        CliRunner().invoke(
            app, ["diagnose", "plugged.py:made", "--effort", "x"], catch_exceptions=False
        )


@pytest.mark.parametrize("name", ["labelled", "valued"])
def test_what_can_be_undone_is_listed_first_and_node_numbers_are_names(folder, run, name):
    code, out, _ = run("diagnose", f"plugged.py:{name}", "--effort", "0.1")
    titles = out[out.index(" node ") :].split()
    lines = [line.split() for line in out.splitlines() if line.strip()]
    table = [line for line in lines if line[0].isdecimal()]
    assert code == 0 and "those within reach first" in out and len(table) > 5
    assert all(line[0] >= "1000" for line in table)
    place = titles.index("verdict")
    verdicts = [line[place] for line in table]
    assert verdicts == sorted(verdicts) and set(verdicts) == {"can", "cannot"}
    if name == "labelled":
        rows = json.loads(run("diagnose", "plugged.py:labelled", "--format", "json")[1])["rows"]
        gamma = {(row["node"], row["label"]): row["gamma"] for row in rows}
        found = [gamma[int(line[0]), int(line[1])] for line in table if line[place] == "can"]
        assert found == sorted(found, reverse=True)
    else:
        assert all(line[-1] == "%" for line in table)


def test_ctrl_c_is_one_word(folder, run):
    code, out, err = run("diagnose", "plugged.py:stopped")
    assert (code, out) == (130, "") and err.splitlines()[-1] == "gnn-repair: stopped by Ctrl-C"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets", "no_such_module:x"], "cannot be imported: ModuleNotFoundError"),
        (["--datasets", "../x:y"], "is no module; give FILE.py:NAME or module:NAME"),
        (["--datasets", "plugged:"], "is not FILE.py:NAME"),
        (["--datasets", "plugged:nothing"], "plugged has no 'nothing'"),
        (["--datasets", "plugged:rimg"], "plugged has no 'rimg'; did you mean 'ring'"),
        (["--datasets", "plugged:broken"], "OSError: no such disk"),
        (["--datasets", "plugged:wrong"], "gives an int; give a torch_geometric"),
        (["--backbones", "plugged:three"], "backbone 'three' is int"),
        (["--backbones", "plugged:Net,nett"], "unknown backbone 'nett'"),
        (["--backbones", "plugged:gcn"], "would be the second 'gcn'"),
        (["--datasets", "plugged:ring,again:ring"], "would be the second 'ring'"),
        (["--datasets", "leaving:x"], "cannot be imported: SystemExit: 0"),
        (["--datasets", "wordy:x"], "cannot be imported: ValueError: one two"),
        (["--datasets", "missing.py:x"], "missing.py is no file"),
        (["--datasets", "notes.txt:x"], "notes.txt is no .py file"),
    ],
)
def test_bad_places_are_one_sentence_and_leave_nothing(folder, arguments, message):
    (folder / "leaving.py").write_text("raise SystemExit(0)")
    (folder / "notes.txt").write_text("")
    (folder / "wordy.py").write_text("raise ValueError('one\\ntwo')")
    (folder / "again.py").write_text("from plugged import ring")
    full = ["study", "run", "--store", "s", "--datasets", "plugged:ring", *SETTINGS, *arguments]
    with pytest.raises(InputError, match=message) as caught:
        CliRunner().invoke(app, full, catch_exceptions=False)
    assert "\n" not in str(caught.value)
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


# Every option of a command arrives where it is meant to.

CALLED = ("gnn_repair.study.case.rerun", "gnn_repair.reporting.report_run",
          "gnn_repair.reporting.write_figures", "gnn_repair.reporting.evidence_of",
          "gnn_repair.study.grid.run_study", "gnn_repair.cli.report.report",
          "gnn_repair.reporting.report_results")  # fmt: skip
OTHER = override(PAPER, ["backbones.hidden=64"])


@pytest.fixture
def called(monkeypatch):
    """What a line calls, by name, with everything given; a run of split 3 knows none beside it."""

    def call(*line, without=""):
        found = {}
        result = SimpleNamespace(
            case=SimpleNamespace(dataset="cora", backbone="gcn"), split=3, data={}, failures={},
            select_split=lambda split: None, provenance=lambda: "", stored=0, already=0,
            protocol="",
        )  # fmt: skip

        def recorder(name):
            def record(*given, **options):
                found.setdefault(name, []).append((given, options))
                return [] if name == "write_figures" else result

            return record

        for path in CALLED:
            if (name := path.rpartition(".")[2]) != without:
                monkeypatch.setattr(path, recorder(name))
        ran = CliRunner().invoke(app, list(line), catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        return found

    return call


@pytest.fixture
def cases(tmp_path):
    """Two backbones on cora and one on pubmed, under two protocols."""
    pairs = ("cora", "gcn"), ("cora", "gat"), ("pubmed", "gcn")
    records = [make_record(*pair, 3) for pair in pairs]
    for protocol in (PAPER, OTHER):
        stored(tmp_path / "cases", *records, protocol=protocol)
    return tmp_path / "cases"


@pytest.mark.parametrize("compare", ["sgc", "1"])
@pytest.mark.parametrize("protocol", [PAPER, OTHER])
@pytest.mark.parametrize("parts", [True, False])
def test_a_report_is_of_what_was_asked_for(called, cases, tmp_path, compare, protocol, parts):
    again = {"store": cases, "dataset": "cora", "backbone": "gcn", "split": 3, "title": "T"}
    again |= {"methods": "refit_head,reweighting", "compare": compare, "digest": protocol.digest}
    given = again | {"out": tmp_path / "r.html", "figures": tmp_path / "figures", "node": 7}
    given |= {"device": "cpu", "root": tmp_path}
    line = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    found = called("report", *line, *["--parts"] * parts, without="report")
    (first, told), (second, beside) = found["rerun"]
    assert first == ("cora", "gcn", 3)
    assert second == (("cora", "gcn", 1) if compare == "1" else ("cora", "sgc", 3))
    for chosen in (told, beside):
        assert chosen["source"].root == cases and chosen["protocol"] == protocol
        assert chosen["methods"] == ["refit_head", "reweighting"]
        assert (chosen["device"], chosen["root"]) == ("cpu", str(tmp_path))
    (((_, place), drawn),) = found["write_figures"]
    assert place == given["figures"] and drawn["node"] == 7
    (((_, out, results), told),) = found["report_run"]
    assert (out, told["title"]) == (given["out"], "T")
    assert set(results["protocol"]) == {protocol.digest} and results["backbone"].nunique() == 2
    assert told["single_file"] is (None if parts else True)
    assert list(told["beside"]) == ["split 1" if compare == "1" else "sgc"]
    typed = told["command"].split()
    for name, value in again.items():
        assert typed[typed.index(f"--{name}") + 1] == str(value)


def test_a_case_is_shown_where_there_is_one_and_the_overview_where_there_are_more(called, cases):
    line = ["report", "--store", str(cases)]
    for chosen, case in (
        ([], None), (["--dataset", "cora"], None), (["--backbone", "gcn"], None),
        (["--dataset", "pubmed"], ("pubmed", "gcn", 3)),
        (["--backbone", "gat"], ("cora", "gat", 3)),
        (["--dataset", "cora", "--backbone", "gat"], ("cora", "gat", 3)),
        (["--dataset", "cora", "--backbone", "sage"], ("cora", "sage", 3)),
    ):  # fmt: skip
        split = [] if case is None else ["--split", "3"]
        found = called(*line, *chosen, *split, without="report")
        assert ("report_results" in found) == (case is None)
        assert [given for given, _ in found.get("rerun", [])] == ([] if case is None else [case])
        for _, told in found.get("rerun", []):
            assert told["methods"] is None
    for chosen, said in (
        (["--backbone", "gnc"], "no backbone 'gnc'; did you mean 'gcn'"),
        (
            ["--dataset", "pumbed", "--backbone", "gcn"],
            "no dataset 'pumbed'; did you mean 'pubmed'",
        ),
        (["--dataset", "cora", "--backbone", "gat", "--compare", "zzz"], "unknown backbone 'zzz'"),
    ):
        with pytest.raises(InputError, match=said):
            called(*line, *chosen, without="report")
    line += ["--dataset", "pubmed", "--split", "3"]
    paper = called(*line, "--methods", "paper", without="report")
    ((_, told),) = paper["rerun"]
    assert told["methods"] == [n for n, m in gr.methods.METHODS.items() if m.from_paper]


def test_a_view_is_the_report_with_the_same_options(called, cases, tmp_path):
    given = {"dataset": "cora", "backbone": "gcn", "split": 3, "compare": "1", "device": "cpu"}
    given |= {"digest": OTHER.digest, "root": str(tmp_path), "out": tmp_path / "r.html"}
    line = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    (tmp_path / "r.html").write_text("")
    found = called("view", str(cases), *line, "--no-browser")
    ((_, told),) = found["report"]
    assert told == {**given, "store": cases, "parts": True}


def test_a_study_is_run_as_asked_for(called, tmp_path):
    line = ["--store", str(tmp_path / "s"), "--datasets", "cora,builtin", "--backbones", "gcn,sgc"]
    line += ["--splits", "2,4-5", "--methods", "oracle, refit_head", "--protocol", "independent"]
    line += ["--set", "backbones.hidden=64", "--device", "cpu", "--root", str(tmp_path)]
    line += ["--stack", "2", "--jobs", "3", "--keep-models", "none"]
    ((given, told),) = called("study", "run", *line)["run_study"]
    assert given == (["cora", "builtin"], ["gcn", "sgc"], [2, 4, 5])
    engine, _ = told.pop("engine"), told.pop("watcher")
    assert engine.jobs == 3
    assert told == {
        "store": tmp_path / "s", "methods": ["oracle", "refit_head"], "device": "cpu",
        "protocol": override(INDEPENDENT, ["backbones.hidden=64"]), "root": str(tmp_path),
        "stack": 2, "keep_models": "none",
    }  # fmt: skip
    ((given, told),) = called("study", "run", "--datasets", "paper")["run_study"]
    assert (len(given[0]), len(given[1]), given[2]) == (8, 8, list(range(10)))
    assert told["methods"] is told["engine"] is told["stack"] is None
    assert (told["keep_models"], told["protocol"]) == ("first", PAPER)
