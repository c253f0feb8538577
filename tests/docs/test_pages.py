"""Blocks, tutorials and the site of the documentation are run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.main import get_command

import gnn_repair
from gnn_repair.cli import app
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import GnnRepairError
from gnn_repair.oracle import solve
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.shown_output import assert_alike
from tools.docs import pictures
from tools.docs.blocks import blocks_of, commands_of, run
from tools.docs.notebooks import as_markdown, executed, notebooks, printed

# Every code block of the README and the documentation runs, and prints what the page shows.

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
RUN = [
    name
    for page, name in zip(PAGES, NAMES, strict=True)
    if page.exists() and any(block.language == "python" for block in blocks_of(page))
]

pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="not in a checkout")


@pytest.mark.parametrize("name", RUN)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(ROOT / name):
        if block.language == "python" and block.skipped is None:
            printed = run(block, names, name)
            if block.shown is not None:
                assert_alike(printed, block.shown, f"{name}:{block.line}")


def test_the_commands_of_pages_are_commands():
    """They read their options, and run nothing."""
    for name in NAMES:
        for line, words in commands_of(ROOT / name):
            command = get_command(app)
            while hasattr(command, "commands"):
                assert words and words[0] in command.commands, (name, line, words)
                command, words = command.commands[words[0]], words[1:]
            try:
                command.make_context(command.name, list(words), resilient_parsing=False)
            except Exception as problem:
                raise AssertionError(f"{name}:{line}: {problem}") from problem


# The site fetches nothing, and what it shows fits a telephone.
CONFIG = ROOT / "mkdocs.yml"


def test_no_setting_makes_pages_fetch():
    """A repo_url asks GitHub for stars; without a shim of ours Material fetches one."""
    text = CONFIG.read_text(encoding="utf-8")
    assert not re.search(r"^repo_url:", text, re.M) and "font: false" in text
    (shim,) = re.findall(r"^    - (\S*iframe-worker\S*)$", text, re.M)
    assert (ROOT / "docs" / shim).is_file()
    assert not re.search(r"https?://", (ROOT / "docs" / shim).read_text(encoding="utf-8"))


def test_a_long_formula_scrolls_by_itself():
    pytest.importorskip("mkdocs", reason="builds the site")
    pytest.importorskip("latex2mathml", reason="builds the site")
    from tools.docs.pages import on_page_content

    block = on_page_content(r'<div class="arithmatex">\[x + y\]</div>')
    assert block.startswith('<div style="overflow-x: auto"><math') and block.endswith("</div>")
    inline = on_page_content(r'<span class="arithmatex">\(x\)</span>')
    assert inline.startswith("<math") and "overflow" not in inline


@pytest.mark.parametrize("drawn", ["CAN", "CANNOT"])
def test_the_drawing_of_the_concepts_shows_what_the_oracle_answers(drawn):
    messages = getattr(pictures, drawn)
    table = np.column_stack([np.zeros(3), -messages])  # the class, then what each rival gets of it
    exposure = exposure_of(Numbers(np.array([[3]]), pictures.FROZEN, table, np.zeros((1, 3))))
    solution = solve(exposure, torch.tensor([0]))
    coefficients, weights, point = pictures.best(messages)
    assert bool(solution.reachable[0]) == (drawn == "CAN")
    np.testing.assert_allclose(solution.margin[0], point, rtol=1e-12)
    np.testing.assert_allclose(coefficients @ messages, point, rtol=1e-12)
    np.testing.assert_allclose(solution.rival_weights[0], [0, *weights], rtol=1e-9)
    shown = (ROOT / "docs/images/concepts-evidence.svg").read_text(encoding="utf-8")
    assert f"{abs(point.min()):.2f}" in shown


def test_the_reference_holds_every_public_name():
    pytest.importorskip("mkdocs", reason="builds the site")
    from tools.docs.pages import REFERENCE

    named = [name for _, names in REFERENCE.values() for name in names]
    assert sorted(named) == sorted(set(gnn_repair.__all__) - {"__version__"})


# Tutorials are run anew where their data is, and print what they show.

TUTORIALS = notebooks()


def _cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_outputs_and_few_cells(path):
    code = [cell for cell in _cells(path) if cell["cell_type"] == "code"]
    assert 10 <= len(_cells(path)) <= 20
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) - 2
    faults = [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"]
    assert not faults


@pytest.mark.skipif(not os.environ.get("GNN_REPAIR_LONG"), reason="GNN_REPAIR_LONG=1 runs it")
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_prints_what_it_shows(path, tmp_path):
    pytest.importorskip("nbclient", reason="runs notebooks")
    shown = _cells(path)
    code = "".join("".join(cell["source"]) for cell in shown)
    for name in re.findall(r'(?:load_dataset|trained)\("([\w-]+)"\)', code):
        try:
            load_dataset(name)
        except GnnRepairError as missing:
            pytest.skip(str(missing))
    found = executed(path, tmp_path).cells
    for number, (old, new) in enumerate(zip(shown, found, strict=True)):
        if new.cell_type == "code":
            # Real models are trained in float32, which rounds differently on other processors.
            assert_alike(printed(new), printed(old), f"{path.name}, cell {number}", rounding=0.1)
            assert _pictures(new) == _pictures(old)


def _pictures(cell) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell["outputs"])


def test_as_a_page_it_shows_code_outputs_and_pictures(tmp_path):
    page = tmp_path / "one.ipynb"
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
                {"output_type": "display_data", "data": {"image/png": "QUJD", "text/plain": "x"}},
            ],
        },
    ]
    page.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert as_markdown(page).splitlines() == [
        *("# Title", "", "```python", "print(1)", "```", "", "```", "1", "```", ""),
        "![What the cell draws](data:image/png;base64,QUJD)",
    ]
