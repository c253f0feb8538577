"""What a type checker sees of the root: the real signatures, though names load when first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gnn_repair

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

def after_a_tail(exposure: gr.Exposure | gr.Exposure, y: Any, masks: tuple[Any, Any]) -> Any:
    fitted = gr.Reweighting().fit(exposure, y, *masks)
    ladder = gr.EvidenceLadder().fit(exposure, y, *masks)
    print(gr.reach(exposure, y), gr.solve(exposure, y)[0])
    return fitted.predict(exposure), ladder.logits(exposure)

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


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says about a user's two scripts."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    (folder / "mypy.ini").write_text(SETTINGS)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "right.py",
        "wrong.py",
    ]
    place = {"MYPYPATH": str(Path(gnn_repair.__file__).parents[1]), "PATH": ""}
    done = subprocess.run(
        command, cwd=folder, env=place, capture_output=True, text=True, check=False
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_right_use_passes_and_shows_the_signature(checked):
    (line,) = [line for line in checked if line.startswith("right.py")]
    assert "note: Revealed type" in line
    assert "gnn_repair.exposure.value.Exposure" in line and "threads:" in line


def test_wrong_use_is_found(checked):
    found = [line for line in checked if line.startswith("wrong.py")]
    words = [
        "solve",
        "solve",
        "FittedRepair",
        "SetTranslation",
        "nonsense",
        "margins",
    ]
    words.append('"fit" of "Repair"')
    for number, word in enumerate(words, start=5):
        assert any(line.startswith(f"wrong.py:{number}: error") and word in line for line in found)
