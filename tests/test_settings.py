"""Settings, types, the wheel and the developers' tools."""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gnn_repair
import gnn_repair as gr
from benchmarks import explainers
from benchmarks.__main__ import app, main
from gnn_repair.backbones import BACKBONES, Shape
from gnn_repair.budget import SHORT, Budget
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import InputError, closest, suggestion
from gnn_repair.exposure import expose
from gnn_repair.repair import CorrectAndSmooth
from gnn_repair.results.protocol import with_changes
from gnn_repair.study import PAPER
from tools.mutation.__main__ import EQUIVALENT
from tools.mutation.equivalent import read_equivalent
from tools.mutation.mutants import mutants_of

ROOT = Path(__file__).parents[1]

# Settings outside their range, and mistyped names: answered when they are built, by name.

WHOLE = [0, -1, 1.5, math.nan, "3", True]
RATES = [0, -1e-3, math.nan, math.inf, "0.1", True]
SHARES = [-1, -1e-9, 1, 2, math.nan, "0.2", None]


@pytest.mark.parametrize(
    ("kind", "name", "values", "edges"),
    [
        (Budget, "epochs", [*WHOLE, None], [1, np.int64(1)]),
        (Budget, "patience", WHOLE, [1, None]),
        (Budget, "learning_rate", RATES, [1e-300]),
        (Budget, "weight_decay", [-1e-9, math.nan, math.inf, None], [0]),
        (Budget, "clip", RATES, [1e-300]),
        (Budget, "decoupled", [1, None, "yes"], [True]),
        (Budget, "epoch_zero", [0, None], [True]),
        (Shape, "hidden", WHOLE, [1]),
        (Shape, "heads", WHOLE, [1]),
        (Shape, "dropout", SHARES, [0, 0.999]),
        (CorrectAndSmooth, "layers", WHOLE, [1]),
    ],
)
def test_a_value_outside_its_range_is_named_and_the_edges_are_inside(kind, name, values, edges):
    usual = SHORT if kind is Budget else kind()
    for value in values:
        with pytest.raises(InputError, match=f"{kind.__name__}: {name} is"):
            replace(usual, **{name: value})
    assert [getattr(replace(usual, **{name: value}), name) for value in edges] == edges


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_heads_divide_the_width(name):
    with pytest.raises(InputError, match="hidden is 10, which 4 heads do not divide"):
        BACKBONES[name](Shape(hidden=10, heads=4))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("gnc", "gcn"), ("GCN", "gcn"), ("scg", "sgc"), ("gatv", "gatv2"), ("mixhopp", "mixhop")],
)
def test_letters_that_changed_places_count_as_the_nearest(typed, meant):
    assert closest(typed, gr.BACKBONES) == meant
    assert suggestion("transformer", ["gcn", "gat"]) == "choose from gcn, gat"


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"heads": 2}, "did you mean backbones.heads?"),
        ({"hidden": 64}, "did you mean backbones.hidden or repairs.hidden?"),
        ({"backbones": {"hiden": 64}}, "did you mean backbones.hidden?"),
        ({"backbones": {"epochs": 3}}, "did you mean backbones.short.epochs"),
        ({"backbone": {"hidden": 3}}, "did you mean backbones?"),
    ],
)
def test_settings_are_found_inside_their_group(changes, meant):
    with pytest.raises(InputError) as caught:
        with_changes(PAPER, changes)
    assert meant in str(caught.value)


def test_a_mistyped_public_name_lets_python_suggest():
    with pytest.raises(AttributeError) as caught:
        gr.solve_orcale  # noqa: B018
    assert caught.value.name == "solve_orcale" and caught.value.obj is gr


# What a type checker sees of the root: the real signatures, though names load when first used.

RIGHT = """
from typing import Any

import gnn_repair as gr
from gnn_repair import Exposure

def margin(exposure: Exposure) -> float:
    solution = gr.solve(exposure, "all", method="highs", threads=1)
    solution.save("solution.safetensors")
    return float(solution[0].margin)

def repaired(path: str) -> int:
    fitted = gr.FittedRepair.load(path)
    return fitted.num_parameters + gr.SetTranslation(hidden=16).hidden

def predicted(exposure: Exposure, y: Any, masks: tuple[Any, Any]) -> Any:
    return gr.EvidenceLadder().fit(exposure, y, *masks).predict(exposure)

reveal_type(gr.solve)
"""
WRONG = """
import gnn_repair as gr

def mistakes(exposure: gr.Exposure) -> None:
    gr.solve(exposure, "all", method="magic")
    gr.solve(exposure, "all", thread=1)
    gr.FittedRepair.load(3)
    gr.SetTranslation(hidden="wide")
    gr.nonsense
    gr.solve(exposure, "all").margins
    gr.Reweighting().fit("cora", 1, 2, 3)
"""
SETTINGS = """
[mypy]
# Only this package is looked at; whole libraries would take minutes.
follow_imports = silent
[mypy-torch.*,torch_geometric.*,numpy.*,pandas.*,numba.*,scipy.*,matplotlib.*,ray.*,highspy.*]
follow_imports = skip
follow_imports_for_stubs = True
ignore_missing_imports = True
[mypy-torch_geometric,torch,numpy,pandas,numba,scipy,matplotlib,ray,highspy,gurobipy,triton]
follow_imports = skip
follow_imports_for_stubs = True
ignore_missing_imports = True
"""


def test_type_checkers_see_every_public_name_at_its_home():
    tree = ast.parse(Path(gnn_repair.__file__).read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            # "as" with the same name is how a name is passed on to others.
            assert alias.asname == alias.name
            seen[alias.name] = statement.module.removeprefix("gnn_repair.")
    assert seen == gnn_repair._HOMES
    assert (Path(gnn_repair.__file__).parent / "py.typed").is_file()


def test_a_user_s_right_use_passes_and_wrong_use_is_found(tmp_path):
    """As mypy reads two scripts."""
    for name, text in {"right.py": RIGHT, "wrong.py": WRONG, "mypy.ini": SETTINGS}.items():
        (tmp_path / name).write_text(text)
    strict = ["-m", "mypy", "--strict", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, *strict, "right.py", "wrong.py"], cwd=tmp_path, capture_output=True,
        text=True, env={"MYPYPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert not done.stderr
    found = done.stdout.splitlines()
    (line,) = [line for line in found if line.startswith("right.py")]
    assert "note: Revealed type" in line
    assert "gnn_repair.exposure.value.Exposure" in line and "threads:" in line
    words = ["solve", "solve", "FittedRepair", "SetTranslation", "nonsense", "margins"]
    words.append('"fit" of "Repair"')
    for number, word in enumerate(words, start=5):
        assert any(line.startswith(f"wrong.py:{number}: error") and word in line for line in found)


# The wheel holds everything that the package reads at run time, and no developers' apparatus.


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="not in a checkout")
def test_data_files_and_the_page_are_in_the_wheel(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "gnn_repair"
    needed = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert needed <= packed
    assert {"gnn_repair/paper.json", "gnn_repair/raw_files.json"} <= packed
    assert any(name.startswith("gnn_repair/reporting/page/") for name in packed)
    outside = {name.split("/")[0] for name in packed} - {"gnn_repair"}
    assert all(name.endswith(".dist-info") for name in outside)
    assert not any(re.search(r"bench|campaign|selftest", name) for name in packed)


# Mutants that change nothing: each one listed exists, with a reason.


def test_what_is_listed_as_changing_nothing_exists_and_has_a_reason(monkeypatch):
    monkeypatch.chdir(ROOT)
    listed = read_equivalent(EQUIVALENT)
    assert all(listed.values())
    names = {key.split(": ")[0] for key in listed}
    assert not set(listed) - {m.key for name in names for m in mutants_of(Path(name))}


# The benchmarks' command line measures what it says; no figure is asserted.


def test_the_command_prints_every_peer():
    arguments = ["oracle", "--shapes", "4:3:1", "--cases", "", "--repeats", "1"]
    result = CliRunner().invoke(app, [*arguments, "--format", "json"], catch_exceptions=False)
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["LPs"] == "K=4 C=3 B=1" and row["K"] == 4
    assert row["ours"] > 0 and row["highspy"] > 0 and row["scipy"] > 0


@pytest.mark.parametrize(
    "line",
    [
        ["training", "--dataset", "corra"],
        ["accuracy", "--splits", "5-2"],
        ["scale", "--nodes", "1"],
        ["repair", "--cases", "nonsense"],
        ["oracle", "--shapes", "1:2"],
        ["heads", "--hidden", "64,many"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_a_bad_line_is_refused(monkeypatch, capsys, line):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *line])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr()
    assert caught.value.code == 2 and not said.out
    assert "Traceback" not in said.err and said.err.strip()


def test_a_smallest_reweighting_changes_the_prediction_of_the_model_itself():
    data = load_dataset("builtin").subgraph(torch.arange(200))
    model = explainers.trained(data, 5)
    exposure = expose(model, data)
    predicted = exposure.frozen_logits[0].argmax(1)
    wrong = (predicted != data.y).nonzero().view(-1)[:20].tolist()
    answers = 0
    for node in wrong:
        asked = explainers.Question.of(model, data, node, int(predicted[node]), int(data.y[node]))
        answer = explainers.smallest_reweighting(asked, exposure)
        with torch.no_grad():
            assert asked.lead(asked.logits()) > 0
            assert answer is None or explainers.replayed(asked, exposure, answer)
        answers += answer is not None
    assert answers > 3
